//! A server that owns a connection, asks b, and is asked by b.

use std::collections::BTreeSet;

use godwit_bpf::{Hook, MARK_SETTLED, Mate as Known, Order, Said as Settled};
use godwit_core::request::{Connection, Input, Mate, Offer, Place, Said, Server, Socket, Verdict};
use godwit_lab::host::Host;
use godwit_wire::TcpFlags;

use super::{B, C, Pair};
use crate::bench::{
    Bench, IRS, ISS, NODES, SHARE, flow_id, from_service, on_bench, tapped, to_service,
};
use crate::transfer::{ACCEPTED, REFUSED, answer, mac, place};
use crate::untimed::crowd;

const ACK: TcpFlags = TcpFlags::ACK;
const DATA: TcpFlags = TcpFlags(TcpFlags::ACK.0 | TcpFlags::PSH.0);
const GET: &[u8] = b"GET /b/x HTTP/1.1\r\nHost: s\r\n\r\n";
const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

const ASK: u8 = 1;

/// Sequences for each family, and steps of one.
const SEQUENCES: u16 = 40;
const STEPS: usize = 40;

/// What is said on one connection.
struct Talk<'a> {
    pair: Pair<'a>,
    port: u16,
    v6: bool,
    /// The next bytes of the client and of the service.
    client: u32,
    service: u32,
    /// The number of the request that has no reply, or of the next one.
    request: u32,
    /// It was said.
    is_said: bool,
    /// The last question, as it went to b.
    question: Option<Vec<u8>>,
    /// Another SYN has come by: something is known of its addresses.
    is_marked: bool,
}

impl<'a> Talk<'a> {
    fn begin(bench: &'a Bench, port: u16, v6: bool, seed: u64) -> Self {
        place(bench, Known::Open(mac(Host::B)));
        let c = Known::Open(mac(Host::C));
        let set = bench.datapath.requests.placing.set_mate(SHARE, NODES[2], c);
        set.expect("there is room");
        bench.connect(port, v6);
        Self {
            pair: Pair::new(bench, flow_id(port, v6), Connection::begun(), seed),
            port,
            v6,
            client: IRS.wrapping_add(1),
            service: ISS + 1,
            request: 1,
            is_said: false,
            question: None,
            is_marked: false,
        }
    }

    fn segment(&self, flags: TcpFlags, payload: &[u8]) -> Vec<u8> {
        to_service(
            self.port,
            self.v6,
            self.client,
            self.service,
            flags,
            payload,
        )
    }

    /// The client's frame, or as b sends it on.
    fn hear(&mut self, said: Said, frame: Vec<u8>) -> Verdict {
        let is_told_apart = self.pair.model.socket != Socket::None || !self.is_marked;
        let by = (self.pair.one_in(4) && is_told_apart).then_some(B);
        let frame = if by.is_some() { tapped(frame) } else { frame };
        self.pair.put(Hook::Tap, Input::Client(said, by), &frame)
    }

    fn request(&mut self) {
        let frame = self.segment(DATA, GET);
        // A request that its server has is not placed a second time.
        self.pair.around.target = (!self.is_said && self.b_serves()).then_some(B);
        let verdict = self.pair.put(
            Hook::Tap,
            Input::Client(Said::Request(self.request), None),
            &frame,
        );
        self.is_said = true;
        if verdict == (Verdict::Ask { by_way: false }) {
            // Once more, for the frame.
            let trial = self.pair.bench.put(Hook::Tap, 0, &frame);
            let slip = &trial.frame[frame.len()..];
            assert_eq!(slip[8..12], self.pair.model.number.to_be_bytes());
            self.question = Some(trial.frame);
        }
    }

    const fn b_serves(&self) -> bool {
        matches!(self.pair.around.mate, Mate::Serves)
    }

    /// Its server replies, and the client has that.
    fn reply(&mut self) {
        let end = self
            .client
            .wrapping_add(u32::try_from(GET.len()).expect("short"));
        let frame = from_service(self.port, self.v6, self.service, end, DATA, REPLY);
        if self.pair.put(Hook::Gate, Input::Own, &frame) == Verdict::Speak {
            self.client = end;
            self.service += u32::try_from(REPLY.len()).expect("short");
            self.request += 1;
            self.is_said = false;
        }
    }

    /// An answer of b's, or of another server's, to that question or to another one.
    fn answered(&mut self) {
        let Some(question) = self.question.clone() else {
            return;
        };
        let accepted = self.pair.one_in(2);
        let offer = Offer {
            number: self.pair.number(),
            request: self.pair.model.request,
        };
        let from = if self.pair.one_in(5) { C } else { B };
        let kind = if accepted { ACCEPTED } else { REFUSED };
        let frame = numbered(answer(&question, kind), offer.number, from);
        let input = if accepted {
            Input::Accepted(offer, from)
        } else {
            Input::Refused(offer, from)
        };
        self.pair.put(Hook::Tap, input, &frame);
    }

    /// The agent hears that b, or another server, remembers nothing of that question.
    fn lapsed(&mut self) {
        let entry = self
            .pair
            .bench
            .datapath
            .requests
            .transfers
            .get(self.pair.flow);
        let Some(mut entry) = entry.expect("it can be read") else {
            return;
        };
        let from = if self.pair.one_in(5) { C } else { B };
        let offer = Offer {
            number: self.pair.number(),
            request: self.pair.model.request,
        };
        entry.number = offer.number;
        entry.to = mac(if from == B { Host::B } else { Host::C });
        let frame = entry.answer(mac(Host::A), self.pair.flow, Settled::Lapsed);
        let frame = frame.expect("of one family");
        let input = Input::Lapse(offer, from);
        self.pair.put_marked(Hook::Tap, MARK_SETTLED, input, &frame);
    }

    /// b offers it.
    fn offered(&mut self) {
        let Some(question) = self.question.clone() else {
            return;
        };
        // Of a connection that is here its client's segment would count as well.
        let here = [Place::Here, Place::Unknown].contains(&self.pair.model.place);
        if here && self.pair.model.socket != Socket::None && !self.is_said {
            return;
        }
        let offer = Offer {
            number: self.pair.number(),
            request: self.pair.model.request,
        };
        let frame = numbered(answer(&question, ASK), offer.number, B);
        self.pair.put(Hook::Tap, Input::Ask(offer), &frame);
    }

    /// What becomes of b.
    fn turn(&mut self) {
        let (mate, known) = match self.pair.noise.below(4) {
            0 => (Mate::Dead, Known::Dead(mac(Host::B))),
            1 => (Mate::Silent, Known::Closed(mac(Host::B))),
            _ => (Mate::Serves, Known::Open(mac(Host::B))),
        };
        self.pair.around.mate = mate;
        place(self.pair.bench, known);
    }

    fn forget(&mut self) {
        let order = self.pair.bench.order_for(self.pair.flow, Order::Forget);
        if order.is_ok() {
            self.pair.judge(Input::Forget);
            if self.pair.model.place == Place::Asked {
                self.pair.await_reminder();
            }
        }
    }

    fn another_syn(&mut self) {
        let seq = IRS.wrapping_add(99);
        let frame = to_service(self.port, self.v6, seq, 0, TcpFlags::SYN, b"");
        let verdict = self.hear(Said::OtherSyn, frame);
        self.is_marked |= verdict == Verdict::Serve(None);
    }

    fn step(&mut self) {
        let asked = self.pair.model.place == Place::Asked;
        match self.pair.noise.below(17) {
            0..=3 => self.request(),
            4 | 5 if self.is_said => self.reply(),
            4..=6 => self.answered(),
            7 | 8 => self.offered(),
            9 => self.turn(),
            10 => {
                let number = self.pair.number();
                self.pair.rule_out(number);
            }
            11 => self.another_syn(),
            12 if asked => {
                let heard = self.service + 5;
                let frame = to_service(self.port, self.v6, self.client, heard, ACK, b"");
                self.hear(Said::AcknowledgesMore, frame);
            }
            13 if asked => {
                let earlier = [b"0123456789", GET].concat();
                let seq = self.client.wrapping_sub(10);
                let frame = to_service(self.port, self.v6, seq, self.service, DATA, &earlier);
                self.hear(Said::Rest(self.pair.model.request), frame);
            }
            14 if self.pair.one_in(4) => self.forget(),
            16 => self.lapsed(),
            _ => {
                let frame = self.segment(ACK, b"");
                self.hear(Said::Other, frame);
            }
        }
        self.pair.compare();
    }
}

/// The frame with another number, of that server.
fn numbered(mut frame: Vec<u8>, number: u32, from: Server) -> Vec<u8> {
    let host = if from == B { Host::B } else { Host::C };
    frame[6..12].copy_from_slice(&mac(host).0);
    let slip = frame.len() - 52;
    frame[slip + 8..slip + 12].copy_from_slice(&number.to_be_bytes());
    frame
}

/// Draws sequences. Where their connections and questions were.
fn draw(bench: &Bench, sequences: u16) -> BTreeSet<Place> {
    let mut seen = BTreeSet::new();
    for (sequence, v6) in (0..sequences).flat_map(|it| [(it, false), (it, true)]) {
        let seed = u64::from(sequence) * 2 + u64::from(v6);
        let mut talk = Talk::begin(bench, 100 + sequence, v6, seed);
        for _ in 0..STEPS {
            if talk.pair.is_late() {
                break;
            }
            talk.step();
            seen.insert(talk.pair.model.place);
        }
    }
    seen
}

#[test]
fn an_owner_does_as_the_model_does() {
    on_bench(|bench| {
        let seen = draw(bench, SEQUENCES);
        let all = [
            Place::Unknown,
            Place::Here,
            Place::Asked,
            Place::Gone,
            Place::Refused,
        ];
        assert!(seen.is_superset(&BTreeSet::from(all)), "{seen:?}");
    });
}

/// The same where the kernel has no memory for the timers of questions.
#[test]
fn an_owner_without_timers_does_as_the_model_does() {
    on_bench(|bench| {
        crowd(bench);
        let seen = draw(bench, SEQUENCES / 2);
        assert!(seen.contains(&Place::Gone), "{seen:?}");
    });
}
