//! Decides what a broken connection means.
//!
//! A connection that broke is no violation if its owner had said before that it
//! was not protected, if it was too young to be protected and was reset, or if a request
//! may have taken it to a server in the very moment in which that was taken away. All
//! else that a client can notice is one. What an owner said last dies with it, so
//! the word of the standby counts that it had promised not to serve a connection.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use godwit_wire::Endpoint;

use super::seat::{Connection, Fate};
use super::world::Program;
use crate::cluster::{EventReport, FlowReport};

/// A new flow is protected, or said not to be, 30 ms after its handshake; the
/// rest is for a machine that is slow and for the time that looking takes.
const YOUNG: Duration = Duration::from_millis(150);

/// A connection that a request takes to another server is there without a twin for as
/// long as a record travels; the rest is for a request that waits for a busy machine.
const ON_THE_WAY: Duration = Duration::from_millis(100);

/// What agents said of flows in one round.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Clients whose flows were not protected when the fault came.
    before: BTreeSet<Endpoint>,
    /// And at any time after.
    later: BTreeSet<Endpoint>,
    /// Services whose new owner had been sent away as their standby.
    alone: BTreeSet<String>,
    /// Whether a service was taken over twice: nobody was told before the second
    /// time but by what was said after the fault.
    twice: bool,
    /// When a server was taken away, from before the fault until it was there: who had
    /// just received a connection may have been it.
    taken: Option<(Instant, Instant)>,
}

/// Standbys that their owner has sent away and not admitted again. From then on it
/// protects no connection, and says so of each; of those that come after a look only
/// the standby can bear witness when it dies.
#[derive(Debug, Default)]
pub(super) struct SentAway(BTreeSet<(String, String)>);

/// The verdict over one round.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// One line each.
    pub(super) violations: Vec<String>,
    /// Connections that broke and had been said not to be protected.
    pub(super) told: u64,
    /// Connections that were reset before they were protected.
    pub(super) young: u64,
    /// Connections that were lost on their way to another server.
    pub(super) on_the_way: u64,
    /// Words of owners that had given their service back before they came out of
    /// the queues of their machines.
    pub(super) late: u64,
    /// Words that a queue of the lab kept for longer than it was to, one line each.
    pub(super) stuck: Vec<String>,
}

impl SentAway {
    /// Takes down `events`, those of each node in order. Services that a node which
    /// had been sent away took over.
    pub(super) fn hear(&mut self, events: &[EventReport]) -> BTreeSet<String> {
        let mut alone = BTreeSet::new();
        for event in events {
            let Some(service) = event.service.clone() else {
                continue;
            };
            let standby = (event.node.clone(), service);
            match (event.event.as_str(), event.reason.as_deref()) {
                ("role_changed", Some("dismissed")) => {
                    self.0.insert(standby);
                }
                ("role_changed", Some("admitted")) => {
                    self.0.remove(&standby);
                }
                ("takeover_started", _) if self.0.contains(&standby) => {
                    alone.insert(standby.1);
                }
                _ => {}
            }
        }
        alone
    }
}

impl Said {
    /// Takes down that nobody stood by for the connections of these services.
    pub(super) fn alone(&mut self, services: BTreeSet<String>) {
        self.alone.extend(services);
    }

    /// Takes down that a server was taken away between these moments.
    pub(super) fn taken(&mut self, from: Instant, until: Instant) {
        self.taken = Some((from, until));
    }

    /// Whether a request may have taken the connection to a server that was taken away.
    pub(super) fn is_on_its_way(&self, connection: &Connection) -> bool {
        let Some((from, until)) = self.taken else {
            return false;
        };
        let mut sent_off = connection.sent_off.iter().flatten();
        sent_off.any(|at| *at + ON_THE_WAY > from && *at <= until)
    }

    /// Takes down what was said until the fault came.
    pub(super) fn before(&mut self, flows: &[FlowReport], events: &[EventReport]) {
        self.before
            .extend(unprotected(flows).chain(demoted(events)));
    }

    /// Takes down one look at all flows after the fault.
    pub(super) fn look(&mut self, flows: &[FlowReport]) {
        self.later.extend(unprotected(flows));
    }

    /// Takes down what has happened since that. The fault was at `moment`: some of it
    /// was said before, for a look takes its time and a fault awaits its moment.
    pub(super) fn hear(&mut self, events: &[EventReport], moment: SystemTime) {
        let is_early = |event: &&EventReport| {
            let before = event.seconds_before(moment);
            before.is_some_and(|seconds| seconds > 0.0)
        };
        let early: Vec<_> = events.iter().filter(is_early).cloned().collect();
        self.before.extend(demoted(&early));
        self.later.extend(demoted(events));
        self.before.extend(given_up(events));
        let mut takeovers = BTreeMap::<_, u64>::new();
        for event in events.iter().filter(|e| e.event == "takeover_started") {
            *takeovers.entry(&event.service).or_default() += 1;
        }
        self.twice = takeovers.into_values().any(|count| count > 1);
    }

    /// Whether it was said in time that the connection was not protected.
    pub(super) fn is_told(&self, connection: &Connection, fault: Instant) -> bool {
        let Some(client) = connection.local.map(Endpoint::from) else {
            return false;
        };
        let is_new = connection.opened.is_none_or(|opened| opened > fault);
        let service = Program::at(connection.service.port()).map(Program::service);
        let was_alone = service.is_some_and(|service| self.alone.contains(service));
        if was_alone && !is_new {
            return true;
        }
        self.before.contains(&client) || ((is_new || self.twice) && self.later.contains(&client))
    }
}

/// Clients whose flows their owner calls unprotected.
fn unprotected(flows: &[FlowReport]) -> impl Iterator<Item = Endpoint> {
    let owned = flows.iter().filter(|flow| flow.role == "owner");
    let alone = owned.filter(|flow| !flow.protected && flow.state != "ended");
    alone.filter_map(|flow| client_of(&flow.flow))
}

/// Clients whose flows were demoted.
fn demoted(events: &[EventReport]) -> impl Iterator<Item = Endpoint> {
    let events = events.iter().filter(|event| event.event == "flow_demoted");
    events.filter_map(|event| client_of(event.flow.as_deref()?))
}

/// Clients whose flows a standby had promised not to serve, on request of the owner
/// that it took over from. `events` of each node are in order.
fn given_up(events: &[EventReport]) -> Vec<Endpoint> {
    let mut promised = BTreeMap::<_, Vec<_>>::new();
    let mut clients = Vec::new();
    for event in events {
        let of = (&event.node, &event.service);
        match event.event.as_str() {
            "flow_given_up" => {
                let client = event.flow.as_deref().and_then(client_of);
                promised.entry(of).or_default().extend(client);
            }
            "takeover_started" => clients.extend(promised.remove(&of).unwrap_or_default()),
            _ => {}
        }
    }
    clients
}

impl Verdict {
    /// Judges every connection of a round whose fault came at `fault`.
    pub(super) fn over(seats: &[Vec<Connection>], said: &Said, fault: Instant) -> Self {
        let mut verdict = Self::default();
        for connection in seats.iter().flatten() {
            verdict.judge(connection, said, fault);
        }
        verdict
    }

    /// Judges one of them.
    pub(super) fn judge(&mut self, connection: &Connection, said: &Said, fault: Instant) {
        let (at, what) = match &connection.end {
            Some((_, Fate::Exact)) => return,
            Some((_, Fate::Wrong(what))) => {
                self.violations
                    .push(describe(connection, "wrong bytes", what));
                return;
            }
            Some((at, Fate::Cut(what) | Fate::Dead(what))) => (*at, what),
            None => {
                let what = "its client never ended";
                self.violations.push(describe(connection, "lost", what));
                return;
            }
        };
        if said.is_told(connection, fault) {
            self.told += 1;
            return;
        }
        let was_cut = matches!(connection.end, Some((_, Fate::Cut(_))));
        let age = connection
            .opened
            .map(|opened| fault.max(opened).min(at).duration_since(opened));
        if was_cut && age.is_some_and(|age| age < YOUNG) {
            self.young += 1;
            return;
        }
        if said.is_on_its_way(connection) {
            self.on_the_way += 1;
            return;
        }
        self.violations
            .push(describe(connection, "silently lost", what));
    }
}

fn describe(connection: &Connection, what: &str, detail: &str) -> String {
    let local = connection
        .local
        .map_or_else(|| "?".to_owned(), |local| local.to_string());
    format!(
        "{what}: {} {local} -> {}: {detail}",
        connection.kind, connection.service
    )
}

/// The client's end of `client -> service`.
pub(super) fn client_of(flow: &str) -> Option<Endpoint> {
    flow.split_once(" -> ")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn connection(age: Duration, fate: Fate, fault: Instant) -> Connection {
        Connection {
            kind: "ask",
            service: SocketAddr::from(([10, 9, 0, 100], 80)),
            local: Some(SocketAddr::from(([10, 9, 0, 10], 4711))),
            opened: fault.checked_sub(age),
            end: Some((fault + Duration::from_millis(50), fate)),
            sent_off: [None; 2],
        }
    }

    fn flow(protected: bool) -> FlowReport {
        FlowReport {
            service: String::new(),
            flow: "10.9.0.10:4711 -> 10.9.0.100:80".to_owned(),
            role: "owner".to_owned(),
            state: if protected {
                "protected"
            } else {
                "unprotected"
            }
            .to_owned(),
            protected,
            reason: (!protected).then(|| "standby_lost".to_owned()),
            lag_bytes: None,
            bytes_out: 0,
            at: None,
            reprotect: None,
            protected_again_ms: None,
        }
    }

    fn judged(age_ms: u64, fate: Fate, protected: bool) -> (usize, u64, u64) {
        let fault = Instant::now() + Duration::from_secs(60);
        let mut said = Said::default();
        said.before(&[flow(protected)], &[]);
        // After a takeover every flow is said to be unprotected: too late.
        said.look(&[flow(false)]);
        let one = connection(Duration::from_millis(age_ms), fate, fault);
        let verdict = Verdict::over(&[vec![one]], &said, fault);
        (verdict.violations.len(), verdict.told, verdict.young)
    }

    #[test]
    fn only_what_was_said_before_may_break() {
        let cut = || Fate::Cut("reset".to_owned());
        let dead = || Fate::Dead("silence".to_owned());
        assert_eq!(judged(1000, Fate::Exact, true), (0, 0, 0));
        assert_eq!(judged(1000, cut(), false), (0, 1, 0));
        assert_eq!(judged(1000, dead(), false), (0, 1, 0));
        assert_eq!(judged(1000, cut(), true), (1, 0, 0));
        assert_eq!(judged(10, cut(), true), (0, 0, 1));
        assert_eq!(judged(10, dead(), true), (1, 0, 0), "the young are reset");
    }

    /// Of two requests, the one before the fault may have taken it to who died.
    #[test]
    fn what_a_request_had_just_taken_elsewhere_may_break() {
        let fault = Instant::now() + Duration::from_secs(60);
        let after = Duration::from_millis(30);
        let lost = |ms: [u64; 2], taken: bool| {
            // Half a second before the fault, and so much later.
            let early = fault.checked_sub(Duration::from_millis(500));
            let asked = ms.map(|ms| Some(early? + Duration::from_millis(ms)));
            let one = Connection {
                sent_off: asked,
                ..connection(Duration::from_secs(1), Fate::Cut("reset".to_owned()), fault)
            };
            let mut said = Said::default();
            if taken {
                said.taken(fault, fault + after);
            }
            let verdict = Verdict::over(&[vec![one]], &said, fault);
            (verdict.violations.len(), verdict.on_the_way)
        };
        assert_eq!(lost([100, 480], true), (0, 1));
        assert_eq!(lost([100, 300], true), (1, 0));
        assert_eq!(lost([480, 700], true), (0, 1));
        assert_eq!(lost([100, 520], true), (0, 1), "while it was taken away");
        assert_eq!(lost([100, 600], true), (1, 0));
        assert_eq!(lost([100, 480], false), (1, 0), "no server was");
    }

    /// A fault awaits its moment: what is said while it does is said before.
    #[test]
    fn what_was_demoted_before_the_fault_may_break() {
        let fault = Instant::now() + Duration::from_secs(60);
        let moment = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_375_131);
        let told = |time: &str| {
            let event = EventReport {
                time: time.to_owned(),
                flow: Some(flow(true).flow),
                reason: Some("lagging".to_owned()),
                ..EventReport::of("a", "flow_demoted", Some("web"))
            };
            let mut said = Said::default();
            said.before(&[flow(true)], &[]);
            said.hear(&[event], moment);
            let cut = Fate::Cut("reset".to_owned());
            said.is_told(&connection(Duration::from_secs(1), cut, fault), fault)
        };
        assert!(told("2026-11-22T19:18:50.900000Z"));
        assert!(!told("2026-11-22T19:18:51.100000Z"));
    }

    fn event(node: &str, name: &str) -> EventReport {
        EventReport {
            time: "2026-11-22T19:18:51.100000Z".to_owned(),
            flow: (name == "flow_given_up").then(|| flow(false).flow),
            ..EventReport::of(node, name, Some("web"))
        }
    }

    /// Its owner died a moment after the promise, and could not say it any more.
    #[test]
    fn what_a_standby_had_promised_counts_if_it_took_over() {
        let fault = Instant::now() + Duration::from_secs(60);
        let dead = || Fate::Dead("silence".to_owned());
        let violations = |events: &[EventReport]| {
            let mut said = Said::default();
            said.hear(events, SystemTime::UNIX_EPOCH);
            let one = connection(Duration::from_secs(1), dead(), fault);
            Verdict::over(&[vec![one]], &said, fault).violations.len()
        };
        let (promise, turn) = ("flow_given_up", "takeover_started");
        assert_eq!(violations(&[event("a", promise), event("a", turn)]), 0);
        assert_eq!(violations(&[event("a", promise)]), 1, "its owner lives");
        assert_eq!(violations(&[event("a", promise), event("b", turn)]), 1);
        assert_eq!(violations(&[event("a", turn), event("a", promise)]), 1);
    }

    /// A connection that came after the last look at a dying owner's flows.
    #[test]
    fn who_was_sent_away_stood_by_for_nobody() {
        let fault = Instant::now() + Duration::from_secs(60);
        let because = |node: &str, name: &str, reason: &str| EventReport {
            reason: Some(reason.to_owned()),
            ..event(node, name)
        };
        let dismissed = because("b", "role_changed", "dismissed");
        let admitted = because("b", "role_changed", "admitted");
        let turn = because("b", "takeover_started", "owner_failed");
        let violations = |rounds: &[&[&EventReport]]| {
            let mut sent_away = SentAway::default();
            let mut said = Said::default();
            for round in rounds {
                let events = round.iter().map(|event| (*event).clone());
                said.alone(sent_away.hear(&events.collect::<Vec<_>>()));
            }
            let dead = Fate::Dead("silence".to_owned());
            let one = connection(Duration::from_secs(1), dead, fault);
            Verdict::over(&[vec![one]], &said, fault).violations.len()
        };
        assert_eq!(violations(&[&[&dismissed], &[&turn]]), 0);
        assert_eq!(violations(&[&[&dismissed, &admitted], &[&turn]]), 1);
        assert_eq!(violations(&[&[&turn, &dismissed]]), 1);
        assert_eq!(violations(&[&[&dismissed]]), 1, "its owner lives");
    }

    #[test]
    fn a_wrong_byte_is_never_excused() {
        assert_eq!(
            judged(10, Fate::Wrong("byte 7".to_owned()), false),
            (1, 0, 0)
        );
    }
}
