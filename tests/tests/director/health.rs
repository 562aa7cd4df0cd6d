//! Servers that live, whose heartbeats come, and where new clients would wait all the same.

use godwit_lab::cluster::BackendReport;
use godwit_lab::host::{Host, Network};
use godwit_tests::stage::has_event;

use super::{BACKENDS, Front, all_stay, names, on_site};

/// All but b.
const OTHERS: [Host; 2] = [Host::A, Host::C];

fn backend(front: &Front<'_>, host: Host) -> BackendReport {
    let director = front.wait(|_| true);
    let mut backends = director.backends.into_iter();
    let found = backends.find(|it| it.name == host.name());
    found.expect("it is in the file")
}

/// What director and server have said of each other.
fn warns(front: &Front<'_>, host: Host, what: &str) -> bool {
    let status = front.cluster.status(host).expect("it answers");
    status.warnings.iter().any(|it| it.contains(what))
}

/// A link that carries frames one way only: b is heard, and hears nothing.
#[test]
fn a_server_that_does_not_hear_the_director_gets_nothing_new() {
    on_site(|front| {
        let mut regulars = front.connect(24);
        let way = (Network::Control, Host::Director, Host::B);
        front.lab.cut_way(way.0, way.1, way.2).expect("it is cut");
        front.wait_takers(&OTHERS);
        let b = backend(front, Host::B);
        assert!(b.cut_off && b.there, "{b:?}");
        assert!(!backend(front, Host::A).cut_off);
        assert!(has_event(&front.cluster, Host::Director, "backend_cut_off"));
        assert!(warns(front, Host::Director, "does not hear"));
        assert_eq!(front.curls(16), names(&OTHERS));
        all_stay(&mut regulars);
        front.lab.heal_way(way.0, way.1, way.2).expect("it heals");
        front.wait_takers(&BACKENDS);
        assert!(!backend(front, Host::B).cut_off);
        assert!(front.curls(32).contains("b"));
        all_stay(&mut regulars);
    });
}

/// Its kernel goes on to take connections.
#[test]
fn a_server_whose_processes_stand_still_gets_nothing_new() {
    on_site(|front| {
        let mut regulars = front.connect(24);
        let nginx = front.nginx.get_mut(&Host::B).expect("it runs");
        nginx.process.stop().expect("it is stopped");
        let director = front.wait_takers(&OTHERS);
        assert_eq!(director.services[0].paused, ["b"]);
        assert_eq!(director.backends.iter().filter(|it| it.there).count(), 3);
        assert_eq!(front.curls(16), names(&OTHERS));
        let nginx = front.nginx.get_mut(&Host::B).expect("it runs");
        nginx.process.cont().expect("it goes on");
        let director = front.wait_takers(&BACKENDS);
        assert!(director.services[0].paused.is_empty());
        assert!(front.curls(32).contains("b"));
        all_stay(&mut regulars);
    });
}
