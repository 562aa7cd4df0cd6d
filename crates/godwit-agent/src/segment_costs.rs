//! What a segment costs in a server's data path, for `godwit bench datapath`: the kernel runs
//! the hooks outside of any traffic (`BPF_PROG_TEST_RUN`).
//!
//! There are four protected connections: of each address family one that this machine owns,
//! and one of which it has the twin. Their peers are played here, so a connection goes on
//! with each segment, as a real one does. What the owner mirrors leaves the interface.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use godwit_bpf::{
    Datapath, Expiry, Front, Hook, Keepers, LogMode, Moves, Phase, PinDir, Settings, ShareEntry,
};
use godwit_sock::{Interface, netns_cookie};
use godwit_wire::{
    Endpoint, Epoch, EthernetHeader, Generation, MacAddr, Role, Segment, SeqNumber, ShareId,
    TcpFlags, TcpOptions, TimeStamps,
};
use serde::{Deserialize, Serialize};

use crate::agent_error::AgentError;
use crate::costs_error::CostsError;
use crate::machine_error::MachineError;

/// Segments of which a cost is the mean: the clock's steps are long.
const BATCH: u16 = 16;
/// So many batches are not counted: the log of each connection is full then (64 KiB), as it
/// is with most of a long transfer.
const WARM_UP: u32 = 50;

const DATA: [u8; 100] = [b'x'; 100];
const CLIENT_FIRST: u32 = 0xffff_f000;
const SERVICE_FIRST: u32 = 0x7000;
const CLIENT_PORT: u16 = 40_000;
const OWNED_PORT: u16 = 80;
const TWIN_PORT: u16 = 81;

const CLIENT_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0xc, 1]);
const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0xb, 1]);

/// The verdicts of a hook (`linux/bpf.h`).
const NEXT: i32 = -1;
const DROP: i32 = 2;
const REDIRECT: i32 = 7;

/// Nanoseconds of a segment, the mean of a batch; a number per batch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SegmentCosts {
    /// By name, as `owner.in.v4`: measured twice, in turns.
    pub segments: BTreeMap<String, [Vec<f64>; 2]>,
    /// Instructions that the verifier has looked at, by program.
    pub verified: BTreeMap<String, u32>,
}

/// Measures on an interface of this network namespace, which gets the programs for as long.
/// Their pins are in the folder `pins`; if this process is killed, its caller removes it.
///
/// # Errors
/// If the programs can't be loaded, the kernel does not run them, or a hook does to a
/// segment what it does to none of a protected connection.
pub fn segment_costs(
    interface: &str,
    pins: &str,
    batches: u32,
) -> Result<SegmentCosts, AgentError> {
    let interface = Interface::by_name(interface).map_err(MachineError::from)?;
    let cookie = netns_cookie().map_err(MachineError::Socket)?;
    let settings = Settings {
        ifindex: interface.index,
        mac: interface.mac,
        others: Default::default(),
        node_v4: None,
        node_v6: None,
        netns_cookie: cookie,
        max_flows: 64,
        policies: Vec::new(),
        tunnel: None,
    };
    let pins = PinDir::open(pins)?;
    let (datapath, _events) = Datapath::open(&settings, pins).map_err(MachineError::from)?;
    let bench = Bench {
        datapath,
        interface,
        started: Instant::now(),
    };
    let costs = bench.measure(batches);
    // Also if that failed.
    bench.datapath.detach()?;
    Ok(costs?)
}

struct Bench {
    datapath: Datapath,
    interface: Interface,
    started: Instant,
}

/// A connection, as far as it has come.
struct Connection {
    role: Role,
    v6: bool,
    client: u32,
    service: u32,
}

/// What is put through a hook.
struct Frame<'a> {
    from_service: bool,
    /// MAC addresses: to, from.
    link: [MacAddr; 2],
    flags: TcpFlags,
    data: &'a [u8],
}

impl Bench {
    fn measure(&self, batches: u32) -> Result<SegmentCosts, CostsError> {
        self.play()?;
        let mut connections = Vec::new();
        for v6 in [false, true] {
            connections.push(self.connect(Role::Owner, v6)?);
            connections.push(self.connect(Role::Shadow, v6)?);
        }
        let mut costs = SegmentCosts {
            verified: self.verified()?,
            ..SegmentCosts::default()
        };
        for batch in 0..WARM_UP + batches {
            for arm in [0, 1] {
                for connection in &mut connections {
                    for (name, cost) in self.batch(connection)? {
                        let arms = costs.segments.entry(name).or_default();
                        if batch >= WARM_UP {
                            arms[arm].push(cost);
                        }
                    }
                }
            }
        }
        self.check()?;
        Ok(costs)
    }

    /// One share of which this machine is the owner, one of which it is the standby.
    fn play(&self) -> Result<(), CostsError> {
        let mut services = Vec::new();
        for role in [Role::Owner, Role::Shadow] {
            let share = ShareId(u32::from(port(role)));
            self.datapath.share_slots.take(share.0)?;
            for v6 in [false, true] {
                services.push((service(role, v6), share));
            }
        }
        self.datapath.services.replace(&services, &[])?;
        for role in [Role::Owner, Role::Shadow] {
            let entry = ShareEntry {
                role,
                epoch: Epoch::new(1, 1),
                generation: Generation(1),
                peer_mac: PEER_MAC,
                group: None,
                leash: 4 << 20,
                lag_limit: Duration::from_secs(3600),
                gate: true,
                takeovers: 0,
                turn: 0,
                expiry: Expiry::Never,
                log_mode: LogMode::Connection,
                log_cap: 64 << 10,
                front: Front::Nobody,
                moves: Moves::Not,
                continued: Generation::NONE,
                keepers: Keepers::default(),
            };
            let share = ShareId(u32::from(port(role)));
            self.datapath.shares.set(share, &entry)?;
        }
        Ok(())
    }

    /// A handshake, and the first ACK of the twin.
    fn connect(&self, role: Role, v6: bool) -> Result<Connection, CostsError> {
        let mut connection = Connection {
            role,
            v6,
            client: CLIENT_FIRST,
            service: SERVICE_FIRST,
        };
        let syn_ack = TcpFlags::SYN.with(TcpFlags::ACK);
        let heard = if role == Role::Owner { NEXT } else { DROP };
        let syn = self.of_client(role, TcpFlags::SYN, &[]);
        self.pass(&connection, &syn, Hook::Tap, heard)?;
        connection.client = connection.client.wrapping_add(1);
        if role == Role::Owner {
            let answer = self.to_client(syn_ack, &[]);
            self.pass(&connection, &answer, Hook::Gate, NEXT)?;
        } else {
            self.pass(&connection, &self.of_peer(syn_ack), Hook::Tap, DROP)?;
        }
        connection.service = connection.service.wrapping_add(1);
        let third = self.of_client(role, TcpFlags::ACK, &[]);
        self.pass(&connection, &third, Hook::Tap, heard)?;
        if role == Role::Owner {
            self.pass(&connection, &self.of_peer(TcpFlags::ACK), Hook::Tap, DROP)?;
        } else {
            let greeting = self.to_client(TcpFlags::ACK, &[]);
            self.pass(&connection, &greeting, Hook::Gate, REDIRECT)?;
        }
        Ok(connection)
    }

    /// The client says something, the twin has it; of an owner the service answers.
    fn batch(&self, connection: &mut Connection) -> Result<Vec<(String, f64)>, CostsError> {
        let role = connection.role;
        let mut sums: [(&str, Duration); 3] = match role {
            Role::Owner => ["owner.in", "owner.twin", "owner.out"],
            Role::Shadow | Role::None => ["shadow.in", "shadow.out", ""],
        }
        .map(|name| (name, Duration::ZERO));
        let len = u32::try_from(DATA.len()).expect("it is short");
        for _ in 0..BATCH {
            let said = self.of_client(role, TcpFlags::ACK, &DATA);
            sums[0].1 += self.pass(connection, &said, Hook::Tap, NEXT)?;
            connection.client = connection.client.wrapping_add(len);
            if role == Role::Owner {
                let twin = self.of_peer(TcpFlags::ACK);
                sums[1].1 += self.pass(connection, &twin, Hook::Tap, DROP)?;
                let answer = self.to_client(TcpFlags::ACK, &DATA);
                sums[2].1 += self.pass(connection, &answer, Hook::Gate, NEXT)?;
                connection.service = connection.service.wrapping_add(len);
            } else {
                let twin = self.to_client(TcpFlags::ACK, &[]);
                sums[1].1 += self.pass(connection, &twin, Hook::Gate, REDIRECT)?;
            }
        }
        let family = if connection.v6 { "v6" } else { "v4" };
        let costs = sums.into_iter().filter(|(name, _)| !name.is_empty());
        let costs = costs.map(|(name, sum)| {
            let each = sum.as_secs_f64() * 1e9 / f64::from(BATCH);
            (format!("{name}.{family}"), each)
        });
        Ok(costs.collect())
    }

    fn of_client<'a>(&self, role: Role, flags: TcpFlags, data: &'a [u8]) -> Frame<'a> {
        let mirrored = role != Role::Owner;
        Frame {
            from_service: false,
            link: [
                self.interface.mac,
                if mirrored { PEER_MAC } else { CLIENT_MAC },
            ],
            flags,
            data,
        }
    }

    fn of_peer(&self, flags: TcpFlags) -> Frame<'static> {
        Frame {
            from_service: true,
            link: [self.interface.mac, PEER_MAC],
            flags,
            data: &[],
        }
    }

    fn to_client<'a>(&self, flags: TcpFlags, data: &'a [u8]) -> Frame<'a> {
        Frame {
            from_service: true,
            link: [CLIENT_MAC, self.interface.mac],
            flags,
            data,
        }
    }

    /// Puts a segment through a hook, which does to it what is expected: what that takes.
    fn pass(
        &self,
        connection: &Connection,
        frame: &Frame<'_>,
        hook: Hook,
        expected: i32,
    ) -> Result<Duration, CostsError> {
        let bytes = self.emit(connection, frame);
        let trial = self
            .datapath
            .try_frame(hook, self.interface.index, &bytes)
            .map_err(|error| CostsError::TestRun(error.into()))?;
        if trial.verdict != expected {
            let said = format!(
                "{hook:?} has verdict {} for {:?} of {:?}, not {expected}",
                trial.verdict, frame.flags, connection.role
            );
            return Err(CostsError::TestRun(said.into()));
        }
        Ok(trial.took)
    }

    fn emit(&self, connection: &Connection, frame: &Frame<'_>) -> Vec<u8> {
        let ends = [
            client(connection.v6),
            service(connection.role, connection.v6),
        ];
        let (client, service) = (connection.client, connection.service);
        let is_syn = frame.flags.contains(TcpFlags::SYN);
        let ack = frame.flags.contains(TcpFlags::ACK);
        let (source, destination, seq, other) = if frame.from_service {
            (ends[1], ends[0], service, client)
        } else {
            (ends[0], ends[1], client, service)
        };
        let clock = u32::try_from(self.started.elapsed().as_millis()).unwrap_or(u32::MAX);
        let segment = Segment {
            source,
            destination,
            seq: SeqNumber(seq),
            ack: SeqNumber(if ack { other } else { 0 }),
            flags: frame.flags,
            wnd: 0x4000,
            options: TcpOptions {
                mss: is_syn.then_some(1460),
                wscale: is_syn.then_some(7),
                sack_permitted: is_syn,
                time_stamps: Some(TimeStamps {
                    ts_val: clock.wrapping_add(1000),
                    ts_ecr: if ack { clock.wrapping_add(1000) } else { 0 },
                }),
            },
            payload: frame.data,
        };
        let packet = segment.to_packet().expect("it is short");
        EthernetHeader::frame_ip(frame.link[0], frame.link[1], &packet)
    }

    /// All connections are what they were to be, or the costs are of something else.
    fn check(&self) -> Result<(), CostsError> {
        let mut phases = BTreeMap::new();
        self.datapath.flows.for_each(|flow| {
            let count = phases.entry(format!("{:?}", flow.phase)).or_insert(0_u32);
            *count += 1;
        })?;
        let expected = [Phase::Protected, Phase::Twin].map(|phase| (format!("{phase:?}"), 2));
        if phases != BTreeMap::from(expected) {
            let said = format!("the connections are {phases:?}");
            return Err(CostsError::TestRun(said.into()));
        }
        Ok(())
    }

    fn verified(&self) -> Result<BTreeMap<String, u32>, CostsError> {
        let verified = self.datapath.verified();
        verified.map_err(|error| CostsError::TestRun(error.into()))
    }
}

const fn port(role: Role) -> u16 {
    match role {
        Role::Owner => OWNED_PORT,
        Role::Shadow | Role::None => TWIN_PORT,
    }
}

/// Addresses that nobody has (RFC 5737, RFC 3849).
fn service(role: Role, v6: bool) -> Endpoint {
    endpoint(v6, 1, port(role))
}

fn client(v6: bool) -> Endpoint {
    endpoint(v6, 2, CLIENT_PORT)
}

fn endpoint(v6: bool, host: u8, port: u16) -> Endpoint {
    let address = if v6 {
        IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into()))
    } else {
        IpAddr::from(Ipv4Addr::new(192, 0, 2, host))
    };
    Endpoint::from(SocketAddr::new(address, port))
}
