//! Clients: unmodified TCP that talks to the services of a cluster.

use crate::flow::{Frame, Kind, MSS, Script, WINDOW};
use crate::plan::{MS, SERVERS};
use crate::world::{Happening, World};

/// A client's retransmission time-out, and the longest after backing off.
const RTO_NS: u64 = 30 * MS;
const LONGEST_RTO_NS: u64 = 480 * MS;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Stage {
    /// Will open another connection some time.
    #[default]
    Idle,
    /// Has sent a SYN.
    Opening,
    Open,
}

/// One client: a connection at a time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Client {
    pub(crate) stage: Stage,
    /// Names the connection.
    pub(crate) irs: u32,
    /// Heard in the SYN-ACK.
    pub(crate) iss: u32,
    pub(crate) script: Script,
    pub(crate) snd_una: u32,
    pub(crate) snd_nxt: u32,
    /// As far as it has ever sent.
    snd_max: u32,
    pub(crate) rcv_nxt: u32,
    /// As far as a service has sent, as far as that has left its host.
    pub(crate) sent_to: u32,
    rto_ns: u64,
    rto_queued: bool,
    backoff: u32,
}

impl World {
    /// Whether something of this client is sent and not acknowledged.
    pub(crate) fn is_in_flight(&self, slot: usize) -> bool {
        let client = &self.clients[slot];
        client.stage == Stage::Open
            && (client.snd_una < client.snd_nxt || client.rcv_nxt < client.sent_to)
    }

    pub(crate) fn client_opens(&mut self, slot: usize) {
        if !self.open || self.clients[slot].stage != Stage::Idle {
            return;
        }
        let random = &mut self.random;
        let script = match random.below(3) {
            // Interactive, download, upload.
            0 => Script {
                ask: u32::try_from(random.between(1, 900)).unwrap_or(1),
                answer: u32::try_from(random.between(1, 3_000)).unwrap_or(1),
                rounds: u32::try_from(random.between(1, 60)).unwrap_or(1),
            },
            1 => Script {
                ask: 200,
                answer: u32::try_from(random.spread(2_000, 400_000)).unwrap_or(1),
                rounds: 1,
            },
            _ => Script {
                ask: u32::try_from(random.spread(2_000, 400_000)).unwrap_or(1),
                answer: 100,
                rounds: 1,
            },
        };
        let irs = u32::try_from(self.new_name()).unwrap_or(u32::MAX);
        self.clients[slot] = Client {
            stage: Stage::Opening,
            irs,
            script,
            // A timer of the last connection may be queued.
            rto_queued: false,
            ..Client::default()
        };
        self.audit.begin(slot, irs);
        self.client_sends(slot, Frame::bare(Kind::Syn, slot, irs));
        self.client_arms(slot);
    }

    fn client_sends(&mut self, slot: usize, frame: Frame) {
        let to = self.paths[self.share_of(slot)];
        self.send_frame(self.plan.nodes, to, frame);
    }

    fn client_arms(&mut self, slot: usize) {
        let now_ns = self.now_ns;
        let client = &mut self.clients[slot];
        client.rto_ns = now_ns + (RTO_NS << client.backoff).min(LONGEST_RTO_NS);
        if !client.rto_queued {
            client.rto_queued = true;
            let (at_ns, irs) = (client.rto_ns, client.irs);
            self.queue
                .push(at_ns, Happening::ClientRepeat { slot, irs });
        }
    }

    pub(crate) fn client_repeats(&mut self, slot: usize, irs: u32) {
        let now_ns = self.now_ns;
        let client = &mut self.clients[slot];
        if client.irs != irs || client.stage == Stage::Idle {
            return;
        }
        client.rto_queued = false;
        if now_ns < client.rto_ns {
            client.rto_queued = true;
            let at_ns = client.rto_ns;
            self.queue
                .push(at_ns, Happening::ClientRepeat { slot, irs });
            return;
        }
        client.backoff = (client.backoff + 1).min(4);
        let lost = client.backoff > 2;
        client.snd_nxt = client.snd_una;
        let opening = client.stage == Stage::Opening;
        if lost {
            // RFC 4861: a neighbour that does not answer is asked for anew.
            for to in 0..SERVERS {
                self.send_frame(self.plan.nodes, to, Frame::bare(Kind::WhoHas, slot, irs));
            }
        }
        if opening {
            self.client_sends(slot, Frame::bare(Kind::Syn, slot, irs));
        } else {
            // A keep-alive, if there is nothing else to say.
            self.client_speaks(slot, lost);
        }
        self.client_arms(slot);
    }

    /// What it has to say and may; an ACK at least, if one is due.
    fn client_speaks(&mut self, slot: usize, due: bool) {
        let mut silent = true;
        loop {
            let client = &mut self.clients[slot];
            let ready = client.script.asks(client.rcv_nxt);
            let edge = (client.snd_una + WINDOW).min(ready);
            let len = edge.saturating_sub(client.snd_nxt).min(MSS);
            if len == 0 {
                break;
            }
            let frame = Frame {
                kind: Kind::Client,
                slot,
                irs: client.irs,
                iss: client.iss,
                seq: client.snd_nxt,
                len,
                ack: client.rcv_nxt,
            };
            client.snd_nxt += len;
            client.snd_max = client.snd_max.max(client.snd_nxt);
            silent = false;
            self.client_sends(slot, frame);
        }
        if silent && due {
            let client = &self.clients[slot];
            let ack = Frame {
                kind: Kind::Client,
                slot,
                irs: client.irs,
                iss: client.iss,
                seq: client.snd_nxt,
                len: 0,
                ack: client.rcv_nxt,
            };
            self.client_sends(slot, ack);
        }
    }

    /// A frame of a node arrives at the clients.
    pub(crate) fn client_hears(&mut self, from: usize, frame: Frame) {
        if frame.kind == Kind::Announce {
            let share = self.share_of(frame.slot);
            self.paths[share] = from;
            return;
        }
        let client = self.clients[frame.slot];
        if client.irs != frame.irs || client.stage == Stage::Idle {
            return;
        }
        match frame.kind {
            Kind::SynAck => self.handshake_answered(frame),
            Kind::Reset(why) => {
                let refused = client.stage == Stage::Opening;
                self.trace(|_| format!("client {}: reset, {why:?}", frame.slot));
                if !refused {
                    self.tally.resets += 1;
                }
                self.client_closes(frame.slot);
            }
            Kind::Service | Kind::Probe => {
                if client.stage == Stage::Open {
                    self.client_takes(frame);
                }
            }
            Kind::Syn
            | Kind::Third
            | Kind::Client
            | Kind::Fin
            | Kind::Announce
            | Kind::WhoHas
            | Kind::TwinAck => {}
        }
    }

    fn handshake_answered(&mut self, frame: Frame) {
        let slot = frame.slot;
        let client = &mut self.clients[slot];
        let irs = client.irs;
        if client.stage == Stage::Opening {
            client.stage = Stage::Open;
            client.iss = frame.iss;
            client.backoff = 0;
            self.tally.streams += 1;
            self.client_sends(slot, Frame::begun(Kind::Third, slot, irs, frame.iss));
            self.client_speaks(slot, false);
            self.client_arms(slot);
        } else {
            // The third ACK was lost; or a challenge ACK (RFC 5961 section 4).
            self.client_speaks(slot, true);
        }
    }

    /// A segment of the service: acknowledgement, bytes in order, or a probe.
    fn client_takes(&mut self, frame: Frame) {
        let slot = frame.slot;
        let client = &mut self.clients[slot];
        if frame.ack > client.snd_max {
            let (ack, max) = (frame.ack, client.snd_max);
            self.violate(|_| format!("client {slot} sent {max} bytes and hears of {ack}"));
            return;
        }
        let progress = frame.ack > client.snd_una
            || frame.seq <= client.rcv_nxt && frame.seq + frame.len > client.rcv_nxt;
        client.snd_una = client.snd_una.max(frame.ack);
        client.snd_nxt = client.snd_nxt.max(client.snd_una);
        if frame.seq <= client.rcv_nxt {
            client.rcv_nxt = client.rcv_nxt.max(frame.seq + frame.len);
        }
        if progress {
            client.backoff = 0;
        }
        let script = client.script;
        if client.rcv_nxt == script.answered() && client.snd_una == script.asked() {
            let fin = Frame {
                kind: Kind::Fin,
                slot,
                irs: client.irs,
                iss: client.iss,
                seq: client.snd_nxt,
                len: 0,
                ack: client.rcv_nxt,
            };
            self.client_sends(slot, fin);
            self.tally.completed += 1;
            self.client_closes(slot);
            return;
        }
        self.client_speaks(slot, frame.len > 0 || frame.kind == Kind::Probe);
        if progress {
            self.client_arms(slot);
        }
    }

    fn client_closes(&mut self, slot: usize) {
        self.clients[slot].stage = Stage::Idle;
        let at_ns = self.now_ns + self.random.spread(MS, 60 * MS);
        self.queue.push(at_ns, Happening::ClientOpen { slot });
    }
}
