//! A server with a process for each connection: one that ends because of what its client
//! says concerns nobody else.

use std::io::Read as _;
use std::net::SocketAddr;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::cluster::ClusterOptions;
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions, Process};
use godwit_tests::stage::{
    PORT, assert_one_voice, flow, has_event, in_sync, service_v4, service_v6, stage, until,
    wait_protected, witness,
};
use godwit_tests::stream::{connect, expect, send};

/// Echoes lines. The word that a line names ends the process that has the connection.
const FORKING: &str = r#"
import os, resource, signal, socketserver, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            word = line.strip()
            if word == b"refuse": os._exit(3)
            if word == b"crash": os.kill(os.getpid(), signal.SIGSEGV)
            self.wfile.write(line)
class Server(socketserver.ForkingMixIn, socketserver.TCPServer):
    address_family, allow_reuse_address, request_queue_size = socketserver.socket.AF_INET6, True, 64
Server(("::", int(sys.argv[1])), Handler).serve_forever()
"#;

const ROUNDS: usize = 60;

/// Between two that misbehave.
const PAUSE: Duration = Duration::from_secs(1);

fn forking(lab: &Lab, host: Host) -> Process {
    let mut command = Command::new("python3");
    command.args(["-c", FORKING, &PORT.to_string()]);
    lab.node(host)
        .spawn("forking", command)
        .expect("python runs")
}

/// Says `word` on a connection of its own, which then ends.
fn misbehave(lab: &Lab, address: SocketAddr, word: &str) {
    let mut stream = until("the server accepts", || connect(lab.client(), address).ok());
    send(&mut stream, format!("{word}\n")).expect("it is connected");
    let timeout = Some(Duration::from_secs(10));
    stream.set_read_timeout(timeout).expect("not zero");
    // An end or a reset, as without Godwit.
    match stream.read(&mut [0; 64]) {
        Ok(got) => assert_eq!(got, 0, "{word}: no answer"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{word}"),
    }
}

/// A process that refuses its client with a code, or crashes over it, each second for a
/// minute: each of those clients sees its connection end, the others stay protected all the
/// time, and nothing moves.
#[test]
fn a_child_that_ends_by_its_own_client_concerns_no_other() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = Host::SERVERS.map(|host| forking(&lab, host));
    let cluster = in_sync(&lab, ClusterOptions::default());
    let capture = witness(&lab);
    let mut others = [service_v4(), service_v6()].map(|address| {
        let stream = connect(lab.client(), address).expect("it listens");
        wait_protected(&cluster, Host::A, stream.local_addr().expect("connected"));
        stream
    });
    for round in 0..ROUNDS {
        let due = Instant::now() + PAUSE;
        let word = ["refuse", "crash"][round % 2];
        let address = [service_v4(), service_v6()][round / 2 % 2];
        misbehave(&lab, address, word);
        for stream in &mut others {
            send(stream, "well\n").expect("it holds");
            expect(stream, "well\n").expect("it is answered");
            let local = stream.local_addr().expect("connected");
            let report = flow(&cluster, Host::A, local).expect("it is in the list");
            let kept = report.protected && report.protected_again_ms.is_none();
            assert!(kept, "round {round}: {report:?}");
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    let status = cluster.status(Host::A).expect("a answers");
    assert_eq!(status.services[0].role, "owner");
    for event in ["share_released", "takeover_declined", "standby_held_off"] {
        for host in Host::SERVERS {
            assert!(!has_event(&cluster, host, event), "{host}: {event}");
        }
    }
    let trace = capture.finish().expect("the capture is complete");
    assert_one_voice(&trace);
}
