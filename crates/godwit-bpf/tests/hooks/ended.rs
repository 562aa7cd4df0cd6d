//! How long a flow that has ended stays in the table.

use std::time::{Duration, Instant};

use godwit_bpf::{Hook, Phase};
use godwit_wire::TcpFlags;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::bench::{Bench, IRS, ISS, NEXT, flow_id, on_bench_of, to_service};
use crate::wait::until;

/// `GW_LINGER_NS`; what a busy machine needs beyond it, a test has.
const LINGER: Duration = Duration::from_secs(3);

/// The client's first byte.
const CLIENT: u32 = IRS.wrapping_add(1);

fn table(pins: &str) -> MapHandle {
    let path = format!("/sys/fs/bpf/godwit/{pins}/maps/gw_flows");
    MapHandle::from_pinned_path(path).expect("it is pinned")
}

/// Writes all flows anew. A timer is not part of what user space writes: they have none then, as
/// if the kernel had had no memory for it.
fn take_timers(pins: &str) {
    let table = table(pins);
    for key in table.keys().collect::<Vec<_>>() {
        let flow = table.lookup(&key, MapFlags::ANY).expect("it can be read");
        let flow = flow.expect("it is there");
        table.update(&key, &flow, MapFlags::EXIST).expect("written");
    }
}

fn phase(bench: &Bench, port: u16, v6: bool) -> Option<Phase> {
    let flow = bench.flows().get(flow_id(port, v6).key);
    flow.expect("it can be read").map(|flow| flow.phase)
}

/// Whether the kernel has a timer for it or had none when it began.
#[test]
fn an_ended_flow_goes_after_three_seconds() {
    on_bench_of(|bench, _, pins| {
        for (port, v6) in [(7, false), (8, true)] {
            bench.connect(port, v6);
        }
        take_timers(pins);
        let ended = [(7, false), (8, true), (9, false), (10, true)];
        for (port, v6) in &ended[2..] {
            bench.connect(*port, *v6);
        }
        let begun = Instant::now();
        for (port, v6) in ended {
            let reset = to_service(port, v6, CLIENT, ISS + 1, TcpFlags::RST, b"");
            bench.expect(Hook::Tap, "RST", &reset, NEXT, "client_rst");
            assert_eq!(phase(bench, port, v6), Some(Phase::Ended));
        }
        let left = || ended.map(|(port, v6)| phase(bench, port, v6));
        let are_gone = || {
            let left = left();
            if begun.elapsed() < LINGER / 2 {
                assert_eq!(left, [Some(Phase::Ended); 4], "for what is late");
            }
            left == [None; 4]
        };
        until(are_gone, || format!("{:?}", left()));
    });
}
