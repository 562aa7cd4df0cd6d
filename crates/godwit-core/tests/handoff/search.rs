//! Breadth first, so that the shortest history that breaks a rule is shown.

use std::collections::{BTreeMap, VecDeque};

use crate::world::World;

/// How many states can be reached.
///
/// # Panics
/// With the history, if one of them breaks a rule.
pub(crate) fn search(start: World) -> usize {
    let mut seen = BTreeMap::from([(start.clone(), None)]);
    let mut open = VecDeque::from([start]);
    while let Some(world) = open.pop_front() {
        for deed in world.deeds() {
            let mut next = world.clone();
            let verdict = next
                .perform(deed)
                .and_then(|()| next.check())
                .and_then(|()| next.clone().calm());
            if let Err(broken) = verdict {
                panic!("{broken}\n{}", history(&seen, &world, &format!("{deed:?}")));
            }
            if !seen.contains_key(&next) {
                seen.insert(next.clone(), Some((world.clone(), format!("{deed:?}"))));
                open.push_back(next);
            }
        }
    }
    seen.len()
}

fn history(seen: &BTreeMap<World, Option<(World, String)>>, last: &World, deed: &str) -> String {
    let mut lines = vec![deed.to_owned()];
    let mut at = last;
    while let Some(Some((before, deed))) = seen.get(at) {
        lines.push(deed.clone());
        at = before;
    }
    lines.reverse();
    lines.join("\n")
}
