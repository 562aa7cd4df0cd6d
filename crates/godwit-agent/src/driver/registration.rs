//! Whether the server processes of services with eager snapshots have registered with this
//! agent. A process that listens and does not find the agent says nothing of its state, and
//! can't be given a connection: without it nothing is protected
//! ([`godwit_core::Node::handle_registration`]).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use godwit_core::{MonoTime, Registration};
use godwit_wire::{Endpoint, ShareId};

use super::ground::Ground;
use super::servers::listed;

/// A process looks for its agent once a second; on a busy machine later. What is in sync
/// stays so meanwhile: an agent that restarts disturbs nobody.
const GRACE: Duration = Duration::from_secs(3);

/// The addresses of services at which something listens, and no process has registered.
#[derive(Debug, Default)]
pub(super) struct Registrations(BTreeMap<ShareId, Gap>);

#[derive(Debug)]
struct Gap {
    addresses: Vec<SocketAddr>,
    since: MonoTime,
    /// People have heard of it.
    told: bool,
}

/// What people have to hear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    Missing,
    Back,
}

impl Registrations {
    /// Takes note of the addresses of a share that lack a process now.
    fn note(
        &mut self,
        share: ShareId,
        addresses: Vec<SocketAddr>,
        now: MonoTime,
    ) -> (Registration, Option<News>) {
        if addresses.is_empty() {
            let gap = self.0.remove(&share);
            let back = gap.is_some_and(|gap| gap.told).then_some(News::Back);
            return (Registration::Complete, back);
        }
        let gap = self.0.entry(share).or_insert_with(|| Gap {
            addresses: Vec::new(),
            since: now,
            told: false,
        });
        gap.addresses = addresses;
        if now.since(gap.since) < GRACE {
            return (Registration::Awaited, None);
        }
        let news = (!gap.told).then_some(News::Missing);
        gap.told = true;
        (Registration::Missing, news)
    }

    /// Whether processes may be looking for the agent just now.
    pub(super) fn awaits(&self) -> bool {
        self.0.values().any(|gap| !gap.told)
    }

    /// What `status` says of a service whose processes have not registered.
    pub(super) fn say(&self, share: ShareId, service: &str, socket: &Path) -> Option<String> {
        let gap = self.0.get(&share).filter(|gap| gap.told)?;
        let (at, socket) = (listed(&gap.addresses), socket.display());
        Some(format!(
            "service {service}: no server process of it has registered on this node at {at}, \
             so nothing is protected: its servers need libgodwit for snapshots = \"eager\", and \
             GODWIT_APP_SOCKET={socket} if that is not below /run/godwit"
        ))
    }

    /// Tells core and people how it is with a share, whose servers do not listen at `silent`.
    pub(super) fn look(
        &mut self,
        ground: &mut Ground,
        share: ShareId,
        silent: &[SocketAddr],
        now: MonoTime,
    ) {
        let Some((_, service)) = ground.config.own_shares().find(|(id, _)| *id == share) else {
            return;
        };
        if !service.is_kept() {
            return;
        }
        let apps = &ground.apps;
        let lacks = |at: &SocketAddr| !silent.contains(at) && !apps.accepts(Endpoint::from(*at));
        let addresses: Vec<_> = service.addresses.iter().copied().filter(lacks).collect();
        let told = listed(&addresses);
        let (registration, news) = self.note(share, addresses, now);
        ground.node.handle_registration(share, registration, now);
        let name = ground.shares.get(share).map(|share| share.name.as_str());
        let fields = [
            ("service", name.unwrap_or("")),
            ("addresses", told.as_str()),
        ];
        match news {
            Some(News::Missing) => {
                ground
                    .events
                    .publish_own("server_unregistered", true, fields);
            }
            Some(News::Back) => {
                let fields = fields.into_iter().take(1);
                ground
                    .events
                    .publish_own("server_registered", false, fields);
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: ShareId = ShareId(3);

    fn at(ms: u64) -> MonoTime {
        MonoTime::from_nanos(ms * 1_000_000)
    }

    fn address() -> Vec<SocketAddr> {
        vec![SocketAddr::from(([10, 9, 0, 100], 80))]
    }

    fn say(of: &Registrations) -> Option<String> {
        of.say(SHARE, "web", Path::new("/run/other/a/app.sock"))
    }

    /// Servers that listen and do not find the agent were taken for ones that export nothing,
    /// and their connections for protected.
    #[test]
    fn a_server_that_does_not_register_is_missing_soon() {
        let mut of = Registrations::default();
        let awaited = (Registration::Awaited, None);
        assert_eq!(of.note(SHARE, address(), at(1000)), awaited);
        assert_eq!(of.note(SHARE, address(), at(3999)), awaited);
        assert_eq!((of.awaits(), say(&of)), (true, None));
        let missing = (Registration::Missing, Some(News::Missing));
        assert_eq!(of.note(SHARE, address(), at(4000)), missing);
        let again = (Registration::Missing, None);
        assert_eq!(of.note(SHARE, address(), at(4500)), again);
        assert!(!of.awaits());
        let said = say(&of).expect("a warning");
        for part in [
            "service web",
            "10.9.0.100:80",
            "GODWIT_APP_SOCKET=/run/other/a/app.sock",
        ] {
            assert!(said.contains(part), "{said}");
        }
        let back = (Registration::Complete, Some(News::Back));
        assert_eq!(of.note(SHARE, Vec::new(), at(5000)), back);
        assert_eq!((of.awaits(), say(&of)), (false, None));
    }

    /// It has registered within its time: nobody hears of that.
    #[test]
    fn a_server_that_was_quick_is_none_of_the_news() {
        let mut of = Registrations::default();
        of.note(SHARE, address(), at(0));
        let complete = (Registration::Complete, None);
        assert_eq!(of.note(SHARE, Vec::new(), at(900)), complete);
        assert_eq!(of.note(SHARE, address(), at(9000)).0, Registration::Awaited);
    }
}
