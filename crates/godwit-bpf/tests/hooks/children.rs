//! Processes of a server that end while the server lives: a child per connection, a
//! worker. Real ones, in the lab's namespace; the server is a process of this test.

use std::env;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use godwit_bpf::{Hook, ProcessExit};
use godwit_lab::Lab;
use godwit_wire::TcpFlags;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::bench::{Bench, IRS, ISS, SHARE, flow_id, from_service, on_bench_of};
use crate::process::{call, records, take_addresses};

/// How the child of [`server`] ends: a script of sh(1), or a word of [`end`].
const ENDS: &str = "GODWIT_BPF_TEST_CHILD_ENDS";

/// The ports of the clients whose connections it has.
const PORTS: &str = "GODWIT_BPF_TEST_CHILD_PORTS";

/// Whether it has the listener, too.
const LISTENS: &str = "GODWIT_BPF_TEST_CHILD_LISTENS";

const HOLD: Duration = Duration::from_secs(10);

/// The server: its child has all connections, and ends. Then the server ends well.
#[test]
#[ignore = "a process that the tests here start"]
fn server() {
    let Ok(ends) = env::var(ENDS) else { return };
    let ports = env::var(PORTS).expect("it is set");
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80)).expect("port 80 is free");
    let accept = |port: &str| {
        let caller = call(port.parse().expect("a port"));
        (caller, listener.accept().expect("it was called").0)
    };
    let (callers, accepted): (Vec<_>, Vec<TcpStream>) = ports.split(',').map(accept).unzip();
    for stream in &accepted {
        inherit(stream.as_fd(), FdFlag::empty());
    }
    if env::var(LISTENS).is_ok() {
        inherit(listener.as_fd(), FdFlag::empty());
    }
    let script = match ends.as_str() {
        "managed" | "foreign" => "exec sleep 60".to_owned(),
        script => format!("read go; {script}"),
    };
    let mut child = Command::new("sh");
    child.args(["-c", &script]).stdin(Stdio::piped());
    let child = child.spawn().expect("sh runs");
    drop(accepted);
    inherit(listener.as_fd(), FdFlag::FD_CLOEXEC);
    end(child, &ends);
    drop(callers);
}

/// Whether programs that are started have it.
fn inherit(file: BorrowedFd<'_>, flag: FdFlag) {
    fcntl(file, FcntlArg::F_SETFD(flag)).expect("it is open");
}

/// The child has its connections for itself now. `managed`: the server kills its child.
/// `foreign`: somebody else does.
fn end(mut child: Child, how: &str) {
    match how {
        "managed" => child.kill().expect("it runs"),
        "foreign" => {
            let kill = format!("kill -KILL {}", child.id());
            let killed = Command::new("sh").args(["-c", &kill]).status();
            assert!(killed.expect("sh runs").success());
        }
        _ => {
            let mut go = child.stdin.take().expect("a pipe");
            go.write_all(b"\n").expect("it waits");
        }
    }
    child.wait().expect("it ends");
}

/// What the data path says of the child.
fn run(bench: &Bench, lab: &Lab, ends: &str, ports: &str, listens: bool) -> Vec<ProcessExit> {
    let mut command = Command::new(env::current_exe().expect("this test"));
    command.args(["--ignored", "--exact", "children::server"]);
    command.env(ENDS, ends).env(PORTS, ports);
    if listens {
        command.env(LISTENS, "");
    }
    let mut process = lab.a().spawn("server", command).expect("it starts");
    let status = process.wait(Duration::from_secs(20)).expect("it ends");
    assert!(status.success(), "{ends}: {status}, {}", process.log());
    records(bench)
}

const OWN: (u32, bool) = (0, false);

/// Who ends how, and what is held for a standby: connections, and whether that is a
/// death of the server. What ends with a code, or by its manager's signal, ends for its
/// own clients alone; so does what crashes with a single connection.
const TABLE: [(&str, &str, bool, (u32, bool)); 13] = [
    ("exit 3", "7", false, OWN),
    ("exit 255", "7", true, OWN),
    ("exit 1", "7,8", true, OWN),
    ("kill -ABRT $$", "7", false, OWN),
    ("kill -SEGV $$", "7", true, OWN),
    ("kill -KILL $$", "7", false, OWN),
    ("kill -SEGV $$", "7,8", false, (2, true)),
    ("trap 'trap - TERM; kill $$' TERM; kill $$", "7", false, OWN),
    ("managed", "7", false, OWN),
    ("managed", "7,8", true, OWN),
    ("foreign", "7", false, (1, true)),
    ("foreign", "7,8", true, (2, true)),
    ("exit 0", "7,8", true, OWN),
];

#[test]
fn only_a_death_of_the_server_is_held_for_a_standby() {
    on_bench_of(|bench, lab, _| {
        take_addresses(lab);
        bench.datapath.shares.hold(SHARE, HOLD).expect("it is set");
        for (ends, ports, listens, wanted) in TABLE {
            let of = |port: &str| port.parse::<u16>().expect("a port");
            for port in ports.split(',') {
                bench.connect(of(port), false);
            }
            let records = run(bench, lab, ends, ports, listens);
            let kept = records.iter().map(|exit| exit.kept).sum();
            let server = records.iter().any(|exit| exit.server);
            let about = format!("{ends}, {ports}, {listens}: {records:?}");
            assert_eq!((kept, server), wanted, "{about}");
            assert!(!records.iter().any(|exit| exit.last_listener), "{about}");
            for port in ports.split(',').map(of) {
                let fin = TcpFlags::FIN.with(TcpFlags::ACK);
                let next = IRS.wrapping_add(1);
                let fin = from_service(port, false, ISS + 1, next, fin, b"");
                let (verdict, reasons) = bench.pass(Hook::Gate, &fin);
                let held = reasons.iter().any(|it| it == "process_exit");
                assert_eq!(held, wanted.1, "{about}: {verdict} {reasons:?}");
                let id = flow_id(port, false);
                let end = bench.order_for(id, godwit_bpf::Order::Forget);
                end.expect("it is removed");
            }
        }
    });
}
