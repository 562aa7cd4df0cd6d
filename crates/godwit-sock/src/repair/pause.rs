//! A socket that stands still.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use godwit_wire::TcpState;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::restore::Release;
use super::sys::{self, SockOptError, TCP_REPAIR};

/// `TCP_REPAIR_ON`.
const ON: u32 = 1;
/// `TCP_ULP_NAME_MAX`.
const ULP_NAME: usize = 16;

/// Why a socket can't be moved; it has not been touched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PauseError {
    /// Its state is none of [`TcpState`]: not connected yet, or over.
    #[error("in the state {0} there is no connection to move")]
    State(&'static str),
    /// It was accepted before its handshake was over (RFC 7413).
    #[error("its handshake is not over (TCP Fast Open)")]
    FastOpen,
    /// A layer above TCP keeps state of its own in the kernel (kTLS).
    #[error("the kernel runs {0:?} on top of it")]
    UpperLayer(String),
    /// A byte with the urgent flag waits: TCP_REPAIR would lose it.
    #[error("urgent data wait")]
    Urgent,
    /// TCP_REPAIR does not know this kind of socket.
    #[error("it is a Multipath TCP socket")]
    Multipath,
    /// A system call failed.
    #[error(transparent)]
    Kernel(#[from] SockOptError),
}

/// Whether this kernel lets this process move live connections.
///
/// # Errors
/// If it lacks `TCP_REPAIR` (CONFIG_CHECKPOINT_RESTORE), or the process
/// CAP_NET_ADMIN.
pub fn available() -> Result<(), SockOptError> {
    let (family, flags) = (AddressFamily::Inet, SockFlag::SOCK_CLOEXEC);
    let socket = socket(family, SockType::Stream, flags, None)
        .map_err(|errno| sys::refused("socket", errno))?;
    TCP_REPAIR.set(socket.as_fd(), ON)
}

/// A socket in repair mode. What its application does with it fails or waits.
///
/// Dropped, it resumes: whoever has told another node to go on must call
/// [`discard`](Self::discard).
#[derive(Debug)]
#[must_use = "dropping it resumes the connection"]
pub struct PausedSocket {
    socket: ManuallyDrop<OwnedFd>,
    state: TcpState,
}

impl PausedSocket {
    /// Stops `socket`. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// With the socket and why it can't be moved.
    pub fn pause(socket: OwnedFd) -> Result<Self, (OwnedFd, PauseError)> {
        match Self::enter(socket.as_fd()) {
            Ok(state) => Ok(Self {
                socket: ManuallyDrop::new(socket),
                state,
            }),
            Err(error) => Err((socket, error)),
        }
    }

    fn enter(fd: BorrowedFd<'_>) -> Result<TcpState, PauseError> {
        // Before: a listener may not enter, an MPTCP socket can't.
        let _ = state_of(fd)?;
        if let Some(name) = upper_layer(fd)? {
            // What its first subflow has: they are sockets underneath.
            return Err(match name.as_str() {
                "mptcp" => PauseError::Multipath,
                _ => PauseError::UpperLayer(name),
            });
        }
        TCP_REPAIR.set(fd, ON).map_err(|error| {
            match error.source.raw_os_error() {
                // MPTCP has no such option.
                Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP) => PauseError::Multipath,
                _ => PauseError::Kernel(error),
            }
        })?;
        let looked = movable(fd);
        if looked.is_err() {
            // What can be done has been: the first error is the caller's.
            let _ = leave_repair(fd, Release::Silently);
        }
        looked
    }

    /// Its state when it was paused; segments that still reach it change it.
    pub const fn state(&self) -> TcpState {
        self.state
    }

    /// Lets it go on where it was.
    ///
    /// # Errors
    /// If the kernel refuses; it is closed then.
    pub fn resume(self, how: Release) -> Result<OwnedFd, SockOptError> {
        let socket = self.into_fd();
        leave_repair(socket.as_fd(), how)?;
        Ok(socket)
    }

    /// Ends it without a segment: another node goes on. Other processes that
    /// have it open find it closed.
    ///
    /// # Errors
    /// If the kernel refuses to disconnect it; it is closed here all the same,
    /// which says nothing either while it is in repair mode.
    pub fn discard(self) -> Result<(), SockOptError> {
        let socket = self.into_fd();
        disconnect(socket.as_fd())?;
        // Else what is blocked on it would be told EPERM.
        TCP_REPAIR.set(socket.as_fd(), Release::Silently.value())
    }

    fn into_fd(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped or used again, so the descriptor is
        // taken once.
        unsafe { ManuallyDrop::take(&mut this.socket) }
    }
}

impl AsFd for PausedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for PausedSocket {
    fn drop(&mut self) {
        // Nobody is left to tell; if it fails the kernel closes the connection.
        let _ = leave_repair(self.socket.as_fd(), Release::Silently);
        // SAFETY: the field is not used after this.
        drop(unsafe { ManuallyDrop::take(&mut self.socket) });
    }
}

/// Ends repair mode, which takes SO_REUSEADDR away: a server that is started again
/// would find its address in use by this connection, or by its TIME-WAIT. It is set
/// whether it was before or not, as a connected socket binds nothing more.
pub(super) fn leave_repair(fd: BorrowedFd<'_>, how: Release) -> Result<(), SockOptError> {
    TCP_REPAIR.set(fd, how.value())?;
    sys::SO_REUSEADDR.set(fd, 1)
}

/// Where the connection stands.
pub(super) fn state_of(fd: BorrowedFd<'_>) -> Result<TcpState, PauseError> {
    // struct tcp_info begins with the state.
    let mut state = [0];
    sys::TCP_INFO.get_bytes(fd, &mut state)?;
    TcpState::from_number(state[0]).ok_or_else(|| unmovable(state[0]))
}

/// include/net/tcp_states.h: what is left of the states.
pub(super) const fn unmovable(number: u8) -> PauseError {
    PauseError::State(match number {
        2 => "SYN-SENT",
        // Nobody is handed such a socket but with TCP Fast Open.
        3 => return PauseError::FastOpen,
        6 => "TIME-WAIT",
        7 => "CLOSED",
        10 => "LISTEN",
        _ => "unknown",
    })
}

fn movable(fd: BorrowedFd<'_>) -> Result<TcpState, PauseError> {
    let known = state_of(fd)?;
    let mut urgent = [PollFd::new(fd, PollFlags::POLLPRI)];
    poll(&mut urgent, PollTimeout::ZERO).map_err(|errno| sys::refused("poll", errno))?;
    let events = urgent[0].revents().unwrap_or(PollFlags::empty());
    if events.contains(PollFlags::POLLPRI) {
        return Err(PauseError::Urgent);
    }
    Ok(known)
}

/// Name of the layer above, if there is one (tcp(7), `TCP_ULP`).
fn upper_layer(fd: BorrowedFd<'_>) -> Result<Option<String>, SockOptError> {
    let mut name = [0; ULP_NAME];
    match sys::TCP_ULP.get_bytes(fd, &mut name) {
        Ok(length) => {
            let name = name[..length].split(|byte| *byte == 0).next();
            let name = String::from_utf8_lossy(name.unwrap_or_default()).into_owned();
            Ok(Some(name).filter(|name| !name.is_empty()))
        }
        // A socket type without layers has none.
        Err(error) if error.source.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// connect(2) to AF_UNSPEC; in repair mode nothing is sent.
fn disconnect(fd: BorrowedFd<'_>) -> Result<(), SockOptError> {
    use std::os::fd::AsRawFd as _;
    let nowhere = libc::sockaddr {
        sa_family: u16::try_from(libc::AF_UNSPEC).unwrap_or(0),
        sa_data: [0; 14],
    };
    let length = libc::socklen_t::try_from(size_of_val(&nowhere)).unwrap_or(0);
    // SAFETY: the address outlives the call, and its length is given.
    let err = unsafe { libc::connect(fd.as_raw_fd(), &raw const nowhere, length) };
    (err == 0)
        .then_some(())
        .ok_or_else(|| sys::failed("connect(AF_UNSPEC)"))
}
