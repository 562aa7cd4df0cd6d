//! Snapshots that a server must never go back from: it waits until a standby has
//! them, with the output that its client has not acknowledged.
//!
//! What a process shows is looked at here, while its server stands still: the
//! snapshot, where the connection is, and the end of its output. The rest is the
//! driver's (`driver/snapshots/commits.rs`), which answers in the end, whatever comes of it.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use godwit_core::snapshot::parcel::Exported;
use godwit_sock::repair::{mend, unacknowledged};
use godwit_sock::{StreamPosition, connection_of};
use godwit_wire::FlowKey;
use godwit_wire::app::region::SlotState;
use godwit_wire::app::{AppMessage, Carried, CommitRefusal, MAX_OUTPUT, SnapshotPlace, Subject};

use super::account::Weight;
use super::client::Client;
use super::closing::Foreign;
use super::counts::Fault;
use super::{Apps, Office};
use crate::input::Input;

/// What a server has said of a connection that it can't go back with.
#[derive(Debug)]
pub struct Commit {
    /// The connection.
    pub flow: FlowKey,
    /// Who waits for an answer; nobody, if a new standby lacks what was safe before.
    pub asker: Option<Asker>,
    /// What the standby needs, or why it can't be had.
    pub state: Result<Committed, CommitRefusal>,
}

/// A snapshot, and what was written before it and is not acknowledged; its weight is of what
/// its process may have under way.
pub type Committed = godwit_core::snapshot::commit::Committed<Arc<Weight>>;

/// A server that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    client: u64,
    request: u32,
}

impl Apps {
    /// Tells a server that its snapshot is safe, or that its connection is not served
    /// from an older one either.
    pub fn answer_commit(&self, asker: Asker, refusal: Option<CommitRefusal>) {
        let client = self.office.client_by_id(asker.client);
        let request = asker.request;
        if let Some(client) = client {
            // If it does not get through, the process has gone.
            let _ = self
                .office
                .tell(&client, &AppMessage::Committed { request, refusal });
        }
    }
}

impl Office {
    /// Looks at what a process wants to be safe, and has the driver see to it.
    pub(super) fn commit(
        &self,
        client: &Client,
        subject: Subject,
        place: SnapshotPlace,
        socket: Option<&Foreign>,
    ) {
        let asker = Some(Asker {
            client: client.id,
            request: subject.request,
        });
        let flow = socket.and_then(|socket| connection_of(socket.as_fd()).ok());
        let (Some(flow), Some(socket)) = (flow, socket) else {
            return self.refuse_commit(client, subject, CommitRefusal::Mismatch);
        };
        let state = self.read(client, subject, place, (flow, socket));
        if let Err(reason) = state {
            tracing::info!(%flow, %reason, "a snapshot can't be made safe");
        }
        let commit = Commit { flow, asker, state };
        if self.inbox.send(Input::Commit(Box::new(commit))).is_err() {
            self.refuse_commit(client, subject, CommitRefusal::Unprotected);
        }
    }

    fn refuse_commit(&self, client: &Client, subject: Subject, refusal: CommitRefusal) {
        let (request, refusal) = (subject.request, Some(refusal));
        // If it does not get through, the process has gone.
        let _ = self.tell(client, &AppMessage::Committed { request, refusal });
    }

    /// Has a connection go on that an agent before this one has stopped.
    pub(super) fn mend(&self, client: &Client, socket: Option<&Foreign>) {
        let Some(socket) = socket.filter(|socket| self.is_here(socket.as_fd())) else {
            return;
        };
        let pid = client.pid;
        match mend(socket.as_fd()) {
            Ok(false) => {}
            Ok(true) => tracing::warn!(pid, "a connection that an agent had stopped goes on"),
            Err(error) => tracing::warn!(pid, %error, "a connection can't go on"),
        }
    }

    /// The snapshot and the output, while nothing else has either.
    fn read(
        &self,
        client: &Client,
        subject: Subject,
        place: SnapshotPlace,
        (flow, socket): (FlowKey, &Foreign),
    ) -> Result<Committed, CommitRefusal> {
        let mismatch = CommitRefusal::Mismatch;
        if !self.is_shown(client, socket.as_fd(), (flow, subject.cookie)) {
            return Err(mismatch);
        }
        // One that is away for a move may be another server's soon.
        let connection = client.region.connection(subject.slot);
        let live = connection.filter(|it| it.state == SlotState::Live && it.key == flow);
        live.ok_or(mismatch)?;
        // Nobody is stopped who has gone on without an answer.
        let stands = |at: StreamPosition| (at.read, at.written) == (place.read, place.written);
        let at = StreamPosition::of(socket.as_fd()).map_err(|_| mismatch)?;
        if !stands(at) {
            return Err(mismatch);
        }
        // How much there is to be read is not known before.
        let most = usize::try_from(place.length.saturating_add(MAX_OUTPUT)).unwrap_or(usize::MAX);
        let Some(mut weight) = client.weigh_commit(most) else {
            self.counts.count(Fault::Memory);
            return Err(CommitRefusal::Late);
        };
        let copied = client.region.copy(subject.slot, subject.cookie, &place);
        let bytes = copied.ok_or(mismatch)?;
        // The descriptor is closed elsewhere, this copy here.
        let copy = socket.as_fd().try_clone_to_owned();
        let copy = copy.map_err(|_| CommitRefusal::Output)?;
        let found = unacknowledged(copy, MAX_OUTPUT.into()).map_err(|error| {
            tracing::info!(%flow, %error, "what is not acknowledged can't be read");
            CommitRefusal::Output
        })?;
        if !stands(found.position) {
            return Err(mismatch);
        }
        let output = found.output;
        weight.shrink(bytes.len() + output.len());
        let carried = Carried {
            kind: place.kind,
            bytes,
        };
        Ok(Committed {
            exported: Exported { place, carried },
            output,
            weight: Some(Arc::new(weight)),
        })
    }
}
