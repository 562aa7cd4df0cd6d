//! What a stranger forges, frame by frame: the right addresses and ports, and numbers that
//! he has to guess.

use godwit_lab::host::{Host, Network};
use godwit_wire::{EthernetHeader, MacAddr, TcpFlags};

use crate::bench::{
    IRS, ISS, SLIP_TYPE, WND, flow_id, note, summed, to_service, twin, with_options,
};

const ACK: TcpFlags = TcpFlags::ACK;
const DATA: [u8; 32] = [0x5a; 32];

/// The victim's first byte, and the service's.
pub(super) const CLIENT: u32 = IRS.wrapping_add(1);
pub(super) const SERVICE: u32 = ISS + 1;

/// TSecr of every canary, `GW_CANARY_MAGIC`.
const CANARY: [u8; 4] = 0x6777_4341_u32.to_be_bytes();

/// What a frame claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Syn,
    AckInside,
    AckOutside,
    DataInside,
    DataOutside,
    Fin,
    Rst,
    SynAck,
    /// A RST in the service's name.
    OwnerRst,
    TwinAck,
    OwnerWord,
    Question,
    Answer,
    /// A director's question about a SYN.
    Asked,
    Note,
    Load,
    ProbeAnswer,
    /// To a standby.
    Canary,
    /// To an owner.
    CanaryAnswer,
}

/// Numbers that follow from a seed (`SplitMix64`).
pub(super) struct Guesses(pub(super) u64);

impl Guesses {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn word(&mut self) -> u32 {
        let [.., a, b, c, d] = self.next().to_be_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    fn half(&mut self) -> [u8; 2] {
        let [.., a, b] = self.next().to_be_bytes();
        [a, b]
    }

    /// Of a note or a probe: every second one has a guess where its tag is.
    fn version(&mut self) -> u8 {
        1 + (self.half()[0] & 1)
    }

    /// A sequence number in the window that the victim's service offers, or outside it.
    fn seq(&mut self, inside: bool) -> u32 {
        let window = u32::from(WND);
        if inside {
            return CLIENT.wrapping_add(self.word() % window);
        }
        loop {
            let seq = self.word();
            // A segment that ends in the window is of it, too.
            if CLIENT.wrapping_add(window + 2).wrapping_sub(seq) > window + 64 {
                return seq;
            }
        }
    }

    /// An acknowledgement that TCP refuses (RFC 5961 section 5).
    fn ack(&mut self) -> u32 {
        loop {
            let ack = self.word();
            if SERVICE.wrapping_sub(ack) > 0xffff {
                return ack;
            }
        }
    }
}

/// One forged frame to this machine.
pub(super) fn frame(kind: Kind, port: u16, v6: bool, from: MacAddr, g: &mut Guesses) -> Vec<u8> {
    let mut frame = match kind {
        Kind::Syn => to_service(port, v6, g.word(), 0, TcpFlags::SYN, b""),
        Kind::AckInside | Kind::AckOutside => {
            let seq = g.seq(kind == Kind::AckInside);
            to_service(port, v6, seq, g.ack(), ACK, b"")
        }
        Kind::DataInside | Kind::DataOutside => {
            let seq = g.seq(kind == Kind::DataInside);
            to_service(port, v6, seq, g.ack(), ACK, &DATA)
        }
        Kind::Fin => to_service(port, v6, g.word(), g.ack(), ACK.with(TcpFlags::FIN), b""),
        Kind::Rst => to_service(port, v6, g.seq(false), g.word(), TcpFlags::RST, b""),
        Kind::SynAck => said(port, v6, from, ACK.with(TcpFlags::SYN), g),
        Kind::OwnerRst => said(port, v6, from, ACK.with(TcpFlags::RST), g),
        Kind::TwinAck | Kind::OwnerWord => said(port, v6, from, ACK, g),
        Kind::Question => slip(port, v6, 1, g),
        Kind::Answer => {
            let answer = [2, 3][usize::from(g.half()[0] & 1)];
            slip(port, v6, answer, g)
        }
        Kind::Asked => asked(port, v6, g),
        Kind::Note => learn(port, v6, g),
        Kind::Load => load(port, v6, g),
        Kind::ProbeAnswer => probe(g),
        Kind::Canary => stamped(to_service(7, v6, g.word(), g.word(), ACK, b""), v6, g),
        Kind::CanaryAnswer => {
            let numbers = (g.word(), g.word());
            stamped(twin(from, 7, v6, numbers, ACK, b""), v6, g)
        }
    };
    frame[..6].copy_from_slice(&Host::A.mac(Network::Data).0);
    frame[6..12].copy_from_slice(&from.0);
    frame
}

/// In the service's name. Every second one has the numbers that a twin or an owner would say,
/// and where a tag would be each has a guess.
fn said(port: u16, v6: bool, from: MacAddr, flags: TcpFlags, g: &mut Guesses) -> Vec<u8> {
    let numbers = match g.half()[0] & 1 {
        0 => (SERVICE, CLIENT),
        _ => (g.word(), g.word()),
    };
    tagged(twin(from, port, v6, numbers, flags, b""), v6, g)
}

/// With a guess where the tag of a segment is.
fn tagged(mut frame: Vec<u8>, v6: bool, g: &mut Guesses) -> Vec<u8> {
    let (tcp, half) = if v6 { (54, 16) } else { (34, 18) };
    frame[half..half + 2].copy_from_slice(&g.half());
    frame[tcp + 18..tcp + 20].copy_from_slice(&g.half());
    summed(frame, v6)
}

/// A request with a slip behind it, as the victim's server puts it, or as who is asked answers:
/// the right numbers, and a guess where the tag is.
fn slip(port: u16, v6: bool, kind: u8, g: &mut Guesses) -> Vec<u8> {
    let get = b"GET /b/x HTTP/1.1\r\nHost: s\r\n\r\n";
    let mut frame = to_service(port, v6, CLIENT, SERVICE, ACK.with(TcpFlags::PSH), get);
    frame[12..14].copy_from_slice(&SLIP_TYPE);
    frame.extend(*b"gwsp");
    frame.extend([3, kind, 0, 0]);
    frame.extend([0, 0, 0, 1 + (g.half()[0] & 1)]);
    frame.extend(IRS.to_be_bytes());
    frame.extend(ISS.to_be_bytes());
    frame.extend([0; 32]);
    frame.extend(g.next().to_be_bytes());
    frame
}

fn asked(port: u16, v6: bool, g: &mut Guesses) -> Vec<u8> {
    let mut frame = to_service(port, v6, g.word(), 0, TcpFlags::SYN, b"");
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// To a director: the connection is that one's. A server has no use for it.
fn learn(port: u16, v6: bool, g: &mut Guesses) -> Vec<u8> {
    let [high, low] = g.half();
    let mut frame = note(port, v6, MacAddr([2, 0, 0, 0, high, low]));
    frame[22..26].copy_from_slice(&g.word().to_be_bytes());
    frame
}

fn load(port: u16, v6: bool, g: &mut Guesses) -> Vec<u8> {
    let service = flow_id(port, v6).key.service;
    let version = g.version();
    let mut frame = vec![0; 12];
    frame.extend([0x88, 0xb5, 2, version, g.half()[0] % 101, 0, 0, 0, 0, 0]);
    frame.extend(service.addr.octets());
    frame.extend(service.port.to_be_bytes());
    frame.extend([0, 0]);
    if version == 2 {
        frame.extend([0; 4]);
        frame.extend(g.next().to_be_bytes());
        frame.extend(g.next().to_be_bytes());
    }
    frame
}

fn probe(g: &mut Guesses) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend(SLIP_TYPE);
    frame.extend([2, g.version(), 0, 0]);
    frame.extend(g.word().to_be_bytes());
    frame.extend(g.next().to_be_bytes());
    frame.resize(EthernetHeader::LEN + 200, 0);
    frame
}

/// With the time stamps of a canary, or of the answer to one; every second one with a guess
/// where its tag is.
fn stamped(frame: Vec<u8>, v6: bool, g: &mut Guesses) -> Vec<u8> {
    let is_answer = frame[6..12] == Host::B.mac(Network::Data).0;
    let guess = g.word().to_be_bytes();
    let [a, b] = if is_answer {
        [CANARY, guess]
    } else {
        [guess, CANARY]
    };
    let options = [&[1, 1, 8, 10][..], &a, &b].concat();
    let frame = with_options(frame, v6, &options);
    match g.half()[0] & 1 {
        0 => frame,
        _ => tagged(frame, v6, g),
    }
}
