//! The same before a director: three servers that stand by for each other, whose connections go
//! from one to another with their requests.
//!
//! The stranger has the MAC addresses of the director and of the back-ends, and has heard what
//! they say to each other of connections that have moved (mixed slots) and of SYNs. He says it
//! again, and the same with other bits. What anybody else notices is a violation: a wrong byte,
//! a connection that breaks, a RST of one that runs, a role that changes, a standby that leaves,
//! and of the service without rules, whose connections stay where they are, one that is not
//! protected any more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use godwit_wire::FlowKey;

use super::attack::{Attack, Scene};
use super::keys::Keys;
use super::server::{self, Seen};
use super::{AFTER, SIEGE, Sums, broken, named, open, remark};
use crate::capture::Wire;
use crate::chaos::crowd::Crowd;
use crate::chaos::plan::Random;
use crate::chaos::ring::roam;
use crate::chaos::ring::world::{PLAIN, SERVERS, World};
use crate::chaos::seat::{Connection, Fate};
use crate::chaos::{LINK, say};
use crate::host::Host;
use crate::lab::{Lab, LabOptions, Switch, which};

/// What may not be said. Connections that go elsewhere leave their twins behind.
const NEWS: [&str; 4] = [
    "lease_lapsed",
    "role_changed",
    "standby_left",
    "takeover_started",
];

/// Until connections of the service without rules are protected.
const SETTLED: Duration = Duration::from_secs(5);

/// Is that attack tried here?
pub(super) fn tries(attack: Attack) -> bool {
    match attack {
        Attack::Syn
        | Attack::Data
        | Attack::End
        | Attack::Slip
        | Attack::Notes
        | Attack::Replay
        | Attack::Twist
        | Attack::Words => true,
        Attack::Ack
        | Attack::Service
        | Attack::Flood
        | Attack::Callers
        | Attack::Twin
        | Attack::Owner
        | Attack::Mirror
        | Attack::Control
        | Attack::Keys => false,
    }
}

/// Until then, one attack after the other.
pub(super) fn run(seed: u64, wanted: &[Attack], until: Instant, sums: &mut Sums) -> Result<()> {
    if which("nginx").is_none() {
        return say("no attacks before a director: there is no nginx");
    }
    let lab = Lab::new(LabOptions {
        third: true,
        director: true,
        reserve: true,
        witness: true,
        attacker: true,
        switch: Switch::of_seed(seed),
        ..LabOptions::default()
    })?;
    lab.shape(Host::Client, Some(LINK))?;
    server::keep_addresses(&lab)?;
    let wire = Wire::start(&lab)?;
    let mut world = World::start(&lab)?;
    let moves = Arc::default();
    let crowd = roam::start(&lab, seed, &moves)?;
    let mut random = Random::new(!seed);
    wait_protected(&world, &crowd);
    world.news();
    wire.take()?;
    let (mut deck, mut told) = (Vec::new(), BTreeSet::new());
    // Each attack once, however late it is.
    let mut rest = wanted.len();
    while rest > 0 || Instant::now() < until {
        if deck.is_empty() {
            deck = wanted.to_vec();
        }
        let attack = deck.swap_remove(random.index(deck.len()));
        rest = rest.saturating_sub(1);
        let mut seen = round(&mut world, &crowd, &wire, (attack, &mut random), sums)?;
        // A connection that has broken is told of once.
        seen.retain(|what| told.insert(what.clone()));
        for what in &seen {
            sums.violations += 1;
            say(&format!(
                "violation: {} before a director: {what}",
                attack.name()
            ))?;
        }
        if !seen.is_empty() {
            remark(&world.story());
        }
        world.wait_ready().context(attack.name())?;
    }
    let report = crowd.finish()?;
    sums.streams += report.streams();
    sums.bytes += report.bytes;
    let broken = broken(&report.seats.concat(), |_| true);
    for what in broken.into_iter().filter(|it| !told.contains(it)) {
        sums.violations += 1;
        say(&format!("violation: before a director, in the end: {what}"))?;
    }
    Ok(())
}

/// One attack; what others have noticed of it.
fn round(
    world: &mut World<'_>,
    crowd: &Crowd,
    wire: &Wire,
    (attack, random): (Attack, &mut Random),
    sums: &mut Sums,
) -> Result<Vec<String>> {
    remark(&format!("{} before a director", attack.name()));
    let (director, server) = (world.holder(), SERVERS[random.index(SERVERS.len())]);
    let flows = running(crowd);
    let before = protected(world, &flows);
    let seen = if attack.is_of_a_server() {
        Seen::listen(world.lab, director, server)?
    } else {
        Seen::default()
    };
    let keys = Keys::default();
    let scene = Scene {
        lab: world.lab,
        owner: director,
        standby: server,
        flows: &flows,
        seen: &seen,
        keys: &keys,
    };
    sums.frames += attack.wage(&scene, random, SIEGE)?;
    sums.attacks += 1;
    thread::sleep(AFTER);
    let after = protected(world, &flows);
    let open = running(crowd);
    let lost = before
        .difference(&after)
        .filter(|flow| open.iter().any(|it| it.to_string() == **flow));
    let mut noticed: Vec<_> = lost
        .map(|flow| format!("{flow} lost its protection"))
        .collect();
    let news = world.news().into_iter();
    let news = news.filter(|event| NEWS.contains(&event.event.as_str()));
    noticed.extend(news.map(|event| format!("{event:?}")));
    noticed.extend(broken(&crowd.connections().concat(), |_| true));
    // What is said to a client that has closed its connection its kernel refuses.
    let ended = crowd.connections().concat();
    let resets = wire.take()?.resets.into_iter();
    let resets =
        resets.filter(|it| open.contains(&it.flow) || ended.iter().any(|at| is_cut(at, it.flow)));
    noticed.extend(resets.map(|it| format!("a RST from {} to {}", it.from, it.flow)));
    Ok(noticed)
}

/// Is it that connection, and not come to its end in order?
fn is_cut(connection: &Connection, flow: FlowKey) -> bool {
    let end = connection.end.as_ref();
    named(connection) == Some(flow) && end.is_some_and(|(_, fate)| *fate != Fate::Exact)
}

/// Connections that have begun and not ended.
fn running(crowd: &Crowd) -> Vec<FlowKey> {
    let all = crowd.connections().into_iter().flatten();
    all.filter_map(|it| open(&it)).collect()
}

/// Those of the service without rules that are protected.
fn protected(world: &World<'_>, flows: &[FlowKey]) -> BTreeSet<String> {
    let stay = flows.iter().filter(|it| it.service.port == PLAIN.port);
    let stay: BTreeSet<_> = stay.map(ToString::to_string).collect();
    let all = world.flows(None).into_iter().filter(|it| it.protected);
    all.map(|it| it.flow)
        .filter(|it| stay.contains(it))
        .collect()
}

fn wait_protected(world: &World<'_>, crowd: &Crowd) {
    let end = Instant::now() + SETTLED;
    while Instant::now() < end {
        let flows = running(crowd);
        let stay = flows.iter().filter(|it| it.service.port == PLAIN.port);
        let count = stay.count();
        if count > 0 && protected(world, &flows).len() >= count {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}
