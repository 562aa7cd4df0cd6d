//! An owner whose lease has ended says nothing more, on any way out of the
//! node; one whose lease holds is not held up.

use std::net::Ipv6Addr;
use std::time::Duration;

use godwit_bpf::{Expiry, Hook, MARK_SPOKEN};
use godwit_lab::host::{Host, Network, SERVICE_V4, SERVICE_V6};
use godwit_wire::{
    ArpOperation, ArpPacket, EthernetHeader, NeighbourAdvertisement, Role, TcpFlags,
};
use nix::time::{ClockId, clock_gettime};

use crate::bench::{
    Bench, DROP, IRS, ISS, NEXT, from_service, on_bench, on_service_address, to_service,
};

const ACK: TcpFlags = TcpFlags::ACK;
const LONG_AGO: Expiry = Expiry::At(1);

/// CLOCK_BOOTTIME, `from_now` from now.
fn boot_time(from_now: Duration) -> Expiry {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has it");
    let then = Duration::from(now) + from_now;
    Expiry::At(u64::try_from(then.as_nanos()).expect("it is this century"))
}

/// Everything that an owner may say, by name: segments of a flow, of none, and
/// what is no TCP of the service.
fn voices(v6: bool) -> Vec<(&'static str, Vec<u8>)> {
    let (seq, ack) = (ISS + 1, IRS.wrapping_add(1));
    let segment = |port, flags, payload| from_service(port, v6, seq, ack, flags, payload);
    let both = TcpFlags::SYN.with(ACK);
    let mut voices = vec![
        ("data", segment(7, ACK, b"data")),
        ("ACK", segment(7, ACK, b"")),
        ("FIN", segment(7, TcpFlags::FIN.with(ACK), b"")),
        ("RST", segment(7, TcpFlags::RST.with(ACK), b"")),
        ("RST of no flow", segment(8, TcpFlags::RST, b"")),
        ("SYN-ACK", segment(9, both, b"")),
        ("another port", on_service_address(v6, 22)),
    ];
    let mac = Host::A.mac(Network::Data);
    if v6 {
        let target = SERVICE_V6;
        let advertisement = NeighbourAdvertisement { target, mac };
        voices.push(("NA", advertisement.multicast_frame()));
        voices.push(("solicited NA", solicited(target)));
    } else {
        for operation in [ArpOperation::Request, ArpOperation::Reply] {
            let packet = ArpPacket::gratuitous(operation, SERVICE_V4, mac);
            voices.push(("ARP", packet.broadcast_frame()));
        }
    }
    voices
}

/// An advertisement that is sent from the node's own address.
fn solicited(target: Ipv6Addr) -> Vec<u8> {
    let mac = Host::A.mac(Network::Data);
    let mut frame = NeighbourAdvertisement { target, mac }.multicast_frame();
    let source = EthernetHeader::LEN + 8;
    frame[source..source + 16].copy_from_slice(&Host::A.v6().octets());
    frame
}

fn expect_all(bench: &Bench, fenced: bool) {
    for v6 in [false, true] {
        for (what, frame) in voices(v6) {
            for (hook, mark) in [
                (Hook::Gate, 0),
                (Hook::Gate, MARK_SPOKEN),
                (Hook::Guard, 0),
                (Hook::Guard, MARK_SPOKEN),
            ] {
                let (verdict, reasons) = bench.pass_marked(hook, mark, &frame);
                let said = reasons.iter().any(|reason| reason == "fenced");
                assert_eq!(
                    said, fenced,
                    "{what} at {hook:?}, mark {mark:x}: {reasons:?}"
                );
                assert!(!fenced || verdict == DROP, "{what} at {hook:?}: {verdict}");
            }
        }
    }
}

#[test]
fn an_owner_behind_its_expiry_is_silent_on_every_way_out() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.connect(7, v6);
        }
        expect_all(bench, false);
        bench.renew(boot_time(Duration::from_secs(60)));
        expect_all(bench, false);
        bench.renew(LONG_AGO);
        expect_all(bench, true);
        bench.renew(boot_time(Duration::ZERO));
        expect_all(bench, true);
        bench.renew(Expiry::Never);
        expect_all(bench, false);
    });
}

/// A fence that nobody has written is shut: an agent that writes a role alone
/// gives no right to speak.
#[test]
fn a_right_to_speak_must_be_given() {
    on_bench(|bench| {
        bench.renew(Expiry::At(0));
        expect_all(bench, true);
    });
}

/// It ends by itself, between two writes.
#[test]
fn time_alone_shuts_the_fence() {
    on_bench(|bench| {
        bench.connect(7, false);
        let frame = from_service(7, false, ISS + 1, IRS.wrapping_add(1), ACK, b"data");
        bench.renew(boot_time(Duration::from_millis(300)));
        let (_, reasons) = bench.pass(Hook::Gate, &frame);
        assert!(!reasons.contains(&"fenced".to_owned()), "{reasons:?}");
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while bench.verdict(Hook::Gate, &frame) != Some(DROP) {
            assert!(std::time::Instant::now() < deadline, "it stays open");
        }
        bench.expect(Hook::Gate, "behind it", &frame, DROP, "fenced");
    });
}

/// What others say passes the gate, and what comes in is heard.
#[test]
fn a_fence_stops_only_the_service() {
    on_bench(|bench| {
        bench.connect(7, false);
        bench.renew(LONG_AGO);
        let inward = to_service(7, false, IRS.wrapping_add(1), ISS + 1, ACK, b"data");
        bench.expect(Hook::Tap, "the client", &inward, NEXT, "client_segment");
        // A clone of the client's segment for the standby is not in our name.
        let (verdict, reasons) = bench.pass_marked(Hook::Gate, MARK_SPOKEN, &inward);
        assert_eq!((verdict, &reasons[..]), (NEXT, &["marked".to_owned()][..]));
        let mac = Host::A.mac(Network::Data);
        let arp = ArpPacket::gratuitous(ArpOperation::Reply, Host::A.v4(), mac);
        bench.expect(
            Hook::Gate,
            "own ARP",
            &arp.broadcast_frame(),
            NEXT,
            "not_ip",
        );
        // A shadow has no lease and needs none.
        bench.play(Role::Shadow);
        bench.renew(LONG_AGO);
        let own = from_service(8, false, ISS, IRS, ACK, b"data");
        bench.expect(Hook::Gate, "a shadow", &own, DROP, "suppressed_no_flow");
    });
}

/// A word of the agent that comes after the share has left this node goes to the
/// standby or nowhere. It used to reach the client, whatever the fence said.
#[test]
fn who_does_not_own_speaks_to_the_peer_alone() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.play(Role::Owner);
            let said = from_service(7, v6, ISS + 1, IRS.wrapping_add(1), ACK, b"");
            let spoken = |frame: &[u8]| bench.pass_marked(Hook::Gate, MARK_SPOKEN, frame);
            assert_eq!(spoken(&said), (NEXT, vec!["marked".to_owned()]));
            for role in [Role::Shadow, Role::None] {
                bench.play(role);
                assert_eq!(spoken(&said), (DROP, vec!["not_owner".to_owned()]));
                let mut inward = said.clone();
                inward[..6].copy_from_slice(&Host::B.mac(Network::Data).0);
                assert_eq!(spoken(&inward), (NEXT, vec!["marked".to_owned()]));
            }
        }
    });
}
