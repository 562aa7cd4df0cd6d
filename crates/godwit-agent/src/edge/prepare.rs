//! What comes before anything is changed: files, rights, the control socket's place.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::StartError;
use super::sockets::{Sockets, patiently};
use crate::apps::AppSocket;
use crate::births;
use crate::config::{Config, PeerRole};
use crate::control::{Place, PlaceError};
use crate::doctor::{self, LiveHost};
use crate::events::EventLog;
use crate::heartbeat::draw_secret;
use crate::membership::{Life, terms};
use crate::peers::Identity;
use crate::reload::{Fresh, kept};
use crate::votes::{LastWord, Votes};

/// What can be known and taken before anything is changed.
#[derive(Debug)]
pub struct Prepared {
    /// The configuration.
    pub config: Arc<Config>,
    /// What sets this start of the agent apart from any other.
    pub life: Life,
    /// What the process before this one has voted for.
    pub(crate) votes: Votes,
    /// The file that was named, if this life begins with the one before.
    pub(super) waits: Option<Arc<Config>>,
    pub(super) identity: Identity,
    pub(super) events: EventLog,
    pub(super) place: Place,
    pub(super) sockets: Sockets,
}

/// What a life leaves to the next one in the same process.
#[derive(Debug)]
pub(crate) struct Left {
    pub(super) place: Place,
    pub(super) sockets: Sockets,
    pub(super) events: EventLog,
    pub(super) identity: Identity,
    pub(super) incarnation: u64,
    /// `None` if it was not said.
    pub(crate) votes: Option<LastWord>,
}

impl Left {
    /// What it named itself with: for a life with the same file.
    pub(crate) fn identity(&self) -> Identity {
        self.identity.clone()
    }
}

impl Prepared {
    /// Makes the socket that server processes connect to, while there is the right
    /// to give it to a group.
    ///
    /// # Errors
    /// If there is no such group, or it can't be made.
    pub(crate) fn app_socket(&self) -> Result<AppSocket, StartError> {
        let group = self.config.node.app_group.as_deref();
        Ok(AppSocket::bind(&self.place.app_socket(), group)?)
    }

    /// Reads configuration and certificates, and takes the control socket's place.
    ///
    /// # Errors
    /// If anything is wrong; nothing has been changed then.
    pub fn load(config: &Path, wanted: PeerRole) -> Result<Self, StartError> {
        let (config, waits) = kept::choose(Config::load(config)?);
        let config = Arc::new(config);
        let name = config.node.name;
        let role = config.own_peer().role;
        if role != wanted {
            return Err(StartError::OtherRole {
                path: config.path.clone(),
                name,
                role,
                wanted,
            });
        }
        if role == PeerRole::Server {
            doctor::preflight(&LiveHost)?;
        }
        // Before anything is changed.
        let identity = Identity::load(&config.tls, name)?;
        if let Err(error) = identity.judge(&config.tls) {
            // An owner goes on to serve; facts say it as long as it is so.
            tracing::warn!("peers refuse a link with these files: {error}");
        }
        let cookie = netns_cookie()?;
        let run_dir = &config.node.run_dir;
        let is_taken = |error: &PlaceError| matches!(error, PlaceError::Taken { .. });
        let place = patiently(|| Place::take(run_dir, cookie, name), is_taken)?;
        let sockets = Sockets::bind(&config)?;
        let events = EventLog::new(&config);
        let fresh = (config, identity);
        let prepared = Self::at(fresh, (place, sockets, events), (None, None))?;
        Ok(Self { waits, ..prepared })
    }

    /// The same for another life in this process: `config` and what it names have been read
    /// and checked, and the place and the sockets are this process's own.
    ///
    /// # Errors
    /// If the kernel refuses something.
    pub(crate) fn again(fresh: Fresh, left: Left) -> Result<Self, StartError> {
        let events = left.events.go_on(&fresh.0);
        let before = (Some(left.incarnation), left.votes);
        Self::at(fresh, (left.place, left.sockets, events), before)
    }

    fn at(
        (config, identity): Fresh,
        (place, sockets, events): (Place, Sockets, EventLog),
        (before, votes): (Option<u64>, Option<LastWord>),
    ) -> Result<Self, StartError> {
        let name = config.node.name;
        let kernel = |what| move |source| StartError::Kernel { what, source };
        let cookie = netns_cookie()?;
        let secret = draw_secret()
            .map_err(|_| io::Error::other("getrandom failed"))
            .map_err(kernel("the kernel gives no random numbers"))?;
        let (votes, quiet_until) =
            Votes::find(&config.node.run_dir, cookie, name, &terms(&config), votes)
                .map_err(kernel("can't read the runtime directory"))?;
        let run_dir = &config.node.run_dir;
        let incarnation = births::take(run_dir, cookie, name, (before, incarnation()))
            .map_err(kernel("can't read the runtime directory"))?;
        Ok(Self {
            config,
            life: Life {
                incarnation,
                secret,
                quiet_until,
            },
            votes,
            waits: None,
            identity,
            events,
            place,
            sockets,
        })
    }
}

fn netns_cookie() -> Result<u64, StartError> {
    godwit_sock::netns_cookie().map_err(|source| StartError::Kernel {
        what: "can't ask which network namespace this is",
        source,
    })
}

/// The clock of day; [`births::take`] sees to it that later starts have greater ones.
pub(super) fn incarnation() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    // Nanoseconds as a fraction of 2^32: below 2^32, so the halves don't mix.
    let fraction = (u64::from(since.subsec_nanos()) << 32) / 1_000_000_000;
    (since.as_secs() << 32) | fraction
}
