//! Reads tcpdump's files: the classic format with nanoseconds, native order.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use godwit_wire::{Endpoint, MacAddr, TcpFlags};

use super::frame::{FrameSeen, SegmentSeen};

/// Magic number of a file whose times are in nanoseconds.
const MAGIC_NANO: u32 = 0xa1b2_3c4d;

const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

/// What a capture holds, in the order in which it passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// All frames.
    pub frames: Vec<FrameSeen>,
}

impl Trace {
    /// Reads a whole file; a record that is cut off at its end is left out.
    pub(super) fn parse(file: &[u8]) -> Result<Self> {
        let magic = word(file, 0).context("the capture is empty")?;
        ensure!(magic == MAGIC_NANO, "unknown capture format {magic:#x}");
        let mut frames = Vec::new();
        let mut at = FILE_HEADER;
        while let Some((time, length)) = record(file, at) {
            at += RECORD_HEADER;
            let Some(bytes) = file.get(at..at + length) else {
                break;
            };
            frames.push(FrameSeen::parse(time, bytes));
            at += length;
        }
        Ok(Self { frames })
    }

    /// The TCP segments.
    pub fn segments(&self) -> impl Iterator<Item = &SegmentSeen> + Clone {
        self.frames.iter().filter_map(|frame| match frame {
            FrameSeen::Segment(segment) => Some(segment),
            FrameSeen::Arp(_) | FrameSeen::Advertisement(_) | FrameSeen::Other => None,
        })
    }

    /// TCP segments with RST, either way.
    pub fn resets(&self) -> usize {
        self.segments()
            .filter(|s| s.flags.contains(TcpFlags::RST))
            .count()
    }

    /// Segments of the service that came from a machine after another one had
    /// already taken over its flow: the *second voices* of invariant 1.
    ///
    /// A flow may change its machine any number of times, but a machine that
    /// spoke before another one may not speak again.
    pub fn second_voices(&self, service: Endpoint) -> Vec<SegmentSeen> {
        let mut silenced = BTreeSet::new();
        let mut speaking = BTreeMap::<_, MacAddr>::new();
        let mut found = Vec::new();
        for segment in self.segments().filter(|s| s.from == service) {
            let Some(flow) = segment.flow(service) else {
                continue;
            };
            // The same four-tuple with a new SYN-ACK is another connection.
            if segment.flags.contains(TcpFlags::SYN) {
                silenced.retain(|(silent, _)| *silent != flow);
                speaking.remove(&flow);
            }
            if silenced.contains(&(flow, segment.from_mac)) {
                found.push(*segment);
                continue;
            }
            let before = speaking.insert(flow, segment.from_mac);
            if let Some(before) = before.filter(|mac| *mac != segment.from_mac) {
                silenced.insert((flow, before));
            }
        }
        found
    }

    /// How often another machine than before spoke for `service`, by client: at
    /// most as often as the service has changed hands.
    pub fn voice_changes(&self, service: Endpoint) -> BTreeMap<Endpoint, usize> {
        let mut voices: BTreeMap<Endpoint, (MacAddr, usize)> = BTreeMap::new();
        for segment in self.segments().filter(|s| s.from == service) {
            let now = segment.from_mac;
            let (voice, changes) = voices.entry(segment.to).or_insert((now, 0));
            if *voice != now {
                (*voice, *changes) = (now, *changes + 1);
            }
        }
        let counts = voices.into_iter();
        counts
            .map(|(client, (_, changes))| (client, changes))
            .collect()
    }
}

/// Time in nanoseconds and captured length of the record at `at`.
fn record(file: &[u8], at: usize) -> Option<(u64, usize)> {
    let seconds = u64::from(word(file, at)?);
    let nanos = u64::from(word(file, at + 4)?);
    let length = usize::try_from(word(file, at + 8)?).ok()?;
    word(file, at + 12)?;
    Some((seconds * 1_000_000_000 + nanos, length))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use godwit_wire::SeqNumber;

    use super::*;

    fn service() -> Endpoint {
        Endpoint::new(Ipv4Addr::new(10, 9, 0, 100).to_ipv6_mapped(), 80)
    }

    fn spoken(by: u8, flags: u8) -> FrameSeen {
        FrameSeen::Segment(SegmentSeen {
            at_ns: 0,
            from_mac: MacAddr([2, 0, 0, 0, 0, by]),
            to_mac: MacAddr([2, 0, 0, 0, 0, 0x10]),
            from: service(),
            to: Endpoint::new(Ipv4Addr::new(10, 9, 0, 10).to_ipv6_mapped(), 4000),
            flags: TcpFlags(flags),
            seq: SeqNumber(0),
            ack: SeqNumber(0),
            window: 0,
            length: 0,
            wscale: None,
            ts_val: None,
            ecn: 0,
        })
    }

    #[test]
    fn a_takeover_is_one_voice_and_a_return_is_two() {
        let trace = |voices: &[u8]| Trace {
            frames: voices.iter().map(|by| spoken(*by, 0x10)).collect(),
        };
        assert!(trace(&[1, 1, 2, 2]).second_voices(service()).is_empty());
        assert_eq!(trace(&[1, 2, 1, 2]).second_voices(service()).len(), 1);
    }

    #[test]
    fn voices_that_take_turns_are_counted() {
        let frames = [1, 1, 2, 1, 1, 2].map(|by| spoken(by, 0x10)).into();
        let changes = Trace { frames }.voice_changes(service());
        assert_eq!(changes.into_values().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_new_connection_may_come_from_the_first_machine_again() {
        let frames = vec![
            spoken(1, 0x10),
            spoken(2, 0x10),
            spoken(1, 0x12),
            spoken(1, 0x10),
        ];
        assert!(Trace { frames }.second_voices(service()).is_empty());
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_is_read_as_far_as_it_goes() {
        let mut file = MAGIC_NANO.to_ne_bytes().to_vec();
        file.resize(FILE_HEADER, 0);
        for number in [1u32, 2, 14, 20] {
            file.extend(number.to_ne_bytes());
        }
        file.extend([0; 14]);
        for length in FILE_HEADER..=file.len() {
            let frames = Trace::parse(&file[..length]).map(|t| t.frames.len());
            let whole = usize::from(length == file.len());
            assert!(matches!(frames, Ok(n) if n == whole), "{length}");
        }
        assert!(Trace::parse(&file[..3]).is_err());
        assert!(Trace::parse(&[0; 40]).is_err());
    }
}
