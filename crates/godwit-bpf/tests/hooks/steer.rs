//! Where a connection begins (`gw_steer.h`), and programs of the user's own that say so
//! (`gw_policy.h`), those that come with Godwit among them.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::Duration;

use godwit_bpf::{Hook, Mate, Moves, Policy, Steering};
use godwit_lab::host::{Host, Network};
use godwit_wire::TcpFlags;
use nix::time::{ClockId, clock_gettime};

use crate::bench::{
    Bench, DROP, IRS, ISS, NEXT, NODES, REDIRECT, SHARE, on_bench, on_bench_with, sent_on, tapped,
    to_service,
};
use crate::transfer::place;

const DATA: TcpFlags = TcpFlags(TcpFlags::ACK.0 | TcpFlags::PSH.0);

/// As [`on_bench`], with the programs that come with Godwit.
fn on_bench_with_all(work: impl FnOnce(&Bench) + Send) {
    let built_in = Policy::built_in_names().filter_map(Policy::built_in);
    on_bench_with(&built_in.collect::<Vec<_>>(), work);
}

/// Their numbers.
const BY_CLASS: u8 = 1;
const BY_COOKIE: u8 = 2;
const LEAST_LOADED: u8 = 3;

/// A server that passes on what comes to it, to one with at most 60 percent.
pub(crate) const LOADED: Steering = Steering {
    load: 80,
    at: Duration::ZERO,
    redirect: Some(70),
    margin: 20,
    program: None,
};

fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .expect("Linux has it")
        .into()
}

pub(crate) fn steer(bench: &Bench, steering: Steering) {
    let steering = Steering {
        at: now(),
        ..steering
    };
    bench
        .datapath
        .requests
        .steering
        .set(SHARE, steering)
        .expect("there is room");
}

/// b is there, and how loaded it says it is.
fn b_says(bench: &Bench, load: u8) {
    let frame = load_note(Host::B, load, false);
    bench.expect(Hook::Tap, "a load", &frame, DROP, "load_heard");
}

pub(crate) fn load_note(from: Host, load: u8, v6: bool) -> Vec<u8> {
    let plain = to_service(1, v6, IRS, 0, TcpFlags::SYN, b"");
    let mut frame = plain[..6].to_vec();
    frame.extend(from.mac(Network::Data).0);
    frame.extend([0x88, 0xb5, 2, 1, load, 0, 0, 0, 0, 0]);
    let service = crate::bench::flow_id(1, v6).key.service;
    frame.extend(service.addr.octets());
    frame.extend(service.port.to_be_bytes());
    frame.extend([0, 0]);
    frame
}

pub(crate) fn open_place(bench: &Bench) {
    place(bench, Mate::Open(Host::B.mac(Network::Data)));
    bench.own(Moves::Home);
}

pub(crate) fn syn(port: u16, v6: bool) -> Vec<u8> {
    to_service(port, v6, IRS, 0, TcpFlags::SYN, b"")
}

/// Somebody listens, or its accept queue would be called full.
pub(crate) fn listen() -> TcpListener {
    TcpListener::bind("[::]:80").expect("a lab's port is free")
}

/// The SYN goes to b, and so does all that follows it.
#[test]
fn a_loaded_server_passes_a_connection_on() {
    on_bench(|bench| {
        open_place(bench);
        let _server = listen();
        for v6 in [false, true] {
            b_says(bench, 50);
            steer(bench, LOADED);
            let trial = bench.put(Hook::Tap, 0, &syn(7, v6));
            assert_eq!(trial.verdict, REDIRECT);
            assert_eq!(trial.frame[..6], Host::B.mac(Network::Data).0);
            let as_it_came = sent_on(&syn(7, v6), v6, 1);
            assert_eq!(trial.frame[12..], as_it_came, "but for its hops");
            bench.expect(Hook::Tap, "again", &syn(7, v6), REDIRECT, "sent_on");
            let third = to_service(7, v6, IRS.wrapping_add(1), ISS + 1, TcpFlags::ACK, b"");
            bench.expect(Hook::Tap, "third", &third, REDIRECT, "sent_on");
            bench.expect(Hook::Tap, "back", &tapped(third), DROP, "sent_back");
            // Another one from the same addresses and ports goes where that went: it may be
            // anybody's, and b tells them apart. From other ports it is looked at anew.
            b_says(bench, 90);
            let other = to_service(7, v6, IRS + 99, 0, TcpFlags::SYN, b"");
            bench.expect(Hook::Tap, "the same ports", &other, REDIRECT, "sent_on");
            bench.expect(Hook::Tap, "another", &syn(8, v6), NEXT, "none_lighter");
        }
    });
}

/// SYNs that nobody follows up hold no room: of those that were passed on the latest are
/// remembered, and there are as many entries of connections that have gone as before.
#[test]
fn syns_that_are_passed_on_fill_nothing() {
    on_bench(|bench| {
        open_place(bench);
        let _server = listen();
        for port in 10..10 + 8192 + 100 {
            // Each counts for b until that says more.
            if port % 10 == 0 {
                b_says(bench, 0);
                steer(bench, LOADED);
            }
            let sent = bench.put(Hook::Tap, 0, &syn(port, port % 2 == 1));
            assert_eq!(sent.verdict, REDIRECT, "{port}");
        }
        let counters = &bench.datapath.counters;
        assert_eq!(counters.by_name("passed_on"), 8192 + 100);
        assert_eq!(counters.by_name("table_full"), 0);
        // Who follows up goes on.
        let third = to_service(10, false, IRS.wrapping_add(1), ISS + 1, TcpFlags::ACK, b"");
        for what in ["third", "and what follows"] {
            let sent = bench.put(Hook::Tap, 0, &third);
            assert_eq!(sent.verdict, REDIRECT, "{what}");
            assert_eq!(sent.frame[..6], Host::B.mac(Network::Data).0);
        }
    });
}

/// What came from another server stays, however loaded this one is.
#[test]
fn a_connection_is_passed_on_once() {
    on_bench(|bench| {
        open_place(bench);
        let _server = listen();
        b_says(bench, 0);
        let loaded = Steering {
            load: 100,
            redirect: Some(1),
            margin: 1,
            ..Steering::default()
        };
        steer(bench, loaded);
        bench.expect(Hook::Tap, "from b", &tapped(syn(7, false)), NEXT, "syn");
        bench.expect(
            Hook::Tap,
            "from a client",
            &syn(8, false),
            REDIRECT,
            "passed_on",
        );
    });
}

/// Each of a burst counts before the other server says anything about it.
#[test]
fn a_burst_is_not_all_for_the_one_that_was_lightest() {
    on_bench(|bench| {
        open_place(bench);
        let _server = listen();
        b_says(bench, 57);
        steer(bench, LOADED);
        let passed = (10..30)
            .take_while(|port| bench.put(Hook::Tap, 0, &syn(*port, false)).verdict == REDIRECT)
            .count();
        assert_eq!(passed, 4, "57, 58, 59 and 60 percent");
        b_says(bench, 57);
        bench.expect(Hook::Tap, "news", &syn(40, false), REDIRECT, "passed_on");
    });
}

/// Below its mark, without fresh words, or without a word of b's, a server keeps what comes.
#[test]
fn who_is_not_loaded_keeps_what_comes() {
    on_bench(|bench| {
        open_place(bench);
        let _server = listen();
        let loaded = Steering { load: 90, ..LOADED };
        steer(bench, loaded);
        bench.expect(
            Hook::Tap,
            "b is silent",
            &syn(7, false),
            NEXT,
            "none_lighter",
        );
        b_says(bench, 0);
        steer(bench, Steering { load: 69, ..loaded });
        bench.expect(Hook::Tap, "light", &syn(8, false), NEXT, "syn");
        let off = Steering {
            redirect: None,
            ..loaded
        };
        steer(bench, off);
        bench.expect(Hook::Tap, "off", &syn(9, false), NEXT, "syn");
        let stale = Steering {
            at: now() - Duration::from_secs(1),
            ..loaded
        };
        bench
            .datapath
            .requests
            .steering
            .set(SHARE, stale)
            .expect("room");
        bench.expect(Hook::Tap, "stale", &syn(10, false), NEXT, "syn");
        steer(bench, loaded);
        // b's word is half a second old some time.
        let stays = |port: u16| {
            std::thread::sleep(Duration::from_millis(10));
            steer(bench, loaded);
            let (_, reasons) = bench.pass(Hook::Tap, &syn(port, false));
            reasons.iter().any(|it| it == "none_lighter")
        };
        let passed = (11..500).take_while(|port| !stays(*port)).count();
        assert!((20..480).contains(&passed), "{passed} SYNs in 10 ms each");
    });
}

/// The accept queue is looked at with each SYN: nobody listens, so it is as good as full.
#[test]
fn a_server_that_nobody_listens_at_passes_on_at_once() {
    on_bench(|bench| {
        open_place(bench);
        b_says(bench, 0);
        let idle = Steering {
            load: 0,
            redirect: Some(70),
            margin: 20,
            ..Steering::default()
        };
        steer(bench, idle);
        bench.expect(Hook::Tap, "nobody", &syn(7, false), REDIRECT, "passed_on");
        let _server = listen();
        bench.expect(Hook::Tap, "somebody", &syn(8, false), NEXT, "syn");
        // That one is silent: it may have answered, and be heard again.
        let mac = Host::B.mac(Network::Data);
        let table = &bench.datapath.requests.placing;
        table
            .set_mate(SHARE, NODES[1], Mate::Closed(mac))
            .expect("room");
        bench.expect(Hook::Tap, "again", &syn(7, false), REDIRECT, "sent_on");
        // It is known to be off.
        table
            .set_mate(SHARE, NODES[1], Mate::Dead(mac))
            .expect("room");
        bench.expect(Hook::Tap, "forsaken", &syn(7, false), NEXT, "syn");
    });
}

/// Words about loads count from servers only, about services that are here.
#[test]
fn strangers_have_no_load() {
    on_bench(|bench| {
        open_place(bench);
        let stranger = load_note(Host::Client, 0, false);
        bench.expect(Hook::Tap, "a client's", &stranger, NEXT, "note_refused");
        let mut other = load_note(Host::B, 0, false);
        let port = other.len() - 3;
        other[port] ^= 1;
        bench.expect(Hook::Tap, "another service", &other, NEXT, "note_refused");
        let heavy = load_note(Host::B, 101, true);
        bench.expect(Hook::Tap, "more than all", &heavy, NEXT, "note_refused");
        let short = &load_note(Host::B, 0, false)[..30];
        bench.expect(Hook::Tap, "cut", short, NEXT, "note_refused");
    });
}

/// A connection begins where there is least to do, by a program.
#[test]
fn a_program_has_connections_begin_at_the_least_loaded() {
    on_bench_with_all(|bench| {
        open_place(bench);
        let _server = listen();
        let by_program = Steering {
            load: 40,
            program: Some(LEAST_LOADED),
            ..Steering::default()
        };
        b_says(bench, 29);
        steer(bench, by_program);
        bench.expect(
            Hook::Tap,
            "b is lighter",
            &syn(7, false),
            REDIRECT,
            "passed_on",
        );
        b_says(bench, 31);
        bench.expect(Hook::Tap, "by too little", &syn(8, false), NEXT, "syn");
    });
}

/// Whether a request on a new connection goes to b.
fn goes(bench: &Bench, port: u16, request: &str) -> bool {
    bench.connect(port, false);
    let first = IRS.wrapping_add(1);
    let frame = to_service(port, false, first, ISS + 1, DATA, request.as_bytes());
    match bench.pass(Hook::Tap, &frame) {
        (REDIRECT, _) => true,
        (NEXT, _) => false,
        other => panic!("{request}: {other:?}"),
    }
}

fn by(bench: &Bench, program: u8) {
    let steering = Steering {
        program: Some(program),
        ..Steering::default()
    };
    steer(bench, steering);
}

/// A session is at one server, whatever its requests are and wherever the cookie stands.
#[test]
fn a_program_keeps_sessions_together() {
    on_bench_with_all(|bench| {
        open_place(bench);
        by(bench, BY_COOKIE);
        let mut ports = 100..;
        let mut ask = |head: &str| goes(bench, ports.next().expect("ports are left"), head);
        let mut places = BTreeSet::new();
        for session in 0..16 {
            let heads = [
                format!("GET / HTTP/1.1\r\nHost: s\r\nCookie: session={session}\r\n\r\n"),
                format!(
                    "GET /x/y HTTP/1.1\r\nhost: s\r\ncookie:a=1; session={session}; b=2\r\n\r\n"
                ),
                format!(
                    "HEAD /q?session=9 HTTP/1.1\r\nX-Cookie: session=7\r\nCOOKIE: xsession=8;session={session}\r\nHost: s\r\n\r\n"
                ),
            ];
            let went: BTreeSet<_> = heads.iter().map(|head| ask(head)).collect();
            assert_eq!(went.len(), 1, "session {session} is in two places");
            places.extend(went);
        }
        assert_eq!(places.len(), 2, "all sessions are at one server");
        // Without one the rules of the file are in force.
        assert!(ask("GET /b/x HTTP/1.1\r\nHost: s\r\n\r\n"));
        assert!(!ask("GET /a/x HTTP/1.1\r\nHost: s\r\n\r\n"));
    });
}

/// A folder is at one server.
#[test]
fn a_program_keeps_classes_together() {
    on_bench_with_all(|bench| {
        open_place(bench);
        by(bench, BY_CLASS);
        let mut ports = 100..;
        let mut ask = |path: String| {
            let head = format!("GET {path} HTTP/1.1\r\nHost: s\r\n\r\n");
            goes(bench, ports.next().expect("ports are left"), &head)
        };
        let mut places = BTreeSet::new();
        for class in 0..16 {
            let paths = ["", "/", "/x", "/y/z", "?q=/b/"];
            let went: BTreeSet<_> = paths.map(|rest| ask(format!("/c{class}{rest}"))).into();
            assert_eq!(went.len(), 1, "class {class} is in two places");
            places.extend(went);
        }
        assert_eq!(places.len(), 2, "all classes are at one server");
        assert!(ask("/b/anything".into()), "the file's rule has b alone");
    });
}
