//! How loaded this server is, for services whose new connections may begin elsewhere
//! (`[service.policy]`): measured twenty times a second, written down for the data path
//! (`gw_steer.h`), and told to the other servers in a note of the link (`gw_note.h`).
//!
//! A load is in percent, the greatest of three: the pressure on the processors (PSI, the part
//! of the time in which something had to wait for one), the accept queue of the service, and
//! the sockets of TCP in use against as many as the file calls full. The data path looks at the
//! accept queue by itself, too, at each SYN. While all processes stand still that listen, it
//! is 100.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use godwit_bpf::{MapError, Steering, SteeringTable};
use godwit_core::MonoTime;
use godwit_sock::Listeners;
use godwit_wire::{Endpoint, MacAddr, ShareId};

use super::Driver;
use crate::config::{Config, PolicyConfig};
use crate::files;

/// How often it is measured. The data path believes a load for ten times as long.
const TICK: Duration = Duration::from_millis(50);

/// As `GW_ETH_P_NOTE`, `GW_NOTE_LOAD` and `GW_NOTE_VERSION`.
const NOTE: [u8; 4] = [0x88, 0xb5, 2, 1];

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
    stalls: Stalls,
    /// As it was measured last.
    load: Option<u8>,
}

/// The time for which something had to wait for a processor.
#[derive(Debug, Default)]
struct Stalls {
    /// When it was read last, and what it was.
    last: Option<(MonoTime, Duration)>,
    /// That it can't be read was said.
    is_lost: bool,
}

impl Loads {
    pub(super) fn new(config: &Config, now: MonoTime) -> Self {
        // Connections begin in a node's own share.
        let own = config.own_shares().filter(|(id, _)| !config.is_ward(*id));
        let services = own.filter_map(|(share, service)| {
            let policy = service.policy.clone()?;
            Some(Weighed {
                share,
                addresses: service.addresses.clone(),
                program: number(config, &policy),
                policy,
                stalls: Stalls::default(),
                load: None,
            })
        });
        Self {
            due: now,
            services: services.collect(),
        }
    }

    /// When [`Driver::weigh`] wants to be called.
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
        let cpu = self.stalls.measure(&self.policy.pressure, now);
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

impl Stalls {
    fn measure(&mut self, path: &Path, now: MonoTime) -> u8 {
        let total = match read_stalls(path) {
            Ok(total) => total,
            Err(error) => {
                if !std::mem::replace(&mut self.is_lost, true) {
                    let path = path.display();
                    tracing::warn!(%path, %error, "the pressure on the processors is not known");
                }
                self.last = None;
                return 0;
            }
        };
        self.is_lost = false;
        let Some((at, before)) = self.last.replace((now, total)) else {
            return 0;
        };
        let span = now.since(at).as_micros();
        let stalled = total.saturating_sub(before).as_micros();
        let percent = (stalled * 100).checked_div(span).unwrap_or(0);
        u8::try_from(percent.min(100)).unwrap_or(100)
    }
}

impl Driver {
    /// Measures, writes down and tells the load of the services.
    pub(super) fn weigh(&mut self, now: MonoTime) {
        self.loads.due = now.saturating_add(TICK);
        let paused: BTreeSet<_> = self.node.pauses().collect();
        for service in &mut self.loads.services {
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
            if let Err(error) = self.datapath.steering.set(service.share, steering) {
                tracing::error!(error = %error, "where connections begin can't be written");
            }
            let Some(address) = service.addresses.first() else {
                continue;
            };
            for mac in self.placing.macs(service.share) {
                let told = self.frames.send(&note(mac, self.mac, load, *address));
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

/// A number in percent of a full one.
fn part(number: u32, full: u32) -> u8 {
    let percent = (u64::from(number) * 100)
        .checked_div(full.into())
        .unwrap_or(100);
    u8::try_from(percent.min(100)).unwrap_or(100)
}

/// `some ... total=MICROSECONDS` (Documentation/accounting/psi.rst).
fn read_stalls(path: &Path) -> io::Result<Duration> {
    let text = files::read_text(path)?;
    stalls(&text).ok_or_else(|| io::Error::other("no pressure stall information"))
}

fn stalls(text: &str) -> Option<Duration> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let total = some.split_once("total=")?.1;
    total.trim().parse().ok().map(Duration::from_micros)
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
        let text = "some avg10=4.16 avg60=4.47 avg300=2.89 total=4822307404\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=17\n";
        assert_eq!(stalls(text), Some(Duration::from_micros(4_822_307_404)));
        assert_eq!(stalls("full avg10=0.00 total=17\n"), None);
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

    /// Half of the time something waited; then the file is lost.
    #[test]
    fn pressure_is_what_was_waited_since_the_last_look() {
        let folder = std::env::temp_dir().join(format!("godwit-psi-{}", std::process::id()));
        fs::write(&folder, "some total=1000000\n").expect("there is room");
        let at = |ms| MonoTime::ZERO.saturating_add(Duration::from_millis(ms));
        let mut it = Stalls::default();
        assert_eq!(it.measure(&folder, at(0)), 0, "nothing to compare with");
        fs::write(&folder, "some total=1025000\n").expect("there is room");
        assert_eq!(it.measure(&folder, at(50)), 50);
        fs::write(&folder, "some total=2000000\n").expect("there is room");
        assert_eq!(it.measure(&folder, at(100)), 100);
        fs::remove_file(&folder).expect("it is there");
        assert_eq!(it.measure(&folder, at(150)), 0);
        assert!(it.is_lost);
    }
}
