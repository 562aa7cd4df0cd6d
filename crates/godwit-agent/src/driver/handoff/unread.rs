//! Connections of servers that know nothing of Godwit, of which nobody has read a byte
//! and to which nobody has written: the origin's side, once a process has accepted them;
//! before that see [`super::queued`].
//!
//! The socket is found in the process that has it, and is stopped like any other. From
//! then on that process reads nothing (EPERM), so what was unread stays so; one that
//! tries closes the connection, which ends unheard if it moves, and with a RST if it
//! does not.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd, RawFd};

use godwit_sock::repair::PausedSocket;
use godwit_sock::{
    ForeignProcess, Holders, ListenerError, SocketView, destroy_tcp, holds_socket, socket_cookie,
    view_tcp_socket,
};
use godwit_wire::snapshot::Application;
use godwit_wire::{FlowId, FlowKey, HandoffRefusal, SeqNumber, TcpSnapshot, TcpState};
use thiserror::Error;

use super::worker::Worker;
use crate::clock;

/// Who had a socket when it was taken.
#[derive(Debug, Clone, Copy)]
pub(super) enum Holder {
    /// A process, which has it still, or has closed it since.
    Process(Opened),
    /// Nobody: it was in a listener's accept queue, and is the agent's alone.
    Queue,
}

/// A process that had a socket open when it was looked, and as what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opened {
    pid: u32,
    number: RawFd,
    inode: u32,
}

/// Why a socket can't be had from the process that has it.
#[derive(Debug, Error)]
pub(super) enum TakeError {
    #[error("can't look for its socket")]
    View(#[source] io::Error),
    #[error("no process has accepted it, and it is in no accept queue any more")]
    NotQueued,
    #[error("it can't be taken from the accept queue")]
    Accept(#[source] io::Error),
    #[error("its server's listener can't be used in its place: {0}")]
    Listener(#[from] ListenerError),
    #[error("its server accepts others meanwhile")]
    Moving,
    #[error(
        "{0} waits in the same accept queue, and is of no service whose connections move, or not \
         from the service's network"
    )]
    Stranger(FlowKey),
    #[error("{0} waits in the same accept queue, and has said too much to be put back there")]
    InTheWay(FlowKey),
    #[error(
        "no process has it that this agent may look into (CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE)"
    )]
    NotFound,
    #[error("process {0} does not let go of it (CAP_SYS_PTRACE)")]
    Refused(u32, #[source] io::Error),
    #[error("its time stamps count microseconds")]
    Microseconds,
}

impl Opened {
    /// Whether the process has not closed it meanwhile.
    fn has_it(self) -> bool {
        holds_socket(self.pid, self.number, self.inode)
    }

    /// `None` if it is another socket by now.
    fn take(self, cookie: u64) -> io::Result<Option<OwnedFd>> {
        let socket = ForeignProcess::open(self.pid)?.take(self.number)?;
        let is_it = socket_cookie(socket.as_fd()).is_ok_and(|found| found == cookie);
        Ok(is_it.then_some(socket))
    }
}

impl Worker {
    /// Whether somebody may look for the server of a connection.
    pub(super) fn may_be_unread(&self, flow: FlowId) -> bool {
        self.terms.unread.contains(&flow.key.service)
    }

    /// The socket of a connection that no process has registered.
    pub(super) fn take_unread(
        &mut self,
        flow: FlowId,
    ) -> Result<(OwnedFd, Holder), HandoffRefusal> {
        if !self.may_be_unread(flow) {
            return Err(HandoffRefusal::NotRegistered);
        }
        // To look for it among all processes takes long.
        self.speech.speak();
        if let Some(socket) = self.take_kept(flow) {
            return Ok((socket, Holder::Queue));
        }
        let view = self.look_at(flow)?;
        if view.waits_to_be_accepted() {
            let socket = self.take_queued(flow, clock::now())?;
            return Ok((socket, Holder::Queue));
        }
        // Its server has closed it.
        if view.inode == 0 {
            return Err(HandoffRefusal::Ended);
        }
        let (socket, opened) = self.take_accepted(flow, view)?;
        Ok((socket, Holder::Process(opened)))
    }

    fn look_at(&self, flow: FlowId) -> Result<SocketView, HandoffRefusal> {
        let view = view_tcp_socket(self.kernel.stand.ifindex(), flow.key);
        let view = view.map_err(|error| self.not_taken(flow, &TakeError::View(error)))?;
        view.ok_or(HandoffRefusal::Ended)
    }

    fn take_accepted(
        &mut self,
        flow: FlowId,
        view: SocketView,
    ) -> Result<(OwnedFd, Opened), HandoffRefusal> {
        let taken = self.take_from_holder(view.inode, view.cookie);
        taken.map_err(|error| self.not_taken(flow, &error))
    }

    /// One of these that an earlier agent has stopped. One that was read from has a
    /// server that will register it.
    pub(super) fn take_stopped(&mut self, flow: FlowId) -> Option<(OwnedFd, Holder)> {
        if !self.may_be_unread(flow) {
            return None;
        }
        // In a queue nothing is stopped.
        let view = self.look_at(flow).ok().filter(|view| view.inode != 0)?;
        let (socket, opened) = self.take_accepted(flow, view).ok()?;
        // An error: it runs.
        let hidden = self.kernel.view.hidden(socket.as_fd()).ok()?;
        let begins = hidden.copied_seq == flow.irs + 1;
        begins.then_some((socket, Holder::Process(opened)))
    }

    pub(super) fn not_taken(&self, flow: FlowId, error: &TakeError) -> HandoffRefusal {
        self.not_movable(flow, HandoffRefusal::NotMovable, error)
    }

    /// Where it was when all processes were looked at last; if it is not there, they
    /// are looked at anew.
    pub(super) fn take_from_holder(
        &mut self,
        inode: u32,
        cookie: u64,
    ) -> Result<(OwnedFd, Opened), TakeError> {
        let known = |holders: &Holders| {
            let (pid, number) = holders.get(inode)?;
            Some(Opened { pid, number, inode })
        };
        if let Some(holder) = known(&self.kernel.holders)
            && let Ok(Some(socket)) = holder.take(cookie)
        {
            return Ok((socket, holder));
        }
        self.kernel.holders = Holders::read().map_err(TakeError::View)?;
        let holder = known(&self.kernel.holders).ok_or(TakeError::NotFound)?;
        match holder.take(cookie) {
            Ok(Some(socket)) => Ok((socket, holder)),
            Ok(None) => Err(TakeError::NotFound),
            Err(error) => Err(TakeError::Refused(holder.pid, error)),
        }
    }

    /// What goes along with a stopped socket of which nobody has read, and `iss` is the
    /// initial sequence number of the service, as far as it is known.
    pub(super) fn unread_application(
        &self,
        flow: FlowId,
        socket: &PausedSocket,
        snapshot: &TcpSnapshot,
        iss: Option<SeqNumber>,
    ) -> Result<Application, HandoffRefusal> {
        let iss = iss.or_else(|| self.arriving.begun.get(&flow).copied());
        if !begins(flow, snapshot) || iss.is_none_or(|iss| snapshot.write_seq != iss + 1) {
            return Err(HandoffRefusal::AlreadyRead);
        }
        if snapshot.ts_val & 1 != 0 {
            return Err(self.not_taken(flow, &TakeError::Microseconds));
        }
        let hidden = self.kernel.view.hidden(socket.as_fd());
        let hidden = hidden.map_err(|error| self.not_taken(flow, &TakeError::View(error)))?;
        Ok(Application::Unread {
            ts_recent: hidden.ts_recent,
        })
    }

    /// One that goes on here, in a process that may have closed it while it was
    /// stopped: then nobody has it, and its client hears that.
    pub(super) fn go_on_unread(&self, flow: FlowId, opened: Opened, socket: OwnedFd) {
        self.stay(flow);
        if opened.has_it() {
            return;
        }
        self.tell_closed(flow.key, "server_gave_up");
        if let Err(error) = destroy_tcp(self.kernel.stand.ifindex(), flow.key) {
            tracing::warn!(flow = %flow.key, error = %error, "socket not ended");
        }
        drop(socket);
    }

    /// A connection is over for a reason of ours.
    pub(super) fn tell_closed(&self, flow: FlowKey, reason: &str) {
        let flow = flow.to_string();
        let fields = [("flow", flow.as_str()), ("reason", reason)];
        self.speech.events.publish_own("flow_closed", true, fields);
    }
}

/// Whether a socket stands at the first byte of its client, has nothing to say, and
/// its server has not closed it.
pub(super) fn begins(flow: FlowId, snapshot: &TcpSnapshot) -> bool {
    let is_open = matches!(snapshot.state, TcpState::Established | TcpState::CloseWait);
    is_open && snapshot.copied_seq() == flow.irs + 1 && snapshot.queues.send.is_empty()
}
