//! Whose a connection is.
//!
//! In its region a process says which connections it has; anybody could say that of any,
//! for addresses and cookies are there for all to read. So a claim counts when the kernel
//! bears it out: in the agent's network namespace the connection's socket has that cookie,
//! and it belongs to the account that the process runs as, or the process has shown the
//! socket itself. (Root may have any.) The kernel is asked once per connection, and again
//! after half a minute.
//!
//! Two processes of one account can both have a connection, if one has inherited it: only
//! one of them serves it, and nobody can know which. Neither is believed until one of them
//! does not claim it any more.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::Ordering;

use godwit_sock::{SocketView, StreamPosition, connection_of, netns_cookie_of, socket_cookie};
use godwit_wire::FlowKey;
use godwit_wire::app::region::Connection;

use super::Office;
use super::client::Client;
use super::counts::Fault;
use super::ledger::{Claim, Next, Standing, judge};
use crate::clock;
use crate::locks::lock;

/// Who may be asked how often in one look at all connections: a look must not take long.
pub(super) const QUESTIONS: u32 = 128;

impl Office {
    /// Whether a connection is the process's that claims it. Asks the kernel if that is not
    /// known, as long as there are `questions` left.
    pub(super) fn believes(
        &self,
        client: &Client,
        slot: u32,
        found: &Connection,
        questions: &mut u32,
    ) -> bool {
        self.standing(client, slot, found, questions) == Standing::Right
    }

    pub(super) fn standing(
        &self,
        client: &Client,
        slot: u32,
        found: &Connection,
        questions: &mut u32,
    ) -> Standing {
        let claim = Claim {
            client: client.id,
            slot,
            key: found.key,
            cookie: found.cookie,
        };
        let now = clock::now();
        let still = |other: &Claim| self.still_claims(other);
        let mut ledger = lock(&self.ledger);
        // What is old is better than nothing.
        let known = ledger.look(&claim, Some(now).filter(|_| *questions > 0), still);
        if known != Standing::Unknown || *questions == 0 {
            return known;
        }
        let next = lock(&client.doubts).next(&claim, now);
        match next {
            Next::Ask => {}
            Next::Leave => return Standing::Unknown,
            Next::Tell(fault) => {
                self.note_fault(client, &claim, fault);
                return Standing::Unknown;
            }
        }
        *questions -= 1;
        let Ok(view) = self.view(claim.key) else {
            return Standing::Unknown;
        };
        let is_shown = lock(&client.shown).has(&claim);
        match judge(&claim, client.account.uid, is_shown, view.as_ref()) {
            Ok(()) => {
                let standing = ledger.add(claim, now, still);
                if standing == Standing::Contested {
                    self.note_fault(client, &claim, Fault::Contested);
                }
                standing
            }
            Err(fault) => {
                lock(&client.doubts).add(claim, fault, now);
                Standing::Unknown
            }
        }
    }

    fn note_fault(&self, client: &Client, claim: &Claim, fault: Fault) {
        self.counts.count(fault);
        // A server may not have noticed yet that its connection is over.
        if fault != Fault::OtherSocket {
            let (pid, flow) = (client.pid, claim.key);
            let reason = fault.as_str();
            tracing::warn!(pid, %flow, reason, "a process is not believed");
        }
    }

    fn still_claims(&self, claim: &Claim) -> bool {
        let client = self.client_by_id(claim.client);
        let found = client.and_then(|client| client.region.glance(claim.slot));
        found.is_some_and(|found| (found.key, found.cookie) == (claim.key, claim.cookie))
    }

    /// The socket that the kernel has for a connection, in the agent's network namespace.
    fn view(&self, key: FlowKey) -> io::Result<Option<SocketView>> {
        let ifindex = self.ifindex.load(Ordering::Relaxed);
        lock(&self.viewer).view(ifindex, key)
    }

    /// Whether a socket that a process shows is the connection that it is said to be, of
    /// this network namespace.
    pub(super) fn is_shown(
        &self,
        client: &Client,
        socket: BorrowedFd<'_>,
        (flow, cookie): (FlowKey, u64),
    ) -> bool {
        let tcp = StreamPosition::of(socket).is_ok();
        let same = socket_cookie(socket).is_ok_and(|found| found == cookie);
        let named = connection_of(socket).is_ok_and(|found| found == flow);
        if !tcp || !same || !named {
            return false;
        }
        if !self.is_here(socket) {
            return false;
        }
        if lock(&client.shown).get(cookie) == Some(flow) {
            return true;
        }
        // One that is bound to a device is not found by its addresses alone.
        let view = self.view(flow);
        let is_it = view.is_ok_and(|view| view.is_none_or(|view| view.cookie == cookie));
        if is_it {
            self.note_shown(client, flow, cookie);
        }
        is_it
    }

    /// Whether a socket is of the agent's network namespace. In one of its own a process
    /// may make any connection that it likes.
    pub(super) fn is_here(&self, socket: BorrowedFd<'_>) -> bool {
        let is_here = netns_cookie_of(socket).is_ok_and(|found| found == self.netns);
        if !is_here {
            self.counts.count(Fault::OtherNetwork);
        }
        is_here
    }

    /// A process has that socket for sure.
    pub(super) fn note_shown(&self, client: &Client, flow: FlowKey, cookie: u64) {
        lock(&client.shown).add(flow, cookie);
        lock(&client.doubts).forget(cookie);
    }

    /// A process shows a connection of its own that belongs to another account.
    pub(super) fn show(&self, client: &Client, cookie: u64, socket: Option<BorrowedFd<'_>>) {
        let shown = socket.and_then(|socket| Some((socket, connection_of(socket).ok()?)));
        let is_shown = shown
            .is_some_and(|(socket, flow)| self.is_shown(client, socket.as_fd(), (flow, cookie)));
        if !is_shown {
            self.counts.count(Fault::NotItsOwn);
        }
    }
}
