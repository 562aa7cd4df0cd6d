//! Frames with another server's address that are not of it: they have no effect, and are
//! counted (`gw_tag.h`, `gw_proof.h`). This machine is a, number 0, and b is number 1.

#[expect(
    deprecated,
    reason = "it is SipHash-2-4, by which tags are checked here"
)]
use std::hash::{Hasher as _, SipHasher};
use std::io::Write as _;
use std::net::TcpListener;

use godwit_bpf::{Hook, MARK_PROVED, MARK_SLIP, MARK_SPOKEN, Mate, Phase, TagKey, Trust};
use godwit_lab::host::Host;
use godwit_wire::{Role, TagDemand, TcpFlags};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use nix::unistd::read;

use crate::bench::{
    Bench, DROP, IRS, ISS, NEXT, NODES, REDIRECT, SLIP_TYPE, from_service, on_bench, summed,
    to_service, twin,
};
use crate::moves::shadow;
use crate::transfer::{ACCEPTED, PORT, REFUSED, ask, mac, place, request};

const ACK: TcpFlags = TcpFlags::ACK;
const CLIENT: u32 = IRS.wrapping_add(1);
const SERVICE: u32 = ISS + 1;

/// What b tags with, what a tags with, and what b was told earlier.
pub(crate) const THEIRS: TagKey = *b"of b, said by a.";
pub(crate) const OURS: TagKey = *b"of a, said by b.";
pub(crate) const EARLIER: TagKey = *b"of b in the past";

/// How many forgeries a forger tries, of each family.
const TRIES: u64 = 500_000;

/// Of the generation that the fixtures have.
const STAY: u16 = 1;

pub(crate) fn trust(bench: &Bench, demanded: bool) {
    let demanded = if demanded {
        TagDemand::All
    } else {
        TagDemand::Nothing
    };
    trust_as(bench, true, demanded);
}

/// `all`: what b is sent of notes, probes and canaries has tags, too.
pub(crate) fn trust_as(bench: &Bench, all: bool, demanded: TagDemand) {
    let trust = Trust {
        node: NODES[1],
        out: Some(OURS),
        believed: Some(THEIRS),
        before: Some(EARLIER),
        all,
        demanded,
        pending: false,
    };
    let set = bench.datapath.trusts.set(mac(Host::B), &trust);
    set.expect("there is room");
}

pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |all, byte| all << 8 | u64::from(*byte))
}

/// Offset of the TCP header in a frame, and its addresses as they are tagged.
pub(crate) fn parts(frame: &[u8], v6: bool) -> (usize, Vec<u64>) {
    let (tcp, addresses) = if v6 { (54, 22..54) } else { (34, 26..34) };
    let addresses = frame[addresses].chunks(8).map(number);
    (tcp, addresses.collect())
}

/// The tag of whole words.
pub(crate) fn tag(words: &[u64], key: TagKey) -> u64 {
    tag_behind(words, &[], key)
}

fn tag_behind(words: &[u64], rest: &[u8], key: TagKey) -> u64 {
    #[expect(deprecated, reason = "as above")]
    let mut hasher = SipHasher::new_with_keys(number(&key[..8]), number(&key[8..]));
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    hasher.write(&bytes);
    hasher.write(rest);
    hasher.finish()
}

/// The tag of `before` and a segment: numbers, addresses, and seven bytes of the rest.
fn segment_tag(frame: &[u8], v6: bool, mut words: Vec<u64>, key: TagKey) -> u64 {
    let (tcp, addresses) = parts(frame, v6);
    let at = |from: usize, len: usize| number(&frame[tcp + from..tcp + from + len]);
    words.push(at(4, 8));
    words.extend(addresses);
    let rest = at(13, 1) << 48 | at(14, 2) << 32 | at(0, 4);
    tag_behind(&words, &rest.to_le_bytes()[..7], key)
}

/// The same segment with the tag of who has that key; in a generation of its twin, or 0.
fn proved(frame: Vec<u8>, v6: bool, key: TagKey, stay: u16) -> Vec<u8> {
    stamped(frame, v6, (key, stay), (0, 0))
}

/// The same of one with time stamps.
pub(crate) fn stamped(
    mut frame: Vec<u8>,
    v6: bool,
    (key, stay): (TagKey, u16),
    (ts_val, ts_ecr): (u32, u32),
) -> Vec<u8> {
    let (tcp, _) = parts(&frame, v6);
    let time_stamps = vec![u64::from(ts_val) << 32 | u64::from(ts_ecr)];
    let tag = segment_tag(&frame, v6, time_stamps, key);
    let [.., high_a, high_b, low_a, low_b] = tag.to_be_bytes();
    let half = if v6 { 16 } else { 18 };
    frame[half..half + 2].copy_from_slice(&[high_a, high_b]);
    let urgent = u16::from_be_bytes([low_a, low_b]) ^ stay;
    frame[tcp + 18..tcp + 20].copy_from_slice(&urgent.to_be_bytes());
    summed(frame, v6)
}

/// What b's twin says, with its tag.
pub(crate) fn proved_by_b(port: u16, v6: bool, numbers: (u32, u32)) -> Vec<u8> {
    let bare = twin(mac(Host::B), port, v6, numbers, ACK, b"");
    proved(bare, v6, THEIRS, STAY)
}

/// b answers a question with no, and its tag.
pub(crate) fn refused_by_b(question: &[u8], v6: bool) -> Vec<u8> {
    said_by_b(question, v6, (REFUSED, 1), Some(THEIRS))
}

/// Where the slip of a frame begins: behind the packet.
fn slip_at(frame: &[u8], v6: bool) -> usize {
    let length = |at: usize| usize::from(frame[at]) << 8 | usize::from(frame[at + 1]);
    if v6 { 54 + length(18) } else { 14 + length(16) }
}

/// The tag that a slip and its frame have under that key.
fn slip_tag(frame: &[u8], v6: bool, key: TagKey) -> [u8; 8] {
    let (tcp, _) = parts(frame, v6);
    let slip = slip_at(frame, v6);
    let mut words: Vec<u64> = frame[slip..slip + 48].chunks(8).map(number).collect();
    let header = usize::from(frame[tcp + 12] >> 4) * 4;
    let len = u64::try_from(slip - tcp - header).expect("it is short");
    words.push(number(&frame[slip + 48..slip + 52]) << 32 | len);
    segment_tag(frame, v6, words, key).to_be_bytes()
}

/// A frame of b's with our question's slip saying `kind` under `number`; `key`: tagged with that.
fn said_by_b(question: &[u8], v6: bool, (kind, number): (u8, u8), key: Option<TagKey>) -> Vec<u8> {
    let slip = slip_at(question, v6);
    let mut frame = question[..slip + 52].to_vec();
    frame[..6].copy_from_slice(&mac(Host::A).0);
    frame[6..12].copy_from_slice(&mac(Host::B).0);
    frame[slip + 4] = if key.is_some() { 3 } else { 2 };
    frame[slip + 5] = kind;
    frame[slip + 8..slip + 12].copy_from_slice(&[0, 0, 0, number]);
    if let Some(key) = key {
        let tag = slip_tag(&frame, v6, key);
        frame.extend(tag);
    }
    frame
}

fn forged(bench: &Bench, what: &str, frame: &[u8], reason: &str) {
    bench.expect(Hook::Tap, what, frame, DROP, reason);
}

/// The same frame as it comes in the second time, as a packet.
fn unwrapped(mut frame: Vec<u8>, v6: bool) -> Vec<u8> {
    frame[12..14].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[0x08, 0x00] });
    frame
}

fn counted(bench: &Bench, reason: &str) -> u64 {
    let counts = bench.counts().into_iter();
    counts
        .filter(|(name, _)| name == reason)
        .map(|(_, count)| count)
        .sum()
}

/// What is put to b has its tag, and only b's answer to it counts: neither one without a tag,
/// nor with that of another key, nor our own words sent back.
#[test]
fn a_forged_answer_to_a_question_is_none() {
    on_bench(|bench| {
        for v6 in [false, true] {
            place(bench, Mate::Open(mac(Host::B)));
            trust(bench, true);
            bench.connect(PORT, v6);
            let question = ask(bench, v6);
            let slip = slip_at(&question, v6);
            assert_eq!(question[slip + 4], 3, "its version");
            assert_eq!(question[slip + 52..], slip_tag(&question, v6, OURS));
            for kind in [ACCEPTED, REFUSED] {
                let said = |key| said_by_b(&question, v6, (kind, 1), key);
                forged(bench, "without a tag", &said(None), "slip_forged");
                forged(bench, "another key", &said(Some([0; 16])), "slip_forged");
                forged(bench, "sent back", &said(Some(OURS)), "slip_forged");
                let mut other = said(Some(THEIRS));
                other[slip + 11] ^= 1;
                forged(bench, "another number", &other, "slip_forged");
                let mut as_before = unwrapped(said(None), v6);
                as_before[slip + 4] = 1;
                forged(bench, "of long ago", &as_before, "slip_forged");
            }
            bench.expect(Hook::Tap, "again", &request(v6), REDIRECT, "asked");
            let yes = said_by_b(&question, v6, (ACCEPTED, 1), Some(EARLIER));
            bench.expect(Hook::Tap, "b", &yes, NEXT, "accepted");
        }
    });
}

/// However often it is tried: each tag is wrong, and the true answer is heard after that.
#[test]
fn a_million_forged_answers_change_nothing() {
    on_bench(|bench| {
        for v6 in [false, true] {
            place(bench, Mate::Open(mac(Host::B)));
            trust(bench, true);
            bench.connect(PORT, v6);
            let question = ask(bench, v6);
            let yes = said_by_b(&question, v6, (ACCEPTED, 1), Some(THEIRS));
            let tag = yes.len() - 8;
            let right = number(&yes[tag..]);
            let mut frame = unwrapped(yes.clone(), v6);
            let before = counted(bench, "slip_forged");
            for guess in 1..=TRIES {
                // Near the right one, and all over.
                let guess = right
                    ^ if guess % 2 == 0 {
                        guess
                    } else {
                        guess.reverse_bits()
                    };
                frame[tag..].copy_from_slice(&guess.to_be_bytes());
                let trial =
                    bench
                        .datapath
                        .try_marked_frame(Hook::Tap, bench.ifindex, MARK_SLIP, &frame);
                assert_eq!(trial.expect("it runs").verdict, DROP);
            }
            assert_eq!(counted(bench, "slip_forged") - before, TRIES);
            bench.expect(Hook::Tap, "b", &yes, NEXT, "accepted");
        }
    });
}

/// A question makes a socket of the client's segment, so it must be a server's.
#[test]
fn a_forged_question_is_not_answered() {
    on_bench(|bench| {
        for v6 in [false, true] {
            place(bench, Mate::Open(mac(Host::B)));
            trust(bench, true);
            bench.connect(PORT, v6);
            let question = ask(bench, v6);
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
            let listener = TcpListener::bind(if v6 { "[::]:80" } else { "0.0.0.0:80" });
            let _listener = listener.expect("the port is free");
            let put = |number, key| said_by_b(&question, v6, (1, number), key);
            forged(bench, "without a tag", &put(5, None), "slip_forged");
            forged(bench, "another key", &put(5, Some([0; 16])), "slip_forged");
            forged(bench, "sent back", &put(1, Some(OURS)), "slip_forged");
            // A trial has no socket for it; the answer is ours all the same.
            let answer = bench.put(Hook::Tap, 0, &put(5, Some(THEIRS)));
            assert_eq!(
                (answer.verdict, &answer.frame[12..14]),
                (REDIRECT, &SLIP_TYPE[..])
            );
            let slip = slip_at(&answer.frame, v6);
            assert_eq!(answer.frame[slip + 5], REFUSED);
            assert_eq!(answer.frame[slip + 52..], slip_tag(&answer.frame, v6, OURS));
        }
    });
}

/// Of a server that has told no key, or has not said yet that it tags all, words without a tag
/// count as ever; and it is told nothing that it would not understand.
#[test]
fn who_knows_no_tags_is_believed_without() {
    on_bench(|bench| {
        for (v6, is_told) in [(false, false), (true, false), (false, true), (true, true)] {
            place(bench, Mate::Open(mac(Host::B)));
            if is_told {
                trust(bench, false);
            } else {
                bench
                    .datapath
                    .trusts
                    .forget(mac(Host::B))
                    .expect("it is done");
            }
            let port = PORT + u16::from(is_told);
            bench.connect(port, v6);
            let get = b"GET /b/x HTTP/1.1\r\nHost: s\r\n\r\n";
            let frame = to_service(port, v6, CLIENT, SERVICE, ACK.with(TcpFlags::PSH), get);
            let question = bench.put(Hook::Tap, 0, &frame).frame;
            let slip = slip_at(&question, v6);
            let expected = if is_told { (3, 60) } else { (2, 52) };
            assert_eq!((question[slip + 4], question.len() - slip), expected);
            let yes = said_by_b(&question, v6, (ACCEPTED, 1), None);
            bench.expect(Hook::Tap, "b", &yes, NEXT, "accepted");
        }
    });
}

/// A twin's acknowledgement tells a client that its data is safe: nobody else's does.
#[test]
fn a_forged_ack_of_a_twin_is_none() {
    on_bench(|bench| {
        let standby = mac(Host::B);
        for v6 in [false, true] {
            bench.play(Role::Owner);
            trust(bench, false);
            bench.connect(PORT, v6);
            let sent = CLIENT.wrapping_add(100);
            let data = to_service(PORT, v6, CLIENT, SERVICE, ACK, &[7; 100]);
            bench.expect(Hook::Tap, "data", &data, NEXT, "client_segment");
            let early = from_service(PORT, v6, SERVICE, sent, ACK, b"");
            bench.expect(Hook::Gate, "the owner's ACK", &early, REDIRECT, "held");
            trust(bench, true);
            let bare = || twin(standby, PORT, v6, (SERVICE, sent), ACK, b"");
            forged(bench, "without a tag", &bare(), "tag_missing");
            let wrong = |key| proved(bare(), v6, key, STAY);
            forged(bench, "another key", &wrong([0; 16]), "tag_wrong");
            forged(bench, "sent back", &wrong(OURS), "tag_wrong");
            let mut other = proved(bare(), v6, THEIRS, STAY);
            let (tcp, _) = parts(&other, v6);
            other[tcp + 15] ^= 1;
            forged(bench, "another window", &summed(other, v6), "tag_wrong");
            let stale = proved(bare(), v6, THEIRS, STAY + 1);
            forged(bench, "of another stay", &stale, "twin_ack_generation");
            let of_none = proved(bare(), v6, THEIRS, 0);
            forged(bench, "of no stay", &of_none, "twin_ack_generation");
            let true_one = bench.put(Hook::Tap, 0, &proved(bare(), v6, THEIRS, STAY));
            assert_eq!(true_one.verdict, REDIRECT, "the client may be told");
            let half = if v6 { 16 } else { 18 };
            assert_eq!(true_one.frame[half..half + 2], [0, 0], "the tag stays here");
            assert_eq!(true_one.frame[tcp + 18..tcp + 20], [0, 0]);
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
        }
    });
}

/// Before a planned move the owner says what it has, and it ends twins: nobody else does.
#[test]
fn a_forged_word_of_an_owner_is_none() {
    on_bench(|bench| {
        let owner = mac(Host::B);
        for v6 in [false, true] {
            bench.datapath.trusts.forget(owner).expect("it is done");
            shadow(bench, PORT, v6);
            trust(bench, true);
            let said = |flags| twin(owner, PORT, v6, (SERVICE, CLIENT), flags, b"");
            let begins = || {
                twin(
                    owner,
                    PORT,
                    v6,
                    (ISS + 9, CLIENT),
                    ACK.with(TcpFlags::SYN),
                    b"",
                )
            };
            for flags in [ACK, TcpFlags::RST, ACK.with(TcpFlags::RST)] {
                forged(bench, "without a tag", &said(flags), "tag_missing");
                let wrong = proved(said(flags), v6, OURS, 0);
                forged(bench, "another key", &wrong, "tag_wrong");
            }
            forged(bench, "a new connection", &begins(), "tag_missing");
            // What a twin has said before the share has changed hands is no owner's word.
            let late = proved(said(ACK), v6, THEIRS, STAY);
            forged(bench, "of a twin", &late, "turning");
            assert_eq!(bench.flow().phase, Phase::Twin, "it lives");
            let word = proved(said(ACK), v6, THEIRS, 0);
            bench.expect(Hook::Tap, "its word", &word, DROP, "owner_word");
            let reset = proved(said(TcpFlags::RST), v6, EARLIER, 0);
            bench.expect(Hook::Tap, "its end", &reset, NEXT, "twin_reset");
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
        }
    });
}

/// What leaves for the peer in a service's name has its tag, whoever has made it, and nothing
/// else has one.
#[test]
fn what_is_said_to_a_peer_is_tagged() {
    on_bench(|bench| {
        trust(bench, true);
        for v6 in [false, true] {
            for (role, stay) in [(Role::Shadow, STAY), (Role::Owner, 0)] {
                bench.play(role);
                let mut frame = from_service(PORT, v6, SERVICE, CLIENT, ACK, b"");
                frame[..6].copy_from_slice(&mac(Host::B).0);
                let (tcp, _) = parts(&frame, v6);
                frame[tcp + 18..tcp + 20].copy_from_slice(&stay.to_be_bytes());
                let frame = summed(frame, v6);
                let said = bench.put(Hook::Gate, MARK_SPOKEN, &frame);
                assert_eq!(said.verdict, NEXT);
                assert_eq!(said.frame, proved(frame.clone(), v6, OURS, stay));
                if role == Role::Owner {
                    let mut to_client = frame;
                    to_client[..6].copy_from_slice(&mac(Host::Client).0);
                    let said = bench.put(Hook::Gate, MARK_SPOKEN, &to_client);
                    assert_eq!((said.verdict, said.frame), (NEXT, to_client));
                }
            }
        }
    });
}

/// What a twin's server says to the owner, as it leaves, with its stay and its tag.
fn of_twin(v6: bool, numbers: (u32, u32)) -> Vec<u8> {
    let (seq, ack) = numbers;
    let mut frame = from_service(PORT, v6, seq, ack, ACK, b"");
    frame[..6].copy_from_slice(&mac(Host::B).0);
    let (tcp, _) = parts(&frame, v6);
    frame[tcp + 18..tcp + 20].copy_from_slice(&STAY.to_be_bytes());
    proved(summed(frame, v6), v6, OURS, STAY)
}

/// A twin's ACK gets its tag when it is turned to its owner, and leaves as it is. Where its
/// server has become the owner in between it does not.
#[test]
fn a_twins_ack_has_its_tag_before_it_leaves() {
    on_bench(|bench| {
        for v6 in [false, true] {
            let forgotten = bench.datapath.trusts.forget(mac(Host::B));
            forgotten.expect("it is done");
            shadow(bench, PORT, v6);
            trust(bench, true);
            let ack = from_service(PORT, v6, SERVICE, CLIENT, ACK, b"");
            let turned = bench.put(Hook::Gate, 0, &ack);
            assert_eq!(turned.verdict, REDIRECT);
            assert_eq!(turned.frame, of_twin(v6, (SERVICE, CLIENT)), "v6 {v6}");
            let leaves = bench.put(Hook::Gate, MARK_PROVED, &turned.frame);
            assert_eq!((leaves.verdict, &leaves.frame), (NEXT, &turned.frame));
            bench.play(Role::Owner);
            let (verdict, reasons) = bench.pass_marked(Hook::Gate, MARK_PROVED, &turned.frame);
            assert_eq!((verdict, reasons), (DROP, vec!["turning".to_owned()]));
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
        }
    });
}

/// Frames that leave the namespace of the calling thread meanwhile.
fn leaving(work: impl FnOnce()) -> Vec<Vec<u8>> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let all = SockProtocol::EthAll;
    let ears = socket(AddressFamily::Packet, SockType::Raw, flags, all).expect("we are root");
    work();
    let mut buffer = [0; 2000];
    let mut next = || {
        let length = read(&ears, &mut buffer).ok()?;
        Some(buffer[..length].to_vec())
    };
    std::iter::from_fn(&mut next).collect()
}

/// A twin's data stays here, and what it acknowledges goes to the owner as a frame of its own.
#[test]
fn what_is_reported_of_a_twin_is_tagged() {
    on_bench(|bench| {
        for v6 in [false, true] {
            let forgotten = bench.datapath.trusts.forget(mac(Host::B));
            forgotten.expect("it is done");
            shadow(bench, PORT, v6);
            trust(bench, true);
            let acked = CLIENT.wrapping_add(100);
            let data = from_service(PORT, v6, SERVICE, acked, ACK, &[7; 50]);
            let left = leaving(|| {
                let (verdict, reasons) = bench.pass_marked(Hook::Gate, 0, &data);
                assert_eq!(verdict, DROP, "{reasons:?}");
                assert!(reasons.contains(&"reported".to_owned()), "{reasons:?}");
            });
            let to_owner = left.iter().filter(|it| it[..6] == mac(Host::B).0);
            let to_owner: Vec<_> = to_owner.collect();
            let expected = of_twin(v6, (SERVICE, acked));
            assert_eq!(to_owner.len(), 1, "v6 {v6}");
            let (tcp, _) = parts(&expected, v6);
            assert_eq!(to_owner[0][tcp..], expected[tcp..], "v6 {v6}");
            let half = if v6 { 16 } else { 18 };
            assert_eq!(to_owner[0][half..half + 2], expected[half..half + 2]);
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
        }
    });
}

/// What a run takes, in nanoseconds: the mean of the middle half of many, as the clock's
/// steps are long.
fn took(bench: &Bench, hook: Hook, mark: u32, frame: &[u8]) -> f64 {
    let run = || {
        let took = bench
            .datapath
            .time_marked_frame(hook, bench.ifindex, mark, frame);
        took.expect("the kernel runs it").as_nanos()
    };
    let mut all: Vec<_> = (0..4_000).map(|_| run()).collect();
    all.sort_unstable();
    let middle = &all[1_000..3_000];
    middle.iter().sum::<u128>() as f64 / 2_000.0
}

/// Measures a run without tags, with them, and without again, in turns: what tags add, and
/// what nothing adds.
fn compare(bench: &Bench, what: &str, run: impl Fn(bool) -> f64) {
    let b = mac(Host::B);
    let forget = || bench.datapath.trusts.forget(b).expect("it is done");
    let turn = |_| {
        forget();
        let without = run(false);
        trust(bench, true);
        let with = run(true);
        forget();
        let again = run(false);
        [without, with, with - without, again - without]
    };
    let mut turns: Vec<_> = (0..9).map(turn).collect();
    let mut middle = |at: usize| {
        turns.sort_unstable_by(|a, b| a[at].total_cmp(&b[at]));
        turns[4][at]
    };
    let [without, with, added, nothing] = [0, 1, 2, 3].map(&mut middle);
    let _ = writeln!(
        std::io::stderr(),
        "{what}: without {without:.0}, with {with:.0}, added {added:.0} ns; nothing adds {nothing:.0} ns"
    );
}

/// A twin's ACK runs through `gate` twice: as its kernel says it, and as it leaves for its owner.
fn leave(bench: &Bench, frame: &[u8], tagged: bool) -> f64 {
    let mark = if tagged { MARK_PROVED } else { MARK_SPOKEN };
    let turned = bench.put(Hook::Gate, 0, frame);
    assert_eq!(turned.verdict, REDIRECT, "to its owner");
    let leaves = bench.put(Hook::Gate, mark, &turned.frame);
    assert_eq!(leaves.verdict, NEXT);
    took(bench, Hook::Gate, 0, frame) + took(bench, Hook::Gate, mark, &turned.frame)
}

/// How many nanoseconds a frame takes without tags and with them (docs/benchmarks.md).
#[test]
#[ignore = "a measurement, for a machine that does nothing else"]
fn what_tags_cost() {
    on_bench(|bench| {
        let b = mac(Host::B);
        for v6 in [false, true] {
            shadow(bench, PORT, v6);
            let ack = from_service(PORT, v6, SERVICE, CLIENT, ACK, b"");
            let what = format!("v6 {v6}, a twin's ACK leaves");
            compare(bench, &what, |tagged| leave(bench, &ack, tagged));
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
            bench.play(Role::Owner);
            bench.connect(PORT, v6);
            let mut to_b = from_service(PORT, v6, SERVICE, CLIENT, ACK, b"");
            to_b[..6].copy_from_slice(&b.0);
            let what = format!("v6 {v6}, an owner's word leaves");
            compare(bench, &what, |_| {
                took(bench, Hook::Gate, MARK_SPOKEN, &to_b)
            });
            let bare = twin(b, PORT, v6, (SERVICE, CLIENT), ACK, b"");
            let frames = [bare.clone(), proved(bare, v6, THEIRS, STAY)];
            let heard = |tagged: bool| took(bench, Hook::Tap, 0, &frames[usize::from(tagged)]);
            compare(bench, &format!("v6 {v6}, a twin's ACK is heard"), heard);
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
            place(bench, Mate::Open(b));
            bench.connect(PORT, v6);
            let question = ask(bench, v6);
            let stale = |key| unwrapped(said_by_b(&question, v6, (ACCEPTED, 9), key), v6);
            let frames = [stale(None), stale(Some(THEIRS))];
            let slip = |tagged: bool| {
                let frame = &frames[usize::from(tagged)];
                took(bench, Hook::Tap, MARK_SLIP, frame)
            };
            compare(bench, &format!("v6 {v6}, a slip is heard"), slip);
            bench.order(godwit_bpf::Order::Forget).expect("it is there");
        }
    });
}
