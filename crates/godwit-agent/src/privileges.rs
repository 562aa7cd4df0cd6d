//! What the agent may still do once it runs (SECURITY.md).
//!
//! It starts as root: programs are loaded, bpffs may have to be mounted. Before
//! any thread exists but those of `stonith` (started earlier: what they run may
//! need everything), and before the first byte of a peer is read, it
//! gives up all but what its work needs. What real-time priority and locked
//! memory need is set up as limits first, so that no capability is kept for it.
//! Which system calls remain: [`syscalls`].

use std::io;

use caps::{CapSet, Capability};
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::prctl::{set_dumpable, set_no_new_privs};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use thiserror::Error;

use crate::config::{Config, PeerRole};
use crate::realtime::{NICE_LIMIT, PRIORITY};
use crate::syscalls;

/// What a server's agent does after its start: programs onto new interfaces and
/// maps (BPF, PERFMON), addresses, neighbours and sockets that end (NET_ADMIN),
/// segments and frames (NET_RAW).
const SERVER: &[Capability] = &[
    Capability::CAP_BPF,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_PERFMON,
];

/// What a director's does: maps and links (BPF), neighbours and addresses (NET_ADMIN).
const DIRECTOR: &[Capability] = &[Capability::CAP_BPF, Capability::CAP_NET_ADMIN];

/// To look for the socket of a connection in the process that has it, whoever runs it,
/// and to have it in common with that (pidfd_getfd(2)).
const PROCESSES: &[Capability] = &[Capability::CAP_DAC_READ_SEARCH, Capability::CAP_SYS_PTRACE];

/// The least port that everybody may use (`net.ipv4.ip_unprivileged_port_start`).
const UNPRIVILEGED_PORT: u16 = 1024;

/// Why privileges could not be given up.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PrivilegeError {
    /// Capabilities.
    #[error("can't give up capabilities")]
    Capabilities(#[source] caps::errors::CapsError),
    /// `no_new_privs`.
    #[error("can't set no_new_privs")]
    NoNewPrivs(#[source] nix::Error),
    /// That nobody may look into its memory.
    #[error("can't have this process's memory kept from others")]
    Dumpable(#[source] nix::Error),
    /// There is no filter of system calls for this machine's architecture.
    #[error("can't make the filter of system calls")]
    FilterMade(#[source] seccompiler::BackendError),
    /// The kernel does not take the filter of clone3(2).
    #[error("can't filter clone3 (CONFIG_SECCOMP_FILTER is needed)")]
    NoClone3(#[source] seccompiler::Error),
    /// The kernel does not take the filter of system calls.
    #[error("can't filter system calls (CONFIG_SECCOMP_FILTER is needed)")]
    Filter(#[source] io::Error),
}

/// Gives up everything that the work of this node does not need, for this
/// thread and all that it starts. Call it before other threads exist.
///
/// # Errors
/// If the kernel refuses; the agent must not go on then.
pub(crate) fn give_up(config: &Config) -> Result<(), PrivilegeError> {
    lock_memory();
    let keep = needed(config, may_be_preferred());
    set_no_new_privs().map_err(PrivilegeError::NoNewPrivs)?;
    // Its keys are in its memory: no core file, and no debugger of another user.
    set_dumpable(false).map_err(PrivilegeError::Dumpable)?;
    limit(&keep).map_err(PrivilegeError::Capabilities)?;
    syscalls::restrict(config.own_peer().role, looks_into_processes(config))?;
    let names: Vec<_> = keep.iter().map(ToString::to_string).collect();
    tracing::info!(kept = names.join(" "), "privileges given up");
    Ok(())
}

/// Whether an agent that has started with one file has the rights that another needs.
pub(crate) fn cover(running: &Config, next: &Config) -> bool {
    let had = needed(running, true);
    needed(next, true).iter().all(|it| had.contains(it))
}

fn needed(config: &Config, realtime: bool) -> Vec<Capability> {
    let mut keep = match config.own_peer().role {
        PeerRole::Server => SERVER.to_vec(),
        PeerRole::Director => DIRECTOR.to_vec(),
        PeerRole::Witness => Vec::new(),
    };
    let metrics = config.node.metrics.map(|address| address.port());
    let ports = [Some(config.own_peer().control.port()), metrics];
    // Sockets that come from other servers are bound to those of their services.
    let moving = config.own_shares().filter(|(_, service)| service.moves());
    let services = moving.flat_map(|(_, service)| service.addresses.iter().map(|at| at.port()));
    let mut ports = ports.into_iter().flatten().chain(services);
    if ports.any(|port| port < UNPRIVILEGED_PORT) {
        keep.push(Capability::CAP_NET_BIND_SERVICE);
    }
    if looks_into_processes(config) {
        keep.extend(PROCESSES);
    }
    if !realtime {
        // Without the limit this alone lets heartbeats be on time.
        keep.push(Capability::CAP_SYS_NICE);
    }
    keep
}

/// Only where the file says so.
fn looks_into_processes(config: &Config) -> bool {
    config.own_shares().any(|(_, it)| it.moves_unread())
}

/// The bounding set first, while there is still the right to change it. Without
/// that right nothing is gained either, for `no_new_privs` is set.
fn limit(keep: &[Capability]) -> Result<(), caps::errors::CapsError> {
    let mut bounding: Vec<_> = caps::read(None, CapSet::Bounding)?.into_iter().collect();
    bounding.sort_unstable_by_key(Capability::index);
    for capability in bounding {
        if !keep.contains(&capability) && caps::drop(None, CapSet::Bounding, capability).is_err() {
            tracing::debug!(%capability, "stays in the bounding set");
        }
    }
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    let permitted = caps::read(None, CapSet::Permitted)?;
    let left = keep.iter().copied().filter(|c| permitted.contains(c));
    let left = left.collect();
    caps::set(None, CapSet::Effective, &left)?;
    caps::set(None, CapSet::Permitted, &left)
}

/// Whether threads may be preferred without CAP_SYS_NICE.
fn may_be_preferred() -> bool {
    let limits = [
        (Resource::RLIMIT_RTPRIO, PRIORITY.into()),
        (Resource::RLIMIT_NICE, NICE_LIMIT),
    ];
    limits.into_iter().all(|(resource, wanted)| {
        let enough = || getrlimit(resource).is_ok_and(|(soft, _)| soft >= wanted);
        enough() || setrlimit(resource, wanted, wanted).is_ok() && enough()
    })
}

/// A heartbeat must not wait for a page. Only without a limit: with one, memory
/// that is wanted later would be refused.
fn lock_memory() {
    let free = || {
        getrlimit(Resource::RLIMIT_MEMLOCK).is_ok_and(|(soft, _)| soft == RLIM_INFINITY)
            || setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY).is_ok()
    };
    let flags = MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE;
    if !free() || mlockall(flags).is_err() {
        tracing::info!("memory is not locked (LimitMEMLOCK=infinity); heartbeats may be late");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Standby, Unread};
    use crate::testing::Pair;

    #[test]
    fn a_server_whose_connections_move_may_bind_their_port() {
        let mut config = Pair::new().a.clone();
        config.services[0].standby = Standby::None;
        let low = needed(&config, true);
        assert_eq!(low.last(), Some(&Capability::CAP_NET_BIND_SERVICE));
        config.services[0].addresses[0].set_port(8080);
        assert_eq!(needed(&config, true), SERVER);
    }

    #[test]
    fn a_server_may_look_into_processes_only_where_it_is_told_to() {
        let mut config = Pair::new().a.clone();
        config.services[0].handoff.unread = Unread::Move;
        config.services[0].addresses[0].set_port(8080);
        assert_eq!(needed(&config, true), SERVER, "its connections have twins");
        config.services[0].standby = Standby::None;
        assert_eq!(needed(&config, true), [SERVER, PROCESSES].concat());
        config.services[0].handoff.unread = Unread::Stay;
        assert_eq!(needed(&config, true), SERVER);
    }

    #[test]
    fn a_server_keeps_four_and_what_its_ports_and_limits_need() {
        let mut config = Pair::new().a.clone();
        assert_eq!(needed(&config, true), SERVER);
        let nice = needed(&config, false);
        assert_eq!(nice.last(), Some(&Capability::CAP_SYS_NICE));
        config.node.metrics = Some("127.0.0.1:80".parse().expect("an address"));
        let low = needed(&config, true);
        assert_eq!(low.last(), Some(&Capability::CAP_NET_BIND_SERVICE));
    }
}
