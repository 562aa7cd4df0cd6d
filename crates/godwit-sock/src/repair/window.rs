//! `TCP_REPAIR_WINDOW`.

use std::io;
use std::os::fd::BorrowedFd;

use godwit_wire::SeqNumber;
use godwit_wire::snapshot::Window;

use super::sys::{self, SockOptError, TCP_REPAIR_WINDOW};

/// `struct tcp_repair_window` of include/uapi/linux/tcp.h: five `__u32`. The
/// kernel wants exactly this many bytes.
const SIZE: usize = 20;

pub(super) fn dump(fd: BorrowedFd<'_>) -> Result<Window, SockOptError> {
    let mut bytes = [0; SIZE];
    let filled = TCP_REPAIR_WINDOW.get_bytes(fd, &mut bytes)?;
    if filled != SIZE {
        return Err(sys::refused(
            "TCP_REPAIR_WINDOW",
            io::Error::from(io::ErrorKind::UnexpectedEof),
        ));
    }
    let mut fields = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|four| u32::from_ne_bytes(*four));
    let mut next = || fields.next().unwrap_or_default();
    Ok(Window {
        snd_wl1: SeqNumber(next()),
        snd_wnd: next(),
        max_window: next(),
        rcv_wnd: next(),
        rcv_wup: SeqNumber(next()),
    })
}

/// `rcv_nxt` is that of the new socket, which has not seen the client's FIN
/// yet; the kernel refuses a window that begins beyond it. It also refuses what
/// it does itself when its memory is short: our window shrinks, to nothing, and
/// the last segment that changed the client's window lies beyond it.
pub(super) fn restore(
    fd: BorrowedFd<'_>,
    window: &Window,
    rcv_nxt: SeqNumber,
) -> Result<(), SockOptError> {
    let fields = [
        window.snd_wl1.min(rcv_nxt + window.rcv_wnd).0,
        window.snd_wnd,
        window.max_window.max(window.snd_wnd),
        window.rcv_wnd,
        window.rcv_wup.min(rcv_nxt).0,
    ];
    let bytes = fields.map(u32::to_ne_bytes);
    TCP_REPAIR_WINDOW.set_bytes(fd, bytes.as_flattened())
}
