//! Flows for whose timers the kernel has no memory. How many that are is the kernel's affair:
//! where it has enough the tests hold as well, and say so.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use godwit_bpf::{Hook, Phase, Record};
use godwit_core::FlowEventKind;
use godwit_wire::{FlowKey, TcpFlags};

use crate::bench::{Bench, IRS, ISS, NEXT, flow_id, on_bench, to_service};

/// More than the kernel has timers at hand; half of them of each family.
pub(crate) const MANY: u16 = 1600;

/// As `GW_START_LIMIT_NS` and `GW_LINGER_NS`, and what a busy machine needs.
const START: Duration = Duration::from_millis(30);
const LINGER: Duration = Duration::from_secs(3);
const LATE: Duration = Duration::from_secs(3);

const FIRST: u16 = 10_000;

fn is_v6(port: u16) -> bool {
    port % 2 == 1
}

/// Many connections, so that there is no memory for the timers of some, or of what comes next.
pub(crate) fn crowd(bench: &Bench) {
    for port in FIRST..FIRST + MANY {
        bench.connect(port, is_v6(port));
    }
    let failed = bench.counts().into_iter().find(|it| it.0 == "timer_failed");
    let failed = failed.map_or(0, |it| it.1);
    let _ = writeln!(std::io::stderr(), "{failed} of {MANY} have no timer");
}

fn keys() -> impl Iterator<Item = FlowKey> {
    (FIRST..FIRST + MANY).map(|port| flow_id(port, is_v6(port)).key)
}

/// Their twins are missing.
#[test]
fn who_gets_no_twin_is_told_of_with_and_without_a_timer() {
    on_bench(|bench| {
        crowd(bench);
        let begun = Instant::now();
        let (mut asked, mut given_up) = (0, BTreeSet::new());
        let all: BTreeSet<_> = keys().collect();
        while given_up != all {
            for record in bench.events.wait(Duration::from_millis(10)) {
                let Record::Flow(event) = record else {
                    continue;
                };
                match FlowEventKind::try_from(event.kind) {
                    Ok(FlowEventKind::Unconfirmed) => asked += 1,
                    Ok(FlowEventKind::NotConfirmed) => {
                        given_up.insert(event.flow.key);
                    }
                    _ => {}
                }
            }
            let left = all.len() - given_up.len();
            assert!(begun.elapsed() < START + LATE, "{left} are left");
        }
        assert!(asked > 0, "their twins are asked for first");
    });
}

#[test]
fn who_has_ended_goes_with_and_without_a_timer() {
    on_bench(|bench| {
        crowd(bench);
        let begun = Instant::now();
        for port in FIRST..FIRST + MANY {
            let first = IRS.wrapping_add(1);
            let reset = to_service(port, is_v6(port), first, ISS + 1, TcpFlags::RST, b"");
            bench.expect(Hook::Tap, "RST", &reset, NEXT, "client_rst");
        }
        let took = begun.elapsed();
        let left = || {
            let found = keys().filter_map(|key| bench.flows().get(key).expect("it can be read"));
            found.filter(|flow| flow.phase == Phase::Ended).count()
        };
        if took < LINGER / 2 {
            assert_eq!(left(), usize::from(MANY), "for what is late");
        }
        while left() > 0 {
            assert!(
                begun.elapsed() < took + LINGER + LATE,
                "{} are left",
                left()
            );
            thread::sleep(Duration::from_millis(20));
        }
    });
}
