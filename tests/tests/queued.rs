//! Connections of servers that know nothing of Godwit, which nobody has accepted yet: they
//! go to another server, and nobody else in their queue is lost for that.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions};
use godwit_tests::DEADLINE;
use godwit_tests::stage::{
    PORT, assert_no_reset, has_event, service_v4, service_v6, stage, until, wait_event, witness,
};
use godwit_tests::unread::{Client, FIRST_HALF, SECOND_HALF, ask, full_listener, serve, start};
use nix::sys::signal::Signal;
use nix::sys::socket::{Backlog, MsgFlags, listen, send};

/// Who waits to be accepted, with half a request or without: v4 and v6 of both.
fn wait_in_line(lab: &Lab) -> Vec<Client> {
    let mut clients = Vec::new();
    for said in ["", FIRST_HALF] {
        for service in [service_v4(), service_v6()] {
            let client = Client::connect(lab, service);
            client.say(said);
            client.wait_queued(lab, Host::A, said.len());
            clients.push(client);
        }
    }
    clients
}

fn ask_for_the_name(clients: &[Client], host: Host) {
    for (index, client) in clients.iter().enumerate() {
        // As in `wait_in_line`.
        if index % 4 < 2 {
            client.say(FIRST_HALF);
        }
        client.say(SECOND_HALF);
        client.hear_from(host);
    }
}

/// Nobody has accepted it, for its server stands still: the other server does. Those that
/// were before it in the queue are there again, behind it.
#[test]
fn who_waits_to_be_accepted_goes_to_another_server() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let mut servers = Host::SERVERS.map(|host| serve(&lab, host));
    let cluster = start(&lab, "move");
    let capture = witness(&lab);
    servers[0].process.stop().expect("it runs");
    let (stay, go) = (wait_in_line(&lab), wait_in_line(&lab));
    for client in &go {
        client.goes(&cluster, Host::A);
    }
    ask_for_the_name(&go, Host::B);
    for (index, client) in stay.iter().enumerate() {
        let said = if index < 2 { 0 } else { FIRST_HALF.len() };
        client.wait_queued(&lab, Host::A, said);
    }
    servers[0].process.cont().expect("it was stopped");
    ask_for_the_name(&stay, Host::A);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// To and fro, between two servers that stand still, and all in one order.
#[test]
fn a_whole_queue_goes_to_and_fro() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let mut servers = Host::SERVERS.map(|host| serve(&lab, host));
    let cluster = start(&lab, "move");
    let capture = witness(&lab);
    for server in &mut servers {
        server.process.stop().expect("it runs");
    }
    let clients: Vec<_> = (0..5).flat_map(|_| wait_in_line(&lab)).collect();
    let mut at = Host::A;
    for _ in 0..3 {
        let to = if at == Host::A { Host::B } else { Host::A };
        let mut moved = 0;
        until("all have moved", || {
            let all = r#""service":"web","percent":100"#;
            let (_, ended) = cluster.order_flows(all, at, to).ok()?;
            // Soon after start there is no link yet.
            eprintln!(
                "{} moved, stayed: {:?}",
                ended.moved.len(),
                ended.stayed.first()
            );
            moved += ended.moved.len();
            (moved == clients.len()).then_some(())
        });
        at = to;
    }
    servers[1].process.cont().expect("it was stopped");
    ask_for_the_name(&clients, Host::B);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// The other server has no room: the queue is as it was, and its server serves it.
#[test]
fn who_was_taken_from_a_queue_in_vain_is_in_it_again() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let mut server = serve(&lab, Host::A);
    let cluster = start(&lab, "move");
    let capture = witness(&lab);
    let _full = full_listener(&lab);
    server.process.stop().expect("it runs");
    let clients = wait_in_line(&lab);
    for client in clients.iter().rev() {
        for _ in 0..2 {
            client.has_no_room(&cluster);
        }
    }
    server.process.cont().expect("it was stopped");
    ask_for_the_name(&clients, Host::A);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// A connection of no service that moves stands in the same queue: it could not be made
/// anew, so nobody is taken from there.
#[test]
fn who_waits_among_strangers_stays() {
    who_waits_stays_with(|lab| {
        [Host::A.v4().into(), Host::A.v6().into()]
            .map(|address| Client::connect(lab, SocketAddr::new(address, PORT)))
    });
}

/// A client on the server's own machine stands in the same queue: its packets pass no
/// data path, so it could not be made anew, and nobody is taken from there.
#[test]
fn who_waits_with_one_of_the_servers_machine_stays() {
    who_waits_stays_with(|lab| {
        [service_v4(), service_v6()].map(|service| Client::connect_from(lab.node(Host::A), service))
    });
}

fn who_waits_stays_with(others: impl FnOnce(&Lab) -> [Client; 2]) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let mut servers = Host::SERVERS.map(|host| serve(&lab, host));
    let cluster = start(&lab, "move");
    let capture = witness(&lab);
    servers[0].process.stop().expect("it runs");
    let mut clients = wait_in_line(&lab);
    for other in others(&lab) {
        other.wait_queued(&lab, Host::A, 0);
        clients.push(other);
    }
    let cookies = cookies(&lab, &clients);
    for client in &clients[..4] {
        client.stays(&cluster, "not_movable");
    }
    assert_eq!(cookies, self::cookies(&lab, &clients), "nobody was touched");
    servers[0].process.cont().expect("it was stopped");
    ask_for_the_name(&clients, Host::A);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// A client ends a connection that the agent has in its hands, and begins another one from
/// the same port: what the agent has is not that one.
#[test]
fn who_begins_anew_from_the_same_port_is_another() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let mut servers = Host::SERVERS.map(|host| serve(&lab, host));
    let cluster = start(&lab, "move");
    servers[0].process.stop().expect("it runs");
    for service in [service_v4(), service_v6()] {
        let [first, last] = [0, 1].map(|_| {
            let client = Client::connect(&lab, service);
            client.wait_queued(&lab, Host::A, 0);
            client
        });
        last.goes(&cluster, Host::A);
        // The first is in the agent's hands for 0.3 s.
        let again = first.begins_anew(&lab);
        again.wait_queued(&lab, Host::A, 0);
        let moved = cluster.hand_over_flow(&again.flow.to_string(), Host::A, Host::B);
        moved.expect("it is in the queue");
        ask_for_the_name(&[again, last], Host::B);
    }
}

/// Of the sockets at the origin, which are made anew if they are touched.
fn cookies(lab: &Lab, clients: &[Client]) -> Vec<u64> {
    let view = |client: &Client| client.view(lab, Host::A).expect("it is there");
    clients.iter().map(|client| view(client).cookie).collect()
}

/// A listener at a that accepts when it is told to.
fn slow_listener(lab: &Lab, backlog: i32) -> TcpListener {
    let listen = || {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).expect("a free port");
        let backlog = Backlog::new(backlog).expect("small");
        listen(&listener, backlog).expect("it listens");
        listener
    };
    lab.node(Host::A)
        .enter(listen)
        .expect("the machine is there")
}

/// Answers everybody as the server of a would, until nobody comes for a while.
fn answer_all(listener: &TcpListener) -> usize {
    listener.set_nonblocking(true).expect("it is open");
    let (mut answered, mut quiet) = (0, Instant::now());
    while quiet.elapsed() < Duration::from_secs(6) {
        let Ok((mut stream, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        stream.set_nonblocking(false).expect("it is open");
        let mut asked = [0; FIRST_HALF.len() + SECOND_HALF.len()];
        stream.read_exact(&mut asked).expect("a request");
        let answer = "HTTP/1.1 200 OK\r\n\r\nserved by a\n";
        stream.write_all(answer.as_bytes()).expect("it is open");
        (answered, quiet) = (answered + 1, Instant::now());
    }
    answered
}

/// The last of a full queue goes, while others wait for the room that there is for a
/// moment; nobody is lost.
fn the_last_of_a_full_queue_goes(somaxconn: Option<&str>) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    if let Some(most) = somaxconn {
        let sysctl = lab.node(Host::A).netns().sysctl("core.somaxconn", most);
        sysctl.expect("each namespace has its own");
    }
    let _server = serve(&lab, Host::B);
    let slow = slow_listener(&lab, 3);
    let cluster = start(&lab, "move");
    let capture = witness(&lab);
    let queued = || {
        let client = Client::connect(&lab, service_v4());
        client.say(FIRST_HALF);
        client.wait_queued(&lab, Host::A, FIRST_HALF.len());
        client
    };
    let stay: Vec<_> = (0..3).map(|_| queued()).collect();
    let last = queued();
    thread::scope(|scope| {
        let connect = |number: u32| {
            let lab = &lab;
            scope.spawn(move || {
                // A SYN is said again after a second: some at each moment.
                thread::sleep(Duration::from_millis(100) * number);
                let client = Client::connect(lab, service_v4());
                client.say(FIRST_HALF);
                client.say(SECOND_HALF);
                client.hear_from(Host::A);
            })
        };
        let others: Vec<_> = (0..12).map(connect).collect();
        thread::sleep(Duration::from_secs(1));
        last.goes(&cluster, Host::A);
        last.say(SECOND_HALF);
        last.hear_from(Host::B);
        if somaxconn.is_some() {
            wait_event(&cluster, Host::A, "flow_not_given_back");
        } else {
            for client in &stay {
                client.wait_queued(&lab, Host::A, FIRST_HALF.len());
            }
        }
        for client in &stay {
            client.say(SECOND_HALF);
        }
        assert_eq!(answer_all(&slow), stay.len() + others.len());
        for client in &stay {
            client.hear_from(Host::A);
        }
    });
    assert_no_reset(&capture.finish().expect("the capture is complete"));
    assert!(!has_event(&cluster, Host::A, "flow_closed"));
}

/// What was taken in vain comes into a queue that is full by then.
#[test]
fn the_last_of_a_full_queue_goes_and_the_others_are_in_it_again() {
    the_last_of_a_full_queue_goes(None);
}

/// It can't be longer than it is: what was taken in vain waits in the agent's hands.
#[test]
fn the_last_of_a_full_queue_goes_and_the_others_wait_for_room() {
    the_last_of_a_full_queue_goes(Some("3"));
}

/// A connection that its server has closed is in no process, either, and in no queue:
/// nobody is taken from there for it.
#[test]
fn one_that_its_server_has_closed_moves_nobody() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _server = serve(&lab, Host::B);
    let slow = slow_listener(&lab, 16);
    let cluster = start(&lab, "move");
    let orphan = Client::connect(&lab, service_v4());
    drop(slow.accept().expect("it has come"));
    let client = || {
        let client = Client::connect(&lab, service_v4());
        client.wait_queued(&lab, Host::A, 0);
        client
    };
    let clients: Vec<_> = (0..3).map(|_| client()).collect();
    let cookies = cookies(&lab, &clients);
    orphan.stays(&cluster, "ended");
    assert_eq!(cookies, self::cookies(&lab, &clients), "nobody was touched");
}

/// Before the wanted one stands one that can't be made anew, and of which that is not
/// seen before it is taken: it stays as it is, unserved, and people hear of it.
#[test]
fn who_can_not_go_back_is_not_cut_off() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _server = serve(&lab, Host::B);
    let _slow = slow_listener(&lab, 16);
    let cluster = start(&lab, "move");
    let capture = witness(&lab);
    let urgent = Client::connect(&lab, service_v4());
    send(urgent.stream.as_raw_fd(), b"!", MsgFlags::MSG_OOB).expect("it is open");
    urgent.wait_queued(&lab, Host::A, 1);
    let wanted = Client::connect(&lab, service_v4());
    wanted.wait_queued(&lab, Host::A, 0);
    wanted.goes(&cluster, Host::A);
    wait_event(&cluster, Host::A, "flow_not_given_back");
    // Over some more tries.
    thread::sleep(Duration::from_secs(3));
    urgent.say(FIRST_HALF);
    urgent.wait_received(&lab, Host::A, 1 + FIRST_HALF.len());
    wanted.say(FIRST_HALF);
    wanted.say(SECOND_HALF);
    wanted.hear_from(Host::B);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// One goes on talking while the agent has it, and more than a new socket takes at once: it
/// goes back all the same, and is heard to its last byte.
#[test]
fn who_goes_on_talking_is_served() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    // Buffers that do not end it, either.
    let sizes = "4096 1048576 6291456";
    let sysctl = lab.node(Host::A).netns().sysctl("ipv4.tcp_rmem", sizes);
    sysctl.expect("each namespace has its own");
    let _server = serve(&lab, Host::B);
    let slow = slow_listener(&lab, 16);
    let cluster = start(&lab, "move");
    let capture = witness(&lab);
    let talker = Client::connect(&lab, service_v4());
    talker.wait_queued(&lab, Host::A, 0);
    let wanted = Client::connect(&lab, service_v4());
    wanted.wait_queued(&lab, Host::A, 0);
    wanted.goes(&cluster, Host::A);
    let said: Vec<_> = (0..=250).cycle().take(300_000).collect();
    thread::scope(|scope| {
        scope.spawn(|| (&talker.stream).write_all(&said).expect("it is open"));
        // Over some more tries, if it could not go back.
        thread::sleep(Duration::from_secs(2));
        slow.set_nonblocking(true).expect("it is open");
        let (mut stream, _) = slow.accept().expect("it is in the queue");
        stream.set_nonblocking(false).expect("it is open");
        stream.set_read_timeout(Some(DEADLINE)).expect("a socket");
        let mut heard = vec![0; said.len()];
        stream.read_exact(&mut heard).expect("it goes on");
        assert!(heard == said);
    });
    assert!(!has_event(&cluster, Host::A, "flow_not_given_back"));
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// An agent ends with a queue in its hands: it gives that back first.
#[test]
fn an_agent_that_ends_gives_back_what_it_has_taken() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let mut servers = Host::SERVERS.map(|host| serve(&lab, host));
    let mut cluster = start(&lab, "move");
    let capture = witness(&lab);
    servers[0].process.stop().expect("it runs");
    let clients = wait_in_line(&lab);
    let last = Client::connect(&lab, service_v4());
    last.wait_queued(&lab, Host::A, 0);
    last.goes(&cluster, Host::A);
    cluster.stop_agent(Host::A).expect("it ends");
    servers[0].process.cont().expect("it was stopped");
    ask_for_the_name(&clients, Host::A);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// An agent is killed with a queue in its hands: who was taken is lost, and hears that
/// when it speaks, and who was not is served.
#[test]
fn an_agent_that_dies_with_a_queue_leaves_nobody_waiting() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let mut servers = Host::SERVERS.map(|host| serve(&lab, host));
    let mut cluster = start(&lab, "move");
    for step in 0..6 {
        let first = Client::connect(&lab, service_v4());
        first.wait_accepted(&lab, Host::A);
        // Until they know each other, again.
        first.goes(&cluster, Host::A);
        servers[0].process.stop().expect("it runs");
        let clients = wait_in_line(&lab);
        let later = Client::connect(&lab, service_v6());
        later.wait_queued(&lab, Host::A, 0);
        let asked = ask(&cluster, &clients[2]);
        thread::sleep(Duration::from_millis(8) * step * step);
        let agent = cluster.agent(Host::A).expect("it was started");
        agent.signal(Signal::SIGKILL).expect("it runs");
        agent.wait(DEADLINE).expect("it ends");
        cluster.start_agent(Host::A).expect("it starts again");
        let owner = cluster.wait_owner(Host::A, DEADLINE);
        owner.expect("it owns its share");
        drop(asked);
        servers[0].process.cont().expect("it was stopped");
        let mut served = 0;
        for (index, client) in clients.iter().chain([&later]).enumerate() {
            let first = if (2..4).contains(&index) {
                ""
            } else {
                FIRST_HALF
            };
            let said = first.to_owned() + SECOND_HALF;
            let said = (&client.stream).write_all(said.as_bytes());
            let said = said.map_err(|error| error.to_string());
            match said.and_then(|()| client.hear()) {
                Ok(_) => served += 1,
                Err(why) => {
                    eprintln!("step {step}: {index} {why}");
                    assert!(!why.contains("WouldBlock"), "{index} waits for ever");
                    // The other queue.
                    assert!(index < 4 && index % 2 == 0, "{index} was not taken");
                }
            }
        }
        eprintln!("step {step}: {served} served");
    }
}
