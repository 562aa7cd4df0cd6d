//! Three nginx under their agents, and rules that say by whom each request is served: one
//! connection goes from server to server with its requests.

use std::net::{Ipv6Addr, SocketAddr};
use std::thread;

use godwit_lab::host::{Host, SERVICE};
use godwit_lab::links::Loss;
use godwit_sock::Listeners;
use godwit_tests::cells::{BACKENDS, Cells, Client, OWN_RULES, on_cells};
use godwit_tests::stage::{PORT, assert_moved, assert_no_live_reset, until, witness};
use socket2::{Domain, Socket, Type};

/// Besides what begins with their names: pictures are b's, and a host of its own c's.
const MORE_RULES: &str = "
[[service.rule]]
suffix = \".png\"
to = [\"b\"]

[[service.rule]]
host = \"c.example\"
to = [\"c\"]
";

fn on_rules(work: impl FnOnce(&mut Cells<'_>)) {
    on_cells(&[OWN_RULES, MORE_RULES].concat(), |_, _| (), work);
}

/// To and fro, over both address families, also by way of all three and back.
#[test]
fn each_request_is_served_where_its_rule_says() {
    on_rules(|cells| {
        let capture = witness(cells.lab);
        for address in SERVICE {
            let mut client = Client::connect(cells.lab, address);
            for path in [
                "/b/name", "/b/name", "/c/name", "/a/name", "/c/name", "/b/name",
            ] {
                assert_eq!(client.ask(path), path[1..2], "{path}");
            }
            assert_eq!(client.ask("/c/face.png"), "b", "a suffix before a prefix");
            assert_eq!(client.ask_with("/b/name", "Host: c.example:80\r\n"), "c");
            assert_eq!(client.ask("/d/name"), "c", "no rule: where it is");
            for letter in ["a", "b", "c"] {
                let all = client.ask(&format!("/{letter}/large"));
                assert_eq!(all, letter.repeat(300_000));
            }
        }
        assert_eq!(cells.sum("asked"), cells.sum("accepted"));
        assert_eq!(cells.sum("came"), cells.sum("accepted"));
        assert!(cells.sum("came") >= 18, "{}", cells.sum("came"));
        // A way that has taken 300 KB takes more than ten segments at once.
        assert!(cells.sum("window_kept") > 0);
        assert_eq!(cells.sum("no_slip"), 0);
        assert_moved(&capture.finish().expect("it is complete"), 16);
    });
}

/// Questions and answers are lost, as is what is forwarded: each request is answered, once,
/// with its own bytes.
#[test]
fn what_is_lost_between_the_servers_is_said_again() {
    on_rules(|cells| {
        let capture = witness(cells.lab);
        let pairs = BACKENDS
            .iter()
            .flat_map(|from| BACKENDS.map(|to| (*from, to)));
        for (from, to) in pairs.filter(|(from, to)| from != to) {
            let loss = Loss {
                from,
                to,
                per_myriad: 2000,
            };
            cells.lab.lose(loss).expect("the rule is set");
        }
        let joined = thread::scope(|scope| {
            let mut all = Vec::new();
            for number in 0..8 {
                let lab = cells.lab;
                all.push(scope.spawn(move || {
                    let mut client = Client::connect(lab, SERVICE[number % 2]);
                    for round in 0..12 {
                        let letter = ["a", "b", "c"][(number + round) % 3];
                        let path = format!("/{letter}/name");
                        // Whose reply was not acknowledged in time may stay.
                        let by = client.ask(&path);
                        assert!(["a", "b", "c"].contains(&&*by), "{by}");
                        if round % 4 == 0 {
                            let all = client.ask(&format!("/{letter}/large"));
                            assert_eq!(all, all[..1].repeat(300_000));
                        }
                    }
                }));
            }
            all.into_iter()
                .map(|it| it.join().is_ok())
                .collect::<Vec<_>>()
        });
        let trace = capture.finish().expect("it is complete");
        assert_no_live_reset(&trace);
        assert!(joined.iter().all(|it| *it));
        let [asked, came, accepted] = ["asked", "came", "accepted"].map(|it| cells.sum(it));
        println!("asked {asked}, came {came}, accepted {accepted}");
        assert!(asked > came, "questions were lost");
        assert!(came > accepted, "answers, too");
    });
}

/// Whose server has just ended, or is full, refuses; the request is served where it is.
#[test]
fn who_is_refused_is_served_where_it_is() {
    on_rules(|cells| {
        let capture = witness(cells.lab);
        let mut clients: Vec<_> = SERVICE
            .map(|address| Client::connect(cells.lab, address))
            .into();
        cells
            .servers
            .remove(&Host::B)
            .expect("it runs")
            .kill()
            .expect("it dies");
        // Its worker may outlive it by a moment, and who is offered a connection then has it.
        until("nobody listens", || {
            let look = || Listeners::read().expect("sock_diag");
            let listeners = cells.lab.b().enter(look).expect("the machine is there");
            let served = SERVICE
                .iter()
                .any(|it| listeners.serve(SocketAddr::new(*it, PORT)));
            (!served).then_some(())
        });
        for client in &mut clients {
            assert_eq!(client.ask("/b/name"), "a");
            assert_eq!(client.ask("/c/name"), "c");
        }
        assert_eq!(cells.counted(Host::A, "refused"), 2);
        assert_eq!(cells.counted(Host::B, "no_listener"), 2);
        cells.wait_asks(Host::C, 1);
        for client in &mut clients {
            assert_eq!(client.ask("/b/name"), "c", "nobody is asked any more");
        }
        // One that accepts nobody, and has room for two.
        let full = cells.lab.b().enter(|| {
            let listener = Socket::new(Domain::IPV6, Type::STREAM, None)?;
            listener.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT)).into())?;
            listener.listen(2)?;
            Ok::<_, std::io::Error>(listener)
        });
        let _full = full
            .expect("the machine is there")
            .expect("the port is free");
        cells.wait_asks(Host::A, 2);
        let mut waiting: Vec<_> = (0..2)
            .map(|_| Client::connect(cells.lab, SERVICE[0]))
            .collect();
        for client in &mut waiting {
            client.say("GET /b/name HTTP/1.1\r\nHost: s\r\n\r\n");
        }
        cells.wait_counted(Host::B, "came", 2);
        let mut late = Client::connect(cells.lab, SERVICE[1]);
        assert_eq!(late.ask("/b/name"), "a");
        assert_eq!(cells.counted(Host::B, "overloaded"), 1);
        let trace = capture.finish().expect("it is complete");
        assert_eq!(trace.resets(), 0);
    });
}

/// Once rules and neighbours are written down no agent is needed; a new one goes on.
#[test]
fn no_agent_is_in_the_path() {
    on_rules(|cells| {
        let capture = witness(cells.lab);
        let mut clients: Vec<_> = SERVICE
            .map(|address| Client::connect(cells.lab, address))
            .into();
        let ask_all = |clients: &mut Vec<Client>| {
            for client in clients {
                for letter in ["c", "b", "a", "b"] {
                    assert_eq!(client.ask(&format!("/{letter}/name")), letter);
                }
            }
        };
        ask_all(&mut clients);
        for host in BACKENDS {
            let agent = cells.cluster.agent(host).expect("it runs");
            agent.kill().expect("it dies");
        }
        ask_all(&mut clients);
        clients.extend(SERVICE.map(|address| Client::connect(cells.lab, address)));
        ask_all(&mut clients);
        for host in BACKENDS {
            cells.cluster.start_agent(host).expect("it starts");
        }
        for host in BACKENDS {
            cells.wait_asks(host, 2);
        }
        ask_all(&mut clients);
        assert_moved(&capture.finish().expect("it is complete"), 24);
    });
}
