//! Segments as packets of both families.

use std::string::ToString;

use proptest::prelude::*;

use super::*;
use crate::strategies;

fn v4() -> Segment<'static> {
    Segment {
        source: "10.9.0.100:80".parse().unwrap(),
        destination: "10.9.0.10:40000".parse().unwrap(),
        seq: SeqNumber(0x0102_0304),
        ack: SeqNumber(0x0506_0708),
        flags: TcpFlags::ACK.with(TcpFlags::PSH),
        wnd: 501,
        options: TcpOptions {
            time_stamps: Some(TimeStamps {
                ts_val: 9,
                ts_ecr: 10,
            }),
            ..TcpOptions::default()
        },
        payload: b"x",
    }
}

fn syn_v6() -> Segment<'static> {
    Segment {
        source: "[2001:db8:9::10]:40000".parse().unwrap(),
        destination: "[2001:db8:9::100]:80".parse().unwrap(),
        flags: TcpFlags::SYN,
        ack: SeqNumber(0),
        options: TcpOptions {
            mss: Some(1440),
            wscale: Some(7),
            sack_permitted: true,
            time_stamps: Some(TimeStamps {
                ts_val: 9,
                ts_ecr: 0,
            }),
        },
        payload: &[],
        ..v4()
    }
}

#[test]
fn emit() {
    #[rustfmt::skip]
    let expected = [
        0x45, 0, 0, 53, 0, 0, 0x40, 0, 64, 6, 0x26, 0x44, 10, 9, 0, 100, 10, 9, 0, 10,
        0, 80, 0x9c, 0x40, 1, 2, 3, 4, 5, 6, 7, 8, 0x80, 0x18, 0x01, 0xf5, 0x3b, 0x88, 0, 0,
        1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 10, b'x',
    ];
    let packet = v4().to_packet().unwrap();
    assert_eq!(packet, expected);
    assert_eq!(Segment::verify(&packet), Ok(()));
}

/// The header of the Wikipedia article on the IPv4 checksum, whose value is
/// known from elsewhere: our own sums must not only agree with themselves.
#[test]
fn the_header_checksum_is_the_known_one() {
    let mut sum = Checksum::new();
    sum.add(&[
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0x00, 0x01,
        0xc0, 0xa8, 0x00, 0xc7,
    ]);
    assert_eq!(sum.finish(), 0xb861);
}

#[test]
fn a_syn_has_its_options_as_linux_orders_them() {
    let packet = syn_v6().to_packet().unwrap();
    assert_eq!(packet[..8], [0x60, 0, 0, 0, 0, 40, 6, 64]);
    let options = &packet[60..];
    #[rustfmt::skip]
    assert_eq!(
        options,
        [2, 4, 0x05, 0xa0, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7]
    );
    assert_eq!(Segment::verify(&packet), Ok(()));
    assert_eq!(syn_v6().len(), 1);
}

#[test]
fn parse() {
    for segment in [v4(), syn_v6()] {
        let mut packet = segment.to_packet().unwrap();
        assert_eq!(Segment::parse(&packet), Ok(segment));
        packet.extend_from_slice(&[0; 6]);
        assert_eq!(Segment::parse(&packet), Ok(segment), "padding is ignored");
    }
    assert_eq!(
        v4().to_string(),
        "10.9.0.100:80 -> 10.9.0.10:40000 [PSH,ACK] seq 16909060 ack 84281096 wnd 501 len 1"
    );
}

#[test]
fn truncated() {
    for segment in [v4(), syn_v6()] {
        let packet = segment.to_packet().unwrap();
        for len in 0..packet.len() {
            assert!(Segment::parse(&packet[..len]).is_err(), "{len} bytes");
            assert!(Segment::verify(&packet[..len]).is_err(), "{len} bytes");
        }
    }
}

#[test]
fn impossible_length() {
    let cases = [
        (v4(), 0, 0x44, "ipv4: total length"), // header shorter than 20 bytes
        (v4(), 0, 0x4f, "ipv4: total length"), // header longer than the packet
        (v4(), 0, 0x55, "ip: version"),
        (v4(), 2, 0x10, "ipv4: total length"),
        (v4(), 6, 0x20, "ipv4: fragment"),
        (v4(), 9, 17, "ipv4: protocol"),
        (v4(), 32, 0x40, "tcp: data offset"),
        (v4(), 32, 0xf0, "tcp: data offset"),
        (v4(), 43, 1, "tcp option: length"),
        (v4(), 43, 40, "tcp option: body"),
        (syn_v6(), 6, 44, "ipv6: next header"),
        (syn_v6(), 4, 1, "ipv6: payload"),
        (syn_v6(), 52, 0xf0, "tcp: data offset"),
    ];
    for (segment, at, byte, what) in cases {
        let mut packet = segment.to_packet().unwrap();
        // A header length of 60 must be longer than what is there.
        packet.truncate(packet.len().min(80));
        packet[at] = byte;
        assert_eq!(Segment::parse(&packet).unwrap_err().what, what, "byte {at}");
    }
    assert_eq!(Segment::parse(&[]).unwrap_err().what, "ip: version");
}

#[test]
fn a_flipped_bit_breaks_a_checksum() {
    for segment in [v4(), syn_v6()] {
        let good = segment.to_packet().unwrap();
        for at in 20..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x01;
            assert!(Segment::verify(&bad).is_err(), "byte {at}");
        }
    }
    let mut bad = v4().to_packet().unwrap();
    bad[8] = 63;
    assert_eq!(Segment::verify(&bad).unwrap_err().what, "ipv4: checksum");
}

#[test]
fn options_of_another_length_are_skipped() {
    let bytes = [2, 3, 9, 3, 2, 4, 3, 0, 8, 2, 254, 4, 1, 2, 1, 0, 0xff];
    assert_eq!(TcpOptions::parse(&bytes), Ok(TcpOptions::default()));
}

#[test]
fn a_payload_that_does_not_fit_is_refused() {
    let payload = std::vec![0; Segment::MAX_PAYLOAD + 1];
    let mut segment = Segment {
        payload: &payload,
        ..syn_v6()
    };
    assert!(segment.to_packet().is_err());
    segment.payload = &payload[1..];
    let packet = segment.to_packet().unwrap();
    assert_eq!(Segment::parse(&packet), Ok(segment));
}

fn options() -> impl Strategy<Value = TcpOptions> {
    let stamps = proptest::option::of(any::<(u32, u32)>());
    (
        any::<Option<u16>>(),
        any::<Option<u8>>(),
        any::<bool>(),
        stamps,
    )
        .prop_map(|(mss, wscale, sack_permitted, stamps)| TcpOptions {
            mss,
            wscale,
            sack_permitted,
            time_stamps: stamps.map(|(ts_val, ts_ecr)| TimeStamps { ts_val, ts_ecr }),
        })
}

proptest! {
    #[test]
    fn roundtrip(
        source in strategies::endpoint(),
        destination in strategies::endpoint(),
        (seq, ack) in (strategies::seq(), strategies::seq()),
        (flags, wnd) in any::<(u8, u16)>(),
        options in options(),
        payload in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let flags = TcpFlags(flags);
        let segment = Segment { source, destination, seq, ack, flags, wnd, options, payload: &payload };
        let packet = segment.to_packet().unwrap();
        prop_assert_eq!(Segment::parse(&packet), Ok(segment));
        prop_assert_eq!(Segment::verify(&packet), Ok(()));
    }

    #[test]
    fn garbage_never_panics(garbage in proptest::collection::vec(any::<u8>(), 0..120), version in 4u8..7) {
        let mut packet = garbage;
        if let Some(first) = packet.first_mut() {
            *first = version << 4 | *first & 0x0f;
        }
        let _ = Segment::parse(&packet);
        let _ = Segment::verify(&packet);
    }
}
