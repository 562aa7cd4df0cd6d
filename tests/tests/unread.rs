//! Connections of servers that know nothing of Godwit, of which nobody has read a byte:
//! they go to another server, which knows nothing of it either.

use std::io::Write as _;
use std::thread;
use std::time::Duration;

use godwit_lab::LabOptions;
use godwit_lab::host::Host;
use godwit_tests::DEADLINE;
use godwit_tests::stage::{
    assert_no_reset, has_event, service_v4, service_v6, stage, until, witness,
};
use godwit_tests::unread::{
    Client, FIRST_HALF, SECOND_HALF, ask, full_listener, serve, start, start_with,
};
use godwit_wire::TcpFlags;
use nix::sys::signal::Signal;
use socket2::SockRef;

/// Several times as long as an agent waits before it asks; it looks every two seconds.
const SILENCE: Duration = Duration::from_secs(7);

/// One that has said nothing yet, to and fro, then served where it is; it may not know.
#[test]
fn a_silent_connection_goes_to_another_server() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = Host::SERVERS.map(|host| serve(&lab, host));
    let cluster = start(&lab, "move");
    let capture = witness(&lab);
    let clients = [service_v4(), service_v6()].map(|service| Client::connect(&lab, service));
    for client in &clients {
        client.wait_accepted(&lab, Host::A);
        client.goes(&cluster, Host::A);
        client.wait_accepted(&lab, Host::B);
        client.goes(&cluster, Host::B);
        client.wait_accepted(&lab, Host::A);
        client.goes(&cluster, Host::A);
        for _ in 0..3 {
            client.say(FIRST_HALF);
            client.say(SECOND_HALF);
            client.hear_from(Host::B);
        }
        until("a has closed it", || {
            client.view(&lab, Host::A).is_none().then_some(())
        });
    }
    let newcomer = Client::connect(&lab, service_v4());
    newcomer.say(FIRST_HALF);
    newcomer.say(SECOND_HALF);
    newcomer.hear_from(Host::A);
    let trace = capture.finish().expect("the capture is complete");
    assert_no_reset(&trace);
    let count = |flag: TcpFlags| trace.segments().filter(|s| s.flags.contains(flag)).count();
    assert_eq!(count(TcpFlags::FIN), 0);
    // Each client's, and the answer.
    assert_eq!(count(TcpFlags::SYN), 6);
}

/// One that has said half a request, which its server did not come to read, and half a
/// buffer of one: what was acknowledged goes along.
#[test]
fn what_was_said_and_not_read_goes_along() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let mut servers = Host::SERVERS.map(|host| serve(&lab, host));
    let cluster = start(&lab, "move");
    let capture = witness(&lab);
    let long = format!(
        "{FIRST_HALF}me HTTP/1.1\r\nCookie: {}\r\n",
        "x".repeat(5000)
    );
    for (first, second) in [(FIRST_HALF, SECOND_HALF), (&long, "Host: godwit\r\n\r\n")] {
        let clients = [service_v4(), service_v6()].map(|service| Client::connect(&lab, service));
        for client in &clients {
            client.wait_accepted(&lab, Host::A);
        }
        servers[0].process.stop().expect("it runs");
        for client in &clients {
            client.say(first);
            client.wait_received(&lab, Host::A, first.len());
            client.goes(&cluster, Host::A);
        }
        servers[0].process.cont().expect("it runs");
        for client in &clients {
            client.say(second);
            client.hear_from(Host::B);
        }
    }
    let trace = capture.finish().expect("the capture is complete");
    assert_no_reset(&trace);
}

/// For whom its origin asks again and again whether there is anything to forward for.
#[test]
fn who_is_silent_for_long_does_not_lose_the_way() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = Host::SERVERS.map(|host| serve(&lab, host));
    let cluster = start_with(&lab, "unread = \"move\"\nforward_idle = \"1s\"\n".into());
    let capture = witness(&lab);
    let clients = [service_v4(), service_v6()].map(|service| Client::connect(&lab, service));
    for client in &clients {
        client.wait_accepted(&lab, Host::A);
        client.goes(&cluster, Host::A);
    }
    thread::sleep(SILENCE);
    for client in &clients {
        client.say(FIRST_HALF);
        client.say(SECOND_HALF);
        client.hear_from(Host::B);
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
    assert!(!has_event(&cluster, Host::A, "flow_over"));
}

/// Its server has begun: it stays, and goes on.
#[test]
fn what_was_read_from_stays() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = Host::SERVERS.map(|host| serve(&lab, host));
    let cluster = start(&lab, "move");
    let capture = witness(&lab);
    for service in [service_v4(), service_v6()] {
        let client = Client::connect(&lab, service);
        client.say(FIRST_HALF);
        client.say(SECOND_HALF);
        client.hear_from(Host::A);
        client.stays(&cluster, "already_read");
        client.say(FIRST_HALF);
        client.say(SECOND_HALF);
        client.hear_from(Host::A);
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// A byte with the urgent flag waits, which another kernel would not be told of: it stays as
/// it is, and people hear why.
#[test]
fn one_with_urgent_data_stays() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let mut servers = Host::SERVERS.map(|host| serve(&lab, host));
    let cluster = start(&lab, "move");
    let capture = witness(&lab);
    for service in [service_v4(), service_v6()] {
        let client = Client::connect(&lab, service);
        client.wait_accepted(&lab, Host::A);
        servers[0].process.stop().expect("it runs");
        client.say(FIRST_HALF);
        let urgent = SockRef::from(&client.stream).send_out_of_band(b"!");
        assert_eq!(urgent.expect("open"), 1);
        client.wait_received(&lab, Host::A, FIRST_HALF.len() + 1);
        let before = client.view(&lab, Host::A).expect("it is there");
        client.stays(&cluster, "not_movable");
        let events = cluster.event_reports(Host::A).expect("it answers");
        let flow = client.flow.to_string();
        let why = events.iter().find_map(|event| {
            let is_ours = event.event == "flow_not_movable" && event.flow.as_ref() == Some(&flow);
            event.why.clone().filter(|_| is_ours)
        });
        assert_eq!(why.as_deref(), Some("urgent data wait"));
        let left = client.view(&lab, Host::A).expect("it is there");
        assert_eq!(
            (left.cookie, left.received),
            (before.cookie, before.received)
        );
        servers[0].process.cont().expect("it runs");
    }
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// Nobody looks into processes who was not told to.
#[test]
fn without_a_word_in_the_file_it_stays() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = Host::SERVERS.map(|host| serve(&lab, host));
    let cluster = start(&lab, "stay");
    let client = Client::connect(&lab, service_v4());
    client.wait_accepted(&lab, Host::A);
    client.stays(&cluster, "no_server");
    client.say(FIRST_HALF);
    client.say(SECOND_HALF);
    client.hear_from(Host::A);
}

/// The target has no room in its accept queue: the origin goes on. If its server has
/// closed it meanwhile, its client hears of that, and people why.
#[test]
fn one_that_was_stopped_in_vain_goes_on() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _server = serve(&lab, Host::A);
    let cluster = start(&lab, "move");
    let capture = witness(&lab);
    let _full = full_listener(&lab);
    let client = Client::connect(&lab, service_v4());
    client.wait_accepted(&lab, Host::A);
    for _ in 0..5 {
        client.has_no_room(&cluster);
    }
    client.say(FIRST_HALF);
    client.say(SECOND_HALF);
    client.hear_from(Host::A);
    assert_no_reset(&capture.finish().expect("the capture is complete"));
}

/// An agent is killed at any moment of a move and started again: somebody serves it, or
/// it is reset.
fn agent_dies(host: Host) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = Host::SERVERS.map(|host| serve(&lab, host));
    let mut cluster = start(&lab, "move");
    for step in 0..8 {
        // Until they know each other, again.
        let first = Client::connect(&lab, service_v4());
        first.wait_accepted(&lab, Host::A);
        first.goes(&cluster, Host::A);
        let client = Client::connect(&lab, [service_v4(), service_v6()][step % 2]);
        client.wait_accepted(&lab, Host::A);
        let delay = Duration::from_micros(1300) * u32::try_from(step).expect("small");
        let asked = ask(&cluster, &client);
        thread::sleep(delay);
        let agent = cluster.agent(host).expect("it was started");
        agent.signal(Signal::SIGKILL).expect("it runs");
        agent.wait(DEADLINE).expect("it ends");
        cluster.start_agent(host).expect("it starts again");
        cluster
            .wait_owner(host, DEADLINE)
            .expect("it owns its share");
        drop(asked);
        // Where it was reset already, that is what it hears.
        let said = (&client.stream).write_all((FIRST_HALF.to_owned() + SECOND_HALF).as_bytes());
        match said
            .map_err(|error| error.to_string())
            .and_then(|()| client.hear())
        {
            Ok(answer) => eprintln!(
                "killed after {delay:?}: {}",
                answer.lines().last().expect("text")
            ),
            Err(why) => {
                eprintln!("killed after {delay:?}: {why}");
                let told = Host::SERVERS.into_iter().any(|server| {
                    let tells = |event| has_event(&cluster, server, event);
                    tells("flow_closed") || tells("flow_lost")
                });
                assert!(told, "no reason");
            }
        }
    }
}

#[test]
fn an_origin_that_dies_on_the_way_leaves_nothing_silent() {
    agent_dies(Host::A);
}

#[test]
fn a_target_that_dies_on_the_way_leaves_no_second_server() {
    agent_dies(Host::B);
}
