//! How many connections there may be: few in all, and fewer of one source.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::wire::Refused;

/// Connections at the same time.
pub(super) const ALL: usize = 32;

/// Of these from one source.
pub(super) const OF_ONE: usize = 4;

/// Who is inside.
#[derive(Debug, Default)]
pub(super) struct Doors(Mutex<BTreeMap<IpAddr, usize>>);

/// A connection that was let in, until it is dropped.
#[derive(Debug)]
pub(super) struct Pass {
    doors: Arc<Doors>,
    source: IpAddr,
}

impl Doors {
    /// Lets a connection in, if there is room for it.
    pub(super) fn enter(self: &Arc<Self>, from: IpAddr) -> Result<Pass, Refused> {
        let source = source(from);
        let mut inside = self.lock();
        if inside.get(&source).is_some_and(|it| *it >= OF_ONE) {
            return Err(Refused::Crowded);
        }
        if inside.values().sum::<usize>() >= ALL {
            return Err(Refused::Full);
        }
        *inside.entry(source).or_default() += 1;
        let doors = self.clone();
        Ok(Pass { doors, source })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut inside = self.doors.lock();
        if let Some(count) = inside.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                inside.remove(&self.source);
            }
        }
    }
}

/// An IPv4 address, or the first half of an IPv6 address: one host has all of the rest.
fn source(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_leaves_room_for_others_and_all_have_an_end() {
        let doors = Arc::new(Doors::default());
        let from = |text: &str| text.parse::<IpAddr>().expect("an address");
        let mut passes = Vec::new();
        for host in 0..ALL / OF_ONE {
            for last in 0..OF_ONE {
                // One host has them all.
                let address = from(&format!("fd00:{host}::{last}"));
                passes.push(doors.enter(address).expect("there is room"));
            }
            let more = doors.enter(from(&format!("fd00:{host}::f")));
            assert_eq!(more.expect_err("enough"), Refused::Crowded);
        }
        let v4 = || doors.enter(from("192.0.2.1"));
        assert_eq!(v4().expect_err("no room"), Refused::Full);
        passes.truncate(ALL - OF_ONE);
        for _ in 0..OF_ONE {
            passes.push(v4().expect("there is room"));
        }
        let mapped = doors.enter(from("::ffff:192.0.2.1"));
        assert_eq!(mapped.expect_err("the same host"), Refused::Crowded);
        passes.clear();
        assert!(doors.lock().is_empty());
    }
}
