//! What a director sends to a back-end does not arrive, or no answer comes back. Heartbeats have a
//! network of their own, and say nothing of that.

use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::host::{Host, Network};
use godwit_tests::DEADLINE;
use godwit_tests::stage::until;

use super::{BACKENDS, Front, all_stay, names, on_site};

/// Longest until a back-end that does not answer is said and spared; a look at the status takes
/// its time on a busy machine.
const NOTICED: Duration = Duration::from_millis(1500);

/// What warnings of a director, and of a back-end, name.
const NOTES: &str = "EtherType 0x88b5";

/// The switch drops notes that have to do with these ports.
fn drop_notes(front: &Front<'_>, matches: &str) {
    let rules = format!(
        "table bridge notes {{
chain pass {{
    type filter hook forward priority 0;
    {matches} ether type 0x88b5 drop
}}
}}"
    );
    front.lab.filter(&rules).expect("the rules are taken");
}

fn let_notes_pass(front: &Front<'_>) {
    let done = front.lab.filter("delete table bridge notes");
    done.expect("they are there");
}

/// Whether `host` warns of notes, of that node.
fn warns(front: &Front<'_>, host: Host, of: &str) -> bool {
    let status = front.cluster.status(host);
    let warnings = status.map(|status| status.warnings).unwrap_or_default();
    let mut warnings = warnings.iter();
    warnings.any(|it| it.contains(NOTES) && it.contains(of))
}

fn wait_warning(front: &Front<'_>, host: Host, of: &str, there: bool) {
    until(&format!("{host} warns of {of}: {there}"), || {
        (warns(front, host, of) == there).then_some(())
    });
}

/// All have answered, and all take new connections.
fn wait_proved(front: &Front<'_>) {
    front.wait(|director| {
        let mut all = director.backends.iter();
        all.all(|it| it.state == "taking" && !it.unproved)
    });
    front.wait_takers(&BACKENDS);
    let end = Instant::now() + DEADLINE;
    // Keys are agreed on, and answers come.
    while front.counted("reach_heard") < 6 {
        assert!(Instant::now() < end, "nobody answers");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A back-end is said to be unproved, here and there, and others get what is new.
fn is_spared(front: &Front<'_>, since: Instant, host: Host) {
    let others: Vec<_> = BACKENDS.into_iter().filter(|it| *it != host).collect();
    let name = format!("back-end {host} ");
    front.wait(|director| {
        let mut all = director.backends.iter();
        all.any(|it| it.name == host.name() && it.unproved && it.state == "draining")
    });
    front.wait_takers(&others);
    wait_warning(front, Host::Director, &name, true);
    let noticed = since.elapsed();
    println!("{host} is unproved after {noticed:?}");
    assert!(noticed < NOTICED, "{noticed:?}");
    // None of these waits for long.
    assert_eq!(front.curls(24), names(&others));
    wait_warning(front, host, "director d", true);
    for other in others {
        assert!(!warns(front, other, "director d"), "{other}");
        let name = format!("back-end {other} ");
        assert!(!warns(front, Host::Director, &name), "{other}");
    }
}

fn is_taken_back(front: &Front<'_>, host: Host) {
    wait_proved(front);
    wait_warning(front, Host::Director, "back-end", false);
    wait_warning(front, host, "director d", false);
    assert!(front.curls(48).contains(host.name()));
}

/// An ACL, or port security, keeps notes back on their way to a server or from it, and lets all
/// else pass: what it has goes on, and nothing new is given to it.
#[test]
fn a_back_end_that_gets_no_notes_is_said_and_gets_nothing_new() {
    on_site(|front| {
        let mut regulars = front.connect(24);
        for matches in ["oifname \"p-b\"", "iifname \"p-b\""] {
            wait_proved(front);
            let since = Instant::now();
            drop_notes(front, matches);
            is_spared(front, since, Host::B);
            all_stay(&mut regulars);
            let_notes_pass(front);
            is_taken_back(front, Host::B);
            all_stay(&mut regulars);
        }
    });
}

/// The switch lets no note pass at all. That is said of each, and all serve as before: nobody is
/// asked about SYNs, also where slots have changed.
#[test]
fn a_switch_that_drops_all_notes_refuses_no_client() {
    on_site(|front| {
        front.drain(&["c"]);
        front.wait_takers(&[Host::A, Host::B]);
        front.drain(&["c", "--undo"]);
        wait_proved(front);
        let mut regulars = front.connect(24);
        drop_notes(front, "");
        let director = front.wait(|director| director.backends.iter().all(|it| it.unproved));
        assert!(
            director.backends.iter().all(|it| it.state == "taking"),
            "{director:?}"
        );
        assert!(director.services[0].mixed > 0, "slots have changed");
        for host in BACKENDS {
            wait_warning(front, Host::Director, &format!("back-end {host} "), true);
            wait_warning(front, host, "director d", true);
        }
        assert_eq!(front.curls(48), names(&BACKENDS));
        front.wait_takers(&BACKENDS);
        all_stay(&mut regulars);
        let_notes_pass(front);
        is_taken_back(front, Host::A);
        all_stay(&mut regulars);
    });
}

/// A link carries nothing from the director to a back-end, and all the other way. Heartbeats,
/// which have a network of their own, come and go.
#[test]
fn a_back_end_that_the_director_does_not_reach_gets_nothing_new() {
    on_site(|front| {
        let mut regulars = front.connect(24);
        wait_proved(front);
        let since = Instant::now();
        let ways = (Network::Data, Host::Director, Host::C);
        front
            .lab
            .cut_way(ways.0, ways.1, ways.2)
            .expect("it is cut");
        is_spared(front, since, Host::C);
        let others = regulars.iter_mut().filter(|it| it.server != "c");
        for regular in others {
            assert_eq!(regular.ask(), regular.server);
        }
        front
            .lab
            .heal_way(ways.0, ways.1, ways.2)
            .expect("it heals");
        is_taken_back(front, Host::C);
        all_stay(&mut regulars);
    });
}
