//! Connections that no process has accepted yet: which there are (sock_diag(7)), and
//! accepting in place of the process whose listener it is.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::Duration;

use godwit_wire::FlowKey;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{SockFlag, SockProtocol, accept4};

use crate::alarm::Alarm;
use crate::destroy::SOCK_DIAG_BY_FAMILY;
use crate::netlink::{NLM_F_DUMP, Netlink};
use crate::option::option;
use crate::sockets::flow;
use crate::view::{INET_DIAG_INFO, SocketView, view};

/// include/net/tcp_states.h: 1 << TCP_ESTABLISHED | 1 << TCP_CLOSE_WAIT
const OPEN: u32 = 1 << 1 | 1 << 8;

/// All connections to a port of this machine that wait to be accepted, whatever the
/// address. Where others come and go meanwhile it may miss some.
///
/// # Errors
/// If the kernel lacks INET_DIAG.
pub fn unaccepted(port: u16) -> io::Result<Vec<(FlowKey, SocketView)>> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        Netlink::open(SockProtocol::NetlinkSockDiag)?.visit(
            SOCK_DIAG_BY_FAMILY,
            NLM_F_DUMP,
            &request(family, port),
            |message| {
                if let (Some(flow), Some(view)) = (flow(message), view(message))
                    && flow.service.port == port
                    && view.waits_to_be_accepted()
                {
                    found.push((flow, view));
                }
            },
        )?;
    }
    Ok(found)
}

/// `struct inet_diag_req_v2` for a dump of what is open at a port.
fn request(family: libc::c_int, port: u16) -> Vec<u8> {
    let family = u8::try_from(family).expect("address families are small");
    let tcp = u8::try_from(libc::IPPROTO_TCP).expect("protocol numbers are small");
    let mut body = vec![family, tcp, 1 << (INET_DIAG_INFO - 1), 0];
    body.extend(OPEN.to_ne_bytes());
    // struct inet_diag_sockid: the port, and any
    body.extend(port.to_be_bytes());
    body.extend([0; 46]);
    body
}

/// Why nobody accepts at a listener in place of its process; it has not been touched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenerError {
    /// Its queue may have connections whose handshake is not over (RFC 7413).
    #[error("it uses TCP Fast Open")]
    FastOpen,
    /// Its sockets are more than TCP sockets.
    #[error("it is no plain TCP listener")]
    Protocol,
    /// A system call failed.
    #[error(transparent)]
    Kernel(#[from] io::Error),
}

/// How long an accept lasts that finds nobody, at most.
const PATIENCE: Duration = Duration::from_millis(1);

/// A listener that another process has open, too. It stays as it is for that process:
/// whether it blocks is a property of what both have open, and would outlive this one.
#[derive(Debug)]
pub struct ForeignListener {
    socket: OwnedFd,
}

impl ForeignListener {
    /// # Errors
    /// If it is none, or what it accepts could not be made anew.
    pub fn new(socket: OwnedFd) -> Result<Self, ListenerError> {
        let is = |level, name| option(socket.as_fd(), level, name);
        let tcp = is(libc::SOL_SOCKET, libc::SO_PROTOCOL)? == libc::IPPROTO_TCP;
        if !tcp || is(libc::SOL_SOCKET, libc::SO_ACCEPTCONN)? == 0 {
            return Err(ListenerError::Protocol);
        }
        if is(libc::IPPROTO_TCP, libc::TCP_FASTOPEN)? != 0 {
            return Err(ListenerError::FastOpen);
        }
        Ok(Self { socket })
    }

    /// The connection that has waited longest; `None` if none does. If another process
    /// takes it that moment, one that comes within a millisecond may be had instead.
    ///
    /// # Errors
    /// If this process has too many files open, or no timer.
    pub fn accept(&self) -> io::Result<Option<OwnedFd>> {
        loop {
            let mut ready = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            if poll(&mut ready, PollTimeout::ZERO)? == 0 {
                return Ok(None);
            }
            // Others accept, too, and whoever comes last may wait for the next.
            let _alarm = Alarm::every(PATIENCE)?;
            match accept4(self.socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
                // SAFETY: a fresh descriptor that is nobody else's.
                Ok(fd) => return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
                Err(Errno::EAGAIN) => return Ok(None),
                // The next one, if there is one; this one has gone.
                Err(Errno::ECONNABORTED | Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// A listener that has more room in its queue than its process has asked for, until
/// this is dropped. What its process asks for meanwhile holds.
#[derive(Debug)]
pub struct Widened {
    listener: OwnedFd,
    before: u32,
    now: u32,
}

impl Widened {
    /// `most` as the kernel shows it; the kernel gives no more than
    /// `net.core.somaxconn`.
    ///
    /// # Errors
    /// If it is no listener.
    pub fn new(listener: OwnedFd, before: u32, most: u32) -> io::Result<Self> {
        set_backlog(&listener, most)?;
        let now = backlog(&listener)?;
        Ok(Self {
            listener,
            before,
            now,
        })
    }
}

impl Drop for Widened {
    fn drop(&mut self) {
        if backlog(&self.listener).is_ok_and(|now| now == self.now) {
            // It was larger a moment ago.
            let _ = set_backlog(&self.listener, self.before);
        }
    }
}

fn set_backlog(listener: &OwnedFd, most: u32) -> io::Result<()> {
    let most = i32::try_from(most).unwrap_or(i32::MAX);
    // Not as nix has it, which knows a limit of its own.
    // SAFETY: two numbers.
    match unsafe { libc::listen(listener.as_raw_fd(), most) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Of a listener, `tcpi_sacked` is its backlog (`tcp_get_info`).
fn backlog(listener: &OwnedFd) -> io::Result<u32> {
    const SACKED_AT: usize = 28;
    const END: usize = SACKED_AT + 4;
    let (mut info, mut length) = ([0_u8; END], 32);
    // SAFETY: the kernel writes at most `length` bytes, which `info` has.
    let err = unsafe {
        libc::getsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    let sacked = info.get(SACKED_AT..).and_then(|it| it.try_into().ok());
    match (err, sacked) {
        (0, Some(sacked)) => Ok(u32::from_ne_bytes(sacked)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;
    use std::{process, thread};

    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::sys::socket::{Backlog, Shutdown, listen, shutdown};

    use super::*;
    use crate::option::set_option;
    use crate::{ForeignProcess, Listeners, connection_of};

    fn taken(listener: &TcpListener) -> OwnedFd {
        let own = ForeignProcess::open(process::id()).expect("it runs");
        own.take(listener.as_raw_fd()).expect("it is ours")
    }

    fn blocks(listener: &TcpListener) -> bool {
        let flags = fcntl(listener, FcntlArg::F_GETFL).expect("it is open");
        !OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK)
    }

    /// A listener that its process does not look after: who waits there is
    /// served all the same, and the listener goes on as it was.
    #[test]
    fn who_waits_at_a_foreign_listener_is_accepted() {
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(local) else {
                continue; // a host without this family
            };
            let service = listener.local_addr().expect("it is bound");
            let connect = |_| TcpStream::connect(service).expect("it listens");
            let mut clients: Vec<_> = (0..3).map(connect).collect();
            let waiting = || unaccepted(service.port()).expect("sock_diag");
            while waiting().len() < clients.len() {}
            let mut keys: Vec<_> = waiting().into_iter().map(|(key, _)| key).collect();

            let foreign = ForeignListener::new(taken(&listener)).expect("it listens");
            // In the order in which they came.
            for client in &clients {
                let socket = foreign.accept().expect("it listens");
                let socket = socket.expect("another one waits");
                let found = connection_of(socket.as_fd()).expect("it is connected");
                let local = client.local_addr().expect("it is connected");
                assert_eq!(
                    (found.client, found.service),
                    (local.into(), service.into())
                );
                keys.retain(|key| *key != found);
                TcpStream::from(socket).write_all(b"!").expect("it is open");
            }
            assert!(keys.is_empty() && waiting().is_empty(), "{keys:?}");
            assert!(foreign.accept().expect("it listens").is_none());
            assert!(blocks(&listener), "not even now is it another one");
            for client in &mut clients {
                client.read_exact(&mut [0]).expect("somebody answered");
            }
            let _client = TcpStream::connect(service).expect("it still listens");
            listener.accept().expect("it still listens");
        }
    }

    /// Its process accepts the only one between the look and the accept, again and again:
    /// nobody waits for the next.
    #[test]
    fn who_comes_too_late_does_not_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let service = listener.local_addr().expect("it is bound");
        let foreign = ForeignListener::new(taken(&listener)).expect("it listens");
        thread::scope(|scope| {
            let server = scope.spawn(|| listener.incoming().map_while(Result::ok).count());
            let (mut taken, mut longest) = (0, Duration::ZERO);
            let clients: Vec<_> = (0..500)
                .map(|_| {
                    let client = TcpStream::connect(service).expect("it listens");
                    let begun = Instant::now();
                    taken += usize::from(foreign.accept().expect("it listens").is_some());
                    longest = longest.max(begun.elapsed());
                    client
                })
                .collect();
            while !unaccepted(service.port()).expect("sock_diag").is_empty() {}
            shutdown(listener.as_raw_fd(), Shutdown::Both).expect("it listens");
            let accepted = server.join().expect("it ends");
            eprintln!("{taken} taken, {accepted} accepted, {longest:?} waited");
            assert_eq!(taken + accepted, clients.len());
            assert!(taken > 0 && accepted > 0, "both came too late at times");
            assert!(longest < Duration::from_secs(1), "{longest:?}");
        });
    }

    #[test]
    fn what_could_not_be_made_anew_is_not_accepted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_FASTOPEN);
        set_option(listener.as_fd(), level, name, 5).expect("Linux 3.7");
        let refused = ForeignListener::new(taken(&listener));
        assert!(
            matches!(refused, Err(ListenerError::FastOpen)),
            "{refused:?}"
        );
        assert!(blocks(&listener));
        let service = listener.local_addr().expect("it is bound");
        let client = TcpStream::connect(service).expect("it listens");
        let refused = ForeignListener::new(client.into());
        assert!(
            matches!(refused, Err(ListenerError::Protocol)),
            "{refused:?}"
        );
    }

    /// One more than its process has asked for, for a moment.
    #[test]
    fn a_full_queue_has_room_for_a_moment() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listen(&listener, Backlog::new(0).expect("small")).expect("it listens");
        let service = listener.local_addr().expect("it is bound");
        let _first = TcpStream::connect(service).expect("it listens");
        let queue = || Listeners::queues(service).expect("sock_diag")[0];
        while queue().has_room() {}
        let widened = Widened::new(taken(&listener), queue().most, 1).expect("it listens");
        assert!(queue().has_room());
        drop(widened);
        assert!(!queue().has_room() && queue().most == 0);
    }

    /// A server that is told to read its file anew, in that moment.
    #[test]
    fn what_its_process_asks_for_meanwhile_holds() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let service = listener.local_addr().expect("it is bound");
        let most = || Listeners::queues(service).expect("sock_diag")[0].most;
        let widened = Widened::new(taken(&listener), 3, 5).expect("it listens");
        assert_eq!(most(), 5);
        listen(&listener, Backlog::new(7).expect("small")).expect("it listens");
        drop(widened);
        assert_eq!(most(), 7);
        let widened = Widened::new(taken(&listener), 7, 9).expect("it listens");
        assert_eq!(most(), 9);
        drop(widened);
        assert_eq!(most(), 7);
    }
}
