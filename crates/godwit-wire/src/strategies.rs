//! Arbitrary values for property tests, shared by the formats.

use core::net::Ipv6Addr;
use std::boxed::Box;
use std::vec::Vec;

use proptest::array::uniform32;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::app::{AppMessage, AppRefusal, CommitRefusal, SnapshotKind, SnapshotPlace, Subject};
use crate::{
    Commit, DigestEntry, DirectorWord, Endpoint, EntryWord, Epoch, FlowEpoch, FlowId, FlowKey,
    FlowMessage, FlowRecord, Generation, GoodbyeReason, HandoffId, HandoffMessage, HandoffRefusal,
    HandoffStep, Heartbeat, Hello, Lease, LeaseDatagram, LeaseMessage, LeaveReason, MacAddr,
    Message, MoveRefusal, MoveStep, Negotiated, NetworkMessage, NodeName, OutputEntry, Party,
    PeerMessage, Question, QuestionWord, Refusal, RejoinMessage, Report, Restore, Role, Said,
    Scope, SeqNumber, ShareClaim, ShareId, SlotWord, SnapshotMessage, SnapshotPart, StandbyMessage,
    Standing, Stay, TagWord, TwinMessage, UnprotectedReason,
};

pub(crate) fn endpoint() -> impl Strategy<Value = Endpoint> {
    let v4 = any::<[u8; 4]>().prop_map(|octets| core::net::Ipv4Addr::from(octets).to_ipv6_mapped());
    let v6 = any::<[u8; 16]>().prop_map(Ipv6Addr::from);
    (prop_oneof![v4, v6], any::<u16>()).prop_map(|(addr, port)| Endpoint::new(addr, port))
}

pub(crate) fn seq() -> impl Strategy<Value = SeqNumber> {
    any::<u32>().prop_map(SeqNumber)
}

pub(crate) fn epoch() -> impl Strategy<Value = Epoch> {
    any::<u64>().prop_map(Epoch)
}

pub(crate) fn flow_id() -> impl Strategy<Value = FlowId> {
    (endpoint(), endpoint(), seq()).prop_map(|(client, service, irs)| FlowId {
        key: FlowKey { client, service },
        irs,
    })
}

pub(crate) fn heartbeat() -> impl Strategy<Value = Heartbeat> {
    let shares = vec(claim(), 0..=Heartbeat::MAX_SHARES);
    (name(), any::<[u64; 3]>(), shares).prop_map(
        |(sender, [incarnation, sequence, sent_ns], shares)| Heartbeat {
            sender,
            incarnation,
            sequence,
            sent_ns,
            shares,
        },
    )
}

pub(crate) fn lease_datagram() -> impl Strategy<Value = LeaseDatagram> {
    (name(), any::<[u64; 4]>(), vec(lease_message(), 0..40)).prop_map(
        |(sender, [incarnation, receiver, sequence, voters], messages)| LeaseDatagram {
            sender,
            incarnation,
            receiver,
            sequence,
            voters,
            messages,
        },
    )
}

pub(crate) fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        hello().prop_map(|hello| Message::Peer(PeerMessage::Hello(hello))),
        claim().prop_map(Message::Claim),
        goodbye(),
        server_lost(),
        planned_move(),
        about_restoring(),
        about_standby(),
        prop_oneof![
            about_flow(),
            handoff(),
            about_snapshots(),
            between_directors(),
            config_lines(),
            about_questions(),
            about_tags(),
            about_places()
        ],
        digest(),
        output(),
    ]
}

fn config_lines() -> impl Strategy<Value = Message> {
    let line = ("[ -~]{0,40}", "[ -~]{0,40}", any::<u64>());
    let line = line.prop_map(|(section, key, value)| crate::ConfigLine {
        section,
        key,
        value,
    });
    vec(line, 0..9).prop_map(|lines| Message::Peer(PeerMessage::ConfigLines(lines)))
}

fn name() -> impl Strategy<Value = NodeName> {
    "[a-zA-Z0-9._-]{1,32}".prop_map(|name| NodeName::new(&name).expect("of the form"))
}

fn claim() -> impl Strategy<Value = ShareClaim> {
    (any::<u32>(), select(Role::ALL), epoch()).prop_map(|(share, role, epoch)| ShareClaim {
        share: ShareId(share),
        role,
        epoch,
    })
}

fn hello() -> impl Strategy<Value = Hello> {
    let keys = (uniform32(any::<u8>()), uniform32(any::<u8>()));
    (name(), any::<u64>(), any::<[u8; 2]>(), keys).prop_map(
        |(name, incarnation, versions, (heartbeat_key, config_digest))| Hello {
            name,
            incarnation,
            min_version: versions[0].min(versions[1]),
            max_version: versions[0].max(versions[1]),
            heartbeat_key,
            config_digest,
        },
    )
}

fn goodbye() -> impl Strategy<Value = Message> {
    select(GoodbyeReason::ALL).prop_map(|reason| Message::Peer(PeerMessage::Goodbye { reason }))
}

fn scope() -> impl Strategy<Value = Scope> {
    (any::<u32>(), epoch(), any::<u32>()).prop_map(|(share, epoch, generation)| Scope {
        share: ShareId(share),
        epoch,
        generation: Generation(generation),
    })
}

fn server_lost() -> impl Strategy<Value = Message> {
    scope().prop_map(|scope| Message::Standby(scope, StandbyMessage::ServerLost))
}

fn planned_move() -> impl Strategy<Value = Message> {
    let step = prop_oneof![
        Just(MoveStep::Prepare),
        any::<u64>().prop_map(|epoch| MoveStep::Ready {
            successor: Epoch(epoch)
        }),
        select(MoveRefusal::ALL).prop_map(|reason| MoveStep::Refused { reason }),
    ];
    (scope(), step).prop_map(|(scope, step)| Message::Move(scope, step))
}

fn about_standby() -> impl Strategy<Value = Message> {
    (scope(), proptest::option::of(select(LeaveReason::ALL))).prop_map(|(scope, left)| match left {
        None => Message::Standby(scope, StandbyMessage::Ready),
        Some(reason) => Message::Standby(scope, StandbyMessage::Left { reason }),
    })
}

fn about_flow() -> impl Strategy<Value = Message> {
    (scope(), flow_id(), select(UnprotectedReason::ALL), 0..3).prop_map(
        |(scope, flow, reason, which)| match which {
            0 => Message::Flow(scope, FlowMessage::Demote { flow, reason }),
            1 => Message::Flow(scope, FlowMessage::Demoted { flow }),
            _ => Message::Flow(scope, FlowMessage::TwinClosed { flow, reason }),
        },
    )
}

fn about_restoring() -> impl Strategy<Value = Message> {
    let input = vec(any::<u8>(), 0..100);
    (scope(), flow_id(), seq(), any::<bool>(), input, 0..4).prop_map(
        |(scope, flow, seq, fin, input, which)| match which {
            0 => Message::Rejoin(
                scope,
                RejoinMessage::Restore(Box::new(restore(flow, seq, fin, input))),
            ),
            1 => Message::Rejoin(
                scope,
                RejoinMessage::Input {
                    flow,
                    seq,
                    fin,
                    input,
                },
            ),
            2 => Message::Rejoin(scope, RejoinMessage::Admit { flow }),
            _ => Message::Rejoin(scope, RejoinMessage::Admitted { flow }),
        },
    )
}

/// Those that carry nothing.
const BARE_STEPS: [HandoffStep; 8] = [
    HandoffStep::Prepare {
        party: Party::ALONE,
    },
    HandoffStep::Ready,
    HandoffStep::Prepared,
    HandoffStep::Commit,
    HandoffStep::Done,
    HandoffStep::Settled,
    HandoffStep::Abort,
    HandoffStep::Over,
];

fn handoff() -> impl Strategy<Value = Message> {
    let bytes = || vec(any::<u8>(), 0..100);
    let step = prop_oneof![
        select(BARE_STEPS.to_vec()),
        (any::<u32>(), 2..=Party::MAX).prop_map(|(number, size)| HandoffStep::Prepare {
            party: Party { number, size },
        }),
        (any::<bool>(), bytes()).prop_map(|(last, part)| HandoffStep::State { last, part }),
        bytes().prop_map(|packet| HandoffStep::Held { packet }),
        select(HandoffRefusal::ALL).prop_map(|reason| HandoffStep::Refused { reason }),
    ];
    (scope(), flow_id(), any::<u32>(), step).prop_map(
        |(Scope { share, epoch, .. }, flow, number, step)| {
            Message::Handoff(HandoffMessage {
                share,
                epoch,
                id: HandoffId {
                    flow,
                    epoch: FlowEpoch(number),
                },
                step,
            })
        },
    )
}

fn between_directors() -> impl Strategy<Value = Message> {
    let number = || proptest::option::of(0..1024_u16);
    let name = select(
        ["a", "b-1"]
            .map(|text| NodeName::new(text).expect("a name"))
            .to_vec(),
    );
    let names = || vec(name.clone(), 0..4);
    let slot = (number(), any::<bool>()).prop_map(|(base, mixed)| SlotWord { base, mixed });
    let entry = (flow_id(), number()).prop_map(|(flow, at)| EntryWord { flow, at });
    let word = prop_oneof![
        Just(DirectorWord::Begin),
        names().prop_map(DirectorWord::Drained),
        (any::<u16>(), any::<u32>(), names(), vec(slot, 0..9)).prop_map(
            |(service, first, backends, slots)| DirectorWord::Slots {
                service,
                first,
                backends,
                slots,
            }
        ),
        (names(), vec(entry, 0..9))
            .prop_map(|(backends, entries)| DirectorWord::Entries { backends, entries }),
        Just(DirectorWord::End),
    ];
    word.prop_map(Message::Director)
}

fn about_questions() -> impl Strategy<Value = Message> {
    (flow_id(), any::<u32>(), select(QuestionWord::ALL.to_vec()))
        .prop_map(|(flow, number, word)| Message::Question(Question { flow, number, word }))
}

fn about_tags() -> impl Strategy<Value = Message> {
    let key = any::<[u8; 16]>().prop_map(TagWord::Key);
    prop_oneof![key, Just(TagWord::Used)]
        .prop_map(|word| Message::Network(NetworkMessage::Tags(word)))
}

fn about_places() -> impl Strategy<Value = Message> {
    any::<[u8; 6]>().prop_map(|mut mac| {
        // One that somebody can have.
        mac[0] = mac[0] & 0xfc | 2;
        Message::Network(NetworkMessage::Place(MacAddr(mac)))
    })
}

fn about_snapshots() -> impl Strategy<Value = Message> {
    let place = (any::<u64>(), any::<u64>(), 0..100_u32);
    let bytes = vec(any::<u8>(), 0..100);
    let commit = proptest::option::of((any::<u64>(), 0..=crate::app::MAX_OUTPUT));
    (scope(), flow_id(), place, bytes, (any::<bool>(), commit)).prop_map(
        |(scope, flow, (read, written, rest), part, (kept, commit))| {
            let commit = commit.map(|(number, output)| Commit { number, output });
            if kept {
                return Message::Snapshot(
                    scope,
                    SnapshotMessage::Kept {
                        flow,
                        commit: commit.map(|commit| commit.number),
                    },
                );
            }
            let length = u32::try_from(part.len()).unwrap_or(0) + rest;
            Message::Snapshot(
                scope,
                SnapshotMessage::Keep {
                    flow,
                    part: SnapshotPart {
                        commit,
                        read,
                        written,
                        length,
                        part,
                    },
                },
            )
        },
    )
}

fn restore(id: FlowId, seq: SeqNumber, fin: bool, input: Vec<u8>) -> Restore {
    Restore {
        record: FlowRecord {
            id,
            iss: seq,
            mss: 1460,
            snd_wscale: 7,
            rcv_wscale: 0,
            negotiated: Negotiated::default(),
            ts_off: seq.0,
            snd_una: seq,
            snd_nxt: seq,
            rcv_nxt: id.irs,
            epoch: Epoch::NONE,
        },
        base: id.irs,
        base_ack: seq,
        snd_edge: seq,
        ts_val: seq.0,
        owner_ts: id.irs.0,
        rtt_us: 1,
        syn_ack_mss: 1440,
        client_mac: MacAddr::ZERO,
        fin,
        input,
    }
}

fn digest() -> impl Strategy<Value = Message> {
    let entry = (flow_id(), seq(), seq(), seq(), any::<bool>()).prop_map(
        |(flow, snd_una, snd_nxt, rcv_nxt, ended)| DigestEntry {
            flow,
            snd_una,
            snd_nxt,
            rcv_nxt,
            ended,
        },
    );
    let entries = vec(entry, 0..20);
    (scope(), entries).prop_map(|(scope, entries): (_, Vec<DigestEntry>)| {
        Message::Twin(scope, TwinMessage::Digest(entries))
    })
}

fn output() -> impl Strategy<Value = Message> {
    let entry = (flow_id(), any::<[u32; 2]>(), any::<bool>()).prop_map(|(flow, [a, b], length)| {
        let said = if length {
            Said::Length {
                rcv_nxt: SeqNumber(a),
                end: SeqNumber(b),
            }
        } else {
            Said::Content { upto: a, sum: b }
        };
        OutputEntry { flow, said }
    });
    (scope(), vec(entry, 0..20))
        .prop_map(|(scope, entries)| Message::Twin(scope, TwinMessage::Output(entries)))
}

fn lease() -> impl Strategy<Value = Lease> {
    let stay = (name(), any::<u32>()).prop_map(|(node, generation)| Stay {
        node,
        generation: Generation(generation),
    });
    let in_sync = vec(stay, 0..=Lease::MAX_IN_SYNC);
    (name(), any::<[u64; 3]>(), in_sync).prop_map(|(holder, [epoch, number, term_ns], in_sync)| {
        Lease {
            holder,
            epoch: Epoch(epoch),
            number,
            term_ns,
            in_sync,
        }
    })
}

fn lease_request() -> impl Strategy<Value = LeaseMessage> {
    let numbers = any::<(u32, u64, u64)>();
    (numbers, lease(), select(Standing::ALL), 0..3).prop_map(
        |((share, epoch, number), lease, standing, which)| {
            let (share, epoch) = (ShareId(share), Epoch(epoch));
            match which {
                0 => LeaseMessage::Prepare {
                    share,
                    epoch,
                    void: Epoch(number),
                },
                1 => LeaseMessage::Propose {
                    share,
                    lease,
                    standing,
                    void: epoch,
                },
                _ => LeaseMessage::Release {
                    share,
                    epoch,
                    number,
                },
            }
        },
    )
}

fn lease_answer() -> impl Strategy<Value = LeaseMessage> {
    let numbers = any::<(u32, u64, u64, u64)>();
    let holder = proptest::option::of(name());
    let last = proptest::option::of((lease(), any::<bool>()));
    (numbers, last, holder, select(Refusal::ALL), 0..3).prop_map(
        |((share, epoch, number, other), last, holder, refusal, which)| {
            let (share, epoch) = (ShareId(share), Epoch(epoch));
            match which {
                0 => LeaseMessage::Promise {
                    share,
                    epoch,
                    last: last.map(|(lease, released)| Report { lease, released }),
                },
                1 => LeaseMessage::Accepted {
                    share,
                    epoch,
                    number,
                },
                _ => LeaseMessage::Refused {
                    share,
                    epoch,
                    number,
                    refusal,
                    by: Epoch(other),
                    holder,
                    remaining_ns: number,
                },
            }
        },
    )
}

fn lease_message() -> impl Strategy<Value = LeaseMessage> {
    prop_oneof![lease_request(), lease_answer()]
}

fn snapshot_place() -> impl Strategy<Value = SnapshotPlace> {
    let kind = select(SnapshotKind::ALL);
    (any::<[u64; 3]>(), 0..=crate::app::MAX_SNAPSHOT, kind).prop_map(
        |([offset, read, written], length, kind)| SnapshotPlace {
            offset,
            length,
            kind,
            read,
            written,
        },
    )
}

pub(crate) fn app_message() -> impl Strategy<Value = AppMessage> {
    let number = any::<u32>;
    let subject = || {
        any::<(u32, u32, u64)>().prop_map(|(request, slot, cookie)| Subject {
            request,
            slot,
            cookie,
        })
    };
    let refusal = || select(HandoffRefusal::ALL);
    let reason = || select(AppRefusal::ALL);
    let outcome = prop_oneof![
        proptest::option::of(snapshot_place()).prop_map(Ok),
        refusal().prop_map(Err),
    ];
    let size = (select(SnapshotKind::ALL), 0..=crate::app::MAX_SNAPSHOT);
    let commits = prop_oneof![
        (subject(), snapshot_place())
            .prop_map(|(subject, place)| AppMessage::Commit { subject, place }),
        (number(), proptest::option::of(select(CommitRefusal::ALL)))
            .prop_map(|(request, refusal)| AppMessage::Committed { request, refusal }),
        Just(AppMessage::Mend),
    ];
    let requests = prop_oneof![
        (subject(), number()).prop_map(|(subject, patience_ms)| AppMessage::Take {
            subject,
            patience_ms
        }),
        (number(), outcome).prop_map(|(request, outcome)| AppMessage::Taken { request, outcome }),
        subject().prop_map(|subject| AppMessage::PutBack { subject }),
        subject().prop_map(|subject| AppMessage::Emigrated { subject }),
        (number(), number(), proptest::option::of(size)).prop_map(|(request, number, snapshot)| {
            AppMessage::Give {
                request,
                number,
                snapshot,
            }
        }),
        (number(), proptest::option::of(refusal()))
            .prop_map(|(request, refusal)| AppMessage::Done { request, refusal }),
    ];
    prop_oneof![
        requests,
        commits,
        any::<(u8, u8, u32, u64)>().prop_map(|(min, max, slots, region)| AppMessage::Hello {
            min,
            max,
            slots,
            region
        }),
        any::<u8>().prop_map(|version| AppMessage::Welcome { version }),
        reason().prop_map(|reason| AppMessage::Refused { reason }),
        number().prop_map(|number| AppMessage::Listen { number }),
        (number(), proptest::option::of(reason()))
            .prop_map(|(number, refusal)| AppMessage::Listening { number, refusal }),
        number().prop_map(|number| AppMessage::Unlisten { number }),
    ]
}
