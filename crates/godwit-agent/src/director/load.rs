//! What a director's frames cost, for `godwit bench director`: the kernel runs its
//! program outside of any traffic (`BPF_PROG_TEST_RUN`), with a new flow each time.

use std::net::Ipv4Addr;

use godwit_bpf::PinDir;
use godwit_bpf::director::{Backend, Director, Settings, Slot, Via};
use godwit_core::director::{BackendId, Member, Slots, TableSize, lookup_table};
use godwit_sock::Interface;
use godwit_wire::{Endpoint, MacAddr, NodeName, TcpFlags};
use serde::{Deserialize, Serialize};

use crate::agent_error::AgentError;
use crate::costs_error::CostsError;
use crate::machine_error::MachineError;

/// As many as a table by default has room for entries.
const FLOWS: u32 = 1_000_000;

/// Where the flows go to; nobody has this address (RFC 5737).
const SERVICE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 80);

const BACKENDS: [&str; 3] = ["one", "two", "three"];

/// Nanoseconds of a frame, on the average over a million flows; a number per round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameCosts {
    /// Segments, no slot has ever changed.
    pub segments: Vec<u64>,
    /// SYNs, the same.
    pub syns: Vec<u64>,
    /// Segments, nearly all slots have changed, and two of three flows have entries.
    pub segments_mixed: Vec<u64>,
    /// SYNs, the same.
    pub syns_mixed: Vec<u64>,
    /// Entries there were then.
    pub entries: u64,
}

/// Measures on an interface of this network namespace, which gets the program for as long.
/// Its pins are in the folder `pins`; if this process is killed, its caller removes it.
///
/// # Errors
/// If the program can't be loaded, or the kernel does not run it.
pub fn frame_costs(interface: &str, pins: &str, rounds: u32) -> Result<FrameCosts, AgentError> {
    let interface = Interface::by_name(interface).map_err(MachineError::from)?;
    let settings = Settings {
        ifindex: interface.index,
        mac: interface.mac,
        via: Via::Tcx,
        table_size: TableSize::DEFAULT.get(),
        services: 1,
        max_entries: 1 << 20,
        seed: 1,
        shares: false,
        trial_flows: Some(FLOWS),
    };
    let pins = PinDir::open(pins)?;
    let director = Director::open(&settings, pins).map_err(MachineError::from)?;
    let mut bench = Bench {
        slots: Slots::new(settings.table_size as usize),
        director,
    };
    let costs = bench.measure(rounds);
    // Also if that failed.
    bench.director.detach()?;
    Ok(costs?)
}

struct Bench {
    director: Director,
    slots: Slots,
}

impl Bench {
    fn measure(&mut self, rounds: u32) -> Result<FrameCosts, CostsError> {
        let service = Endpoint::from(std::net::SocketAddr::from(SERVICE));
        self.director.fronts.replace(&[(service, 0)])?;
        let (segment, syn) = (frame(TcpFlags::ACK), frame(TcpFlags::SYN));
        self.weigh([1, 1, 1])?;
        let mut costs = FrameCosts {
            segments: self.costs(&segment, rounds)?,
            syns: self.costs(&syn, rounds)?,
            ..FrameCosts::default()
        };
        // One takes all, then the other two: hardly a slot is what it was.
        self.weigh([1, 0, 0])?;
        self.weigh([0, 1, 1])?;
        // The first of these makes the entries.
        costs.syns_mixed = self.costs(&syn, rounds)?;
        costs.segments_mixed = self.costs(&segment, rounds)?;
        costs.entries = self.director.entries.count()?;
        Ok(costs)
    }

    fn costs(&self, frame: &[u8], rounds: u32) -> Result<Vec<u64>, CostsError> {
        let one = |_| {
            let load = self.director.load_trial(frame, FLOWS);
            let load = load.map_err(|error| CostsError::TestRun(error.into()))?;
            Ok(u64::try_from(load.each.as_nanos()).unwrap_or(u64::MAX))
        };
        (0..rounds).map(one).collect()
    }

    fn weigh(&mut self, weights: [u16; 3]) -> Result<(), CostsError> {
        let mut members = Vec::new();
        for ((number, name), weight) in (0..).zip(BACKENDS).zip(weights) {
            let name = NodeName::new(name).expect("these are names");
            let backend = Backend {
                name,
                mac: MacAddr([2, 0, 0, 0, 0, 1]),
                tunnel: None,
                there: true,
                drained: false,
                followed: false,
                gone: false,
                tells: false,
            };
            self.director.backends.set(number, &backend)?;
            let id = BackendId(number);
            members.push(Member { name, id, weight });
        }
        let table = lookup_table(TableSize::DEFAULT, &members);
        let changed = self.slots.change(&table, |_| true);
        let slots = changed.into_iter().map(|at| {
            let slot = self.slots.get(at);
            let raw = Slot {
                now: slot.now.map(|id| id.0),
                base: slot.base.map(|id| id.0),
                mixed: slot.mixed,
            };
            (at, raw)
        });
        Ok(self.director.slots.set(0, slots)?)
    }
}

/// A segment without data over IPv4, from nobody yet.
fn frame(flags: TcpFlags) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00]);
    frame.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 0, 0, 0, 0]);
    frame.extend(SERVICE.0.octets());
    frame.extend([0, 0]);
    frame.extend(SERVICE.1.to_be_bytes());
    // Sequence numbers, then the header's length of five words.
    frame.extend([0; 8]);
    frame.extend([0x50, flags.0, 0xff, 0xff, 0, 0, 0, 0]);
    // The kernel wants no frame shorter than this.
    frame.resize(60, 0);
    frame
}
