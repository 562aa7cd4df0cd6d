//! A data path on a lab's machine, and frames for its hooks.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use godwit_bpf::{
    Datapath, Events, Expiry, FlowState, FlowTable, Front, Hook, Keepers, LogMode, MARK_SLIP,
    Moves, OpenError, Order, OrderError, PinDir, Policy, Settings, ShareEntry, Trial,
};
use godwit_lab::host::{Host, Network, SERVICE_V4, SERVICE_V6};
use godwit_lab::{Lab, LabOptions};
use godwit_sock::{Interface, netns_cookie};
use godwit_wire::{
    Endpoint, Epoch, EthernetHeader, FlowId, FlowKey, Generation, MacAddr, Role, Segment,
    SeqNumber, ShareId, TcpFlags, TcpOptions,
};

/// The EtherType of what servers send each other with a slip, `GW_ETH_P_SLIP`.
pub(crate) const SLIP_TYPE: [u8; 2] = [0x88, 0xb6];

/// tcx verdict: let the next program or the stack have it.
pub(crate) const NEXT: i32 = -1;
/// tcx verdict: drop.
pub(crate) const DROP: i32 = 2;
/// tcx verdict: redirect.
pub(crate) const REDIRECT: i32 = 7;

/// Initial sequence numbers in the fixtures: the client's, the service's.
pub(crate) const IRS: u32 = 0xffff_ff00;
/// See [`IRS`].
pub(crate) const ISS: u32 = 1000;

/// Window of every segment in the fixtures, not scaled; a multiple of [`MSS`].
pub(crate) const WND: u16 = 43 * MSS;

/// MSS that both sides announce in the fixtures.
pub(crate) const MSS: u16 = 1460;

/// TTL or hop limit of what one server has sent on, `GW_HOPS_MOST`.
pub(crate) const HOPS: u8 = 32;

/// The only share.
pub(crate) const SHARE: ShareId = ShareId(0x0001_0000);
/// Nodes of the fixtures, by the numbers of their names: the data path calls them 0, 1, 2.
pub(crate) const NODES: [u32; 3] = [10, 11, 12];
pub(crate) const GENERATION: Generation = Generation(1);

/// The hooks of one machine, of which frames are tried on one at a time.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) datapath: Datapath,
    pub(crate) events: Events,
    pub(crate) ifindex: u32,
}

/// Runs `work` with a data path on machine a; says why if it can't.
pub(crate) fn on_bench(work: impl FnOnce(&Bench) + Send) {
    on_bench_of(|bench, _, _| work(bench));
}

/// As [`on_bench`], with these programs of the user's own.
pub(crate) fn on_bench_with(policies: &[Policy], work: impl FnOnce(&Bench) + Send) {
    run_bench(policies, |bench, _, _| work(bench));
}

/// As [`on_bench_of`], with these programs.
pub(crate) fn on_bench_of_with(
    policies: &[Policy],
    work: impl FnOnce(&mut Bench, &Lab, &str) + Send,
) {
    run_bench(policies, work);
}

/// As [`on_bench`], for work that changes the lab; also gives the name of the
/// folder of pins.
pub(crate) fn on_bench_of(work: impl FnOnce(&mut Bench, &Lab, &str) + Send) {
    run_bench(&[], work);
}

fn run_bench(policies: &[Policy], work: impl FnOnce(&mut Bench, &Lab, &str) + Send) {
    if let Err(reason) = Lab::available() {
        let _ = writeln!(std::io::stderr(), "skipped: {reason}");
        return;
    }
    let lab = Lab::new(LabOptions::default()).expect("a lab can be built");
    let pins = format!("fixture-{}", lab.id());
    let folder = format!("/sys/fs/bpf/godwit/{pins}");
    lab.remove_at_end(folder.as_ref())
        .expect("it is remembered");
    let run = || {
        let mut bench = Bench::try_open(&pins, policies).expect("the programs load");
        work(&mut bench, &lab, &pins);
        bench.datapath.detach().expect("the programs are removed");
    };
    lab.a().enter(run).expect("the machine is there");
}

/// What a back-end tells a director of a client's connection (`gw_note.h`).
pub(crate) fn note(port: u16, v6: bool, at: MacAddr) -> Vec<u8> {
    let (client, service) = ends(port, v6);
    let mut frame = vec![0; 12];
    frame.extend([0x88, 0xb5, 1, 1]);
    frame.extend(at.0);
    frame.extend(IRS.to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(client.addr.octets());
    frame.extend(client.port.to_be_bytes());
    frame.extend(service.port.to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(service.addr.octets());
    frame.extend([0; 8]);
    frame
}

/// Whether a frame is an IPv4 packet with another header than the usual one, or an IPv6
/// packet with one more.
fn has_ip_options(frame: &[u8]) -> bool {
    match frame.get(12..14) {
        Some([0x08, 0x00]) => frame.get(14).is_some_and(|octet| octet & 0xf != 5),
        Some([0x86, 0xdd]) => matches!(frame.get(20), Some(0 | 43 | 60)),
        Some(_) | None => false,
    }
}

/// Is it what servers send each other, a packet with a slip?
pub(crate) fn is_wrapped(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&SLIP_TYPE)
}

impl Bench {
    /// Loads the programs, or takes over for those that are there.
    pub(crate) fn try_open(pins: &str, policies: &[Policy]) -> Result<Self, OpenError> {
        let interface = Interface::by_name(Network::Data.interface()).expect("it has eth0");
        let settings = Settings {
            ifindex: interface.index,
            mac: interface.mac,
            others: BTreeSet::new(),
            node_v4: Some(Host::A.v4()),
            node_v6: Some(Host::A.v6()),
            netns_cookie: netns_cookie().expect("the kernel has cookies"),
            max_flows: 8192,
            policies: policies.to_vec(),
            tunnel: None,
        };
        let pins = PinDir::open(pins).expect("bpffs is there");
        let (datapath, events) = Datapath::open(&settings, pins)?;
        for share in [SHARE, ShareId(SHARE.0 + 1)] {
            let slot = datapath.share_slots.take(share.0);
            slot.expect("it is written").expect("there is room");
        }
        for node in NODES {
            let slot = datapath.node_slots.take(node);
            slot.expect("it is written").expect("there is room");
        }
        let bench = Self {
            datapath,
            events,
            ifindex: interface.index,
        };
        bench.serve(true);
        bench.play(Role::Owner);
        Ok(bench)
    }

    /// Whether the data path knows the service's addresses. While it does not, processes
    /// of a shadow's machine may connect to them.
    pub(crate) fn serve(&self, serves: bool) {
        let services = [
            (Endpoint::from(SocketAddr::from((SERVICE_V4, 80))), SHARE),
            (Endpoint::from(SocketAddr::from((SERVICE_V6, 80))), SHARE),
        ];
        let known = if serves { &services[..] } else { &[] };
        let set = self.datapath.services.replace(known, &[]);
        set.expect("services are set");
    }

    /// Makes this machine owner, shadow or nothing of the only share; the other
    /// one is [`Host::B`].
    pub(crate) fn play(&self, role: Role) {
        self.play_with(role, GENERATION, 0);
    }

    /// As [`play`](Self::play), after the share has changed hands.
    pub(crate) fn turn(&self, role: Role, turn: u16) {
        self.play_with(role, GENERATION, turn);
    }

    /// Owner after the share has changed hands, with a standby of that generation.
    pub(crate) fn take_over(&self, generation: Generation, turn: u16) {
        self.play_with(Role::Owner, generation, turn);
    }

    /// This node stands by, in that generation.
    pub(crate) fn stand_by(&self, generation: u32) {
        self.play_with(Role::Shadow, Generation(generation), 0);
    }

    /// The standby in sync is lost: no flow is gated any more.
    pub(crate) fn lose_standby(&self) {
        self.play_with(Role::Owner, Generation::NONE, 0);
    }

    /// Another generation of the standby begins.
    pub(crate) fn gain_standby(&self, generation: Generation) {
        self.play_with(Role::Owner, generation, 0);
    }

    /// The log of the only flow, as far as it is whole.
    pub(crate) fn log(&self) -> Option<Vec<u8>> {
        let flow = self.flow();
        let read = self
            .datapath
            .twins
            .log
            .read(flow.id, flow.log, flow.log.base);
        read.expect("the map can be read")
    }

    /// Chunks of all logs.
    pub(crate) fn chunks(&self) -> usize {
        self.datapath.twins.log.chunks().expect("it can be read")
    }

    fn play_with(&self, role: Role, generation: Generation, turn: u16) {
        self.write(&Self::entry(role, generation, turn));
    }

    /// This node stands by, and twins are born where they are kept.
    pub(crate) fn keep(&self, keepers: Keepers) {
        self.write(&ShareEntry {
            keepers,
            ..Self::entry(Role::Shadow, GENERATION, 0)
        });
    }

    /// This machine owns, and keeps the latest of what clients say.
    pub(crate) fn slide(&self, generation: Generation) {
        self.write(&ShareEntry {
            log_mode: LogMode::Latest,
            ..Self::entry(Role::Owner, generation, 0)
        });
    }

    /// This machine owns without a standby, and keeps what was said since a request began.
    pub(crate) fn log_requests(&self) {
        self.write(&ShareEntry {
            log_mode: LogMode::Request,
            ..Self::entry(Role::Owner, Generation::NONE, 0)
        });
    }

    /// This machine's share of a service whose connections move one by one.
    pub(crate) fn own(&self, moves: Moves) {
        self.write(&ShareEntry {
            peer_mac: MacAddr::ZERO,
            gate: false,
            log_mode: LogMode::Off,
            moves,
            ..Self::entry(Role::Owner, Generation::NONE, 0)
        });
    }

    /// The same of one that is behind a director.
    pub(crate) fn own_behind(&self, moves: Moves) {
        self.write(&ShareEntry {
            peer_mac: MacAddr::ZERO,
            gate: false,
            log_mode: LogMode::Off,
            moves,
            front: Front::Told,
            ..Self::entry(Role::Owner, Generation::NONE, 0)
        });
    }

    /// This machine owns its share, with [`Host::B`] as its standby, and stands by for
    /// `owner`'s, both behind a director.
    pub(crate) fn make_ring(&self, ward: ShareId, owner: Host) {
        let endpoints = |share| {
            [
                SocketAddr::from((SERVICE_V4, 80)),
                SocketAddr::from((SERVICE_V6, 80)),
            ]
            .map(|address| (Endpoint::from(address), share))
        };
        let services = &self.datapath.services;
        let set = services.replace(&endpoints(SHARE), &endpoints(ward));
        set.expect("services are set");
        self.write(&ShareEntry {
            front: Front::Told,
            ..Self::entry(Role::Owner, GENERATION, 0)
        });
        self.play_ward(ward, owner, Role::Shadow);
    }

    /// What this machine is for its own share, beside `peer`.
    pub(crate) fn play_own(&self, peer: Host, role: Role) {
        self.write(&ShareEntry {
            front: Front::Told,
            peer_mac: peer.mac(Network::Data),
            ..Self::entry(role, GENERATION, 0)
        });
    }

    /// What this machine is for its ward.
    pub(crate) fn play_ward(&self, ward: ShareId, owner: Host, role: Role) {
        let turn = u16::from(role == Role::Owner);
        let entry = ShareEntry {
            front: Front::Told,
            peer_mac: owner.mac(Network::Data),
            ..Self::entry(role, GENERATION, turn)
        };
        let written = self.datapath.shares.set(ward, &entry);
        written.expect("the role is set");
    }

    /// The owner of its ward has failed.
    pub(crate) fn take_ward_over(&self, ward: ShareId, owner: Host) {
        let entry = ShareEntry {
            front: Front::Told,
            peer_mac: owner.mac(Network::Data),
            ..Self::entry(Role::Owner, Generation::NONE, 1)
        };
        let written = self.datapath.shares.set(ward, &entry);
        written.expect("the role is set");
    }

    /// Of a ring: the standby of its own share is lost.
    pub(crate) fn lose_standby_of_ring(&self) {
        self.write(&ShareEntry {
            front: Front::Told,
            ..Self::entry(Role::Owner, Generation::NONE, 0)
        });
    }

    fn entry(role: Role, generation: Generation, turn: u16) -> ShareEntry {
        ShareEntry {
            role,
            epoch: Epoch::new(1, 1),
            generation,
            peer_mac: Host::B.mac(Network::Data),
            group: None,
            leash: 4 << 20,
            lag_limit: Duration::from_secs(3600),
            gate: true,
            takeovers: 0,
            turn,
            expiry: Expiry::Never,
            log_mode: LogMode::Connection,
            log_cap: 64 << 10,
            front: Front::Nobody,
            moves: Moves::Not,
            continued: match role {
                Role::Owner => GENERATION,
                Role::Shadow | Role::None => Generation::NONE,
            },
            keepers: Keepers::default(),
        }
    }

    fn write(&self, entry: &ShareEntry) {
        let written = self.datapath.shares.set(SHARE, entry);
        written.expect("the role is set");
    }

    /// Moves the end of this machine's right to speak.
    pub(crate) fn renew(&self, expiry: Expiry) {
        let moved = self.datapath.shares.renew(SHARE, expiry);
        moved.expect("the expiry is set");
    }

    /// The only flow that the data path has.
    pub(crate) fn flow(&self) -> FlowState {
        let mut found = None;
        let scanned = self.flows().for_each(|flow| found = Some(flow));
        scanned.expect("the map can be read");
        found.expect("there is a flow")
    }

    /// Gives an order for the only flow.
    pub(crate) fn order(&self, order: Order) -> Result<(), OrderError> {
        self.datapath.orders.give(SHARE, self.flow().id, order)
    }

    /// Gives an order for a flow that may not be there.
    pub(crate) fn order_for(&self, flow: FlowId, order: Order) -> Result<(), OrderError> {
        self.datapath.orders.give(SHARE, flow, order)
    }

    /// The flows that the data path has.
    pub(crate) fn flows(&self) -> &FlowTable {
        &self.datapath.flows
    }

    /// Puts a frame through a hook: the verdict, and the reasons that were
    /// counted for it.
    pub(crate) fn pass(&self, hook: Hook, frame: &[u8]) -> (i32, Vec<String>) {
        self.pass_marked(hook, 0, frame)
    }

    /// As [`pass`](Self::pass), for a frame that carries a mark.
    pub(crate) fn pass_marked(&self, hook: Hook, mark: u32, frame: &[u8]) -> (i32, Vec<String>) {
        let before = self.counts();
        let verdict = self.put(hook, mark, frame).verdict;
        let after = self.counts();
        let counted = after.into_iter().zip(before).filter(|(a, b)| a.1 > b.1);
        let reasons = counted.map(|(reason, _)| reason.0);
        // The kernel says now and then to which groups it belongs (RFC 3810), past the gate.
        let is_stray = |reason: &String| reason == "ip_options" && !has_ip_options(frame);
        (verdict, reasons.filter(|it| !is_stray(it)).collect())
    }

    /// What a hook makes of a frame that carries a mark: if it goes on, with
    /// sound checksums.
    pub(crate) fn put(&self, hook: Hook, mark: u32, frame: &[u8]) -> Trial {
        let trial = self
            .datapath
            .try_marked_frame(hook, self.ifindex, mark, frame);
        let trial = trial.expect("the kernel runs it");
        // The kernel gives it to the same hook again, as a packet.
        if hook == Hook::Tap && is_wrapped(frame) && trial.verdict == REDIRECT {
            return self.put(hook, MARK_SLIP, &trial.frame);
        }
        // A note is no packet.
        let is_packet = trial.frame.get(12..14) == frame.get(12..14);
        if [NEXT, REDIRECT].contains(&trial.verdict) && is_packet {
            assert_sound(frame, &trial.frame);
        }
        trial
    }

    /// As [`pass`](Self::pass), without looking at reasons; `None` if the
    /// kernel takes it for no frame.
    pub(crate) fn verdict(&self, hook: Hook, frame: &[u8]) -> Option<i32> {
        let trial = self.datapath.try_frame(hook, self.ifindex, frame);
        trial.ok().map(|trial| trial.verdict)
    }

    /// Verdicts and side notes so far, by reason.
    pub(crate) fn counts(&self) -> Vec<(String, u64)> {
        let counters = self.datapath.counters.read();
        counters
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count))
            .collect()
    }

    /// A verdict and one of the reasons for it.
    pub(crate) fn expect(&self, hook: Hook, what: &str, frame: &[u8], verdict: i32, reason: &str) {
        let (got, reasons) = self.pass(hook, frame);
        assert_eq!(got, verdict, "{what}: {reasons:?}");
        assert!(
            reasons.iter().any(|r| r == reason),
            "{what}: {reasons:?}, not {reason}"
        );
    }

    /// Goes through a handshake at the owner, so that there is a gated flow.
    pub(crate) fn connect(&self, port: u16, v6: bool) {
        self.connect_with(port, v6, [TcpFlags::default(); 2]);
    }

    /// As [`connect`](Self::connect), with more flags on SYN and SYN-ACK.
    pub(crate) fn connect_with(&self, port: u16, v6: bool, more: [TcpFlags; 2]) {
        let syn = to_service(port, v6, IRS, 0, TcpFlags::SYN.with(more[0]), &[]);
        self.expect(Hook::Tap, "SYN", &syn, NEXT, "syn");
        let both = TcpFlags::SYN.with(TcpFlags::ACK).with(more[1]);
        let syn_ack = from_service(port, v6, ISS, IRS.wrapping_add(1), both, &[]);
        self.expect(Hook::Gate, "SYN-ACK", &syn_ack, NEXT, "syn_ack");
        let third = to_service(port, v6, IRS.wrapping_add(1), ISS + 1, TcpFlags::ACK, &[]);
        self.expect(Hook::Tap, "third ACK", &third, NEXT, "handshake_done");
    }
}

/// A segment of the client as the owner mirrors it to this machine.
pub(crate) fn mirrored(
    port: u16,
    v6: bool,
    (seq, ack): (u32, u32),
    flags: TcpFlags,
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = to_service(port, v6, seq, ack, flags, payload);
    frame[6..12].copy_from_slice(&Host::B.mac(Network::Data).0);
    frame
}

/// What goes on has right checksums if it came with right ones. The kernel
/// tries frames with whole checksums, which a veth never has.
fn assert_sound(came: &[u8], goes: &[u8]) {
    let packet = |frame: &[u8]| frame.get(14..).map(Segment::verify);
    if matches!(packet(came), Some(Ok(()))) {
        assert_eq!(packet(goes), Some(Ok(())), "{goes:02x?}");
    }
}

/// A connection of the client, as agents speak of it.
pub(crate) fn flow_id(port: u16, v6: bool) -> FlowId {
    let (client, service) = ends(port, v6);
    FlowId {
        key: FlowKey { client, service },
        irs: SeqNumber(IRS),
    }
}

/// The same frame, as the tap brings it from the other machine.
pub(crate) fn tapped(mut frame: Vec<u8>) -> Vec<u8> {
    frame[6..12].copy_from_slice(&Host::B.mac(Network::Data).0);
    frame
}

/// A segment of the client, framed for this machine.
pub(crate) fn to_service(
    port: u16,
    v6: bool,
    seq: u32,
    ack: u32,
    flags: TcpFlags,
    payload: &[u8],
) -> Vec<u8> {
    let (client, service) = ends(port, v6);
    let packet = packet(client, service, (seq, ack), flags, payload);
    let (a, client) = (Host::A.mac(Network::Data), Host::Client.mac(Network::Data));
    EthernetHeader::frame_ip(a, client, &packet)
}

/// A client's frame as it is sent on behind its MAC addresses: `times` servers have done so.
pub(crate) fn sent_on(frame: &[u8], v6: bool, times: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[EthernetHeader::LEN + if v6 { 7 } else { 8 }] = HOPS + 1 - times;
    summed(frame, v6)[12..].to_vec()
}

/// A segment in the service's name, out of this machine.
pub(crate) fn from_service(
    port: u16,
    v6: bool,
    seq: u32,
    ack: u32,
    flags: TcpFlags,
    payload: &[u8],
) -> Vec<u8> {
    let (client, service) = ends(port, v6);
    let packet = packet(service, client, (seq, ack), flags, payload);
    let (a, client) = (Host::A.mac(Network::Data), Host::Client.mac(Network::Data));
    EthernetHeader::frame_ip(client, a, &packet)
}

/// A segment from another port of the service address, out of this machine.
pub(crate) fn on_service_address(v6: bool, port: u16) -> Vec<u8> {
    let (client, service) = ends(40_000, v6);
    let service = Endpoint::new(service.addr, port);
    let packet = packet(service, client, (1, 1), TcpFlags::ACK, b"data");
    let (a, client) = (Host::A.mac(Network::Data), Host::Client.mac(Network::Data));
    EthernetHeader::frame_ip(client, a, &packet)
}

/// A frame of another machine in the service's name: a twin's ACK, if `from`
/// is the standby's.
pub(crate) fn twin(
    from: MacAddr,
    port: u16,
    v6: bool,
    numbers: (u32, u32),
    flags: TcpFlags,
    payload: &[u8],
) -> Vec<u8> {
    let (client, service) = ends(port, v6);
    let packet = packet(service, client, numbers, flags, payload);
    EthernetHeader::frame_ip(Host::A.mac(Network::Data), from, &packet)
}

/// Client and service of a fixture.
pub(crate) fn ends(port: u16, v6: bool) -> (Endpoint, Endpoint) {
    let (client, service): (Ipv6Addr, Ipv6Addr) = if v6 {
        (Host::Client.v6(), SERVICE_V6)
    } else {
        (
            Host::Client.v4().to_ipv6_mapped(),
            SERVICE_V4.to_ipv6_mapped(),
        )
    };
    (Endpoint::new(client, port), Endpoint::new(service, 80))
}

fn packet(
    source: Endpoint,
    destination: Endpoint,
    (seq, ack): (u32, u32),
    flags: TcpFlags,
    payload: &[u8],
) -> Vec<u8> {
    let mss = flags.contains(TcpFlags::SYN).then_some(MSS);
    let segment = Segment {
        source,
        destination,
        seq: SeqNumber(seq),
        ack: SeqNumber(ack),
        flags,
        wnd: WND,
        options: TcpOptions {
            mss,
            ..TcpOptions::default()
        },
        payload,
    };
    segment.to_packet().expect("it is short")
}

/// Puts raw option bytes, a multiple of four, in place of all options.
pub(crate) fn with_options(mut frame: Vec<u8>, v6: bool, options: &[u8]) -> Vec<u8> {
    let ip = EthernetHeader::LEN;
    let tcp = ip + if v6 { 40 } else { 20 };
    let header = usize::from(frame[tcp + 12] >> 4) * 4;
    frame.splice(tcp + 20..tcp + header, options.iter().copied());
    let words = (20 + options.len()) / 4;
    frame[tcp + 12] = u8::try_from(words << 4).expect("at most 40 bytes of options");
    let length = |from: usize| {
        u16::try_from(frame.len() - from)
            .expect("short")
            .to_be_bytes()
    };
    let (at, length) = if v6 {
        (ip + 4, length(tcp))
    } else {
        (ip + 2, length(ip))
    };
    frame[at..at + 2].copy_from_slice(&length);
    summed(frame, v6)
}

/// The same frame, its checksums made anew.
pub(crate) fn summed(mut frame: Vec<u8>, v6: bool) -> Vec<u8> {
    let ip = EthernetHeader::LEN;
    let (tcp, addresses) = match v6 {
        true => (ip + 40, ip + 8..ip + 40),
        false => (ip + 20, ip + 12..ip + 20),
    };
    if !v6 {
        frame[ip + 10..ip + 12].fill(0);
        let sum = !folded(&[&frame[ip..tcp]]);
        frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    }
    frame[tcp + 16..tcp + 18].fill(0);
    let length = u32::try_from(frame.len() - tcp).expect("short");
    let parts = [
        &frame[addresses],
        &length.to_be_bytes(),
        &6_u32.to_be_bytes(),
        &frame[tcp..],
    ];
    let sum = !folded(&parts);
    frame[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// The Internet checksum of parts that follow one another, not complemented; all but
/// the last have an even length.
fn folded(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    u16::try_from((sum & 0xffff) + (sum >> 16)).expect("it is folded")
}
