//! Leases and nodes that serve nobody at present: whose share they want.

#[path = "fenced/mod.rs"]
mod fenced;

use fenced::{A, B, World};
use godwit_core::fitness::{Consequence, FactId};
use godwit_core::node::ShareNews;
use godwit_core::{Action, Fencing, ShareAction};
use godwit_wire::GoodbyeReason;

/// A cluster whose standby serves nobody.
fn stopped(fencing: Fencing, nodes: usize) -> World {
    let mut world = World::in_sync(fencing, nodes);
    let name = "server_stopped".to_owned();
    let fact = FactId { name, share: None };
    let wrong = Some(Consequence::NoServer);
    world.input(B, |node, now| node.handle_fact(fact, wrong, now));
    world.run(100);
    assert!(world.is_in_sync(A, B));
    world.forget_log();
    world
}

fn reopened(world: &World) -> bool {
    let actions = world.local_actions(A);
    let reopens = |action: &Action| matches!(action, Action::Share(_, ShareAction::Reopen));
    actions.iter().any(reopens)
}

/// The lease is given back before the standby hears why.
#[test]
fn what_a_server_dies_with_stays_where_its_machine_lives() {
    for (fencing, nodes) in [(Fencing::Lease, 3), (Fencing::Stonith, 2)] {
        let mut world = stopped(fencing, nodes);
        world.server_exit(A, true);
        assert!(world.speakers().is_empty());
        world.run(10);
        assert_eq!(world.speakers(), [A], "{fencing:?}");
        assert!(reopened(&world), "clients hear of it at once");
        world.run(3000);
        assert_eq!((world.speakers(), world.takeovers), (vec![A], 0));
    }
}

/// Nor if the word of it is lost with the link: the standby sees that the lease is free.
#[test]
fn a_lease_that_was_given_back_for_that_is_not_taken() {
    let mut world = stopped(Fencing::Lease, 3);
    world.server_exit(A, true);
    world.drop_links(B);
    world.run(300);
    assert_eq!((world.speakers(), world.takeovers), (vec![A], 0));
    assert!(reopened(&world));
    let declined = |news: &ShareNews| matches!(news, ShareNews::TakeoverDeclined { .. });
    assert!(world.share_news(B, declined).is_empty(), "nobody asked it");
}

/// Its twins are all that is left.
#[test]
fn what_a_machine_or_agent_leaves_is_taken_over_all_the_same() {
    for end in 0..4 {
        let mut world = stopped(Fencing::Lease, 3);
        match end {
            0 => world.crash(A),
            1 => world.goodbye(A, GoodbyeReason::Shutdown),
            // First the server, then the rest.
            2 => {
                world.server_exit(A, true);
                world.crash(A);
            }
            _ => {
                world.server_exit(A, true);
                world.kill_agent(A);
            }
        }
        world.run(300);
        assert_eq!((world.speakers(), world.takeovers), (vec![B], 1), "{end}");
    }
}
