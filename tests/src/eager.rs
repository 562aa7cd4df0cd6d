//! Two nodes whose servers' snapshots are on the standby before they are needed.

use godwit_lab::apps::roam::{self, Manner};
use godwit_lab::apps::server;
use godwit_lab::cluster::{Cluster, ClusterOptions, Service};
use godwit_lab::host::Host;
use godwit_lab::{Lab, Process};

use crate::stage::{PORT, wait_in_sync};

/// A service with eager snapshots, and `extra` lines for its table.
pub fn options(extra: &str) -> ClusterOptions {
    let mut service = Service {
        standby: "snapshot",
        ..Service::new("web", PORT)
    };
    service.extra = format!("snapshots = \"eager\"\n{extra}");
    ClusterOptions {
        services: vec![service],
        ..ClusterOptions::unfenced()
    }
}

/// Such a service, its agents and a server on each node; `a` owns it and `b` is in sync.
///
/// # Panics
/// If they do not come about.
pub fn start(lab: &Lab, manner: Manner) -> (Cluster<'_>, [Process; 2]) {
    start_with(lab, options(""), manner)
}

/// The same with other options.
///
/// # Panics
/// As [`start`].
pub fn start_with(
    lab: &Lab,
    options: ClusterOptions,
    manner: Manner,
) -> (Cluster<'_>, [Process; 2]) {
    let mut cluster = Cluster::start(lab, options).expect("the agents start");
    let servers = Host::SERVERS.map(|host| serve(lab, &cluster, host, manner));
    wait_in_sync(&mut cluster, Host::A);
    (cluster, servers)
}

/// As [`start`], with servers that register and never export anything.
///
/// # Panics
/// As [`start`].
pub fn start_silent(lab: &Lab) -> (Cluster<'_>, [Process; 2]) {
    let mut cluster = Cluster::start(lab, options("")).expect("the agents start");
    let servers = Host::SERVERS.map(|host| {
        let agent = cluster.app_socket(host).expect("the machine is there");
        server::start_registered(lab.node(host), PORT, &agent).expect("the server starts")
    });
    wait_in_sync(&mut cluster, Host::A);
    (cluster, servers)
}

/// A server, which finds its agent by the name of that one's socket.
///
/// # Panics
/// If it does not start.
pub fn serve(lab: &Lab, cluster: &Cluster<'_>, host: Host, manner: Manner) -> Process {
    let agent = cluster.app_socket(host).expect("the machine is there");
    roam::start_with(lab.node(host), PORT, &agent, manner).expect("the server starts")
}
