//! A rule of nftables: its expressions, run for one packet as the kernel runs them
//! (net/netfilter/nf_tables_core.c), with registers that may be unknown.

use crate::netlink::{attribute, attributes};

use super::probe::{Answer, Kind, Looked, Matches, Probe, Verdict};
use super::xtables;
use super::{ARP, ChainId, NFGENMSG, big_endian, nested, text};

/// Bytes of registers: NFT_REG_1 to NFT_REG_4.
const ROOM: usize = 64;
const REGISTER: usize = 16;

/// NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;

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

    /// What it does with one packet.
    pub(super) fn ask(
        &self,
        probe: Probe<'_>,
        is_tracked: bool,
        elements: impl Fn(&str) -> Vec<Element>,
    ) -> Answer {
        let mut run = Run {
            probe,
            is_tracked,
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
        }
    }
}

struct Run<'a> {
    probe: Probe<'a>,
    /// Whether connection tracking has seen the packet yet.
    is_tracked: bool,
    registers: [Option<u8>; ROOM],
    matches: Matches,
    verdict: Verdict,
    looked: Looked,
}

impl Run<'_> {
    fn step(&mut self, name: &str, data: &[u8], elements: &impl Fn(&str) -> Vec<Element>) {
        let matches = match name {
            "meta" => self.load(data, 1, self.meta(data)),
            "ct" => {
                let state = self.tracked(data);
                self.load(data, 1, state)
            }
            "payload" => {
                let bytes = self.payload(data);
                self.load(data, 1, bytes)
            }
            "bitwise" => self.load(data, 2, self.masked(data)),
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
                let state = self.is_tracked.then_some(self.probe.state);
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
            // What they write, or whether they match, is not known.
            _ => Matches::Perhaps,
        };
        self.matches = self.matches.and(matches);
    }

    /// Writes a register, with zeros up to the next one.
    fn load(&mut self, data: &[u8], register: u16, value: Option<Vec<u8>>) -> Matches {
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

    /// NFTA_META_KEY
    fn meta(&self, data: &[u8]) -> Option<Vec<u8>> {
        let (name, index) = self.probe.interface;
        let is_v4 = self.probe.service.is_ipv4();
        match (attribute(data, 2).and_then(big_endian)?, self.probe.comes) {
            // NFT_META_PROTOCOL
            (1, _) if self.probe.kind == Kind::Arp => Some(vec![8, 6]),
            (1, _) => Some(if is_v4 { vec![8, 0] } else { vec![0x86, 0xdd] }),
            // NFT_META_IIF, NFT_META_OIF
            (4, true) | (5, false) => Some(index.to_ne_bytes().to_vec()),
            // NFT_META_IIFNAME, NFT_META_OIFNAME
            (6, true) | (7, false) => {
                let mut bytes = name.as_bytes().to_vec();
                bytes.resize(REGISTER, 0);
                Some(bytes)
            }
            // NFT_META_NFPROTO
            (15, _) if self.probe.kind == Kind::Arp => Some(vec![ARP]),
            (15, _) => Some(vec![if is_v4 { 2 } else { 10 }]),
            // NFT_META_L4PROTO
            (16, _) => Some(vec![self.probe.protocol()]),
            _ => None,
        }
    }

    fn tracked(&mut self, data: &[u8]) -> Option<Vec<u8>> {
        // NFT_CT_STATE
        let is_state = attribute(data, 2).and_then(big_endian) == Some(0);
        self.looked.state |= is_state;
        let is_known = is_state && self.is_tracked;
        is_known.then(|| self.probe.state.to_ne_bytes().to_vec())
    }

    fn payload(&mut self, data: &[u8]) -> Option<Vec<u8>> {
        let number = |kind| attribute(data, kind).and_then(big_endian);
        let offset = usize::try_from(number(3)?).ok()?;
        let len = usize::try_from(number(4)?).ok()?;
        match number(2)? {
            NETWORK => self.probe.network(offset, len),
            TRANSPORT => {
                self.looked.flags |= (offset..offset.saturating_add(len)).contains(&13);
                self.probe.transport(offset, len)
            }
            _ => None,
        }
    }

    /// `(value & mask) ^ xor`
    fn masked(&self, data: &[u8]) -> Option<Vec<u8>> {
        let mask = attribute(nested(data, 4)?, 1)?;
        let xor = attribute(nested(data, 5)?, 1)?;
        let value = self.value(data, 1, mask.len())?;
        let bytes = value.iter().zip(mask).zip(xor);
        Some(
            bytes
                .map(|((value, mask), xor)| (value & mask) ^ xor)
                .collect(),
        )
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
