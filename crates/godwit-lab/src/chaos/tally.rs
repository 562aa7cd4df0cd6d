//! What a run adds up to, and how it is told.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

use super::judge::Verdict;
use super::phase::Phase;
use crate::out;

/// Of all hits, each phase is to have so many, in percent.
const LEAST_PERCENT: f64 = 5.0;

/// From so many faults on: of fewer, some phase may well have none.
const ENOUGH: u64 = 100;

/// Sums over all rounds.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Faults that changed a role or hit a stream with bytes in flight.
    pub(super) faults: u64,
    /// The others.
    pub(super) missed: u64,
    pub(super) streams: u64,
    pub(super) violations: u64,
    pub(super) takeovers: u64,
    pub(super) moves: u64,
    pub(super) demotions: u64,
    pub(super) told: u64,
    pub(super) young: u64,
    /// Words of owners that had given their service back.
    pub(super) late: u64,
    /// Words that a queue of the lab kept for longer than it was to.
    pub(super) stuck: u64,
    pub(super) bytes: u64,
    pub(super) segments: u64,
    pub(super) resets: u64,
    /// Of connections that were over for their clients.
    pub(super) late_resets: u64,
    /// Clients that stay, summed over all faults, and how many of them were
    /// protected then.
    pub(super) present: u64,
    pub(super) protected: u64,
    phases: BTreeMap<Phase, u64>,
}

impl Tally {
    /// Takes down where streams were when a fault came; says whether any had
    /// bytes in flight.
    pub(super) fn hit(&mut self, phases: &BTreeMap<Phase, u64>) -> bool {
        let mut busy = false;
        for phase in Phase::BUSY {
            let count = phases.get(&phase).copied().unwrap_or(0);
            *self.phases.entry(phase).or_default() += count;
            busy |= count > 0;
        }
        busy
    }

    /// Adds a verdict; its violations are printed as things that `name` did.
    pub(super) fn judged(&mut self, name: &str, verdict: Verdict) -> Result<()> {
        self.told += verdict.told;
        self.young += verdict.young;
        self.late += verdict.late;
        self.stuck += verdict.stuck.len() as u64;
        let mut violations = verdict.violations.iter();
        violations.try_for_each(|violation| self.violation(&format!("{name}: {violation}")))
    }

    /// Prints one violation, at once.
    pub(super) fn violation(&mut self, text: &str) -> Result<()> {
        self.violations += 1;
        out::line(&format!("violation: {text}")).context("writing a violation")
    }

    /// Share of all hits that were in `phase`, in percent.
    pub(super) fn percent(&self, phase: Phase) -> f64 {
        let all = self.phases.values().sum::<u64>().max(1);
        let one = self.phases.get(&phase).copied().unwrap_or(0);
        // Both fit: they are streams of this run.
        100.0 * one as f64 / all as f64
    }

    /// Phases that so many faults have hit too seldom.
    fn neglected(&self) -> Vec<Phase> {
        let all = Phase::BUSY.into_iter().filter(|_| self.faults > ENOUGH);
        all.filter(|phase| self.percent(*phase) < LEAST_PERCENT)
            .collect()
    }

    /// Whether nothing was violated, and the run says so of every phase.
    pub(super) fn is_good(&self) -> bool {
        self.violations == 0 && self.neglected().is_empty()
    }

    /// The lines at the end; the last one is for scripts.
    pub(super) fn summary(&self) -> String {
        let phases = Phase::BUSY.map(|phase| format!("{phase} {:.0} %", self.percent(phase)));
        let neglected = self.neglected().into_iter();
        let neglected = neglected.map(|phase| {
            let percent = self.percent(phase);
            format!(
                "hit too seldom: {phase}, {percent:.2} %, at least {LEAST_PERCENT} % are wanted\n"
            )
        });
        format!(
            "takeovers {}\nmoves {}\ndemotions {}\nbytes {}\nsegments {}, RST {}, to connections that were over {}\n\
             late words of owners that had given their service back {}, that the lab's own queue kept for too long {}\n\
             broke as announced {}, reset before they were protected {}\n\
             clients that stay: protected at {} of {} faults\n\
             phases hit: {}\nfaults that hit nothing {}\n{}\
             {} faults, {} streams, {} violations",
            self.takeovers,
            self.moves,
            self.demotions,
            self.bytes,
            self.segments,
            self.resets,
            self.late_resets,
            self.late,
            self.stuck,
            self.told,
            self.young,
            self.protected,
            self.present,
            phases.join(", "),
            self.missed,
            neglected.collect::<String>(),
            self.faults,
            self.streams,
            self.violations,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_for_scripts() {
        let mut tally = Tally::default();
        assert!(!tally.hit(&BTreeMap::from([(Phase::Idle, 3)])));
        assert!(tally.hit(&BTreeMap::from([(Phase::Syn, 1), (Phase::Fin, 3)])));
        tally.faults = 2;
        tally.streams = 8;
        let text = tally.summary();
        assert!(
            text.ends_with("\n2 faults, 8 streams, 0 violations"),
            "{text}"
        );
        assert!(
            text.contains("SYN 25 %") && text.contains("FIN 75 %"),
            "{text}"
        );
    }

    /// A phase that is not hit is one of which nothing is known.
    #[test]
    fn many_faults_hit_every_phase() {
        let mut tally = Tally::default();
        let hits = [(1, 5), (2, 50), (3, 25), (4, 11), (5, 9)];
        tally.hit(&hits.map(|(phase, n)| (Phase::from_u8(phase), n)).into());
        tally.faults = ENOUGH + 1;
        assert!(tally.is_good(), "{}", tally.summary());
        tally.hit(&BTreeMap::from([(Phase::Fin, 1)]));
        assert!(!tally.is_good());
        let text = tally.summary();
        let lines: Vec<_> = text.lines().rev().take(2).collect();
        assert_eq!(lines[0], "101 faults, 0 streams, 0 violations");
        assert_eq!(
            lines[1],
            "hit too seldom: SYN, 4.95 %, at least 5 % are wanted"
        );
        tally.faults = ENOUGH;
        assert!(tally.is_good(), "too few to tell");
        tally.violations = 1;
        assert!(!tally.is_good());
    }
}
