//! Response times of requests that go where their file is in memory, against those of
//! requests that go anywhere.

use std::time::Duration;

use anyhow::Result;

use super::site::{Front, Setup, Site, Web};
use super::{Manner, measure};
use crate::apps::webstone::{Load, Tally, Times};
use crate::bench::budget::Budget;
use crate::bench::report::{Measured, Report};
use crate::bench::stats::Samples;

/// Clients at which one server's disk is busy all the time if requests go anywhere.
const CLIENTS: u32 = 300;

/// Fewer and more of them.
const OTHERS: [u32; 2] = [100, 1000];

/// What a page cache holds: a bit more than its share of the files.
const CACHE: u32 = 120;

/// Less of it, and up to all that there is.
const CACHES: [u32; 5] = [60, 90, 150, 200, 320];

/// Starting, warming up and measuring both, in a quick benchmark.
const COST: Duration = Duration::from_secs(22);

/// What was compared.
#[derive(Debug, Default)]
struct Seen {
    /// All requests, then by class: spread / placed.
    ratios: [Samples; 5],
    spread: Arm,
    placed: Arm,
}

/// The runs of one side.
#[derive(Debug, Default)]
struct Arm {
    mean: Samples,
    rate: Samples,
    p99: Samples,
}

const OF: [&str; 5] = ["all", "class0", "class1", "class2", "class3"];

/// `handoff.{2,3}.*`, `handoff.cache*`, `handoff.broken`.
pub(super) fn run(site: &Site, budget: Budget, report: &Report) -> Result<()> {
    let mut broken = Samples::default();
    let mut outcome = Ok(());
    let mut compare = |prefix: &str, setup: Setup, manner, clients, runs| {
        let mut seen = Seen::default();
        for _ in budget.runs(runs, 1, COST) {
            let faults = seen.compare(site, setup, (manner, clients), budget, report);
            match faults {
                Ok(faults) => broken.push(faults),
                Err(error) => outcome = Err(error),
            }
        }
        seen.put(prefix, report)
    };
    let setup = |servers, cache| Setup {
        front: Front::Spread,
        web: Web::Apache,
        servers,
        cache: Some(cache),
    };
    for servers in [3, 2] {
        for manner in Manner::BOTH {
            let prefix = format!("handoff.{servers}.{}", manner.as_str());
            if report.wants_figure(&prefix) {
                compare(&prefix, setup(servers, CACHE), manner, CLIENTS, 3)?;
            }
        }
    }
    if budget.either(true, false) {
        for manner in Manner::BOTH {
            for servers in [3, 2] {
                for clients in OTHERS {
                    let prefix = format!("handoff.{servers}.{}.{clients}", manner.as_str());
                    if report.wants_figure(&prefix) {
                        compare(&prefix, setup(servers, CACHE), manner, clients, 1)?;
                    }
                }
            }
            for cache in CACHES {
                let prefix = format!("handoff.cache{cache}.{}", manner.as_str());
                if report.wants_figure(&prefix) {
                    compare(&prefix, setup(3, cache), manner, CLIENTS, 1)?;
                }
            }
        }
    }
    report.put("handoff.broken", summed(&broken))?;
    outcome
}

fn summed(samples: &Samples) -> Measured {
    Measured {
        value: (samples.runs() > 0).then(|| samples.sum()),
        control: None,
        runs: samples.runs(),
    }
}

impl Seen {
    /// One run of each; connections that did not do what they should.
    fn compare(
        &mut self,
        site: &Site,
        setup: Setup,
        clients: (Manner, u32),
        budget: Budget,
        report: &Report,
    ) -> Result<f64> {
        let spread = one(site, setup, clients, budget, report)?;
        self.spread.push(&spread);
        let setup = Setup {
            front: Front::Placed,
            ..setup
        };
        let placed = one(site, setup, clients, budget, report)?;
        self.placed.push(&placed);
        let times = spread.times().into_iter().zip(placed.times());
        for (ratios, (spread, placed)) in self.ratios.iter_mut().zip(times) {
            if spread.requests > 0 && placed.requests > 0 {
                ratios.push(spread.mean_ms / placed.mean_ms);
            }
        }
        Ok((spread.failed() + placed.failed()) as f64)
    }

    fn put(&self, prefix: &str, report: &Report) -> Result<()> {
        for (of, ratios) in OF.iter().zip(&self.ratios) {
            report.put_known(&format!("{prefix}.{of}.ratio"), ratios)?;
        }
        for (name, arm) in [("spread", &self.spread), ("placed", &self.placed)] {
            report.put_known(&format!("{prefix}.{name}.mean"), &arm.mean)?;
            report.put_known(&format!("{prefix}.{name}.requests"), &arm.rate)?;
            report.put_known(&format!("{prefix}.{name}.p99"), &arm.p99)?;
        }
        Ok(())
    }
}

impl Arm {
    fn push(&mut self, tally: &Tally) {
        self.mean.push(tally.all.mean_ms);
        self.rate.push(tally.rate);
        self.p99.push(tally.all.p99_ms);
    }
}

impl Tally {
    /// Of all requests, then by class.
    fn times(&self) -> [Times; 5] {
        let [zero, one, two, three] = self.classes;
        [self.all, zero, one, two, three]
    }
}

fn one(
    site: &Site,
    setup: Setup,
    (manner, clients): (Manner, u32),
    budget: Budget,
    report: &Report,
) -> Result<Tally> {
    let running = site.start(setup, clients)?;
    let load = Load {
        per_connection: manner.per_connection(),
        warm: budget.either(Duration::from_secs(3), Duration::from_secs(1)),
        span: budget.either(Duration::from_secs(15), Duration::from_secs(3)),
        ..running.load(clients)
    };
    measure(&running, setup, &load, report)
}
