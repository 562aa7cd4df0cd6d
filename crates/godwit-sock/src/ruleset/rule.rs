//! A rule of nftables: its expressions, run for one packet as the kernel runs them
//! (net/netfilter/nf_tables_core.c), with registers that may be unknown.

use crate::netlink::{attribute, attributes};

use super::expression::{self, Value};
use super::probe::{Answer, Looked, Matches, Probe, Verdict};
use super::xtables;
use super::{ChainId, NFGENMSG, big_endian, nested, text};

/// Bytes of registers: NFT_REG_1 to NFT_REG_4.
const ROOM: usize = 64;
const REGISTER: usize = 16;

/// One element of a set or a verdict map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) key: Vec<u8>,
    /// Last key of a range (concatenations).
    pub(super) last: Option<Vec<u8>>,
    /// It ends a range: its key is the first one behind it.
    pub(super) is_end: bool,
    pub(super) verdict: Option<Verdict>,
}

/// What is known of a packet besides what it is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    /// Whether connection tracking has seen it yet.
    pub(super) is_tracked: bool,
    /// The group of the service interface.
    pub(super) group: Option<u32>,
    /// Whether no rule gives packets or connections a mark.
    pub(super) is_unmarked: bool,
}

pub(super) struct Rule<'a> {
    pub(super) chain: ChainId,
    handle: u64,
    expressions: Vec<(String, &'a [u8])>,
}

impl<'a> Rule<'a> {
    pub(super) fn read(message: &'a [u8]) -> Option<Self> {
        let family = *message.first()?;
        let all = message.get(NFGENMSG..)?;
        let handle = attribute(all, 3)?.try_into().ok()?;
        let list = nested(all, 4)?;
        let expressions = attributes(list).filter_map(|(_, element)| {
            let name = text(attribute(element, 1)?);
            Some((name, nested(element, 2).unwrap_or_default()))
        });
        Some(Self {
            chain: (family, text(attribute(all, 1)?), text(attribute(all, 2)?)),
            handle: u64::from_be_bytes(handle),
            expressions: expressions.collect(),
        })
    }

    /// Names of the sets that it looks up.
    pub(super) fn sets(&self) -> impl Iterator<Item = String> {
        let lookups = self.expressions.iter().filter(|(name, _)| name == "lookup");
        lookups.filter_map(|(_, data)| attribute(data, 1).map(text))
    }

    /// Whether it gives packets or connections a mark.
    pub(super) fn marks(&self) -> bool {
        self.expressions.iter().any(|(name, data)| {
            let kind = attribute(data, 1).map(text);
            match name.as_str() {
                // NFT_META_MARK and NFT_CT_MARK, from a register.
                "meta" | "ct" => {
                    kind.is_none() && attribute(data, 2).and_then(big_endian) == Some(3)
                }
                "target" => kind.is_some_and(|kind| kind.contains("MARK")),
                _ => false,
            }
        })
    }

    /// What it does with one packet.
    pub(super) fn ask(
        &self,
        probe: Probe<'_>,
        known: Known,
        elements: impl Fn(&str) -> Vec<Element>,
    ) -> Answer {
        let mut run = Run {
            probe,
            known,
            registers: [None; ROOM],
            matches: Matches::Yes,
            verdict: Verdict::Continue,
            looked: Looked::default(),
        };
        for (name, data) in &self.expressions {
            run.step(name, data, &elements);
            if run.matches == Matches::No {
                break;
            }
        }
        Answer {
            handle: self.handle,
            matches: run.matches,
            verdict: run.verdict,
            is_meant: probe.is_meant(run.looked),
            is_unclear: run.looked.unclear,
        }
    }
}

struct Run<'a> {
    probe: Probe<'a>,
    known: Known,
    registers: [Option<u8>; ROOM],
    matches: Matches,
    verdict: Verdict,
    looked: Looked,
}

impl Run<'_> {
    fn step(&mut self, name: &str, data: &[u8], elements: &impl Fn(&str) -> Vec<Element>) {
        let matches = match name {
            // They write what is in a register.
            "meta" | "ct" if attribute(data, 1).is_none() => Matches::Yes,
            "meta" => self.load(data, 1, expression::meta(data, self.probe, self.known)),
            "ct" => {
                let value = expression::tracked(data, self.probe, self.known, &mut self.looked);
                self.load(data, 1, value)
            }
            "payload" => {
                let bytes = expression::payload(data, self.probe, &mut self.looked);
                self.load(data, 1, bytes)
            }
            "fib" => self.load(data, 1, expression::route(data, self.probe)),
            "bitwise" => self.load(data, 2, self.masked(data)),
            "byteorder" => self.load(data, 2, self.turned(data)),
            "cmp" => self.compare(data),
            "range" => self.between(data),
            "lookup" => self.look_up(data, elements),
            "immediate" => {
                let verdict = nested(data, 2).and_then(|value| nested(value, 2));
                let verdict = verdict.map(verdict_of);
                self.verdict = verdict.unwrap_or_else(|| self.verdict.clone());
                Matches::Yes
            }
            "reject" => {
                self.verdict = Verdict::Drop;
                Matches::Yes
            }
            "queue" => {
                // Another program decides.
                self.verdict = Verdict::Accept;
                Matches::Perhaps
            }
            "match" => {
                let kind = attribute(data, 1).map(text).unwrap_or_default();
                let info = attribute(data, 3).unwrap_or_default();
                let state = self.known.is_tracked.then_some(self.probe.state);
                xtables::matches(&kind, info, self.probe, state, &mut self.looked)
            }
            "target" => {
                if attribute(data, 1).map(text).as_deref() == Some("REJECT") {
                    self.verdict = Verdict::Drop;
                }
                Matches::Yes
            }
            // They look at nothing.
            "counter" | "log" | "notrack" | "objref" | "last" | "nat" | "masq" | "redir"
            | "tproxy" | "dup" => Matches::Yes,
            // What clients send, and how much of it.
            "exthdr" | "numgen" | "hash" | "osf" | "limit" | "quota" | "connlimit" | "dynset" => {
                Matches::Perhaps
            }
            // What they write, or whether they match, is not known.
            _ => {
                self.looked.unclear = true;
                Matches::Perhaps
            }
        };
        self.matches = self.matches.and(matches);
    }

    /// Writes a register, with zeros up to the next one.
    fn load(&mut self, data: &[u8], register: u16, value: Value) -> Matches {
        let value = match value {
            Value::Is(bytes) => Some(bytes),
            Value::OfClients => None,
            Value::Unclear => {
                self.looked.unclear = true;
                None
            }
            Value::Breaks => return Matches::No,
        };
        let at = attribute(data, register)
            .and_then(big_endian)
            .and_then(place);
        let Some(room) = at.and_then(|at| self.registers.get_mut(at..)) else {
            return Matches::Yes;
        };
        let Some(value) = value else {
            let end = room.len().min(REGISTER);
            room[..end].fill(None);
            return Matches::Yes;
        };
        let padded = value.len().next_multiple_of(4).min(room.len());
        room[..padded].fill(Some(0));
        for (to, byte) in room.iter_mut().zip(value) {
            *to = Some(byte);
        }
        Matches::Yes
    }

    fn value(&self, data: &[u8], register: u16, len: usize) -> Option<Vec<u8>> {
        let at = attribute(data, register)
            .and_then(big_endian)
            .and_then(place)?;
        let known = self.registers.get(at..at.checked_add(len)?)?;
        known.iter().copied().collect()
    }

    /// `(value & mask) ^ xor`
    fn masked(&self, data: &[u8]) -> Value {
        let known = || {
            let mask = attribute(nested(data, 4)?, 1)?;
            let xor = attribute(nested(data, 5)?, 1)?;
            let value = self.value(data, 1, mask.len())?;
            let bytes = value.iter().zip(mask).zip(xor);
            let bytes = bytes.map(|((value, mask), xor)| (value & mask) ^ xor);
            Some(bytes.collect())
        };
        known().map_or(Value::OfClients, Value::Is)
    }

    /// From the host's order of bytes to the network's or back: NFTA_BYTEORDER_LEN,
    /// NFTA_BYTEORDER_SIZE.
    fn turned(&self, data: &[u8]) -> Value {
        let number = |kind| usize::try_from(attribute(data, kind).and_then(big_endian)?).ok();
        let known = || {
            let (len, size) = (number(4)?, number(5)?);
            let value = self.value(data, 1, len)?;
            let parts = value.chunks(size.max(1));
            if cfg!(target_endian = "big") {
                return Some(value);
            }
            Some(parts.flat_map(|part| part.iter().rev().copied()).collect())
        };
        known().map_or(Value::OfClients, Value::Is)
    }

    /// NFTA_CMP_OP
    fn compare(&self, data: &[u8]) -> Matches {
        let wanted = nested(data, 3).and_then(|value| attribute(value, 1));
        let value = wanted.and_then(|wanted| Some((self.value(data, 1, wanted.len())?, wanted)));
        let (Some((value, wanted)), Some(operation)) =
            (value, attribute(data, 2).and_then(big_endian))
        else {
            return Matches::Perhaps;
        };
        let value = value.as_slice();
        match operation {
            0 => Matches::of(value == wanted),
            1 => Matches::of(value != wanted),
            2 => Matches::of(value < wanted),
            3 => Matches::of(value <= wanted),
            4 => Matches::of(value > wanted),
            5 => Matches::of(value >= wanted),
            _ => Matches::Perhaps,
        }
    }

    fn between(&self, data: &[u8]) -> Matches {
        let end = |kind| nested(data, kind).and_then(|value| attribute(value, 1));
        let (Some(from), Some(to)) = (end(3), end(4)) else {
            return Matches::Perhaps;
        };
        let Some(value) = self.value(data, 1, from.len()) else {
            return Matches::Perhaps;
        };
        let is_inverted = attribute(data, 2).and_then(big_endian) == Some(1);
        let value = value.as_slice();
        Matches::of(from <= value && value <= to).inverted(is_inverted)
    }

    fn look_up(&mut self, data: &[u8], elements: &impl Fn(&str) -> Vec<Element>) -> Matches {
        let set = attribute(data, 1).map(text).unwrap_or_default();
        let elements = elements(&set);
        let is_map = attribute(data, 3).is_some();
        let is_inverted = attribute(data, 5).and_then(big_endian) == Some(1);
        let len = elements.first().map_or(0, |element| element.key.len());
        let Some(value) = self.value(data, 2, len) else {
            if is_map {
                // The worst that is no drop: what follows is uncertain.
                let drops = |it: &Element| it.verdict == Some(Verdict::Drop);
                self.verdict = if elements.iter().all(drops) {
                    Verdict::Drop
                } else {
                    Verdict::Accept
                };
            }
            return Matches::Perhaps;
        };
        let found = find(&elements, &value);
        if let Some(verdict) = found.and_then(|element| element.verdict.clone()) {
            self.verdict = verdict;
        }
        Matches::of(found.is_some()).inverted(is_inverted)
    }
}

/// The element that a value is in.
fn find<'a>(elements: &'a [Element], value: &[u8]) -> Option<&'a Element> {
    if !elements.iter().any(|it| it.is_end || it.last.is_some()) {
        return elements.iter().find(|it| it.key == value);
    }
    let from = elements.iter().filter(|it| it.key.as_slice() <= value);
    let nearest = from.max_by(|one, other| {
        let one = (&one.key, !one.is_end);
        one.cmp(&(&other.key, !other.is_end))
    });
    let within = |it: &&Element| (it.last.as_deref()).is_none_or(|last| value <= last);
    nearest.filter(|it| !it.is_end).filter(within)
}

/// The first byte of a register: NFT_REG_1 to NFT_REG_4, or NFT_REG32_00 and so on.
fn place(register: u32) -> Option<usize> {
    let register = usize::try_from(register).ok()?;
    match register {
        1..=4 => Some((register - 1) * REGISTER),
        8..=23 => Some((register - 8) * 4),
        _ => None,
    }
}

/// NFTA_VERDICT_CODE and NFTA_VERDICT_CHAIN
pub(super) fn verdict_of(data: &[u8]) -> Verdict {
    let chain = || attribute(data, 2).map(text).unwrap_or_default();
    match attribute(data, 1)
        .and_then(big_endian)
        .map(u32::cast_signed)
    {
        Some(0) => Verdict::Drop,
        Some(-3) => Verdict::Jump(chain()),
        Some(-4) => Verdict::Goto(chain()),
        Some(-5) => Verdict::Return,
        Some(-2 | -1) => Verdict::Continue,
        // Accepted, stolen or queued.
        _ => Verdict::Accept,
    }
}
