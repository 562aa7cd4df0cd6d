//! The target's sockets: made of bytes, silent until they are told to speak.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use godwit_bpf::{HandoffEntry, Whereabouts};
use godwit_core::MonoTime;
use godwit_core::handoff::MAX_ASKED;
use godwit_core::node::HandoffReport;
use godwit_sock::repair::{Release, RestoreError, RestoredSocket};
use godwit_sock::without_tcp_socket;
use godwit_wire::app::Carried;
use godwit_wire::snapshot::{Application, Moved};
use godwit_wire::{FlowId, HandoffId, HandoffRefusal, MacAddr, SeqNumber, ShareId, TcpSnapshot};

use super::newborn::{BIRTH_PATIENCE, Newborns, Unborn};
use super::worker::{SWEEP, Worker};
use crate::apps::Offer;
use crate::clock;

/// Connections that may be on their way here at a time, of all nodes.
const MAX_COMING: usize = 4 * MAX_ASKED;

/// Connections that servers are offered at a time: what is said to a server, and what
/// it answers, must not fill the socket between the two.
const MAX_OFFERED: usize = 32;

/// How long a server may take to accept and register what it has taken up.
const TO_REGISTER: Duration = Duration::from_secs(1);

/// Connections on their way in.
pub(super) struct Arriving {
    pub(super) coming: BTreeMap<FlowId, Coming>,
    /// Those that have come and speak, and that no server has been offered yet.
    pub(super) placed: Vec<Placed>,
    /// Those that have come, and that a server is asked to accept.
    pub(super) offered: Vec<(FlowId, Offer)>,
    /// Those that one has taken up, and since when.
    pub(super) taken_up: BTreeMap<FlowId, MonoTime>,
    pub(super) newborns: Newborns,
    /// The service's initial sequence numbers of those that came unread.
    pub(super) begun: BTreeMap<FlowId, SeqNumber>,
}

impl Arriving {
    pub(super) fn new(newborns: Newborns) -> Self {
        Self {
            coming: BTreeMap::new(),
            placed: Vec::new(),
            offered: Vec::new(),
            taken_up: BTreeMap::new(),
            newborns,
            begun: BTreeMap::new(),
        }
    }
}

/// A connection that is to speak here.
pub(super) enum Coming {
    Parts(Vec<u8>),
    Restored {
        socket: RestoredSocket,
        snapshot: Box<TcpSnapshot>,
        carried: Option<Carried>,
    },
    Unread(Unborn),
}

/// A connection that speaks here, as far as its client is concerned.
pub(super) struct Placed {
    pub(super) flow: FlowId,
    pub(super) socket: OwnedFd,
    pub(super) carried: Option<Carried>,
}

impl Worker {
    /// Looks whether the connection may come, and keeps what its client sends. `origin` is
    /// where it comes from.
    pub(super) fn hold(
        &mut self,
        id: HandoffId,
        origin: Option<MacAddr>,
    ) -> Result<(), HandoffRefusal> {
        let flow = id.flow;
        let service = flow.key.service;
        if !self.apps.accepts(service) && self.queues_for(service).is_empty() {
            return Err(HandoffRefusal::NoServer);
        }
        if self.arriving.coming.len() >= MAX_COMING {
            return Err(HandoffRefusal::NoCapacity);
        }
        // A socket of an earlier time here has still to end.
        if self.owes(flow) {
            return Err(HandoffRefusal::InUse);
        }
        // One that has left from here has none, or one that is silent.
        let is_back = self.places.get(flow).is_some();
        self.kernel.sockets.follow(self.kernel.stand.ifindex());
        if !is_back && self.kernel.sockets.has(flow.key).unwrap_or(true) {
            return Err(HandoffRefusal::InUse);
        }
        self.stop_sending_back(flow);
        self.waiting.begin(flow.key);
        if let Err(error) = self.places.held(flow, self.waiting.device(), origin) {
            tracing::error!(flow = %flow.key, error = %error, "its packets can't be held");
            self.waiting.end(flow.key);
            return Err(HandoffRefusal::NoCapacity);
        }
        self.arriving.coming.insert(flow, Coming::Parts(Vec::new()));
        Ok(())
    }

    pub(super) fn note_part(&mut self, id: HandoffId, part: &[u8]) {
        if let Some(Coming::Parts(bytes)) = self.arriving.coming.get_mut(&id.flow)
            // What is longer does not parse.
            && bytes.len() <= Moved::MAX_LEN
        {
            bytes.extend_from_slice(part);
        }
    }

    /// A socket that is silent.
    pub(super) fn restore(&mut self, id: HandoffId) -> Result<(), HandoffRefusal> {
        let Some(Coming::Parts(bytes)) = self.arriving.coming.remove(&id.flow) else {
            return Err(HandoffRefusal::Corrupt);
        };
        let moved = read(id.flow, &bytes)?;
        let snapshot = Box::new(moved.socket);
        let carried = match moved.application {
            Application::Unread { ts_recent } => {
                let unborn = self.prepare_unread(id.flow, snapshot, ts_recent)?;
                self.arriving.coming.insert(id.flow, unborn);
                return Ok(());
            }
            Application::Stateless => None,
            Application::Carried(carried) => Some(carried),
        };
        if !self.apps.accepts(id.flow.key.service) {
            return Err(HandoffRefusal::NoServer);
        }
        let restored = self.make_socket(id, snapshot, carried)?;
        self.arriving.coming.insert(id.flow, restored);
        Ok(())
    }

    fn make_socket(
        &self,
        id: HandoffId,
        snapshot: Box<TcpSnapshot>,
        carried: Option<Carried>,
    ) -> Result<Coming, HandoffRefusal> {
        let socket =
            RestoredSocket::restore(&snapshot, self.kernel.stand.ifindex()).map_err(|error| {
                let why = error.to_string();
                let flow = id.flow.key.to_string();
                let fields = [("flow", flow.as_str()), ("why", why.as_str())];
                self.speech
                    .events
                    .publish_own("flow_not_restored", true, fields);
                if matches!(error, RestoreError::Exists) {
                    HandoffRefusal::InUse
                } else {
                    HandoffRefusal::NotRestored
                }
            })?;
        if let Err(error) = self
            .kernel
            .view
            .carry(std::os::fd::AsFd::as_fd(&socket), &snapshot)
        {
            // It begins slowly, that is all.
            tracing::debug!(flow = %id.flow.key, error = %error, "congestion state lost");
        }
        Ok(Coming::Restored {
            socket,
            snapshot,
            carried,
        })
    }

    /// It speaks with its client, which is what the origin waits for; a server is offered it
    /// when that has been said.
    pub(super) fn place(&mut self, share: ShareId, id: HandoffId) {
        let flow = id.flow;
        let (socket, snapshot, carried) = match self.arriving.coming.remove(&flow) {
            Some(Coming::Restored {
                socket,
                snapshot,
                carried,
            }) => (socket, snapshot, carried),
            Some(Coming::Unread(unborn)) => {
                self.speech.speak();
                // Its queue was full after all: the agent serves it as soon as there is room.
                if let Some(socket) = self.bear(flow, &unborn, BIRTH_PATIENCE) {
                    self.keep_queued(flow.key, socket, clock::now());
                }
                return self.report(share, HandoffReport::Placed(id));
            }
            Some(Coming::Parts(_)) | None => {
                tracing::error!(flow = %flow.key, "no socket to place");
                return self.report(share, HandoffReport::Placed(id));
            }
        };
        self.waiting.release(flow.key, &snapshot);
        self.here(flow);
        let released = socket.release(Release::Probe, |fin| self.waiting.inject(fin));
        self.report(share, HandoffReport::Placed(id));
        // What was redirected a moment ago, and is in the device by now.
        self.waiting.release(flow.key, &snapshot);
        self.waiting.end(flow.key);
        match released {
            Ok(socket) => self.arriving.placed.push(Placed {
                flow,
                socket,
                carried,
            }),
            Err(error) => {
                tracing::error!(flow = %flow.key, error = %error, "a connection is lost");
                self.tell_closed(flow.key, HandoffRefusal::NotRestored.as_str());
            }
        }
    }

    /// Asks servers to accept what has come.
    pub(super) fn offer_placed(&mut self) {
        for placed in std::mem::take(&mut self.arriving.placed) {
            let Placed {
                flow,
                socket,
                carried,
            } = placed;
            match self.apps.offer(flow.key, socket, carried) {
                Ok(offer) => self.arriving.offered.push((flow, offer)),
                Err(reason) => self.tell_closed(flow.key, reason.as_str()),
            }
        }
        while self.arriving.offered.len() > MAX_OFFERED {
            let (flow, oldest) = self.arriving.offered.remove(0);
            self.speech.speak();
            match self.apps.wait_for(oldest) {
                Ok(()) => drop(self.arriving.taken_up.insert(flow, clock::now())),
                Err(reason) => self.tell_closed(flow.key, reason.as_str()),
            }
        }
    }

    /// Connections that servers were offered: those that nobody takes end.
    pub(super) fn look_after_offers(&mut self) {
        let mut offered = std::mem::take(&mut self.arriving.offered);
        offered.retain_mut(|(flow, offer)| match self.apps.taken_up(offer) {
            None => true,
            Some(Ok(())) => {
                self.arriving.taken_up.insert(*flow, clock::now());
                false
            }
            Some(Err(reason)) => {
                self.tell_closed(flow.key, reason.as_str());
                false
            }
        });
        self.arriving.offered = offered;
    }

    /// Whether a server has it, or is about to, that has not registered it yet: a process
    /// that takes one up has it in a queue first.
    pub(super) fn is_offered(&self, flow: FlowId) -> bool {
        let taken_up = self.arriving.taken_up.get(&flow);
        taken_up.is_some_and(|at| clock::now().since(*at) < TO_REGISTER)
            || self
                .arriving
                .offered
                .iter()
                .any(|(offered, _)| *offered == flow)
    }

    pub(super) fn here(&self, flow: FlowId) {
        if let Err(error) = self.places.set(flow, Whereabouts::Here) {
            tracing::error!(flow = %flow.key, error = %error, "it may not speak");
        }
    }

    /// Connections that came from elsewhere and have no socket any more, and those that
    /// are elsewhere and may be over there.
    pub(super) fn sweep(&mut self, now: MonoTime) {
        if now.since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        self.arriving
            .taken_up
            .retain(|_, at| now.since(*at) < TO_REGISTER);
        let entries = self.places.all();
        self.look_after_forwarded(&entries, now);
        self.end_what_is_over(&entries);
    }

    fn end_what_is_over(&mut self, entries: &[HandoffEntry]) {
        let here: Vec<_> = entries
            .iter()
            .filter(|entry| entry.whereabouts == Whereabouts::Here)
            .map(|entry| entry.flow)
            .collect();
        if here.is_empty() {
            return;
        }
        let keys = here.iter().map(|flow| flow.key).collect();
        let gone = match without_tcp_socket(self.kernel.stand.ifindex(), keys) {
            Ok(gone) => gone,
            Err(error) => {
                return tracing::warn!(error = %error, "can't look for sockets that have ended");
            }
        };
        for flow in here.into_iter().filter(|flow| gone.contains(&flow.key)) {
            if let Some(share) = self.share_of(flow) {
                self.report(share, HandoffReport::Ended(flow));
            }
        }
    }

    fn share_of(&self, flow: FlowId) -> Option<ShareId> {
        self.terms.shares.get(&flow.key.service).copied()
    }
}

/// The connection that was asked for, and no other.
fn read(flow: FlowId, bytes: &[u8]) -> Result<Moved, HandoffRefusal> {
    let moved = Moved::parse(bytes).map_err(|error| {
        tracing::warn!(flow = %flow.key, %error, "a connection came in no shape");
        HandoffRefusal::Corrupt
    })?;
    if moved.socket.key != flow.key {
        tracing::warn!(flow = %flow.key, other = %moved.socket.key, "another connection came");
        return Err(HandoffRefusal::Corrupt);
    }
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_whole_or_another_connection_is_refused() {
        let hex = include_str!("../../../../godwit-wire/src/snapshot/golden.txt").trim_end();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
        let socket: Vec<_> = (0..hex.len()).step_by(2).map(byte).collect();
        let socket = TcpSnapshot::parse(&socket).expect("as in godwit-wire");
        let flow = FlowId {
            key: socket.key,
            irs: socket.copied_seq() - 1,
        };
        let moved = Moved {
            socket,
            application: Application::Stateless,
        };
        let mut bytes = Vec::new();
        moved.emit(&mut bytes);
        assert_eq!(read(flow, &bytes), Ok(moved));

        let corrupt = Err(HandoffRefusal::Corrupt);
        for length in 0..bytes.len() {
            assert_eq!(read(flow, &bytes[..length]), corrupt, "{length} bytes");
        }
        assert_eq!(read(flow, &[&bytes[..], &[0]].concat()), corrupt, "longer");
        for (at, what) in [(0, "another length"), (4, "another version")] {
            let mut changed = bytes.clone();
            changed[at] ^= 0x80;
            assert_eq!(read(flow, &changed), corrupt, "{what}");
        }
        let mut other = flow;
        other.key.client.port ^= 1;
        assert_eq!(read(other, &bytes), corrupt, "another client");
    }
}
