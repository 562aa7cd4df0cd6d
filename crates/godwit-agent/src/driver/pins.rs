//! Where the data path of an agent is pinned, and how large it is.

use godwit_sock::netns_cookie;

use super::install_error::InstallError;
use crate::config::Config;

/// Flows at a time; an entry takes about half a KiB, and only when in use.
pub(super) const MAX_FLOWS: u32 = 1 << 18;

/// The folder of this agent's pins: unique to namespace and node.
///
/// # Errors
/// On kernels without namespace cookies.
pub fn pin_name(config: &Config) -> Result<String, InstallError> {
    let cookie = netns_cookie().map_err(InstallError::Socket)?;
    Ok(format!("n{cookie}-{}", config.node.name))
}
