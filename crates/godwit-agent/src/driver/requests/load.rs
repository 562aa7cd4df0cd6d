//! How loaded this server is, for services whose new connections may begin elsewhere
//! (`[service.policy]`): measured twenty times a second, written down for the data path
//! (`gw_steer.h`), and told to the other servers in a note of the link (`gw_note.h`).
//!
//! A load is in percent, the greatest of three: the pressure on the processors (PSI, the part
//! of the time in which something had to wait for one), the accept queue of the service, and
//! the sockets of TCP in use against as many as the file calls full. The data path looks at the
//! accept queue by itself, too, at each SYN. While all processes stand still that listen, it
//! is 100.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use godwit_bpf::{MapError, Steering, SteeringTable, TagKey};
use godwit_core::MonoTime;
use godwit_sock::Listeners;
use godwit_wire::{Endpoint, EthernetHeader, MacAddr, ShareId, TagKind, tag_of};

use super::super::ground::Ground;
use super::placing::Placing;
use super::stalls::Stalls;
use crate::config::{Config, PolicyConfig};
use crate::tagging::Tagging;

/// How often it is measured. The data path believes a load for ten times as long.
const TICK: Duration = Duration::from_millis(50);

/// As `GW_ETH_P_NOTE`, `GW_NOTE_LOAD` and `GW_NOTE_VERSION`.
const NOTE: [u8; 4] = [0x88, 0xb5, 2, 1];

/// The version with an order and a tag (`GW_NOTE_TAGGED`).
const TAGGED: u8 = 2;

/// Services whose load counts.
#[derive(Debug)]
pub(super) struct Loads {
    due: MonoTime,
    services: Vec<Weighed>,
}

/// One of them.
#[derive(Debug)]
struct Weighed {
    share: ShareId,
    addresses: Vec<SocketAddr>,
    policy: PolicyConfig,
    /// The number of its program in the data path.
    program: Option<u8>,
    stalls: Arc<Stalls>,
    /// As it was measured last.
    load: Option<u8>,
}

impl Loads {
    pub(super) fn new(config: &Config, now: MonoTime) -> Self {
        // Connections begin in a node's own share.
        let own = config.own_shares().filter(|(id, _)| !config.is_ward(*id));
        let mut files = BTreeMap::new();
        let services = own.filter_map(|(share, service)| {
            let policy = service.policy.clone()?;
            let stalls = files.entry(policy.pressure.clone());
            let stalls = stalls.or_insert_with_key(|path| Arc::new(Stalls::of(path, now)));
            Some(Weighed {
                share,
                addresses: service.addresses.clone(),
                program: number(config, &policy),
                policy,
                stalls: stalls.clone(),
                load: None,
            })
        });
        Self {
            due: now,
            services: services.collect(),
        }
    }

    /// When [`Loads::weigh`] wants to be called.
    pub(super) fn due(&self) -> Option<MonoTime> {
        (!self.services.is_empty()).then_some(self.due)
    }

    /// The load of a service in percent, if it counts.
    pub(super) fn of(&self, share: ShareId) -> Option<u8> {
        self.services.iter().find(|it| it.share == share)?.load
    }
}

impl Weighed {
    fn measure(&mut self, now: MonoTime) -> u8 {
        let cpu = self.stalls.now(now);
        let full = self.policy.connections;
        let sockets = full.map(|full| part(sockets_in_use(), full));
        cpu.max(sockets.unwrap_or(0)).max(self.queued())
    }

    /// How full the fullest accept queue is; where nobody listens it is.
    fn queued(&self) -> u8 {
        let queues = self.addresses.iter().map(|at| Listeners::queues(*at));
        let queues = queues.filter_map(Result::ok).flatten();
        queues
            .map(|queue| part(queue.waiting, queue.most))
            .max()
            .unwrap_or(100)
    }
}

impl Loads {
    /// Measures, writes down and tells the load of the services.
    pub(super) fn weigh(
        &mut self,
        ground: &Ground,
        (placing, tagging): (&Placing, &Tagging),
        now: MonoTime,
    ) {
        self.due = now.saturating_add(TICK);
        let paused: BTreeSet<_> = ground.node.pauses().collect();
        for service in &mut self.services {
            let load = match service.measure(now) {
                // Its clients wait, however few they are.
                _ if paused.contains(&service.share) => 100,
                load => load,
            };
            service.load = Some(load);
            let steering = Steering {
                load,
                at: now.since(MonoTime::ZERO),
                redirect: service.policy.redirect,
                margin: service.policy.margin,
                program: service.program,
            };
            if let Err(error) = ground
                .datapath
                .requests
                .steering
                .set(service.share, steering)
            {
                tracing::error!(error = %error, "where connections begin can't be written");
            }
            let Some(address) = service.addresses.first() else {
                continue;
            };
            let order = u64::try_from(now.since(MonoTime::ZERO).as_nanos()).unwrap_or(u64::MAX);
            for mac in placing.macs(service.share) {
                let mut frame = note(mac, ground.voice.mac, load, *address);
                if let Some(key) = tagging.key_for(mac) {
                    prove(&mut frame, order, key);
                }
                let told = ground.voice.frames.send(&frame);
                if let Err(error) = told {
                    tracing::debug!(error = %error, "a server does not hear of our load");
                }
            }
        }
    }
}

/// From here on connections begin by this agent's word; its programs have their numbers.
pub(super) fn introduce(config: &Config, table: &SteeringTable) -> Result<(), MapError> {
    for (share, service) in config.own_shares() {
        let steering = service.policy.as_ref().map(|policy| Steering {
            redirect: policy.redirect,
            margin: policy.margin,
            program: number(config, policy),
            ..Steering::default()
        });
        table.set(share, steering.unwrap_or_default())?;
    }
    Ok(())
}

/// The number of a service's program in the data path.
fn number(config: &Config, policy: &PolicyConfig) -> Option<u8> {
    let wanted = policy.program.as_ref()?;
    let programs = config.programs();
    let at = programs.iter().position(|known| *known == wanted)?;
    u8::try_from(at + 1).ok()
}

/// What another server is told.
fn note(to: MacAddr, from: MacAddr, load: u8, service: SocketAddr) -> Vec<u8> {
    let service = Endpoint::from(service);
    let mut frame = Vec::with_capacity(42);
    frame.extend(to.0);
    frame.extend(from.0);
    frame.extend(NOTE);
    frame.push(load);
    frame.extend([0; 5]);
    frame.extend(service.addr.octets());
    frame.extend(service.port.to_be_bytes());
    frame.extend([0; 2]);
    frame
}

/// The same note with its order, by which it counts once, and its tag (`gw_tagged_load`).
fn prove(frame: &mut Vec<u8>, order: u64, key: TagKey) {
    let header = EthernetHeader::LEN;
    if let Some(version) = frame.get_mut(header + 1) {
        *version = TAGGED;
    }
    frame.extend([0; 4]);
    frame.extend(order.to_be_bytes());
    let said = frame.get(header..).unwrap_or_default();
    let tag = tag_of(TagKind::Load, said, key);
    frame.extend(tag.to_be_bytes());
}

/// A number in percent of a full one.
fn part(number: u32, full: u32) -> u8 {
    let percent = (u64::from(number) * 100)
        .checked_div(full.into())
        .unwrap_or(100);
    u8::try_from(percent.min(100)).unwrap_or(100)
}

/// Sockets of TCP in use in this network namespace, both families.
fn sockets_in_use() -> u32 {
    let count = |path, key| {
        let text = fs::read_to_string(path).unwrap_or_default();
        in_use(&text, key).unwrap_or(0)
    };
    count("/proc/thread-self/net/sockstat", "TCP: inuse ")
        + count("/proc/thread-self/net/sockstat6", "TCP6: inuse ")
}

fn in_use(text: &str, key: &str) -> Option<u32> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_words_are_understood() {
        let text = "sockets: used 7\nTCP: inuse 31 orphan 0 tw 0 alloc 11 mem 56\n";
        assert_eq!(in_use(text, "TCP: inuse "), Some(31));
        assert_eq!(in_use(text, "TCP6: inuse "), None);
        assert!(sockets_in_use() < 1 << 20, "the kernel's own file is read");
    }

    #[test]
    fn a_load_is_a_part_of_a_full_one() {
        let cases = [(0, 10, 0), (5, 10, 50), (11, 10, 100), (3, 0, 100)];
        for (number, full, percent) in cases {
            assert_eq!(part(number, full), percent, "{number} of {full}");
        }
    }
}
