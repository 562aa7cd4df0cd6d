//! The lab itself: topology, links, processes, cleaning up. Needs root.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::apps::client::Client;
use godwit_lab::apps::content::Content;
use godwit_lab::apps::server;
use godwit_lab::capture::Capture;
use godwit_lab::host::{Host, Network};
use godwit_lab::links::{Loss, PER_MYRIAD, Shape};
use godwit_lab::meter::Meter;
use godwit_lab::{Lab, LabOptions};
use godwit_wire::TcpFlags;
use nix::sys::socket::{setsockopt, sockopt};

const DEADLINE: Duration = Duration::from_secs(20);

/// Answers to `count` datagrams; a lost one costs 100 ms.
fn reached(lab: &Lab, from: Host, to: Host, address: IpAddr, count: u32) -> usize {
    let patience = Duration::from_millis(100);
    let pings = lab.ping_within(from, to, address, count, patience);
    pings.expect("pings can be sent").received()
}

/// Middle round-trip time from the client to [`Host::A`], in milliseconds.
fn round_trip_ms(lab: &Lab) -> f64 {
    let pings = lab.ping(Host::Client, Host::A, Host::A.v4().into(), 10);
    let median = pings.expect("pings can be sent").median();
    median.map_or(f64::INFINITY, |time| time.as_secs_f64() * 1e3)
}

fn exists(namespace: &str) -> bool {
    Path::new("/run/netns").join(namespace).exists()
}

#[test]
fn everyone_reaches_everyone_in_both_families() {
    let options = LabOptions {
        attacker: true,
        ..LabOptions::default()
    };
    let Some(lab) = common::lab(options) else {
        return;
    };
    for from in lab.nodes() {
        for to in lab.nodes() {
            for address in [IpAddr::from(to.host().v4()), IpAddr::from(to.host().v6())] {
                let received = reached(&lab, from.host(), to.host(), address, 2);
                assert_eq!(received, 2, "{} -> {address}", from.host());
            }
        }
    }
    let control = Host::B.control_v4().into();
    assert_eq!(reached(&lab, Host::A, Host::B, control, 2), 2);
}

#[test]
fn a_shaped_link_has_its_rate_in_both_directions() {
    let Some(lab) = common::lab(LabOptions::default()) else {
        return;
    };
    let _server = server::start(lab.a(), 7000).expect("the server starts");
    lab.shape(Host::Client, Some(Shape::mbit(200)))
        .expect("the link is shaped");
    let content = Content {
        seed: 3,
        length: 20_000_000,
    };
    let address = SocketAddr::from((Host::A.v4(), 7000));
    let timed = |work: fn(&mut Client, Content, &Meter)| {
        let transfer = || {
            let mut client = Client::connect(address, DEADLINE).expect("the client connects");
            let meter = Meter::default();
            work(&mut client, content, &meter);
            // Ethernet, IPv4 and TCP with time stamps: 66 bytes on each 1448.
            let wire_bits = content.length as f64 * 8.0 * (1448.0 + 66.0) / 1448.0;
            wire_bits / meter.started().elapsed().as_secs_f64() / 1e6
        };
        lab.client()
            .enter(transfer)
            .expect("the client machine is there")
    };
    let down = timed(|client, content, meter| {
        assert!(client.get(content, meter).expect("the download ends").exact);
    });
    let up = timed(|client, content, meter| {
        client.put(content, meter).expect("the upload ends");
    });
    for (direction, mbit) in [("down", down), ("up", up)] {
        assert!(
            (180.0..=210.0).contains(&mbit),
            "{direction}: {mbit:.0} Mbit/s"
        );
    }
}

/// As behind a real link: TCP's small queues would take it for unsent.
#[test]
fn what_waits_in_the_switch_belongs_to_no_socket() {
    let Some(lab) = common::lab(LabOptions::default()) else {
        return;
    };
    let slow = Shape {
        rate_bits: 8_000_000,
        queue: Duration::from_millis(200),
    };
    lab.shape(Host::Client, Some(slow))
        .expect("the link is shaped");
    let bind = |host: Host| {
        let node = lab.node(host);
        let socket = node.enter(|| UdpSocket::bind((host.v4(), 7000)));
        socket.expect("it is there").expect("the port is free")
    };
    let (from, to) = (bind(Host::A), bind(Host::Client));
    to.set_read_timeout(Some(DEADLINE)).expect("it is its own");
    setsockopt(&from, sockopt::SndBuf, &4096).expect("a small one");
    from.set_nonblocking(true).expect("it is its own");
    let mut buffer = [0; 1400];
    // The first one waits for a neighbour's address.
    for burst in [1, 40] {
        for _ in 0..burst {
            let sent = from.send_to(&buffer, (Host::Client.v4(), 7000));
            sent.expect("there is room: nothing waits on this machine");
        }
        for _ in 0..burst {
            to.recv(&mut buffer).expect("none is lost");
        }
    }
}

#[test]
fn a_delay_line_adds_its_round_trip_and_nothing_else() {
    let Some(lab) = common::lab(LabOptions::default()) else {
        return;
    };
    for one_way in [4500, 10_000, 150_000].map(Duration::from_micros) {
        lab.delay(Host::Client, one_way)
            .expect("the line is put in");
        let added = round_trip_ms(&lab) - 2.0 * one_way.as_secs_f64() * 1e3;
        assert!((0.0..2.0).contains(&added), "{one_way:?}: {added} ms more");
    }
    lab.delay(Host::Client, Duration::ZERO)
        .expect("the line is taken out");
    let without = round_trip_ms(&lab);
    assert!(without < 1.0, "{without} ms without a line");
}

#[test]
fn a_delay_line_keeps_order_and_bytes() {
    let Some(lab) = common::lab(LabOptions::default()) else {
        return;
    };
    let _server = server::start(lab.a(), 7000).expect("the server starts");
    lab.delay(Host::Client, Duration::from_millis(5))
        .expect("the line is put in");
    let capture = Capture::start(lab.client(), Network::Data).expect("the capture starts");
    let content = Content {
        seed: 4,
        length: 20_000_000,
    };
    let address = SocketAddr::from((Host::A.v6(), 7000));
    let verdict = lab.client().enter(|| {
        let mut client = Client::connect(address, DEADLINE).expect("the client connects");
        client
            .get(content, &Meter::default())
            .expect("the download ends")
    });
    assert!(verdict.expect("the client machine is there").exact);
    let trace = capture.finish().expect("the capture is complete");
    let data = trace
        .segments()
        .filter(|s| s.from.port == 7000 && s.length > 0);
    let (mut next, mut late) = (None, 0);
    for segment in data {
        late += u32::from(next.is_some_and(|next| segment.seq.lt(next)));
        next = Some(segment.seq + segment.length);
    }
    assert_eq!(late, 0, "segments that came late or twice");
}

#[test]
fn a_crashed_machine_says_nothing_any_more() {
    let Some(lab) = common::lab(LabOptions::default()) else {
        return;
    };
    let mut server = server::start(lab.a(), 7000).expect("the server starts");
    let capture = Capture::start(lab.client(), Network::Data).expect("the capture starts");
    let address = SocketAddr::from((Host::A.v4(), 7000));
    let content = Content {
        seed: 5,
        length: u64::MAX,
    };
    let client = lab.client().clone();
    let download = thread::spawn(move || {
        client.enter(|| {
            let meter = Meter::default();
            let mut client = Client::connect(address, Duration::from_secs(1)).expect("it connects");
            let error = client.get(content, &meter).expect_err("the download dies");
            (meter.last(), format!("{error:#}"))
        })
    });
    thread::sleep(Duration::from_millis(300));
    let crash = lab.crash(Host::A).expect("the machine crashes");
    let (last, error) = download
        .join()
        .expect("no panic")
        .expect("the client machine is there");
    // What was in the client's own queues may still be read.
    let last = last.expect("there was a first byte");
    assert!(last < crash.until + Duration::from_millis(50));
    // Silence, not an error from the network: the read just timed out.
    assert!(error.contains("downloading"), "{error}");
    let trace = capture.finish().expect("the capture is complete");
    let from_a = trace.segments().filter(|s| s.from.port == 7000);
    assert_eq!(
        from_a
            .clone()
            .filter(|s| s.flags.0 & (TcpFlags::RST.0 | TcpFlags::FIN.0) != 0)
            .count(),
        0
    );
    assert!(from_a.count() > 100);
    assert!(!server.is_running());
    assert_eq!(lab.a().netns().pids().expect("the namespace is there"), []);
    lab.reboot(Host::A).expect("it boots");
    let address = Host::A.v4().into();
    assert_eq!(reached(&lab, Host::Client, Host::A, address, 3), 3);
}

#[test]
fn loss_on_the_tap_hits_only_the_tap() {
    let Some(lab) = common::lab(LabOptions::default()) else {
        return;
    };
    let mut loss = Loss {
        from: Host::A,
        to: Host::B,
        per_myriad: PER_MYRIAD / 2,
    };
    lab.lose(loss).expect("the rule is set");
    let tap = || reached(&lab, Host::A, Host::B, Host::B.v4().into(), 100);
    let received = tap();
    assert!((20..80).contains(&received), "{received} of 100 at 50 %");
    let data = Host::B.v4().into();
    assert_eq!(reached(&lab, Host::Client, Host::B, data, 50), 50);
    let control = Host::B.control_v4().into();
    assert_eq!(reached(&lab, Host::A, Host::B, control, 50), 50);
    loss.per_myriad = 0;
    lab.lose(loss).expect("the rule is removed");
    assert_eq!(tap(), 100);
}

#[test]
fn links_can_be_cut_apart() {
    let Some(lab) = common::lab(LabOptions::default()) else {
        return;
    };
    let data = || reached(&lab, Host::A, Host::B, Host::B.v4().into(), 3);
    let control = || reached(&lab, Host::A, Host::B, Host::B.control_v4().into(), 3);
    // Before the cut, so that the neighbours know each other.
    assert_eq!((data(), control()), (3, 3));
    lab.cut(Host::B, &[Network::Control])
        .expect("the link is cut");
    assert_eq!((data(), control()), (3, 0));
    lab.heal(Host::B, &[Network::Control])
        .expect("the link is healed");
    assert_eq!((data(), control()), (3, 3));
    lab.unplug(Host::B, Network::Data)
        .expect("the plug is pulled");
    assert_eq!((data(), control()), (0, 3));
    lab.plug(Host::B, Network::Data).expect("the plug is back");
    // The carrier comes back a moment after the plug.
    assert!((0..20).any(|_| data() == 3), "the data link stays down");
    assert_eq!(control(), 3);
}

#[test]
fn two_labs_at_once_do_not_meet_and_leave_nothing() {
    let Some(first) = common::lab(LabOptions::default()) else {
        return;
    };
    let second = Lab::new(LabOptions {
        control_network: false,
        ..LabOptions::default()
    })
    .expect("a second lab can be built");
    let mut sleeper = Command::new("sleep");
    sleeper.arg("1000");
    let sleeper = first.a().spawn("sleep", sleeper).expect("it starts");
    let pid = PathBuf::from("/proc").join(sleeper.pid().to_string());
    std::mem::forget(sleeper);
    let address = Host::B.v4().into();
    assert_eq!(reached(&second, Host::Client, Host::B, address, 2), 2);
    let labs = [&first, &second];
    let namespaces = labs.iter().flat_map(|lab| lab.nodes());
    let names = namespaces
        .map(|n| n.netns().name().to_owned())
        .collect::<BTreeSet<_>>();
    assert_eq!(names.len(), 8);
    assert!(names.iter().all(|name| exists(name)));
    let folders = labs.map(|lab| lab.folder().to_owned());
    let extra = folders[1].with_extension("extra");
    fs::write(&extra, "").expect("a file can be written");
    second.remove_at_end(&extra).expect("it is remembered");
    drop((first, second));
    assert!(!names.iter().any(|name| exists(name)));
    assert!(!folders.iter().any(|folder| folder.exists()));
    assert!(!extra.exists());
    // Only its zombie is left, as the test forgot the handle.
    assert!(fs::read_to_string(pid.join("stat")).is_ok_and(|s| s.contains(" Z ")));
}

#[test]
fn a_panic_in_a_test_cleans_up_too() {
    let Some(lab) = common::lab(LabOptions::default()) else {
        return;
    };
    let name = lab.a().netns().name().to_owned();
    let outcome = thread::spawn(move || {
        let _lab = lab;
        panic!("on purpose");
    })
    .join();
    assert!(outcome.is_err());
    assert!(!exists(&name));
}

/// Not a test: what [`a_killed_process_leaves_nothing`] starts and kills.
#[test]
#[ignore = "runs until it is killed"]
fn hold_a_lab() {
    let lab = Lab::new(LabOptions::default()).expect("a lab can be built");
    let mut sleeper = Command::new("sleep");
    sleeper.arg("1000");
    let _sleeper = lab.a().spawn("sleep", sleeper).expect("it starts");
    fs::write(std::env::var_os(READY).expect("it is set"), lab.id()).expect("a file");
    loop {
        thread::park();
    }
}

/// Environment variable with the file in which [`hold_a_lab`] names its lab.
const READY: &str = "GODWIT_LAB_READY";

#[test]
fn a_killed_process_leaves_nothing() {
    let Some(lab) = common::lab(LabOptions::default()) else {
        return;
    };
    let file = lab.folder().join("ready");
    let mut holder = Command::new(std::env::current_exe().expect("it has a path"));
    holder.args(["--exact", "hold_a_lab", "--ignored"]);
    holder.env(READY, &file).stdout(Stdio::null());
    let mut holder = holder.spawn().expect("it starts");
    let id = until("the other lab", || {
        fs::read_to_string(&file).ok().filter(|id| !id.is_empty())
    });
    assert!(exists(&format!("{id}-a")));
    // Not even a signal handler could run now.
    holder.kill().expect("it is ours");
    holder.wait().expect("it is ours");
    let folder = std::env::temp_dir().join(format!("godwit-lab-{id}"));
    until("the watchdog", || {
        let gone = ["client", "a", "b", "switch"].map(|host| !exists(&format!("{id}-{host}")));
        (gone == [true; 4] && !folder.exists()).then_some(())
    });
}

/// Waits for a condition with a deadline.
fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "waited too long for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
