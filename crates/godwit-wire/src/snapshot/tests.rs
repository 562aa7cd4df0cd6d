//! Socket snapshots as bytes.

use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::app::{Carried, SnapshotKind};
use crate::strategies;

fn sample() -> TcpSnapshot {
    TcpSnapshot {
        key: FlowKey {
            client: "[2001:db8::10]:40000".parse().unwrap(),
            service: "[2001:db8::100]:80".parse().unwrap(),
        },
        state: TcpState::CloseWait,
        options: Options {
            sack: true,
            time_stamps: true,
            ecn: false,
            wscale: Some((7, 14)),
            mss_clamp: 1440,
        },
        ts_val: 1,
        write_seq: SeqNumber(2),
        rcv_nxt: SeqNumber(3),
        window: Window {
            snd_wl1: SeqNumber(4),
            snd_wnd: 5,
            max_window: 6,
            rcv_wnd: 7,
            rcv_wup: SeqNumber(8),
        },
        congestion: Congestion {
            snd_cwnd: 10,
            snd_ssthresh: 11,
            srtt_us: 12,
            name: b"bbr".to_vec(),
        },
        settings: Settings {
            ipv6: true,
            nodelay: true,
            keep_alive: false,
            keep_idle: 13,
            keep_interval: 14,
            keep_count: 15,
            user_timeout: 16,
            cork: false,
            nonblocking: true,
            oob_inline: false,
            notsent_lowat: 19,
            linger: Some(20),
            traffic_class: 0x10,
            sndbuf: 17,
            rcvbuf: 18,
            sndbuf_locked: false,
            rcvbuf_locked: true,
        },
        queues: Queues {
            recv: b"in".to_vec(),
            send: b"sent, unsent".to_vec(),
            unsent: 6,
        },
    }
}

fn bytes(snapshot: &TcpSnapshot) -> Vec<u8> {
    let mut out = Vec::new();
    snapshot.emit(&mut out);
    out
}

/// Version 1 is frozen. The file is not to be edited: a snapshot of another
/// layout is one of another version.
#[test]
fn emit() {
    let out = bytes(&sample());
    let hex: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, include_str!("golden.txt").trim_end());
    assert_eq!(out.len(), TcpSnapshot::LEAST_BYTES + "bbr".len() + 2 + 12);
}

#[test]
fn parse() {
    assert_eq!(TcpSnapshot::parse(&bytes(&sample())), Ok(sample()));
    let said = sample().to_string();
    let positions = "CLOSE-WAIT snd_una 4294967286 snd_nxt 4294967292 write_seq 2 copied_seq 1";
    assert!(said.contains(positions), "{said}");
}

#[test]
fn truncated() {
    let whole = bytes(&sample());
    for len in 0..whole.len() {
        assert!(TcpSnapshot::parse(&whole[..len]).is_err(), "{len} bytes");
    }
}

#[test]
fn impossible_length() {
    let mut long = bytes(&sample());
    long.push(0);
    assert!(TcpSnapshot::parse(&long).is_err());
    // A receive queue that claims all there is, and more.
    let mut long = bytes(&sample());
    let at = long.len() - 12 - 4 - 4 - 2 - 4;
    long[at..at + 4].copy_from_slice(&[0xff; 4]);
    let error = TcpSnapshot::parse(&long).unwrap_err();
    assert_eq!((error.what, error.at), ("socket: receive queue", at));
}

#[test]
fn more_unsent_than_there_is() {
    let mut snapshot = sample();
    snapshot.queues.unsent = 13;
    let error = TcpSnapshot::parse(&bytes(&snapshot)).unwrap_err();
    assert_eq!(error.what, "socket: unsent bytes");
}

#[test]
fn a_state_that_has_no_business_here() {
    for number in 0..=u8::MAX {
        let mut odd = bytes(&sample());
        odd[37] = number;
        let known = [1, 4, 5, 8, 9, 11].contains(&number);
        assert_eq!(TcpSnapshot::parse(&odd).is_ok(), known, "{number}");
    }
}

fn moved(application: Application) -> (Moved, Vec<u8>) {
    let moved = Moved {
        socket: sample(),
        application,
    };
    let mut out = Vec::new();
    moved.emit(&mut out);
    (moved, out)
}

/// A connection on its way has its socket first, as it is by itself.
#[test]
fn a_connection_on_its_way_is_its_socket_and_its_state() {
    let kind = SnapshotKind::Regenerable;
    let carried = |bytes: &[u8]| {
        Application::Carried(Carried {
            kind,
            bytes: bytes.to_vec(),
        })
    };
    for application in [Application::Stateless, carried(b""), carried(b"state")] {
        let (moved, out) = moved(application);
        let socket = bytes(&sample());
        assert_eq!(out[..4], u32::try_from(socket.len()).unwrap().to_be_bytes());
        assert_eq!(out[4..4 + socket.len()], socket);
        assert_eq!(Moved::parse(&out), Ok(moved));
        // The state is the rest, so what is cut of it is not noticed here.
        for len in 0..5 + socket.len() {
            assert!(Moved::parse(&out[..len]).is_err(), "{len} bytes");
        }
    }
    let (_, mut out) = moved(Application::Stateless);
    out.push(0);
    assert!(Moved::parse(&out).is_err(), "trailing bytes");
    out[..4].copy_from_slice(&[0xff; 4]);
    assert!(Moved::parse(&out).is_err(), "longer than all");
}

/// One that nobody has read has no state, but what its client's clock said last.
#[test]
fn an_unread_connection_has_a_time_stamp() {
    let (moved, out) = moved(Application::Unread {
        ts_recent: 0x0102_0304,
    });
    assert_eq!(out[out.len() - 5..], [2, 1, 2, 3, 4]);
    assert_eq!(Moved::parse(&out), Ok(moved));
    for len in 0..out.len() {
        assert!(Moved::parse(&out[..len]).is_err(), "{len} bytes");
    }
    let at = out.len() - 5;
    let mut odd = out;
    odd[at] = 3;
    assert!(Moved::parse(&odd).is_err(), "a state that has no name");
}

proptest! {
    #[test]
    fn roundtrip(
        recv in proptest::collection::vec(any::<u8>(), 0..50),
        send in proptest::collection::vec(any::<u8>(), 0..50),
        numbers in any::<[u32; 4]>(),
        key in strategies::flow_id(),
        state in proptest::sample::select(&TcpState::ALL[..]),
        wscale in proptest::option::of((0..=14u8, 0..=14u8)),
    ) {
        let mut snapshot = sample();
        snapshot.key = key.key;
        snapshot.state = state;
        snapshot.options.wscale = wscale;
        snapshot.ts_val = numbers[0];
        snapshot.write_seq = SeqNumber(numbers[1]);
        snapshot.window.rcv_wup = SeqNumber(numbers[2]);
        snapshot.congestion.srtt_us = numbers[3];
        snapshot.options.ecn = numbers[3] % 2 == 0;
        snapshot.settings.cork = numbers[1] % 2 == 0;
        snapshot.settings.linger = (numbers[2] % 2 == 0).then_some(numbers[2] / 2);
        snapshot.queues = Queues { unsent: length(&send) / 2, recv, send };
        prop_assert_eq!(TcpSnapshot::parse(&bytes(&snapshot)), Ok(snapshot));
    }

    #[test]
    fn noise_is_no_snapshot_and_no_panic(noise in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = TcpSnapshot::parse(&noise);
        let _ = Moved::parse(&noise);
    }
}
