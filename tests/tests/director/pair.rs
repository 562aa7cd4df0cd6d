//! Two directors: connections outlive the one that has the addresses.

use std::thread;
use std::time::{Duration, Instant};

use godwit_lab::LabOptions;
use godwit_lab::cluster::{ClusterOptions, DirectorReport};
use godwit_lab::host::{Host, Network};
use godwit_tests::stage::{stage, until};

use super::{BACKENDS, Front, all_stay, names, on_lab, options};

const BOTH: [Host; 2] = [Host::Director, Host::Reserve];

fn on_site(work: impl FnOnce(&mut Front<'_>)) {
    let Some(lab) = stage(LabOptions {
        third: true,
        director: true,
        reserve: true,
        ..LabOptions::default()
    }) else {
        return;
    };
    let options = ClusterOptions {
        more: &[Host::C, Host::Director, Host::Reserve],
        ..options()
    };
    on_lab(&lab, options, |front| {
        front.wait_holder(Host::Director);
        work(front);
    });
}

impl Front<'_> {
    fn report(&self, host: Host) -> Option<DirectorReport> {
        self.cluster.status(host).ok()?.director
    }

    /// Until that one has the addresses, and the other one has not, if it lives.
    fn wait_holder(&self, host: Host) {
        let holds = |one: Host| self.report(one).map(|it| it.holds && !it.starting);
        until("one has the addresses", || {
            let others = BOTH.into_iter().filter(|other| *other != host);
            let mut others = others.map(holds);
            let alone = others.all(|it| it != Some(true));
            (holds(host) == Some(true) && alone).then_some(())
        });
    }

    /// Until all servers that take connections are those, for that director.
    fn wait_takers_of(&self, host: Host, takers: &[Host]) {
        until("it knows who takes connections", || {
            let report = self.report(host)?;
            let takes = report.services[0].slots.keys().cloned();
            (takes.collect::<std::collections::BTreeSet<_>>() == names(takers)).then_some(())
        });
    }

    fn counted_at(&self, host: Host, reason: &str) -> u64 {
        let status = self.cluster.status(host).expect("it answers");
        status.counted(reason)
    }
}

/// Connections that are where their slot says, those that were there before it said so, and
/// those that have entries: all go on when the director that has the addresses is dark.
#[test]
fn connections_outlive_the_director_that_has_the_addresses() {
    on_site(|front| {
        let mut regulars = front.connect(36);
        front.drain(&["b"]);
        for host in BOTH {
            front.wait_takers_of(host, &[Host::A, Host::C]);
        }
        regulars.extend(front.connect(36));
        assert!(front.counted("directed_entry") > 0, "some have entries");
        front.drain(&["b", "--undo"]);
        for host in BOTH {
            front.wait_takers_of(host, &BACKENDS);
        }
        regulars.extend(front.connect(12));
        all_stay(&mut regulars);
        front.lab.crash(Host::Director).expect("it goes dark");
        let since = Instant::now();
        // One asks again and again, from before it is noticed.
        let (longest, mut regulars) = thread::scope(|scope| {
            let first = scope.spawn(move || {
                let mut longest = Duration::ZERO;
                let end = since + Duration::from_secs(2);
                while Instant::now() < end {
                    let asked = Instant::now();
                    all_stay(&mut regulars[..1]);
                    longest = longest.max(asked.elapsed());
                }
                (longest, regulars)
            });
            front.wait_holder(Host::Reserve);
            println!("taken after at most {:?}", since.elapsed());
            first.join().expect("it is answered")
        });
        println!("longest wait of a client that was asking: {longest:?}");
        all_stay(&mut regulars);
        assert_eq!(front.curls(24), names(&BACKENDS));
        for reason in ["directed_entry", "directed_base"] {
            assert!(front.counted_at(Host::Reserve, reason) > 0, "{reason}");
        }
        assert_eq!(front.counted_at(Host::Reserve, "no_backend"), 0);
    });
}

/// One that comes back does not take the addresses again, is told all that happened
/// meanwhile, and can take them when the other one ends.
#[test]
fn a_director_that_comes_back_learns_what_happened_meanwhile() {
    on_site(|front| {
        let mut regulars = front.connect(24);
        front.lab.crash(Host::Director).expect("it goes dark");
        front.wait_holder(Host::Reserve);
        front.drain_at(Host::Reserve, &["a"]);
        front.wait_takers_of(Host::Reserve, &[Host::B, Host::C]);
        regulars.extend(front.connect(36));
        front.cluster.power_off(Host::Director).expect("it is off");
        front.lab.reboot(Host::Director).expect("it boots");
        let start = front.cluster.start_agent(Host::Director);
        start.expect("it starts");
        front.wait_takers_of(Host::Director, &[Host::B, Host::C]);
        front.wait_holder(Host::Reserve);
        regulars.extend(front.connect(12));
        all_stay(&mut regulars);
        // As its operator wants it: at once, and for good.
        front.lab.crash(Host::Reserve).expect("it goes dark");
        front.wait_holder(Host::Director);
        all_stay(&mut regulars);
        assert!(front.counted("directed_entry") > 0);
        assert!(front.counted("directed_base") > 0);
        assert_eq!(front.curls(16), names(&[Host::B, Host::C]));
    });
}

/// Directors that do not hear each other both answer, and both send each connection where
/// it is; when they hear again one of them gives way.
#[test]
fn two_that_answer_do_no_harm_to_each_other() {
    on_site(|front| {
        let mut regulars = front.connect(24);
        front.drain(&["c"]);
        for host in BOTH {
            front.wait_takers_of(host, &[Host::A, Host::B]);
        }
        regulars.extend(front.connect(24));
        all_stay(&mut regulars);
        let control = [Network::Control];
        front.lab.cut(Host::Reserve, &control).expect("it is cut");
        until("both have the addresses", || {
            let both = BOTH.into_iter().all(|host| {
                let report = front.report(host);
                report.is_some_and(|it| it.holds)
            });
            both.then_some(())
        });
        for _ in 0..3 {
            all_stay(&mut regulars);
            // Whoever answers the client's question gets its segments.
            front.forget_neighbours();
        }
        front.lab.heal(Host::Reserve, &control).expect("it heals");
        front.wait_holder(Host::Director);
        front.forget_neighbours();
        all_stay(&mut regulars);
    });
}

/// Its program goes on, and it answers for the addresses as the other one does by now; when
/// it is started again it leaves that to the other one.
#[test]
fn a_director_that_was_killed_gives_way() {
    on_site(|front| {
        let mut regulars = front.connect(24);
        front.drain(&["b"]);
        for host in BOTH {
            front.wait_takers_of(host, &[Host::A, Host::C]);
        }
        regulars.extend(front.connect(12));
        let agent = front.cluster.agent(Host::Director).expect("it runs");
        agent.kill().expect("it dies");
        front.wait_holder(Host::Reserve);
        all_stay(&mut regulars);
        let start = front.cluster.start_agent(Host::Director);
        start.expect("another one starts");
        front.wait_takers_of(Host::Director, &[Host::A, Host::C]);
        front.wait_holder(Host::Reserve);
        let own = front.at_the_director("ip -o address");
        assert!(!own.contains("10.9.0.100"), "{own}");
        regulars.extend(front.connect(12));
        all_stay(&mut regulars);
    });
}

/// The one that stands second in the file has them, and is started again: its first heartbeats
/// said that it only could have them, and the first one took them.
#[test]
fn a_director_that_is_restarted_keeps_the_addresses() {
    on_site(|front| {
        let mut regulars = front.connect(12);
        let agent = front.cluster.agent(Host::Director).expect("it runs");
        agent.kill().expect("it dies");
        front.wait_holder(Host::Reserve);
        let start = front.cluster.start_agent(Host::Director);
        start.expect("another one starts");
        front.wait_takers_of(Host::Director, &BACKENDS);
        front.wait_holder(Host::Reserve);
        for _ in 0..2 {
            front.cluster.stop_agent(Host::Reserve).expect("it ends");
            let start = front.cluster.start_agent(Host::Reserve);
            start.expect("it starts again");
            front.wait_holder(Host::Reserve);
            all_stay(&mut regulars);
        }
        let taken = front.cluster.event_text(Host::Director);
        let taken = taken.expect("it answers");
        assert!(!taken.contains("addresses_taken"), "{taken}");
    });
}

/// Its heart beats, and no client reaches it: the other one takes over.
#[test]
fn a_director_without_a_link_leaves_the_addresses_to_the_other_one() {
    on_site(|front| {
        let mut regulars = front.connect(24);
        let data = Network::Data;
        let unplug = front.lab.unplug(Host::Director, data);
        unplug.expect("its plug is pulled");
        front.wait_holder(Host::Reserve);
        all_stay(&mut regulars);
        front.lab.plug(Host::Director, data).expect("it is back");
        front.wait_holder(Host::Reserve);
        all_stay(&mut regulars);
        assert_eq!(front.curls(24), names(&BACKENDS));
    });
}

/// What it sends on the data network is lost, and its heart beats on another one: the back-ends
/// answer the other director, so it is its own link that is lost.
#[test]
fn a_director_that_no_back_end_answers_leaves_the_addresses_to_the_other_one() {
    on_site(|front| {
        let mut regulars = front.connect(24);
        until("back-ends answer both", || {
            let answered = |host| front.counted_at(host, "reach_heard") >= 6;
            BOTH.into_iter().all(answered).then_some(())
        });
        let says = |there: bool| {
            until("it says that it is cut off", || {
                let status = front.cluster.status(Host::Director).ok()?;
                let mut warnings = status.warnings.iter();
                let said = warnings.any(|it| it.starts_with("cut_off: "));
                (said == there).then_some(())
            });
        };
        let since = Instant::now();
        let rules = "table bridge lost {
chain pass {
    type filter hook forward priority 0;
    iifname \"p-d\" drop
}
}";
        front.lab.filter(rules).expect("the rules are taken");
        front.wait_holder(Host::Reserve);
        println!("taken after {:?}", since.elapsed());
        all_stay(&mut regulars);
        says(true);
        assert_eq!(front.curls(24), names(&BACKENDS));
        let healed = front.lab.filter("delete table bridge lost");
        healed.expect("they are there");
        says(false);
        front.wait_holder(Host::Reserve);
        all_stay(&mut regulars);
    });
}

/// One that is told to end leaves the addresses to the other one at once.
#[test]
fn a_director_that_ends_in_order_hands_the_addresses_over() {
    on_site(|front| {
        let mut regulars = front.connect(24);
        let file = front.cluster.config_file(Host::Director).expect("a file");
        let path = file.to_str().expect("a plain path");
        let args = ["director", "--config", path, "--detach"];
        let output = front.cluster.godwit(Host::Director, &args);
        let output = output.expect("it runs");
        assert!(output.status.success(), "{}", output.stderr);
        front.wait_holder(Host::Reserve);
        all_stay(&mut regulars);
        assert_eq!(front.curls(24), names(&BACKENDS));
    });
}
