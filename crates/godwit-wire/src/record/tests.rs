//! Flow records as bytes.

use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::{FlowKey, strategies};

fn sample() -> FlowRecord {
    FlowRecord {
        id: FlowId {
            key: FlowKey {
                client: "10.9.0.10:40000".parse().unwrap(),
                service: "10.9.0.100:80".parse().unwrap(),
            },
            irs: SeqNumber(1),
        },
        iss: SeqNumber(2),
        mss: 1460,
        snd_wscale: 7,
        rcv_wscale: 14,
        negotiated: Negotiated {
            wscale: true,
            sack: false,
            time_stamps: true,
            ecn: true,
        },
        ts_off: 3,
        snd_una: SeqNumber(u32::MAX),
        snd_nxt: SeqNumber(4),
        rcv_nxt: SeqNumber(5),
        epoch: Epoch::new(6, 7),
    }
}

fn bytes(record: &FlowRecord) -> Vec<u8> {
    let mut out = Vec::new();
    record.emit(&mut out);
    out
}

#[test]
fn emit() {
    #[rustfmt::skip]
    let expected = [
        1,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 10, 0x9c, 0x40,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 100, 0, 80,
        0, 0, 0, 1, 0, 0, 0, 2,
        0x05, 0xb4, 7, 14, 0b1101,
        0, 0, 0, 3,
        0xff, 0xff, 0xff, 0xff, 0, 0, 0, 4, 0, 0, 0, 5,
        0, 0, 0, 6, 0, 0, 0, 7,
    ];
    assert_eq!(bytes(&sample()), expected);
    assert_eq!(expected.len(), FlowRecord::LEN);
}

#[test]
fn parse() {
    assert_eq!(FlowRecord::parse(&bytes(&sample())), Ok(sample()));
    let said = sample().to_string();
    assert!(said.contains("snd_una 4294967295 snd_nxt 4"), "{said}");
}

#[test]
fn truncated() {
    let whole = bytes(&sample());
    for len in 0..whole.len() {
        assert!(FlowRecord::parse(&whole[..len]).is_err(), "{len} bytes");
    }
}

#[test]
fn impossible_length() {
    let mut long = bytes(&sample());
    long.push(0);
    assert!(FlowRecord::parse(&long).is_err());
}

#[test]
fn impossible_values_are_refused() {
    type Spoil = fn(&mut FlowRecord);
    let cases: [(&str, Spoil); 3] = [
        ("flow record: snd_wscale", |record| record.snd_wscale = 15),
        ("flow record: rcv_wscale", |record| record.rcv_wscale = 255),
        ("flow record: snd_nxt before snd_una", |record| {
            record.snd_una = SeqNumber(5);
        }),
    ];
    for (what, spoil) in cases {
        let mut record = sample();
        spoil(&mut record);
        assert_eq!(FlowRecord::parse(&bytes(&record)).unwrap_err().what, what);
    }
    for (at, byte, what) in [
        (0, 2, "flow record: version"),
        (49, 0x10, "flow record: options"),
    ] {
        let mut bad = bytes(&sample());
        bad[at] = byte;
        let error = FlowRecord::parse(&bad).unwrap_err();
        assert_eq!((error.what, error.at), (what, at));
    }
}

fn record() -> impl Strategy<Value = FlowRecord> {
    let numbers = any::<[u32; 4]>();
    let scales = (0..=MAX_WSCALE, 0..=MAX_WSCALE, any::<[bool; 4]>());
    let flight = 0..=i32::MAX as u32;
    (
        strategies::flow_id(),
        numbers,
        any::<u16>(),
        scales,
        flight,
        strategies::epoch(),
    )
        .prop_map(
            |(
                id,
                [iss, ts_off, snd_una, rcv_nxt],
                mss,
                (snd_wscale, rcv_wscale, bits),
                flight,
                epoch,
            )| {
                let [wscale, sack, time_stamps, ecn] = bits;
                FlowRecord {
                    id,
                    iss: SeqNumber(iss),
                    mss,
                    snd_wscale,
                    rcv_wscale,
                    negotiated: Negotiated {
                        wscale,
                        sack,
                        time_stamps,
                        ecn,
                    },
                    ts_off,
                    snd_una: SeqNumber(snd_una),
                    snd_nxt: SeqNumber(snd_una) + flight,
                    rcv_nxt: SeqNumber(rcv_nxt),
                    epoch,
                }
            },
        )
}

proptest! {
    #[test]
    fn roundtrip(record in record()) {
        prop_assert_eq!(FlowRecord::parse(&bytes(&record)), Ok(record));
    }

    #[test]
    fn garbage_never_panics(garbage in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = FlowRecord::parse(&garbage);
    }
}
