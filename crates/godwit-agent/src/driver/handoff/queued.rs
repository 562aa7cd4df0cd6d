//! Connections that no process has accepted yet.
//!
//! The kernel gives such a connection to whoever accepts at its listener, the first in
//! the queue first. So the agent accepts at the server's own listener, which it has in
//! common with that (pidfd_getfd), until the wanted one comes. Those before it, and one
//! that stays after all, go back as others come from elsewhere: their sockets end unheard,
//! and are made anew at the end of the queue.
//!
//! None of them may be lost for that. Before the first is taken the agent looks at the
//! whole queue, and takes none if one of them could not go back. Until one does, its socket
//! lives in the agent's hands; it ends only when there is room for a new one, and is made
//! anew there if no new one comes up. What an agent has in its hands when it dies is lost:
//! its kernel closes that.

use std::collections::BTreeSet;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::thread;
use std::time::Duration;

use godwit_bpf::FlowState;
use godwit_core::MonoTime;
use godwit_sock::repair::{PauseError, PausedSocket, Release};
use godwit_sock::{
    AcceptQueue, ForeignListener, Listeners, SocketView, Widened, connection_of, destroy_tcp,
    option, set_option, socket_cookie, unaccepted, view_tcp_socket,
};
use godwit_wire::{Endpoint, FlowId, FlowKey, HandoffRefusal, TcpState};
use thiserror::Error;

use super::newborn::{Unborn, first_window, room};
use super::unread::{TakeError, begins};
use super::worker::{SWEEP, Worker};
use crate::clock;

/// How long the agent keeps those that were before a wanted one: they may be wanted next.
const KEPT: Duration = Duration::from_millis(300);

/// Receive buffer of one that is kept, in bytes, with what surrounds them (socket(7)). When
/// it is full no more than what is under way comes, and in a queue that is not much: nobody
/// has read, so nobody has sent for long.
const KEPT_INPUT: libc::c_int = 16 << 10;

/// After how long one that could not go back is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// How long a new socket is waited for: if it does not come there will be another try.
const PATIENCE: Duration = Duration::from_millis(100);

/// Connections in the agent's hands, at most: each takes a descriptor, and what is there
/// an agent's death ends.
const MOST: usize = 512;

/// Places by which a full queue is widened for one that goes back.
const PLACES: u32 = 16;

/// How long nobody may listen before those who wait are turned away, in which a server
/// is started again.
const WITHOUT_SERVER: Duration = Duration::from_secs(5);

/// How long it is tried before the agent ends, which has five seconds for that.
const LAST: Duration = Duration::from_secs(2);
const BETWEEN_LAST_TRIES: Duration = Duration::from_millis(50);

/// A connection that was taken from its queue. It runs, and nobody serves it.
#[derive(Debug)]
pub(super) struct Queued {
    socket: OwnedFd,
    /// When it goes back, if it can.
    due: MonoTime,
    /// Whether people know that it could not.
    told: bool,
    /// Whether there is no use in trying.
    hopeless: bool,
    /// Since when nobody has listened.
    alone: Option<MonoTime>,
}

/// Why a connection can't go back into its queue (yet).
#[derive(Debug, Error)]
enum Stay {
    #[error("it is of no service whose connections move, or not from the service's network")]
    Stranger,
    #[error("nobody listens")]
    NoServer,
    #[error("the accept queue is full")]
    Full,
    #[error("its origin has not heard of its arrival yet")]
    Unsettled,
    #[error("no new socket came up")]
    NotBorn,
    #[error("{0}")]
    Inexact(String),
    #[error("{0}")]
    Failed(String),
}

impl Worker {
    /// A connection of which the kernel says that nobody has accepted it.
    pub(super) fn take_queued(
        &mut self,
        flow: FlowId,
        now: MonoTime,
    ) -> Result<OwnedFd, HandoffRefusal> {
        let queues = self.queues_for(flow.key.service);
        let mut listeners = Vec::new();
        for queue in queues.iter().filter(|queue| queue.waiting > 0) {
            let taken = self.take_from_holder(queue.inode, queue.cookie);
            let (listener, _) = taken.map_err(|error| self.not_taken(flow, &error))?;
            listeners.push(listener);
        }
        // Not before: all processes may have been looked through for the listeners.
        let known = self.look_into(&queues, flow)?;
        for listener in listeners {
            let listener = ForeignListener::new(listener);
            let listener = listener.map_err(|error| self.not_taken(flow, &error.into()))?;
            for _ in 0..known.len() {
                let next = listener.accept();
                let next = next.map_err(|error| self.not_taken(flow, &TakeError::Accept(error)))?;
                let Some(socket) = next else {
                    break;
                };
                // Its client has ended one without an address.
                let Ok(key) = connection_of(socket.as_fd()) else {
                    continue;
                };
                if key == flow.key {
                    return Ok(socket);
                }
                self.keep_queued(key, socket, now);
                // The server accepts meanwhile, and what comes now nobody has looked at.
                if !known.contains(&key) {
                    return Err(self.not_taken(flow, &TakeError::Moving));
                }
            }
        }
        Err(self.not_taken(flow, &TakeError::NotQueued))
    }

    /// The connections in these queues, if all of them could go back.
    fn look_into(
        &self,
        queues: &[AcceptQueue],
        wanted: FlowId,
    ) -> Result<BTreeSet<FlowKey>, HandoffRefusal> {
        let waiting = unaccepted(wanted.key.service.port);
        let waiting = waiting.map_err(|error| self.not_taken(wanted, &TakeError::View(error)))?;
        // More than that its first window may not hold when it is cut to whole segments,
        // and its client may go on.
        let most = queues.iter().map(first_window).min().unwrap_or(0) / 2;
        let mut known = BTreeSet::new();
        for (key, view) in waiting {
            let is_wanted = key == wanted.key;
            let error = if !self.is_seen(key) {
                TakeError::Stranger(key)
            } else if self.places.is_unsettled(key) {
                // It could not go back until its origin has been heard.
                TakeError::Moving
            } else if view.counts_microseconds {
                TakeError::Microseconds
            } else if view.received <= u64::from(most) {
                known.insert(key);
                continue;
            } else if is_wanted {
                return Err(HandoffRefusal::TooLarge);
            } else {
                TakeError::InTheWay(key)
            };
            // Others at this port may be at a listener of their own.
            match is_in(queues, key.service) {
                Ok(false) => continue,
                Ok(true) => return Err(self.not_taken(wanted, &error)),
                Err(error) => return Err(self.not_taken(wanted, &TakeError::View(error))),
            }
        }
        if self.queued.len() + known.len() > MOST {
            return Err(HandoffRefusal::NoCapacity);
        }
        Ok(known)
    }

    /// Whether the data path has one with these addresses. What does not come by the
    /// service interface, but from this machine for one, it can't hold nor make anew.
    fn is_seen(&self, key: FlowKey) -> bool {
        let has_flow = || matches!(self.kernel.flows.get(key), Ok(Some(_)));
        self.terms.unread.contains(&key.service) && (self.places.is_here(key) || has_flow())
    }

    /// One that was before another in its queue.
    pub(super) fn take_kept(&mut self, flow: FlowId) -> Option<OwnedFd> {
        let socket = self.queued.remove(&flow.key)?.socket;
        self.is_current(flow.key, &socket).then_some(socket)
    }

    /// Whether this is the socket that has these addresses: a client may have ended a
    /// connection, and begun another one from the same port.
    fn is_current(&self, key: FlowKey, socket: &OwnedFd) -> bool {
        let view = view_tcp_socket(self.kernel.stand.ifindex(), key)
            .ok()
            .flatten();
        let cookie = socket_cookie(socket.as_fd()).ok();
        view.is_some_and(|view| Some(view.cookie) == cookie)
    }

    /// For a moment; then it goes back. What it says meanwhile and would not fit into a new
    /// socket's first window it says again then: nobody has acknowledged that.
    pub(super) fn keep_queued(&mut self, key: FlowKey, socket: OwnedFd, now: MonoTime) {
        let (fd, level, name) = (socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF);
        // The kernel doubles what it is told.
        let limit = option(fd, level, name)
            .and_then(|own| set_option(fd, level, name, own.min(KEPT_INPUT) / 2));
        if let Err(error) = limit {
            tracing::warn!(flow = %key, error = %error, "it may say more than can go back");
        }
        let queued = Queued {
            socket,
            due: now.saturating_add(KEPT),
            told: false,
            hopeless: false,
            alone: None,
        };
        self.queued.insert(key, queued);
    }

    /// How long until one of them is due.
    pub(super) fn until_give_back(&self, now: MonoTime) -> Duration {
        let first = self.queued.values().map(|queued| queued.due).min();
        first.map_or(SWEEP, |due| due.since(now))
    }

    /// One that nobody has asked for goes back; one at a time, for others wait for this
    /// thread.
    pub(super) fn give_back_queued(&mut self, now: MonoTime) {
        let first = self.queued.iter().min_by_key(|(_, queued)| queued.due);
        let due = first.filter(|(_, queued)| queued.due <= now);
        if let Some(key) = due.map(|(key, _)| *key) {
            self.try_to_give_back(key, now);
        }
    }

    fn try_to_give_back(&mut self, key: FlowKey, now: MonoTime) {
        let Some(queued) = self.queued.remove(&key) else {
            return;
        };
        // Its birth may take long.
        self.speech.speak();
        let Err((socket, why)) = self.queue_again(key, queued.socket) else {
            return;
        };
        let hopeless = matches!(why, Stay::Stranger | Stay::Inexact(_));
        // It will never be served, and its client has ended it.
        if hopeless && !self.is_open(key) {
            return;
        }
        let alone = matches!(why, Stay::NoServer).then(|| queued.alone.unwrap_or(now));
        if alone.is_some_and(|since| now.since(since) >= WITHOUT_SERVER) {
            return self.turn_away(key, socket, "no_server");
        }
        if !queued.told {
            let (flow, why) = (key.to_string(), why.to_string());
            let fields = [("flow", flow.as_str()), ("why", why.as_str())];
            self.speech
                .events
                .publish_own("flow_not_given_back", true, fields);
        }
        let due = now.saturating_add(AGAIN);
        if matches!(why, Stay::Full | Stay::NotBorn) {
            // Nor would the next one.
            for other in self.queued.values_mut() {
                other.due = other.due.max(due);
            }
        }
        let kept = Queued {
            socket,
            due,
            told: true,
            hopeless,
            alone,
        };
        self.queued.insert(key, kept);
    }

    /// Whether its client has not ended its stream.
    fn is_open(&self, key: FlowKey) -> bool {
        let view = view_tcp_socket(self.kernel.stand.ifindex(), key);
        let is_open = |view: SocketView| view.state == Some(TcpState::Established);
        view.map_or(true, |view| view.is_some_and(is_open))
    }

    /// Its server has it from its listener again, with all that its client has said; or
    /// it goes on in the agent's hands.
    fn queue_again(&mut self, key: FlowKey, socket: OwnedFd) -> Result<(), (OwnedFd, Stay)> {
        if !self.is_seen(key) {
            return Err((socket, Stay::Stranger));
        }
        // An agent that died with it would return it to its origin.
        if self.places.is_unsettled(key) {
            return Err((socket, Stay::Unsettled));
        }
        let queues = self.queues_for(key.service);
        if queues.is_empty() {
            return Err((socket, Stay::NoServer));
        }
        let Some(_room) = self.make_room(key.service, &queues) else {
            return Err((socket, Stay::Full));
        };
        let socket = match PausedSocket::pause(socket) {
            Ok(socket) => socket,
            // Its client has ended it.
            Err((_, PauseError::State(_))) => return Ok(()),
            Err((socket, error)) => return Err((socket, Stay::Inexact(error.to_string()))),
        };
        let irs = match self.kernel.view.hidden(socket.as_fd()) {
            Ok(hidden) => hidden.copied_seq - 1,
            Err(error) => return self.unpause(key, socket, Stay::Failed(error.to_string())),
        };
        let flow = FlowId { key, irs };
        let is_flow = |state: FlowState| state.id == flow;
        let known = self.kernel.flows.get(key).ok().flatten();
        if !known.is_some_and(is_flow) && self.places.get(flow).is_none() {
            // What is known is an earlier one.
            return self.unpause(key, socket, Stay::Stranger);
        }
        self.waiting.begin(key);
        let unborn = match self.places.held(flow, self.waiting.device(), None) {
            Ok(()) => self.unborn(flow, &socket, &queues),
            Err(error) => Err(Stay::Failed(error.to_string())),
        };
        let unborn = match unborn {
            Ok(unborn) => unborn,
            Err(why) => {
                self.stay(flow);
                return self.unpause(key, socket, why);
            }
        };
        if let Err(error) = socket.discard() {
            tracing::warn!(flow = %key, error = %error, "a socket that is made anew lingers");
        }
        let again = self.bear(flow, &unborn, PATIENCE);
        // One that has its handshake here is known by that.
        if self.places.get(flow).is_none() {
            self.arriving.begun.remove(&flow);
        }
        again.map_or(Ok(()), |socket| Err((socket, Stay::NotBorn)))
    }

    /// It goes on where it is, with what came meanwhile.
    fn unpause(
        &mut self,
        key: FlowKey,
        socket: PausedSocket,
        why: Stay,
    ) -> Result<(), (OwnedFd, Stay)> {
        let resumed = socket.resume(Release::Probe);
        for packet in self.waiting.take(key) {
            self.waiting.put_back(&packet);
        }
        self.waiting.end(key);
        match resumed {
            Ok(socket) => Err((socket, why)),
            Err(error) => {
                tracing::error!(flow = %key, error = %error, "a connection is lost");
                self.tell_closed(key, "not_born");
                Ok(())
            }
        }
    }

    /// What a new socket is made of, in one of these queues.
    fn unborn(
        &self,
        flow: FlowId,
        socket: &PausedSocket,
        queues: &[AcceptQueue],
    ) -> Result<Unborn, Stay> {
        let snapshot = socket.snapshot(|fd| self.kernel.view.hidden(fd));
        let snapshot = snapshot.map_err(|error| Stay::Inexact(error.to_string()))?;
        if !begins(flow, &snapshot) {
            return Err(Stay::Inexact("it has begun".into()));
        }
        // Bit 0: its clock counts microseconds, which a new one would not.
        if snapshot.ts_val & 1 != 0 {
            return Err(Stay::Inexact(TakeError::Microseconds.to_string()));
        }
        let room = queues.iter().map(|queue| room(queue, &snapshot)).min();
        if room.is_none_or(|room| snapshot.queues.recv.len() > room) {
            let why = "it has received more than a new socket takes";
            return Err(Stay::Inexact(why.into()));
        }
        let hidden = self.kernel.view.hidden(socket.as_fd());
        let hidden = hidden.map_err(|error| Stay::Failed(error.to_string()))?;
        let ts_recent = hidden.ts_recent;
        Ok(Unborn::new(Box::new(snapshot), ts_recent))
    }

    /// Room for one more in each of these queues, until what is returned is dropped: who
    /// has been in a queue before comes into it, whoever has come since.
    fn make_room(&mut self, service: Endpoint, queues: &[AcceptQueue]) -> Option<Vec<Widened>> {
        let mut widened = Vec::new();
        for queue in queues.iter().filter(|queue| !queue.has_room()) {
            let (listener, _) = self.take_from_holder(queue.inode, queue.cookie).ok()?;
            // Others whose handshake ends meanwhile may be quicker.
            let most = queue.waiting.saturating_add(PLACES);
            widened.push(Widened::new(listener, queue.most, most).ok()?);
        }
        let is_done = widened.is_empty() || {
            let queues = self.queues_for(service);
            !queues.is_empty() && queues.iter().all(AcceptQueue::has_room)
        };
        is_done.then_some(widened)
    }

    /// Nobody will serve it, and its client hears that.
    fn turn_away(&self, key: FlowKey, socket: OwnedFd, reason: &str) {
        self.tell_closed(key, reason);
        if self.is_current(key, &socket)
            && let Err(error) = destroy_tcp(self.kernel.stand.ifindex(), key)
        {
            tracing::warn!(flow = %key, error = %error, "socket not ended");
        }
        drop(socket);
    }

    /// All of them go back, before the thread ends.
    pub(super) fn empty_hands(&mut self) {
        let mut now = clock::now();
        let end = now.saturating_add(LAST);
        for queued in self.queued.values_mut() {
            queued.due = now;
        }
        while now < end && self.queued.values().any(|queued| !queued.hopeless) {
            if self.until_give_back(now).is_zero() {
                self.give_back_queued(now);
            } else {
                thread::sleep(BETWEEN_LAST_TRIES);
            }
            now = clock::now();
        }
        for (key, queued) in mem::take(&mut self.queued) {
            self.turn_away(key, queued.socket, "agent_ended");
        }
    }
}

/// Whether a connection to this address may be in one of these queues.
fn is_in(queues: &[AcceptQueue], service: Endpoint) -> io::Result<bool> {
    let theirs = Listeners::queues(SocketAddr::from(service))?;
    let is_ours = |its: &AcceptQueue| queues.iter().any(|queue| queue.inode == its.inode);
    Ok(theirs.iter().any(is_ours))
}
