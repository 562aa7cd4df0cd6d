//! Clients and servers that know nothing of Godwit, whose connections go from server to server
//! with their requests: curl, wrk, h2load (HTTP/1.1) and httperf; nginx and Apache, with a
//! thread per request and with a process per connection.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use godwit_lab::apps::apache::Mpm;
use godwit_lab::host::{Host, SERVICE, SERVICE_V4};
use godwit_tests::DEADLINE;
use godwit_tests::cells::{BACKENDS, Cells, OWN_RULES, Web, on_cells_of};

/// Requests of one run of a client, over so many connections.
const REQUESTS: usize = 1200;
const CONNECTIONS: usize = 8;

/// One request in three is served by whom the one before was.
const PATHS: [&str; 6] = [
    "/a/name", "/a/name", "/b/name", "/b/name", "/c/name", "/c/name",
];

fn run(cells: &Cells<'_>, program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args);
    let output = cells.lab.client().run(command, DEADLINE);
    let output = output.expect(program);
    let told = (&output.stdout, &output.stderr);
    assert!(output.status.success(), "{program}: {told:?}");
    output.stdout
}

fn file(cells: &Cells<'_>, name: &str, text: &str) -> PathBuf {
    let path = cells.lab.client().folder().expect("a folder").join(name);
    fs::write(&path, text).expect("there is room");
    path
}

/// Who serves each request, over one connection.
fn curl(cells: &Cells<'_>) {
    for address in SERVICE {
        let host = match address {
            std::net::IpAddr::V4(v4) => v4.to_string(),
            std::net::IpAddr::V6(v6) => format!("[{v6}]"),
        };
        let urls: Vec<_> = PATHS
            .iter()
            .map(|path| format!("http://{host}{path}"))
            .collect();
        let mut args = vec!["--silent", "--show-error", "--fail", "--globoff"];
        args.extend(urls.iter().map(String::as_str));
        assert_eq!(run(cells, "curl", &args), "a\na\nb\nb\nc\nc\n");
    }
}

fn wrk(cells: &Cells<'_>) {
    let paths = PATHS.map(|path| format!("\"{path}\"")).join(", ");
    let script = format!(
        "local paths = {{{paths}}}\nlocal n = 0\n\
         request = function() n = n + 1; return wrk.format(nil, paths[n % #paths + 1]) end\n"
    );
    let script = file(cells, "paths.lua", &script);
    let script = script.to_str().expect("a plain name");
    let url = format!("http://{SERVICE_V4}/");
    let text = run(cells, "wrk", &["-t1", "-c8", "-d1s", "-s", script, &url]);
    assert!(
        !text.contains("Socket errors") && !text.contains("Non-2xx"),
        "{text}"
    );
    assert!(text.contains("requests in"), "{text}");
}

fn h2load(cells: &Cells<'_>) {
    let uris = PATHS
        .map(|path| format!("http://{SERVICE_V4}{path}\n"))
        .concat();
    let uris = file(cells, "uris", &uris);
    let (requests, connections) = (REQUESTS.to_string(), CONNECTIONS.to_string());
    let uris = uris.to_str().expect("a plain name");
    let text = run(
        cells,
        "h2load",
        &["--h1", "-n", &requests, "-c", &connections, "-i", uris],
    );
    assert!(
        text.contains(&format!("{REQUESTS} succeeded, 0 failed, 0 errored")),
        "{text}"
    );
    assert!(
        text.contains(&format!("status codes: {REQUESTS} 2xx")),
        "{text}"
    );
}

/// A session is a connection of its own.
fn httperf(cells: &Cells<'_>) {
    let log = PATHS.map(|path| format!("{path}\n")).concat();
    let log = file(cells, "sessions", &log);
    let sessions = REQUESTS / PATHS.len();
    let wish = format!("--wsesslog={sessions},0,{}", log.display());
    let server = format!("--server={SERVICE_V4}");
    let text = run(
        cells,
        "httperf",
        &["--hog", &server, "--port=80", "--rate=100", &wish],
    );
    assert!(text.contains(&format!("2xx={REQUESTS} ")), "{text}");
    assert!(text.contains("Errors: total 0 "), "{text}");
}

/// A client's run hands requests over, and none is lost on the way.
fn check(cells: &Cells<'_>, name: &str, client: fn(&Cells<'_>)) {
    let before = cells.sum("came");
    client(cells);
    let moves = cells.sum("came") - before;
    println!("{name}: {moves} requests were handed over");
    assert!(moves >= 4, "{name}: {moves}");
    for reason in ["no_slip", "mate_gone", "unprotected_at_takeover"] {
        assert_eq!(cells.sum(reason), 0, "{name}: {reason}");
    }
}

fn with_all_clients(web: Web) {
    on_cells_of(
        web,
        OWN_RULES,
        |_, _| (),
        |cells| {
            check(cells, "curl", curl);
            check(cells, "wrk", wrk);
            check(cells, "h2load", h2load);
            check(cells, "httperf", httperf);
            let served = BACKENDS.map(|host| cells.counted(host, "came"));
            assert!(served.iter().all(|came| *came > 0), "{served:?}");
            assert!(cells.counted(Host::A, "accepted") > 0);
        },
    );
}

#[test]
fn all_clients_with_nginx() {
    with_all_clients(Web::Nginx);
}

#[test]
fn all_clients_with_threads_of_apache() {
    with_all_clients(Web::Apache(Mpm::Event));
}

#[test]
fn all_clients_with_processes_of_apache() {
    with_all_clients(Web::Apache(Mpm::Prefork));
}
