//! A process that dies with the service's listener: real ones, in the lab's
//! namespace. What happens to its connections is in `tests/tests/process_exit.rs`.

use std::env;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use godwit_bpf::{Hook, ProcessExit, Record};
use godwit_lab::Lab;
use godwit_wire::{Role, TcpFlags};

use crate::bench::{Bench, DROP, IRS, ISS, NEXT, SHARE, from_service, on_bench_of};

/// How the process of [`helper`] ends.
const ENDS: &str = "GODWIT_BPF_TEST_ENDS";

const HOLD: Duration = Duration::from_secs(10);

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
    thread::sleep(Duration::from_millis(50));
    match end.parse() {
        Ok(code) => std::process::exit(code),
        Err(_) => loop {
            thread::park();
        },
    }
}

/// Starts [`helper`], waits until it listens, and for its end.
fn run(lab: &Lab, end: &str) {
    let mut command = Command::new(env::current_exe().expect("this test"));
    command.args(["--ignored", "--exact", "process::helper"]);
    command.env(ENDS, end);
    let mut process = lab.a().spawn("helper", command).expect("it starts");
    let deadline = Instant::now() + Duration::from_secs(5);
    if end == "by signal" {
        let address = (Ipv4Addr::LOCALHOST, 80);
        while std::net::TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "it does not listen");
        }
        process.kill().expect("it runs");
    }
    process.wait(Duration::from_secs(5)).expect("it ends");
}

/// What the data path says of processes that died within a moment.
fn exits(bench: &Bench) -> Vec<ProcessExit> {
    let records = bench.events.wait(Duration::from_millis(200));
    let exit = |record| match record {
        Record::Exit(exit) => Some(exit),
        Record::Flow(_) => None,
    };
    records.into_iter().filter_map(exit).collect()
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
