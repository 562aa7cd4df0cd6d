//! `standing` and `group_freezes` (`gw_stand.h`): servers that are stopped, or frozen with their
//! control group.

use std::io::{self, Read as _};

use libbpf_rs::btf::{Btf, types::Typedef};
use libbpf_rs::{Iter, Link};

use crate::attach::AttachError;
use crate::skel::{GodwitSkel, OpenGodwitSkel};

/// A look at all tasks of the machine. While it is there,
/// [`Record::Frozen`](crate::Record::Frozen) is told.
#[derive(Debug)]
pub struct StoppedServers {
    look: Link,
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
        let mut found = Vec::new();
        Iter::new(&self.look)
            .map_err(io::Error::other)?
            .read_to_end(&mut found)?;
        let numbers = found.chunks_exact(size_of::<u32>());
        Ok(numbers
            .filter_map(|number| number.try_into().ok().map(u32::from_ne_bytes))
            .collect())
    }
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
    let hint = progs.group_freezes.autoload().then(|| {
        let link = progs.group_freezes.attach();
        link.map_err(refused("group_freezes"))
    });
    Ok(StoppedServers {
        look,
        _hint: hint.transpose()?,
    })
}
