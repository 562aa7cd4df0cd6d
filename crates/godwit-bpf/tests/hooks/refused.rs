//! What the kernel refuses below TCP's numbers, or beside them: it ends no flow.

use std::time::Duration;

use godwit_bpf::{Hook, Order, Phase, Record};
use godwit_wire::{Role, TcpFlags};

use crate::bench::{
    Bench, DROP, IRS, ISS, NEXT, mirrored, on_bench, on_bench_of, summed, to_service, with_options,
};
use crate::life::other_machine;
use crate::moves::shadow;
use crate::wait::until;

const ACK: TcpFlags = TcpFlags::ACK;
const DATA: [u8; 100] = [7; 100];

/// Where the IP header begins.
const IP: usize = 14;

/// The RST that would end the flow.
fn reset(v6: bool) -> Vec<u8> {
    let next = IRS.wrapping_add(1);
    to_service(7, v6, next, ISS + 1, TcpFlags::RST, b"")
}

/// Options of a signature: TCP-MD5 (RFC 2385), TCP-AO (RFC 5925) with a short one.
fn signatures() -> [Vec<u8>; 2] {
    let md5 = [&[19, 18][..], &[0; 16], &[1, 1]].concat();
    let ao = [&[29, 16][..], &[0; 14]].concat();
    [md5, ao]
}

/// A header that was damaged on its way, or is of another version than its frame says.
#[test]
fn a_reset_in_a_packet_that_ip_refuses_is_none() {
    on_bench(|bench| {
        for v6 in [false, true] {
            bench.connect(7, v6);
            let mut version = reset(v6);
            version[IP] = version[IP] & 0xf | 0x50;
            if !v6 {
                version = summed(version, v6);
            }
            let mut refused = vec![version];
            if !v6 {
                // The checksum, and a bit that it is over.
                for at in [10, 1, 8] {
                    let mut damaged = reset(v6);
                    damaged[IP + at] ^= 4;
                    refused.push(damaged);
                }
            }
            for frame in refused {
                bench.expect(Hook::Tap, "RST", &frame, NEXT, "bad_header");
                assert_ne!(bench.flow().phase, Phase::Ended);
            }
            bench.expect(Hook::Tap, "RST", &reset(v6), NEXT, "client_rst");
            assert_eq!(bench.flow().phase, Phase::Ended);
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

/// A kernel drops what is signed on a connection without a key, if it was built to see that.
/// The agent asks whether there still is a socket.
#[test]
fn a_signed_reset_of_a_plain_connection_is_for_the_kernel_to_judge() {
    on_bench(|bench| {
        let told = || {
            let records = bench.events.wait(Duration::from_millis(50)).into_iter();
            records.filter(|it| matches!(it, Record::Reset(_))).count()
        };
        for v6 in [false, true] {
            for options in signatures() {
                bench.connect(7, v6);
                told();
                let signed = with_options(reset(v6), v6, &options);
                bench.expect(Hook::Tap, "RST", &signed, NEXT, "client_rst");
                assert_ne!(bench.flow().phase, Phase::Ended);
                assert_eq!(told(), 1, "the agent is to look");
                let next = IRS.wrapping_add(1);
                let data = to_service(7, v6, next, ISS + 1, ACK, &DATA);
                let data = with_options(data, v6, &options);
                bench.expect(Hook::Tap, "data", &data, NEXT, "not_heard");
                assert_eq!(bench.flow().client_end.0, next, "nothing was said");
                bench.order(Order::Forget).expect("it is there");
            }
        }
    });
}

/// The same where the network copies what clients say to a standby.
#[test]
fn a_signed_reset_ends_no_twin() {
    on_bench(|bench| {
        for v6 in [false, true] {
            for options in signatures() {
                shadow(bench, 7, v6);
                let next = IRS.wrapping_add(1);
                let reset = mirrored(7, v6, (next, ISS + 1), TcpFlags::RST, b"");
                let signed = with_options(reset.clone(), v6, &options);
                bench.expect(Hook::Tap, "RST", &signed, DROP, "not_heard");
                assert_eq!(bench.flow().phase, Phase::Twin);
                bench.expect(Hook::Tap, "RST", &reset, NEXT, "tapped_rst");
                assert_eq!(bench.flow().phase, Phase::Ended);
                bench.order(Order::Forget).expect("it is there");
            }
        }
    });
}

/// A frame of a VLAN goes to that VLAN's device, and without one nowhere. Number 0 is none.
#[test]
fn a_reset_of_another_vlan_is_none() {
    on_bench_of(|bench, lab, _| {
        bench.play(Role::Owner);
        let sender = other_machine(lab);
        for v6 in [false, true] {
            bench.connect(7, v6);
            for (vlan, reason, ends) in [(5, "other_vlan", false), (0, "client_rst", true)] {
                let before = count(bench, reason);
                let frame = reset(v6);
                let tag = [&[0x81, 0][..], &[0xe0, vlan]].concat();
                let tagged = [&frame[..12], &tag, &frame[12..]].concat();
                sender.send(&tagged).expect("it goes");
                let is_counted = || count(bench, reason) != before;
                until(is_counted, || format!("{reason}: {:?}", bench.counts()));
                assert_eq!(bench.flow().phase == Phase::Ended, ends, "{vlan}");
            }
            bench.order(Order::Forget).expect("it is there");
        }
    });
}

fn count(bench: &Bench, name: &str) -> u64 {
    let counts = bench.counts().into_iter();
    let found = counts.filter(|(it, _)| it == name);
    found.map(|(_, count)| count).sum()
}
