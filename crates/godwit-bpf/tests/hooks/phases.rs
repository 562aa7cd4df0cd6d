//! The phases of a flow: what the kernel lets follow what is the table of docs/flow.md. And
//! whether a flow follows a share that is not its own.

use std::collections::BTreeSet;
use std::io::Write as _;

use godwit_lab::Lab;
use libbpf_rs::{MapCore as _, MapFlags, Object, ObjectBuilder, ProgramInput};

/// One change by the function of the data path (`tests/phases.bpf.c`).
const TRIAL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/phases.bpf.o"));

const FLOW: &str = include_str!("../../../../docs/flow.md");

/// `enum gw_phase`; the last one is none.
const PHASES: [&str; 9] = [
    "new",
    "confirming",
    "protected",
    "unprotected",
    "twin",
    "closed",
    "ended",
    "rejoining",
    "-",
];

/// `GW_REASON_PHASE_REFUSED`.
const REFUSED: u32 = 19;

/// The rows of the second table: from, to.
fn documented() -> BTreeSet<(String, String)> {
    let table = FLOW.split("| from | to | when |").nth(1);
    let rows = table.expect("the table").lines().skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row.split('|').skip(1);
        let mut phase = || {
            cells
                .next()
                .map(|it| it.trim().trim_matches('`').to_owned())
        };
        let pair = phase().zip(phase()).expect("a row has cells");
        for name in [&pair.0, &pair.1] {
            assert!(PHASES.contains(&name.as_str()), "{name}");
        }
        pair
    })
    .collect()
}

/// Refused changes that were counted so far.
fn refused(object: &Object) -> u64 {
    let map = object.maps().find(|map| map.name() == "gw_counters");
    let counted = map
        .expect("it counts")
        .lookup_percpu(&REFUSED.to_ne_bytes(), MapFlags::ANY);
    let counted = counted.expect("it can be read").expect("it is there");
    let number = |value: &Vec<u8>| u64::from_ne_bytes(value[..8].try_into().expect("a number"));
    counted.iter().map(number).sum()
}

/// Runs a program of the object with these words: what they are then, and what it returns.
fn run<const N: usize>(object: &Object, name: &str, words: [u32; N]) -> ([u32; N], u32) {
    let program = object.progs_mut().find(|program| program.name() == name);
    let mut trial: Vec<u8> = words.iter().flat_map(|it| it.to_ne_bytes()).collect();
    let input = ProgramInput {
        context_in: Some(&mut trial),
        ..ProgramInput::default()
    };
    let ran = program.expect("it is there").test_run(input);
    let returned = ran.expect("it runs").return_value;
    let word = |at: usize| u32::from_ne_bytes(trial[4 * at..][..4].try_into().expect("a word"));
    (std::array::from_fn(word), returned)
}

/// The programs, loaded; `None`, with the reason, where that is not possible.
fn trial() -> Option<Object> {
    if let Err(reason) = Lab::available() {
        let _ = writeln!(std::io::stderr(), "skipped: {reason}");
        return None;
    }
    let object = ObjectBuilder::default().open_memory(TRIAL);
    let object = object.expect("it is an object");
    Some(object.load().expect("the kernel takes it"))
}

/// From a phase to another one: what the flow's is then, and whether it was changed.
fn enter(object: &Object, from: u32, to: u32) -> (u32, bool) {
    let ([.., now, changed], _) = run(object, "enter", [from, to, 0, 0]);
    (now, changed == 1)
}

/// Each pair of phases is tried: what is in the table changes the phase, all else leaves it
/// and is counted.
#[test]
fn a_phase_follows_only_what_the_table_says() {
    let Some(object) = trial() else {
        return;
    };
    let mut legal = BTreeSet::new();
    for (from, name) in (0..).zip(PHASES) {
        for (to, next) in (0..).zip(PHASES) {
            let before = refused(&object);
            let (now, changed) = enter(&object, from, to);
            assert_eq!(now, if changed { to } else { from }, "{name}, {next}");
            let counted = refused(&object) - before;
            assert_eq!(counted, u64::from(!changed), "{name}, {next}");
            if changed {
                legal.insert((name.to_owned(), next.to_owned()));
            }
        }
    }
    let documented = documented();
    let differ: Vec<_> = legal.symmetric_difference(&documented).collect();
    assert!(differ.is_empty(), "docs/flow.md, the kernel: {differ:?}");
}

/// `GW_ROLE_OWNER` and `GW_ROLE_SHADOW`.
const OWNER: u32 = 1;
const SHADOW: u32 = 2;

/// A flow of share `of` where a segment of the share `chosen` is, with these roles of both:
/// whether it follows, its flags and its phase.
fn follow(object: &Object, of: u32, chosen: u32, roles: [u32; 2]) -> (bool, u32, u32) {
    let role = roles[usize::from(chosen == 1)];
    let words = [of, chosen, roles[0], roles[1], role, 0, 0, 0];
    let ([.., follows, flags, phase], returned) = run(object, "follow", words);
    assert_eq!(returned, 0);
    (follows == 1, flags, phase)
}

/// A CPU has a segment of a twin of the ward's, and has looked for its flow: there was none. On
/// another CPU that connection comes to this server's own share. The first CPU finds the new
/// flow: it must not make a silent twin of it. The same the other way round.
#[test]
fn a_flow_follows_its_own_share_only() {
    let Some(object) = trial() else {
        return;
    };
    let confirming = 1;
    for (of, roles) in [
        (0, [OWNER, SHADOW]),
        (1, [OWNER, SHADOW]),
        (0, [OWNER, OWNER]),
    ] {
        let own = follow(&object, of, of, roles);
        assert_eq!(own, (true, 0, confirming), "{of} of {roles:?}");
        let other = follow(&object, of, 1 - of, roles);
        assert_eq!(other, (false, 0, confirming), "{of} of {roles:?}");
    }
}
