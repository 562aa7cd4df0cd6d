//! `fencing = "stonith"`: two servers, no witness, and a command that powers the
//! other one off. What it can't power off is not taken over from.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use godwit_lab::cluster::{ClusterOptions, Fencing};
use godwit_lab::host::{Host, Network};
use godwit_lab::{Lab, LabOptions};
use godwit_tests::stage::{
    assert_unnoticed, has_event, in_sync, servers, stage, throughout, until, wait_event,
    wait_in_sync, wait_protected, witness,
};
use godwit_tests::traffic::{Traffic, mixed};
use godwit_tests::{DEADLINE, STALL_LIMIT};

/// A power switch that is known to have worked 500 ms after it was asked. What
/// it does to which node is in a file `plug-<node>`.
struct Switch {
    folder: PathBuf,
}

/// What happens when the switch is asked.
#[derive(Clone, Copy)]
enum Plug {
    Fails,
    Hangs,
    Works,
}

impl Switch {
    /// Neither server can power the other one off yet.
    fn new(lab: &Lab) -> Self {
        let folder = lab.folder().join("power");
        fs::create_dir(&folder).expect("a new folder");
        let script = format!(
            r#"cd {folder}
echo "$GODWIT_NODE" >> calls
case $(cat plug-$GODWIT_NODE) in
hangs) echo $$ >> hung; sleep 600 & echo $! >> hung; wait ;;
works) sleep 0.5 ;;
*) exit 1 ;;
esac
for port in p c; do ip -n {id}-switch link set $port-$GODWIT_NODE down; done
kill -9 $(ip netns pids {id}-$GODWIT_NODE)
touch off-$GODWIT_NODE
"#,
            folder = folder.display(),
            id = lab.id(),
        );
        fs::write(folder.join("switch"), script).expect("there is room");
        let switch = Self { folder };
        switch.set(Host::A, Plug::Fails);
        switch.set(Host::B, Plug::Fails);
        switch
    }

    fn set(&self, target: Host, plug: Plug) {
        let word = match plug {
            Plug::Fails => "fails",
            Plug::Hangs => "hangs",
            Plug::Works => "works",
        };
        fs::write(self.file(&format!("plug-{target}")), word).expect("there is room");
    }

    fn options(&self) -> ClusterOptions {
        ClusterOptions {
            heartbeat: Duration::from_millis(30),
            fencing: Fencing::Stonith,
            stonith: format!("sh {}", self.file("switch").display()),
            ..ClusterOptions::default()
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.file(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn protected(lab: &Lab, cluster: &godwit_lab::cluster::Cluster<'_>) -> Vec<Traffic> {
    let traffic = mixed(lab);
    for one in &traffic {
        wait_protected(cluster, Host::A, one.local());
    }
    traffic
}

/// The owner's machine only seems dead: its agent and its server hang, and its
/// kernel would go on to speak. It is taken over when its power is off.
#[test]
fn the_owner_is_powered_off_before_it_is_taken_over() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let switch = Switch::new(&lab);
    switch.set(Host::A, Plug::Works);
    let [mut a, _b] = servers(&lab);
    let mut cluster = in_sync(&lab, switch.options());
    let capture = witness(&lab);
    let traffic = protected(&lab, &cluster);
    let since = Instant::now();
    a.stop().expect("the server hangs");
    cluster.agent(Host::A).expect("it runs").stop().expect("so");
    until("b owns", || {
        let status = cluster.status(Host::B).expect("b answers");
        let owns = status.services[0].role == "owner";
        assert!(!owns || switch.file("off-a").exists(), "a had power");
        owns.then_some(())
    });
    for one in traffic {
        one.goes_on();
        // Detection, the switch, and a retransmission or two of the client.
        one.finish(since, 3 * STALL_LIMIT);
    }
    assert_eq!(switch.lines("calls"), ["a"], "once");
    assert_unnoticed(capture);
    assert!(has_event(&cluster, Host::B, "stonith_succeeded"));
    // The machine boots again, and stands by.
    cluster.power_off(Host::A).expect("its pins are gone");
    lab.reboot(Host::A).expect("it boots");
    let _a = godwit_lab::apps::server::start(lab.a(), 80).expect("its server starts");
    cluster.start_agent(Host::A).expect("its agent starts");
    wait_in_sync(&mut cluster, Host::B);
}

fn is_gone(pid: &str) -> bool {
    // A killed orphan may wait for init to bury it.
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

/// A command that fails, or hangs, has powered nothing off: the owner, which only
/// lost its peer, goes on, and people are told why. In the end it works.
#[test]
fn a_power_switch_that_does_not_work_is_no_takeover() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let switch = Switch::new(&lab);
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, switch.options());
    let capture = witness(&lab);
    let traffic = protected(&lab, &cluster);
    lab.cut(Host::A, &[Network::Control]).expect("it is cut");
    let refused = |fault: &str| {
        until(fault, || {
            let status = cluster.status(Host::B).expect("b answers");
            let told = status.peers[0].stonith_fault.as_deref() == Some(fault);
            let warning = format!("peer a can't be powered off ({fault})");
            let warned = status.warnings.iter().any(|w| w.starts_with(&warning));
            (told && warned).then_some(())
        });
    };
    let b_waits = |span| {
        throughout("b waits", span, || {
            let status = cluster.status(Host::B).expect("b answers");
            status.services[0].role == "shadow"
        });
    };
    refused("command_failed");
    b_waits(Duration::from_secs(1));
    switch.set(Host::A, Plug::Hangs);
    refused("timed_out");
    wait_event(&cluster, Host::B, "stonith_failed");
    until("all that hung is killed", || {
        let pids = switch.lines("hung");
        let first: Vec<_> = pids.iter().take(2).collect();
        (first.len() == 2 && first.into_iter().all(|pid| is_gone(pid))).then_some(())
    });
    b_waits(Duration::from_millis(500));
    for one in &traffic {
        one.goes_on();
    }
    assert!(!switch.file("off-a").exists());
    switch.set(Host::A, Plug::Works);
    let since = Instant::now();
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for one in traffic {
        one.goes_on();
        one.finish(since, 3 * STALL_LIMIT);
    }
    assert_unnoticed(capture);
}
