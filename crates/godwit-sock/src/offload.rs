//! Frames that are not yet cut: a packet socket that passes segmentation and
//! checksums on instead of refusing or losing them (packet(7)).

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

use nix::libc;

/// Bytes of `struct virtio_net_hdr` in front of each frame, in and out.
pub const OFFLOAD_HEADER: usize = 10;

/// From now on each frame that `socket` reads or writes has
/// [`OFFLOAD_HEADER`] bytes in front, which say how it is to be segmented and
/// what checksum is still missing (`PACKET_VNET_HDR`). To be called before the
/// socket is bound.
///
/// # Errors
/// If it is no packet socket.
pub fn keep_offload(socket: &impl AsFd) -> io::Result<()> {
    enable(socket, libc::PACKET_VNET_HDR)
}

/// From now on `socket` reads what the interface receives, not what leaves by
/// it: its own frames among them, if the kernel has cut them on the way
/// (`PACKET_IGNORE_OUTGOING`).
///
/// # Errors
/// If it is no packet socket.
pub fn ignore_outgoing(socket: &impl AsFd) -> io::Result<()> {
    enable(socket, libc::PACKET_IGNORE_OUTGOING)
}

fn enable(socket: &impl AsFd, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    let size = libc::socklen_t::try_from(size_of_val(&on)).map_err(io::Error::other)?;
    // SAFETY: the value is an int that outlives the call, and its size is given.
    let err = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_PACKET,
            option,
            std::ptr::from_ref(&on).cast(),
            size,
        )
    };
    if err == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
