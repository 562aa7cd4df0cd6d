//! Links: attach, replace in place, pin. libbpf-rs has no tcx wrapper.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use libbpf_rs::libbpf_sys::{
    BPF_F_BEFORE, XDP_ATTACHED_DRV, bpf_program__attach_tcx, bpf_tcx_opts,
};
use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{AsRawLibbpf as _, ErrorKind, Link, ProgramMut, Xdp, XdpFlags};
use thiserror::Error;

use crate::pin::PinDir;

/// Why a program is not in the path.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The kernel refused the link.
    #[error("can't attach {program} to interface {ifindex}")]
    Attach {
        /// Program name.
        program: String,
        /// Interface index.
        ifindex: u32,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The kernel refused the link to what is no interface.
    #[error("can't attach {program}")]
    Hook {
        /// Program name.
        program: String,
        /// What libbpf said.
        #[source]
        source: libbpf_rs::Error,
    },
    /// The link exists but can't be renamed.
    #[error("can't put the pin of {program} in place")]
    Rename {
        /// Program name.
        program: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The link exists but can't be kept over a restart.
    #[error("can't pin {program}")]
    Pin {
        /// Program name.
        program: String,
        /// What libbpf said.
        #[source]
        source: libbpf_rs::Error,
    },
}

impl AttachError {
    pub(crate) fn attach(program: &str, ifindex: u32, source: io::Error) -> Self {
        Self::Attach {
            program: program.to_owned(),
            ifindex,
            source,
        }
    }

    /// Whether the interface's driver knows no such place for a program.
    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(self, Self::Attach { source, .. }
            if source.kind() == io::ErrorKind::Unsupported)
    }

    /// Whether the interface has gone since it was listed.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Self::Attach { source, .. } if source.raw_os_error() == Some(libc::ENODEV))
    }
}

/// Puts `program` on tcx of `ifindex`, before all that are there, and pins the link at
/// `pin`; a link that is pinned there already gets the new program in place of the old
/// one, with no packet in between that sees neither.
pub(crate) fn attach_or_replace(
    program: &mut ProgramMut<'_>,
    ifindex: u32,
    pin: &Path,
) -> Result<(), AttachError> {
    attach_with(program, ifindex, pin, attach_tcx)
}

/// The same for XDP, in the driver.
pub(crate) fn attach_or_replace_xdp(
    program: &mut ProgramMut<'_>,
    ifindex: u32,
    pin: &Path,
) -> Result<(), AttachError> {
    attach_with(program, ifindex, pin, attach_xdp)
}

fn attach_with(
    program: &mut ProgramMut<'_>,
    ifindex: u32,
    pin: &Path,
    attach: impl FnOnce(&ProgramMut<'_>, u32) -> io::Result<Link>,
) -> Result<(), AttachError> {
    let name = program.name().to_string_lossy().into_owned();
    if pin.exists() {
        if let Ok(mut link) = Link::open(pin)
            && is_on(&link, ifindex)
            && link.update_prog(program).is_ok()
        {
            link.disconnect();
            return Ok(());
        }
        // The interface of that link is gone, or another one is wanted now.
        release(pin);
    }
    let mut link = attach(program, ifindex).map_err(|source| AttachError::Attach {
        program: name.clone(),
        ifindex,
        source,
    })?;
    link.pin(pin).map_err(|source| AttachError::Pin {
        program: name,
        source,
    })
}

/// Whether there is a link at `pin`, and its program is on interface `ifindex`.
pub(crate) fn is_attached(pin: &Path, ifindex: u32) -> bool {
    let Ok(mut link) = Link::open(pin) else {
        return false;
    };
    link.disconnect();
    is_on(&link, ifindex)
}

/// Whether a link is one of that interface; what is gone is on interface 0.
fn is_on(link: &Link, ifindex: u32) -> bool {
    match link.info().map(|info| info.info) {
        Ok(LinkTypeInfo::Xdp(xdp)) => xdp.ifindex == ifindex,
        Ok(LinkTypeInfo::Tcx(tcx)) => tcx.ifindex == ifindex,
        Ok(_) | Err(_) => false,
    }
}

/// Makes a link and pins it as `pin`. Such a link can't be given another program: the
/// new one is made beside the old one and takes its pin, so for a moment both are
/// there.
pub(crate) fn attach_beside(
    program: &str,
    pins: &PinDir,
    pin: &str,
    attach: impl FnOnce() -> libbpf_rs::Result<Link>,
) -> Result<(), AttachError> {
    let program = program.to_owned();
    // bpffs allows no dots in names.
    let next = format!("{pin}-next");
    if pins.link(&next).exists() {
        // Left by an agent that died between the two steps below.
        release(&pins.link(&next));
    }
    let mut link = match attach() {
        Ok(link) => link,
        Err(source) => return Err(AttachError::Hook { program, source }),
    };
    if let Err(source) = link.pin(pins.link(&next)) {
        return Err(AttachError::Pin { program, source });
    }
    pins.rename_link(&next, pin)
        .map_err(|source| AttachError::Rename { program, source })
}

/// Takes a pinned link out of the path, at once: without its pin alone it would
/// be in the way of a new one until the kernel gets round to it.
pub(crate) fn release(pin: &Path) {
    if let Ok(link) = Link::open(pin) {
        // Fails if the interface is gone, and the link with it.
        let _ = link.detach();
    }
    // A pin that can't be removed names a link that does nothing.
    let _ = std::fs::remove_file(pin);
}

/// A link to a driver that knows XDP; without one the kernel would run the program
/// behind the driver, which tcx does as well.
fn attach_xdp(program: &ProgramMut<'_>, ifindex: u32) -> io::Result<Link> {
    let index = i32::try_from(ifindex).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
    let link = program.attach_xdp(index).map_err(as_io)?;
    let place = Xdp::new(program.as_fd()).query(index, XdpFlags::NONE);
    if place.is_ok_and(|place| u32::from(place.attach_mode) == XDP_ATTACHED_DRV) {
        return Ok(link);
    }
    // Dropped, it leaves the path.
    drop(link);
    Err(io::ErrorKind::Unsupported.into())
}

/// libbpf's words, with what kind of failure it is.
fn as_io(error: libbpf_rs::Error) -> io::Error {
    let found = error.kind();
    let kind = if found == ErrorKind::Unsupported {
        io::ErrorKind::Unsupported
    } else if found == ErrorKind::PermissionDenied {
        io::ErrorKind::PermissionDenied
    } else {
        io::ErrorKind::Other
    };
    io::Error::new(kind, error)
}

/// Before all that are there (bpf(2), `BPF_F_BEFORE`).
fn attach_tcx(program: &ProgramMut<'_>, ifindex: u32) -> io::Result<Link> {
    let opts = bpf_tcx_opts {
        sz: size_of::<bpf_tcx_opts>() as u64,
        flags: BPF_F_BEFORE,
        ..bpf_tcx_opts::default()
    };
    let ifindex = i32::try_from(ifindex).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
    // SAFETY: the program is loaded and outlives the call; opts is valid and
    // says its own size.
    let raw =
        unsafe { bpf_program__attach_tcx(program.as_libbpf_object().as_ptr(), ifindex, &opts) };
    let Some(raw) = std::ptr::NonNull::new(raw) else {
        return Err(io::Error::last_os_error());
    };
    // SAFETY: a fresh link that libbpf has handed to us alone.
    Ok(unsafe { Link::from_ptr(raw) })
}
