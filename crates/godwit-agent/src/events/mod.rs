//! `godwit.events/1`: what happened, kept for a while and streamed.
//!
//! The driver publishes; followers of the control socket listen. A follower
//! that is too slow is told how many events it missed, and never slows the
//! driver down.

mod budget;
mod timestamp;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use godwit_core::{Event, Field};
use godwit_wire::ShareId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::broadcast;

use crate::clock;
use crate::clock::ms;
use crate::config::Config;
use crate::logging::{self, EVENTS, EVENTS_OF_FLOWS, Kind};

use budget::{Budget, is_of_flow};
pub use timestamp::rfc3339;

/// The schema's name and version.
pub const SCHEMA: &str = "godwit.events/1";

/// Name of the record that stands for events a follower was too slow for.
pub const LOST: &str = "events_lost";

/// Name of the record that stands for events of which there were too many.
pub const LEFT_OUT: &str = "events_left_out";

/// Events that are remembered: so many of nodes and services, and as many of connections,
/// which push out none of the former. A follower may lag behind as far.
const KEPT: usize = 1024;

/// What is tried again and again until something changes is told once in this time, each try
/// for itself counted: it would push out what led to it.
const AGAIN: Duration = Duration::from_secs(60);

/// Names of such events.
const TRIES: [&str; 5] = [
    "server_missing_hand_over",
    "unfit_hand_over",
    "home_hand_over",
    "move_refused",
    "materialise_failed",
];

/// Fields that say whom an event is about: each has lines of its own in the log.
const SUBJECTS: [&str; 6] = ["peer", "fact", "what", "of", "backend", "to"];

/// How many such tries are told apart.
const TRIED: usize = 64;

/// One event, as a line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventRecord {
    /// [`SCHEMA`].
    pub schema: String,
    /// The node that saw it.
    pub node: String,
    /// When, RFC 3339 in UTC with microseconds.
    pub time: String,
    /// Counts the events of this agent from 1.
    pub sequence: u64,
    /// The stable name.
    pub event: String,
    /// Whether somebody should look at it.
    pub warning: bool,
    /// The service concerned, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// What else there is to say; names that end in `_ms` are milliseconds.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// The events of this agent's life; cheap to clone.
#[derive(Debug, Clone)]
pub struct EventLog {
    node: String,
    services: Arc<BTreeMap<ShareId, String>>,
    state: Arc<Mutex<State>>,
}

/// What of, of which service, how.
type Try = (String, Option<String>, Map<String, Value>);

#[derive(Debug)]
struct State {
    sequence: u64,
    /// Of nodes and services.
    kept: VecDeque<Arc<EventRecord>>,
    /// Of connections.
    of_flows: VecDeque<Arc<EventRecord>>,
    budget: Budget,
    counts: BTreeMap<String, u64>,
    /// Tries, and when each was told last, oldest first.
    tried: VecDeque<(Try, Instant)>,
    followers: broadcast::Sender<Arc<EventRecord>>,
}

/// What a reader of the log gets.
#[derive(Debug)]
pub struct Subscription {
    /// What happened before, oldest first.
    pub past: Vec<Arc<EventRecord>>,
    /// What happens from now on, without a gap.
    pub future: broadcast::Receiver<Arc<EventRecord>>,
}

impl EventLog {
    /// An empty log.
    pub fn new(config: &Config) -> Self {
        let services = config
            .shares()
            .map(|(id, service)| (id, config.share_name(id, service)));
        let (followers, _) = broadcast::channel(KEPT);
        let state = State {
            sequence: 0,
            kept: VecDeque::new(),
            of_flows: VecDeque::new(),
            budget: Budget::default(),
            counts: BTreeMap::new(),
            tried: VecDeque::new(),
            followers,
        };
        Self {
            node: config.node.name.to_string(),
            services: Arc::new(services.collect()),
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// The same log for another life in the same process.
    pub(crate) fn go_on(self, config: &Config) -> Self {
        let fresh = Self::new(config);
        Self {
            state: self.state,
            ..fresh
        }
    }

    /// Records an event of the core, and logs it.
    pub fn publish(&self, event: &Event) {
        let kind = &event.kind;
        let service = kind
            .share()
            .and_then(|share| self.services.get(&share))
            .cloned();
        let fields = kind
            .fields()
            .into_iter()
            .map(|(name, field)| to_json(name, field));
        let age = clock::now().since(event.at);
        let time = SystemTime::now()
            .checked_sub(age)
            .unwrap_or(SystemTime::UNIX_EPOCH);
        self.record(EventRecord {
            schema: SCHEMA.into(),
            node: self.node.clone(),
            time: rfc3339(time),
            sequence: 0,
            event: kind.name().into(),
            warning: kind.is_warning(),
            service,
            fields: fields.collect(),
        });
    }

    /// Records an event of the agent itself.
    pub fn publish_own<'a>(
        &self,
        name: &str,
        warning: bool,
        fields: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) {
        let fields = fields
            .into_iter()
            .map(|(name, text)| (name.to_owned(), Value::from(text)));
        self.record(EventRecord {
            schema: SCHEMA.into(),
            node: self.node.clone(),
            time: rfc3339(SystemTime::now()),
            sequence: 0,
            event: name.into(),
            warning,
            service: None,
            fields: fields.collect(),
        });
    }

    /// What is remembered, and everything from now on.
    pub fn subscribe(&self) -> Subscription {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut past: Vec<_> = state.kept.iter().chain(&state.of_flows).cloned().collect();
        past.sort_unstable_by_key(|record| record.sequence);
        Subscription {
            past,
            future: state.followers.subscribe(),
        }
    }

    /// How often each event has happened since the agent started.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .counts
            .clone()
    }

    /// Tells how many events were left out lately, and of which kind.
    pub(crate) fn sum_up(&self) {
        self.sum_up_at(Instant::now());
    }

    fn sum_up_at(&self, now: Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (event, count) in state.budget.left_out(now) {
            state.tell(EventRecord::left_out(&self.node, &event, count));
        }
    }

    fn record(&self, record: EventRecord) {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state.counts.entry(record.event.clone()).or_default() += 1;
        if state.has_told(&record, now) {
            return;
        }
        if state.budget.admits(&record.event, now) {
            state.tell(record);
        } else {
            *state.counts.entry(LEFT_OUT.into()).or_default() += 1;
        }
    }
}

impl State {
    fn tell(&mut self, mut record: EventRecord) {
        self.sequence += 1;
        record.sequence = self.sequence;
        log(&record);
        let record = Arc::new(record);
        let ring = if is_of_flow(&record.event) {
            &mut self.of_flows
        } else {
            &mut self.kept
        };
        if ring.len() == KEPT {
            ring.pop_front();
        }
        ring.push_back(record.clone());
        // Nobody follows: fine.
        let _ = self.followers.send(record);
    }

    /// Whether the same try was told a moment ago.
    fn has_told(&mut self, record: &EventRecord, now: Instant) -> bool {
        if !TRIES.contains(&record.event.as_str()) {
            return false;
        }
        let age = |at: &Instant| now.duration_since(*at);
        self.tried.retain(|(_, at)| age(at) < AGAIN);
        let parts = (&record.event, &record.service, &record.fields);
        if self.tried.iter().any(|((a, b, c), _)| (a, b, c) == parts) {
            return true;
        }
        if self.tried.len() == TRIED {
            self.tried.pop_front();
        }
        let (event, service, fields) = parts;
        let this = (event.clone(), service.clone(), fields.clone());
        self.tried.push_back((this, now));
        false
    }
}

impl EventRecord {
    /// Stands for events that a follower was too slow for.
    pub fn lost(node: &str, count: u64) -> Self {
        Self::instead(node, LOST, [("count", Value::from(count))])
    }

    /// Stands for events of a kind of which there were too many.
    fn left_out(node: &str, event: &str, count: u64) -> Self {
        let fields = [("of", Value::from(event)), ("count", Value::from(count))];
        Self::instead(node, LEFT_OUT, fields)
    }

    fn instead<const N: usize>(node: &str, event: &str, fields: [(&str, Value); N]) -> Self {
        let fields = fields.map(|(name, value)| (name.to_owned(), value));
        Self {
            schema: SCHEMA.into(),
            node: node.into(),
            time: rfc3339(SystemTime::now()),
            sequence: 0,
            event: event.into(),
            warning: true,
            service: None,
            fields: fields.into_iter().collect(),
        }
    }

    /// What its lines in the log have a budget by.
    fn kind(&self) -> Kind {
        let named = SUBJECTS.iter().filter_map(|name| self.fields.get(*name));
        let named = named.filter_map(Value::as_str);
        let whom: Vec<_> = self.service.as_deref().into_iter().chain(named).collect();
        Kind {
            what: self.event.clone(),
            whom: whom.join(" "),
        }
    }

    /// The fields as `name=value`, for people.
    pub fn details(&self) -> String {
        let service = self
            .service
            .iter()
            .map(|service| format!("service={service}"));
        let fields = self
            .fields
            .iter()
            .map(|(name, value)| match value.as_str() {
                Some(text) if text.contains(' ') => format!("{name}={text:?}"),
                Some(text) => format!("{name}={text}"),
                None => format!("{name}={value}"),
            });
        service.chain(fields).collect::<Vec<_>>().join(" ")
    }
}

/// One line per state change; the field names are those of the schema.
fn log(record: &EventRecord) {
    let (event, mut details) = (&record.event, record.details());
    let rate = if is_of_flow(event) {
        EVENTS_OF_FLOWS
    } else {
        EVENTS
    };
    match logging::may_log(record.kind(), rate, &|| event.clone()) {
        None => return,
        Some(0) => {}
        Some(left_out) => details += &format!(" left_out={left_out}"),
    }
    if record.warning {
        tracing::warn!("{event} {details}");
    } else {
        tracing::info!("{event} {details}");
    }
}

fn to_json(name: &str, field: Field) -> (String, Value) {
    match field {
        Field::Text(text) => (name.into(), Value::from(text)),
        Field::Count(count) => (name.into(), Value::from(count)),
        Field::Span(span) => (format!("{name}_ms"), Value::from(ms(span))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pair;

    fn told(log: &EventLog) -> usize {
        log.subscribe().past.len()
    }

    #[test]
    fn a_try_is_told_once_and_counted_each_time() {
        let pair = Pair::new();
        let log = EventLog::new(&pair.a);
        let refused = |reason: &str| log.publish_own("move_refused", true, [("reason", reason)]);
        for _ in 0..100 {
            refused("unprotected");
        }
        assert_eq!(told(&log), 1);
        assert_eq!(log.counts().get("move_refused"), Some(&100));
        refused("target_down");
        log.publish_own("share_moved", false, [("to", "b")]);
        log.publish_own("share_moved", false, [("to", "b")]);
        assert_eq!(told(&log), 4, "what else is new, and what happens twice");
        for number in 0..2 * TRIED {
            refused(&number.to_string());
        }
        refused("unprotected");
        assert_eq!(told(&log), 4 + 2 * TRIED + 1, "it is bounded");
        let mut state = log.state.lock().expect("nobody panics");
        let record = state.kept.back().cloned().expect("there is one");
        let now = Instant::now();
        assert!(state.has_told(&record, now));
        assert!(!state.has_told(&record, now + AGAIN), "a minute later");
    }

    /// However many connections clients lose: what happened to nodes stays in the history, and
    /// how much was not told is.
    #[test]
    fn what_clients_cause_pushes_out_no_change_of_role() {
        let pair = Pair::new();
        let log = EventLog::new(&pair.a);
        log.publish_own("role_changed", false, [("state", "owner")]);
        for number in 0..5000 {
            let number = number.to_string();
            log.publish_own("flow_demoted", true, [("flow", number.as_str())]);
            log.publish_own("flow_stayed", true, [("flow", number.as_str())]);
        }
        log.sum_up_at(Instant::now() + budget::SUM_UP);
        log.sum_up_at(Instant::now() + budget::SUM_UP);
        let past = log.subscribe().past;
        assert_eq!(past[0].event, "role_changed");
        assert!(past.is_sorted_by_key(|it| it.sequence));
        let of = |name: &str| past.iter().filter(|it| it.event == name).count();
        assert_eq!(past.len(), 1 + KEPT + 1, "the latest of flows");
        assert!(of("flow_demoted") < of("flow_stayed"));
        assert_eq!(of(LEFT_OUT), 1, "said once");
        let counts = log.counts();
        assert_eq!(counts.get("flow_demoted"), Some(&5000));
        let left_out = past.last().expect("the last").fields.clone();
        assert_eq!(left_out.get("of"), Some(&Value::from("flow_demoted")));
        let number = left_out.get("count").and_then(Value::as_u64);
        assert_eq!(number, counts.get(LEFT_OUT).copied());
        assert!(number.is_some_and(|it| (4000..5000).contains(&it)));
    }

    /// Numbers are no part of it.
    #[test]
    fn lines_have_a_budget_by_event_and_whom_it_is_about() {
        let record = |service: Option<&str>, fields: &[(&str, Value)]| {
            let mut record = EventRecord::instead("a", "peer_down", []);
            record.service = service.map(str::to_owned);
            let fields = fields.iter().cloned();
            record.fields = fields.map(|(name, it)| (name.to_owned(), it)).collect();
            record.kind()
        };
        let after = |peer: &str, ms: u64| {
            record(
                None,
                &[("peer", peer.into()), ("silent_for_ms", Value::from(ms))],
            )
        };
        assert_eq!(after("b", 61), after("b", 62));
        assert_ne!(after("b", 61), after("c", 61));
        assert_ne!(record(Some("web"), &[]), record(Some("shop"), &[]));
    }

    #[test]
    fn the_log_goes_on_in_another_life_of_the_process() {
        let pair = Pair::new();
        let log = EventLog::new(&pair.a);
        log.publish_own("share_moved", false, [("to", "b")]);
        let next = log.go_on(&pair.a);
        next.publish_own("share_moved", false, [("to", "a")]);
        let sequence = next
            .subscribe()
            .past
            .iter()
            .map(|it| it.sequence)
            .collect::<Vec<_>>();
        assert_eq!(sequence, [1, 2]);
    }
}
