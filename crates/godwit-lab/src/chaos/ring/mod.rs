//! The same for servers that stand by for each other, whose connections go from one to
//! another with their requests.
//!
//! [`run`] builds a lab of a client, two directors, three servers and a witness, with leases.
//! Clients of seven kinds stay from beginning to end. Round by round a fault is drawn from the
//! seed, comes, and is healed; and the servers are waited for until each share has its owner
//! and its standby in sync again. What may not be is a *violation*, as in
//! [`chaos`](super): a wrong byte, a connection that broke although it was reported as
//! protected, a second voice on the wire, shares that are not protected again. A connection
//! that a request may have been taking to another server when one was taken away is excused: who receives it has it without a twin for as long as a
//! record travels. Those are counted, and more than [a few](Sums::is_good) of them fail the
//! run.
//!
//! | module | |
//! |---|---|
//! | [`plan`] | the seed's sequence of faults |
//! | [`inject`] | carries a fault out and undoes it |
//! | [`world`] | the servers |
//! | [`roam`] | the clients |
//! | [`voices`] | who may speak |

mod inject;
mod plan;
pub(super) mod roam;
mod voices;
pub(super) mod world;

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Instant, SystemTime};

use anyhow::{Context as _, Result};

use inject::Target;
use plan::Plan;
use world::World;

use super::judge::{Said, SentAway, Verdict};
use super::regulars::Regulars;
use super::{ChaosOptions, LINK, count, say};
use crate::capture::{Books, Reset, Wire};
use crate::cluster::EventReport;
use crate::host::Host;
use crate::lab::{Lab, LabOptions, Switch};

/// Of a hundred faults, so many connections at most may be lost on their way.
const LOST_PERCENT: u64 = 10;

/// A run of faults.
struct Run<'a> {
    world: World<'a>,
    wire: Wire,
    regulars: Regulars,
    plan: Plan,
    sums: Sums,
    sent_away: SentAway,
    moves: Arc<AtomicU64>,
    started: Instant,
}

/// What a run adds up to.
#[derive(Debug, Default)]
struct Sums {
    faults: u64,
    streams: u64,
    violations: u64,
    takeovers: u64,
    /// Shares that were moved as planned.
    shares: u64,
    bytes: u64,
    /// Requests that were served by another server than the one before.
    moves: u64,
    told: u64,
    young: u64,
    /// Connections that were listened to, and how often another server spoke for one.
    voices: u64,
    changes: u64,
    /// Words of a server that had given its share back.
    late: u64,
    on_the_way: u64,
    present: u64,
    protected: u64,
}

/// Runs chaos in a ring; true if nothing was violated.
///
/// # Errors
/// Fails if this machine can't have a lab, or the lab itself does not work.
pub fn run(options: &ChaosOptions) -> Result<bool> {
    let plan = Plan::new(options.seed, options.faults.as_deref())?;
    say(&format!("seed {}", options.seed))?;
    let lab = Lab::new(LabOptions {
        third: true,
        director: true,
        reserve: true,
        witness: true,
        switch: Switch::of_seed(options.seed),
        ..LabOptions::default()
    })?;
    lab.shape(Host::Client, Some(LINK))?;
    let wire = Wire::start(&lab)?;
    let world = World::start(&lab)?;
    let moves = Arc::new(AtomicU64::new(0));
    let mut run = Run {
        regulars: Regulars::of(roam::start(&lab, options.seed, &moves)?),
        world,
        wire,
        plan,
        sums: Sums::default(),
        sent_away: SentAway::default(),
        moves,
        started: Instant::now(),
    };
    run.world.news();
    while run.started.elapsed() < options.duration {
        let goes_on = run.round()?;
        if !goes_on || (options.until_violation && run.sums.violations > 0) {
            break;
        }
    }
    let sums = run.finish()?;
    say(&sums.summary())?;
    Ok(sums.is_good())
}

impl Run<'_> {
    /// One fault; false if there is no going on.
    fn round(&mut self) -> Result<bool> {
        let draw = self.plan.draw();
        let target = Target::of(&draw, &self.world);
        if draw.fault.needs_every_vote() {
            self.world.wait_votes();
        }
        self.sums.faults += 1;
        let name = format!(
            "fault {}, {} on {}",
            self.sums.faults,
            draw.fault.name(),
            target.host,
        );
        self.progress(&format!("{name}, {:?}", draw.hold));
        self.regulars.wait_protected(|| self.world.flows(None));
        target.prepare(&self.world)?;
        thread::sleep(draw.wait);
        let mut said = Said::default();
        let mut news = self.world.news();
        let flows = self.world.flows(None);
        said.before(&flows, &news);
        let stay = self.regulars.count(&flows);
        self.progress(&format!("of the connections, {stay}"));
        let (at, moment) = (Instant::now(), SystemTime::now());
        target
            .inject(&mut self.world)
            .with_context(|| name.clone())?;
        if target.takes_server() {
            said.taken(at, Instant::now());
        }
        thread::sleep(draw.hold);
        said.look(&self.world.flows(target.silent()));
        target.heal(&mut self.world)?;
        said.look(&self.world.flows(None));
        let healed = self.world.wait_ready();
        // Before the events: each of what was heard has been told then.
        let books = self.wire.take()?;
        let later = self.world.news();
        said.hear(&later, moment);
        news.extend(later);
        said.alone(world::services_of(&self.sent_away.hear(&news)));
        self.tell_resets(&books, moment);
        self.sums.takeovers += count(&news, &["takeover_started"]);
        self.sums.shares += count(&news, &["share_moved"]);
        let mut verdict = Verdict::default();
        self.sums.hear(&books, &news, moment, &mut verdict);
        self.regulars.judge(at, said, &mut verdict);
        if healed.is_err() || !verdict.violations.is_empty() {
            self.progress(&self.world.story());
        }
        self.sums.judged(&name, verdict)?;
        if let Err(error) = healed {
            self.sums.violation(&format!("{name}: {error:#}"))?;
            return Ok(false);
        }
        self.world.wait_same_cause();
        Ok(true)
    }

    /// Who has reset connections since the last round, for a person.
    fn tell_resets(&self, books: &Books, moment: SystemTime) {
        for Reset { at, flow, from } in &books.resets {
            let after = at.duration_since(moment).unwrap_or_default();
            let by = voices::name(*from);
            self.progress(&format!(
                "RST from {by} to {flow}, {after:?} after the fault"
            ));
        }
    }

    /// The end of all clients.
    fn finish(self) -> Result<Sums> {
        let Self {
            mut sums, regulars, ..
        } = self;
        sums.present = regulars.present;
        sums.protected = regulars.protected;
        let mut verdict = Verdict::default();
        let report = regulars.finish(&mut verdict)?;
        sums.moves = self.moves.load(Ordering::Relaxed);
        sums.bytes = report.bytes;
        sums.streams = report.streams();
        sums.judged("at the end", verdict)?;
        Ok(sums)
    }

    /// Tells the person who waits what happens.
    fn progress(&self, what: &str) {
        // Nobody to tell is fine.
        let seconds = self.started.elapsed().as_secs_f64();
        let _ = writeln!(io::stderr(), "{seconds:8.1} s  {what}");
    }
}

impl Sums {
    /// Judges who was heard on the wire.
    fn hear(
        &mut self,
        books: &Books,
        news: &[EventReport],
        moment: SystemTime,
        verdict: &mut Verdict,
    ) {
        let heard = voices::judge(books, news, moment);
        self.voices += heard.flows;
        self.changes += heard.changes;
        self.late += heard.late;
        verdict.violations.extend(heard.violations);
    }

    /// Adds a verdict; its violations are printed as things that `name` did.
    fn judged(&mut self, name: &str, verdict: Verdict) -> Result<()> {
        self.told += verdict.told;
        self.young += verdict.young;
        self.on_the_way += verdict.on_the_way;
        let mut violations = verdict.violations.iter();
        violations.try_for_each(|it| self.violation(&format!("{name}: {it}")))
    }

    /// Prints one violation, at once.
    fn violation(&mut self, text: &str) -> Result<()> {
        self.violations += 1;
        say(&format!("violation: {text}"))
    }

    /// Whether nothing was violated, connections went from server to server, and few were
    /// lost on their way.
    const fn is_good(&self) -> bool {
        let few = self.on_the_way * 100 <= self.faults * LOST_PERCENT + 200;
        self.violations == 0 && self.moves > self.faults && few
    }

    /// The lines at the end; the last one is for scripts.
    fn summary(&self) -> String {
        format!(
            "takeovers {}\nshares moved {}\nbytes {}\nrequests that went elsewhere {}\n\
             broke as announced {}, reset before they were protected {}, on their way {}\n\
             connections: protected at {} of {} faults\n\
             voices {}, that changed {}, late {}\n\
             {} faults, {} streams, {} violations",
            self.takeovers,
            self.shares,
            self.bytes,
            self.moves,
            self.told,
            self.young,
            self.on_the_way,
            self.protected,
            self.present,
            self.voices,
            self.changes,
            self.late,
            self.faults,
            self.streams,
            self.violations,
        )
    }
}
