//! Agents of a majority are killed together: what they have voted for outlives them, so a
//! pause is all that clients see.

use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::LabOptions;
use godwit_lab::cluster::ClusterOptions;
use godwit_lab::host::Host;
use godwit_tests::stage::{
    assert_no_reset, assert_voices, in_sync, servers, service_v4, service_v6, stage, until,
    wait_protected, witness,
};
use godwit_tests::traffic::{Load, Traffic};
use nix::sys::signal::Signal;

/// From the kill to the next agents: shorter than a person's, longer than a lease.
const DEAD: Duration = Duration::from_millis(200);

/// [`DEAD`], the start of an agent and a retransmission.
const PAUSE: Duration = Duration::from_secs(3);

#[test]
fn agents_that_are_killed_together_leave_every_connection() {
    for killed in [
        [Host::B, Host::Witness].as_slice(),
        &[Host::A, Host::Witness],
        &Host::SERVERS,
        &[Host::A, Host::B, Host::Witness],
    ] {
        let Some(lab) = stage(LabOptions::default()) else {
            return;
        };
        let _servers = servers(&lab);
        let mut cluster = in_sync(&lab, ClusterOptions::default());
        let capture = witness(&lab);
        let clients = [
            Traffic::start(&lab, service_v4(), Load::Echo),
            Traffic::start(&lab, service_v6(), Load::Download),
        ];
        for client in &clients {
            wait_protected(&cluster, Host::A, client.local());
        }
        let since = Instant::now();
        for host in killed {
            let agent = cluster.agent(*host).expect("it was started");
            agent.signal(Signal::SIGKILL).expect("it runs");
        }
        thread::sleep(DEAD);
        for host in killed {
            cluster.start_agent(*host).expect("it starts again");
        }
        for client in &clients {
            client.goes_on();
        }
        // Whoever asks first owns: the other one has twins of all.
        until("one owns, and the other is in sync", || {
            let in_sync = |owner| {
                let status = cluster.status(owner).ok()?;
                let service = status.services.first()?;
                (service.role == "owner" && !service.in_sync.is_empty()).then_some(())
            };
            Host::SERVERS.into_iter().find_map(in_sync)
        });
        for client in clients {
            let longest = client.finish(since, PAUSE);
            eprintln!("{killed:?}: {longest:?}");
        }
        let trace = capture.finish().expect("the capture is complete");
        assert_no_reset(&trace);
        assert_voices(&trace, 1);
    }
}
