//! A standby whose memory says that its clients do Accurate ECN.
//!
//! Linux 6.18 lets a request socket say so, and the kfunc that makes twins does not
//! set it: where the kernel does not clear its memory, it is what the last handshake
//! there, or anything else, has left (`gw_birth.h`).

use std::process::Command;
use std::time::{Duration, Instant};

use godwit_lab::LabOptions;
use godwit_lab::apps::server;
use godwit_lab::capture::SegmentSeen;
use godwit_lab::cluster::ClusterOptions;
use godwit_lab::host::{Host, Network};
use godwit_tests::DEADLINE;
use godwit_tests::stage::{
    PORT, assert_unnoticed, counted, in_sync, service_v4, service_v6, stage, wait_in_sync,
    wait_protected, witness,
};
use godwit_tests::traffic::{Load, Traffic};

/// Of client and service, each way.
const DELAY: Duration = Duration::from_millis(10);

/// As long as a download may pause after a takeover here: it probes, and begins with
/// ten segments.
const STALL: Duration = Duration::from_secs(3);

/// More than a window of ten segments and some.
const UNDER_WAY: u32 = 64 * 1448;

/// Memory that says something, as long as this lives.
struct Traces;

impl Traces {
    fn leave() -> Self {
        fill("\\377");
        Self
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        fill("\\0");
    }
}

/// Fills memory with a byte and gives it back, on each processor; then lets the kernel
/// take its request sockets from there.
fn fill(byte: &str) {
    let script = format!(
        "f=/dev/shm/godwit-traces-$$; \
         head -c 256M /dev/zero | tr '\\0' '{byte}' > $f; rm $f; \
         for c in TCP TCPv6; do echo 1 > /sys/kernel/slab/request_sock_$c/shrink; done"
    );
    for processor in ["0", "1"] {
        let mut command = Command::new("taskset");
        command.args(["-c", processor, "sh", "-c", &script]);
        let status = command.status().expect("util-linux is there");
        // Caches may be merged with others, and have other names: a weaker test.
        println!("{byte} left on processor {processor}: {status}");
    }
}

/// The most bytes that came within one round trip.
fn most_per_round_trip<'a>(segments: impl Iterator<Item = &'a SegmentSeen>) -> u32 {
    let span = (2 * DELAY).as_nanos();
    let segments: Vec<_> = segments.collect();
    let within = |first: &SegmentSeen| {
        segments
            .iter()
            .filter(|s| s.at_ns >= first.at_ns && u128::from(s.at_ns - first.at_ns) < span)
            .map(|s| s.length)
            .sum()
    };
    segments
        .iter()
        .step_by(50)
        .map(|s| within(s))
        .max()
        .unwrap_or(0)
}

#[test]
fn a_twin_does_not_take_its_client_for_another() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    // bbr would not mind: it does not look at marks.
    let start = |host| server::start_with_congestion(lab.node(host), PORT, "cubic");
    let _servers = Host::SERVERS.map(|host| start(host).expect("the server starts"));
    lab.delay(Host::Client, DELAY)
        .expect("there is a delay line");
    let mut cluster = in_sync(&lab, ClusterOptions::unfenced());
    let downloads = [service_v4(), service_v6()].map(|to| {
        let one = Traffic::start(&lab, to, Load::LongDownload);
        wait_protected(&cluster, Host::A, one.local());
        one
    });
    let agent = cluster.agent(Host::B).expect("it was started");
    agent.kill().expect("the agent can be killed");
    let _traces = Traces::leave();
    // Twins are made anew, where no handshake was before: all machines of a lab have
    // one kernel, and the owner's handshakes set right what they leave.
    cluster.start_agent(Host::B).expect("it starts again");
    wait_in_sync(&mut cluster, Host::A);
    for one in &downloads {
        wait_protected(&cluster, Host::A, one.local());
    }
    let mended = counted(&cluster, Host::B, "twin_mended");
    println!("{mended} twins were mended");
    let capture = witness(&lab);
    let since = Instant::now();
    lab.crash(Host::A).expect("a crashes");
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    for one in downloads {
        one.finish(since, STALL);
    }
    let trace = assert_unnoticed(capture);
    let from = Host::B.mac(Network::Data);
    for to in [service_v4(), service_v6()] {
        let said = trace
            .segments()
            .filter(|s| s.from_mac == from && s.from == to.into() && s.length > 0);
        let most = most_per_round_trip(said);
        assert!(most > UNDER_WAY, "{to}: at most {most} bytes under way");
    }
    assert_eq!(counted(&cluster, Host::B, "twin_misborn"), 0);
}
