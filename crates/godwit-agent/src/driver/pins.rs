//! Where the data path of an agent is pinned, and how large it is.

use godwit_sock::netns_cookie;

use crate::config::Config;
use crate::machine_error::MachineError;

/// Flows at a time; an entry takes about half a KiB, and only when in use.
pub(super) const MAX_FLOWS: u32 = 1 << 18;

/// The folder of this agent's pins: unique to namespace and node.
///
/// # Errors
/// On kernels without namespace cookies.
pub fn pin_name(config: &Config) -> Result<String, MachineError> {
    let cookie = netns_cookie().map_err(MachineError::Socket)?;
    Ok(format!("n{cookie}-{}", config.node.name))
}
