//! What the programs cost before they run: an agent is ready when the kernel has
//! verified them, and one that takes over for another is not ready before.

use std::io::Write as _;

use libbpf_rs::Link;
use libbpf_rs::query::ProgInfoIter;

use crate::bench::on_bench_of;

/// Instructions that the verifier may look at in one program. It did so with 190 000
/// of `tap`, which took a second, when the walk through the options was verified with
/// each of its callers. With servers that stand by for each other it is 90 000.
const MOST: u32 = 140_000;

#[test]
fn the_verifier_is_soon_done() {
    on_bench_of(|_, _, pins| {
        for name in ["tap", "gate", "process_exit"] {
            let pin = format!("/sys/fs/bpf/godwit/{pins}/links/{name}");
            let mut link = Link::open(pin).expect("it is pinned");
            link.disconnect();
            let id = link.info().expect("the kernel says").prog_id;
            let program = ProgInfoIter::default().find(|program| program.id == id);
            let verified = program.expect("it is loaded").verified_insns;
            let _ = writeln!(std::io::stderr(), "{name}: {verified} instructions");
            assert!(verified < MOST, "{name}: {verified} instructions verified");
        }
    });
}
