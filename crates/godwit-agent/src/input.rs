//! What the driver is fed with: bounded queues with many writers, and which of them is read
//! first ([`queue`]).
//!
//! | writer | input | when its queue is full |
//! |---|---|---|
//! | heartbeat receiver | [`Input::Heartbeat`] | dropped and counted: the next one is 10 ms away, and the detector tolerates misses |
//! | heartbeat receiver | [`Input::Lease`] | dropped and counted: voters and candidates say everything again |
//! | stonith | [`Input::Stonith`] | that thread waits |
//! | links | [`Input::Link`], [`Input::Message`], several at a time | the link's task waits, and TCP slows the peer down |
//! | ring buffer reader | [`Input::Flow`], [`Input::Unanswered`], [`Input::Exit`], [`Input::ListenerClosed`], [`Input::Stopped`] | that thread waits; the ring buffer holds more, and the data path counts what it can't hold |
//! | entries of a director | [`Input::Exceptions`], many at a time | that thread waits; the ring buffer holds more, and the data path counts what it can't hold |
//! | facts, see [`crate::surroundings`] | [`Input::Facts`] | that thread waits |
//! | device watch | [`Input::Devices`], [`Input::Place`], [`Input::LinkChanged`], [`Input::Announce`] | that thread waits; changes meanwhile count as one |
//! | watch over stopped servers | [`Input::Standstill`] | that thread waits |
//! | neighbour search | [`Input::Neighbour`] | that thread waits |
//! | flow count | [`Input::Census`] | dropped and counted: the next one is 250 ms away |
//! | sweep | [`Input::Gone`] | that thread waits |
//! | handoff worker | [`Input::Handoff`], several at a time | that thread waits |
//! | server processes | [`Input::Commit`] | that thread waits, and they with it |
//! | keeper of twins | [`Input::CommitHeld`] | dropped and counted: the commit fails |
//! | keeper of twins | [`Input::Unserved`] | dropped and counted: said again after a second |
//! | control socket | [`Input::Query`] | the client waits, at most its own time limit |
//! | signals | [`Input::Stop`] | waits |
//!
//! The driver takes every heartbeat that is queued before it lets time pass
//! (`handle_timeout`): one that has already arrived must not be judged
//! as missing. Its time is the receiving thread's.

mod queue;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use godwit_bpf::director::Exception;
use godwit_bpf::{ProcessExit, Unanswered};
use godwit_core::node::HandoffReport;
use godwit_core::{Beat, FlowEvent, Link, MonoTime, PeerId, StonithFault};
use godwit_wire::{FlowId, Generation, GoodbyeReason, LeaseDatagram, MacAddr, Message, ShareId};
use tokio::sync::oneshot;

use crate::apps::Commit;
use crate::config::Config;
use crate::directed::DrainWish;
use crate::facts::Seen;
use crate::flows::Flows;
use crate::moves::{FlowWish, Wish};
use crate::peers::Identity;
use crate::status::Status;

pub use queue::{Inbox, Inputs};

/// What flows need of what they share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    /// Busy ones.
    pub busy: BTreeMap<(ShareId, Generation), u32>,
    /// Those that are protected, of each share.
    pub protected: BTreeMap<ShareId, u32>,
    /// Those that have a log of what their clients have said.
    pub logs: BTreeMap<ShareId, u32>,
    /// Those whose logs make room for others'.
    pub evicted: Vec<(ShareId, FlowId)>,
}

/// Why servers may stand from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopHint {
    /// The process of this number, which serves clients, was sent a signal that may stop it.
    Signal(u32),
    /// A control group freezes, with whomever.
    Frozen,
}

/// Something that happened.
#[derive(Debug)]
pub enum Input {
    /// An authentic heartbeat.
    Heartbeat {
        /// Who sent it.
        peer: PeerId,
        /// What it says.
        beat: Beat,
        /// When it was received.
        at: MonoTime,
    },
    /// An authentic lease datagram.
    Lease {
        /// Who sent it.
        peer: PeerId,
        /// What it says.
        datagram: LeaseDatagram,
    },
    /// The command that powers a peer off has ended.
    Stonith {
        /// Which peer.
        peer: PeerId,
        /// Whether that node has no power now.
        outcome: Result<(), StonithFault>,
    },
    /// A message from a peer, over a link that was announced as up.
    Message {
        /// Who sent it.
        peer: PeerId,
        /// What it says; the first on each link is the peer's `Hello`.
        message: Message,
    },
    /// A link came up or went down.
    Link {
        /// Whose.
        peer: PeerId,
        /// Which of the two.
        link: Link,
    },
    /// The data path reports a flow.
    Flow(FlowEvent),
    /// The data path has offered a connection to another server, and has no answer.
    Unanswered(Unanswered),
    /// A server process has died.
    Exit(ProcessExit),
    /// Some process closes a listening socket.
    ListenerClosed,
    /// Servers may stand from now on.
    Stopped(StopHint),
    /// Whether a process that serves clients is stopped.
    Standstill(bool),
    /// A peer was found on the link, or elsewhere on it than before.
    Neighbour {
        /// Whom.
        peer: PeerId,
        /// Where.
        mac: MacAddr,
    },
    /// How many flows of each share are busy, and have logs.
    Census(Census),
    /// Flows, silent for long, that have no socket any more.
    Gone(Vec<FlowEvent>),
    /// What is wrong around this node, as far as one source knows.
    Facts(Seen),
    /// Network interfaces or addresses have come, gone or changed: of a director.
    Devices,
    /// The service interface was made anew, or has another MAC address; the data path
    /// is in its place.
    Place {
        /// Its number.
        ifindex: u32,
        /// Its MAC address.
        mac: MacAddr,
    },
    /// The service interface lost its carrier or has another one, another MTU, another master,
    /// or is another one: what it carried before proves nothing.
    LinkChanged,
    /// The link is to hear where the services are that this node owns.
    Announce,
    /// A machine that is no peer claims an address of a service.
    Claimed {
        /// Which address.
        address: IpAddr,
        /// Where that machine is.
        mac: MacAddr,
    },
    /// Somebody asks.
    Query(Query),
    /// Somebody wants a service to move.
    Move(Wish),
    /// Somebody wants connections to move one by one.
    MoveFlows(FlowWish),
    /// A director's program has written down where connections are.
    Exceptions(Vec<Exception>),
    /// Somebody wants a back-end to get no new connections, or some again.
    Drain(DrainWish),
    /// Of a connection that goes to another server by itself.
    Handoff {
        /// Its share.
        share: ShareId,
        /// What has become of it.
        report: HandoffReport,
    },
    /// A server must not go back behind a snapshot.
    Commit(Box<Commit>),
    /// As a standby: a twin has come to where its owner's server must not go back from.
    CommitHeld {
        /// Its share.
        share: ShareId,
        /// The flow.
        flow: FlowId,
        /// Which commit.
        number: u64,
    },
    /// No server process takes a connection that this node has taken over.
    Unserved {
        /// Its share.
        share: ShareId,
        /// The flow.
        flow: FlowId,
    },
    /// Messages or reports that were there together, in this order: the driver is
    /// woken up once for all of them.
    Several(Vec<Self>),
    /// The file has changed to this: what follows is a restart.
    Next {
        /// What it says now.
        config: Arc<Config>,
        /// If the process goes on: what it names itself with from then on.
        identity: Option<Identity>,
    },
    /// The agent is to end.
    Stop {
        /// What peers are told.
        reason: GoodbyeReason,
        /// Answered when the node has left the cluster.
        done: Option<oneshot::Sender<()>>,
    },
}

/// A question that only the driver can answer.
#[derive(Debug)]
pub enum Query {
    /// Everything about this node.
    Status(oneshot::Sender<Status>),
    /// Every flow.
    Flows(oneshot::Sender<Flows>),
}

impl Input {
    /// How many things happened.
    pub(crate) const fn count(&self) -> usize {
        if let Self::Several(inputs) = self {
            inputs.len()
        } else {
            1
        }
    }
}

/// The driver is gone; its writers should end too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the driver has ended")]
pub struct DriverGone;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_come_together_and_in_order() {
        let (inbox, inputs) = Inbox::new();
        let gone = |peer| Input::Link {
            peer: PeerId(peer),
            link: Link::Down,
        };
        let peer = |input: &Input| {
            if let Input::Link { peer, .. } = input {
                return peer.0;
            }
            panic!("nobody sends {input:?}")
        };
        for count in 0..4 {
            inbox
                .send_all((0..count).map(gone).collect())
                .expect("it is there");
        }
        assert_eq!(peer(&inputs.try_recv().expect("one")), 0);
        for count in [2, 3] {
            let together = inputs.try_recv().expect("they are");
            assert_eq!(together.count(), usize::from(count));
            let Input::Several(together) = together else {
                panic!("one by one");
            };
            let peers: Vec<_> = together.iter().map(peer).collect();
            assert_eq!(peers, (0..count).collect::<Vec<_>>());
        }
        assert!(inputs.try_recv().is_err(), "nothing is no input");
    }
}
