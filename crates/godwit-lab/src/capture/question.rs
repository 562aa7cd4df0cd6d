//! Questions about connections that servers of one service put to each other, as they pass the
//! switch: whoever is asked may speak for the connection from then on.

use std::time::SystemTime;

use godwit_wire::{FlowKey, MacAddr};

use super::frame::{FrameSeen, SegmentSeen};

/// EtherType of a frame with a slip behind its packet (`gw_slip.h`).
const TYPE: [u8; 2] = [0x88, 0xb6];
const MAGIC: &[u8] = b"gwsp";
/// Kinds of slips by which a connection may come: `GW_SLIP_ASK`, `GW_SLIP_BEGIN`.
const COMES: [u8; 2] = [1, 4];

/// A connection is offered to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) at: SystemTime,
    pub(crate) flow: FlowKey,
    /// The server that is asked, or the standby that sends the question on.
    pub(crate) to: MacAddr,
}

impl Question {
    /// Reads a whole frame that passed at `at`, if it is one.
    pub(super) fn parse(frame: &[u8], at: SystemTime) -> Option<Self> {
        let packet = frame.get(14..)?;
        if frame.get(12..14)? != TYPE {
            return None;
        }
        let (ether_type, length) = match packet.first()? >> 4 {
            4 => ([0x08, 0x00], be16(packet, 2)?),
            6 => ([0x86, 0xdd], 40 + be16(packet, 4)?),
            _ => return None,
        };
        let slip = packet.get(length..)?;
        if slip.get(..4)? != MAGIC || !COMES.contains(slip.get(5)?) {
            return None;
        }
        let mut bare = frame.to_vec();
        bare[12..14].copy_from_slice(&ether_type);
        let FrameSeen::Segment(segment) = FrameSeen::parse(0, &bare) else {
            return None;
        };
        let SegmentSeen {
            from, to, to_mac, ..
        } = segment;
        Some(Self {
            at,
            flow: FlowKey {
                client: from,
                service: to,
            },
            to: to_mac,
        })
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(usize::from(u16::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::UNIX_EPOCH;

    use godwit_wire::Endpoint;

    use super::*;

    const TO: [u8; 6] = [2, 0, 0, 0, 0, 0x13];

    /// A segment from 10.9.0.2:5000 to 10.9.0.100:80 with a slip of that kind behind it.
    fn asked(kind: u8) -> Vec<u8> {
        let mut frame = [&TO[..], &[2, 0, 0, 0, 0, 0x11], &TYPE].concat();
        frame.extend([0x45, 0, 0, 44, 0, 0, 0, 0, 64, 6, 0, 0]);
        frame.extend([10, 9, 0, 2, 10, 9, 0, 100]);
        frame.extend([0x13, 0x88, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10]);
        frame.extend([0, 0, 0, 0, 0, 0]);
        frame.extend(b"GET ");
        frame.extend(MAGIC);
        frame.extend([2, kind]);
        frame.extend([0; 46]);
        frame
    }

    #[test]
    fn a_question_names_the_connection_and_who_is_asked() {
        let end = |text: &str| Endpoint::from(text.parse::<SocketAddr>().expect("an address"));
        for kind in 0..8 {
            let question = Question::parse(&asked(kind), UNIX_EPOCH);
            let expected = COMES.contains(&kind).then_some(Question {
                at: UNIX_EPOCH,
                flow: FlowKey {
                    client: end("10.9.0.2:5000"),
                    service: end("10.9.0.100:80"),
                },
                to: MacAddr(TO),
            });
            assert_eq!(question, expected, "kind {kind}");
        }
    }

    #[test]
    fn anything_else_is_none() {
        let mut plain = asked(1);
        plain[12..14].copy_from_slice(&[0x08, 0]);
        assert_eq!(Question::parse(&plain, UNIX_EPOCH), None);
        let whole = asked(1);
        for length in 0..whole.len() - 48 {
            assert_eq!(Question::parse(&whole[..length], UNIX_EPOCH), None);
        }
    }
}
