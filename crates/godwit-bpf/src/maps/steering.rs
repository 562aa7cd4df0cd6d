//! `gw_steerings`: where connections of a share begin, besides what rules say
//! (`gw_policy.h`, `gw_steer.h`).

use std::sync::Arc;
use std::time::Duration;

use godwit_wire::ShareId;
use libbpf_rs::MapHandle;

use super::slots::Slots;
use super::{MapError, TypedMap};
use crate::skel::types;

const _: () = assert!(size_of::<types::gw_steering>() == 16);

/// What the data path is told of a share. Loads are in percent, 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Steering {
    /// How loaded this node is, for half a second from `at` on.
    pub load: u8,
    /// When that was measured (CLOCK_BOOTTIME).
    pub at: Duration,
    /// From which load on new connections are passed on; `None`: never.
    pub redirect: Option<u8>,
    /// Only to a server whose load is so much less.
    pub margin: u8,
    /// Who is asked first: 1 to [`MAX_POLICIES`](crate::MAX_POLICIES), in the order of
    /// [`Settings`](crate::Settings).
    pub program: Option<u8>,
}

/// Typed access to it.
#[derive(Debug)]
pub struct SteeringTable(TypedMap<u32, types::gw_steering>, Arc<Slots>);

impl SteeringTable {
    pub(crate) fn new(map: MapHandle, slots: Arc<Slots>) -> Self {
        Self(TypedMap::new(map, "gw_steerings"), slots)
    }

    /// No share's program is asked any more.
    ///
    /// # Errors
    /// Fails if the kernel refuses a change.
    pub(crate) fn forget_programs(&self) -> Result<(), MapError> {
        for share in self.0.keys()? {
            match self.0.lookup(&share)? {
                Some(raw) if raw.program != 0 => {
                    let raw = types::gw_steering { program: 0, ..raw };
                    self.0.update(&share, &raw)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// From here on connections of a share begin by this.
    ///
    /// # Errors
    /// Fails if the kernel refuses a change.
    pub fn set(&self, share: ShareId, steering: Steering) -> Result<(), MapError> {
        let raw = types::gw_steering {
            at_ns: u64::try_from(steering.at.as_nanos()).unwrap_or(u64::MAX),
            load: steering.load.min(100),
            redirect: steering.redirect.unwrap_or(0),
            margin: steering.margin,
            program: steering.program.unwrap_or(0),
            pad: 0,
        };
        self.0.update(&self.1.of(share)?, &raw)
    }
}
