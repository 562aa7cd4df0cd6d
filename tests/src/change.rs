//! Files that change, and nodes that take them.

use std::fs;

use godwit_lab::Output;
use godwit_lab::cluster::Cluster;
use godwit_lab::host::Host;

/// How a node is brought to take its changed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The process ends, and another one starts.
    Restart,
    /// `godwit reload`.
    Reload,
}

/// Changes the text of a node's file, and has the node take it.
///
/// # Panics
/// If the text stays the same, or the node does not take it.
pub fn change(cluster: &mut Cluster<'_>, host: Host, how: How, edit: impl Fn(&str) -> String) {
    let path = cluster.config_file(host).expect("it was written");
    let text = fs::read_to_string(&path).expect("it can be read");
    let changed = edit(&text);
    assert_ne!(text, changed, "the file changes");
    fs::write(&path, changed).expect("it can be written");
    match how {
        How::Restart => {
            cluster.stop_agent(host).expect("the agent ends");
            cluster.start_agent(host).expect("the agent starts");
        }
        How::Reload => {
            let output = reload(cluster, host);
            assert!(output.status.success(), "{output:?}");
        }
    }
}

/// `godwit reload` on a node.
///
/// # Panics
/// If it can't be run.
pub fn reload(cluster: &Cluster<'_>, host: Host) -> Output {
    let socket = cluster.socket(host).expect("it has one");
    let socket = socket.to_str().expect("it is UTF-8");
    let output = cluster.godwit(host, &["reload", "--socket", socket]);
    output.expect("it runs")
}
