//! Forged frames by the thousand, and in a figure by the million: whatever has the addresses
//! and ports of somebody's connection, and not its numbers or a server's keys, leaves that
//! connection as it was, byte for byte. With a stranger's MAC, and with a server's.
//!
//! What is excluded is what TCP itself takes from anybody who guesses right: segments whose
//! sequence number is in the window and whose acknowledgement can be, and a RST with the exact
//! number (RFC 5961). Kernels judge those.

mod books;
mod kinds;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;

use godwit_bpf::{Hook, MARK_SLIP, Mate, Phase};
use godwit_lab::host::Host;
use godwit_wire::{MacAddr, Role, TcpFlags};

use crate::bench::{Bench, DROP, NEXT, REDIRECT, flow_id, from_service, on_bench_of, to_service};
use crate::moves::shadow;
use crate::proof::{proved_by_b, refused_by_b, trust};
use crate::transfer::{PORT, ask, mac, place};

use books::{Books, changed, places};
use kinds::{CLIENT, Guesses, Kind, SERVICE};

/// Where a victim's connection is, seen from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// It is protected: this machine owns it, b has its twin.
    Owner,
    /// Its twin is here, b owns it.
    Standby,
    /// b was asked to have it, and has not answered.
    Asked,
}

/// What frames of one kind may change: the maps in which entries differ afterwards.
type Allowed = &'static [&'static str];

const NOTHING: Allowed = &[];
/// A SYN begins a handshake, of which there may be one beside a connection.
const HANDSHAKE: Allowed = &["gw_half_open"];
/// With its owner's MAC anything may be said to a twin in its client's name: what is mirrored
/// has no tags (SECURITY.md). What is not changed even so is in `a_twin_is_what_it_was`.
const FED: Allowed = &["gw_flows", "gw_log"];

/// Frames of a kind, to whom, and what they may change: of a stranger, and of b.
type Row = (Kind, At, [Allowed; 2]);

const ROWS: [Row; 29] = [
    (Kind::Syn, At::Owner, [HANDSHAKE, HANDSHAKE]),
    (Kind::AckInside, At::Owner, [NOTHING, NOTHING]),
    (Kind::AckOutside, At::Owner, [NOTHING, NOTHING]),
    (Kind::DataInside, At::Owner, [NOTHING, NOTHING]),
    (Kind::DataOutside, At::Owner, [NOTHING, NOTHING]),
    (Kind::Fin, At::Owner, [NOTHING, NOTHING]),
    (Kind::Rst, At::Owner, [NOTHING, NOTHING]),
    (Kind::SynAck, At::Owner, [NOTHING, NOTHING]),
    (Kind::OwnerRst, At::Owner, [NOTHING, NOTHING]),
    (Kind::TwinAck, At::Owner, [NOTHING, NOTHING]),
    (Kind::CanaryAnswer, At::Owner, [NOTHING, NOTHING]),
    (Kind::Syn, At::Standby, [NOTHING, HANDSHAKE]),
    (Kind::AckInside, At::Standby, [NOTHING, FED]),
    (Kind::AckOutside, At::Standby, [NOTHING, FED]),
    (Kind::DataInside, At::Standby, [NOTHING, FED]),
    (Kind::DataOutside, At::Standby, [NOTHING, FED]),
    (Kind::Fin, At::Standby, [NOTHING, FED]),
    (Kind::Rst, At::Standby, [NOTHING, NOTHING]),
    (Kind::SynAck, At::Standby, [NOTHING, NOTHING]),
    (Kind::OwnerRst, At::Standby, [NOTHING, NOTHING]),
    (Kind::OwnerWord, At::Standby, [NOTHING, NOTHING]),
    (Kind::Canary, At::Standby, [NOTHING, NOTHING]),
    (Kind::Syn, At::Asked, [NOTHING, NOTHING]),
    (Kind::Question, At::Asked, [NOTHING, NOTHING]),
    (Kind::Answer, At::Asked, [NOTHING, NOTHING]),
    (Kind::Asked, At::Asked, [NOTHING, NOTHING]),
    (Kind::Note, At::Asked, [NOTHING, NOTHING]),
    (Kind::Load, At::Asked, [NOTHING, NOTHING]),
    (Kind::ProbeAnswer, At::Asked, [NOTHING, NOTHING]),
];

/// After so many frames what is known of the victim is looked at.
const BATCH: u32 = 1000;

/// Port of the victim; canaries come from those below 256.
const VICTIM: u16 = 40_007;

impl At {
    fn port(self) -> u16 {
        match self {
            Self::Owner | Self::Standby => VICTIM,
            Self::Asked => PORT,
        }
    }

    /// A fresh connection there, and tags that are demanded of b.
    fn begin(self, bench: &Bench, v6: bool) {
        let trusts = &bench.datapath.trusts;
        trusts.forget(mac(Host::B)).expect("it is done");
        match self {
            Self::Owner => {
                bench.play(Role::Owner);
                bench.connect(VICTIM, v6);
                trust(bench, true);
                let greeting = proved_by_b(VICTIM, v6, (SERVICE, CLIENT));
                bench.expect(Hook::Tap, "its twin", &greeting, DROP, "twin_ack");
                let data = to_service(VICTIM, v6, CLIENT, SERVICE, TcpFlags::ACK, b"");
                bench.expect(Hook::Tap, "the client", &data, NEXT, "client_segment");
                assert_eq!(bench.flow().phase, Phase::Protected);
            }
            Self::Standby => {
                shadow(bench, VICTIM, v6);
                trust(bench, true);
            }
            Self::Asked => {
                place(bench, Mate::Open(mac(Host::B)));
                trust(bench, true);
                bench.connect(PORT, v6);
                ask(bench, v6);
            }
        }
        let canaries = &bench.datapath.twins.canaries;
        canaries.know_peer(mac(Host::B)).expect("there is room");
    }
}

impl At {
    /// It is over. What was true before is believed now: b says that it will not have it.
    fn end(self, bench: &Bench, v6: bool) {
        if self == Self::Asked {
            let no = refused_by_b(&ask(bench, v6), v6);
            let (_, reasons) = bench.pass(Hook::Tap, &no);
            assert!(reasons.iter().any(|it| it == "refused"), "{reasons:?}");
        }
        let order = bench.order(godwit_bpf::Order::Forget);
        order.expect("it is there");
    }
}

/// What became of frames of one kind.
#[derive(Default)]
struct Outcome {
    frames: u32,
    /// The maps that differ, and how often that was found.
    changed: BTreeMap<&'static str, u32>,
    counted: BTreeMap<String, u64>,
    /// Which bytes of which entries, of those that are there still.
    places: Vec<(&'static str, Vec<usize>)>,
}

/// Sends one frame as the link would bring it.
fn bring(bench: &Bench, frame: &[u8]) {
    let put = |mark, frame: &[u8]| {
        let trial = bench
            .datapath
            .try_marked_frame(Hook::Tap, bench.ifindex, mark, frame);
        trial.expect("the kernel runs it")
    };
    let trial = put(0, frame);
    let is_again = trial.verdict == REDIRECT && trial.frame[..12] == frame[..12];
    // The kernel brings it to the tap once more, as the packet that it is.
    match frame[12..14] {
        [0x88, 0xb6] if is_again => put(MARK_SLIP, &trial.frame),
        [0x88, 0xb5] if is_again => put(ASKED, &trial.frame),
        _ => trial,
    };
}

/// The mark of a SYN that a director asks about, and that has come in once more (`gw_marks.h`).
const ASKED: u32 = 0x6777_000a;

/// Forges so many frames of a kind, as `from`, and looks what has changed.
fn forge(
    bench: &Bench,
    pins: &str,
    (kind, at): (Kind, At),
    from: MacAddr,
    v6: bool,
    frames: u32,
) -> Outcome {
    at.begin(bench, v6);
    let books = Books::of(flow_id(at.port(), v6).key, pins);
    let mut outcome = Outcome {
        frames,
        ..Outcome::default()
    };
    let counts = bench.counts();
    let mut guesses = Guesses(u64::from(v6) << 32 | u64::from(frames));
    let (whole, mut before) = (books.whole(), books.of_victim());
    for _ in 0..frames / BATCH {
        for _ in 0..BATCH {
            bring(
                bench,
                &kinds::frame(kind, at.port(), v6, from, &mut guesses),
            );
        }
        let after = books.of_victim();
        for name in changed(&before, &after) {
            *outcome.changed.entry(name).or_default() += 1;
        }
        before = after;
    }
    let after = books.whole();
    outcome.places = places(&whole, &after);
    for name in changed(&whole, &after) {
        outcome.changed.entry(name).or_insert(1);
    }
    let counted = bench.counts().into_iter().zip(counts);
    let counted = counted.filter(|(now, then)| now.1 > then.1);
    outcome.counted = counted
        .map(|((reason, now), (_, then))| (reason, now - then))
        .collect();
    if at == At::Standby {
        a_twin_is_what_it_was(bench);
    }
    at.end(bench, v6);
    outcome
}

/// Whatever a twin was told in its client's name, it is the twin of the same connection, and
/// says no more to its owner than its kernel has said.
fn a_twin_is_what_it_was(bench: &Bench) {
    let flow = bench.flow();
    assert_eq!(
        (flow.phase, flow.iss.0, flow.birth.0, flow.birth_ack.0),
        (Phase::Twin, SERVICE - 1, CLIENT, SERVICE)
    );
    assert_eq!((flow.snd_nxt.0, flow.rcv_nxt.0), (SERVICE, CLIENT));
}

/// All kinds; a line of the table for each.
fn forge_all(frames: u32) -> Vec<String> {
    let mut lines = Vec::new();
    on_bench_of(|bench, _, pins| {
        for (kind, at, allowed) in ROWS {
            let whose = [Host::Attacker, Host::B];
            for (from, allowed) in whose.into_iter().zip(allowed) {
                let both = [false, true].map(|v6| {
                    let outcome = forge(bench, pins, (kind, at), mac(from), v6, frames / 2);
                    let what = format!("{kind:?} at {at:?} of {from:?}, v6 {v6}");
                    judge(&what, &outcome, allowed);
                    outcome
                });
                lines.push(line((kind, at), from, &both));
            }
        }
    });
    lines
}

fn judge(what: &str, outcome: &Outcome, allowed: Allowed) {
    let names: BTreeSet<_> = outcome.changed.keys().copied().collect();
    let allowed: BTreeSet<_> = allowed.iter().copied().collect();
    assert!(
        names.is_subset(&allowed),
        "{what}: {names:?} changed, {:?}, counted {:?}",
        outcome.places,
        outcome.counted
    );
    let counted: u64 = outcome.counted.values().sum();
    assert!(
        counted >= outcome.frames.into(),
        "{what}: {:?} for {} frames",
        outcome.counted,
        outcome.frames
    );
}

/// `| kind | at | MAC | changed | counted as |`
fn line((kind, at): (Kind, At), from: Host, both: &[Outcome]) -> String {
    let changed: BTreeSet<_> = both.iter().flat_map(|it| it.changed.keys()).collect();
    let changed: Vec<_> = changed
        .into_iter()
        .map(|name| format!("`{name}`"))
        .collect();
    let mut counted = BTreeMap::new();
    for (reason, count) in both.iter().flat_map(|it| &it.counted) {
        *counted.entry(reason).or_insert(0) += count;
    }
    let frames: u32 = both.iter().map(|it| it.frames).sum();
    // What the lab's own machines say meanwhile is counted, too.
    let most = counted
        .into_iter()
        .filter(|(_, count)| *count > u64::from(frames) / 1000);
    let counted: Vec<_> = most.map(|(reason, _)| format!("`{reason}`")).collect();
    let changed = if changed.is_empty() {
        "0".to_owned()
    } else {
        changed.join(", ")
    };
    let whose = if from == Host::B { "server's" } else { "own" };
    format!(
        "| {kind:?} | {at:?} | {whose} | {changed} | {} |",
        counted.join(", ")
    )
}

/// A thousand of each kind and MAC. The same with a million is a figure.
#[test]
fn forged_frames_change_no_connection_of_others() {
    forge_all(2 * BATCH);
}

/// A million of each kind and MAC (docs/benchmarks.md).
#[test]
#[ignore = "takes a quarter of an hour"]
fn a_million_forged_frames_of_each_kind_change_nothing() {
    for line in forge_all(1_000_000) {
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// The other side of it: what the test above looks at does change when a frame is true.
#[test]
fn a_true_frame_of_each_side_is_seen_in_the_books() {
    on_bench_of(|bench, _, pins| {
        for v6 in [false, true] {
            At::Owner.begin(bench, v6);
            let books = Books::of(flow_id(VICTIM, v6).key, pins);
            let before = books.whole();
            let data = to_service(VICTIM, v6, CLIENT, SERVICE, TcpFlags::ACK, b"true");
            bench.expect(Hook::Tap, "data", &data, NEXT, "client_segment");
            assert_eq!(
                changed(&before, &books.whole()),
                BTreeSet::from(["gw_flows", "gw_log"])
            );
            let before = books.whole();
            let end = CLIENT.wrapping_add(4);
            let own = from_service(VICTIM, v6, SERVICE, end, TcpFlags::ACK, b"");
            bench.expect(Hook::Gate, "our ACK", &own, REDIRECT, "held");
            let twin = proved_by_b(VICTIM, v6, (SERVICE, end));
            bench.expect(Hook::Tap, "its twin", &twin, REDIRECT, "twin_ack_forwarded");
            assert_eq!(
                changed(&before, &books.whole()),
                BTreeSet::from(["gw_flows"])
            );
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
        }
    });
}
