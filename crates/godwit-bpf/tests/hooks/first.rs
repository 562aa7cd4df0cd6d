//! Godwit's programs stand before other people's: at the start, and again when somebody
//! has come before them.

use godwit_bpf::{Datapath, Foreign, Fronting, Hook, Hooks, Standing};
use godwit_lab::Lab;
use godwit_sock::netns_cookie;
use godwit_wire::{Role, TcpFlags};

use crate::bench::{Bench, IRS, ISS, from_service, on_bench, on_bench_of, to_service};

fn hooks(datapath: &mut Datapath) -> &mut Hooks {
    datapath.hooks.as_mut().expect("nobody took them")
}

fn ways(found: &[Fronting]) -> Vec<&'static str> {
    found.iter().map(|front| front.way).collect()
}

/// Another node's data path on the same interface: its programs are strangers here.
fn stranger(lab: &Lab) -> Bench {
    let pins = format!("stranger-{}", lab.id());
    let folder = format!("/sys/fs/bpf/godwit/{pins}");
    lab.remove_at_end(folder.as_ref())
        .expect("it is remembered");
    Bench::try_open(&pins, &[]).expect("the programs load")
}

#[test]
fn who_comes_before_godwit_is_named_and_passed() {
    on_bench_of(|bench, lab, pins| {
        let look = |pins, ifindex| Standing::look(pins, ifindex).expect("it is told");
        let ifindex = bench.ifindex;
        let alone = look(pins, ifindex);
        assert!(alone.is_attached && alone.before.is_empty(), "{alone:?}");
        let own = hooks(&mut bench.datapath);
        assert_eq!(own.fronting(ifindex).expect("it is told"), []);
        let mut other = stranger(lab);
        let found = own.fronting(ifindex).expect("it is told");
        assert_eq!(ways(&found), ["ingress", "egress"]);
        // As `godwit doctor` sees it, from another process.
        let seen = look(pins, ifindex);
        let names: Vec<_> = seen.before.iter().map(|it| it.name.as_deref()).collect();
        assert_eq!(
            (seen.is_attached, &*names),
            (true, &[Some("tap"), Some("gate")][..])
        );
        let none = look("nobody", ifindex);
        assert_eq!((none.is_attached, none.before.len()), (false, 4));
        own.come_first(ifindex).expect("it may");
        assert_eq!(look(pins, ifindex), alone);
        assert_eq!(own.fronting(ifindex).expect("it is told"), []);
        assert!(own.is_attached(ifindex));
        let found = hooks(&mut other.datapath).fronting(ifindex);
        assert_eq!(ways(&found.expect("it is told")), ["ingress", "egress"]);
        other.datapath.detach().expect("it is removed");
        assert_eq!(own.fronting(ifindex).expect("it is told"), []);
        assert!(own.is_attached(ifindex));
    });
}

/// What was there before the start stands behind; its name is known later, too.
#[test]
fn who_was_there_first_stands_behind() {
    on_bench_of(|bench, lab, _| {
        let mut other = stranger(lab);
        let ifindex = bench.ifindex;
        let found = hooks(&mut bench.datapath).fronting(ifindex);
        assert_eq!(ways(&found.expect("it is told")), ["ingress", "egress"]);
        let other = hooks(&mut other.datapath);
        other.come_first(ifindex).expect("it may");
        hooks(&mut bench.datapath)
            .come_first(ifindex)
            .expect("it may");
        let found = other.fronting(ifindex).expect("it is told");
        let names: Vec<_> = found.iter().map(|front| front.name.as_deref()).collect();
        assert_eq!(names, [Some("tap"), Some("gate")]);
    });
}

/// An agent that was killed while a program moved has left what drops all frames in its
/// place: only for as long as a move may take.
#[test]
fn a_move_that_was_broken_off_is_over_after_a_while() {
    on_bench(|bench| {
        for role in [Role::Owner, Role::Shadow] {
            bench.play(role);
            let hello = to_service(7, false, IRS, 0, TcpFlags::SYN, b"");
            let own = from_service(7, false, ISS, IRS, TcpFlags::ACK, b"data");
            for (hook, place, frame) in [
                (Hook::Tap, Hook::ClosedTap, &hello),
                (Hook::Gate, Hook::ClosedGate, &own),
            ] {
                let expected = bench.pass(hook, frame);
                assert_eq!(bench.pass(place, frame), expected, "{role:?} {hook:?}");
                assert!(!expected.1.is_empty(), "it says why");
            }
        }
    });
}

/// The machine has had another name: what its agent has left is found, and goes on under the
/// new one with all that it knows.
#[test]
fn what_another_node_has_left_goes_on_under_the_new_name() {
    on_bench_of(|bench, lab, pins| {
        bench.connect(7, false);
        let cookie = netns_cookie().expect("the kernel has cookies");
        let folder = |node: &str| format!("n{cookie}-{node}");
        for node in ["old", "new"] {
            let path = format!("/sys/fs/bpf/godwit/{}", folder(node));
            lab.remove_at_end(path.as_ref()).expect("it is remembered");
        }
        let beside = |folder: &str| {
            let found = Foreign::beside(folder, bench.ifindex).expect("it can be read");
            let nodes = found.iter().map(|it| it.node().to_owned());
            nodes.collect::<Vec<_>>()
        };
        assert_eq!(beside(&folder("new")), [""; 0], "nobody of this namespace");
        let left = Foreign::named(pins)
            .expect("it can be read")
            .expect("bench's");
        assert!(left.rename(&folder("old")).expect("it is renamed"));
        assert_eq!(beside(&folder("new")), ["old"]);
        assert_eq!(beside(&folder("old")), [""; 0], "its own");
        let elsewhere = Foreign::beside(&folder("new"), bench.ifindex + 1);
        assert!(elsewhere.expect("it can be read").is_empty());
        let left = Foreign::named(&folder("old")).expect("it can be read");
        let left = left.expect("it is there");
        assert_eq!(left.ifindex(), Some(bench.ifindex));
        assert!(!left.is_driven(), "but by this process");
        assert!(
            !left.rename(&folder("old")).expect("it is looked at"),
            "it is there"
        );
        assert!(left.rename(&folder("new")).expect("it is renamed"));
        let again = Bench::try_open(&folder("new"), &[]).expect("the programs load");
        assert_eq!(again.flow().id.key.client.port, 7);
        assert_eq!(beside(&folder("new")), [""; 0]);
        again.datapath.detach().expect("the programs are removed");
    });
}
