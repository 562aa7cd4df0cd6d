//! Births and ends of a flow, where two CPUs or two machines may be early.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use godwit_bpf::{FlowState, Hook, Keepers, Order, OrderError, Phase, Record};
use godwit_lab::Lab;
use godwit_lab::host::{Host, Network, SERVICE_V4, SERVICE_V6};
use godwit_sock::{FrameSender, Interface};
use godwit_wire::{Endpoint, Role, TcpFlags, UnprotectedReason};

use crate::bench::{
    Bench, DROP, IRS, ISS, NEXT, WND, flow_id, from_service, mirrored, on_bench, on_bench_of,
    tapped, to_service, twin,
};
use crate::wait::until;

const ACK: TcpFlags = TcpFlags::ACK;
const DATA: [u8; 100] = [7; 100];

/// With a tap that the network makes, the twin may have the client's segment
/// first: its acknowledgement counts, and nobody waits for another one.
#[test]
fn a_twin_may_be_faster_than_its_owner() {
    on_bench(|bench| {
        let standby = Host::B.mac(Network::Data);
        for v6 in [false, true] {
            bench.connect(7, v6);
            let (next, sent) = (IRS.wrapping_add(1), IRS.wrapping_add(101));
            let first = twin(standby, 7, v6, (ISS + 1, sent), ACK, b"");
            bench.expect(Hook::Tap, "the twin's ACK", &first, DROP, "twin_ack");
            let data = to_service(7, v6, next, ISS + 1, ACK, &DATA);
            bench.expect(Hook::Tap, "data", &data, NEXT, "client_segment");
            let own = from_service(7, v6, ISS + 1, sent, ACK, b"");
            bench.expect(Hook::Gate, "the owner's ACK", &own, NEXT, "spoken");
        }
    });
}

/// Both FINs and their ACKs, after the standby was lost: the flow is over, what
/// the twin held at the end does not matter.
#[test]
fn a_flow_that_lost_its_standby_ends() {
    on_bench(|bench| {
        bench.connect(7, false);
        bench.lose_standby();
        close(bench);
        assert_eq!(bench.flow().phase, Phase::Ended);
    });
}

/// Both sides have closed, and the twin has not said that it has the client's FIN: the
/// client is told when the flow is let go, and no segment comes that ends it.
#[test]
fn a_flow_that_is_let_go_behind_its_end_is_through() {
    on_bench(|bench| {
        bench.connect(7, false);
        assert!(!bench.flow().through);
        let (next, fin) = (IRS.wrapping_add(1), TcpFlags::FIN.with(ACK));
        let client_fin = to_service(7, false, next, ISS + 1, fin, b"");
        bench.pass(Hook::Tap, &client_fin);
        let own_fin = from_service(7, false, ISS + 1, next.wrapping_add(1), fin, b"");
        bench.pass(Hook::Gate, &own_fin);
        let last = to_service(7, false, next.wrapping_add(1), ISS + 2, ACK, b"");
        bench.pass(Hook::Tap, &last);
        let held = bench.flow();
        assert!(held.through && held.is_held(), "{held:?}");
        assert_eq!(held.phase, Phase::Confirming);
        let reason = UnprotectedReason::NotConfirmed;
        bench.order(Order::Ungate(reason)).expect("it is there");
        assert!(bench.flow().through);
        bench.order(Order::End).expect("it is there");
        assert_eq!(bench.flow().phase, Phase::Ended);
    });
}

/// A kernel that has no socket any more says so with a RST without an acknowledgement, and a
/// kernel that gets it looks at its sequence number alone (RFC 5961 section 3.2).
#[test]
fn a_reset_counts_whatever_it_acknowledges() {
    on_bench(|bench| {
        let next = IRS.wrapping_add(1);
        for v6 in [false, true] {
            for (flags, ack) in [
                (TcpFlags::RST, 0),
                (TcpFlags::RST, ISS + 1000),
                (TcpFlags::RST.with(ACK), ISS + 1000),
            ] {
                bench.connect(7, v6);
                let reset = to_service(7, v6, next, ack, flags, b"");
                bench.expect(Hook::Tap, "RST", &reset, NEXT, "client_rst");
                assert_eq!(bench.flow().phase, Phase::Ended, "{ack}");
                bench.order(Order::Forget).expect("it is there");
            }
        }
    });
}

/// What the books can't place the kernel may: the agent is told, and asks it. Not of what is
/// beyond the window, nor as often as anybody likes.
#[test]
fn of_a_reset_that_is_not_exact_the_agent_is_told() {
    on_bench(|bench| {
        let told = || {
            let records = bench.events.wait(Duration::from_millis(50)).into_iter();
            let told = records.filter(|it| matches!(it, Record::Reset(_)));
            told.count()
        };
        for v6 in [false, true] {
            bench.connect(7, v6);
            told();
            let reset = |seq: u32| to_service(7, v6, seq, 0, TcpFlags::RST, b"");
            let (before, edge) = (IRS, IRS.wrapping_add(2 + u32::from(WND)));
            for beyond in [before.wrapping_sub(1), edge] {
                bench.expect(Hook::Tap, "RST", &reset(beyond), NEXT, "client_rst");
            }
            assert_eq!(told(), 0, "beyond the window");
            for _ in 0..50 {
                bench.expect(Hook::Tap, "RST", &reset(before), NEXT, "client_rst");
            }
            assert!((1..=2).contains(&told()), "once in a second");
            assert_ne!(bench.flow().phase, Phase::Ended);
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

/// The agent's order may come when the connection is already over.
#[test]
fn an_order_does_not_revive_what_is_over() {
    on_bench(|bench| {
        bench.connect(7, false);
        let reset = to_service(7, false, IRS.wrapping_add(1), ISS + 1, TcpFlags::RST, b"");
        bench.expect(Hook::Tap, "RST", &reset, NEXT, "client_rst");
        let late = bench.order(Order::Ungate(UnprotectedReason::NotConfirmed));
        assert!(matches!(late, Err(OrderError::NoFlow)), "{late:?}");
        assert_eq!(bench.flow().phase, Phase::Ended);
    });
}

/// The first two segments of a handshake, as the standby has them.
fn tap_half(bench: &Bench, port: u16, v6: bool) {
    let syn = tapped(to_service(port, v6, IRS, 0, TcpFlags::SYN, b""));
    bench.expect(Hook::Tap, "SYN", &syn, DROP, "tapped_syn");
    let (next, both) = (IRS.wrapping_add(1), TcpFlags::SYN.with(ACK));
    let standby = Host::B.mac(Network::Data);
    let syn_ack = twin(standby, port, v6, (ISS, next), both, b"");
    bench.expect(Hook::Tap, "SYN-ACK", &syn_ack, DROP, "tapped_syn_ack");
}

/// The third.
fn third(port: u16, v6: bool) -> Vec<u8> {
    tapped(to_service(port, v6, IRS.wrapping_add(1), ISS + 1, ACK, b""))
}

/// The standby had promised not to serve a flow that it had no twin of, and the
/// handshake came late: the twin that it made could not be told from a whole one.
#[test]
fn a_twin_that_is_born_after_its_flow_was_let_go_is_not_served() {
    on_bench(|bench| {
        bench.play(Role::Shadow);
        for (port, v6) in [(7, false), (8, true)] {
            let flow = flow_id(port, v6);
            let marked = bench.order_for(flow, Order::NotInSync(UnprotectedReason::NotConfirmed));
            assert!(marked.is_ok(), "{marked:?}");
            tap_half(bench, port, v6);
            bench.pass(Hook::Tap, &third(port, v6));
            let born = bench.flows().get(flow.key).expect("the map can be read");
            assert!(born.is_some_and(|flow| flow.twin && flow.not_in_sync));
        }
    });
}

/// Anybody can send a SYN with the addresses and ports of a connection that the standby has
/// promised not to serve. The promise stays, and so does what a takeover tells its client.
#[test]
fn a_forged_syn_takes_no_promise_back() {
    on_bench(|bench| {
        bench.play(Role::Shadow);
        for (port, v6, promise_first) in [
            (7, false, true),
            (8, true, true),
            (9, false, false),
            (10, true, false),
        ] {
            let flow = flow_id(port, v6);
            let syn = |irs: u32| tapped(to_service(port, v6, irs, 0, TcpFlags::SYN, b""));
            let promise = || {
                let order = Order::NotInSync(UnprotectedReason::NotConfirmed);
                bench.order_for(flow, order).expect("it is marked");
            };
            if promise_first {
                promise();
            }
            for other in [1 << 28, 1 << 29] {
                let forged = syn(IRS.wrapping_add(other));
                bench.expect(Hook::Tap, "SYN", &forged, DROP, "tapped_syn");
            }
            if !promise_first {
                promise();
            }
            let waiting = bench.datapath.half_open.waiting().expect("it can be read");
            let told = waiting
                .iter()
                .filter(|it| it.key == flow.key && it.given_up);
            assert_eq!(told.map(|it| it.irs).collect::<Vec<_>>(), [flow.irs]);
            tap_half(bench, port, v6);
            bench.pass(Hook::Tap, &third(port, v6));
            let born = bench.flows().get(flow.key).expect("the map can be read");
            assert!(born.is_some_and(|flow| flow.twin && flow.not_in_sync));
        }
    });
}

/// A handshake that the network delivers again when its connection is over: the
/// twin that it made had nothing, and would have been served.
#[test]
fn a_late_handshake_makes_no_second_twin() {
    on_bench(|bench| {
        bench.play(Role::Shadow);
        for (port, v6) in [(7, false), (8, true)] {
            tap_half(bench, port, v6);
            bench.pass(Hook::Tap, &third(port, v6));
            let flow = flow_id(port, v6);
            let phase = || {
                let found = bench.flows().get(flow.key);
                found.expect("the map can be read").map(|flow| flow.phase)
            };
            assert_eq!(phase(), Some(Phase::Twin));
            bench.order_for(flow, Order::End).expect("it is there");
            tap_half(bench, port, v6);
            bench.pass(Hook::Tap, &third(port, v6));
            assert_eq!(phase(), Some(Phase::Ended));
        }
    });
}

/// The handshake of an earlier connection with the same addresses comes late: the
/// twin of the later one was reset for it, and its owner went on counting on it.
#[test]
fn a_late_handshake_ends_no_later_twin() {
    on_bench(|bench| {
        bench.play(Role::Shadow);
        let standby = Host::B.mac(Network::Data);
        let both = TcpFlags::SYN.with(ACK);
        for (port, v6) in [(7, false), (8, true)] {
            let handshake = |irs: u32, iss, answer: (i32, &str)| {
                let syn = tapped(to_service(port, v6, irs, 0, TcpFlags::SYN, b""));
                bench.expect(Hook::Tap, "SYN", &syn, DROP, "tapped_syn");
                let next = irs.wrapping_add(1);
                let syn_ack = twin(standby, port, v6, (iss, next), both, b"");
                bench.expect(Hook::Tap, "SYN-ACK", &syn_ack, answer.0, answer.1);
            };
            // The numbers wrap in between.
            let (late, now) = (IRS, IRS.wrapping_add(100_000));
            handshake(now, ISS, (DROP, "tapped_syn_ack"));
            let third = to_service(port, v6, now.wrapping_add(1), ISS + 1, ACK, b"");
            bench.pass(Hook::Tap, &tapped(third));
            handshake(late, ISS - 500, (DROP, "no_handshake"));
            let found = bench.flows().get(flow_id(port, v6).key);
            let flow = found.expect("the map can be read").expect("it is there");
            assert_eq!((flow.phase, flow.id.irs.0), (Phase::Twin, now));
            // One that comes after it takes its place.
            handshake(now.wrapping_add(1), ISS + 700, (NEXT, "twin_reset"));
        }
    });
}

/// Two CPUs have the third ACK and the data behind it at one time, and the data
/// came to nothing (here: nobody listened yet): the twin that the other one makes
/// speaks all the same, or its flow would be given up after 30 ms.
#[test]
fn a_twin_whose_data_was_lost_at_its_birth_speaks_all_the_same() {
    on_bench_of(|bench, lab, _| {
        bench.play(Role::Shadow);
        let owner = other_machine(lab);
        take_service_addresses();
        let standby = Host::B.mac(Network::Data);
        for (port, v6) in [(7, false), (8, true)] {
            let (next, both) = (IRS.wrapping_add(1), TcpFlags::SYN.with(ACK));
            let data = to_service(port, v6, next, ISS + 1, ACK.with(TcpFlags::PSH), &DATA);
            for frame in [
                tapped(to_service(port, v6, IRS, 0, TcpFlags::SYN, b"")),
                twin(standby, port, v6, (ISS, next), both, b""),
                tapped(data),
            ] {
                owner.send(&frame).expect("it goes");
            }
            wait_for(bench, port, v6, |flow| flow.client_end.0 != next);
            let _listener = TcpListener::bind(everywhere(v6)).expect("the port is free");
            let third = tapped(to_service(port, v6, next, ISS + 1, ACK, b""));
            owner.send(&third).expect("it goes");
            wait_for(bench, port, v6, |flow| flow.twin_seen);
        }
    });
}

/// The third ACK is with one CPU, and the client's first data with another one. While the kernel puts
/// the connection's socket in the place of the handshake's it may find neither, and answers the data
/// with RST. The client is not to have that: the socket is there. Where there is none, or where it
/// has spoken already, the RST is meant.
#[test]
fn who_has_the_socket_does_not_say_that_there_is_none() {
    on_bench_of(|bench, lab, _| {
        let owner = other_machine(lab);
        take_service_addresses();
        let standby = Host::B.mac(Network::Data);
        let (next, both) = (IRS.wrapping_add(1), TcpFlags::SYN.with(ACK));
        for (port, v6) in [(7, false), (8, true)] {
            bench.play(Role::Shadow);
            let _server = listen(everywhere(v6));
            for frame in [
                tapped(to_service(port, v6, IRS, 0, TcpFlags::SYN, b"")),
                twin(standby, port, v6, (ISS, next), both, b""),
                tapped(to_service(port, v6, next, ISS + 1, ACK, b"")),
            ] {
                owner.send(&frame).expect("it goes");
            }
            wait_for(bench, port, v6, |flow| flow.twin_seen);
            bench.turn(Role::Owner, 1);
            let rst = |port, seq| from_service(port, v6, seq, 0, TcpFlags::RST, b"");
            let early = rst(port, ISS + 1);
            bench.expect(Hook::Gate, "its socket is there", &early, DROP, "not_yet");
            let word = from_service(port, v6, ISS + 1, next, ACK.with(TcpFlags::PSH), b"x");
            bench.pass(Hook::Gate, &word);
            let late = rst(port, ISS + 2);
            bench.expect(Hook::Gate, "it has spoken", &late, NEXT, "own_rst");
            bench.connect(port + 2, v6);
            let none = rst(port + 2, ISS + 1);
            bench.expect(Hook::Gate, "it has no socket", &none, NEXT, "own_rst");
        }
    });
}

/// A twin that is kept goes to the agent's listener under its service's address, and
/// to none of its server's; without a server there is none.
#[test]
fn a_twin_is_born_where_it_is_kept() {
    on_bench_of(|bench, lab, _| {
        let owner = other_machine(lab);
        take_service_addresses();
        let standby = Host::B.mac(Network::Data);
        let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let perches = loopback.map(|ip: IpAddr| listen((ip, 0).into()));
        let [v4, v6] = perches
            .each_ref()
            .map(|perch| perch.local_addr().expect("it is bound").port());
        bench.keep(Keepers { v4, v6 });
        for (port, v6, perch) in [(7, false, &perches[0]), (8, true, &perches[1])] {
            let (next, both) = (IRS.wrapping_add(1), TcpFlags::SYN.with(ACK));
            for frame in [
                tapped(to_service(port, v6, IRS, 0, TcpFlags::SYN, b"")),
                twin(standby, port, v6, (ISS, next), both, b""),
            ] {
                owner.send(&frame).expect("it goes");
            }
            let third = tapped(to_service(port, v6, next, ISS + 1, ACK, b""));
            owner.send(&third).expect("it goes");
            wait_for(bench, port, v6, |_| true);
            assert!(perch.accept().is_err(), "nobody is there to serve it");
            let server = listen(everywhere(v6));
            owner.send(&third).expect("it goes");
            wait_for(bench, port, v6, |flow| flow.twin_seen);
            let (kept, client) = perch.accept().expect("it is there");
            let key = flow_id(port, v6).key;
            assert_eq!(Endpoint::from(client), key.client);
            let own = kept.local_addr().expect("it is connected");
            assert_eq!(Endpoint::from(own), key.service);
            assert!(server.accept().is_err(), "it is not the server's");
        }
    });
}

/// The way to this machine from the other one.
pub(crate) fn other_machine(lab: &Lab) -> FrameSender {
    let open = || {
        let interface = Interface::by_name(Network::Data.interface());
        FrameSender::open(interface.expect("it has eth0").index, 0)
    };
    let owner = lab.b().enter(open).expect("the machine is there");
    owner.expect("a packet socket")
}

/// A listener that nobody waits at.
fn listen(at: SocketAddr) -> TcpListener {
    let listener = TcpListener::bind(at).expect("the port is free");
    listener.set_nonblocking(true).expect("it is open");
    listener
}

/// What an agent does for them, and where the client is on the link.
pub(crate) fn take_service_addresses() {
    let client = Host::Client.mac(Network::Data).to_string();
    let device = Network::Data.interface();
    for (address, client_address) in [
        (format!("{SERVICE_V4}/32"), Host::Client.v4().to_string()),
        (format!("{SERVICE_V6}/128"), Host::Client.v6().to_string()),
    ] {
        ip(&["addr", "add", &address, "dev", "lo"]);
        ip(&[
            "neigh",
            "replace",
            &client_address,
            "lladdr",
            &client,
            "dev",
            device,
        ]);
    }
}

pub(crate) fn ip(args: &[&str]) {
    let status = Command::new("ip").args(args).status();
    assert!(status.expect("there is iproute2").success(), "{args:?}");
}

pub(crate) fn everywhere(v6: bool) -> SocketAddr {
    if v6 {
        (Ipv6Addr::UNSPECIFIED, 80).into()
    } else {
        (Ipv4Addr::UNSPECIFIED, 80).into()
    }
}

pub(crate) fn wait_for(bench: &Bench, port: u16, v6: bool, wanted: impl Fn(&FlowState) -> bool) {
    let flow = || {
        let flow = bench.flows().get(flow_id(port, v6).key);
        flow.expect("the map can be read")
    };
    let is_it = || flow().as_ref().is_some_and(&wanted);
    until(is_it, || format!("{:?}, {:?}", flow(), bench.counts()));
}

/// The end of a handshake that began in an earlier generation: to its owner the flow is
/// not protected by this one, so its twin would lack what is said meanwhile.
#[test]
fn a_handshake_of_an_earlier_stay_makes_no_twin() {
    on_bench(|bench| {
        for (port, v6) in [(7, false), (8, true)] {
            bench.stand_by(1);
            tap_half(bench, port, v6);
            bench.stand_by(2);
            bench.expect(
                Hook::Tap,
                "third ACK",
                &third(port, v6),
                DROP,
                "no_handshake",
            );
            let key = flow_id(port, v6).key;
            let born = bench.flows().get(key).expect("the map can be read");
            assert!(born.is_none(), "{born:?}");
        }
    });
}

fn close(bench: &Bench) {
    let (next, fin) = (IRS.wrapping_add(1), TcpFlags::FIN.with(ACK));
    let client_fin = to_service(7, false, next, ISS + 1, fin, b"");
    bench.expect(
        Hook::Tap,
        "the client's FIN",
        &client_fin,
        NEXT,
        "client_segment",
    );
    let own_fin = from_service(7, false, ISS + 1, next.wrapping_add(1), fin, b"");
    bench.expect(Hook::Gate, "our FIN", &own_fin, NEXT, "spoken");
    let last = to_service(7, false, next.wrapping_add(1), ISS + 2, ACK, b"");
    bench.expect(Hook::Tap, "its ACK", &last, NEXT, "client_segment");
}

/// The owner dies behind its SYN-ACK: what the client has said since is lost, and
/// what it says next was answered with RST. It repeats the first byte in time, if that
/// was not acknowledged: so only in the generation that the new owner goes on with.
#[test]
fn a_client_that_is_ahead_of_its_handshake_is_not_reset() {
    on_bench(|bench| {
        let cases = [
            (7, false, 1, true),
            (7, true, 1, true),
            (8, false, 2, false),
        ];
        for (port, v6, stay, held) in cases {
            bench.stand_by(stay);
            let (client, service) = (IRS.wrapping_add(1), ISS + 1);
            let syn = mirrored(port, v6, (IRS, 0), TcpFlags::SYN, b"");
            bench.expect(Hook::Tap, "SYN", &syn, DROP, "tapped_syn");
            let both = TcpFlags::SYN.with(ACK);
            let answer = twin(
                Host::B.mac(Network::Data),
                port,
                v6,
                (ISS, client),
                both,
                b"",
            );
            bench.expect(Hook::Tap, "SYN-ACK", &answer, DROP, "tapped_syn_ack");
            bench.play(Role::Owner);
            let expect = |seq, ack, what, verdict, reason| {
                let said = to_service(port, v6, seq, ack, ACK, b"");
                bench.expect(Hook::Tap, what, &said, verdict, reason);
            };
            let ahead = client.wrapping_add(30);
            if held {
                expect(ahead, service, "later words", DROP, "client_ahead");
            } else {
                expect(ahead, service, "of another stay", NEXT, "no_flow");
            }
            expect(ahead, service + 1, "was served", NEXT, "no_flow");
            // There is no listener here, or a socket would be made.
            expect(client, service, "the first again", NEXT, "no_listener");
        }
    });
}
