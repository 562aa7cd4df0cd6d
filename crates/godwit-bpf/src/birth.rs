//! `born` and `gw_mend` (`gw_birth.h`): twins whose kernel took their client for one
//! that does Accurate ECN are set right as they are born; and connections that came with a
//! request keep their congestion window.

use std::os::fd::AsRawFd as _;

use libbpf_rs::Link;
use libbpf_rs::btf::{Btf, types::Struct};
use thiserror::Error;

use crate::attach::{AttachError, attach_beside};
use crate::cgroup;
use crate::pin::PinDir;
use crate::skel::{GodwitSkel, OpenGodwitSkel};

/// Whether twins can be born with a memory that is not theirs.
///
/// Linux clears what it allocates only with `init_on_alloc`, and has had the word in
/// question since 6.18.
#[derive(Debug)]
pub enum Births {
    /// This kernel does not know Accurate ECN.
    Plain,
    /// Each is looked at.
    Watched,
    /// Nobody can look at them.
    Unwatched(BirthError),
}

/// Why births are not watched.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BirthError {
    /// The control groups of version 2 are not mounted, or not readable.
    #[error("no control group file system of version 2")]
    NoCgroups(#[source] std::io::Error),
    /// The kernel refused a link.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// Whether this kernel's request sockets say if Accurate ECN was negotiated.
fn knows_accurate_ecn() -> bool {
    Btf::from_vmlinux().is_ok_and(|btf| {
        let request = btf.type_by_name::<Struct<'_>>("tcp_request_sock");
        request.is_some_and(|request| {
            request
                .iter()
                .any(|member| member.name.is_some_and(|name| name == "accecn_ok"))
        })
    })
}

/// Leaves out what mends where no twin needs it; else gives the congestion
/// control a name of its own. Returns whether they are needed.
pub(crate) fn configure(open: &mut OpenGodwitSkel<'static>) -> libbpf_rs::Result<bool> {
    let is_needed = knows_accurate_ecn();
    let progs = &mut open.progs;
    for program in [
        &mut progs.gw_mend_init,
        &mut progs.gw_mend_ssthresh,
        &mut progs.gw_mend_undo_cwnd,
        &mut progs.gw_mend_cong_avoid,
    ] {
        program.set_autoload(is_needed);
    }
    open.maps.gw_mend.set_autocreate(is_needed)?;
    let name = cgroup::congestion_name();
    // What follows is zero: the name ends with one.
    let bytes = || name.bytes().map(u8::cast_signed).chain([0; 16]);
    let ops = open.struct_ops.gw_mend_mut();
    ops.name
        .iter_mut()
        .zip(bytes())
        .for_each(|(to, from)| *to = from);
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        let told = rodata.gw_mend_name.iter_mut();
        told.zip(bytes()).for_each(|(to, from)| *to = from);
    }
    Ok(is_needed)
}

/// First what it mends with, if that is needed, then the program that does. Without them
/// twins may be misborn, and connections that come begin with a window as any other.
pub(crate) fn attach(skel: &mut GodwitSkel<'static>, pins: &PinDir, is_needed: bool) -> Births {
    match (try_attach(skel, pins, is_needed), is_needed) {
        (_, false) => Births::Plain,
        (Ok(()), true) => Births::Watched,
        (Err(error), true) => Births::Unwatched(error),
    }
}

fn try_attach(
    skel: &mut GodwitSkel<'static>,
    pins: &PinDir,
    is_needed: bool,
) -> Result<(), BirthError> {
    let root = cgroup::root().map_err(BirthError::NoCgroups)?;
    if is_needed {
        let mend = &mut skel.maps.gw_mend;
        attach_beside("gw_mend", pins, "gw_mend", || mend.attach_struct_ops())?;
    }
    let born = &mut skel.progs.born;
    let attach = || -> libbpf_rs::Result<Link> { born.attach_cgroup(root.as_raw_fd()) };
    Ok(attach_beside("born", pins, "born", attach)?)
}
