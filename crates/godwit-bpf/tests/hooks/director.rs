//! A director's programs: where frames go, and that both programs and the core agree.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use godwit_bpf::PinDir;
use godwit_bpf::director::{Backend, Director, Settings, Slot, Via};
use godwit_core::director::{BackendId, FlowHash, Member, Slots, TableSize, lookup_table};
use godwit_lab::host::{Host, Network, SERVICE_V4, SERVICE_V6};
use godwit_lab::{Lab, LabOptions};
use godwit_sock::Interface;
use godwit_wire::{EthernetHeader, FlowKey, MacAddr, NodeName, TcpFlags};

use crate::bench::{ends, to_service};

mod agree;
mod forged;
mod learn;
mod posts;
mod proved;
mod reached;
mod share;
mod tunnel;

pub(crate) const ACK: TcpFlags = TcpFlags::ACK;
const SYN: TcpFlags = TcpFlags::SYN;
/// Slots of the only service.
const SIZE: u32 = 251;
pub(crate) const SEED: u64 = 0x0123_4567_89ab_cdef;
/// First byte behind the Ethernet header.
const IP: usize = EthernetHeader::LEN;
/// EtherType of notes.
const NOTE: [u8; 2] = [0x88, 0xb5];
/// Numbers of the back-ends.
pub(crate) const BACKENDS: [u16; 3] = [4, 1, 7];
/// More connections than slots, so that some share one.
const FLOWS: u16 = 600;

/// What a program says of a frame, whichever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Leave,
    Stop,
    Send,
}

/// A director on a lab's machine, its slots as the core wants them.
pub(crate) struct Bench {
    director: Director,
    ifindex: u32,
    size: TableSize,
    slots: Slots,
    members: Vec<Member>,
    gone: Vec<BackendId>,
    /// Back-ends say which connections they do not have.
    tell: bool,
}

pub(crate) fn settings(trial_flows: Option<u32>) -> Settings {
    let interface = Interface::by_name(Network::Data.interface()).expect("it has eth0");
    Settings {
        ifindex: interface.index,
        mac: interface.mac,
        via: Via::Xdp,
        table_size: size(trial_flows).get(),
        services: 2,
        max_entries: trial_flows.map_or(4096, |_| 1 << 20),
        seed: SEED,
        shares: trial_flows.is_none(),
        trial_flows,
    }
}

/// Of a figure, what it is in use.
fn size(trial_flows: Option<u32>) -> TableSize {
    let small = TableSize::new(SIZE).expect("a prime");
    trial_flows.map_or(small, |_| TableSize::DEFAULT)
}

fn mac_of(number: u16) -> MacAddr {
    let [high, low] = number.to_be_bytes();
    MacAddr([2, 0xbe, 0, 0, high, low])
}

/// As the core has it.
fn core_slot(slot: Slot) -> godwit_core::director::Slot {
    godwit_core::director::Slot {
        now: slot.now.map(BackendId),
        base: slot.base.map(BackendId),
        mixed: slot.mixed,
    }
}

pub(crate) fn on_bench(trial_flows: Option<u32>, work: impl FnOnce(&mut Bench, &str) + Send) {
    if let Err(reason) = Lab::available() {
        let _ = writeln!(std::io::stderr(), "skipped: {reason}");
        return;
    }
    let lab = Lab::new(LabOptions::default()).expect("a lab can be built");
    let pins = format!("director-{}", lab.id());
    let folder = format!("/sys/fs/bpf/godwit/{pins}");
    lab.remove_at_end(folder.as_ref())
        .expect("it is remembered");
    let run = || {
        let mut bench = Bench::open(&pins, trial_flows);
        work(&mut bench, &pins);
        bench.director.detach().expect("the programs are removed");
    };
    lab.a().enter(run).expect("the machine is there");
}

impl Bench {
    fn open(pins: &str, trial_flows: Option<u32>) -> Self {
        let settings = settings(trial_flows);
        let pins = PinDir::open(pins).expect("bpffs is there");
        let director = Director::open(&settings, pins).expect("the programs load");
        assert_eq!(director.via(), Via::Xdp, "a veth knows XDP");
        let fronts = [false, true].map(|v6| (ends(1, v6).1, 0));
        director.fronts.replace(&fronts).expect("services are set");
        let members = BACKENDS.map(|number| Member {
            name: NodeName::new(&format!("node-{number}")).expect("a name"),
            id: BackendId(number),
            weight: 1,
        });
        let mut bench = Self {
            director,
            ifindex: settings.ifindex,
            size: size(trial_flows),
            slots: Slots::new(settings.table_size as usize),
            members: members.to_vec(),
            gone: Vec::new(),
            tell: true,
        };
        bench.change();
        bench
    }

    /// Has the data path know what the core knows.
    fn change(&mut self) {
        let gone = &self.gone;
        let live: Vec<_> = self
            .members
            .iter()
            .filter(|member| !gone.contains(&member.id))
            .copied()
            .collect();
        for member in &self.members {
            let backend = Backend {
                name: member.name,
                mac: mac_of(member.id.0),
                tunnel: None,
                there: !gone.contains(&member.id),
                drained: member.weight == 0,
                followed: false,
                gone: false,
                tells: self.tell,
            };
            let table = &self.director.backends;
            table.set(member.id.0, &backend).expect("there is room");
            let read = table.get(member.id.0).expect("it can be read");
            assert_eq!(read, Some(backend));
        }
        let table = lookup_table(self.size, &live);
        let changed = self.slots.change(&table, |id| !gone.contains(&id));
        let raw = |slot: godwit_core::director::Slot| Slot {
            now: slot.now.map(|id| id.0),
            base: slot.base.map(|id| id.0),
            mixed: slot.mixed,
        };
        let changed = changed.into_iter().map(|at| (at, raw(self.slots.get(at))));
        self.director
            .slots
            .set(0, changed)
            .expect("they are written");
        let written = self.director.slots.all(0).expect("it can be read");
        let wanted: Vec<_> = self.slots.all().iter().map(|slot| raw(*slot)).collect();
        assert_eq!(written, wanted);
    }

    fn slot(&self, key: &FlowKey) -> u32 {
        FlowHash::new(key, SEED).slot(self.size)
    }

    fn counts(&self) -> Vec<(String, u64)> {
        let counters = self.director.counters.read();
        let owned = |(name, count): (&str, u64)| (name.to_owned(), count);
        counters.into_iter().map(owned).collect()
    }

    /// What a program does with a frame, the reasons, and the frame that goes out. The
    /// program is in the path too: what the lab's machines say meanwhile is counted, so a
    /// frame with several reasons is tried again.
    fn put(&self, via: Via, frame: &[u8]) -> (Act, Vec<String>, Vec<u8>) {
        let tries = (0..20).map(|_| self.put_once(via, frame));
        let mut tries = tries.skip_while(|(_, reasons, _)| reasons.len() != 1);
        tries.next().expect("one reason")
    }

    fn put_once(&self, via: Via, frame: &[u8]) -> (Act, Vec<String>, Vec<u8>) {
        let before = self.counts();
        let trial = self.director.try_frame(via, self.ifindex, frame);
        let trial = trial.expect("the kernel runs it");
        let act = match (via, trial.verdict) {
            (Via::Xdp, 2) | (Via::Tcx, -1) => Act::Leave,
            (Via::Xdp, 1) | (Via::Tcx, 2) => Act::Stop,
            (Via::Xdp, 3) | (Via::Tcx, 7) => Act::Send,
            other => panic!("{other:?}"),
        };
        let counted = self.counts().into_iter().zip(before);
        let counted = counted.filter(|(now, then)| now.1 > then.1);
        (act, counted.map(|(now, _)| now.0).collect(), trial.frame)
    }

    pub(crate) fn expect(&self, what: &str, frame: &[u8], act: Act, reason: &str) {
        for via in [Via::Xdp, Via::Tcx] {
            let (got, reasons, out) = self.put(via, frame);
            assert_eq!(
                (got, &*reasons),
                (act, &[reason.to_owned()][..]),
                "{what}, {via:?}"
            );
            if act != Act::Send {
                assert_eq!(out, frame, "{what}, {via:?}: it is left alone");
            }
        }
    }

    /// The same of a SYN whose connection begins: who is asked knows of none.
    fn begun(&self, via: Via, syn: &[u8]) -> (Option<u16>, Vec<String>) {
        let (to, reasons) = self.sent(via, syn);
        if reasons != ["directed_asked"] {
            return (to, reasons);
        }
        self.sent(via, &unknown(to.expect("it was sent"), syn))
    }

    /// To whom a frame goes; all else of it stays.
    fn sent(&self, via: Via, frame: &[u8]) -> (Option<u16>, Vec<String>) {
        let (act, reasons, out) = self.put(via, frame);
        if act != Act::Send {
            return (None, reasons);
        }
        let own = Host::A.mac(Network::Data).0;
        assert_eq!(out[6..12], own, "a switch must not learn the client here");
        // Only how it is called, if it is a question, or was.
        let asks = reasons.iter().any(|it| it == "directed_asked");
        let proto: &[u8] = match frame[IP] >> 4 {
            _ if asks => &NOTE,
            6 => &[0x86, 0xdd],
            _ => &[8, 0],
        };
        assert_eq!(&out[12..IP], proto, "{reasons:?}");
        assert_eq!(out[IP..], frame[IP..], "not a byte of it is changed");
        let to = MacAddr(out[..6].try_into().expect("six bytes"));
        let to = BACKENDS.into_iter().find(|number| mac_of(*number) == to);
        assert!(to.is_some(), "to nobody: {out:02x?}");
        (to, reasons)
    }
}

/// The answer of a back-end that was asked: it has no such connection.
fn unknown(by: u16, syn: &[u8]) -> Vec<u8> {
    let own = Host::A.mac(Network::Data).0;
    [&own[..], &mac_of(by).0, &NOTE, &syn[IP..]].concat()
}

fn key(port: u16, v6: bool) -> FlowKey {
    let (client, service) = ends(port, v6);
    FlowKey { client, service }
}

#[test]
fn a_flow_goes_where_its_slot_says() {
    on_bench(None, |bench, _| {
        let mut seen = BTreeMap::new();
        for (port, v6) in (1..200).flat_map(|port| [(port, false), (port, true)]) {
            let want = bench
                .slots
                .get(bench.slot(&key(port, v6)))
                .now
                .map(|id| id.0);
            for via in [Via::Xdp, Via::Tcx] {
                let syn = to_service(port, v6, 1, 0, SYN, b"");
                let new = vec!["directed_new".to_owned()];
                assert_eq!(bench.sent(via, &syn), (want, new), "{port} {v6}");
                let data = to_service(port, v6, 2, 1, ACK, b"data");
                let later = vec!["directed".to_owned()];
                assert_eq!(bench.sent(via, &data), (want, later), "{port} {v6}");
            }
            *seen.entry(want).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), BACKENDS.len(), "{seen:?}");
        assert_eq!(bench.director.entries.count().expect("readable"), 0);
    });
}

/// What a router says of a segment of the service, as an ICMP packet to the service.
fn error(port: u16, v6: bool, kind: u8, code: u8) -> Vec<u8> {
    let (client, service) = ends(port, v6);
    let mut ports = service.port.to_be_bytes().to_vec();
    ports.extend(client.port.to_be_bytes());
    ports.extend([0; 4]);
    let mut out = to_service(port, v6, 1, 1, ACK, b"");
    if v6 {
        out.truncate(IP + 40);
        out[IP + 6] = 58;
        out[IP + 8 + 15] = 0xfe; // the router is not the client
        out.extend([kind, code, 0, 0, 0, 0, 5, 0]);
        let mut quoted = vec![0x60, 0, 0, 0, 5, 0xdc, 6, 64];
        quoted.extend(service.addr.octets());
        quoted.extend(client.addr.octets());
        out.extend(quoted);
    } else {
        out.truncate(IP + 20);
        out[IP + 9] = 1;
        out[IP + 15] = 0xfe;
        out.extend([kind, code, 0, 0, 0, 0, 5, 0]);
        let mut quoted = vec![0x45, 0, 5, 0xdc, 0, 1, 0x40, 0, 64, 6, 0, 0];
        quoted.extend(&service.addr.octets()[12..]);
        quoted.extend(&client.addr.octets()[12..]);
        out.extend(quoted);
    }
    out.extend(ports);
    out
}

/// A back-end that never hears that its segments are too big sends them for ever.
#[test]
fn icmp_errors_reach_the_back_end_of_their_flow() {
    on_bench(None, |bench, _| {
        let kinds = [(false, 3, 4), (false, 11, 0), (false, 12, 0), (true, 1, 0)];
        let kinds = kinds
            .into_iter()
            .chain([(true, 2, 0), (true, 3, 0), (true, 4, 0)]);
        for (v6, kind, code) in kinds {
            for port in 1..60 {
                let want = bench
                    .slots
                    .get(bench.slot(&key(port, v6)))
                    .base
                    .map(|id| id.0);
                for via in [Via::Xdp, Via::Tcx] {
                    let reasons = vec!["directed_error".to_owned()];
                    let sent = bench.sent(via, &error(port, v6, kind, code));
                    assert_eq!(sent, (want, reasons), "{v6} {kind}");
                }
            }
        }
        // With an entry too.
        bench.members[0].weight = 0;
        bench.change();
        for port in 100..400_u16 {
            let syn = to_service(port, true, 5, 0, SYN, b"");
            let (to, _) = bench.begun(Via::Xdp, &syn);
            let (error, _) = bench.sent(Via::Tcx, &error(port, true, 2, 0));
            assert_eq!(error, to, "{port}");
        }
        assert!(bench.director.entries.count().expect("readable") > 10);
        let cases = [(false, 8, 0), (false, 5, 0), (true, 128, 0), (true, 135, 0)];
        for (v6, kind, code) in cases {
            bench.expect(
                "no error",
                &error(1, v6, kind, code),
                Act::Leave,
                "not_ours",
            );
        }
        let mut cut = error(1, false, 3, 4);
        cut.truncate(IP + 20 + 8 + 20 + 3);
        bench.expect("ports cut off", &cut, Act::Leave, "not_ours");
        let mut lie = error(1, false, 3, 4);
        lie[IP + 20 + 8 + 12] ^= 1;
        bench.expect("about another host", &lie, Act::Leave, "not_ours");
    });
}

fn poke(mut frame: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    frame[at] = value;
    frame
}

/// Of the service's address, what is not understood stops here: this machine's kernel
/// knows no such connection and would reset it. Anything else is its own affair.
#[test]
fn what_is_not_understood_stops_and_what_is_not_ours_passes() {
    on_bench(None, |bench, _| {
        let cases = [
            ("IPv4 options", false, IP, 0x46, "ip_options"),
            ("first fragment", false, IP + 6, 0x20, "fragment"),
            ("later fragment", false, IP + 7, 0x10, "fragment"),
            ("fragment header", true, IP + 6, 44, "fragment"),
            ("hop-by-hop options", true, IP + 6, 0, "ip_options"),
            ("routing header", true, IP + 6, 43, "ip_options"),
            ("destination options", true, IP + 6, 60, "ip_options"),
        ];
        for (what, v6, at, value, reason) in cases {
            let frame = poke(to_service(7, v6, 1, 1, ACK, b"data"), at, value);
            bench.expect(what, &frame, Act::Stop, reason);
            let last = if v6 { IP + 39 } else { IP + 19 };
            let elsewhere = poke(frame, last, 0x77);
            bench.expect(what, &elsewhere, Act::Leave, reason);
        }
        let frame = || to_service(7, false, 1, 1, ACK, b"data");
        let short = &frame()[..IP + 20 + 12];
        bench.expect("half a TCP header", short, Act::Stop, "bad_header");
        let mapped = [[0; 10].as_slice(), &[0xff; 2], &[10, 9, 0, 1]].concat();
        let mut spoofed = to_service(7, true, 1, 1, ACK, b"");
        spoofed.splice(IP + 8..IP + 24, mapped);
        bench.expect("a mapped address", &spoofed, Act::Stop, "bad_header");
        let arp = poke(frame(), 13, 0x06);
        bench.expect("ARP", &arp, Act::Leave, "not_ip");
        let vlan = poke(poke(frame(), 12, 0x81), 13, 0);
        bench.expect("a VLAN's", &vlan, Act::Leave, "not_ip");
        let udp = poke(frame(), IP + 9, 17);
        bench.expect("UDP", &udp, Act::Leave, "not_ours");
        let port = poke(frame(), IP + 23, 81);
        bench.expect("another port", &port, Act::Leave, "not_ours");
        let flooded = poke(frame(), 5, 0x99);
        bench.expect("another host's", &flooded, Act::Leave, "other_host");
        let replies = poke(frame(), IP + 19, 0x77);
        bench.expect("another address", &replies, Act::Leave, "not_ours");
    });
}

/// Frames of all lengths, and noise: no fault, and none goes uncounted.
#[test]
fn every_frame_has_a_verdict_and_a_reason() {
    on_bench(None, |bench, _| {
        let mut noise = 1_u64;
        let mut next = || {
            noise = noise
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            noise.to_be_bytes()[0]
        };
        let whole = [false, true].map(|v6| to_service(7, v6, 1, 1, ACK, b"data"));
        let errors = [error(7, false, 3, 4), error(7, true, 2, 0)];
        for frame in whole.iter().chain(&errors) {
            for length in IP + 1..=frame.len() {
                let mut frame = frame[..length].to_vec();
                for _ in 0..4 {
                    for via in [Via::Xdp, Via::Tcx] {
                        let Ok(_) = bench.director.try_frame(via, bench.ifindex, &frame) else {
                            continue;
                        };
                        let (_, reasons, _) = bench.put(via, &frame);
                        assert!(!reasons.is_empty(), "{frame:02x?}");
                    }
                    let at = IP + usize::from(next()) % (length - IP);
                    frame[at] = next();
                }
            }
        }
    });
}

/// Services, slots and entries outlive the process.
#[test]
fn another_director_takes_over_what_is_pinned() {
    on_bench(None, |bench, pins| {
        bench.members[0].weight = 0;
        bench.change();
        let frames: Vec<_> = (1..300)
            .map(|port| to_service(port, port % 2 == 0, 5, 0, SYN, b""))
            .collect();
        let went: Vec<_> = frames
            .iter()
            .map(|syn| bench.sent(Via::Xdp, syn).0)
            .collect();
        let pins = PinDir::open(pins).expect("bpffs is there");
        let mut settings = settings(None);
        settings.via = Via::Tcx;
        let next = Director::open(&settings, pins).expect("the programs load");
        assert_eq!(next.via(), Via::Tcx);
        bench.director = next;
        // It knows what the earlier one has left, and nothing else.
        let left = bench.director.slots.all(0).expect("they can be read");
        bench.slots = Slots::from(left.into_iter().map(core_slot).collect::<Vec<_>>());
        bench.members[2].weight = 0;
        bench.change();
        let again = frames.iter().map(|syn| bench.sent(Via::Xdp, syn).0);
        let later: Vec<_> = (1..300)
            .map(|port| to_service(port, port % 2 == 0, 9, 9, ACK, b""))
            .collect();
        let later = later.iter().map(|ack| bench.sent(Via::Tcx, ack).0);
        assert!(later.eq(went.iter().copied()), "all stay");
        // Repeated, a SYN is no new connection where it has an entry.
        let moved = again.zip(&went).filter(|(again, went)| again != *went);
        assert!(moved.count() < 150);
    });
}

/// A service of which no slot has been written has nobody, and not the first of all
/// back-ends.
#[test]
fn a_slot_that_nobody_has_written_leads_nowhere() {
    on_bench(None, |bench, _| {
        let first = Backend {
            name: NodeName::new("node-0").expect("a name"),
            mac: mac_of(0),
            tunnel: None,
            there: true,
            drained: false,
            followed: false,
            gone: false,
            tells: true,
        };
        let backends = &bench.director.backends;
        backends.set(0, &first).expect("there is room");
        // The second one; the first has its slots.
        let fronts = [false, true].map(|v6| (ends(1, v6).1, 1));
        bench
            .director
            .fronts
            .replace(&fronts)
            .expect("they are set");
        for (via, v6) in [(Via::Xdp, false), (Via::Tcx, true)] {
            let syn = to_service(9, v6, 1, 0, SYN, b"");
            let (act, reasons, _) = bench.put(via, &syn);
            assert_eq!((act, reasons), (Act::Stop, vec!["no_backend".to_owned()]));
        }
        let only_first = Slot {
            now: Some(0),
            base: Some(0),
            mixed: false,
        };
        let slots = &bench.director.slots;
        let all = (0..SIZE).map(|slot| (slot, only_first));
        slots.set(1, all).expect("they are written");
        assert!(
            slots
                .all(1)
                .expect("readable")
                .iter()
                .all(|slot| *slot == only_first)
        );
        let syn = to_service(9, false, 1, 0, SYN, b"");
        let (act, _, out) = bench.put(Via::Xdp, &syn);
        assert_eq!((act, &out[..6]), (Act::Send, &mac_of(0).0[..]));
    });
}

/// A figure: frames per second on one CPU, with a million flows.
#[test]
#[ignore = "a figure"]
fn a_million_flows() {
    const FLOWS: u32 = 1_000_000;
    on_bench(Some(FLOWS), |bench, _| {
        let syn = to_service(7, false, 1, 0, SYN, b"");
        let data = to_service(7, false, 2, 1, ACK, b"data");
        let figure = |what: &str, bench: &Bench, frame: &[u8]| {
            let load = bench.director.load_trial(frame, FLOWS).expect("it runs");
            assert_eq!(load.verdict, 3, "XDP_TX");
            let each = load.each.as_nanos().max(1);
            let entries = bench.director.entries.count().expect("readable");
            println!(
                "{what}: {each} ns, {} kpps; {entries} entries",
                1_000_000 / each
            );
        };
        for _ in 0..3 {
            figure("no slot has changed", bench, &data);
        }
        mix(bench);
        figure("SYNs", bench, &syn);
        figure("SYNs again", bench, &syn);
        for _ in 0..3 {
            figure("segments, entries where they are needed", bench, &data);
        }
    });
}

/// Two are as new: most slots are mixed, and most SYNs make an entry.
fn mix(bench: &mut Bench) {
    bench.members[1].weight = 0;
    bench.members[2].weight = 0;
    bench.change();
    bench.members[0].weight = 0;
    bench.members[1].weight = 1;
    bench.members[2].weight = 1;
    bench.change();
}

/// A figure: what a segment of a connection costs while another CPU has SYNs as fast as it can
/// take them, against what it costs alone. No more than twice as much, or a flood on one queue
/// of the card would slow the others down.
#[test]
#[ignore = "a figure"]
fn a_flood_of_syns_slows_no_connection_down() {
    const FLOWS: u32 = 1_000_000;
    on_bench(Some(FLOWS), |bench, _| {
        mix(bench);
        let syn = to_service(7, false, 1, 0, SYN, b"");
        let data = to_service(7, false, 2, 1, ACK, b"data");
        let run = |frame: &[u8]| {
            bench
                .director
                .load_trial(frame, FLOWS)
                .expect("it runs")
                .each
        };
        run(&syn);
        let alone = (0..5).map(|_| run(&data)).min().expect("five");
        let ends = AtomicBool::new(false);
        let (flooded, floods) = thread::scope(|scope| {
            let flood = scope.spawn(|| {
                let rounds =
                    std::iter::from_fn(|| (!ends.load(Ordering::Relaxed)).then(|| run(&syn)));
                rounds.count()
            });
            let flooded = (0..5).map(|_| run(&data)).min().expect("five");
            ends.store(true, Ordering::Relaxed);
            (flooded, flood.join().expect("it does not panic"))
        });
        println!("alone {alone:?}, beside {floods} million SYNs {flooded:?}");
        assert!(flooded <= 2 * alone, "{flooded:?} against {alone:?}");
    });
}

/// The address of the service is in both families.
#[test]
fn fronts_are_replaced_as_a_whole() {
    on_bench(None, |bench, _| {
        let frame = |v6| to_service(7, v6, 1, 1, ACK, b"");
        bench.expect("IPv6", &frame(true), Act::Send, "directed");
        let only = (std::net::SocketAddr::from((SERVICE_V4, 80)).into(), 0);
        bench.director.fronts.replace(&[only]).expect("written");
        bench.expect("IPv4", &frame(false), Act::Send, "directed");
        bench.expect("no longer", &frame(true), Act::Leave, "not_ours");
        assert!(!SERVICE_V6.is_loopback());
    });
}
