//! The `[[service]]` sections.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use godwit_bpf::{LogMode, Verification};
use godwit_wire::{MAX_INPUT_LEN, MacAddr, NodeName, ShareId};

use super::error::{ConfigError, Problem};
use super::keyword::{
    Failback, Front, Gate, OnDivergence, OnLag, OnProcessExit, Reprotect, Snapshots, Standby, Tap,
    Unread,
};
use super::mask::Masks;
use super::policy::{self, PolicyConfig};
use super::reader::{Item, Place, Section};
use super::rule::{self, RuleConfig, RulePlaces};
use super::units::{Bytes, Fraction, show_bytes, show_duration};
use super::value::FromValue;

/// More than a client's two shortest retransmission time-outs (200 and 400 ms
/// on Linux) and a round trip, see docs/adr/0006.
const LAG_LIMIT: Duration = Duration::from_millis(700);

/// A server that needs longer for an answer than its like on the other node is
/// not told from one that answers less.
const DIVERGENCE_LIMIT: Duration = Duration::from_secs(2);

/// What `godwit bench` does not notice.
const VERIFY: Fraction = Fraction::from_percent(1);

/// Of sequence numbers a quarter; so much output between two snapshots is said again
/// in seconds.
const KEPT_LEASH: u32 = 256 << 20;

/// So a node that fails now and then costs its clients two stalls a minute at most.
const FAILBACK_AFTER: Duration = Duration::from_secs(60);

/// As long as TIME-WAIT: before that hardly any connection is over without its target's
/// having said so.
pub(super) const FORWARD_IDLE: Duration = Duration::from_secs(60);

fn default_mask() -> Vec<String> {
    vec!["Date".to_owned()]
}

/// One `[[service]]`: an address and port that Godwit cares for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceConfig {
    /// Its name, unique in the file.
    pub name: NodeName,
    /// Where clients reach it, both families; IPv4 never as mapped.
    pub addresses: Vec<SocketAddr>,
    /// Who stands before its servers.
    pub front: Front,
    /// How the standby keeps up.
    pub standby: Standby,
    /// With `standby = "snapshot"`: when the standby gets them.
    pub snapshots: Snapshots,
    /// Without twins: how connections go to other servers.
    pub handoff: HandoffConfig,
    /// How the standby sees the client's segments.
    pub tap: Tap,
    /// What the client may be told that it has delivered.
    pub gate: Gate,
    /// The node that owns it when nobody else does.
    pub primary: NodeName,
    /// The node that takes over; at most one in this version. If its connections
    /// move one by one: where they can go, besides the primary.
    pub backups: Vec<NodeName>,
    /// What happens when the owner's server process dies.
    pub on_process_exit: OnProcessExit,
    /// How far twins may be behind.
    pub lag: LagConfig,
    /// How far twins may say something else.
    pub divergence: DivergenceConfig,
    /// Whether a returning primary becomes the owner again by itself.
    pub failback: Failback,
    /// How long it must have been in sync for that.
    pub failback_after: Duration,
    /// From where on a client's input is kept for a standby that comes later.
    pub reprotect: Reprotect,
    /// How much of it is kept of one connection, in bytes.
    pub reprotect_cap: u32,
    /// By which server requests are served best.
    pub rules: Vec<RuleConfig>,
    /// Where connections begin, if that is to be looked at.
    pub policy: Option<PolicyConfig>,
}

/// How connections of a service without twins go to other servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandoffConfig {
    /// What becomes of those that nobody has read from.
    pub unread: Unread,
    /// How long the client of one that was handed over may be silent before it is asked
    /// whether there is still one to forward for.
    pub forward_idle: Duration,
}

/// How far twins of a service may be behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LagConfig {
    /// What happens to a flow whose twin is too far behind.
    pub on_lag: OnLag,
    /// How far a twin may be behind before the owner is slowed, in bytes.
    pub leash: u32,
    /// The longest that an acknowledgement may be held back.
    pub lag_limit: Duration,
}

/// How far twins of a service may say something else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DivergenceConfig {
    /// What happens to a flow whose twin does.
    pub on_divergence: OnDivergence,
    /// How long a twin may have said less or more than its owner.
    pub divergence_limit: Duration,
    /// How much of the output is compared byte for byte.
    pub verify: Fraction,
    /// Headers whose values may differ.
    pub mask: Vec<String>,
}

impl ServiceConfig {
    /// Whether a node is its primary or backup.
    pub fn has_member(&self, node: NodeName) -> bool {
        self.primary == node || self.backups.contains(&node)
    }

    /// Whether its connections go to other servers one by one, without twins.
    pub const fn moves(&self) -> bool {
        match (self.standby, self.snapshots) {
            (Standby::Snapshot, Snapshots::Lazy) | (Standby::None, _) => true,
            (Standby::Snapshot, Snapshots::Eager) | (Standby::Shadow | Standby::Replay, _) => false,
        }
    }

    /// Whether there is to be a server with what its owner has.
    pub fn has_standby(&self) -> bool {
        !self.moves() && !self.backups.is_empty()
    }

    /// Whether each of its servers has connections of its own behind a director, with
    /// twins at the next of them, the last one's at the first.
    pub const fn is_ring(&self) -> bool {
        matches!(
            (self.standby, self.front),
            (Standby::Shadow, Front::Director)
        )
    }

    /// Whether each of its servers has a share of its own.
    pub const fn is_divided(&self) -> bool {
        self.moves() || self.is_ring()
    }

    /// The number of the share of the server `home`: that of the service where it has one.
    pub fn share_of(&self, home: NodeName) -> ShareId {
        if self.is_divided() {
            ShareId::of_home(self.name.as_str(), home)
        } else {
            ShareId::of_service(self.name.as_str())
        }
    }

    /// Who may take over the share of the server `home`.
    pub fn standbys_of(&self, home: NodeName) -> Vec<NodeName> {
        if self.moves() {
            return Vec::new();
        }
        if !self.is_ring() {
            return self.backups.clone();
        }
        let members: Vec<_> = self.members().collect();
        let after = members.iter().skip_while(|it| **it != home).skip(1);
        let next = after.chain(&members).next();
        next.filter(|next| **next != home)
            .copied()
            .into_iter()
            .collect()
    }

    /// Whether that is a director, which wants to know where connections are.
    pub fn is_directed(&self) -> bool {
        self.front == Front::Director
    }

    /// Whether somebody before its servers gives each of them connections, so that none of
    /// them answers for its addresses on the link.
    pub fn is_fronted(&self) -> bool {
        self.front != Front::None
    }

    /// All servers that its connections can be on, the primary first.
    pub fn members(&self) -> impl Iterator<Item = NodeName> {
        [self.primary]
            .into_iter()
            .chain(self.backups.iter().copied())
    }

    /// Whether its servers hand connections to each other in the data path.
    pub const fn is_placed(&self) -> bool {
        !self.rules.is_empty() || self.policy.is_some()
    }

    /// Whether connections of servers that know nothing of Godwit go, too.
    pub const fn moves_unread(&self) -> bool {
        match self.handoff.unread {
            Unread::Move => self.moves(),
            Unread::Stay => false,
        }
    }

    /// Whether its twins are kept where their servers' snapshots are, and served by
    /// nobody before a takeover (ADR 18).
    pub const fn is_kept(&self) -> bool {
        matches!(
            (self.standby, self.snapshots),
            (Standby::Snapshot, Snapshots::Eager)
        )
    }

    /// Along how many paths a standby has to prove that twins are born there, one for
    /// each address; 0 without twins.
    pub fn paths(&self) -> u8 {
        if self.moves() {
            return 0;
        }
        u8::try_from(self.addresses.len()).unwrap_or(u8::MAX)
    }

    /// How far a twin may be behind. One that is kept is where the latest snapshot
    /// is, and what follows is said again: the owner need not wait for it.
    pub const fn leash_in_force(&self) -> u32 {
        if self.is_kept() {
            KEPT_LEASH
        } else {
            self.lag.leash
        }
    }

    /// Whether acknowledgements are gated: not without a standby that acknowledges.
    pub const fn gate_in_force(&self) -> Gate {
        if self.moves() { Gate::Off } else { self.gate }
    }

    /// What the data path keeps of a client's input.
    pub fn log_mode(&self) -> LogMode {
        if self.gate_in_force() == Gate::Off {
            return LogMode::Off;
        }
        match self.reprotect {
            Reprotect::Off => LogMode::Off,
            // A new twin begins at a snapshot.
            Reprotect::Connection | Reprotect::Request if self.is_kept() => LogMode::Latest,
            Reprotect::Connection => LogMode::Connection,
            Reprotect::Request => LogMode::Request,
        }
    }

    /// The group address that a multicast tap uses on the link: locally
    /// administered, and the same on all nodes.
    pub fn group(&self) -> Option<MacAddr> {
        if self.tap != Tap::Multicast {
            return None;
        }
        let [a, b, c, d] = match self.addresses.first()?.ip() {
            IpAddr::V4(v4) => v4.octets(),
            IpAddr::V6(v6) => {
                let [.., a, b, c, d] = v6.octets();
                [a, b, c, d]
            }
        };
        Some(MacAddr([0x03, 0x67, a, b, c, d]))
    }

    /// What the data path compares.
    pub fn verification(&self) -> Verification {
        // What a kept twin says is not what its owner says.
        let verify = if self.is_kept() {
            Fraction::from_percent(0)
        } else {
            self.divergence.verify
        };
        Verification {
            part: verify.of_2_32(),
            masks: self.divergence.mask.clone(),
        }
    }

    /// Its addresses without ports, each once.
    pub fn ips(&self) -> Vec<IpAddr> {
        let mut ips: Vec<_> = self.addresses.iter().map(SocketAddr::ip).collect();
        ips.sort_unstable();
        ips.dedup();
        ips
    }
}

/// Where the parts of a service stood that are checked against others.
#[derive(Debug, Clone)]
pub(super) struct ServicePlaces {
    pub(super) title: String,
    pub(super) name: Place,
    pub(super) addresses: Vec<Place>,
    pub(super) front: Place,
    pub(super) standby: Place,
    pub(super) tap: Place,
    pub(super) primary: Place,
    pub(super) backups: Place,
    pub(super) failback: Place,
    pub(super) rules: Vec<RulePlaces>,
    pub(super) policy: Place,
}

fn leash(section: &mut Section<'_>) -> Result<u32, ConfigError> {
    let allowed = Bytes(64 << 10)..Bytes(1 << 30);
    let leash = section.ranged("leash", Bytes(4 << 20), allowed, show_bytes)?;
    Ok(u32::try_from(leash.value.0).expect("ranged() allows at most 1 GiB"))
}

fn lag_limit(section: &mut Section<'_>) -> Result<Duration, ConfigError> {
    let limit = section.ranged(
        "lag_limit",
        LAG_LIMIT,
        Duration::from_millis(1)..Duration::from_secs(60),
        show_duration,
    )?;
    Ok(limit.value)
}

pub(super) fn read(
    mut section: Section<'_>,
) -> Result<(ServiceConfig, ServicePlaces), ConfigError> {
    let name = section.required::<NodeName>("name")?;
    section.rename(format!("service \"{}\"", name.value));
    let addresses = read_addresses(&mut section)?;
    let front = keyword(&mut section, "front", Front::None)?;
    let standby = keyword(&mut section, "standby", Standby::Shadow)?;
    let tap = keyword(&mut section, "tap", Tap::Mirror)?;
    let primary = section.required::<NodeName>("primary")?;
    let backups = section.optional::<Vec<Item<NodeName>>>("backups")?;
    let backups = backups.unwrap_or_else(|| Item {
        value: Vec::new(),
        at: section.at(),
    });
    let leash = leash(&mut section)?;
    let lag_limit = lag_limit(&mut section)?;
    let (failback, failback_after) = read_failback(&mut section)?;
    let (rules, rule_places) = read_rules(&mut section)?;
    let (policy, policy_at) = read_policy(&mut section)?.unzip();
    let verify = section.optional::<Fraction>("verify")?;
    let service = ServiceConfig {
        name: name.value,
        addresses: addresses.value.iter().map(|item| item.value).collect(),
        front: front.value,
        standby: standby.value,
        snapshots: keyword(&mut section, "snapshots", Snapshots::Lazy)?.value,
        handoff: HandoffConfig {
            unread: keyword(&mut section, "unread", Unread::Stay)?.value,
            forward_idle: forward_idle(&mut section)?,
        },
        tap: tap.value,
        gate: keyword(&mut section, "gate", Gate::Ack)?.value,
        primary: primary.value,
        backups: backups.value.iter().map(|item| item.value).collect(),
        on_process_exit: keyword(&mut section, "on_process_exit", OnProcessExit::Takeover)?.value,
        lag: LagConfig {
            on_lag: keyword(&mut section, "on_lag", OnLag::Demote)?.value,
            leash,
            lag_limit,
        },
        divergence: DivergenceConfig {
            on_divergence: keyword(&mut section, "on_divergence", OnDivergence::Demote)?.value,
            divergence_limit: divergence_limit(&mut section)?,
            verify: verify.map_or(VERIFY, |item| item.value),
            mask: read_mask(&mut section)?,
        },
        failback: failback.value,
        failback_after,
        reprotect: keyword(&mut section, "reprotect", Reprotect::Connection)?.value,
        reprotect_cap: reprotect_cap(&mut section)?,
        rules,
        policy,
    };
    let places = ServicePlaces {
        title: section.title().to_owned(),
        name: name.at,
        addresses: addresses
            .value
            .iter()
            .map(|item| item.at.or(addresses.at))
            .collect(),
        front: front.at,
        standby: standby.at,
        tap: tap.at,
        primary: primary.at,
        backups: backups.at,
        failback: failback.at,
        rules: rule_places,
        policy: policy_at.unwrap_or_else(|| section.at()),
    };
    section.finish()?;
    Ok((service, places))
}

fn read_addresses(section: &mut Section<'_>) -> Result<Item<Vec<Item<SocketAddr>>>, ConfigError> {
    let addresses = section.required::<Vec<Item<SocketAddr>>>("address")?;
    if addresses.value.is_empty() {
        let title = section.title().to_owned();
        let problem = Problem::NoAddress { section: title };
        return Err(section.error(addresses.at, problem));
    }
    Ok(addresses)
}

fn divergence_limit(section: &mut Section<'_>) -> Result<Duration, ConfigError> {
    let limit = section.ranged(
        "divergence_limit",
        DIVERGENCE_LIMIT,
        Duration::from_millis(100)..Duration::from_secs(60),
        show_duration,
    )?;
    Ok(limit.value)
}

fn read_failback(section: &mut Section<'_>) -> Result<(Item<Failback>, Duration), ConfigError> {
    let failback = keyword(section, "failback", Failback::Manual)?;
    let after = section.ranged(
        "failback_after",
        FAILBACK_AFTER,
        Duration::from_secs(1)..Duration::from_secs(3600),
        show_duration,
    )?;
    Ok((failback, after.value))
}

fn read_rules(
    section: &mut Section<'_>,
) -> Result<(Vec<RuleConfig>, Vec<RulePlaces>), ConfigError> {
    let title = section.title().to_owned();
    let rules = section.tables("rule")?.into_iter();
    let read: Result<Vec<_>, _> = rules.map(|rule| rule::read(&title, rule)).collect();
    Ok(read?.into_iter().unzip())
}

fn read_policy(section: &mut Section<'_>) -> Result<Option<(PolicyConfig, Place)>, ConfigError> {
    let title = section.title().to_owned();
    let table = section.table("policy")?;
    table.map(|table| policy::read(&title, table)).transpose()
}

fn forward_idle(section: &mut Section<'_>) -> Result<Duration, ConfigError> {
    let idle = section.ranged(
        "forward_idle",
        FORWARD_IDLE,
        Duration::from_secs(1)..Duration::from_secs(3600),
        show_duration,
    )?;
    Ok(idle.value)
}

fn read_mask(section: &mut Section<'_>) -> Result<Vec<String>, ConfigError> {
    let mask = section.optional::<Masks>("mask")?;
    Ok(mask.map_or_else(default_mask, |item| item.value.0))
}

fn reprotect_cap(section: &mut Section<'_>) -> Result<u32, ConfigError> {
    let cap = section.ranged(
        "reprotect_cap",
        Bytes(64 << 10),
        Bytes(1 << 10)..Bytes(MAX_INPUT_LEN as u64),
        show_bytes,
    )?;
    Ok(u32::try_from(cap.value.0).expect("ranged() allows at most 512 KiB"))
}

fn keyword<T: FromValue>(
    section: &mut Section<'_>,
    key: &'static str,
    default: T,
) -> Result<Item<T>, ConfigError> {
    let item = section.optional(key)?;
    Ok(item.unwrap_or_else(|| Item {
        value: default,
        at: section.at(),
    }))
}
