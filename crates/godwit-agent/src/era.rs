//! What is said of agents that were started at a time that is far from now, and what this one
//! does about it.
//!
//! An incarnation is the clock of day at the start of an agent. If that was days ahead, its
//! epochs are considered by no voter (`godwit-core/src/node/era.rs`).
//!
//! | fact | wrong when | consequence |
//! |---|---|---|
//! | `incarnation` | this agent's start is more than a day from now | it is not in sync |
//! | `peer_incarnation` | that of a peer is | it is not taken for in sync |
//! | `clock_behind` | those of most peers are: this node's clock is behind | said |

use std::sync::Arc;
use std::time::Duration;

use godwit_core::fitness::Consequence;
use godwit_core::{Birth, MonoTime, Node};

use crate::clock;
use crate::config::{Config, Fencing};
use crate::facts::{Look, Wrong};
use crate::input::Inbox;
use crate::reload;

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(500);

/// For files to be read, before they are tried again.
const PATIENCE: Duration = Duration::from_secs(10);

const FACTS: [&str; 3] = ["incarnation", "peer_incarnation", "clock_behind"];

/// Looks now and then.
#[derive(Debug)]
pub(crate) struct Era {
    inbox: Inbox,
    due: MonoTime,
    last: Option<Look>,
    /// Not to be begun anew before.
    again: MonoTime,
}

impl Era {
    pub(crate) const fn new(inbox: Inbox) -> Self {
        Self {
            inbox,
            due: MonoTime::ZERO,
            last: None,
            again: MonoTime::ZERO,
        }
    }

    /// Tells the node what the clock of day says, and sees to what follows. What is to be
    /// said, if that is new.
    pub(crate) fn look(
        &mut self,
        node: &mut Node,
        config: &Arc<Config>,
        now: MonoTime,
    ) -> Option<Look> {
        node.handle_day(clock::day(), now);
        if now < self.due {
            return None;
        }
        self.due = now.saturating_add(PERIOD);
        // A process that has given up its rights can't take this up again.
        let renews = config.fencing() != Fencing::Stonith;
        let look = judge(node, renews);
        let is_new = self.last.as_ref() != Some(&look);
        if is_new {
            self.last = Some(look.clone());
        }
        let begins = node.is_reborn_by_now(now) && renews && now >= self.again;
        if begins {
            self.again = now.saturating_add(PATIENCE);
            tracing::warn!("the clock of day was wrong when this agent began: it begins anew");
            reload::begin_anew(config, &self.inbox);
        }
        is_new.then_some(look)
    }
}

fn judge(node: &Node, renews: bool) -> Look {
    let behind = node.is_behind();
    let ahead: Vec<_> = node.peers_ahead().map(|name| name.to_string()).collect();
    let peers = (!ahead.is_empty()).then(|| ahead.join(", "));
    let others = peers.as_ref().filter(|_| !behind).map(|names| {
        let found = format!(
            "peers whose agents were started more than a day from now: {names}; their clock of \
             day was wrong, or that of this node is"
        );
        let advice = "set the clocks: meanwhile such a peer is granted nothing, and is not taken \
                      for in sync";
        wrong(FACTS[1], Consequence::Say, found, advice)
    });
    let own_clock = peers.filter(|_| behind).map(|names| {
        let found = format!(
            "the clock of day of this node is more than a day behind the starts of {names}"
        );
        let advice = "set it: meanwhile this node grants nothing and follows nobody whose share \
                      it does not know";
        wrong(FACTS[2], Consequence::Say, found, advice)
    });
    let all = [own(node.birth(), renews), others, own_clock];
    Look {
        source: "era",
        watched: FACTS.map(str::to_owned).into(),
        wrong: all.into_iter().flatten().collect(),
        days_left: Default::default(),
    }
}

fn own(birth: Birth, renews: bool) -> Option<Wrong> {
    let (consequence, found, advice) = match birth {
        Birth::Near => return None,
        // One owner's word is about its own share, which it does not let this node stand by for.
        Birth::Doubted => (
            Consequence::Say,
            "the owner of a share says that this agent was started more than a day from now"
                .to_owned(),
            "set the clock of day of this node, or of that one",
        ),
        Birth::Ahead(by) => {
            let days = by.as_secs_f64() / 86_400.0;
            let advice = if renews {
                "wait: the agent begins anew when nothing has happened for 10 s"
            } else {
                "restart the agent (systemctl restart godwit), which disturbs no connection"
            };
            let found = format!(
                "the start of this agent is {days:.1} days after what the clock of day says now"
            );
            (Consequence::NoTwins, found, advice)
        }
    };
    Some(wrong(FACTS[0], consequence, found, advice))
}

fn wrong(name: &str, consequence: Consequence, found: String, advice: &str) -> Wrong {
    Wrong {
        name: name.into(),
        share: None,
        consequence,
        found,
        advice: advice.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_started_at_another_time_says_so_and_stands_by_for_nobody() {
        assert_eq!(own(Birth::Near, true), None);
        let two_days = Birth::Ahead(Duration::from_secs(2 * 86_400));
        let said = own(two_days, true).expect("wrong");
        assert_eq!(said.consequence, Consequence::NoTwins);
        assert!(said.found.contains("2.0 days after"), "{said:?}");
        assert!(said.advice.contains("begins anew"), "{said:?}");
        let said = own(two_days, false).expect("wrong");
        assert!(said.advice.contains("restart"), "{said:?}");
        let said = own(Birth::Doubted, true).expect("wrong");
        assert_eq!(said.consequence, Consequence::Say, "one peer's word");
    }
}
