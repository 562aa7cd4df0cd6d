//! Whether clients and this node's kernel still hear each other.
//!
//! Between Godwit's programs and a server there are others: a firewall, programs of somebody
//! else behind Godwit's or on the server's control group, routes that take segments away. What
//! they do is known to nobody but them. What they cause shows in the flows of an owner:
//!
//! | trouble | clients | this node |
//! |---|---|---|
//! | [`Trouble::Unanswered`] | say again what Godwit has seen | does not acknowledge it |
//! | [`Trouble::Unheard`] | go on speaking, and acknowledge nothing | speaks |
//!
//! One client like that is a client with a bad network. So a share is in trouble only when
//! [`FEW`] flows are, and none is served. A client can bring that about with connections of
//! its own while there are no others. All that follows is a planned move.
//!
//! The flows are looked at several times a second. What is seen at one look proves nothing: a
//! segment may have come a microsecond before. A trouble needs three looks, which takes less
//! than a second.
//!
//! A kernel need not acknowledge what has come behind a hole. Where the data path keeps a
//! client's input it knows what has come in order ([`Sight::in_order`]). Of other flows a kernel
//! is only said not to answer while it says nothing at all, which their time stamps tell.

use std::collections::BTreeMap;
use std::time::Duration;

use godwit_wire::{FlowKey, SeqNumber, ShareId};

use crate::MonoTime;
use crate::remembered::Remembered;

/// As many flows have to be in trouble.
const FEW: u32 = 3;

/// A client that has spoken within this is there.
const RECENT: Duration = Duration::from_millis(500);

/// A kernel answers within this: it delays an acknowledgement by 200 ms at most.
const ANSWER: Duration = Duration::from_millis(220);

/// How long nothing that was sent has been acknowledged by a client that speaks.
const PATIENCE: Duration = Duration::from_millis(700);

/// How long a share that has left this node for that does not come back by a planned move.
const GRUDGE: Duration = Duration::from_secs(60);

/// A flow of an owner, as its data path has it.
#[derive(Debug, Clone, Copy)]
pub struct Sight {
    /// Of which share.
    pub share: ShareId,
    /// Which one.
    pub flow: FlowKey,
    /// End of what the client has sent.
    pub client_end: SeqNumber,
    /// End of what has come of that without a hole, if it is known.
    pub in_order: Option<SeqNumber>,
    /// What this node's kernel has acknowledged of that.
    pub rcv_nxt: SeqNumber,
    /// What the client has acknowledged.
    pub snd_una: SeqNumber,
    /// What was sent to it.
    pub snd_nxt: SeqNumber,
    /// Right edge of the window that it offers.
    pub snd_edge: SeqNumber,
    /// TSval of the last segment that was sent.
    pub own_val: u32,
    /// When the client has last spoken.
    pub heard: MonoTime,
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// This node's kernel answers no client.
    Unanswered,
    /// No client hears what this node says.
    Unheard,
}

/// How a share is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hearing {
    /// What is wrong, or was when the share left.
    pub trouble: Trouble,
    /// Of how many flows; 0: it was, and nobody knows whether it still is.
    pub flows: u32,
}

/// A flow that waits for something.
#[derive(Debug, Clone, Copy)]
struct Stuck {
    at: (SeqNumber, SeqNumber, u32),
    since: MonoTime,
    heard: MonoTime,
    /// The first look at which the client had spoken since.
    spoke: Option<MonoTime>,
}

/// Flows of one share at one look.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    served: u32,
    unanswered: u32,
    unheard: u32,
}

/// What is remembered from look to look.
#[derive(Debug, Default)]
pub struct Ears {
    stuck: Remembered<Stuck>,
    tallies: BTreeMap<ShareId, Tally>,
    wrong: BTreeMap<ShareId, (Trouble, MonoTime)>,
}

impl Ears {
    /// A look begins.
    pub fn begin(&mut self) {
        self.stuck.begin();
        self.tallies.clear();
    }

    /// The look has come to a flow.
    pub fn saw(&mut self, sight: &Sight, now: MonoTime) {
        let tally = self.tallies.entry(sight.share).or_default();
        self.stuck.saw(sight.flow);
        let asks = sight.rcv_nxt.lt(sight.client_end);
        // A client that reads slowly takes nothing beyond its window.
        let waits = sight.snd_una.lt(sight.snd_nxt) && sight.snd_una.lt(sight.snd_edge);
        if !asks && !waits {
            self.stuck.remove(&sight.flow);
            tally.served += u32::from(now.since(sight.heard) < RECENT);
            return;
        }
        let at = (sight.rcv_nxt, sight.snd_una, sight.own_val);
        let new = Stuck {
            at,
            since: now,
            heard: sight.heard,
            spoke: None,
        };
        let before = self.stuck.get(&sight.flow).copied();
        let moved = |stuck: &Stuck| (stuck.at.0, stuck.at.1) != (at.0, at.1);
        let mut stuck = match before {
            None => new,
            Some(stuck) if moved(&stuck) => {
                tally.served += 1;
                new
            }
            Some(stuck) => stuck,
        };
        if sight.heard > stuck.heard {
            stuck.spoke.get_or_insert(now);
        }
        let spoke = stuck.spoke;
        let silent = stuck.at.2 == at.2;
        let due = match sight.in_order {
            Some(end) => sight.rcv_nxt.lt(end),
            None => asks && silent,
        };
        if due {
            let late = spoke.is_some_and(|spoke| now.since(spoke) >= ANSWER);
            tally.unanswered += u32::from(late);
        } else if !silent {
            // Whatever was asked before is answered, if only by a word.
            stuck.at.2 = at.2;
            stuck.heard = stuck.heard.max(sight.heard);
            let late = waits && spoke.is_some() && now.since(stuck.since) >= PATIENCE;
            tally.unheard += u32::from(late);
            stuck.spoke = spoke.filter(|_| waits);
        } else if waits && spoke.is_some() && now.since(stuck.since) >= PATIENCE {
            tally.unheard += 1;
        }
        self.stuck.insert(sight.flow, stuck);
    }

    /// The look is over, and has seen every flow; the shares that are in trouble. `owns`: those that this node owns.
    pub fn end(
        &mut self,
        owns: impl Fn(ShareId) -> bool,
        now: MonoTime,
    ) -> BTreeMap<ShareId, Hearing> {
        self.stuck.end(true);
        let mut found = BTreeMap::new();
        for (share, tally) in &self.tallies {
            let flows = tally.unanswered + tally.unheard;
            if tally.served == 0 && flows >= FEW {
                let trouble = if tally.unanswered >= tally.unheard {
                    Trouble::Unanswered
                } else {
                    Trouble::Unheard
                };
                self.wrong.insert(*share, (trouble, now));
                found.insert(*share, Hearing { trouble, flows });
            }
        }
        self.wrong.retain(|share, (trouble, since)| {
            // As long as it owns the flows say so.
            let open = !owns(*share) && now.since(*since) < GRUDGE;
            if open {
                let trouble = *trouble;
                found.insert(*share, Hearing { trouble, flows: 0 });
            }
            open || found.contains_key(share)
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    const SHARE: ShareId = ShareId(1);
    const LOOK: u64 = 250;

    fn at(ms: u64) -> MonoTime {
        MonoTime::from_nanos((10_000 + ms) * 1_000_000)
    }

    fn flow(port: u16) -> FlowKey {
        FlowKey {
            client: SocketAddr::from(([10, 9, 0, 50], port)).into(),
            service: SocketAddr::from(([10, 9, 0, 100], 80)).into(),
        }
    }

    /// Nothing waits for anything.
    fn idle(port: u16) -> Sight {
        Sight {
            share: SHARE,
            flow: flow(port),
            client_end: SeqNumber(1000),
            in_order: None,
            rcv_nxt: SeqNumber(1000),
            snd_una: SeqNumber(5000),
            snd_nxt: SeqNumber(5000),
            snd_edge: SeqNumber(70_000),
            own_val: 70,
            heard: at(0),
        }
    }

    /// The shares in trouble at each of `looks` looks at what `sights` gives.
    fn looks(
        count: u64,
        owns: bool,
        ears: &mut Ears,
        from: u64,
        sights: impl Fn(u64) -> Vec<Sight>,
    ) -> Vec<Option<Hearing>> {
        let look = |number: u64| {
            let ms = (from + number) * LOOK;
            ears.begin();
            for sight in sights(ms) {
                ears.saw(&sight, at(ms));
            }
            ears.end(|_| owns, at(ms)).get(&SHARE).copied()
        };
        (0..count).map(look).collect()
    }

    /// When the client spoke last that says its request again after 200, 400, .. ms.
    fn said_again(ms: u64) -> MonoTime {
        let mut said = 0;
        while said * 2 + 200 <= ms {
            said = said * 2 + 200;
        }
        at(said)
    }

    fn unanswered(ports: std::ops::Range<u16>, ms: u64) -> Vec<Sight> {
        let sight = |port| Sight {
            client_end: SeqNumber(1100),
            heard: said_again(ms),
            ..idle(port)
        };
        ports.map(sight).collect()
    }

    fn unheard(ports: std::ops::Range<u16>, ms: u64) -> Vec<Sight> {
        let sight = |port| Sight {
            client_end: SeqNumber(1100),
            rcv_nxt: SeqNumber(1100),
            snd_nxt: SeqNumber(5100),
            own_val: 70 + u32::try_from(ms).expect("short"),
            heard: said_again(ms),
            ..idle(port)
        };
        ports.map(sight).collect()
    }

    #[test]
    fn clients_that_nobody_answers_are_noticed_within_a_second() {
        let found = looks(5, true, &mut Ears::default(), 0, |ms| unanswered(1..5, ms));
        let trouble = Trouble::Unanswered;
        let wrong = Some(Hearing { trouble, flows: 4 });
        assert_eq!(found, [None, None, wrong, wrong, wrong]);
    }

    #[test]
    fn a_node_that_nobody_hears_is_noticed_within_a_second() {
        let found = looks(5, true, &mut Ears::default(), 0, |ms| unheard(1..5, ms));
        let trouble = Trouble::Unheard;
        let wrong = Some(Hearing { trouble, flows: 4 });
        assert_eq!(found, [None, None, None, wrong, wrong]);
    }

    /// What it said last was acknowledged, and it does not know that: so it speaks.
    #[test]
    fn a_kernel_that_repeats_itself_answers_nobody() {
        let found = looks(5, true, &mut Ears::default(), 0, |ms| {
            let mut sights = unanswered(1..5, ms);
            for sight in &mut sights {
                sight.in_order = Some(SeqNumber(1100));
                sight.own_val += u32::try_from(ms).expect("short");
            }
            sights
        });
        let trouble = Trouble::Unanswered;
        let wrong = Some(Hearing { trouble, flows: 4 });
        assert_eq!(found, [None, None, wrong, wrong, wrong]);
    }

    /// A client with a bad network is not the node's trouble; nor are two.
    #[test]
    fn few_flows_prove_nothing_and_none_beside_one_that_is_served() {
        for stuck in [unanswered, unheard] {
            let found = looks(9, true, &mut Ears::default(), 0, |ms| stuck(1..3, ms));
            assert_eq!(found, [None; 9]);
            let found = looks(9, true, &mut Ears::default(), 0, |ms| {
                let served = Sight {
                    heard: at(ms),
                    ..idle(9)
                };
                let mut all = stuck(1..5, ms);
                all.push(served);
                all
            });
            assert_eq!(found, [None; 9]);
        }
    }

    /// Behind a hole a kernel says again what it has: that is an answer.
    #[test]
    fn who_has_a_hole_is_answered() {
        let found = looks(9, true, &mut Ears::default(), 0, |ms| {
            let mut sights = unanswered(1..5, ms);
            for sight in &mut sights {
                let said = sight.heard.since(at(0)).as_millis();
                sight.own_val += u32::try_from(said).expect("short");
            }
            sights
        });
        assert_eq!(found, [None; 9]);
        let found = looks(9, true, &mut Ears::default(), 0, |ms| {
            let mut sights = unanswered(1..5, ms);
            for sight in &mut sights {
                sight.in_order = Some(sight.rcv_nxt);
            }
            sights
        });
        assert_eq!(found, [None; 9]);
    }

    /// They are gone, or their network is: whoever serves them makes no difference.
    #[test]
    fn clients_that_say_nothing_are_nobody_s_trouble() {
        let found = looks(9, true, &mut Ears::default(), 0, |ms| {
            let mut sights = unheard(1..5, ms);
            for sight in &mut sights {
                sight.heard = at(0);
            }
            sights
        });
        assert_eq!(found, [None; 9]);
    }

    #[test]
    fn slow_flows_that_come_on_are_served() {
        let found = looks(20, true, &mut Ears::default(), 0, |ms| {
            let mut sights = unheard(1..5, ms);
            for sight in &mut sights {
                let acknowledged = u32::try_from(ms / 500).expect("short");
                sight.snd_una = SeqNumber(5000 + acknowledged);
            }
            sights
        });
        assert_eq!(found, [None; 20]);
    }

    /// After a takeover it has yet to say what the client has from the owner before.
    #[test]
    fn a_new_owner_that_catches_up_is_heard() {
        let found = looks(9, true, &mut Ears::default(), 0, |ms| {
            let sight = |port| Sight {
                snd_nxt: SeqNumber(4000),
                heard: said_again(ms),
                ..idle(port)
            };
            (1..5).map(sight).collect()
        });
        assert_eq!(found, [None; 9]);
    }

    /// It answers each probe of its window, and acknowledges no more than it had.
    #[test]
    fn a_client_that_reads_slowly_is_heard() {
        let found = looks(9, true, &mut Ears::default(), 0, |ms| {
            let sight = |port| Sight {
                snd_nxt: SeqNumber(9000),
                snd_edge: SeqNumber(5000),
                own_val: 70 + u32::try_from(ms).expect("small"),
                heard: at(ms),
                ..idle(port)
            };
            (1..5).map(sight).collect()
        });
        assert_eq!(found, [None; 9]);
    }

    #[test]
    fn it_is_over_when_clients_are_served_again() {
        let mut ears = Ears::default();
        let found = looks(4, true, &mut ears, 0, |ms| unanswered(1..5, ms));
        assert!(found[3].is_some());
        let served = |ms| {
            vec![Sight {
                heard: at(ms),
                ..idle(1)
            }]
        };
        assert_eq!(looks(2, true, &mut ears, 4, served), [None; 2]);
        // It left, and does not come back at once.
        let found = looks(4, true, &mut ears, 10, |ms| {
            let ms = ms - 10 * LOOK;
            let mut sights = unanswered(1..5, ms);
            for sight in &mut sights {
                sight.heard = sight.heard.saturating_add(Duration::from_millis(10 * LOOK));
            }
            sights
        });
        assert!(found[3].is_some(), "{found:?}");
        let trouble = Trouble::Unanswered;
        let doubtful = Some(Hearing { trouble, flows: 0 });
        let gone = looks(300, false, &mut ears, 14, |_| Vec::new());
        assert_eq!((gone[0], gone[100], gone[299]), (doubtful, doubtful, None));
    }
}
