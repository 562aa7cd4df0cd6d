//! Every history of one connection, or two that belong together, that servers hand to
//! each other.
//!
//! Messages come late, links break and are noticed by one side before the other,
//! drivers fail, agents restart, nodes die or come back without memory, and the
//! connection ends, each at any moment. In every state that can be reached, at most
//! one node speaks, a node that begins to speak has the connection as it was left, and
//! from every state a calm world ends with exactly one speaker, unless the connection
//! was given to a node that never comes back. What clients say reaches that one, however
//! often whoever forwards it asks whether there is still something to forward for.
#![allow(clippy::unwrap_used, reason = "a test that can't go on has failed")]

#[path = "handoff/search.rs"]
mod search;
#[path = "handoff/world.rs"]
mod world;

use search::search;
use world::{Bounds, World};

#[test]
fn two_servers_with_two_faults() {
    let bounds = Bounds {
        begins: 2,
        timeouts: 2,
        faults: 2,
    };
    let found = search(World::new(2, 1, bounds));
    println!("{found} states");
    assert!(
        found > 10_000,
        "the search has lost its way: {found} states"
    );
}

#[test]
fn three_servers_and_a_way_back() {
    let bounds = Bounds {
        begins: 3,
        timeouts: 0,
        faults: 1,
    };
    let found = search(World::new(3, 1, bounds));
    println!("{found} states");
    assert!(
        found > 10_000,
        "the search has lost its way: {found} states"
    );
}

/// They are all at one of the servers in the end, unless one of these has failed.
#[test]
fn two_connections_that_go_together() {
    let bounds = Bounds {
        begins: 1,
        timeouts: 1,
        faults: 2,
    };
    let found = search(World::new(2, 2, bounds));
    println!("{found} states");
    assert!(
        found > 10_000,
        "the search has lost its way: {found} states"
    );
}
