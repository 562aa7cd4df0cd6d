//! Where a director is on the link. Its interface may be made anew, or get another MAC
//! address, while it runs: the driver is loaded again, a bond has another port.

use std::io;
use std::time::Duration;

use godwit_bpf::director::Director;
use godwit_core::MonoTime;
use godwit_sock::{FrameSender, Interface};
use godwit_wire::MacAddr;

use crate::config::Config;
use crate::driver::addresses::{self, announcements};

/// When the link is told where the services' addresses are, after the start: switches and
/// routers may miss the first time, or be about to hear an earlier director's last.
const ANNOUNCEMENTS: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_secs(1),
];

/// How soon is looked again for an interface that is not there.
const AGAIN: Duration = Duration::from_secs(1);

pub(super) struct Place {
    interface: Interface,
    frames: FrameSender,
    /// `None`: the program is in the interface's path, and the services' addresses may be on
    /// this machine. Otherwise they are not, and this is when to look again.
    lost: Option<MonoTime>,
    /// Whether it is to have the addresses; another director has them otherwise.
    holds: bool,
    /// When the link was told first where the addresses are.
    since: MonoTime,
    announced: usize,
}

/// What became of the interface since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    /// Nothing.
    Same,
    /// It has gone, or the program can't be in its path: nothing is directed.
    Lost,
    /// It is another one, or has another MAC address.
    Changed,
}

impl Place {
    pub(super) const fn new(
        interface: Interface,
        frames: FrameSender,
        holds: bool,
        now: MonoTime,
    ) -> Self {
        Self {
            interface,
            frames,
            lost: None,
            holds,
            since: now,
            announced: 0,
        }
    }

    pub(super) fn into_frames(self) -> FrameSender {
        self.frames
    }

    pub(super) const fn mac(&self) -> MacAddr {
        self.interface.mac
    }

    pub(super) const fn ifindex(&self) -> u32 {
        self.interface.index
    }

    /// Whether frames are directed.
    pub(super) const fn is_attached(&self) -> bool {
        self.lost.is_none()
    }

    /// Whether frames are directed, and come and go: the link is there.
    pub(super) const fn is_able(&self) -> bool {
        self.is_attached() && self.interface.running
    }

    /// Whether the services' addresses are on this machine, while frames are directed.
    pub(super) const fn holds(&self) -> bool {
        self.holds
    }

    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.frames.send(frame)
    }

    /// Takes the services' addresses, and has the link hear of it; or leaves them to another
    /// director.
    pub(super) fn hold(&mut self, config: &Config, holds: bool, now: MonoTime) -> io::Result<()> {
        let ips: Vec<_> = config.directed().flat_map(|it| it.ips()).collect();
        if holds {
            addresses::add(self.interface.index, &ips).map_err(|(_, error)| error)?;
            (self.since, self.announced) = (now, 0);
        } else {
            addresses::remove(&ips)?;
        }
        self.holds = holds;
        self.handle_timeout(config, now);
        Ok(())
    }

    /// When [`handle_timeout`](Self::handle_timeout) or a look is due.
    pub(super) fn poll_timeout(&self) -> Option<MonoTime> {
        self.lost.or_else(|| self.announcement())
    }

    /// Whether it is time to look for an interface that was not there.
    pub(super) fn is_missed(&self, now: MonoTime) -> bool {
        self.lost.is_some_and(|again| again <= now)
    }

    fn announcement(&self) -> Option<MonoTime> {
        let after = ANNOUNCEMENTS.get(self.announced).filter(|_| self.holds)?;
        Some(self.since.saturating_add(*after))
    }

    /// Says where the addresses are, if that is due.
    pub(super) fn handle_timeout(&mut self, config: &Config, now: MonoTime) {
        if !self.is_attached() || self.announcement().is_none_or(|due| due > now) {
            return;
        }
        self.announced += 1;
        let ips = config.directed().flat_map(|service| service.ips());
        for frame in ips.flat_map(|ip| announcements(ip, self.interface.mac)) {
            if let Err(error) = self.frames.send(&frame) {
                tracing::warn!(%error, "address not announced");
            }
        }
    }

    /// Looks what the interface is now, and brings the program into its path.
    ///
    /// The addresses are there only while the program is: without it this machine's kernel
    /// would reset every connection.
    pub(super) fn follow(
        &mut self,
        config: &Config,
        programs: &mut Director,
        now: MonoTime,
    ) -> Followed {
        let was_lost = self.lost.is_some();
        let found = Interface::by_name(config.node.interface.as_str());
        let attached = found.map_err(|error| error.to_string()).and_then(|found| {
            self.move_to(found, config, programs)
                .map_err(|error| error.to_string())
        });
        match attached {
            Ok(is_other) if is_other || was_lost => {
                self.lost = None;
                (self.since, self.announced) = (now, 0);
                Followed::Changed
            }
            Ok(_) => Followed::Same,
            Err(error) => {
                self.lost = Some(now.saturating_add(AGAIN));
                if was_lost {
                    return Followed::Same;
                }
                tracing::error!(error, "nothing is directed");
                self.withdraw(config);
                Followed::Lost
            }
        }
    }

    /// Whether the interface is another one than before.
    fn move_to(
        &mut self,
        found: Interface,
        config: &Config,
        programs: &mut Director,
    ) -> Result<bool, Box<dyn std::error::Error>> {
        let is_other = (found.index, found.mac) != (self.interface.index, self.interface.mac);
        programs.follow(found.index, found.mac)?;
        self.frames.follow(found.index)?;
        // An interface that was down has lost its IPv6 addresses.
        for service in config.directed().filter(|_| self.holds) {
            addresses::add(found.index, &service.ips()).map_err(|(_, error)| error)?;
        }
        self.interface = found;
        Ok(is_other)
    }

    fn withdraw(&self, config: &Config) {
        let ips: Vec<_> = config.directed().flat_map(|it| it.ips()).collect();
        if let Err(error) = addresses::remove(&ips) {
            tracing::error!(%error, "this machine still has the services' addresses");
        }
    }
}
