//! A process that dies with the service's listener, or with a connection: real
//! ones, in the lab's namespace. What happens to an owner's connections is in
//! `tests/tests/process_exit.rs`.

use std::env;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use godwit_bpf::{Hook, Order, ProcessExit, Record};
use godwit_lab::Lab;
use godwit_lab::host::{Host, Network, SERVICE_V4};
use godwit_wire::{Generation, Role, SeqNumber, TcpFlags};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};

use crate::bench::{
    Bench, DROP, GENERATION, IRS, ISS, NEXT, SHARE, flow_id, from_service, on_bench_of, twin,
};
use crate::moves::shadow;
use crate::wait::until;

/// How the process of [`helper`] ends.
const ENDS: &str = "GODWIT_BPF_TEST_ENDS";

const HOLD: Duration = Duration::from_secs(10);

/// Port of a client of which that process is to hold a connection, too.
const CALLED: &str = "GODWIT_BPF_TEST_CALLED";

/// Where that process listens as soon as it has all that it is to have. No service's.
const READY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 81);

/// The process: listens with two descriptors and some threads, then ends with
/// the code that it is given, or waits for a signal.
#[test]
#[ignore = "a process that the tests here start"]
fn helper() {
    let Ok(end) = env::var(ENDS) else { return };
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80)).expect("port 80 is free");
    let _second = listener.try_clone().expect("another descriptor");
    for _ in 0..3 {
        thread::spawn(thread::park);
    }
    let _called = env::var(CALLED).ok().map(|port| {
        let caller = call(port.parse().expect("a port"));
        (caller, listener.accept().expect("it was called"))
    });
    let _ready = TcpListener::bind(READY).expect("port 81 is free");
    match end.parse() {
        Ok(code) => std::process::exit(code),
        Err(_) => loop {
            thread::park();
        },
    }
}

/// A connection with a fixture's ends, over loopback, where no hook is.
pub(crate) fn call(port: u16) -> TcpStream {
    let kind = (AddressFamily::Inet, SockType::Stream);
    let fd = socket(kind.0, kind.1, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    setsockopt(&fd, sockopt::ReuseAddr, &true).expect("it may be set");
    let [client, service] = callers(port).map(SockaddrStorage::from);
    bind(fd.as_raw_fd(), &client).expect("the port is free");
    connect(fd.as_raw_fd(), &service).expect("somebody listens");
    TcpStream::from(fd)
}

/// Both ends of that connection.
fn callers(port: u16) -> [SocketAddr; 2] {
    [(Host::Client.v4(), port).into(), (SERVICE_V4, 80).into()]
}

/// Starts [`helper`], waits until it is ready, and for its end.
fn run(lab: &Lab, end: &str) {
    run_called(lab, end, None);
}

/// The same; it has accepted a connection of the port `called` before that.
fn run_called(lab: &Lab, end: &str, called: Option<u16>) {
    let mut command = Command::new(env::current_exe().expect("this test"));
    command.args(["--ignored", "--exact", "process::helper"]);
    command.env(ENDS, end);
    if let Some(port) = called {
        command.env(CALLED, port.to_string());
    }
    let mut process = lab.a().spawn("helper", command).expect("it starts");
    let deadline = Instant::now() + Duration::from_secs(5);
    if end == "by signal" {
        while TcpStream::connect(READY).is_err() {
            assert!(Instant::now() < deadline, "it is not ready");
        }
        process.kill().expect("it runs");
    }
    process.wait(Duration::from_secs(5)).expect("it ends");
}

/// What the data path says of processes that died within a moment. Of one that was
/// killed it speaks twice, first when that one takes the signal.
fn exits(bench: &Bench) -> Vec<ProcessExit> {
    let (dying, gone): (Vec<_>, Vec<_>) = records(bench).into_iter().partition(|it| it.dying);
    for exit in &dying {
        let later = gone.iter().find(|it| it.pid == exit.pid);
        assert_eq!(later.map(|it| it.code), Some(exit.code), "{exit:?}");
    }
    gone
}

pub(crate) fn records(bench: &Bench) -> Vec<ProcessExit> {
    let records = bench.events.wait(Duration::from_millis(200));
    let exit = |record| match record {
        Record::Exit(exit) => Some(exit),
        Record::Flow(_)
        | Record::Reset(_)
        | Record::Unanswered(_)
        | Record::Stopped(_)
        | Record::Frozen
        | Record::ListenerClosed => None,
    };
    records.into_iter().filter_map(exit).collect()
}

/// Starts `command` and, when it is `ready`, stops it: what is said of that, and its number.
fn stopped(
    bench: &Bench,
    lab: &Lab,
    command: Command,
    ready: impl Fn() -> bool,
) -> (Vec<u32>, u32) {
    let mut process = lab.a().spawn("stopped", command).expect("it starts");
    until(ready, || "it is not ready".to_owned());
    process.stop().expect("it runs");
    let records = bench.events.wait(Duration::from_millis(200)).into_iter();
    let said = records.filter_map(|record| match record {
        Record::Stopped(pid) => Some(pid),
        Record::Flow(_)
        | Record::Reset(_)
        | Record::Unanswered(_)
        | Record::Frozen
        | Record::ListenerClosed
        | Record::Exit(_) => None,
    });
    let pid = process.pid().as_raw().cast_unsigned();
    let said: Vec<_> = said.collect();
    // Who looks finds the same, as soon as the signal is taken.
    let found = || bench.datapath.stopped.look().expect("it looks");
    let is_found = || found().contains(&pid) == said.contains(&pid);
    until(is_found, || format!("{said:?}, {:?}", found()));
    let hands = || {
        let holders = bench.datapath.stopped.holders().expect("it looks");
        let of = holders.into_iter().filter(|it| it.pid == pid);
        of.map(|it| it.stands).collect::<Vec<_>>()
    };
    // Two descriptors of its listener at port 80; the other port is no service's.
    let held = if said.is_empty() { 0 } else { 2 };
    assert_eq!(hands(), vec![true; held]);
    process.cont().expect("it stands");
    until(|| !found().contains(&pid), || "it goes on".to_owned());
    assert_eq!(hands(), vec![false; held]);
    (said, pid)
}

/// Of a signal that stops a server is told, of one to somebody else is not.
#[test]
fn a_server_that_is_stopped_is_told_of() {
    on_bench_of(|bench, lab, _| {
        let mut server = Command::new(env::current_exe().expect("this test"));
        server.args(["--ignored", "--exact", "process::helper"]);
        server.env(ENDS, "by signal");
        let ready = || TcpStream::connect(READY).is_ok();
        let (said, pid) = stopped(bench, lab, server, ready);
        assert_eq!(said, [pid]);
        let mut stranger = Command::new("sleep");
        stranger.arg("60");
        let (said, _) = stopped(bench, lab, stranger, || true);
        assert!(said.is_empty(), "{said:?}");
    });
}

fn refusal() -> Vec<u8> {
    let flags = TcpFlags::RST.with(TcpFlags::ACK);
    from_service(9, false, ISS, IRS.wrapping_add(1), flags, b"")
}

#[test]
fn the_last_listener_takes_the_owners_voice_with_it() {
    on_bench_of(|bench, lab, _| {
        let passes = "unprotected_at_takeover";
        bench.datapath.shares.hold(SHARE, HOLD).expect("it is set");
        bench.expect(Hook::Gate, "before", &refusal(), NEXT, passes);
        for (end, code) in [("by signal", 9), ("3", 3 << 8)] {
            run(lab, end);
            let exits = exits(bench);
            let [exit] = &exits[..] else {
                panic!("{end}: {exits:?}");
            };
            assert_eq!((exit.share, exit.code), (SHARE, code));
            assert!(exit.listened && exit.last_listener, "{exit:?}");
            assert!(exit.comm.starts_with("hooks"), "{exit:?}");
            bench.expect(Hook::Gate, end, &refusal(), DROP, "released");
            bench.expect(Hook::Guard, end, &refusal(), DROP, "released");
            bench.datapath.shares.open(SHARE).expect("it opens");
            bench.expect(Hook::Gate, "opened", &refusal(), NEXT, passes);
        }
        // One that ends as it meant to is none of our business.
        run(lab, "0");
        assert_eq!(exits(bench), []);
        bench.expect(Hook::Gate, "after code 0", &refusal(), NEXT, passes);
    });
}

#[test]
fn a_silence_ends_by_itself() {
    on_bench_of(|bench, lab, _| {
        let hold = Duration::from_millis(400);
        bench.datapath.shares.hold(SHARE, hold).expect("it is set");
        run(lab, "by signal");
        bench.expect(Hook::Gate, "at once", &refusal(), DROP, "released");
        let since = Instant::now();
        while bench.verdict(Hook::Gate, &refusal()) == Some(DROP) {
            assert!(since.elapsed() < 10 * hold, "it stays silent");
        }
        let counts = bench.counts();
        assert!(counts.contains(&("no_taker".to_owned(), 1)), "{counts:?}");
    });
}

/// Nobody could take over, or the service wants its connections closed.
#[test]
fn nothing_is_silenced_where_nobody_could_take_over() {
    on_bench_of(|bench, lab, _| {
        let passes = "unprotected_at_takeover";
        run(lab, "by signal");
        assert_eq!(exits(bench).len(), 1, "on_process_exit = close");
        bench.expect(Hook::Gate, "no hold", &refusal(), NEXT, passes);
        bench.datapath.shares.hold(SHARE, HOLD).expect("it is set");
        bench.lose_standby();
        run(lab, "by signal");
        assert_eq!(exits(bench).len(), 1, "without a standby");
        bench.expect(Hook::Gate, "no standby", &refusal(), NEXT, passes);
        bench.play(Role::Shadow);
        run(lab, "by signal");
        assert!(exits(bench)[0].last_listener, "a shadow is told too");
    });
}

/// Both ends of the connections of [`helper`] are on this machine.
pub(crate) fn take_addresses(lab: &Lab) {
    for address in callers(0) {
        let mut command = Command::new("ip");
        command.args(["address", "add"]);
        command.args([&format!("{}/32", address.ip()), "dev", "lo"]);
        let added = lab.a().run(command, Duration::from_secs(5));
        assert!(added.expect("ip runs").status.success());
    }
}

/// The standby may have been told that it may serve the new twin of a running flow,
/// and its owner not know yet that it does: the end of its process is no end.
#[test]
fn a_flow_whose_new_twin_has_all_is_kept() {
    on_bench_of(|bench, lab, _| {
        take_addresses(lab);
        bench.datapath.shares.hold(SHARE, HOLD).expect("it is set");
        let (stay, next) = (Generation(GENERATION.0 + 1), IRS.wrapping_add(1));
        for (port, whole) in [(7, false), (8, true)] {
            bench.lose_standby();
            bench.connect(port, false);
            bench.gain_standby(stay);
            let rejoin = bench.order_for(
                flow_id(port, false),
                Order::Rejoin(stay, SeqNumber(ISS + 1)),
            );
            rejoin.expect("it can have a twin");
            if whole {
                let standby = Host::B.mac(Network::Data);
                let all = twin(standby, port, false, (ISS + 1, next), TcpFlags::ACK, b"");
                bench.expect(Hook::Tap, "the twin's ACK", &all, DROP, "twin_ack");
            }
            run_called(lab, "by signal", Some(port));
            let kept: u32 = records(bench).iter().map(|exit| exit.kept).sum();
            assert_eq!(kept, u32::from(whole));
            bench.datapath.shares.open(SHARE).expect("it opens");
        }
    });
}

/// A twin's FIN ends the client's stream only if its process said so, or the
/// owner's has closed as well: not if the kernel closed because there is no
/// process any more.
#[test]
fn a_twin_whose_process_is_gone_does_not_end_a_stream() {
    on_bench_of(|bench, lab, _| {
        take_addresses(lab);
        let (fin, next) = (TcpFlags::FIN.with(TcpFlags::ACK), IRS.wrapping_add(1));
        for (port, end, owner_closed, served) in [
            (7, None, false, true),
            (8, Some("0"), false, false),
            (9, Some("0"), true, true),
            (10, Some("3"), false, false),
            (11, Some("3"), true, true),
        ] {
            shadow(bench, port, false);
            if let Some(end) = end {
                // Its connection stands for a twin's, which comes by other ways.
                bench.serve(false);
                run_called(lab, end, Some(port));
                bench.serve(true);
            }
            let answer = from_service(port, false, ISS + 1, next, fin, b"answer");
            bench.expect(Hook::Gate, "the twin's FIN", &answer, DROP, "unsent");
            if owner_closed {
                let owner = twin(
                    Host::B.mac(Network::Data),
                    port,
                    false,
                    (ISS + 1, next),
                    fin,
                    b"answer",
                );
                bench.expect(Hook::Tap, "the owner's", &owner, DROP, "owner_segment");
            }
            bench.play(Role::Owner);
            let (verdict, reasons) = bench.pass(Hook::Gate, &answer);
            let wanted = if served { NEXT } else { DROP };
            assert_eq!(verdict, wanted, "{end:?}, {owner_closed}: {reasons:?}");
            bench.order(Order::Forget).expect("it is removed");
        }
    });
}
