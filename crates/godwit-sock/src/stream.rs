//! How far a connection's application has come in its two streams.
//!
//! A process without privileges cannot ask for sequence numbers. It can ask how
//! many bytes the kernel has received and had acknowledged since the socket was
//! made (`tcpi_bytes_received`, `tcpi_bytes_acked`, Linux 4.1), and how many are
//! queued (`SIOCINQ`, `SIOCOUTQ`): together that is where the application stands.
//! These are several system calls, and segments arrive in between, so they are
//! repeated until the first and the last one agree.
//!
//! Where an agent moves connections, a program of its own answers all of that at
//! once (`KernelView` of godwit-bpf): then it is asked.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use godwit_wire::TcpState;

use crate::socket_cookie;

/// Where `tcpi_bytes_acked` and `tcpi_bytes_received` are in `struct tcp_info`
/// (include/uapi/linux/tcp.h).
const ACKED_AT: usize = 120;
const RECEIVED_AT: usize = 128;
const INFO_LEN: usize = 136;
/// The same of `tcpi_snd_mss` and of `tcpi_snd_wnd` (Linux 5.4).
const MSS_AT: usize = 16;
const WINDOW_AT: usize = 228;
const WINDOW_END: usize = 232;

/// `GW_SOL_HIDDEN` and `GW_SO_POSITION` of `gw_socket.h` in godwit-bpf.
const SOL_HIDDEN: libc::c_int = 0x6777;
const SO_POSITION: libc::c_int = 2;

/// include/net/tcp_states.h: what `TcpState` leaves out.
const TIME_WAIT: u8 = 6;
const CLOSE: u8 = 7;

/// A connection whose numbers never stand still for four system calls does not
/// exist: each repetition is one or two microseconds.
const MAX_LOOKS: u32 = 10_000;

/// Bytes of data since the socket was made. A FIN is none; the SYN of a socket that
/// has connected itself is one that it has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamPosition {
    /// What the application has read.
    pub read: u64,
    /// What the application has written.
    pub written: u64,
    /// What the peer has acknowledged of it.
    pub acknowledged: u64,
    /// What has come and was not read.
    pub unread: u64,
}

/// What one look at the socket shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    state: u8,
    acked: u64,
    received: u64,
}

/// `struct gw_position` of `gw_socket.h` in godwit-bpf.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Told {
    bytes_acked: u64,
    bytes_received: u64,
    cookie: u64,
    unread: u32,
    unacked: u32,
    state: u32,
    pad: u32,
}

impl StreamPosition {
    /// As [`of`](Self::of), if it is the socket with this cookie
    /// ([`socket_cookie`]); `None` if it is another one.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn of_same(socket: BorrowedFd<'_>, cookie: u64) -> io::Result<Option<Self>> {
        let position = match told(socket) {
            Some(told) if told.cookie == cookie => Ok(told.position()),
            Some(_) => return Ok(None),
            None if socket_cookie(socket)? != cookie => return Ok(None),
            None => Self::looked_up(socket),
        };
        position.map(Some)
    }

    /// Where the application of `socket` stands, exact while segments arrive.
    /// While it reads or writes at the same time there is no such place.
    ///
    /// # Errors
    /// If it is no TCP socket, or was never connected, or is connected no more.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        match told(socket) {
            Some(told) => Ok(told.position()),
            None => Self::looked_up(socket),
        }
    }

    fn looked_up(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let mut before = look(socket)?;
        for _ in 0..MAX_LOOKS {
            let unread = queued(socket, libc::FIONREAD)?;
            let unacked = queued(socket, libc::TIOCOUTQ)?;
            let after = look(socket)?;
            if before == after {
                return Ok(before.position(unread, unacked));
            }
            before = after;
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Look {
    fn position(self, unread: u64, unacked: u64) -> StreamPosition {
        let state = TcpState::from_number(self.state);
        let closing = self.state == TIME_WAIT;
        let fin_in = closing || state.is_some_and(TcpState::has_peer_fin);
        let fin_out = closing || state.is_some_and(TcpState::has_own_fin);
        let received = self.received.saturating_sub(fin_in.into());
        let written = (self.acked + unacked).saturating_sub(fin_out.into());
        StreamPosition {
            read: received.saturating_sub(unread),
            written,
            acknowledged: self.acked.min(written),
            unread,
        }
    }
}

impl Told {
    fn position(&self) -> StreamPosition {
        let look = Look {
            state: u8::try_from(self.state).unwrap_or(CLOSE),
            acked: self.bytes_acked,
            received: self.bytes_received,
        };
        look.position(self.unread.into(), self.unacked.into())
    }
}

/// What an agent's program says; `None` without one, and of what the kernel itself
/// would not call a connection.
fn told(socket: BorrowedFd<'_>) -> Option<Told> {
    let mut told = Told::default();
    let mut length = libc::socklen_t::try_from(size_of::<Told>()).ok()?;
    // SAFETY: the kernel writes at most `length` bytes, which `told` has, and any
    // bytes are one.
    let err = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            SOL_HIDDEN,
            SO_POSITION,
            (&raw mut told).cast(),
            &raw mut length,
        )
    };
    let whole = usize::try_from(length).is_ok_and(|length| length == size_of::<Told>());
    let state = u8::try_from(told.state).ok()?;
    let connected = state == TIME_WAIT || TcpState::from_number(state).is_some();
    (err == 0 && whole && connected).then_some(told)
}

fn look(socket: BorrowedFd<'_>) -> io::Result<Look> {
    let (info, filled) = info::<INFO_LEN>(socket)?;
    let number = |at: usize| {
        info[at..]
            .first_chunk()
            .map(|bytes| u64::from_ne_bytes(*bytes))
    };
    let [state, ..] = info;
    match (number(ACKED_AT), number(RECEIVED_AT)) {
        (Some(acked), Some(received)) if filled && state != CLOSE => Ok(Look {
            state,
            acked,
            received,
        }),
        _ => Err(io::ErrorKind::NotConnected.into()),
    }
}

/// The first bytes of `struct tcp_info`, and whether the kernel has so many.
fn info<const LEN: usize>(socket: BorrowedFd<'_>) -> io::Result<([u8; LEN], bool)> {
    let mut info = [0_u8; LEN];
    let mut length = libc::socklen_t::try_from(info.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes, which `info` has.
    let err = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if err != 0 {
        return Err(io::Error::last_os_error());
    }
    let filled = usize::try_from(length).is_ok_and(|length| length == LEN);
    Ok((info, filled))
}

/// Whether the peer's window has no room for what was never sent: the kernel sends it
/// when the peer has said more, and not before.
pub(crate) fn is_shut(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let (info, filled) = info::<WINDOW_END>(socket)?;
    let number = |at: usize| {
        let bytes = info.get(at..)?.first_chunk()?;
        Some(u64::from(u32::from_ne_bytes(*bytes)))
    };
    let (Some(mss), Some(window), true) = (number(MSS_AT), number(WINDOW_AT), filled) else {
        return Ok(false);
    };
    let unsent = unsent(socket)?;
    let in_flight = queued(socket, libc::TIOCOUTQ)?.saturating_sub(unsent);
    Ok(window.saturating_sub(in_flight) < unsent.min(mss))
}

/// Bytes that the application has written and that were never sent
/// (`SIOCOUTQNSD`).
pub(crate) fn unsent(socket: BorrowedFd<'_>) -> io::Result<u64> {
    const SIOCOUTQNSD: libc::Ioctl = 0x894b;
    queued(socket, SIOCOUTQNSD)
}

fn queued(socket: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: each of the requests writes one int, which outlives the call.
    let err = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut bytes) };
    if err < 0 {
        return Err(io::Error::last_os_error());
    }
    u64::try_from(bytes).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsFd as _;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    fn pair(local: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(local).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let client = TcpStream::connect(address).expect("it listens");
        let (server, _) = listener.accept().expect("somebody connects");
        (client, server)
    }

    fn of(socket: &TcpStream) -> (u64, u64) {
        let position = StreamPosition::of(socket.as_fd()).expect("it is connected");
        (position.read, position.written)
    }

    /// Waits until the kernel has told what is asked for.
    fn until(what: impl Fn() -> bool) {
        for _ in 0..5_000 {
            if what() {
                return;
            }
            thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("it never came");
    }

    #[test]
    fn bytes_count_when_they_are_read_and_written() {
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let (mut client, mut server) = pair(local);
            assert_eq!(of(&server), (0, 0));
            client.write_all(b"hello").expect("it is open");
            let mut three = [0; 3];
            server.read_exact(&mut three).expect("it came");
            assert_eq!(of(&server), (3, 0));
            let unread = StreamPosition::of(server.as_fd()).map(|position| position.unread);
            assert_eq!(unread.ok(), Some(2));
            server.write_all(b"answer").expect("it is open");
            assert_eq!(of(&server), (3, 6));
            let acknowledged = || StreamPosition::of(server.as_fd()).map(|p| p.acknowledged);
            until(|| acknowledged().is_ok_and(|bytes| bytes == 6));
        }
    }

    /// What is behind a shut window waits for the peer; what is not, for nobody.
    #[test]
    fn a_window_is_shut_while_the_peer_does_not_listen() {
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let (mut client, server) = pair(local);
            let shut = || is_shut(server.as_fd()).expect("it is connected");
            assert!(!shut());
            server.set_nonblocking(true).expect("it is open");
            let (mut writer, piece) = (&server, [0; 64 << 10]);
            let mut written = 0;
            // The kernel's buffers grow a few times.
            for _ in 0..50 {
                while let Ok(count) = writer.write(&piece) {
                    written += count as u64;
                }
                thread::sleep(std::time::Duration::from_millis(2));
            }
            until(shut);
            let mut heard = (&mut client).take(written);
            io::copy(&mut heard, &mut io::sink()).expect("it is open");
            until(|| !shut());
        }
    }

    /// A FIN takes a sequence number, and is no byte of data: neither ours nor
    /// the client's, read or not.
    #[test]
    fn a_fin_counts_for_nothing() {
        let (mut client, mut server) = pair("127.0.0.1:0");
        client.write_all(b"last").expect("it is open");
        client.shutdown(Shutdown::Write).expect("it is open");
        until(|| look(server.as_fd()).is_ok_and(|look| look.state == 8));
        assert_eq!(of(&server), (0, 0));
        server.read_exact(&mut [0; 3]).expect("it came");
        assert_eq!(of(&server), (3, 0));
        server.read_to_end(&mut Vec::new()).expect("it came");
        assert_eq!(of(&server), (4, 0));
        server.write_all(b"bye").expect("it is open");
        assert_eq!(of(&server), (4, 3));
        let syn = 1;
        assert_eq!(of(&client), (0, 4 + syn));
    }

    /// What an agent's program says is what the kernel says, with FINs and without,
    /// and of what is no connection it says nothing.
    #[test]
    fn an_agents_program_says_the_same_at_once() {
        if !nix::unistd::geteuid().is_root() {
            return println!("skipped: only root may load programs");
        }
        let _view = godwit_bpf::KernelView::open().expect("root may load programs");
        let same = |socket: &TcpStream| {
            let told = told(socket.as_fd()).expect("the program answers");
            let looked_up = StreamPosition::looked_up(socket.as_fd());
            assert_eq!(told.position(), looked_up.expect("it is connected"));
            let cookie = socket_cookie(socket.as_fd()).expect("it is a socket");
            let of_same = |cookie| StreamPosition::of_same(socket.as_fd(), cookie);
            assert_eq!(of_same(cookie).expect("it is one"), Some(told.position()));
            assert_eq!(of_same(cookie + 1).expect("it is one"), None);
        };
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let (mut client, mut server) = pair(local);
            let listener = TcpListener::bind(local).expect("a free port");
            assert!(told(listener.as_fd()).is_none());
            socket_cookie(server.as_fd()).expect("it has one from now on");
            client.write_all(b"hello").expect("it is open");
            server.read_exact(&mut [0; 3]).expect("it came");
            server.write_all(b"answer").expect("it is open");
            client.read_exact(&mut [0; 6]).expect("it came");
            until(|| look(server.as_fd()).is_ok_and(|look| look.acked == 6));
            same(&server);
            client.shutdown(Shutdown::Write).expect("it is open");
            until(|| look(server.as_fd()).is_ok_and(|look| look.state == 8));
            same(&server);
            server.read_to_end(&mut Vec::new()).expect("it came");
            same(&server);
            server.shutdown(Shutdown::Write).expect("it is open");
            until(|| look(server.as_fd()).is_err());
            assert!(told(server.as_fd()).is_none(), "it is over");
        }
    }

    /// The application stands still; segments and acknowledgements do not.
    #[test]
    fn positions_are_exact_while_segments_arrive() {
        let (client, mut server) = pair("127.0.0.1:0");
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let chunk = [7; 700];
                let mut client = &client;
                while !stop.load(Ordering::Relaxed) {
                    if client.write_all(&chunk).is_err() {
                        break;
                    }
                }
            });
            let (mut read, mut buffer) = (0, [0; 10_000]);
            for _ in 0..2_000 {
                read += server.read(&mut buffer).expect("it is open") as u64;
                assert_eq!(of(&server), (read, 0));
            }
            stop.store(true, Ordering::Relaxed);
            server.shutdown(Shutdown::Both).expect("it is open");
            drop(server);
        });
    }

    #[test]
    fn what_is_no_connection_has_no_position() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (pipe, _other) = io::pipe().expect("descriptors are left");
        StreamPosition::of(pipe.as_fd()).expect_err("a pipe");
        let never = nix::sys::socket::socket(
            nix::sys::socket::AddressFamily::Inet,
            nix::sys::socket::SockType::Stream,
            nix::sys::socket::SockFlag::SOCK_CLOEXEC,
            None,
        );
        let never = never.expect("descriptors are left");
        let error = StreamPosition::of(never.as_fd()).expect_err("it was never connected");
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        StreamPosition::of(listener.as_fd()).expect_err("a listener");
    }
}
