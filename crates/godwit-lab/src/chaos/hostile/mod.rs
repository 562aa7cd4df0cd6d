//! Nothing fails: a stranger on the clients' network tries what he can, under mixed traffic.
//!
//! [`run`] builds a lab of a client, two servers, a witness and an attacker, with leases. Round
//! by round clients come; an [`Attack`] is drawn from the seed, and lasts for [`SIEGE`];
//! the clients come to their end, every byte compared. The attacker knows the addresses and
//! ports of all connections. With his own MAC he knows none of their numbers; with a server's he
//! has heard what servers say to each other, and knows no key. Whatever anybody but himself
//! notices is a *violation*:
//!
//! * a wrong byte, or a connection that breaks;
//! * a RST to a client;
//! * a role that changes, a standby that leaves, a connection that loses its protection.
//!
//! Of [`Attack::Mirror`] SECURITY.md says what it can do: with the owner's MAC twins are fed what
//! the attacker says. So he attacks every second connection ([`victims`]). While the owner lives
//! not one byte may be wrong, of the attacked neither; they may lose their protection. Then the
//! services are handed over: what was attacked may break then, and nothing else may.
//!
//! [`front`] does the same before a director, after that.

mod attack;
mod front;
mod keys;
mod server;

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use godwit_wire::{Endpoint, FlowKey};

use attack::{Attack, Scene};
use keys::Keys;
use server::Seen;

use super::crowd::Crowd;
use super::plan::Random;
use super::seat::{Connection, Fate};
use super::talk::{Pace, Work};
use super::world::{Program, World};
use super::{ChaosOptions, LINK, say};
use crate::capture::Wire;
use crate::cluster::EventReport;
use crate::host::Host;
use crate::lab::{Lab, LabOptions, Switch};

/// How long each attack lasts.
const SIEGE: Duration = Duration::from_millis(700);

/// Until what it has led to has been told.
const AFTER: Duration = Duration::from_millis(300);

/// Connections of a round are protected by then.
const SETTLED: Duration = Duration::from_secs(5);

/// Whose connections are attacked: they last as long as the round.
const WORKS: [Work; 6] = [
    Work::Ask,
    Work::Upload,
    Work::Echo,
    Work::Ask,
    Work::Upload,
    Work::Echo,
];

/// What may not be said of anything but the attacker's own connections.
const NEWS: [&str; 6] = [
    "flow_demoted",
    "flow_diverged",
    "lease_lapsed",
    "role_changed",
    "standby_left",
    "takeover_started",
];

/// What a run adds up to.
#[derive(Debug, Default)]
struct Sums {
    attacks: u64,
    frames: u64,
    streams: u64,
    bytes: u64,
    violations: u64,
}

struct Run<'a> {
    lab: &'a Lab,
    world: World<'a>,
    keys: Keys,
    wire: Wire,
    random: Random,
    deck: Vec<Attack>,
    sums: Sums,
    started: Instant,
}

/// Runs attacks; true if nobody noticed any.
///
/// # Errors
/// Fails if this machine can't have a lab, or the lab itself does not work.
pub fn run(options: &ChaosOptions) -> Result<bool> {
    let wanted = Attack::named(options.faults.as_deref())?;
    say(&format!("seed {}", options.seed))?;
    let started = Instant::now();
    let directed = wanted.iter().copied().filter(|it| front::tries(*it));
    let directed: Vec<_> = directed.collect();
    let is_directed = !directed.is_empty();
    let lasts = if is_directed {
        options.duration * 5 / 8
    } else {
        options.duration
    };
    let mut sums = pair(options, &wanted, lasts)?;
    if is_directed && !(options.until_violation && sums.violations > 0) {
        let until = started + options.duration;
        front::run(options.seed, &directed, until, &mut sums)?;
    }
    let Sums {
        attacks,
        frames,
        streams,
        bytes,
        violations,
    } = sums;
    say(&format!(
        "frames and connections of the attacker {frames}, bytes {bytes}\n\
         {attacks} attacks, {streams} streams, {violations} violations"
    ))?;
    Ok(violations == 0 && attacks > 0)
}

/// Attacks on an owner and its standby.
fn pair(options: &ChaosOptions, wanted: &[Attack], lasts: Duration) -> Result<Sums> {
    let lab = Lab::new(LabOptions {
        witness: true,
        attacker: true,
        switch: Switch::of_seed(options.seed),
        ..LabOptions::default()
    })?;
    lab.shape(Host::Client, Some(LINK))?;
    server::keep_addresses(&lab)?;
    let keys = Keys::make(&lab)?;
    let mut run = Run {
        lab: &lab,
        wire: Wire::start(&lab)?,
        world: World::start(&lab, &keys.lines)?,
        keys,
        random: Random::new(options.seed),
        deck: Vec::new(),
        sums: Sums::default(),
        started: Instant::now(),
    };
    run.world.news();
    while run.started.elapsed() < lasts {
        run.round(wanted)?;
        if options.until_violation && run.sums.violations > 0 {
            break;
        }
    }
    Ok(run.sums)
}

impl Run<'_> {
    fn round(&mut self, wanted: &[Attack]) -> Result<()> {
        if self.deck.is_empty() {
            self.deck = wanted.to_vec();
        }
        let attack = self.deck.swap_remove(self.random.index(self.deck.len()));
        let seconds = self.started.elapsed().as_secs_f64();
        // Nobody to tell is fine.
        let _ = writeln!(io::stderr(), "{seconds:8.1} s  {}", attack.name());
        let crowd = self.crowd()?;
        let flows = self.wait_protected(&crowd);
        self.world.news();
        self.wire.take()?;
        let owner = self.world.owner_of(Program::Own)?;
        let standby = if owner == Host::A { Host::B } else { Host::A };
        let victims = victims(attack, &flows);
        let seen = if attack.is_of_a_server() {
            Seen::listen(self.lab, owner, standby)?
        } else {
            Seen::default()
        };
        let scene = Scene {
            lab: self.lab,
            owner,
            standby,
            flows: &victims,
            seen: &seen,
            keys: &self.keys,
        };
        self.sums.frames += attack.wage(&scene, &mut self.random, SIEGE)?;
        thread::sleep(AFTER);
        // What is done to them by an attack that is possible is no violation.
        let spared = |flow: &FlowKey| attack != Attack::Mirror || !victims.contains(flow);
        let lost = self.lost(&flows.iter().copied().filter(spared).collect::<Vec<_>>());
        let mut news = self.world.news();
        let mut seen = broken(&crowd.connections().concat(), |_| true);
        if attack == Attack::Mirror {
            self.hand_over(owner, standby);
            news.retain(|event| !names_one_of(event, &victims));
            // It is meant.
            let planned = self.world.news().into_iter();
            news.extend(planned.filter(|event| event.event == "standby_left"));
        }
        let report = crowd.finish()?;
        self.sums.attacks += 1;
        self.sums.streams += report.streams();
        self.sums.bytes += report.bytes;
        let ended = report.seats.concat();
        seen.extend(broken(&ended, |flow| spared(flow)));
        seen.extend(self.noticed(&news, |flow| spared(flow))?);
        seen.extend(
            lost.iter()
                .map(|flow| format!("{flow} lost its protection")),
        );
        seen.dedup();
        for what in &seen {
            self.sums.violations += 1;
            say(&format!("violation: {}: {what}", attack.name()))?;
        }
        if !seen.is_empty() {
            let _ = writeln!(io::stderr(), "{}", self.world.story());
        }
        self.world.wait_ready().context(attack.name())
    }

    /// The owner and its standby change places, as planned, with all services that have the
    /// same servers. It may be refused: a connection that was attacked is not protected.
    fn hand_over(&self, owner: Host, standby: Host) {
        let service = Program::Own.service();
        if let Err(error) = self.world.cluster.hand_over(service, owner, standby) {
            let _ = writeln!(io::stderr(), "the services stay: {error:#}");
        }
    }

    /// Clients whose connections are attacked.
    fn crowd(&mut self) -> Result<Crowd> {
        let mut works = WORKS.map(|work| (work, Program::Own.port())).to_vec();
        for program in &self.world.programs {
            works.extend(match program {
                Program::Own => None,
                Program::Nginx => Some((Work::Web, program.port())),
                Program::Redis => Some((Work::Cache, program.port())),
            });
        }
        let works = works.into_iter();
        let paced = works.map(|(work, port)| (work, port, Pace::busy(work)));
        Crowd::seated(self.lab, paced, self.random.next())
    }

    /// Those of its connections that are protected, in the end all.
    fn wait_protected(&self, crowd: &Crowd) -> Vec<FlowKey> {
        let end = Instant::now() + SETTLED;
        loop {
            let all: Vec<_> = crowd.connections().into_iter().flatten().collect();
            let all: Vec<_> = all.iter().filter_map(open).collect();
            let protected = self.protected();
            let (kept, bare): (Vec<_>, Vec<_>) = all
                .into_iter()
                .partition(|flow| protected.contains(&flow.to_string()));
            if bare.is_empty() || Instant::now() > end {
                return kept;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn protected(&self) -> BTreeSet<String> {
        let flows = self.world.flows(None).into_iter();
        flows
            .filter(|flow| flow.protected)
            .map(|flow| flow.flow)
            .collect()
    }

    /// Those that were protected and are not.
    fn lost(&self, flows: &[FlowKey]) -> Vec<String> {
        let protected = self.protected();
        let names = flows.iter().map(ToString::to_string);
        names.filter(|flow| !protected.contains(flow)).collect()
    }

    /// What others than the attacker have noticed.
    fn noticed(
        &self,
        news: &[EventReport],
        counts: impl Fn(&FlowKey) -> bool,
    ) -> Result<Vec<String>> {
        let others = |event: &&EventReport| {
            let flow = event.flow.as_deref();
            NEWS.contains(&event.event.as_str()) && flow.is_none_or(is_of_the_client)
        };
        let told = news.iter().filter(others).map(|event| format!("{event:?}"));
        let mut seen: Vec<_> = told.collect();
        let resets = self.wire.take()?.resets;
        let of_client = resets
            .iter()
            .filter(|reset| is_client(reset.flow.client) && counts(&reset.flow));
        seen.extend(of_client.map(|reset| format!("a RST from {} to {}", reset.from, reset.flow)));
        Ok(seen)
    }
}

/// Connections that have ended otherwise than they should.
fn broken(connections: &[Connection], counts: impl Fn(&FlowKey) -> bool) -> Vec<String> {
    let of_note = connections
        .iter()
        .filter(|it| named(it).is_none_or(|flow| counts(&flow)));
    let broken = of_note.filter_map(|connection| match &connection.end {
        Some((_, Fate::Exact)) | None => None,
        Some((_, fate)) => Some(format!("{connection:?}: {fate:?}")),
    });
    broken.collect()
}

/// For a person; nobody to tell is fine.
fn remark(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Whose connections are attacked: all, or of an attack that can do what it wants every second.
fn victims(attack: Attack, flows: &[FlowKey]) -> Vec<FlowKey> {
    let step = if attack == Attack::Mirror { 2 } else { 1 };
    flows.iter().step_by(step).copied().collect()
}

fn names_one_of(event: &EventReport, flows: &[FlowKey]) -> bool {
    let flow = event.flow.as_deref();
    flow.is_some_and(|named| flows.iter().any(|flow| flow.to_string() == named))
}

fn is_client(end: Endpoint) -> bool {
    let own: [IpAddr; 2] = [Host::Client.v4().into(), Host::Client.v6().into()];
    own.contains(&end.ip())
}

/// As events have it: `client -> service`.
fn is_of_the_client(flow: &str) -> bool {
    let client = flow.split(' ').next().unwrap_or_default();
    client.parse().is_ok_and(is_client)
}

/// The addresses of a connection that has begun and not ended.
fn open(connection: &Connection) -> Option<FlowKey> {
    named(connection).filter(|_| connection.end.is_none())
}

fn named(connection: &Connection) -> Option<FlowKey> {
    Some(FlowKey {
        client: connection.local?.into(),
        service: connection.service.into(),
    })
}
