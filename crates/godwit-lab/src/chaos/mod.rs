//! Things go wrong, one after the other, under mixed real traffic.
//!
//! [`run`] builds a lab of a client, two servers and a witness, with leases.
//! Some clients stay from beginning to end. Round by round others come; a fault is
//! drawn from the seed; when a stream is in the phase that was drawn, it comes; it is
//! healed; the clients of the round come to their end, every byte compared; and the
//! cluster is waited for until it is protected again, and with it those clients that
//! stay. What may not be is a *violation*:
//!
//! * a wrong byte, whatever was said before;
//! * a connection that broke although it was reported as protected;
//! * a second voice: a node that speaks for a flow whose service another one owns,
//!   or resets one, seen at the node's own wire exit (`capture::Wire`);
//! * a time stamp that goes back;
//! * a cluster that is not protected again.
//!
//! The seed decides what is done and in which order; when exactly, and what the
//! machine does meanwhile, it can't.
//!
//! [`hostile::run`] has nothing fail, and a stranger try what he can.
//!
//! [`ring::run`] does the same to three servers that stand by for each other behind two
//! directors, while requests take connections from one to another.
//!
//! | module | |
//! |---|---|
//! | [`plan`] | the seed's sequence of faults |
//! | [`inject`], [`scarce`], [`disturb`] | carries a fault out and undoes it |
//! | [`world`] | the cluster |
//! | [`crowd`], [`regulars`], [`seat`], [`talk`], [`phase`] | the clients |
//! | [`judge`], [`voices`], [`turns`], [`tally`] | what it means, and what it adds up to |
//! | [`ring`] | three servers and two directors |
//! | [`hostile`] | a stranger on the clients' network |

mod crowd;
mod disturb;
pub mod hostile;
mod inject;
mod judge;
mod news;
mod phase;
mod plan;
mod reconfigure;
mod regulars;
pub mod ring;
mod scarce;
mod seat;
mod talk;
mod tally;
mod turns;
mod voices;
mod world;

use std::io::{self, Write as _};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};

use crowd::Crowd;
use inject::Target;
use judge::{Said, SentAway, Verdict};
use plan::{Draw, Fault, Plan, Random};
use regulars::Regulars;
use scarce::Shortage;
use tally::Tally;
use turns::Turns;
use voices::Evidence;
use world::World;

use crate::capture::{Reset, Stays, Wire};
use crate::cluster::EventReport;
use crate::host::Host;
use crate::lab::{Lab, LabOptions, Switch};
use crate::links::Shape;
use crate::out;

/// What may be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChaosOptions {
    /// How long faults are drawn; the last round ends a little later.
    pub duration: Duration,
    /// Decides what is done, in which order.
    pub seed: u64,
    /// Only faults whose names begin so; several prefixes have commas between
    /// them. Default: all.
    pub faults: Option<String>,
    /// Ends after the first round with a violation. Default: false.
    pub until_violation: bool,
}

/// Rate of the client's link, megabits per second, and its queue: a round trip
/// of some milliseconds, so that phases last long enough to be hit.
const LINK: Shape = Shape {
    rate_bits: 200_000_000,
    queue: Duration::from_millis(6),
};

/// How long flows of a new round are given to be protected.
const SETTLE: Duration = Duration::from_millis(120);

/// How long a fault waits for the phase that it is meant for.
const STEER: Duration = Duration::from_millis(250);

/// A run of faults.
struct Run<'a> {
    world: World<'a>,
    regulars: Regulars,
    wire: Wire,
    plan: Plan,
    random: Random,
    tally: Tally,
    sent_away: SentAway,
    turns: Turns,
    started: Instant,
}

/// Runs chaos; true if nothing was violated, and every phase was hit often enough.
///
/// # Errors
/// Fails if this machine can't have a lab, or the lab itself does not work.
pub fn run(options: &ChaosOptions) -> Result<bool> {
    let plan = Plan::new(options.seed, options.faults.as_deref(), is_possible)?;
    say(&format!("seed {}", options.seed))?;
    if !plan.left_out().is_empty() {
        let kinds = plan.left_out().join(", ");
        say(&format!("left out, this machine can't do it: {kinds}"))?;
    }
    let lab = Lab::new(LabOptions {
        witness: true,
        switch: Switch::of_seed(options.seed),
        ..LabOptions::default()
    })?;
    lab.shape(Host::Client, Some(LINK))?;
    let wire = Wire::start(&lab)?;
    let world = World::start(&lab, "")?;
    let mut turns = Turns::default();
    for program in &world.programs {
        turns.begin(*program, world.owner_of(*program)?);
    }
    let mut run = Run {
        regulars: Regulars::start(&lab, &world.programs, options.seed)?,
        wire,
        world,
        plan,
        random: Random::new(!options.seed),
        tally: Tally::default(),
        sent_away: SentAway::default(),
        turns,
        started: Instant::now(),
    };
    run.world.news();
    while run.started.elapsed() < options.duration {
        let goes_on = run.round()?;
        if !goes_on || (options.until_violation && run.tally.violations > 0) {
            break;
        }
    }
    let tally = run.finish()?;
    say(&tally.summary())?;
    Ok(tally.is_good())
}

/// Whether this machine can do a fault at all: for short memory it takes the memory
/// controller of cgroups version 1.
fn is_possible(fault: Fault) -> bool {
    !matches!(fault, Fault::MemoryShort(_)) || Shortage::is_possible()
}

impl Run<'_> {
    /// One fault; false if there is no going on.
    fn round(&mut self) -> Result<bool> {
        let Draw {
            fault,
            moment,
            hold,
        } = self.plan.draw();
        if fault.needs_every_vote() {
            self.world.wait_votes();
        }
        let program = self.world.programs[self.random.index(self.world.programs.len())];
        let target = Target::of(fault, program, &self.world)?;
        let number = self.tally.faults + self.tally.missed + 1;
        let name = format!("fault {number}, {} on {}", fault.name(), target.host);
        self.progress(&format!("{name}, {moment}, {hold:?}"));

        self.regulars.wait_protected(|| self.world.flows(None));
        let crowd = Crowd::start(self.world.lab, &self.world.programs, self.random.next())?;
        thread::sleep(SETTLE);
        target.prepare(&mut self.world)?;
        let mut said = Said::default();
        crowd.wait_for(moment, STEER);
        let mut news = self.world.news();
        let flows = self.world.flows(None);
        said.before(&flows, &news);
        said.alone(self.sent_away.hear(&news));
        let stay = self.regulars.count(&flows);
        self.progress(&format!("of those that stay, {stay}"));
        crowd.wait_for(moment, STEER);
        // Before it: a stream that a fault keeps waiting is not one that it hit.
        let busy = self.tally.hit(&crowd.phases());
        let (at, moment_of_fault) = (Instant::now(), SystemTime::now());
        target
            .inject(&mut self.world)
            .with_context(|| name.clone())?;
        thread::sleep(hold);
        said.look(&self.world.flows(target.silent()));
        target.heal(&mut self.world)?;
        said.look(&self.world.flows(None));
        let report = crowd.finish()?;
        let healed = self.world.wait_ready();
        let later = self.world.news();
        said.hear(&later, moment_of_fault);
        said.alone(self.sent_away.hear(&later));
        news.extend(later);
        self.turns.hear(&news, moment_of_fault);

        let takeovers = count(&news, &["takeover_started"]);
        let moves = count(&news, &["share_moved"]);
        self.tally.takeovers += takeovers;
        self.tally.moves += moves;
        self.tally.demotions += count(&news, &["flow_demoted", "standby_left"]);
        self.tally.bytes += report.bytes;
        self.tally.streams += report.streams();
        if busy || takeovers + moves > 0 {
            self.tally.faults += 1;
        } else {
            self.tally.missed += 1;
        }
        let mut verdict = Verdict::over(&report.seats, &said, at);
        self.regulars.judge(at, said, &mut verdict);
        self.hear(&mut verdict, moment_of_fault)?;
        if healed.is_err() || !verdict.violations.is_empty() {
            self.progress(&self.world.story());
        }
        self.tally.judged(&name, verdict)?;
        if let Err(error) = healed {
            self.tally.violation(&format!("{name}: {error:#}"))?;
            return Ok(false);
        }
        self.world.wait_same_cause();
        Ok(true)
    }

    /// What was on the wire since the last round.
    fn hear(&mut self, verdict: &mut Verdict, moment: SystemTime) -> Result<()> {
        let books = self.wire.take()?;
        let stays = match self.world.stopwatch.take() {
            Some(stopwatch) => {
                let stays = stopwatch.finish(&books.ticks)?;
                let (frames, longest) = stays.summary();
                self.progress(&format!(
                    "{frames} frames stayed in the full queue for {longest:?} at most"
                ));
                stays
            }
            None => Stays::default(),
        };
        verdict.hear(&Evidence {
            books: &books,
            turns: &self.turns,
            stays: &stays,
            moment,
        });
        for stuck in &verdict.stuck {
            self.progress(&format!("kept by the lab's own queue: {stuck}"));
        }
        self.tally.segments += books.segments;
        self.tally.resets += books.resets.len() as u64;
        self.tally.late_resets += books.late_resets;
        for reset in &books.resets {
            let after = reset.at.duration_since(moment).unwrap_or_default();
            let Reset { flow, from, .. } = reset;
            self.progress(&format!("RST from {from} to {flow}, {after:?} later"));
        }
        Ok(())
    }

    /// The end of those who stayed.
    fn finish(mut self) -> Result<Tally> {
        self.tally.present = self.regulars.present;
        self.tally.protected = self.regulars.protected;
        let mut verdict = Verdict::default();
        let report = self.regulars.finish(&mut verdict)?;
        self.tally.bytes += report.bytes;
        self.tally.streams += report.streams();
        self.tally.judged("at the end", verdict)?;
        Ok(self.tally)
    }

    /// Tells the person who waits what happens.
    fn progress(&self, what: &str) {
        // Nobody to tell is fine.
        let seconds = self.started.elapsed().as_secs_f64();
        let _ = writeln!(io::stderr(), "{seconds:8.1} s  {what}");
    }
}

fn count(news: &[EventReport], names: &[&str]) -> u64 {
    let of_them = news
        .iter()
        .filter(|event| names.contains(&event.event.as_str()));
    of_them.count() as u64
}

fn say(line: &str) -> Result<()> {
    out::line(line).context("writing the report")
}
