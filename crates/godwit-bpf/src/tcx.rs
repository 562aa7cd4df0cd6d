//! The chain of programs on tcx of an interface (bpf(2), `BPF_TCX_INGRESS`): links at its
//! head, and who is in it. By descriptors alone, so that any thread may change it.
//!
//! A program that says `TCX_PASS` ends the chain. Whoever stands before Godwit can hide
//! every frame from it, so Godwit's programs stand first.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use libbpf_rs::libbpf_sys::{
    BPF_F_BEFORE, BPF_TCX_EGRESS, BPF_TCX_INGRESS, bpf_attach_type, bpf_link_create,
    bpf_link_create_opts, bpf_link_detach, bpf_link_update, bpf_obj_get, bpf_obj_get_info_by_fd,
    bpf_obj_pin, bpf_prog_get_fd_by_id, bpf_prog_info, bpf_prog_query_opts,
};
use libbpf_rs::query::{LinkInfo, LinkTypeInfo};

/// Most programs in one chain (`BPF_MPROG_MAX`).
const LONGEST: usize = 64;

/// One of an interface's two chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// What the interface receives.
    Ingress,
    /// What leaves by it.
    Egress,
}

impl Way {
    /// The stable name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    const fn attach_type(self) -> bpf_attach_type {
        match self {
            Self::Ingress => BPF_TCX_INGRESS,
            Self::Egress => BPF_TCX_EGRESS,
        }
    }
}

/// A chain at one moment: numbers of programs, the first one that sees a frame first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Chain(Vec<u32>);

impl Chain {
    /// Reads the chain of that interface.
    pub(crate) fn read(ifindex: u32, way: Way) -> io::Result<Self> {
        let mut ids = [0_u32; LONGEST];
        let mut opts = bpf_prog_query_opts {
            sz: size_of::<bpf_prog_query_opts>() as u64,
            prog_ids: ids.as_mut_ptr(),
            ..bpf_prog_query_opts::default()
        };
        opts.__bindgen_anon_1.count = u32::try_from(LONGEST).unwrap_or(0);
        // SAFETY: opts says its own size, and has room for as many numbers as it says.
        let err = unsafe { bpf_prog_query_opts(index(ifindex)?, way.attach_type(), &mut opts) };
        if err != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both members of the union are one number.
        let count = unsafe { opts.__bindgen_anon_1.count };
        let count = usize::try_from(count).map_or(LONGEST, |count| count.min(LONGEST));
        Ok(Self(ids[..count].to_vec()))
    }

    /// Those that see a frame before all of `own`; all, if none of them is there.
    pub(crate) fn before(&self, own: &[u32]) -> Vec<u32> {
        let foreign = self.0.iter().take_while(|id| !own.contains(id));
        foreign.copied().collect()
    }
}

/// Puts a program at the head of a chain.
pub(crate) fn link_first(program: BorrowedFd<'_>, ifindex: u32, way: Way) -> io::Result<OwnedFd> {
    // Before nobody in particular: before all.
    let opts = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as u64,
        flags: BPF_F_BEFORE,
        ..bpf_link_create_opts::default()
    };
    let (program, target) = (program.as_raw_fd(), index(ifindex)?);
    // SAFETY: both numbers are valid for the call; opts says its own size.
    owned(unsafe { bpf_link_create(program, target, way.attach_type(), &opts) })
}

/// Gives a link another program, at the same place of the chain.
pub(crate) fn replace(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open; no options.
    let err = unsafe { bpf_link_update(link.as_raw_fd(), program.as_raw_fd(), std::ptr::null()) };
    done(err)
}

/// Takes a link's program out of its chain. Frames that are under way have left it then.
pub(crate) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    done(unsafe { bpf_link_detach(link.as_raw_fd()) })
}

/// Keeps a link over the end of this process.
pub(crate) fn pin(link: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the path ends with a zero byte.
    done(unsafe { bpf_obj_pin(link.as_raw_fd(), path.as_ptr()) })
}

/// The link that is pinned there.
pub(crate) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: the path ends with a zero byte.
    owned(unsafe { bpf_obj_get(path.as_ptr()) })
}

/// The interface of a link on tcx; `None` if it is gone, or the link is another kind's.
pub(crate) fn interface_of(link: BorrowedFd<'_>) -> Option<u32> {
    let info = LinkInfo::from_fd(link).ok()?;
    let LinkTypeInfo::Tcx(tcx) = info.info else {
        return None;
    };
    // The kernel says 0 when the interface is gone.
    Some(tcx.ifindex).filter(|index| *index != 0)
}

/// Number of the program that a link has in its place.
pub(crate) fn program_of(link: BorrowedFd<'_>) -> Option<u32> {
    LinkInfo::from_fd(link).ok().map(|info| info.prog_id)
}

/// Number of a program.
pub(crate) fn id_of(program: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(info_of(program)?.id)
}

/// Name of a program of anybody's, as `bpftool` shows it. Needs CAP_SYS_ADMIN.
pub(crate) fn name_of(id: u32) -> io::Result<String> {
    // SAFETY: a number, which the kernel checks.
    let program = owned(unsafe { bpf_prog_get_fd_by_id(id) })?;
    let name = info_of(program.as_fd())?.name;
    let name: Vec<u8> = name.iter().map(|byte| byte.cast_unsigned()).collect();
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

fn info_of(program: BorrowedFd<'_>) -> io::Result<bpf_prog_info> {
    let mut info = bpf_prog_info::default();
    let mut len = u32::try_from(size_of_val(&info)).map_err(io::Error::other)?;
    // SAFETY: info has the length that is given, and asks for no arrays.
    let err = unsafe {
        bpf_obj_get_info_by_fd(
            program.as_raw_fd(),
            std::ptr::from_mut(&mut info).cast(),
            &mut len,
        )
    };
    done(err).map(|()| info)
}

fn index(ifindex: u32) -> io::Result<i32> {
    i32::try_from(ifindex).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

fn done(err: i32) -> io::Result<()> {
    if err == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that the kernel has handed to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_before_ours_is_named_in_order() {
        let chain = Chain(vec![7, 8, 1, 9, 2]);
        assert_eq!(chain.before(&[1, 2]), [7, 8]);
        assert_eq!(chain.before(&[7]), []);
        assert_eq!(chain.before(&[5]), [7, 8, 1, 9, 2], "ours is not there");
        assert_eq!(Chain::default().before(&[1]), []);
    }
}
