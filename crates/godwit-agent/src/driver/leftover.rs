//! What the agent of another node name has left on this node's interface: the machine had
//! that name before, or a node was taken out of the file. Nobody else cares for it: its
//! programs would go on beside this node's, and act on the same segments.

use std::path::Path;

use godwit_bpf::{Datapath, Foreign, MapError, PinDir, Settings};
use godwit_core::MonoTime;
use godwit_sock::{Devices, Interface, netns_cookie};
use godwit_wire::{Endpoint, NodeName};
use nix::net::if_::if_indextoname;

use super::detach::{DetachError, detach_whole};
use super::{InstallError, pin_name};
use crate::clock;
use crate::config::{Config, DEFAULT_RUN_DIR};
use crate::control::is_taken;
use crate::machine_error::MachineError;

/// Goes on with it as this node's own. What it has of shares that are not in the file ends in
/// order, as after any change of the file (`gone`).
pub(super) fn take_over(config: &Config, ifindex: u32) -> Result<(), InstallError> {
    let own = pin_name(config)?;
    for left in Foreign::beside(&own, ifindex)? {
        let (node, interface) = (left.node().to_owned(), config.node.interface.to_string());
        if is_alive(&left, config.node.run_dir.as_path())? {
            return Err(InstallError::OtherNode { node, interface });
        }
        if let Some((service, connections)) = owned(config, &left)? {
            return Err(InstallError::StillOwner {
                node,
                service,
                connections,
            });
        }
        if !left.rename(&own)? {
            return Err(InstallError::LeftBeside { node, interface });
        }
        tracing::warn!(
            node,
            interface,
            "this machine was another node: what that one has left goes on as this one's"
        );
    }
    Ok(())
}

/// The first service of the file that goes as a whole, and that the other node may still speak
/// for, with the number of its connections. Its lease is in that name: under another one it is
/// not renewed, and the other servers begin anew.
fn owned(config: &Config, left: &Foreign) -> Result<Option<(String, usize)>, MapError> {
    let maps = left.maps();
    let now = clock::now().since(MonoTime::ZERO);
    let owned = maps.owned(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))?;
    let flows = if owned.is_empty() {
        Vec::new()
    } else {
        maps.flows()?
    };
    let whole = config.own_shares().filter(|(_, it)| !it.is_divided());
    let held = whole.filter(|(share, _)| owned.contains(share));
    let counted = held.map(|(_, service)| {
        let is_at = |at: Endpoint| service.addresses.iter().any(|it| Endpoint::from(*it) == at);
        let own = flows.iter().filter(|flow| is_at(flow.service));
        (service.name.to_string(), own.count())
    });
    let mut counted = counted.filter(|(_, connections)| *connections > 0);
    Ok(counted.next())
}

fn is_alive(left: &Foreign, run_dir: &Path) -> Result<bool, MachineError> {
    let cookie = netns_cookie().map_err(MachineError::Socket)?;
    let name = NodeName::new(left.node()).ok();
    Ok(name.is_some_and(|name| is_taken(run_dir, cookie, name)) || left.is_driven())
}

/// Takes away what a node's agent has left in this network namespace, whatever the file says.
/// Returns whether there was anything.
///
/// # Errors
/// If its agent runs, or something can't be taken away.
pub(crate) fn detach_node(node: NodeName) -> Result<bool, LeftoverError> {
    let cookie = netns_cookie().map_err(MachineError::Socket)?;
    let folder = format!("n{cookie}-{node}");
    let found = Foreign::named(&folder).map_err(MachineError::Pin)?;
    let Some(left) = found else {
        return remove_rest(&folder, node, cookie);
    };
    if is_alive(&left, DEFAULT_RUN_DIR.as_ref())? {
        return Err(LeftoverError::Runs { node });
    }
    let name = left.ifindex().and_then(|index| if_indextoname(index).ok());
    let Some(name) = name.and_then(|name| name.into_string().ok()) else {
        // Nothing that it would have said has a way out.
        left.into_pins().remove().map_err(MachineError::Pin)?;
        return Ok(true);
    };
    let interface = Interface::by_name(&name).map_err(MachineError::Interface)?;
    let settings = settings(&interface)?;
    // Programs of this version take over first: the twins stay silent.
    let (datapath, _events) =
        Datapath::open(&settings, left.into_pins()).map_err(MachineError::Programs)?;
    detach_whole(interface.index, datapath)?;
    Ok(true)
}

/// An agent that was killed at its start has pinned maps, and attached nothing.
fn remove_rest(folder: &str, node: NodeName, cookie: u64) -> Result<bool, LeftoverError> {
    let rest = PinDir::existing(folder).map_err(MachineError::Pin)?;
    let Some(rest) = rest else {
        return Ok(false);
    };
    if is_taken(DEFAULT_RUN_DIR.as_ref(), cookie, node) {
        return Err(LeftoverError::Runs { node });
    }
    rest.remove().map_err(MachineError::Pin)?;
    Ok(true)
}

/// Why what a node has left stays.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeftoverError {
    /// Its agent would go on with it.
    #[error("an agent of node \"{node}\" is running here: stop it first")]
    Runs {
        /// The node.
        node: NodeName,
    },
    /// It can't be looked at.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// It can't be taken away.
    #[error(transparent)]
    Detach(#[from] DetachError),
}

/// Of programs that are about to go.
fn settings(interface: &Interface) -> Result<Settings, MachineError> {
    Ok(Settings {
        ifindex: interface.index,
        mac: interface.mac,
        others: Devices::read()
            .map_err(MachineError::Devices)?
            .others(interface.index),
        node_v4: interface.own_v4(&[]),
        node_v6: interface.own_v6(&[]),
        netns_cookie: netns_cookie().map_err(MachineError::Socket)?,
        max_flows: super::pins::MAX_FLOWS,
        policies: Vec::new(),
        tunnel: None,
    })
}
