//! The origin's sockets: stopped, turned into bytes, and ended or gone on with.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use godwit_bpf::{HandoffEntry, Whereabouts};
use godwit_core::MonoTime;
use godwit_core::handoff::Place;
use godwit_sock::destroy_tcp;
use godwit_sock::repair::{PauseError, PausedSocket, Release, SnapshotError};
use godwit_wire::snapshot::{Application, Hidden, Moved};
use godwit_wire::{
    FlowId, HandoffRefusal, MacAddr, Segment, SeqNumber, TcpFlags, TcpOptions, TcpSnapshot,
};

use super::debts::Debt;
use super::departing::Departures;
use super::forwarding::Forwarding;
use super::places::written;
use super::unread::Holder;
use super::worker::Worker;
use crate::apps::{AppSnapshot, Taken};
use crate::clock;
use crate::wake::Wake;

/// How long a server is waited for that has let go of a connection already, and is asked for
/// it again later: others wait, too.
const SOON: Duration = Duration::from_millis(100);

/// The same where it is not.
const AT_LAST: Duration = Duration::from_secs(2);

/// What the server of a connection has made of it.
enum ServerState {
    /// What it has exported; nothing if it has no state.
    Exported(Option<AppSnapshot>),
    /// Nothing yet, and it is asked for nothing.
    Unread(Holder, Option<SeqNumber>),
}

impl ServerState {
    const fn holder(&self) -> Option<Holder> {
        match self {
            Self::Exported(_) => None,
            Self::Unread(holder, _) => Some(*holder),
        }
    }
}

/// Connections on their way out.
pub(super) struct Leaving {
    /// Rung when a server has answered.
    pub(super) bell: Wake,
    pub(super) departures: Departures,
    pub(super) frozen: BTreeMap<FlowId, Frozen>,
    pub(super) forwarding: Forwarding,
}

/// A connection that is silent here.
pub(super) struct Frozen {
    pub(super) socket: PausedSocket,
    /// Of a server that knows nothing of it.
    pub(super) holder: Option<Holder>,
    pub(super) bytes: Vec<u8>,
}

impl Leaving {
    pub(super) fn new(bell: Wake) -> Self {
        Self {
            bell,
            departures: Departures::default(),
            frozen: BTreeMap::new(),
            forwarding: Forwarding::default(),
        }
    }
}

impl Worker {
    /// Has it silent, as bytes, once its server has answered; since when.
    /// `iss` is the service's, if the handshake was here.
    pub(super) fn freeze(
        &mut self,
        flow: FlowId,
        to: MacAddr,
        iss: Option<SeqNumber>,
        taken: Result<Taken, HandoffRefusal>,
    ) -> Result<MonoTime, HandoffRefusal> {
        let (socket, state, since) = match taken {
            Ok(Taken {
                socket,
                snapshot,
                since,
            }) => (socket, ServerState::Exported(snapshot), since),
            // One that something is owed to has a server that will register it, and so
            // has one that a server is offered.
            Err(HandoffRefusal::NoServer) if !self.owes(flow) && !self.is_offered(flow) => {
                let since = clock::now();
                let (socket, holder) = self.take_unread(flow)?;
                (socket, ServerState::Unread(holder, iss), since)
            }
            Err(refusal) => return Err(refusal),
        };
        // Of before this attempt.
        self.debts.owed.remove(&flow);
        // From here on no acknowledgement leaves that the snapshot does not know.
        if let Err(error) = self.places.away(flow, to) {
            tracing::error!(flow = %flow.key, error = %error, "it can't be forwarded");
            self.put_down(flow, socket, state.holder());
            return Err(HandoffRefusal::NoCapacity);
        }
        let socket = match PausedSocket::pause(socket) {
            Ok(socket) => socket,
            Err((socket, error)) => {
                self.put_down(flow, socket, state.holder());
                return Err(self.not_movable(flow, pause_refusal(&error), &error));
            }
        };
        let dumped = self.dump(flow, &socket, &state);
        let frozen = Frozen {
            socket,
            holder: state.holder(),
            bytes: Vec::new(),
        };
        match dumped {
            Ok(bytes) => {
                self.leaving.frozen.insert(flow, Frozen { bytes, ..frozen });
                Ok(since)
            }
            Err(refusal) => {
                self.resume(flow, frozen, Release::Silently);
                Err(refusal)
            }
        }
    }

    fn dump(
        &self,
        flow: FlowId,
        socket: &PausedSocket,
        state: &ServerState,
    ) -> Result<Vec<u8>, HandoffRefusal> {
        let snapshot = socket.snapshot(|fd| self.kernel.view.hidden(fd));
        let mut snapshot = snapshot.map_err(|error| {
            if matches!(error, SnapshotError::Written) {
                // What it wrote may be among the bytes received.
                self.reset(flow);
            }
            self.not_movable(flow, snapshot_refusal(&error), &error)
        })?;
        let application = match state {
            ServerState::Exported(None) => Application::Stateless,
            ServerState::Exported(Some(exported)) => {
                let ends = (snapshot.copied_seq(), snapshot.write_seq);
                let (rcv_next, snd_next) = exported.at(socket.as_fd(), ends.0, ends.1)?;
                cut(&mut snapshot, rcv_next, snd_next)?;
                Application::Carried(exported.carried.clone())
            }
            ServerState::Unread(_, iss) => {
                self.unread_application(flow, socket, &snapshot, *iss)?
            }
        };
        let mut bytes = Vec::new();
        let socket = snapshot;
        let moved = Moved {
            socket,
            application,
        };
        moved.emit(&mut bytes);
        Ok(bytes)
    }

    /// The connection goes on here.
    pub(super) fn thaw(&mut self, flow: FlowId) {
        let ours = self.leaving.frozen.remove(&flow);
        let is_away = |entry: HandoffEntry| matches!(entry.whereabouts, Whereabouts::Away { .. });
        if ours.is_none() && !self.owes(flow) && !self.places.get(flow).is_some_and(is_away) {
            // It was called off before it was stopped, and its server has it.
            return;
        }
        self.thaw_now(flow, ours);
    }

    /// As before; one that an earlier agent has stopped may have to be looked for again.
    pub(super) fn thaw_now(&mut self, flow: FlowId, ours: Option<Frozen>) {
        let is_ours = ours.is_some();
        match ours.or_else(|| self.take_again(flow, SOON)) {
            Some(frozen) => {
                // Of a server that will register it, perhaps.
                if !is_ours && frozen.holder.is_some() {
                    self.owe(flow, Debt::Thaw);
                }
                // What it would say in repair mode would be lost.
                self.stay(flow);
                self.resume(flow, frozen, Release::Probe);
            }
            // Its server has gone on with it, or has not found this agent yet.
            None => {
                self.stay(flow);
                self.owe(flow, Debt::Thaw);
            }
        }
    }

    /// Nobody knows how far it went at the other server: it is reset, and its own
    /// server sees it end. A client that knows more than our socket asks again, and
    /// our kernel, which has none any more, resets it then.
    pub(super) fn lose(&mut self, flow: FlowId) {
        let ours = self.leaving.frozen.remove(&flow);
        let frozen = ours.or_else(|| self.take_again(flow, AT_LAST));
        self.reset(flow);
        // One that nobody has accepted is nobody's by now.
        if let Some(frozen) = frozen.filter(|it| !matches!(it.holder, Some(Holder::Queue))) {
            self.resume(flow, frozen, Release::Silently);
        }
    }

    /// Another server has it: our socket ends unheard, and we go on forwarding.
    pub(super) fn release(&mut self, flow: FlowId) {
        let ours = self.leaving.frozen.remove(&flow);
        let frozen = ours.or_else(|| self.take_again(flow, SOON));
        let Some(frozen) = frozen else {
            return self.owe(flow, Debt::Release);
        };
        if let Err(error) = frozen.socket.discard() {
            tracing::warn!(flow = %flow.key, error = %error, "a socket that has moved lingers");
        }
        self.apps.emigrated(flow.key);
    }

    /// One that an earlier agent has stopped.
    fn take_again(&mut self, flow: FlowId, limit: Duration) -> Option<Frozen> {
        // Its server is waited for.
        self.speech.speak();
        let (socket, holder) = match self.apps.take_within(flow.key, limit) {
            Ok(taken) => (taken.socket, None),
            Err(_) => {
                let (socket, holder) = self.take_stopped(flow)?;
                (socket, Some(holder))
            }
        };
        Some(Frozen {
            socket: PausedSocket::pause(socket).ok()?,
            holder,
            bytes: Vec::new(),
        })
    }

    /// What was said while it stood still may be lost, and then both sides could wait for
    /// each other until a timer of theirs ends: with [`Release::Probe`] each says at once
    /// what it has and what it has room for.
    fn resume(&mut self, flow: FlowId, frozen: Frozen, how: Release) {
        let place = self.kernel.view.hidden(frozen.socket.as_fd());
        let socket = match frozen.socket.resume(how) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::error!(flow = %flow.key, error = %error, "a connection is lost");
                return self.go_on(flow, None);
            }
        };
        if how == Release::Probe
            && let Ok(hidden) = place
            && let Some(question) = stale_ack(flow, &hidden)
        {
            self.waiting.put_back(&question);
        }
        self.put_down(flow, socket, frozen.holder);
    }

    /// One that is not stopped (any more) goes on with whoever had it.
    fn put_down(&mut self, flow: FlowId, socket: OwnedFd, holder: Option<Holder>) {
        match holder {
            None => self.go_on(flow, Some(socket)),
            Some(Holder::Process(opened)) => self.go_on_unread(flow, opened, socket),
            Some(Holder::Queue) => {
                self.stay(flow);
                self.keep_queued(flow.key, socket, clock::now());
            }
        }
    }

    /// As before: with its client first, then with its server.
    fn go_on(&self, flow: FlowId, socket: Option<OwnedFd>) {
        self.stay(flow);
        drop(socket);
        self.apps.put_back(flow.key);
    }

    /// Nothing is forwarded any more. One that had come from elsewhere has no entry
    /// but this one.
    pub(super) fn stay(&self, flow: FlowId) {
        let has_come = |entry: HandoffEntry| written(&entry.note).place == Place::Here;
        if !self.places.get(flow).is_some_and(has_come) {
            return self.places.remove(flow);
        }
        if let Err(error) = self.places.set(flow, Whereabouts::Here) {
            tracing::error!(flow = %flow.key, error = %error, "whereabouts not written");
        }
    }

    fn reset(&self, flow: FlowId) {
        self.places.remove(flow);
        if let Err(error) = destroy_tcp(self.kernel.stand.ifindex(), flow.key) {
            tracing::warn!(flow = %flow.key, error = %error, "socket not ended");
        }
    }

    /// The peer hears the name of the reason, people the whole of it.
    pub(super) fn not_movable(
        &self,
        flow: FlowId,
        refusal: HandoffRefusal,
        error: &dyn std::error::Error,
    ) -> HandoffRefusal {
        let (flow, why) = (flow.key.to_string(), error.to_string());
        let fields = [("flow", flow.as_str()), ("why", why.as_str())];
        self.speech
            .events
            .publish_own("flow_not_movable", true, fields);
        refusal
    }
}

/// A segment in the client's name that our kernel answers with an ACK: it lies far before
/// its window (RFC 9293 §3.10.7.4). A window of 0 changes nothing, whatever is made of it.
fn stale_ack(flow: FlowId, hidden: &Hidden) -> Option<Vec<u8>> {
    let segment = Segment {
        source: flow.key.client,
        destination: flow.key.service,
        seq: hidden.rcv_nxt - (1 << 30),
        ack: hidden.snd_una,
        flags: TcpFlags::ACK,
        wnd: 0,
        options: TcpOptions::default(),
        payload: &[],
    };
    segment.to_packet().ok()
}

fn pause_refusal(error: &PauseError) -> HandoffRefusal {
    if matches!(error, PauseError::State(_)) {
        HandoffRefusal::Ended
    } else {
        HandoffRefusal::NotMovable
    }
}

fn snapshot_refusal(error: &SnapshotError) -> HandoffRefusal {
    if matches!(error, SnapshotError::TooLarge { .. }) {
        HandoffRefusal::TooLarge
    } else if matches!(error, SnapshotError::State(_)) {
        HandoffRefusal::Ended
    } else {
        HandoffRefusal::NotMovable
    }
}

/// Has the socket stand where its application stood when it exported its state: what
/// the application wrote later it writes again. What it read later nobody has any
/// more, and what was sent later the client may have acknowledged.
fn cut(
    snapshot: &mut TcpSnapshot,
    rcv_next: SeqNumber,
    snd_next: SeqNumber,
) -> Result<(), HandoffRefusal> {
    let again = snapshot
        .write_seq
        .checked_distance(snd_next)
        .filter(|again| *again <= snapshot.queues.unsent)
        .and_then(|again| Some((again, usize::try_from(again).ok()?)));
    let Some((again, bytes)) = again.filter(|_| rcv_next == snapshot.copied_seq()) else {
        return Err(HandoffRefusal::SnapshotBehind);
    };
    let left = snapshot.queues.send.len().saturating_sub(bytes);
    snapshot.queues.send.truncate(left);
    snapshot.queues.unsent -= again;
    snapshot.write_seq = snd_next;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two bytes are unread, six sent and six more written.
    fn snapshot() -> TcpSnapshot {
        let hex = include_str!("../../../../godwit-wire/src/snapshot/golden.txt").trim_end();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
        let bytes: Vec<_> = (0..hex.len()).step_by(2).map(byte).collect();
        TcpSnapshot::parse(&bytes).expect("as in godwit-wire")
    }

    #[test]
    fn a_socket_stands_where_its_application_stood() {
        let whole = snapshot();
        let (read, written) = (whole.copied_seq(), whole.write_seq);
        let (una, nxt) = (whole.snd_una(), whole.snd_nxt());
        for again in 0..=6 {
            let mut cut_short = whole.clone();
            cut(&mut cut_short, read, written - again).expect("that much is unsent");
            assert_eq!((cut_short.snd_una(), cut_short.snd_nxt()), (una, nxt));
            assert_eq!(cut_short.write_seq, written - again);
            assert_eq!(cut_short.queues.recv, whole.queues.recv);
        }
        let behind = Err(HandoffRefusal::SnapshotBehind);
        assert_eq!(
            cut(&mut snapshot(), read, written - 7),
            behind,
            "it was sent"
        );
        assert_eq!(
            cut(&mut snapshot(), read, written + 1),
            behind,
            "never written"
        );
        for read in [read - 1, read + 1] {
            assert_eq!(cut(&mut snapshot(), read, written), behind);
        }
    }
}
