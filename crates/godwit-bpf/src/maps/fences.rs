//! `gw_fences`: whether the owner of a share may speak. Written by a program
//! in the kernel (`fence` in `godwit.bpf.c`), a word at a time: a map update
//! from here copies bytes, and a segment might see half of a word.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use godwit_wire::ShareId;
use libbpf_rs::{MapHandle, ProgramMut};

use super::slots::Slots;
use super::{MapError, TypedMap};
use crate::skel::types;
use crate::skel::types::gw_fence_order_kind as Kind;
use crate::syscall::SyscallProgram;

/// Until when an owner may speak. Behind it, every segment of the share, and
/// ARP and neighbour discovery in its name, is dropped on every interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// For as long as it has the role: nothing or a power switch fences it.
    Never,
    /// Up to, and not including, this CLOCK_BOOTTIME in nanoseconds.
    At(u64),
}

/// `GW_NO_EXPIRY`.
const NEVER: u64 = u64::MAX;

impl Expiry {
    fn to_ns(self) -> u64 {
        match self {
            Self::Never => NEVER,
            // The last nanosecond of 584 years is not worth a mistake.
            Self::At(ns) => ns.min(NEVER - 1),
        }
    }

    pub(crate) const fn from_ns(ns: u64) -> Self {
        match ns {
            NEVER => Self::Never,
            ns => Self::At(ns),
        }
    }
}

/// The fences of all shares.
#[derive(Debug)]
pub(crate) struct Fences {
    map: TypedMap<u32, types::gw_fence>,
    slots: Arc<Slots>,
    program: SyscallProgram<types::gw_fence_order>,
}

impl Fences {
    pub(crate) fn new(
        handle: MapHandle,
        slots: Arc<Slots>,
        program: &ProgramMut<'_>,
    ) -> io::Result<Self> {
        Ok(Self {
            map: TypedMap::new(handle, "gw_fences"),
            slots,
            program: SyscallProgram::new(program)?,
        })
    }

    pub(crate) fn expire(&self, share: ShareId, expiry: Expiry) -> Result<(), MapError> {
        self.order(share, Kind::GW_FENCE_EXPIRE, expiry.to_ns())
    }

    pub(crate) fn hold(&self, share: ShareId, hold: Duration) -> Result<(), MapError> {
        let ns = u64::try_from(hold.as_nanos()).unwrap_or(u64::MAX);
        self.order(share, Kind::GW_FENCE_HOLD, ns)
    }

    pub(crate) fn release(&self, share: ShareId) -> Result<(), MapError> {
        self.order(share, Kind::GW_FENCE_RELEASE, 0)
    }

    pub(crate) fn open(&self, share: ShareId) -> Result<(), MapError> {
        self.order(share, Kind::GW_FENCE_OPEN, 0)
    }

    /// Of a share that was never granted: in the past.
    pub(crate) fn expiry(&self, share: ShareId) -> Result<Expiry, MapError> {
        let raw = self.map.lookup(&self.slots.of(share)?)?;
        Ok(Expiry::from_ns(raw.map_or(0, |raw| raw.expiry_ns)))
    }

    fn order(&self, share: ShareId, kind: Kind, ns: u64) -> Result<(), MapError> {
        let order = types::gw_fence_order {
            ns,
            share: self.slots.of(share)?,
            kind: kind.0,
        };
        let refused = |error: io::Error| self.map.error("write", error.into());
        match self.program.call(&order).map_err(refused)? {
            0 => Ok(()),
            _ => Err(refused(io::Error::from_raw_os_error(libc::ENOENT))),
        }
    }
}
