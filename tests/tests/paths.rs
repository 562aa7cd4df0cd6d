//! Switches that do not carry what servers send each other: nothing is handed over, each
//! request is answered, and `status` says why.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::host::{Host, Network, SERVICE};
use godwit_tests::DEADLINE;
use godwit_tests::cells::{Cells, Client, OWN_RULES, on_cells};
use godwit_tests::stage::until;

/// A warning comes within a second of the change.
const SAID: Duration = Duration::from_secs(1);

/// A question that was lost is settled by the agents within 50 ms. The rest is for a machine
/// with two processors that runs all of it.
const ANSWERED: Duration = Duration::from_millis(150);

/// A change of the link is noticed sooner, and four probes are lost in more than that.
const NOTICED: Duration = Duration::from_millis(60);

/// What `status` of a says of the path to b.
fn warning(cells: &Cells<'_>) -> Option<String> {
    let status = cells.cluster.status(Host::A).ok()?;
    let mut warnings = status.warnings.into_iter();
    warnings.find(|text| text.contains("does not carry what this node would send to b"))
}

/// Connections that are at a.
fn clients(cells: &Cells<'_>) -> Vec<Client> {
    let there = |address| {
        let mut client = Client::connect(cells.lab, address);
        assert_eq!(client.ask("/a/name"), "a");
        client
    };
    SERVICE.into_iter().map(there).collect()
}

/// The switch drops what `rule` says.
fn deafen(cells: &Cells<'_>, rule: &str) {
    let chain = "add table bridge deaf; \
                 add chain bridge deaf forth { type filter hook forward priority 0; }";
    let rules = format!("{chain}; add rule bridge deaf forth {rule} drop");
    cells.lab.filter(&rules).expect("the switch takes it");
}

fn on_deaf_switch(rule: &str) {
    on_cells(
        OWN_RULES,
        |_, _| (),
        |cells| {
            let mut clients = clients(cells);
            for client in &mut clients {
                assert_eq!(client.ask("/b/name"), "b", "it carries");
                assert_eq!(client.ask("/a/name"), "a");
            }
            deafen(cells, rule);
            let since = Instant::now();
            // Nobody knows yet: the question is lost, or its answer.
            for client in &mut clients {
                let asked = Instant::now();
                client.ask("/b/name");
                let took = asked.elapsed();
                println!("answered after {took:?}");
                assert!(took < ANSWERED, "{took:?}");
            }
            until("it is said", || warning(cells));
            let said = since.elapsed();
            println!("said after {said:?}");
            assert!(said < SAID, "{said:?}");
            let before = cells.sum("asked");
            let mut fresh = Client::connect(cells.lab, SERVICE[0]);
            fresh.ask("/b/name");
            cells
                .lab
                .filter("delete table bridge deaf")
                .expect("it is there");
            until("it is taken back", || {
                warning(cells).is_none().then_some(())
            });
            for client in &mut clients {
                assert_eq!(client.ask("/a/name"), "a");
                assert_eq!(client.ask("/b/name"), "b", "it carries again");
            }
            assert!(cells.sum("asked") > before);
        },
    );
}

/// All of it is dropped.
#[test]
fn a_switch_that_drops_an_unknown_ether_type_is_said() {
    on_deaf_switch("ether type 0x88b6");
}

/// Only what goes to b.
#[test]
fn a_switch_that_drops_one_way_is_said() {
    let b = Host::B.mac(Network::Data);
    on_deaf_switch(&format!("ether daddr {b} ether type 0x88b6"));
}

/// Changes the link of a, then asks for what b has: not over a link that nothing is known of.
fn after_a_change(change: impl Fn(&Cells<'_>)) {
    on_cells(
        OWN_RULES,
        |_, _| (),
        |cells| {
            let mut clients = clients(cells);
            deafen(cells, "ether type 0x88b6");
            change(cells);
            thread::sleep(NOTICED);
            let before = cells.sum("asked");
            for client in &mut clients {
                let asked = Instant::now();
                assert_eq!(client.ask("/b/name"), "a");
                let took = asked.elapsed();
                println!("answered after {took:?}");
                assert!(took < ANSWERED, "{took:?}");
            }
            assert_eq!(cells.sum("asked"), before, "nobody is asked");
        },
    );
}

/// Of a, by `ip link set`.
fn set_link(cells: &Cells<'_>, what: &[&str]) {
    let mut command = Command::new("ip");
    command.args(["link", "set", Network::Data.interface()]);
    command.args(what);
    let output = cells.lab.a().run(command, DEADLINE).expect("ip runs");
    assert!(output.status.success(), "{output:?}");
}

/// What was proved half a second ago was proved of another link.
#[test]
fn nothing_is_handed_over_by_a_link_that_has_changed() {
    after_a_change(|cells| set_link(cells, &["mtu", "1480"]));
    after_a_change(|cells| {
        cells.lab.unplug(Host::A, Network::Data).expect("a port");
        cells.lab.plug(Host::A, Network::Data).expect("a port");
    });
}

/// `ip` on a, with these words.
fn ip(cells: &Cells<'_>, line: &str) {
    let mut command = Command::new("ip");
    command.args(line.split_whitespace());
    let output = cells.lab.a().run(command, DEADLINE).expect("ip runs");
    assert!(output.status.success(), "{line}: {output:?}");
}

/// The interface has the same name and another number: all that sends by it follows.
#[test]
fn requests_are_handed_over_by_an_interface_that_is_made_anew() {
    on_cells(
        OWN_RULES,
        |_, _| (),
        |cells| {
            for client in &mut clients(cells) {
                assert_eq!(client.ask("/b/name"), "b", "it carries");
            }
            let (eth, host) = (Network::Data.interface(), Host::A);
            ip(cells, &format!("link set {eth} down"));
            ip(cells, &format!("link set {eth} name card"));
            ip(cells, "link set card address 02:00:00:00:ff:01 up");
            ip(cells, "address flush dev card");
            let mac = host.mac(Network::Data);
            ip(
                cells,
                &format!("link add link card name {eth} address {mac} type macvlan"),
            );
            ip(cells, &format!("link set {eth} up"));
            ip(cells, &format!("address add {}/24 dev {eth}", host.v4()));
            ip(
                cells,
                &format!("address add {}/64 dev {eth} nodad", host.v6()),
            );
            until("a serves, and the path is proved", || {
                let mut client = Client::connect(cells.lab, SERVICE[0]);
                let here = client.ask("/a/name") == "a";
                (here && client.ask("/b/name") == "b").then_some(())
            });
            let mut clients = clients(cells);
            for _ in 0..20 {
                for client in &mut clients {
                    assert_eq!(client.ask("/b/name"), "b", "it carries");
                    assert_eq!(client.ask("/a/name"), "a");
                    assert_eq!(client.ask("/c/name"), "c");
                }
            }
        },
    );
}
