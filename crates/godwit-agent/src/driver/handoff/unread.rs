//! Connections of servers that know nothing of Godwit, of which nobody has read a byte
//! and to which nobody has written: the origin's side.
//!
//! The socket is found in the process that has it, and is stopped like any other. From
//! then on that process reads nothing (EPERM), so what was unread stays so; one that
//! tries closes the connection, which ends unheard if it moves, and with a RST if it
//! does not.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd, RawFd};

use godwit_sock::repair::PausedSocket;
use godwit_sock::{
    ForeignProcess, Holders, destroy_tcp, holds_socket, socket_cookie, view_tcp_socket,
};
use godwit_wire::snapshot::Application;
use godwit_wire::{FlowId, HandoffRefusal, SeqNumber, TcpSnapshot, TcpState};
use thiserror::Error;

use super::worker::Worker;

/// The process that had a socket open when it was taken, and as what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holder {
    pid: u32,
    number: RawFd,
    inode: u32,
}

/// Why a socket can't be had from the process that has it.
#[derive(Debug, Error)]
enum TakeError {
    #[error("can't look for its socket")]
    View(#[source] io::Error),
    #[error("no process has accepted it yet")]
    NotAccepted,
    #[error(
        "no process has it that this agent may look into (CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE)"
    )]
    NotFound,
    #[error("process {0} does not let go of it (CAP_SYS_PTRACE)")]
    Refused(u32, #[source] io::Error),
    #[error("its time stamps count microseconds")]
    Microseconds,
}

impl Holder {
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
        self.unread.contains(&flow.key.service)
    }

    /// The socket of a connection that no process has registered.
    pub(super) fn take_unread(
        &mut self,
        flow: FlowId,
    ) -> Result<(OwnedFd, Holder), HandoffRefusal> {
        if !self.may_be_unread(flow) {
            return Err(HandoffRefusal::NotRegistered);
        }
        let view = view_tcp_socket(self.ifindex, flow.key);
        let view = view.map_err(|error| self.not_taken(flow, &TakeError::View(error)))?;
        let view = view.ok_or(HandoffRefusal::Ended)?;
        if view.inode == 0 {
            return Err(self.not_taken(flow, &TakeError::NotAccepted));
        }
        let taken = self.take_from_holder(view.inode, view.cookie);
        taken.map_err(|error| self.not_taken(flow, &error))
    }

    /// One of these that an earlier agent has stopped. One that was read from has a
    /// server that will register it.
    pub(super) fn take_stopped(&mut self, flow: FlowId) -> Option<(OwnedFd, Holder)> {
        if !self.may_be_unread(flow) {
            return None;
        }
        let (socket, holder) = self.take_unread(flow).ok()?;
        // An error: it runs.
        let hidden = self.view.hidden(socket.as_fd()).ok()?;
        (hidden.copied_seq == flow.irs + 1).then_some((socket, holder))
    }

    fn not_taken(&self, flow: FlowId, error: &TakeError) -> HandoffRefusal {
        self.not_movable(flow, HandoffRefusal::NotMovable, error)
    }

    /// Where it was when all processes were looked at last; if it is not there, they
    /// are looked at anew.
    fn take_from_holder(
        &mut self,
        inode: u32,
        cookie: u64,
    ) -> Result<(OwnedFd, Holder), TakeError> {
        let known = |holders: &Holders| {
            let (pid, number) = holders.get(inode)?;
            Some(Holder { pid, number, inode })
        };
        if let Some(holder) = known(&self.holders)
            && let Ok(Some(socket)) = holder.take(cookie)
        {
            return Ok((socket, holder));
        }
        self.holders = Holders::read().map_err(TakeError::View)?;
        let holder = known(&self.holders).ok_or(TakeError::NotFound)?;
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
        let iss = iss.or_else(|| self.begun.get(&flow).copied());
        if !begins(flow, snapshot) || iss.is_none_or(|iss| snapshot.write_seq != iss + 1) {
            return Err(HandoffRefusal::AlreadyRead);
        }
        if snapshot.ts_val & 1 != 0 {
            return Err(self.not_taken(flow, &TakeError::Microseconds));
        }
        let hidden = self.view.hidden(socket.as_fd());
        let hidden = hidden.map_err(|error| self.not_taken(flow, &TakeError::View(error)))?;
        Ok(Application::Unread {
            ts_recent: hidden.ts_recent,
        })
    }

    /// One that goes on here, in a process that may have closed it while it was
    /// stopped: then nobody has it, and its client hears that.
    pub(super) fn go_on_unread(&self, flow: FlowId, holder: Holder, socket: OwnedFd) {
        self.stay(flow);
        if holder.has_it() {
            return;
        }
        self.tell_closed(flow, "server_gave_up");
        if let Err(error) = destroy_tcp(self.ifindex, flow.key) {
            tracing::warn!(flow = %flow.key, error = %error, "socket not ended");
        }
        drop(socket);
    }

    /// A connection is over for a reason of ours.
    pub(super) fn tell_closed(&self, flow: FlowId, reason: &str) {
        let flow = flow.key.to_string();
        let fields = [("flow", flow.as_str()), ("reason", reason)];
        self.events.publish_own("flow_closed", true, fields);
    }
}

/// Whether a socket stands at the first byte of its client, has nothing to say, and
/// its server has not closed it.
pub(super) fn begins(flow: FlowId, snapshot: &TcpSnapshot) -> bool {
    let is_open = matches!(snapshot.state, TcpState::Established | TcpState::CloseWait);
    is_open && snapshot.copied_seq() == flow.irs + 1 && snapshot.queues.send.is_empty()
}
