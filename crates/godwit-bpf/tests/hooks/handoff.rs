//! Connections that go to another server by themselves: what becomes of their
//! segments, on either side.

use godwit_bpf::{Expiry, HandoffEntry, HandoffNote, Hook, Moves, NotedPlace, Whereabouts};
use godwit_lab::host::{Host, Network, SERVICE_V4, SERVICE_V6};
use godwit_wire::{
    ArpOperation, ArpPacket, FlowEpoch, MacAddr, NeighbourAdvertisement, Role, TcpFlags,
};

use crate::bench::{
    Bench, DROP, IRS, ISS, NEXT, REDIRECT, flow_id, from_service, note, on_bench, sent_on, tapped,
    to_service,
};

const ACK: TcpFlags = TcpFlags::ACK;
const RST: TcpFlags = TcpFlags::RST;
const PORT: u16 = 7;

/// First bytes of the client and of the service.
const CLIENT: u32 = IRS.wrapping_add(1);
const SERVICE: u32 = ISS + 1;

pub(crate) fn set(bench: &Bench, v6: bool, whereabouts: Whereabouts) {
    let entry = HandoffEntry {
        flow: flow_id(PORT, v6),
        whereabouts,
        note: HandoffNote {
            place: NotedPlace::Here,
            arrival: None,
            spent: FlowEpoch(1),
        },
        heard: None,
    };
    let table = &bench.datapath.handoffs;
    table.set(&entry).expect("there is room");
    let read = table.get(entry.flow.key).expect("readable");
    assert_eq!(read, Some(entry));
}

const fn held(runs_at: Option<MacAddr>) -> Whereabouts {
    Whereabouts::Held {
        device: 1,
        runs_at,
        origin: None,
    }
}

/// The same frame, as another server forwards it.
fn forwarded_by(node: Host, mut frame: Vec<u8>) -> Vec<u8> {
    frame[6..12].copy_from_slice(&node.mac(Network::Data).0);
    frame
}

pub(crate) fn remove(bench: &Bench, v6: bool) {
    let key = flow_id(PORT, v6).key;
    bench.datapath.handoffs.remove(key).expect("it is there");
}

/// Segments of both sides: a bare ACK, data, and the reset of a kernel that knows
/// nothing of the connection.
fn words(v6: bool) -> [(Vec<u8>, Vec<u8>); 3] {
    [(ACK, &b""[..]), (ACK, b"data"), (RST, b"")].map(|(flags, data)| {
        (
            to_service(PORT, v6, CLIENT, SERVICE, flags, data),
            from_service(PORT, v6, SERVICE, CLIENT, flags, data),
        )
    })
}

/// What its client sends waits, and nothing is said, whoever says it.
#[test]
fn one_that_is_about_to_come_waits_in_silence() {
    on_bench(|bench| {
        for (moves, v6) in [(Moves::Home, false), (Moves::Guest, true)] {
            bench.own(moves);
            set(bench, v6, held(None));
            for (heard, said) in words(v6) {
                bench.expect(Hook::Tap, "client", &heard, REDIRECT, "held_back");
                for hook in [Hook::Gate, Hook::Guard] {
                    bench.expect(hook, "our kernel", &said, DROP, "not_yet");
                }
            }
            remove(bench, v6);
        }
    });
}

/// One that had left from here needs its client until it is stopped where it is: what
/// waits is a copy. Its server could be waiting for acknowledgements, without which it
/// never came to a place from which it could be moved.
#[test]
fn one_that_is_about_to_come_back_is_still_forwarded() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.own(Moves::Home);
            let to = Host::B.mac(Network::Data);
            set(bench, v6, held(Some(to)));
            for (heard, said) in words(v6) {
                for reason in ["held_back", "sent_on"] {
                    bench.expect(Hook::Tap, "client", &heard, REDIRECT, reason);
                }
                let sent = bench.put(Hook::Tap, 0, &heard).frame;
                assert_eq!(sent[..6], to.0, "to whom");
                assert_eq!(sent[12..], sent_on(&heard, v6, 1), "all but its hops");
                bench.expect(Hook::Gate, "our kernel", &said, DROP, "not_yet");
            }
            remove(bench, v6);
        }
    });
}

/// Behind a director, whoever has sent the segment on to here hears where it is now.
#[test]
fn a_director_is_told_where_one_has_gone() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.own_behind(Moves::Guest);
            let to = Host::B.mac(Network::Data);
            for (heard, _) in words(v6) {
                set(bench, v6, Whereabouts::Away { to, origin: None });
                bench.expect(Hook::Tap, "client", &heard, REDIRECT, "told");
                set(bench, v6, Whereabouts::Away { to, origin: None });
                let heard = forwarded_by(Host::Director, heard);
                let sent = bench.datapath.try_frame(Hook::Tap, bench.ifindex, &heard);
                let sent = sent.expect("the kernel runs it").frame;
                let director = Host::Director.mac(Network::Data);
                assert_eq!(sent[..6], director.0, "to whom");
                assert_eq!(sent[6..12], Host::A.mac(Network::Data).0);
                assert_eq!(sent[12..], note(PORT, v6, to)[12..], "{v6}");
                remove(bench, v6);
            }
        }
    });
}

/// Nobody else is.
#[test]
fn clients_are_told_nothing() {
    on_bench(|bench| {
        bench.own(Moves::Home);
        let to = Host::B.mac(Network::Data);
        set(bench, false, Whereabouts::Away { to, origin: None });
        for (heard, _) in words(false) {
            let (_, reasons) = bench.pass(Hook::Tap, &heard);
            assert!(!reasons.iter().any(|it| it == "told"), "{reasons:?}");
        }
    });
}

/// Its client is forwarded in our own name, whole, and our kernel is not heard.
#[test]
fn one_that_has_left_is_forwarded() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.own(Moves::Home);
            let to = Host::B.mac(Network::Data);
            set(bench, v6, Whereabouts::Away { to, origin: None });
            for (heard, said) in words(v6) {
                bench.expect(Hook::Tap, "client", &heard, REDIRECT, "sent_on");
                let sent = bench.put(Hook::Tap, 0, &heard).frame;
                assert_eq!(sent[..6], to.0, "to whom");
                let own = Host::A.mac(Network::Data);
                assert_eq!(
                    sent[6..12],
                    own.0,
                    "a switch must not learn the client here"
                );
                assert_eq!(sent[12..], sent_on(&heard, v6, 1), "all but its hops");
                // Behind its packet it might have what looks like a server's word there.
                let more = [&heard[..], &[0x5a; 60]].concat();
                let sent = bench.put(Hook::Tap, 0, &more).frame;
                assert_eq!(sent[12..], sent_on(&heard, v6, 1), "but what is behind it");
                let back = tapped(heard);
                bench.expect(Hook::Tap, "a circle", &back, DROP, "sent_back");
                for hook in [Hook::Gate, Hook::Guard] {
                    bench.expect(hook, "our kernel", &said, DROP, "away");
                }
            }
            remove(bench, v6);
        }
    });
}

/// It has gone to b, and from there to c, from which it is to come back: c forwards here
/// what b has forwarded there. To send that on would be a circle without an end, also
/// when it has not come and the agent of c is away. Somebody else may still not know.
#[test]
fn what_comes_back_by_way_of_others_does_not_go_round_again() {
    on_bench(|bench| {
        let [to, c, a] = [Host::B, Host::C, Host::A].map(|host| host.mac(Network::Data));
        for v6 in [false, true] {
            bench.own(Moves::Home);
            let origin = Some(c);
            let coming = Whereabouts::Held {
                device: 1,
                runs_at: Some(to),
                origin,
            };
            set(bench, v6, coming);
            for (heard, _) in words(v6) {
                for host in [Host::B, Host::C] {
                    let back = forwarded_by(host, heard.clone());
                    let (verdict, reasons) = bench.pass(Hook::Tap, &back);
                    assert_eq!(verdict, REDIRECT, "{reasons:?}");
                    assert_eq!(reasons, ["held_back"], "once, and no further");
                }
                bench.expect(Hook::Tap, "client", &heard, REDIRECT, "sent_on");
            }
            set(bench, v6, Whereabouts::Away { to, origin });
            for (heard, _) in words(v6) {
                for host in [Host::B, Host::C] {
                    let back = forwarded_by(host, heard.clone());
                    bench.expect(Hook::Tap, "a circle", &back, DROP, "sent_back");
                }
                bench.expect(Hook::Tap, "client", &heard, REDIRECT, "sent_on");
                let sent = bench.put(Hook::Tap, 0, &heard).frame;
                assert_eq!((&sent[..6], &sent[6..12]), (&to.0[..], &a.0[..]));
            }
            // It came from c, and has left again.
            set(bench, v6, Whereabouts::Away { to, origin: None });
            for (heard, _) in words(v6) {
                let on_its_way = forwarded_by(Host::C, heard);
                bench.expect(Hook::Tap, "a chain", &on_its_way, REDIRECT, "sent_on");
            }
            remove(bench, v6);
        }
    });
}

/// It speaks as if it had always been here, while its share may speak.
#[test]
fn one_that_has_come_speaks_under_the_fence() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.own(Moves::Guest);
            set(bench, v6, Whereabouts::Here);
            for (heard, said) in words(v6) {
                bench.expect(Hook::Tap, "client", &heard, NEXT, "here");
                bench.expect(Hook::Gate, "our kernel", &said, NEXT, "here");
                bench.renew(Expiry::At(1));
                bench.expect(Hook::Gate, "fenced", &said, DROP, "fenced");
                bench.renew(Expiry::Never);
            }
            let stranger = to_service(PORT + 1, v6, CLIENT, SERVICE, ACK, b"data");
            bench.expect(Hook::Tap, "another", &stranger, NEXT, "no_flow");
            remove(bench, v6);
        }
    });
}

/// Its socket may speak before it is whole; what its client sends waits for that.
#[test]
fn one_that_gets_its_socket_speaks_and_is_not_heard() {
    on_bench(|bench| {
        for (moves, v6) in [(Moves::Home, false), (Moves::Guest, true)] {
            bench.own(moves);
            set(bench, v6, Whereabouts::Born { device: 1 });
            for (heard, said) in words(v6) {
                bench.expect(Hook::Tap, "client", &heard, REDIRECT, "held_back");
                bench.expect(Hook::Gate, "our kernel", &said, NEXT, "here");
            }
            remove(bench, v6);
        }
    });
}

/// Entries are for shares whose connections move; with others they are not even
/// looked for.
#[test]
fn a_service_whose_connections_stay_pays_nothing() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.play(Role::Owner);
            set(bench, v6, held(None));
            let [(heard, said), ..] = words(v6);
            bench.expect(Hook::Tap, "client", &heard, NEXT, "no_flow");
            bench.expect(Hook::Gate, "our kernel", &said, NEXT, "no_flow");
            remove(bench, v6);
        }
    });
}

/// The address is that of the server to which new connections come.
#[test]
fn a_guest_does_not_answer_for_the_address() {
    on_bench(|bench| {
        let mac = Host::A.mac(Network::Data);
        let arp = ArpPacket::gratuitous(ArpOperation::Reply, SERVICE_V4, mac).broadcast_frame();
        let advert = NeighbourAdvertisement {
            target: SERVICE_V6,
            mac,
        }
        .multicast_frame();
        for (moves, verdict) in [(Moves::Home, NEXT), (Moves::Guest, DROP)] {
            bench.own(moves);
            for frame in [&arp, &advert] {
                assert_eq!(bench.pass(Hook::Gate, frame).0, verdict, "{moves:?}");
            }
        }
    });
}
