use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::directed::{BackendReport, DirectedReport, DirectorReport};
use crate::flows::{FlowCounts, FlowStateName};
use crate::input::{Input, Query};
use crate::status::{Ownership, PeerReport, ServiceReport, Status};
use crate::testing::Pair;

/// A node that owns one service and has a silent peer.
fn status(pair: &Pair) -> Status {
    let mut status = Status::new(&pair.a, 5, Duration::from_millis(1500));
    let mut flows = FlowCounts::default();
    flows.count(FlowStateName::Protected);
    flows.count(FlowStateName::Unprotected);
    status.services.push(ServiceReport {
        name: "web".into(),
        share: 0,
        addresses: vec!["10.9.0.100:80".into()],
        primary: "a".into(),
        backups: vec!["b".into()],
        ownership: Ownership {
            state: "owner".into(),
            role: "owner".into(),
            owner: Some("a".into()),
            epoch: "5.1".into(),
            generation: 1,
            in_sync: vec!["b".into()],
        },
        not_listening: Vec::new(),
        gate: "ack".into(),
        is_ring: false,
        has_standby: true,
        watched: true,
        leash_bytes: 4 << 20,
        asks: None,
        load: None,
        protected: flows.protected,
        flows,
        takeovers: 2,
        last_takeover: None,
        resets: [("not_in_sync".into(), 3)].into(),
    });
    status.peers.push(PeerReport {
        name: "b".into(),
        role: "server".into(),
        liveness: "failed".into(),
        linked: false,
        no_link: None,
        last_heard_ms: Some(31.5),
        max_interarrival_ms: 12.5,
        ignored: 0,
        late: 7,
        doubts: [("no_server".to_owned(), 5)].into(),
        config_differs: false,
        differences: Vec::new(),
        tags: None,
        power: "unknown".into(),
        stonith_fault: None,
    });
    status.data_path.reasons.insert("spoken".into(), 7);
    status.apps_refused.insert("not_its_own".into(), 4);
    status
}

/// The same node as a director of two back-ends, one of which drains.
fn director(pair: &Pair) -> Status {
    let backend = |name: &str, state: &str| BackendReport {
        cut_off: false,
        unproved: false,
        name: name.into(),
        state: state.into(),
        there: true,
        drained: false,
        weight: 1,
        mac: None,
    };
    let service = DirectedReport {
        name: "web".into(),
        addresses: Vec::new(),
        slots: [("b".to_owned(), 251)].into(),
        nobody: 0,
        paused: Vec::new(),
        mixed: 4,
    };
    let mut status = status(pair);
    status.data_path.attached = true;
    status.director = Some(DirectorReport {
        via: "xdp".into(),
        hook: "xdp".into(),
        holds: true,
        starting: false,
        deaf: false,
        behind: false,
        table_size: 251,
        backends: vec![backend("b", "taking"), backend("c", "draining")],
        services: vec![service],
    });
    status
}

async fn get(path: &str) -> String {
    get_of(path, status).await
}

async fn get_of(path: &str, status: impl Fn(&Pair) -> Status) -> String {
    ask(start(status), path).await
}

/// Answers with that status from now on.
fn start(status: impl Fn(&Pair) -> Status) -> std::net::SocketAddr {
    let pair = Pair::new();
    let (inbox, inputs) = Inbox::new();
    let metrics = Metrics::default();
    metrics.observe_stall("web", Duration::from_millis(35));
    let answer = status(&pair);
    std::thread::spawn(move || {
        for input in &inputs {
            if let Input::Query(Query::Status(reply)) = input {
                let _ = reply.send(answer.clone());
            }
        }
    });
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    listener.set_nonblocking(true).expect("it may be set");
    let exporter = Exporter::new(listener).expect("within a runtime");
    let address = exporter.address().expect("bound");
    let events = EventLog::new(&pair.a);
    events.publish_own("started", false, []);
    let heartbeats = Arc::new(HeartbeatCounters::unsent(&pair.a));
    tokio::spawn(serve(
        exporter,
        Sources {
            inbox,
            metrics,
            events,
            heartbeats,
            unlinked: Arc::default(),
        },
    ));
    address
}

async fn ask(address: std::net::SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("listening");
    let request = format!("{path} HTTP/1.1\r\nHost: test\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.expect("an answer");
    reply
}

#[tokio::test]
async fn a_scrape_shows_flows_peers_reasons_and_stalls() {
    let reply = get("GET /metrics").await;
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
    for line in [
        "godwit_flows{service=\"web\",state=\"protected\"} 1",
        "godwit_flows{service=\"web\",state=\"twin\"} 0",
        "godwit_role{service=\"web\",role=\"owner\"} 1",
        "godwit_standbys_in_sync{service=\"web\"} 1",
        "godwit_takeovers_total{service=\"web\"} 2",
        "godwit_resets_total{service=\"web\",reason=\"not_in_sync\"} 3",
        "godwit_stall_seconds_bucket{le=\"0.04\",service=\"web\"} 1",
        "godwit_peer_alive{peer=\"b\"} 0",
        "godwit_peer_heartbeats_delayed_total{peer=\"b\"} 7",
        "godwit_peer_doubts_total{peer=\"b\",reason=\"no_server\"} 5",
        "godwit_heartbeat_interarrival_seconds_max{peer=\"b\"} 0.0125",
        "godwit_heartbeats_refused_total{reason=\"replayed\"} 0",
        "godwit_links_refused_total{reason=\"crowded\"} 0",
        "godwit_log_lines_lost_total 0",
        "godwit_app_refused_total{reason=\"not_its_own\"} 4",
        "godwit_peer_datagrams_unsent_total{peer=\"b\",reason=\"refused\"} 0",
        "godwit_peer_datagrams_unsent_total{peer=\"b\",reason=\"buffer_full\"} 0",
        "godwit_reasons_total{reason=\"spoken\"} 7",
        "godwit_events_total{event=\"started\"} 1",
        "godwit_uptime_seconds 1.5",
    ] {
        assert!(
            reply.contains(&format!("\n{line}\n")),
            "{line} is not in\n{reply}"
        );
    }
    assert!(reply.ends_with("# EOF\n"));
}

#[tokio::test]
async fn a_scrape_of_a_director_shows_its_back_ends() {
    let reply = get_of("GET /metrics", director).await;
    for line in [
        "godwit_backend{backend=\"b\",state=\"taking\"} 1",
        "godwit_backend{backend=\"c\",state=\"draining\"} 1",
        "godwit_backend_slots{service=\"web\",backend=\"b\"} 251",
        "godwit_backend_slots{service=\"web\",backend=\"c\"} 0",
        "godwit_mixed_slots{service=\"web\"} 4",
        "godwit_directing 1",
        "godwit_deaf 0",
    ] {
        assert!(
            reply.contains(&format!("\n{line}\n")),
            "{line} is not in\n{reply}"
        );
    }
    assert!(!get("GET /metrics").await.contains("godwit_directing"));
}

/// Any account of the machine can connect: forty that said nothing kept scrapers out for 9 s.
#[tokio::test]
async fn who_says_nothing_keeps_no_scraper_out() {
    let address = start(status);
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(address).await.expect("listening"));
    }
    let before = std::time::Instant::now();
    assert!(
        ask(address, "GET /metrics")
            .await
            .starts_with("HTTP/1.1 200")
    );
    assert!(before.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    assert!(get("GET /").await.starts_with("HTTP/1.1 404"));
    assert!(get("POST /metrics").await.starts_with("HTTP/1.1 405"));
}
