//! `connect4` and `connect6` (`gw_local.h`): what processes of this machine say to
//! services that it does not own. `listener_closed`: their servers stop to listen.

use std::os::fd::AsRawFd as _;

use libbpf_rs::Link;
use thiserror::Error;

use crate::attach::{AttachError, attach_beside};
use crate::cgroup;
use crate::pin::PinDir;
use crate::skel::GodwitSkel;

/// Why local clients are not refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The control groups of version 2 are not mounted, or not readable.
    #[error("no control group file system of version 2")]
    NoCgroups(#[source] std::io::Error),
    /// The kernel refused a link.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// Puts the programs where they see every connect() of this machine, and every socket's end.
pub(crate) fn attach(skel: &mut GodwitSkel<'static>, pins: &PinDir) -> Result<(), LocalError> {
    let root = cgroup::root().map_err(LocalError::NoCgroups)?;
    for (name, program) in [
        ("connect4", &mut skel.progs.connect4),
        ("connect6", &mut skel.progs.connect6),
        ("listener_closed", &mut skel.progs.listener_closed),
    ] {
        let attach = || -> libbpf_rs::Result<Link> { program.attach_cgroup(root.as_raw_fd()) };
        attach_beside(name, pins, name, attach)?;
    }
    Ok(())
}
