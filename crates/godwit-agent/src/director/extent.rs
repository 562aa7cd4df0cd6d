//! What the program of a director is made for, by the file: another file may ask for more.

use godwit_core::PeerId;

use crate::config::{Config, PeerRole};

/// Services there is room for without a new map; more double it. A service's room can't be
/// changed as long as there are connections.
const SERVICES: usize = 8;

/// Services there is room for in the program's tables.
pub(crate) fn room(config: &Config) -> u32 {
    let services = config.directed().count().max(SERVICES).next_power_of_two();
    u32::try_from(services).unwrap_or(u32::MAX)
}

/// Whether there are directors besides this one.
pub(crate) fn has_fellows(config: &Config) -> bool {
    others(config).next().is_some()
}

/// The other directors of the file.
pub(super) fn others(config: &Config) -> impl Iterator<Item = PeerId> {
    let numbered = (0..).map(PeerId).zip(config.others());
    numbered.filter_map(|(id, peer)| (peer.role == PeerRole::Director).then_some(id))
}
