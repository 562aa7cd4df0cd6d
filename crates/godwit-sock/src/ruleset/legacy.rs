//! Tables of iptables-legacy (include/uapi/linux/netfilter_ipv4/ip_tables.h, and ip6_tables.h).
//! The kernel tells nobody of their changes.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::probe::{Answer, Fate, Hook, Looked, Matches, Probe, Refusal, Verdict, walk};
use super::{text, without_old_doubts, xtables};

/// IPT_SO_GET_INFO, IPT_SO_GET_ENTRIES
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;

const NAME: usize = 32;
/// struct ipt_getinfo
const INFO: usize = 84;
/// struct ipt_get_entries, before its entries
const ENTRIES: usize = 40;

/// Tables whose rules may drop, and whether all of their chains know connections.
const TABLES: [(&str, bool); 3] = [("raw", false), ("mangle", true), ("filter", true)];

/// By number: where packets of a service pass.
const HOOKS: [(usize, Hook, &str); 4] = [
    (0, Hook::PreRouting, "PREROUTING"),
    (1, Hook::LocalIn, "INPUT"),
    (3, Hook::LocalOut, "OUTPUT"),
    (4, Hook::PostRouting, "POSTROUTING"),
];

/// How the two families differ.
#[derive(Clone, Copy)]
struct Layout {
    family: AddressFamily,
    level: libc::c_int,
    names: &'static str,
    /// Of an address, in bytes; four of them stand first.
    address: usize,
    /// struct ipt_entry, and where it says where its target is.
    entry: usize,
    target_at: usize,
}

const V4: Layout = Layout {
    family: AddressFamily::Inet,
    level: libc::IPPROTO_IP,
    names: "/proc/thread-self/net/ip_tables_names",
    address: 4,
    entry: 112,
    target_at: 88,
};

const V6: Layout = Layout {
    family: AddressFamily::Inet6,
    level: libc::IPPROTO_IPV6,
    names: "/proc/thread-self/net/ip6_tables_names",
    address: 16,
    entry: 168,
    target_at: 140,
};

/// Whether there are tables at all.
pub(super) fn has_tables() -> bool {
    let has_some = |layout: Layout| fs::read_to_string(layout.names).is_ok_and(|it| !it.is_empty());
    [V4, V6].into_iter().any(has_some)
}

/// A table at one moment.
struct Table<'a> {
    layout: Layout,
    name: &'a str,
    knows_connections: bool,
    /// Where the chains begin, and where their policies are.
    begin: [usize; 5],
    policy: [usize; 5],
    valid: u32,
    entries: Vec<u8>,
}

/// As [`refusals`](super::refusals), of iptables-legacy. Without such tables there is nothing.
///
/// # Errors
/// If the caller has no CAP_NET_ADMIN, or a table changes while it is read.
pub fn legacy_refusals(
    interface: (&str, u32),
    services: &[SocketAddr],
) -> io::Result<Vec<Refusal>> {
    let mut found: Vec<Refusal> = Vec::new();
    for layout in [V4, V6] {
        let tables = tables(layout)?;
        let of_it = services
            .iter()
            .filter(|it| it.is_ipv4() == (layout.address == 4));
        for probe in of_it.flat_map(|service| Probe::segments(*service, interface)) {
            let mut doubt = None;
            let certain = |table: &Table<'_>| table.refusal(probe, &mut doubt);
            if !probe.is_answered(&found) {
                let certain = tables.iter().find_map(certain);
                found.extend(certain.or(doubt));
            }
        }
    }
    Ok(without_old_doubts(found))
}

fn tables(layout: Layout) -> io::Result<Vec<Table<'static>>> {
    let names = fs::read_to_string(layout.names).unwrap_or_default();
    let there = TABLES
        .into_iter()
        .filter(|(name, _)| names.lines().any(|line| line == *name));
    let there: Vec<_> = there.collect();
    if there.is_empty() {
        return Ok(Vec::new());
    }
    let fd = socket(
        layout.family,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::Raw,
    )?;
    let read = |(name, knows)| Table::read(&fd, layout, name, knows);
    there.into_iter().map(read).collect()
}

impl<'a> Table<'a> {
    fn read(fd: &OwnedFd, layout: Layout, name: &'a str, knows: bool) -> io::Result<Self> {
        let mut info = vec![0; INFO];
        info[..name.len()].copy_from_slice(name.as_bytes());
        get(fd, layout.level, GET_INFO, &mut info)?;
        let number = |at: usize| u32_at(&info, at).unwrap_or(0);
        let offsets = |at: usize| [0, 1, 2, 3, 4].map(|hook| number(at + 4 * hook) as usize);
        let size = number(80);
        let mut entries = vec![0; ENTRIES + size as usize];
        entries[..name.len()].copy_from_slice(name.as_bytes());
        entries[NAME..NAME + 4].copy_from_slice(&size.to_ne_bytes());
        get(fd, layout.level, GET_ENTRIES, &mut entries)?;
        entries.drain(..ENTRIES);
        Ok(Self {
            layout,
            name,
            knows_connections: knows,
            begin: offsets(NAME + 4),
            policy: offsets(NAME + 24),
            valid: number(NAME),
            entries,
        })
    }

    /// The rule that drops it, or else what may, as the first doubt.
    fn refusal(&self, probe: Probe<'_>, doubts: &mut Option<Refusal>) -> Option<Refusal> {
        HOOKS.into_iter().find_map(|(number, hook, chain)| {
            if self.valid & (1 << number) == 0 || !probe.passes(hook) {
                return None;
            }
            let rules = |begin: &str| {
                let from = begin.parse().unwrap_or(usize::MAX);
                self.answers(from, probe)
            };
            let begin = self.begin[number];
            let name = |(at, rule): (String, u64), is_certain| {
                let is_built_in = at == begin.to_string();
                let policy = self.ordinal(begin, self.policy[number]);
                let chain = if is_built_in {
                    chain.to_owned()
                } else {
                    self.chain_name(&at)
                };
                Refusal {
                    chain: format!("{} {chain}", self.name),
                    handle: (!is_built_in || rule != policy).then_some(rule),
                    drops: probe.means,
                    service: probe.service,
                    is_certain,
                }
            };
            let mut doubt = None;
            let fate = walk(&begin.to_string(), &rules, 0, &mut doubt);
            if let (None, Some(place)) = (&doubts, doubt) {
                *doubts = Some(name(place, false));
            }
            match fate {
                Fate::Dropped(at, rule) => Some(name((at, rule), true)),
                Fate::Through | Fate::Other => None,
            }
        })
    }

    /// Place of an entry in its chain, from 1.
    fn ordinal(&self, begin: usize, wanted: usize) -> u64 {
        let (mut at, mut ordinal) = (begin, 1);
        while at < wanted {
            let Some(next) = self.next(at) else {
                return 0;
            };
            (at, ordinal) = (next, ordinal + 1);
        }
        ordinal
    }

    /// A chain of somebody's own begins behind an entry that has its name (an ERROR target).
    fn chain_name(&self, begin: &str) -> String {
        let begin: usize = begin.parse().unwrap_or(0);
        let mut at = 0;
        while let Some(next) = self.next(at) {
            if next == begin {
                let target = self
                    .entries
                    .get(at..next)
                    .and_then(|entry| self.target(entry));
                return text(target.and_then(|it| it.get(32..)).unwrap_or_default());
            }
            at = next;
        }
        begin.to_string()
    }

    fn next(&self, at: usize) -> Option<usize> {
        let entry = self.entries.get(at..)?;
        let next = at + usize::from(u16_at(entry, self.layout.target_at + 2)?);
        (next > at && next <= self.entries.len()).then_some(next)
    }

    fn target<'b>(&self, entry: &'b [u8]) -> Option<&'b [u8]> {
        entry.get(usize::from(u16_at(entry, self.layout.target_at)?)..)
    }

    /// What the rules of the chain that begins there say, to its end.
    fn answers(&self, from: usize, probe: Probe<'_>) -> Vec<Answer> {
        let mut answers = Vec::new();
        let mut at = from;
        while let Some(next) = self.next(at) {
            let handle = answers.len() as u64 + 1;
            let entry = &self.entries[at..next];
            let Some(answer) = self.ask(entry, next, handle, probe) else {
                break;
            };
            let is_end = answer.matches == Matches::Yes
                && matches!(
                    answer.verdict,
                    Verdict::Return | Verdict::Drop | Verdict::Accept
                );
            answers.push(answer);
            if is_end {
                break;
            }
            at = next;
        }
        answers
    }

    /// `None`: the chain has ended before.
    fn ask(&self, entry: &[u8], next: usize, handle: u64, probe: Probe<'_>) -> Option<Answer> {
        let mut looked = Looked::default();
        let mut matches = self.header(entry, probe)?;
        let target = usize::from(u16_at(entry, self.layout.target_at)?);
        let mut at = self.layout.entry;
        while at < target {
            let size = usize::from(u16_at(entry, at)?);
            let part = entry.get(at..at.checked_add(size.max(32))?)?;
            let name = text(part.get(2..31)?);
            let state = self.knows_connections.then_some(probe.state);
            let one = xtables::matches(&name, &part[32..], probe, state, &mut looked);
            matches = matches.and(one);
            at += size.max(32);
        }
        let target = entry.get(target..)?;
        let verdict = match text(target.get(2..31)?).as_str() {
            "" => verdict(u32_at(target, 32)?.cast_signed(), next, self.is_goto(entry)),
            "REJECT" => Verdict::Drop,
            "ERROR" => return None,
            "NFQUEUE" | "QUEUE" => Verdict::Accept,
            _ => Verdict::Continue,
        };
        let is_meant = probe.is_meant(looked);
        Some(Answer {
            handle,
            matches,
            verdict,
            is_meant,
            is_unclear: looked.unclear,
        })
    }

    /// IPT_F_GOTO, IP6T_F_GOTO
    fn is_goto(&self, entry: &[u8]) -> bool {
        let (at, bit) = if self.layout.address == 4 {
            (82, 2)
        } else {
            (131, 4)
        };
        entry.get(at).is_some_and(|flags| flags & bit != 0)
    }

    /// Addresses, interfaces and protocol (struct ipt_ip, struct ip6t_ip6).
    fn header(&self, entry: &[u8], probe: Probe<'_>) -> Option<Matches> {
        let len = self.layout.address;
        let names = 4 * len;
        let (protocol, inverted) = if len == 4 {
            (u16_at(entry, names + 64)?, *entry.get(names + 67)?)
        } else {
            (u16_at(entry, names + 64)?, *entry.get(names + 68)?)
        };
        // Source and destination, each with a bit of what is inverted.
        let first = if len == 4 { 12 } else { 8 };
        let mut matches = Matches::Yes;
        for (number, bit) in [(0, 8), (1, 16)] {
            let address = entry.get(number * len..(number + 1) * len)?;
            let mask = entry.get((number + 2) * len..(number + 3) * len)?;
            let one = if mask.iter().all(|byte| *byte == 0) {
                Matches::Yes
            } else if let Some(known) = probe.network(first + number * len, len) {
                let within = known.iter().zip(mask).map(|(byte, mask)| byte & mask);
                Matches::of(within.eq(address.iter().copied()))
            } else {
                Matches::Perhaps
            };
            matches = matches.and(one.inverted(inverted & bit != 0));
        }
        for (number, bit, is_its) in [(0, 1, probe.comes), (1, 2, !probe.comes)] {
            let at = names + 16 * number;
            let (name, mask) = (entry.get(at..at + 16)?, entry.get(at + 32..at + 48)?);
            let own = probe.interface.0.as_bytes().iter().copied();
            let own = own.chain(std::iter::repeat(0));
            let holds = own
                .zip(name)
                .zip(mask)
                .all(|((own, name), mask)| own & mask == *name);
            let one = Matches::of(holds && (is_its || mask.iter().all(|byte| *byte == 0)));
            matches = matches.and(one.inverted(inverted & bit != 0));
        }
        // IPT_INV_PROTO
        let one = Matches::of(protocol == 0 || protocol == 6);
        matches = matches.and(one.inverted(inverted & 0x40 != 0));
        // IPT_F_FRAG: of later fragments only.
        let is_of_fragments = len == 4 && entry.get(82)? & 1 != 0;
        Some(if is_of_fragments {
            Matches::No
        } else {
            matches
        })
    }
}

/// Of a standard target: negative is final, others are offsets of chains.
fn verdict(code: i32, next: usize, is_goto: bool) -> Verdict {
    match code {
        -1 => Verdict::Drop,
        -5 => Verdict::Return,
        code if code < 0 => Verdict::Accept,
        code if usize::try_from(code) == Ok(next) => Verdict::Continue,
        code if is_goto => Verdict::Goto(code.to_string()),
        code => Verdict::Jump(code.to_string()),
    }
}

fn get(fd: &OwnedFd, level: libc::c_int, name: libc::c_int, buffer: &mut [u8]) -> io::Result<()> {
    let mut len = libc::socklen_t::try_from(buffer.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `len` bytes, which the buffer has.
    let err = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            buffer.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if err == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}
