//! A standby in a ring: its owner c asks b by way of it, and fails.

use std::collections::BTreeSet;

use godwit_bpf::{Hook, Order};
use godwit_core::request::{
    Around, Connection, Input, Mate, Offer, Place, Reason, Said, Socket, Verdict,
};
use godwit_lab::host::Host;
use godwit_wire::{Role, TcpFlags};

use super::{B, C, Pair};
use crate::bench::{Bench, IRS, ISS, flow_id, from_service, to_service};
use crate::ring::{
    ACCEPTED, ASK, PORT, REFUSED, Slip, TWIN, WARD, from, listen, on_ring, request, tap_handshake,
    with_slip,
};

const ACK: TcpFlags = TcpFlags::ACK;
const CLIENT: u32 = IRS.wrapping_add(1);
const SERVICE: u32 = ISS + 1;
/// There is one request: the segment of which its twin was made comes behind it.
const REQUEST: u32 = 1;

/// Sequences for each family, and steps of one.
const SEQUENCES: u64 = 6;
const STEPS: usize = 60;

const STANDS_BY: Around = Around {
    target: None,
    mate: Mate::Serves,
    by_standby: false,
    unwilling: Some(Reason::NotOwner),
    in_place: false,
    twin_is_idle: false,
    ward: Some(C),
    stands_by: true,
};

struct Ward<'a> {
    pair: Pair<'a>,
    v6: bool,
}

impl Ward<'_> {
    fn slip(&mut self, kind: u8, by_way: bool) -> (Slip, Offer) {
        let number = self.pair.number();
        let offer = Offer {
            number,
            request: REQUEST,
        };
        let number = u8::try_from(number).expect("small");
        let (to, from) = if by_way { (2, 3) } else { (0, 0) };
        let slip = Slip {
            kind,
            number,
            to,
            from,
        };
        (slip, offer)
    }

    fn asked_by_way(&mut self) {
        let (slip, offer) = self.slip(ASK, true);
        let frame = with_slip(Host::C, request(self.v6), slip);
        let (from, to) = (C, B);
        self.pair
            .put(Hook::Tap, Input::AskByWay { offer, from, to }, &frame);
    }

    fn answered(&mut self, by_way: bool) {
        let accepted = self.pair.one_in(2);
        let kind = if accepted { ACCEPTED } else { REFUSED };
        let (slip, offer) = self.slip(kind, by_way);
        let frame = with_slip(Host::B, request(self.v6), slip);
        let from = B;
        let input = match (by_way, accepted) {
            (true, _) => Input::AnswerByWay {
                offer,
                from,
                accepted,
            },
            (false, true) => Input::Accepted(offer, from),
            (false, false) => Input::Refused(offer, from),
        };
        self.pair.put(Hook::Tap, input, &frame);
    }

    /// Its owner has got it with a request, as far as that needs no second try.
    fn came(&mut self) {
        let (slip, offer) = self.slip(TWIN, false);
        let it = self.pair.model;
        if it.socket != Socket::None && it.number != offer.number {
            return;
        }
        let frame = with_slip(Host::C, request(self.v6), slip);
        let input = Input::Came(offer, C);
        if it.socket == Socket::Twin && it.place != Place::Unknown {
            self.pair.judge(input);
            self.pair.bench.pass(Hook::Tap, &frame);
        } else if it.socket == Socket::None {
            self.pair.put(Hook::Tap, input, &frame);
        }
    }

    fn fed(&mut self) {
        let frame = from(Host::C, request(self.v6));
        if self.pair.model.socket == Socket::Twin && self.pair.around.stands_by {
            self.pair.judge(Input::Fed(Some(REQUEST)));
            self.pair.bench.pass(Hook::Tap, &frame);
        }
    }

    /// c fails.
    fn take_over(&mut self) {
        if self.pair.around.stands_by {
            self.pair.bench.take_ward_over(WARD, Host::C);
            self.pair.around.stands_by = false;
            self.pair.around.unwilling = Some(Reason::MaterialiseRefused);
            self.pair.judge(Input::TakeOver);
        }
    }

    /// c has its share again.
    fn stand_by(&mut self) {
        if !self.pair.around.stands_by {
            self.pair.bench.play_ward(WARD, Host::C, Role::Shadow);
            self.pair.around = STANDS_BY;
            self.pair.judge(Input::StandBy);
        }
    }

    fn own(&mut self) {
        let frame = from_service(PORT, self.v6, SERVICE, CLIENT, ACK, b"");
        if self.pair.model.place == Place::Asked {
            self.pair.put(Hook::Gate, Input::Own, &frame);
        }
    }

    fn client(&mut self) {
        let it = self.pair.model;
        if it.place == Place::Asked {
            let again = self.pair.one_in(2);
            let (said, frame) = if again {
                (Said::Request(REQUEST), request(self.v6))
            } else {
                (
                    Said::Other,
                    to_service(PORT, self.v6, CLIENT, SERVICE, ACK, b""),
                )
            };
            let verdict = self.pair.put(Hook::Tap, Input::Client(said, None), &frame);
            assert_eq!(verdict == (Verdict::Ask { by_way: false }), again);
        } else if it.socket == Socket::Twin && self.pair.around.stands_by {
            let frame = to_service(PORT, self.v6, CLIENT, SERVICE, ACK, b"");
            self.pair
                .put(Hook::Tap, Input::Client(Said::Other, None), &frame);
        }
    }

    fn forget(&mut self) {
        let orders = &self.pair.bench.datapath.orders;
        if self.pair.around.stands_by && orders.give(WARD, self.pair.flow, Order::Forget).is_ok() {
            self.pair.judge(Input::Forget);
        }
    }

    fn step(&mut self) {
        match self.pair.noise.below(16) {
            0..=2 => self.asked_by_way(),
            3..=5 => self.answered(true),
            6 if !self.pair.around.stands_by => self.answered(false),
            7 => self.came(),
            8 => self.fed(),
            9 => self.take_over(),
            10 => self.stand_by(),
            11 if self.pair.one_in(2) => self.forget(),
            12 | 13 => self.own(),
            _ => self.client(),
        }
        // It looks at the connection, and so sees who owns its share.
        self.pair.rule_out(0);
        self.pair.compare();
    }
}

fn run(bench: &Bench, v6: bool, seed: u64, seen: &mut BTreeSet<Place>) {
    let _server = listen(v6);
    tap_handshake(bench, v6);
    let model = Connection {
        socket: Socket::Twin,
        ..Connection::default()
    };
    let mut pair = Pair::new(bench, flow_id(PORT, v6), model, seed);
    pair.around = STANDS_BY;
    let mut ward = Ward { pair, v6 };
    for _ in 0..STEPS {
        if ward.pair.is_late() {
            break;
        }
        ward.step();
        seen.insert(ward.pair.model.place);
    }
}

#[test]
fn a_standby_does_as_the_model_does() {
    let seen = std::sync::Mutex::new(BTreeSet::new());
    for seed in 0..SEQUENCES {
        on_ring(|bench, v6| {
            let mut seen = seen.lock().expect("nobody has failed");
            run(bench, v6, seed * 2 + u64::from(v6), &mut seen);
        });
    }
    let seen = seen.into_inner().expect("nobody has failed");
    let all = [
        Place::Unknown,
        Place::Here,
        Place::Asked,
        Place::Gone,
        Place::Told,
        Place::Twin,
    ];
    assert!(
        seen.is_empty() || seen.is_superset(&BTreeSet::from(all)),
        "{seen:?}"
    );
}
