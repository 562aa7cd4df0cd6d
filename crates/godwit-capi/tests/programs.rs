//! Programs in C and Python with the library as it is installed: alone, and with an
//! agent.

use std::env;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use godwit_agent::apps::{AppSocket, Apps};
use godwit_agent::input::Inbox;
use godwit_wire::{FlowKey, HandoffRefusal};

const DEADLINE: Duration = Duration::from_secs(20);
const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// Where cargo has put the library that belongs to this test.
fn libraries() -> PathBuf {
    let own = env::current_exe().expect("we run");
    let folder = own.parent().expect("a folder");
    let found = folder
        .ancestors()
        .take(2)
        .find(|at| at.join("libgodwit.so").exists());
    found
        .expect("`cargo build -p godwit-capi` comes first")
        .to_owned()
}

/// Every error of the C side is the end of the program.
const SANITIZED: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// How a program gets the library.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Linked {
    Shared,
    Static,
}

/// As users have them, and as errors show.
const BUILDS: [(Linked, &[&str]); 2] = [(Linked::Shared, &[]), (Linked::Static, SANITIZED)];

/// A program of ours, compiled.
fn compile(folder: &Path, source: &str, (linked, extra): (Linked, &[&str])) -> PathBuf {
    let source = Path::new(CRATE).join(source);
    let program = folder.join(source.file_stem().expect("a name"));
    let library = match linked {
        Linked::Static => libraries().join("libgodwit.a"),
        Linked::Shared => {
            let so = libraries().join("libgodwit.so");
            let wanted = folder.join("libgodwit.so.0");
            if !wanted.exists() {
                std::os::unix::fs::symlink(&so, &wanted).expect("the folder is ours");
            }
            so
        }
    };
    let compiled = Command::new("cc")
        .args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-g",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .args(extra)
        .arg(format!("-I{CRATE}/include"))
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .arg(library)
        .args(["-lpthread", "-ldl", "-lm"])
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .status();
    assert!(
        compiled.expect("a C compiler").success(),
        "{}",
        source.display()
    );
    program
}

/// What the library knows of a process lives as long as that.
fn sanitized(program: PathBuf) -> Command {
    let mut command = Command::new(program);
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    command
}

fn runs(command: &mut Command) {
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{said}",
        output.status
    );
}

/// A server that ends with the test.
struct Server(Child);

impl Server {
    fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("it starts"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener
        .local_addr()
        .expect("it is bound")
        .port()
        .to_string()
}

fn connect(port: &str) -> TcpStream {
    let address = format!("127.0.0.1:{port}");
    let end = Instant::now() + DEADLINE;
    loop {
        match TcpStream::connect(&address) {
            Ok(client) => {
                client.set_read_timeout(Some(DEADLINE)).expect("a limit");
                return client;
            }
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// What `stream.c` sends.
fn byte_at(at: u64) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]
}

fn is_the_stream(bytes: &[u8]) -> bool {
    (0..).zip(bytes).all(|(at, byte)| *byte == byte_at(at))
}

#[test]
fn the_header_stands_alone() {
    for (compiler, language) in [("cc", "c"), ("c++", "c++")] {
        let standard = if language == "c" {
            "-std=c99"
        } else {
            "-std=c++11"
        };
        runs(
            Command::new(compiler)
                .args([
                    standard,
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                    "-pedantic",
                    "-fsyntax-only",
                ])
                .args(["-x", language])
                .arg(format!("{CRATE}/include/godwit.h")),
        );
    }
}

/// Users copy them: what serves is to be read in a minute or two.
#[test]
fn the_servers_are_short() {
    for program in ["stream.c", "http.c", "game.py"] {
        let text = std::fs::read_to_string(format!("{CRATE}/../../apps/{program}"));
        let lines = text.expect("it is there").lines().count();
        assert!(lines < 150, "{program} has {lines} lines");
    }
}

#[test]
fn misuse_is_survived() {
    let folder = tempfile::tempdir().expect("a folder");
    for build in [(Linked::Shared, &[][..]), (Linked::Static, &[])] {
        let program = compile(folder.path(), "tests/c/abuse.c", build);
        runs(&mut Command::new(program));
    }
}

#[test]
fn misuse_is_survived_under_the_address_sanitizer() {
    let folder = tempfile::tempdir().expect("a folder");
    for linked in [Linked::Shared, Linked::Static] {
        let program = compile(folder.path(), "tests/c/abuse.c", (linked, SANITIZED));
        runs(&mut sanitized(program));
    }
}

#[test]
fn misuse_is_survived_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed (make setup)");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), "tests/c/abuse.c", (Linked::Shared, &[]));
    // A child has no mapping of its parent's region, which a search for leaks
    // would read word by word.
    runs(
        Command::new("valgrind")
            .args(["-q", "--error-exitcode=9", "--leak-check=no"])
            .arg(program),
    );
}

#[test]
fn the_streaming_server_runs_without_an_agent() {
    BUILDS.into_iter().for_each(streams_alone);
}

fn streams_alone(build: (Linked, &[&str])) {
    let folder = tempfile::tempdir().expect("a folder");
    let port = free_port();
    let program = compile(folder.path(), "../../apps/stream.c", build);
    let _server = Server::start(sanitized(program).args(["127.0.0.1", &port]));
    let mut client = connect(&port);
    client.write_all(b"1000000\n").expect("it is open");
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).expect("it is open");
    assert!(heard.len() == 1_000_000 && is_the_stream(&heard));
}

#[test]
fn the_http_server_runs_without_an_agent() {
    BUILDS.into_iter().for_each(serves_files_alone);
}

fn serves_files_alone(build: (Linked, &[&str])) {
    let folder = tempfile::tempdir().expect("a folder");
    let port = free_port();
    let program = compile(folder.path(), "../../apps/http.c", build);
    let file: Vec<_> = (0..300_000).map(byte_at).collect();
    std::fs::write(folder.path().join("file"), &file).expect("the folder is ours");
    let mut command = sanitized(program);
    let _server = Server::start(command.args(["127.0.0.1", &port]).arg(folder.path()));
    let mut client = connect(&port);
    for _ in 0..2 {
        client
            .write_all(b"GET /file HTTP/1.1\r\n\r\n")
            .expect("it is open");
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n";
        let mut heard = vec![0; head.len() + file.len()];
        client.read_exact(&mut heard).expect("it is open");
        assert!(heard.starts_with(head) && heard.ends_with(&file));
    }
    for path in ["../file", "/etc/passwd", "none"] {
        let request = format!("GET /{path} HTTP/1.1\r\n\r\n");
        client.write_all(request.as_bytes()).expect("it is open");
        let mut heard = [0; 45];
        client.read_exact(&mut heard).expect("it is open");
        assert!(heard.starts_with(b"HTTP/1.1 404 "), "{path}");
    }
}

/// The streaming server is taken and put back all the time, at its snapshots: what
/// they say was sent is what was sent, and the client notices nothing.
#[test]
fn a_stream_is_taken_at_its_snapshots() {
    BUILDS.into_iter().for_each(is_taken);
}

fn is_taken(build: (Linked, &[&str])) {
    let folder = tempfile::tempdir().expect("a folder");
    let port = free_port();
    let path = folder.path().join("app.sock");
    let service = format!("127.0.0.1:{port}").parse().expect("an address");
    let socket = AppSocket::bind(&path, None).expect("the folder is ours");
    let apps = Apps::start(socket, vec![service], Inbox::new().0).expect("a thread");
    let program = compile(folder.path(), "../../apps/stream.c", build);
    let mut command = sanitized(program);
    let command = command.args(["127.0.0.1", &port]);
    let _server = Server::start(command.env("GODWIT_APP_SOCKET", &path));
    let end = Instant::now() + DEADLINE;
    while !apps.accepts(service.into()) {
        assert!(Instant::now() < end, "the agent never hears of it");
        thread::sleep(Duration::from_millis(5));
    }
    let mut client = connect(&port);
    let flow = FlowKey {
        client: client.local_addr().expect("it is bound").into(),
        service: service.into(),
    };
    const TOTAL: usize = 20 << 20;
    client
        .write_all(format!("{TOTAL}\n").as_bytes())
        .expect("it is open");
    let over = Arc::new(AtomicBool::new(false));
    let ended = over.clone();
    let taker = thread::spawn(move || {
        let mut taken = Vec::new();
        loop {
            match apps.take(flow, Duration::from_secs(5)) {
                Ok(found) => {
                    let snapshot = found.snapshot.expect("it has state").carried.bytes;
                    taken.push(snapshot);
                    apps.put_back(flow);
                }
                // Not accepted yet, or over.
                Err(HandoffRefusal::NoServer | HandoffRefusal::Ended) => {}
                Err(refusal) => assert_eq!(refusal, HandoffRefusal::SnapshotBehind),
            }
            if over.load(Ordering::Relaxed) {
                return taken;
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).expect("it is open");
    assert!(heard.len() == TOTAL && is_the_stream(&heard));
    ended.store(true, Ordering::Relaxed);
    let taken = taker.join().expect("no panic");
    let sent = |snapshot: &Vec<u8>| {
        let word = |at: usize| {
            snapshot[at..]
                .first_chunk()
                .map(|bytes| u64::from_ne_bytes(*bytes))
        };
        (word(0), word(8))
    };
    let taken: Vec<_> = taken
        .iter()
        .filter(|bytes| !bytes.is_empty())
        .map(sent)
        .collect();
    assert!(taken.len() > 3, "it was taken {} times", taken.len());
    assert!(
        taken
            .iter()
            .all(|(wanted, _)| *wanted == Some(TOTAL as u64))
    );
    assert!(taken.is_sorted_by_key(|(_, sent)| *sent));
}

/// The wheel needs nothing but what is in the tree, and python3-pip (`make setup`).
#[test]
fn the_python_binding_is_installed_and_works() {
    let folder = tempfile::tempdir().expect("a folder");
    let python = Path::new(CRATE).join("../../bindings/python");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "-q", "--no-index", "--target"])
        .arg(folder.path())
        .arg(&python)
        .env("GODWIT_LIBRARY", libraries().join("libgodwit.so"));
    runs(&mut pip);
    runs(
        Command::new("python3")
            .arg(python.join("tests/test_godwit.py"))
            .env("PYTHONPATH", folder.path())
            .env_remove("GODWIT_LIBRARY"),
    );
}
