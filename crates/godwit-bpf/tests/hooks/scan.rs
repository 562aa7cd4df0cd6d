//! The agent sees every flow, however many there are.

use std::collections::BTreeSet;

use crate::bench::on_bench;

/// Several batches, whose ends are where the kernel's buckets end: a short one
/// is not the last.
#[test]
fn a_scan_of_thousands_of_flows_misses_none() {
    const FLOWS: u16 = 8100;
    on_bench(|bench| {
        for port in 0..FLOWS {
            bench.connect(10_000 + port, port % 2 == 1);
        }
        let mut seen = BTreeSet::new();
        let mut count = 0;
        bench
            .flows()
            .for_each(|flow| {
                seen.insert(flow.id.key);
                count += 1;
            })
            .expect("the map can be read");
        assert_eq!(count, FLOWS);
        assert_eq!(seen.len(), usize::from(FLOWS), "none twice");
    });
}
