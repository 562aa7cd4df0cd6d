//! Servers that stand: stopped by a signal, or frozen with their control group.

use std::io::{ErrorKind, Read as _};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use godwit_lab::apps::server;
use godwit_lab::cluster::{Cluster, ClusterOptions};
use godwit_lab::freezer::FrozenGroup;
use godwit_lab::host::Host;
use godwit_lab::process::Process;
use godwit_lab::{Lab, LabOptions};
use godwit_tests::stage::{
    PORT, assert_unnoticed, flow, in_sync, servers, service_v4, service_v6, stage, throughout,
    wait_event, wait_in_sync, wait_protected, witness,
};
use godwit_tests::stream::{connect, expect, send};
use godwit_tests::{DEADLINE, until};

/// How a server is made to stand.
#[derive(Debug, Clone, Copy)]
enum Manner {
    /// SIGSTOP and SIGCONT.
    Signal,
    /// `cgroup.freeze`
    Group,
    /// It is put into a group that is frozen: nothing tells of that.
    Moved,
}

/// A server that can be made to stand.
struct Server {
    process: Process,
    manner: Manner,
    group: Option<FrozenGroup>,
}

impl Server {
    fn new(process: Process, manner: Manner) -> Result<Self> {
        let group = match manner {
            Manner::Signal => None,
            Manner::Group | Manner::Moved => {
                FrozenGroup::new(&format!("godwit-test-{}", process.pid()))?
            }
        };
        if let (Manner::Group, Some(group)) = (manner, &group) {
            group.take(process.pid())?;
        }
        Ok(Self {
            process,
            manner,
            group,
        })
    }

    fn stop(&mut self) -> Result<()> {
        match &self.group {
            Some(group) if matches!(self.manner, Manner::Moved) => {
                group.freeze()?;
                group.take(self.process.pid())
            }
            Some(group) => group.freeze(),
            None => self.process.stop(),
        }
    }

    fn go_on(&mut self) -> Result<()> {
        match &self.group {
            Some(group) => group.thaw(),
            None => self.process.cont(),
        }
    }
}

/// A server that is stopped has read nothing and says nothing. Its twin, which has answered,
/// is not called diverged for that, and goes on when the stopped one is killed.
#[test]
fn a_server_that_is_stopped_is_no_measure_for_its_twins() -> Result<()> {
    let Some(lab) = stage(LabOptions::default()) else {
        return Ok(());
    };
    let [mut a, _b] = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    let mut streams = Vec::new();
    for service in [service_v4(), service_v6()] {
        let mut stream = connect(lab.client(), service)?;
        send(&mut stream, "echo\nhello\n")?;
        expect(&mut stream, "hello\n")?;
        wait_protected(&cluster, Host::A, stream.local_addr()?);
        streams.push((stream.local_addr()?, stream));
    }
    a.stop()?;
    for (_, stream) in &mut streams {
        send(stream, "are you there?\n")?;
    }
    // `divergence_limit`, the time until a twin shows a longer answer, and a second more.
    throughout("it is protected", Duration::from_millis(3500), || {
        let protected = |local| flow(&cluster, Host::A, local).is_some_and(|it| it.protected);
        streams.iter().all(|(local, _)| protected(*local))
    });
    a.kill()?;
    cluster.wait_owner(Host::B, DEADLINE)?;
    for (_, stream) in &mut streams {
        expect(stream, "are you there?\n")?;
    }
    assert_unnoticed(capture);
    Ok(())
}

/// Answers each line in two halves, with half a second between them.
const HALVES: &str = r#"
import socketserver, sys, time
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(b"first, ")
            time.sleep(0.5)
            self.wfile.write(b"second\n")
class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    address_family, allow_reuse_address, daemon_threads = socketserver.socket.AF_INET6, True, True
Server(("::", int(sys.argv[1])), Handler).serve_forever()
"#;

fn warns_of_a_stop(cluster: &Cluster<'_>, host: Host) -> bool {
    let status = cluster.status(host);
    let warns = |text: &String| text.contains("server_stopped: ");
    status.is_ok_and(|status| status.warnings.iter().any(warns))
}

/// One that is stopped in the middle of an answer has said less than its twin for as long as
/// it stands. Its clients get the rest of the answer from who takes over.
#[test]
fn a_server_that_is_stopped_in_the_middle_of_an_answer_is_no_measure_either() -> Result<()> {
    stands_in_the_middle_of_an_answer(Manner::Signal)
}

/// No signal tells of it.
#[test]
fn a_server_whose_group_is_frozen_is_no_measure_either() -> Result<()> {
    stands_in_the_middle_of_an_answer(Manner::Group)
}

#[test]
fn a_server_that_comes_into_a_frozen_group_is_no_measure_either() -> Result<()> {
    stands_in_the_middle_of_an_answer(Manner::Moved)
}

fn stands_in_the_middle_of_an_answer(manner: Manner) -> Result<()> {
    let Some(lab) = stage(LabOptions::default()) else {
        return Ok(());
    };
    let start = |host: Host| {
        let mut command = Command::new("python3");
        command.args(["-c", HALVES, &PORT.to_string()]);
        lab.node(host).spawn("halves", command)
    };
    let (a, _b) = (start(Host::A)?, start(Host::B)?);
    let mut a = Server::new(a, manner)?;
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    let mut streams = Vec::new();
    for service in [service_v4(), service_v6()] {
        let mut stream = connect(lab.client(), service)?;
        wait_protected(&cluster, Host::A, stream.local_addr()?);
        send(&mut stream, "a line\n")?;
        expect(&mut stream, "first, second\n")?;
        streams.push((stream.local_addr()?, stream));
    }
    for (_, stream) in &mut streams {
        send(stream, "a line\n")?;
        expect(stream, "first, ")?;
    }
    a.stop()?;
    until("it is said", || Ok(warns_of_a_stop(&cluster, Host::A)))?;
    // The next agent knows of it, too.
    cluster.stop_agent(Host::A)?;
    cluster.start_agent(Host::A)?;
    until("it is said again", || {
        Ok(warns_of_a_stop(&cluster, Host::A))
    })?;
    cluster.wait_owner(Host::A, DEADLINE)?;
    for (local, _) in &streams {
        wait_protected(&cluster, Host::A, *local);
    }
    throughout("it is protected", Duration::from_millis(3500), || {
        let protected = |local| flow(&cluster, Host::A, local).is_some_and(|it| it.protected);
        streams.iter().all(|(local, _)| protected(*local))
    });
    a.go_on()?;
    until("it is taken back", || {
        Ok(!warns_of_a_stop(&cluster, Host::A))
    })?;
    for (_, stream) in &mut streams {
        expect(stream, "second\n")?;
        send(stream, "a line\n")?;
        expect(stream, "first, ")?;
    }
    a.stop()?;
    a.process.kill()?;
    cluster.wait_owner(Host::B, DEADLINE)?;
    for (_, stream) in &mut streams {
        expect(stream, "second\n")?;
    }
    assert_unnoticed(capture);
    Ok(())
}

/// Answers one line. With a second argument it goes on then, else it closes the connection.
const ONE_LINE: &str = r#"
import socketserver, sys
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(b"to " + self.rfile.readline())
        if len(sys.argv) > 2:
            self.rfile.read()
class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    address_family, allow_reuse_address, daemon_threads = socketserver.socket.AF_INET6, True, True
Server(("::", int(sys.argv[1])), Handler).serve_forever()
"#;

fn one_line(lab: &Lab, host: Host, goes_on: bool) -> Result<Process> {
    let mut command = Command::new("python3");
    command.args(["-c", ONE_LINE, &PORT.to_string()]);
    command.args(goes_on.then_some("goes on"));
    lab.node(host).spawn("one_line", command)
}

/// It says no less than its owner, who has not come there, and serves its client when that
/// one is killed.
#[test]
fn a_twin_that_has_ended_its_stream_stays_while_its_owner_stands() -> Result<()> {
    let Some(lab) = stage(LabOptions::default()) else {
        return Ok(());
    };
    let (mut a, _b) = (
        one_line(&lab, Host::A, false)?,
        one_line(&lab, Host::B, false)?,
    );
    let cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    let mut streams = Vec::new();
    for service in [service_v4(), service_v6()] {
        let stream = connect(lab.client(), service)?;
        wait_protected(&cluster, Host::A, stream.local_addr()?);
        streams.push(stream);
    }
    a.stop()?;
    for stream in &mut streams {
        send(stream, "a line\n")?;
    }
    throughout("they are protected", Duration::from_secs(3), || {
        let mut locals = streams.iter().filter_map(|it| it.local_addr().ok());
        locals.all(|local| flow(&cluster, Host::A, local).is_some_and(|it| it.protected))
    });
    a.kill()?;
    cluster.wait_owner(Host::B, DEADLINE)?;
    for stream in &mut streams {
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        assert_eq!(answer, "to a line\n");
    }
    assert_unnoticed(capture);
    Ok(())
}

/// At a takeover it would end the client's stream, which goes on.
#[test]
fn a_twin_that_ends_its_stream_alone_is_given_up() -> Result<()> {
    let Some(lab) = stage(LabOptions::default()) else {
        return Ok(());
    };
    let _servers = [
        one_line(&lab, Host::A, true)?,
        one_line(&lab, Host::B, false)?,
    ];
    let cluster = in_sync(&lab, ClusterOptions::default());
    for service in [service_v4(), service_v6()] {
        let mut stream = connect(lab.client(), service)?;
        let local = stream.local_addr()?;
        wait_protected(&cluster, Host::A, local);
        send(&mut stream, "a line\n")?;
        expect(&mut stream, "to a line\n")?;
        until("it is given up", || {
            let why = flow(&cluster, Host::A, local).and_then(|it| it.reason);
            Ok(why.is_some_and(|why| ["twin_closed", "diverged_length"].contains(&why.as_str())))
        })?;
    }
    Ok(())
}

/// Its clients would wait there.
#[test]
fn nothing_is_moved_to_a_server_that_stands() -> Result<()> {
    for manner in [Manner::Signal, Manner::Group, Manner::Moved] {
        let Some(lab) = stage(LabOptions::default()) else {
            return Ok(());
        };
        let [_a, b] = servers(&lab);
        let mut b = Server::new(b, manner)?;
        let cluster = in_sync(&lab, ClusterOptions::default());
        let capture = witness(&lab);
        let mut stream = connect(lab.client(), service_v4())?;
        wait_protected(&cluster, Host::A, stream.local_addr()?);
        b.stop()?;
        until("it is said", || Ok(warns_of_a_stop(&cluster, Host::B)))?;
        let refusal = cluster.hand_over("web", Host::A, Host::B);
        let refusal = refusal.expect_err("nobody would serve there");
        assert!(format!("{refusal:#}").contains("no_server"), "{refusal:#}");
        send(&mut stream, "echo\nhello\n")?;
        expect(&mut stream, "hello\n")?;
        b.go_on()?;
        until("it is taken back", || {
            Ok(!warns_of_a_stop(&cluster, Host::B))
        })?;
        cluster.hand_over("web", Host::A, Host::B)?;
        send(&mut stream, "hello again\n")?;
        expect(&mut stream, "hello again\n")?;
        assert_unnoticed(capture);
    }
    Ok(())
}

/// Its machine lives: clients had better come again there than wait where nobody answers.
#[test]
fn what_a_server_dies_with_does_not_go_to_one_that_stands() -> Result<()> {
    for manner in [Manner::Signal, Manner::Group] {
        let Some(lab) = stage(LabOptions::default()) else {
            return Ok(());
        };
        let [mut a, b] = servers(&lab);
        let mut b = Server::new(b, manner)?;
        let mut cluster = in_sync(&lab, ClusterOptions::default());
        let mut stream = connect(lab.client(), service_v4())?;
        wait_protected(&cluster, Host::A, stream.local_addr()?);
        b.stop()?;
        until("it is said", || Ok(nobody_listens(&cluster, Host::B)))?;
        a.kill()?;
        wait_event(&cluster, Host::B, "takeover_declined");
        wait_event(&cluster, Host::A, "no_taker");
        match stream.read(&mut [0; 64]) {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("the client hears of it: {other:?}"),
        }
        a = server::start(lab.node(Host::A), PORT)?;
        let mut stream = connect(lab.client(), service_v4())?;
        send(&mut stream, "echo\nhello\n")?;
        expect(&mut stream, "hello\n")?;
        cluster.wait_owner(Host::A, DEADLINE)?;

        b.go_on()?;
        until("it is taken back", || {
            Ok(!nobody_listens(&cluster, Host::B))
        })?;
        wait_in_sync(&mut cluster, Host::A);
        let mut stream = connect(lab.client(), service_v6())?;
        wait_protected(&cluster, Host::A, stream.local_addr()?);
        a.kill()?;
        cluster.wait_owner(Host::B, DEADLINE)?;
        send(&mut stream, "echo\nhello again\n")?;
        expect(&mut stream, "hello again\n")?;
    }
    Ok(())
}

fn nobody_listens(cluster: &Cluster<'_>, host: Host) -> bool {
    let status = cluster.status(host);
    let warns = |text: &String| {
        text.starts_with("service web: server_stopped: ") && text.contains("nobody else listens")
    };
    status.is_ok_and(|status| status.warnings.iter().any(warns))
}

/// Answers each line with itself, in one process or in two that accept from one listener.
const WORKERS: &str = r#"
import ctypes, os, signal, socketserver, sys
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)
class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    address_family, allow_reuse_address, daemon_threads = socketserver.socket.AF_INET6, True, True
server = Server(("::", int(sys.argv[1])), Handler)
if sys.argv[2] == "2" and os.fork() == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.setsid()  # signals of the lab go to groups
server.serve_forever()
"#;

/// A process that listens beside it takes its clients, and accepts what a server elsewhere
/// dies with.
#[test]
fn who_listens_beside_a_server_that_stands_takes_over() -> Result<()> {
    let Some(lab) = stage(LabOptions::default()) else {
        return Ok(());
    };
    let start = |host: Host, workers: u8| {
        let mut command = Command::new("python3");
        command.args(["-c", WORKERS, &PORT.to_string(), &workers.to_string()]);
        lab.node(host).spawn("workers", command)
    };
    let (mut a, mut b) = (start(Host::A, 1)?, start(Host::B, 2)?);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    b.stop()?;
    until("it is said", || Ok(warns_of_a_stop(&cluster, Host::B)))?;
    assert!(!nobody_listens(&cluster, Host::B));
    let mut stream = connect(lab.client(), service_v4())?;
    send(&mut stream, "hello\n")?;
    expect(&mut stream, "hello\n")?;
    wait_protected(&cluster, Host::A, stream.local_addr()?);
    a.kill()?;
    cluster.wait_owner(Host::B, DEADLINE)?;
    send(&mut stream, "hello again\n")?;
    expect(&mut stream, "hello again\n")?;
    assert_unnoticed(capture);
    Ok(())
}
