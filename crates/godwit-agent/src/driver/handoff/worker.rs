//! Sockets that leave and come: what takes longer than the driver may wait.
//!
//! One thread. Jobs are carried out in order, but those first for which a connection
//! is silent; what becomes of them goes back to the driver as an input.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::time::Duration;

use godwit_core::node::HandoffReport;
use godwit_core::{MonoTime, PeerId};
use godwit_wire::{
    Epoch, FlowId, FlowKey, HandoffId, HandoffMessage, HandoffStep, MAX_INPUT_LEN, MacAddr,
    Message, SeqNumber, ShareId,
};

use super::Kit;
use super::arriving::Arriving;
use super::debts::{self, Debts};
use super::departing::Departure;
use super::kernel::Kernel;
use super::leaving::Leaving;
use super::places::Places;
use super::queued::Queued;
use super::returning::{Return, Returned};
use super::terms::Terms;
use super::waiting::Waiting;
use super::words::Speech;
use crate::apps::Apps;
use crate::clock;
use crate::realtime::{Urgency, prefer};
use crate::wake::Work;

/// How often the device of held packets is emptied while some are held, and is
/// looked for answers of servers.
const GLANCE: Duration = Duration::from_millis(1);

/// How often connections are looked after that came from elsewhere, for their ends are
/// not reported, and those that have left.
pub(super) const SWEEP: Duration = Duration::from_secs(2);

/// Something for the thread to do, for a connection of a share.
#[derive(Debug)]
pub(super) enum Job {
    /// See [`godwit_core::handoff::Order`]; with the origin's address on the link.
    Hold(HandoffId, Option<MacAddr>),
    /// For this peer, with its address on the link, and with the service's initial
    /// sequence number if the handshake was here.
    Freeze(HandoffId, (PeerId, MacAddr), Option<SeqNumber>),
    /// A part of what a peer has sent of a connection.
    Part(HandoffId, Vec<u8>),
    Restore(HandoffId),
    Place(HandoffId),
    Thaw(FlowId),
    Lose(FlowId),
    Release(FlowId),
    Discard(HandoffId, Return),
    /// An earlier agent was about to make its socket.
    EndHalfBorn(FlowId),
    Forget(FlowId),
    /// See [`godwit_core::handoff::Order`].
    Look(HandoffId, PeerId),
    /// A packet for our kernel that has waited elsewhere.
    PutBack(FlowId, Vec<u8>),
}

/// What is to be done: first that for which a client waits.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    urgent: VecDeque<(ShareId, Job)>,
    others: VecDeque<(ShareId, Job)>,
    /// There is something new, or a server has answered, since the last look.
    is_rung: bool,
    /// The driver ends.
    is_last: bool,
}

impl Job {
    /// Of which connection.
    const fn flow(&self) -> FlowId {
        match self {
            Self::Hold(id, _)
            | Self::Freeze(id, ..)
            | Self::Part(id, _)
            | Self::Restore(id)
            | Self::Place(id)
            | Self::Discard(id, _)
            | Self::Look(id, _) => id.flow,
            Self::Thaw(flow)
            | Self::Lose(flow)
            | Self::Release(flow)
            | Self::EndHalfBorn(flow)
            | Self::Forget(flow)
            | Self::PutBack(flow, _) => *flow,
        }
    }
}

impl Job {
    /// Whether it waits for nobody: then the next one may come before what it has said.
    const fn is_quick(&self) -> bool {
        match self {
            Self::Hold(..)
            | Self::Freeze(..)
            | Self::Part(..)
            | Self::Restore(_)
            | Self::Place(_)
            | Self::Release(_) => true,
            Self::Thaw(_)
            | Self::Lose(_)
            | Self::Discard(..)
            | Self::EndHalfBorn(_)
            | Self::Forget(_)
            | Self::Look(..)
            | Self::PutBack(..) => false,
        }
    }
}

impl Jobs {
    /// The next one, waited for so long if there is none; until there is something to
    /// look at.
    pub(super) fn next(
        &mut self,
        work: &Work<(ShareId, Job)>,
        pause: Duration,
    ) -> Result<(ShareId, Job), RecvTimeoutError> {
        if !self.has_more(work) {
            if self.is_last {
                return Err(RecvTimeoutError::Disconnected);
            }
            work.sleep(Some(pause), &[]);
            self.has_more(work);
        }
        self.is_rung = false;
        let next = self.urgent.pop_front().or_else(|| self.others.pop_front());
        next.ok_or(RecvTimeoutError::Timeout)
    }

    /// Whether there is something to do, or to look at, already.
    fn has_more(&mut self, work: &Work<(ShareId, Job)>) -> bool {
        self.is_rung |= work.was_rung();
        loop {
            match work.next() {
                Ok((share, job)) => self.add(share, job),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.is_last = true;
                    break;
                }
            }
        }
        self.is_rung || !(self.urgent.is_empty() && self.others.is_empty())
    }

    /// What is urgent follows from words of a peer that were said after everything
    /// that it needs had been done here: it overtakes nothing of its own connection's.
    fn add(&mut self, share: ShareId, job: Job) {
        let queue = match job {
            Job::Part(..) | Job::Restore(_) | Job::Place(_) => &mut self.urgent,
            // It is silent, but for what was to be done with it before.
            Job::Thaw(flow) | Job::Lose(flow) if !self.waits(flow) => &mut self.urgent,
            Job::Hold(..)
            | Job::Freeze(..)
            | Job::Thaw(_)
            | Job::Lose(_)
            | Job::Release(_)
            | Job::Discard(..)
            | Job::EndHalfBorn(_)
            | Job::Forget(_)
            | Job::Look(..)
            | Job::PutBack(..) => &mut self.others,
        };
        queue.push_back((share, job));
    }

    /// Whether something that is not urgent is to be done with a connection.
    fn waits(&self, flow: FlowId) -> bool {
        self.others.iter().any(|(_, job)| job.flow() == flow)
    }
}

/// The thread's share of the world.
pub(super) struct Worker {
    pub(super) places: Places,
    pub(super) waiting: Waiting,
    pub(super) apps: Apps,
    pub(super) kernel: Kernel,
    pub(super) speech: Speech,
    pub(super) terms: Terms,
    pub(super) leaving: Leaving,
    pub(super) arriving: Arriving,
    pub(super) returned: Vec<Returned>,
    pub(super) debts: Debts,
    /// Connections that were taken from a server's accept queue.
    pub(super) queued: BTreeMap<FlowKey, Queued>,
    pub(super) swept: MonoTime,
}

impl Worker {
    /// Until the driver is gone.
    /// Gives back what can't be made again, see [`Kit`].
    pub(super) fn run(mut self, work: &Work<(ShareId, Job)>) -> Kit {
        self.work(work);
        Kit {
            view: self.kernel.view,
            waiting: self.waiting,
        }
    }

    fn work(&mut self, work: &Work<(ShareId, Job)>) {
        prefer("gw-handoff", Urgency::Handoffs);
        let mut queue = Jobs::default();
        loop {
            let idle = self.leaving.departures.is_empty() && self.arriving.offered.is_empty();
            let busy = !(idle && self.waiting.is_empty());
            let pause = match (busy, self.debts.owed.is_empty() && self.returned.is_empty()) {
                (true, _) => GLANCE,
                (false, false) => debts::LOOK,
                (false, true) => SWEEP,
            };
            let pause = pause.min(self.until_give_back(clock::now()));
            match queue.next(work, pause) {
                Ok((share, job)) => {
                    if !job.is_quick() {
                        self.speech.speak();
                    }
                    // Packets are our kernel's, wherever their connection is going.
                    if !matches!(job, Job::PutBack(..)) {
                        self.end_departure(job.flow());
                    }
                    self.carry_out(share, job);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.finish(),
            }
            self.look_after_departures();
            // The peer waits for these words, and the clients with it.
            self.speech.speak_soon(queue.has_more(work));
            self.offer_placed();
            self.waiting.sort();
            self.look_after_offers();
            let now = clock::now();
            self.send_back(now);
            self.pay_debts(now);
            self.give_back_queued(now);
            self.sweep(now);
            self.speech.speak_soon(queue.has_more(work));
        }
    }

    /// What waits for servers is waited for: an offered socket would end with this
    /// thread, and its client would hear that.
    fn finish(&mut self) {
        for flow in self.leaving.departures.flows() {
            self.end_departure(flow);
        }
        self.speech.speak();
        for (flow, offer) in std::mem::take(&mut self.arriving.offered) {
            if let Err(reason) = self.apps.wait_for(offer) {
                self.tell_closed(flow.key, reason.as_str());
            }
        }
        self.empty_hands();
        self.speech.speak();
    }

    fn carry_out(&mut self, share: ShareId, job: Job) {
        match job {
            Job::Hold(id, origin) => {
                let result = self.hold(id, origin);
                self.report(share, HandoffReport::Held(id, result));
            }
            Job::Freeze(id, to, iss) => {
                self.leaving
                    .departures
                    .add(Departure { share, id, to, iss })
            }
            Job::Part(id, part) => self.note_part(id, &part),
            Job::Restore(id) => {
                let result = self.restore(id);
                self.report(share, HandoffReport::Restored(id, result));
            }
            Job::Place(id) => self.place(share, id),
            Job::Thaw(flow) => self.thaw(flow),
            Job::Lose(flow) => self.lose(flow),
            Job::Release(flow) => self.release(flow),
            Job::Discard(id, how) => self.discard(share, id, how),
            Job::EndHalfBorn(flow) => self.end_half_born(flow),
            Job::Forget(flow) => self.forget(flow),
            Job::Look(id, from) => self.look(share, id, from),
            Job::PutBack(flow, packet) => {
                if super::waiting::flow_of(&packet) != Some(flow.key) {
                    return;
                }
                if self.is_over(flow) {
                    return self.tell_dropped(flow, 1);
                }
                self.waiting.put_back(&packet);
            }
        }
    }

    pub(super) fn report(&mut self, share: ShareId, report: HandoffReport) {
        self.speech.words.report(share, report);
    }

    /// The state of a frozen connection, as much at a time as a message holds.
    pub(super) fn send(&mut self, share: ShareId, id: HandoffId, to: PeerId) {
        let Some(frozen) = self.leaving.frozen.get_mut(&id.flow) else {
            return;
        };
        let bytes = std::mem::take(&mut frozen.bytes);
        let mut parts = bytes.chunks(MAX_INPUT_LEN).peekable();
        while let Some(part) = parts.next() {
            let (last, part) = (parts.peek().is_none(), part.to_vec());
            self.say(share, id, to, HandoffStep::State { last, part });
        }
    }

    pub(super) fn say(&mut self, share: ShareId, id: HandoffId, to: PeerId, step: HandoffStep) {
        let message = Message::Handoff(HandoffMessage {
            share: self.terms.within.get(&share).copied().unwrap_or(share),
            epoch: Epoch::NONE,
            id,
            step,
        });
        self.speech.words.message(to, message);
    }

    fn forget(&mut self, flow: FlowId) {
        self.arriving.begun.remove(&flow);
        self.stop_sending_back(flow);
        self.waiting.end(flow.key);
        self.places.remove(flow);
    }

    pub(super) fn send_on(&self, flow: FlowId, to: MacAddr) {
        if let Err(error) = self.places.away_again(flow, to) {
            tracing::error!(flow = %flow.key, error = %error, "not forwarded");
        }
    }
}

#[cfg(test)]
mod tests {
    use godwit_wire::{FlowEpoch, FlowKey, SeqNumber};

    use super::*;
    use crate::wake;

    fn id(port: u16) -> HandoffId {
        let flow = FlowId {
            key: FlowKey {
                client: format!("10.9.0.10:{port}").parse().expect("an address"),
                service: "10.9.0.100:80".parse().expect("an address"),
            },
            irs: SeqNumber(7),
        };
        let epoch = FlowEpoch(1);
        HandoffId { flow, epoch }
    }

    /// A thousand that are to come waited in front of one that was silent.
    #[test]
    fn what_a_client_waits_for_is_done_first() {
        let (orders, work) = wake::queue().expect("a descriptor");
        let mut queue = Jobs::default();
        for job in [
            Job::Hold(id(1), None),
            Job::Release(id(2).flow),
            Job::Part(id(3), Vec::new()),
            Job::Restore(id(3)),
            Job::Hold(id(4), None),
            Job::Place(id(5)),
            Job::Thaw(id(6).flow),
            // Nothing overtakes what was to be done with its own connection.
            Job::Thaw(id(4).flow),
        ] {
            orders.give((ShareId(0), job)).expect("it is open");
        }
        let mut done = Vec::new();
        while let Ok((_, job)) = queue.next(&work, Duration::ZERO) {
            done.push(match job {
                Job::Part(id, _) | Job::Restore(id) | Job::Place(id) | Job::Hold(id, _) => id.flow,
                Job::Release(flow) | Job::Thaw(flow) => flow,
                Job::Freeze(..)
                | Job::Lose(_)
                | Job::Discard(..)
                | Job::EndHalfBorn(_)
                | Job::Forget(_)
                | Job::Look(..)
                | Job::PutBack(..) => panic!("none was given"),
            });
        }
        assert_eq!(done, [3, 3, 5, 6, 1, 2, 4, 4].map(|port| id(port).flow));
    }

    /// Whoever has looked whether there is more to do has heard the bell, too.
    #[test]
    fn a_bell_is_not_missed() {
        let (orders, work) = wake::queue().expect("a descriptor");
        let mut queue = Jobs::default();
        work.wake().ring();
        assert!(queue.has_more(&work));
        let long = Duration::from_secs(60);
        let next = queue.next(&work, long).map(drop);
        assert_eq!(next, Err(RecvTimeoutError::Timeout), "to look around");
        assert!(!queue.has_more(&work));
        // What was given before the end is done first.
        let job = Job::Forget(id(1).flow);
        orders.give((ShareId(0), job)).expect("it is open");
        drop(orders);
        assert!(queue.next(&work, long).is_ok());
        let next = queue.next(&work, long).map(drop);
        assert_eq!(next, Err(RecvTimeoutError::Disconnected));
    }
}
