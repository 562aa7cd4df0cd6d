//! The data path: eBPF programs, their maps as Rust types, attach and pin.
//!
//! ```text
//!   Settings ──open──► Datapath ──(drop: everything stays pinned)
//!                         │
//!                         └──detach──► programs, maps and pins are gone
//! ```
//!
//! Opening loads the programs and replaces those that an earlier agent left
//! pinned, one link update each, so traffic passes a gate at every moment; the
//! pinned maps, with all flows, are taken over, unless another version has left
//! them in another shape ([`Earlier`]). Layouts come from the C headers
//! in `bpf/` through BTF (`skel`); byte order is handled in [`convert`] only.
//!
//! [`director`] is the data path of another machine, in front of many back-ends.
//!
//! [`KernelView`] is apart from it: programs that see no packet, loaded while
//! live sockets are moved.
//!
//! This is the only crate that touches libbpf.

mod attach;
mod birth;
mod cgroup;
mod convert;
mod datapath;
pub mod director;
mod earlier;
mod events;
mod foreign;
mod hooks;
mod install;
mod local;
mod maps;
mod orders;
mod pin;
mod policy;
mod print;
mod skel;
mod socket;
mod socket_skel;
mod stale;
mod stopped;
mod syscall;
mod tcx;
mod trial;

pub use attach::AttachError;
pub use birth::{BirthError, Births};
pub use cgroup::cgroup_root;
pub use datapath::{
    Datapath, MAX_ROUTERS, OpenError, RequestTables, Settings, TunnelEnd, TwinTables,
};
pub use earlier::Earlier;
pub use events::{Events, ProcessExit, RawEvent, Record};
pub use foreign::{Foreign, OF_DIRECTOR, Whose};
pub use hooks::{Fronting, Hooks, Identity, Standing, Stray};
pub use install::Installer;
pub use local::LocalError;
pub use maps::MapError;
pub use maps::canaries::{
    CANARY_MAGIC, CANARY_NONCES, CANARY_PORTS, CANARY_SLOTS, CanaryAnswer, CanaryTable,
};
pub use maps::counters::{Counters, Reason};
pub use maps::crowds::{CROWDS, CrowdTable};
pub use maps::fences::Expiry;
pub use maps::flows::{FlowState, FlowTable, FlowTimestamps, Phase};
pub use maps::half_open::{HalfOpen, HalfOpenTable};
pub use maps::handoffs::{
    HandoffEntry, HandoffNote, HandoffTable, NotedArrival, NotedPlace, Whereabouts,
};
pub use maps::log::{FlowLog, LOG_CHUNK, LOG_CHUNKS, LogMode, LogState, LogTable};
pub use maps::newborns::{Newborn, NewbornTable};
pub use maps::outputs::{MAX_MASK_LEN, MAX_MASKS, Output, OutputSum, OutputTable, Verification};
pub use maps::paths::PathTable;
pub use maps::placing::{
    MAX_PLACED_NODES, MAX_RULE_PREFIX, MAX_RULE_SUFFIX, Mate, PlacingRule, PlacingTable, RulePath,
};
pub use maps::questions::{KeptQuestion, QuestionTable, Said, Unanswered};
pub use maps::scan::Scan;
pub use maps::services::ServiceTable;
pub use maps::shares::{Front, Keepers, Moves, ShareEntry, ShareTable};
pub use maps::slots::Slots;
pub use maps::steering::{Steering, SteeringTable};
pub use maps::transfers::{Transfer, TransferEntry, TransferTable};
pub use maps::trusts::{TagKey, Trust, TrustTable};
pub use orders::{Order, OrderError, Orders, Settlement};
pub use pin::{PinDir, PinError};
pub use policy::{MAX_POLICIES, Policy, PolicyError};
pub use print::report_with;
pub use socket::{KernelView, KernelViewError};
pub use stale::remove_stale_pins;
pub use stopped::{Holder, StoppedServers};
pub use trial::{Hook, Trial};

/// What this build leaves out for a chaos run to find; `None` in every build that
/// is for use.
pub const MUTANT: Option<&str> = option_env!("GODWIT_MUTANT");

/// The version, and what has compiled the programs of the data path: they are checked with
/// one compiler only.
pub const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ndata path: ",
    env!("GODWIT_COMPILER")
);

/// Mark of a segment that the gate lets out as it is (`SO_MARK`).
pub const MARK_SPOKEN: u32 = 0x6777_0001;
/// Mark of a twin's acknowledgement that has its tag, on its way to its owner (`gw_suppress.h`).
pub const MARK_PROVED: u32 = 0x6777_000b;
/// Mark of a segment that the gate hands to this node's own kernel (`SO_MARK`).
pub const MARK_INJECT: u32 = 0x6777_0003;
/// Mark of a canary that the tap is to mirror (`SO_MARK`).
pub const MARK_CANARY: u32 = 0x6777_0010;
/// Mark of a client's earlier segment, for a twin that is being made (`SO_MARK`).
pub const MARK_REPLAY: u32 = 0x6777_0005;
/// Mark of another server's frame that has a slip behind its packet (`gw_slip.h`).
pub const MARK_SLIP: u32 = 0x6777_0008;
/// Mark of an answer to this node's own question that the gate turns round (`SO_MARK`).
pub const MARK_SETTLED: u32 = 0x6777_0009;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The marks of the header, by their names: each once.
    fn marks() -> BTreeMap<&'static str, u32> {
        let header = include_str!("../bpf/base/gw_marks.h");
        let mut marks = BTreeMap::new();
        for define in header.split("#define GW_MARK_").skip(1) {
            let mut words = define.split_whitespace().filter(|word| *word != "\\");
            let name = words.next().expect("it has a name");
            let number = words.next().and_then(|word| word.strip_prefix("0x"));
            let number = number.and_then(|word| word.strip_suffix('u'));
            let number = number.and_then(|word| u32::from_str_radix(word, 16).ok());
            let number = number.unwrap_or_else(|| panic!("{name} has a number"));
            assert!(
                !marks.values().any(|it| *it == number),
                "{name}: {number:x}"
            );
            marks.insert(name, number);
        }
        marks
    }

    /// What user space puts on a socket is what the hooks look for.
    #[test]
    fn marks_are_those_of_the_data_path() {
        let marks = marks();
        for (name, number) in [
            ("SPOKEN", MARK_SPOKEN),
            ("INJECT", MARK_INJECT),
            ("CANARY", MARK_CANARY),
            ("REPLAY", MARK_REPLAY),
            ("SLIP", MARK_SLIP),
            ("SETTLED", MARK_SETTLED),
        ] {
            assert_eq!(marks.get(name), Some(&number), "{name}");
        }
    }
}
