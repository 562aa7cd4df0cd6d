//! `standing`, `holding` and `group_freezes` (`gw_stand.h`): servers that are stopped, or frozen
//! with their control group, and who has listeners besides.

use std::io::{self, Read as _};

use libbpf_rs::btf::{Btf, types::Typedef};
use libbpf_rs::{Iter, Link};

use crate::attach::AttachError;
use crate::skel::{GodwitSkel, OpenGodwitSkel};

/// A listener of a service in the hands of a process: `struct gw_held`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The inode of the socket, as sock_diag(7) has it.
    pub inode: u64,
    /// The process.
    pub pid: u32,
    /// Whether it stands.
    pub stands: bool,
}

/// Looks at all tasks of the machine. While this is there,
/// [`Record::Frozen`](crate::Record::Frozen) is told.
#[derive(Debug)]
pub struct StoppedServers {
    look: Link,
    hands: Link,
    /// Ends with its descriptor: nothing is told while no agent runs.
    _hint: Option<Link>,
}

impl StoppedServers {
    /// The numbers of the processes that serve clients and stand: they are stopped, or
    /// their control group is frozen or about to be.
    ///
    /// # Errors
    /// If the kernel refuses the look.
    pub fn look(&self) -> io::Result<Vec<u32>> {
        let found = read(&self.look)?;
        let (numbers, _) = found.as_chunks();
        Ok(numbers.iter().copied().map(u32::from_ne_bytes).collect())
    }

    /// Who has which listener of a service among its first 1 024 files.
    ///
    /// # Errors
    /// If the kernel refuses the look.
    pub fn holders(&self) -> io::Result<Vec<Holder>> {
        let found = read(&self.hands)?;
        let (words, _) = found.as_chunks();
        let words: Vec<_> = words.iter().copied().map(u64::from_ne_bytes).collect();
        let (held, _) = words.as_chunks();
        let holder = |[inode, pid, stands]: &[u64; 3]| Holder {
            inode: *inode,
            pid: u32::try_from(*pid).unwrap_or(u32::MAX),
            stands: *stands != 0,
        };
        Ok(held.iter().map(holder).collect())
    }
}

fn read(look: &Link) -> io::Result<Vec<u8>> {
    let mut found = Vec::new();
    let mut records = Iter::new(look).map_err(io::Error::other)?;
    records.read_to_end(&mut found)?;
    Ok(found)
}

/// Kernels without control groups have nothing that says so.
pub(crate) fn configure(open: &mut OpenGodwitSkel<'static>) {
    let knows = Btf::from_vmlinux().is_ok_and(|btf| {
        btf.type_by_name::<Typedef<'_>>("btf_trace_cgroup_freeze")
            .is_some()
    });
    open.progs.group_freezes.set_autoload(knows);
}

pub(crate) fn attach(skel: &mut GodwitSkel<'static>) -> Result<StoppedServers, AttachError> {
    let progs = &mut skel.progs;
    let refused = |program: &str| {
        let program = program.to_owned();
        move |source| AttachError::Hook { program, source }
    };
    let look = progs.standing.attach().map_err(refused("standing"))?;
    let hands = progs.holding.attach().map_err(refused("holding"))?;
    let hint = progs.group_freezes.autoload().then(|| {
        let link = progs.group_freezes.attach();
        link.map_err(refused("group_freezes"))
    });
    Ok(StoppedServers {
        look,
        hands,
        _hint: hint.transpose()?,
    })
}
