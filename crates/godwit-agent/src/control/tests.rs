use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use serde_json::Value;
use tokio::sync::oneshot;

use super::*;
use crate::events::EventLog;
use crate::flows::Flows;
use crate::input::{Inbox, Input, Inputs, Query};
use crate::moves::{FlowMoves, MoveRefused, MoveReport, MoveSteps, MovedFlow};
use crate::reload::Reloads;
use crate::status::Status;
use crate::testing::{PATIENCE, Pair, is_alone, node, take_all};

const COOKIE: u64 = 4242;

/// A control socket with a driver that answers as told.
struct Served {
    pair: Pair,
    place: Place,
    events: EventLog,
    busy: Arc<AtomicUsize>,
    // Ends the runtime's thread.
    running: oneshot::Sender<()>,
}

fn serve_pair() -> Served {
    serve_pair_for(IDLE_LIMIT)
}

fn serve_pair_for(idle_limit: Duration) -> Served {
    let pair = Pair::new();
    let run_dir = &pair.a.node.run_dir;
    let place = Place::take(run_dir, COOKIE, node("a")).expect("nobody else is there");
    let events = EventLog::new(&pair.a);
    let busy = Arc::<AtomicUsize>::default();
    let (inbox, inputs) = Inbox::new();
    let status = Status::new(&pair.a, 5, Duration::from_secs(3));
    thread::spawn(move || drive(&inputs, &status));
    let config = Arc::new(pair.a.clone());
    let office = Office {
        node: "a".into(),
        reloads: Reloads::new(config.clone(), inbox.clone()),
        config,
        inbox,
        events: events.clone(),
        busy: busy.clone(),
        idle_limit,
    };
    let (running, ended) = oneshot::channel();
    let (ready, bound) = std::sync::mpsc::channel();
    let restorer = place.restorer();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            serve(restorer, office).expect("bound");
            ready.send(()).expect("the test waits");
            let _ = ended.await;
        });
    });
    bound.recv_timeout(PATIENCE).expect("bound in time");
    Served {
        pair,
        place,
        events,
        busy,
        running,
    }
}

fn unknown(service: &str) -> MoveRefused {
    MoveRefused {
        reason: "unknown_service",
        sentence: format!("this node serves no service {service:?}"),
    }
}

fn drive(inputs: &Inputs, status: &Status) {
    for input in inputs {
        match input {
            Input::Query(Query::Status(reply)) => {
                let _ = reply.send(status.clone());
            }
            Input::Query(Query::Flows(reply)) => {
                let _ = reply.send(Flows::new("a", Vec::new()));
            }
            Input::Move(wish) if wish.service == "web" => {
                let _ = wish.reply.send(Ok(MoveReport {
                    schema: crate::moves::SCHEMA.into(),
                    from: "a".into(),
                    to: wish.to,
                    services: vec![wish.service],
                    flows: 3,
                    silent_ms: 0.5,
                }));
            }
            Input::Move(wish) => {
                let _ = wish.reply.send(Err(unknown(&wish.service)));
            }
            Input::MoveFlows(wish) => {
                let flow = format!("{:?}", wish.which);
                let _ = wish.reply.send(Ok(moved_to(wish.to, flow)));
            }
            Input::Stop {
                done: Some(done), ..
            } => {
                let _ = done.send(());
                return;
            }
            Input::Heartbeat { .. }
            | Input::Message { .. }
            | Input::Link { .. }
            | Input::Next { .. }
            | Input::Flow(_)
            | Input::Exit(_)
            | Input::ListenerClosed
            | Input::Stopped(_)
            | Input::Standstill(_)
            | Input::Unanswered(_)
            | Input::Devices
            | Input::Facts(_)
            | Input::Place { .. }
            | Input::LinkChanged
            | Input::Announce
            | Input::Claimed { .. }
            | Input::Exceptions(_)
            | Input::Lease { .. }
            | Input::Stonith { .. }
            | Input::Census(_)
            | Input::Gone(_)
            | Input::Handoff { .. }
            | Input::Several(_)
            | Input::Neighbour { .. }
            | Input::Drain(_)
            | Input::Commit(_)
            | Input::CommitHeld { .. }
            | Input::Unserved { .. }
            | Input::Stop { done: None, .. } => panic!("nobody sends this"),
        }
    }
}

fn moved_to(to: String, flow: String) -> FlowMoves {
    FlowMoves {
        schema: crate::moves::FLOWS_SCHEMA.into(),
        from: "a".into(),
        to,
        moved: vec![MovedFlow {
            flow,
            silent_ms: 0.5,
            steps: MoveSteps::default(),
        }],
        stayed: Vec::new(),
    }
}

impl Served {
    fn client(&self) -> Client {
        let run_dir = &self.pair.a.node.run_dir;
        let socket = find(run_dir, COOKIE, None).expect("one agent");
        Client::connect(&socket).expect("it listens")
    }
}

/// Whatever is deleted of its place, an agent answers again within a second, and no second one
/// starts after that.
#[test]
fn a_place_that_is_deleted_is_put_back() {
    let served = serve_pair();
    let run_dir = served.pair.a.node.run_dir.clone();
    let socket = served.place.socket();
    let folder = socket.parent().expect("it has one").to_owned();
    let deletions: [&dyn Fn(); 3] = [
        &|| fs::remove_file(&socket).expect("it is there"),
        &|| fs::remove_file(folder.join("lock")).expect("it is there"),
        &|| fs::remove_dir_all(&folder).expect("it is there"),
    ];
    for delete in deletions {
        served.client().status().expect("it answers");
        delete();
        let end = Instant::now() + PATIENCE;
        let answers = || Client::connect(&socket).is_ok_and(|mut it| it.status().is_ok());
        while !(folder.join("lock").exists() && answers()) {
            assert!(Instant::now() < end, "nothing is put back");
            thread::sleep(Duration::from_millis(10));
        }
        let second = Place::take(&run_dir, COOKIE, node("a"));
        assert!(
            matches!(second, Err(PlaceError::Taken { .. })),
            "{second:?}"
        );
    }
}

#[test]
fn no_agent_puts_back_the_place_of_another_one() {
    let pair = Pair::new();
    let run_dir = &pair.a.node.run_dir;
    let place = Place::take(run_dir, COOKIE, node("a")).expect("nobody else is there");
    let restorer = place.restorer();
    assert!(!restorer.restore().expect("all is there"));
    let folder = place.socket().parent().expect("it has one").to_owned();
    fs::remove_dir_all(&folder).expect("it is there");
    let second = Place::take(run_dir, COOKIE, node("a")).expect("its place is free");
    restorer.restore().expect_err("it is another one's");
    drop(second);
    assert!(restorer.restore().expect("it is free again"));
    let third = Place::take(run_dir, COOKIE, node("a"));
    assert!(matches!(third, Err(PlaceError::Taken { .. })), "{third:?}");
    fs::remove_dir_all(run_dir).expect("it is there");
    restorer
        .restore()
        .expect_err("there is nothing to put it into");
}

/// Neither is the same as no agent.
#[test]
fn an_agent_that_starts_or_whose_socket_was_deleted_is_told_from_none() {
    let pair = Pair::new();
    let run_dir = &pair.a.node.run_dir;
    let found = find(run_dir, COOKIE, None);
    assert!(matches!(found, Err(FindError::NoAgent { .. })), "{found:?}");
    let place = Place::take(run_dir, COOKIE, node("a")).expect("nobody else is there");
    for name in [None, Some(node("a"))] {
        let found = find(run_dir, COOKIE, name);
        let Err(error @ FindError::Starting { .. }) = found else {
            panic!("{found:?}");
        };
        let said = error.to_string();
        assert!(said.contains("node \"a\" is starting, for 0."), "{said}");
    }
    place.restorer().has_begun();
    for name in [None, Some(node("a"))] {
        let found = find(run_dir, COOKIE, name);
        assert!(
            matches!(found, Err(FindError::NoSocket { .. })),
            "{found:?}"
        );
    }
    let lock = place.socket().with_file_name("lock");
    drop(place);
    fs::create_dir_all(lock.parent().expect("it has one")).expect("made");
    fs::write(lock, "").expect("written");
    let found = find(run_dir, COOKIE, None);
    assert!(
        matches!(found, Err(FindError::NoAgent { .. })),
        "killed: {found:?}"
    );
}

/// A refusal has a sentence for people and a name for scripts.
#[test]
fn a_move_is_reported_or_refused_with_a_reason() {
    let served = serve_pair();
    let mut client = served.client();
    let moved = client.hand_over("web", "b", false).expect("it moves");
    assert_eq!((moved.to.as_str(), moved.flows), ("b", 3));
    let refused = client.hand_over("mail", "b", false);
    let Err(ClientError::Refused(refusal)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(refusal.reason.as_deref(), Some("unknown_service"));
    assert!(refusal.error.contains("mail"), "{refusal:?}");
}

/// What is asked for is what the driver hears: one, some, or all of a service.
#[test]
fn connections_are_chosen_in_one_way() {
    let served = serve_pair();
    let mut client = served.client();
    let one = client.hand_over_flow("c -> s", "b").expect("it moves");
    assert_eq!(one.moved[0].flow, "Flow(\"c -> s\")");
    for (part, wanted) in [
        ((Some(3), None), "Count(3)"),
        ((None, Some(50)), "Percent(50)"),
    ] {
        let some = client.hand_over_flows("web", part, "b").expect("they move");
        assert_eq!(some.moved[0].flow, format!("Some(\"web\", {wanted})"));
    }
    for part in [(Some(3), Some(50)), (None, Some(101))] {
        let refused = client.hand_over_flows("web", part, "b");
        assert!(
            matches!(refused, Err(ClientError::Refused(_))),
            "{refused:?}"
        );
    }
}

#[test]
fn status_and_flows_make_the_round_trip() {
    let served = serve_pair();
    let mut client = served.client();
    let status = client.status().expect("an answer");
    assert_eq!((status.node.as_str(), status.uptime_ms), ("a", 3000));
    assert_eq!(status.schema, "godwit.status/1");
    assert_eq!(client.flows().expect("an answer").schema, "godwit.flows/1");
}

#[test]
fn the_socket_is_for_its_owner_and_group() {
    let served = serve_pair();
    let mode = fs::metadata(served.place.socket())
        .expect("bound")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o660);
}

#[test]
fn events_are_told_from_the_beginning_and_followed() {
    let served = serve_pair();
    served.events.publish_own("first", false, []);
    let mut lines = served.client().events(true).expect("sent");
    let mut next = || {
        let line = lines.next().expect("a line").expect("read");
        serde_json::from_str::<Value>(&line).expect("JSON")
    };
    assert_eq!(next()["event"], "first");
    served.events.publish_own("second", true, [("peer", "b")]);
    let second = next();
    assert_eq!(second["event"], "second");
    assert_eq!(second["peer"], "b");
    assert_eq!(second["sequence"], 2);
    assert_eq!(second["schema"], "godwit.events/1");
    let past: Vec<_> = served.client().events(false).expect("sent").collect();
    assert_eq!(past.len(), 2);
}

#[test]
fn stopping_waits_until_the_agent_is_gone() {
    let served = serve_pair();
    let mut client = served.client();
    let stopping = thread::spawn(move || client.stop(StopReason::Detach));
    // The driver has ended when its answer is the agent's last word.
    let refused = loop {
        match served.client().status() {
            Ok(_) => thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.to_string(), "the agent is ending");
    while served.busy.load(Ordering::Relaxed) > 0 {
        thread::yield_now();
    }
    assert!(!stopping.is_finished());
    drop((served.running, served.place));
    assert!(stopping.join().expect("no panic").is_ok());
}

#[test]
fn what_is_no_request_is_refused_and_the_next_one_answered() {
    let served = serve_pair();
    let mut stream = UnixStream::connect(served.place.socket()).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream
        .write_all(b"nonsense\n{\"cmd\":\"statsu\"}\n{\"cmd\":\"flows\"}\n")
        .expect("sent");
    let mut lines = BufReader::new(stream).lines();
    let mut schema = || {
        let line = lines.next().expect("a line").expect("read");
        serde_json::from_str::<Value>(&line).expect("JSON")["schema"].clone()
    };
    assert_eq!(schema(), "godwit.error/1");
    assert_eq!(schema(), "godwit.error/1");
    assert_eq!(schema(), "godwit.flows/1");
}

#[test]
fn an_endless_request_is_cut_off() {
    let served = serve_pair();
    let mut stream = UnixStream::connect(served.place.socket()).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    // The agent may close before all of it is sent.
    let _ = stream.write_all(&[b'x'; 8192]);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.is_empty() || answer.contains("too long"), "{answer}");
}

/// As many as there are places for, and one more that has something to ask.
#[test]
fn clients_that_ask_nothing_keep_nobody_out() {
    let served = serve_pair_for(Duration::from_millis(200));
    let connect = || UnixStream::connect(served.place.socket()).expect("it listens");
    let mut idle: Vec<_> = (0..64).map(|_| connect()).collect();
    // One of them has begun.
    idle[0].write_all(b"{\"cmd\":").expect("it is open");
    let mut client = Client::connect(&served.place.socket()).expect("it listens");
    client.status().expect("there is a place");
    for mut stream in idle {
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let mut said = String::new();
        stream.read_to_string(&mut said).expect("it ends");
        assert!(said.contains("nothing was asked"), "{said}");
    }
}

#[test]
fn a_place_has_one_agent_at_a_time_and_is_left_clean() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::take(dir.path(), 1, node("a")).expect("free");
    let error = Place::take(dir.path(), 1, node("a"))
        .expect_err("taken")
        .to_string();
    assert!(
        error.starts_with("an agent of node \"a\" is already running"),
        "{error}"
    );
    let other = Place::take(dir.path(), 2, node("a")).expect("another namespace");
    drop((place, other));
    assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 0);
}

#[test]
fn what_killed_agents_left_is_cleared_away() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let dead = dir.path().join("n7-b");
    fs::create_dir(&dead).expect("made");
    fs::write(dead.join("lock"), "").expect("made");
    fs::write(dead.join("control.sock"), "").expect("made");
    let _place = Place::take(dir.path(), 1, node("a")).expect("free");
    assert!(!dead.exists());
}

/// The kernel accepts for a process that is stopped.
#[test]
fn an_agent_that_is_stopped_is_not_waited_for() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = dir.path().join("control.sock");
    let _stopped = UnixListener::bind(&path).expect("bound");
    let asked = Client::connect(&path).expect("accepted").status();
    assert!(matches!(asked, Err(ClientError::Silent)), "{asked:?}");
}

/// When it goes on it would do what it was told meanwhile, though nobody waits for that.
#[test]
fn an_agent_that_is_stopped_is_told_nothing() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = dir.path().join("control.sock");
    let stopped = UnixListener::bind(&path).expect("bound");
    let asks: [fn(Client) -> Result<(), ClientError>; 4] = [
        |mut client| client.stop(StopReason::Detach),
        |mut client| client.hand_over("web", "b", true).map(drop),
        |mut client| client.reload(),
        |client| client.events(false).map(drop),
    ];
    thread::scope(|scope| {
        for ask in asks {
            let client = Client::connect(&path).expect("accepted");
            scope.spawn(move || {
                let asked = ask(client);
                assert!(matches!(asked, Err(ClientError::Silent)), "{asked:?}");
            });
        }
    });
    for _ in asks {
        let mut heard = String::new();
        let (mut stream, _) = stopped.accept().expect("one has come");
        stream.read_to_string(&mut heard).expect("it has left");
        assert_eq!(heard.lines().count(), 1, "{heard}");
        assert!(heard.contains("file"), "{heard}");
    }
}

#[test]
fn several_agents_are_told_apart_by_name() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let find = |node| find(dir.path(), 1, node);
    assert!(matches!(find(None), Err(FindError::NoAgent { .. })));
    let places = ["a", "b"].map(|name| Place::take(dir.path(), 1, node(name)).expect("free"));
    for place in &places {
        fs::write(place.socket(), "").expect("made");
    }
    let error = find(None).expect_err("two").to_string();
    assert!(error.ends_with("choose with --node: a, b"), "{error}");
    assert_eq!(find(Some(node("b"))).expect("b"), places[1].socket());
}

/// Whatever a line holds, it is read as a request or refused, and a request that
/// was read is written as one that means the same.
#[test]
fn noise_is_a_request_or_refused() {
    const REQUESTS: [&str; 4] = [
        r#"{"cmd":"status"}"#,
        r#"{"cmd":"flows"}"#,
        r#"{"cmd":"events","follow":true}"#,
        r#"{"cmd":"stop","reason":"detach"}"#,
    ];
    let mut noise = Noise(7);
    let mut read = 0;
    for _ in 0..20_000 {
        let mut line = REQUESTS[noise.below(REQUESTS.len())].as_bytes().to_vec();
        for _ in 0..noise.below(4) {
            let at = noise.below(line.len());
            match noise.below(3) {
                0 => line[at] = noise.byte(),
                1 => line.insert(at, b"{}[]\":,\\0n"[noise.below(10)]),
                _ => line.truncate(at.max(1)),
            }
        }
        let Ok(request) = serde_json::from_slice::<Request>(&line) else {
            continue;
        };
        read += 1;
        let again = serde_json::to_vec(&request).expect("it is plain data");
        let again = serde_json::from_slice::<Request>(&again);
        assert_eq!(again.ok(), Some(request));
    }
    assert!((1000..19_000).contains(&read), "{read} requests");
}

/// splitmix64: enough for noise, and the same everywhere.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("below a usize")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

/// Nobody could ask what is wrong otherwise; and no life begins that could not go on.
#[test]
fn an_agent_without_descriptors_answers() {
    if !is_alone("control::tests::an_agent_without_descriptors_answers") {
        return;
    }
    let pair = Pair::new();
    let place = Place::take(&pair.a.node.run_dir, COOKIE, node("a")).expect("nobody else");
    let (inbox, inputs) = Inbox::new();
    let status = Status::new(&pair.a, 5, Duration::from_secs(3));
    thread::spawn(move || drive(&inputs, &status));
    let config = Arc::new(pair.a.clone());
    let office = Office {
        node: "a".into(),
        reloads: Reloads::new(config.clone(), inbox.clone()),
        config,
        inbox,
        events: EventLog::new(&pair.a),
        busy: Arc::default(),
        idle_limit: IDLE_LIMIT,
    };
    let (apart, is_apart) = std::sync::mpsc::channel();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let (told, answers) = std::sync::mpsc::channel();
    let socket = place.socket();
    thread::spawn(move || {
        // Descriptors of its own.
        unshare(CloneFlags::CLONE_FILES).expect("that needs no right");
        apart.send(()).expect("the agent waits");
        let () = is_ready.recv_timeout(PATIENCE).expect("bound in time");
        let ask = || Client::connect(&socket).expect("it listens");
        let said: Vec<_> = (0..9).map(|_| ask().status().map(|it| it.node)).collect();
        let refused = ask().reload().map_err(|error| error.to_string());
        told.send((said, refused)).expect("the test waits");
    });
    let () = is_apart.recv_timeout(PATIENCE).expect("it is apart");
    let (over, ended) = oneshot::channel();
    // A client can't wake the runtime: it has not its descriptors.
    let test = thread::spawn(move || {
        let answers = answers.recv_timeout(6 * PATIENCE);
        over.send(()).expect("the agent waits");
        answers
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        serve(place.restorer(), office).expect("bound");
        // So that it has its reserve.
        tokio::task::yield_now().await;
        let _all = take_all();
        ready.send(()).expect("the client waits");
        let _ = ended.await;
    });
    let answers = test.join().expect("no panic");
    let (said, refused) = answers.expect("the client has asked");
    for answer in said {
        assert_eq!(answer.expect("an answer"), "a");
    }
    let refused = refused.expect_err("too few are left");
    assert!(refused.contains("file descriptors are left"), "{refused}");
}

/// The sentence was "File exists (os error 17)".
#[test]
fn a_runtime_directory_that_is_none_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    fs::write(&file, "").expect("written");
    std::os::unix::fs::symlink("/no/such/folder", &link).expect("made");
    for (run_dir, what) in [(&file, &file), (&file.join("run"), &file), (&link, &link)] {
        let refused = Place::take(run_dir, COOKIE, node("a")).expect_err("no place");
        let wanted = format!("{} is no folder: name one in memory", what.display());
        assert!(refused.to_string().contains(&wanted), "{refused}");
    }
}
