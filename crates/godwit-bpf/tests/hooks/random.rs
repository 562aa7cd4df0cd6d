//! 20 000 frames of noise through each role: no fault, and no frame that goes
//! uncounted.

use std::io::Write as _;

use crate::bench::{
    Bench, DROP, IRS, ISS, NEXT, REDIRECT, from_service, on_bench, to_service, twin,
};
use godwit_bpf::Hook;
use godwit_lab::host::{Host, Network};
use godwit_wire::{EthernetHeader, Role, TcpFlags};

/// Environment variable with the seed of a run that is to be repeated.
const SEED_VARIABLE: &str = "GODWIT_TESTS_SEED";
const FRAMES: usize = 20_000;

/// splitmix64: enough for noise, and the same everywhere.
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("below a usize")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

/// A frame that began as a right one, or never was.
fn frame(noise: &mut Noise) -> Vec<u8> {
    let v6 = noise.below(2) == 1;
    let port = u16::from(noise.byte() % 4);
    let near = |noise: &mut Noise, to: u32| to.wrapping_add(u32::from(noise.byte()) % 40);
    let (seq, ack) = (near(noise, IRS), near(noise, ISS));
    let flags = TcpFlags(noise.byte());
    let payload = vec![0x55; noise.below(200)];
    let mut frame = match noise.below(4) {
        0 => to_service(port, v6, seq, ack, flags, &payload),
        1 => from_service(port, v6, ack, seq, flags, &payload),
        2 => twin(
            Host::B.mac(Network::Data),
            port,
            v6,
            (ack, seq),
            flags,
            &payload,
        ),
        _ => (0..EthernetHeader::LEN + 1 + noise.below(200))
            .map(|_| noise.byte())
            .collect(),
    };
    for _ in 0..noise.below(6) {
        let at = noise.below(frame.len());
        frame[at] = noise.byte();
    }
    // Options: data offset and rubbish behind the header.
    if noise.below(3) == 0 {
        let tcp = EthernetHeader::LEN + if v6 { 40 } else { 20 };
        for at in tcp + 12..(tcp + 60).min(frame.len()) {
            frame[at] = noise.byte();
        }
    }
    if noise.below(4) == 0 {
        frame.truncate(EthernetHeader::LEN + 1 + noise.below(frame.len()));
    }
    frame
}

fn total(bench: &Bench) -> u64 {
    bench.counts().iter().map(|(_, count)| count).sum()
}

/// The kernel's verifier says that no hook can fault; that each frame leaves by
/// a named way is what it can't know.
#[test]
fn noise_always_gets_a_verdict_and_a_reason() {
    let seed = std::env::var(SEED_VARIABLE)
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    let _ = writeln!(std::io::stderr(), "{SEED_VARIABLE}={seed}");
    on_bench(|bench| {
        let mut noise = Noise(seed);
        for port in 0..4 {
            bench.connect(port, false);
            bench.connect(port, true);
        }
        let (before, mut run) = (total(bench), 0);
        for number in 0..FRAMES {
            if number % 1000 == 0 {
                bench.play([Role::Owner, Role::Shadow, Role::None][number / 1000 % 3]);
            }
            let hook = [Hook::Tap, Hook::Gate, Hook::Guard][noise.below(3)];
            let frame = frame(&mut noise);
            let Some(verdict) = bench.verdict(hook, &frame) else {
                continue;
            };
            run += 1;
            assert!(
                [NEXT, DROP, REDIRECT].contains(&verdict),
                "frame {number}, {hook:?}: verdict {verdict} for {frame:02x?}"
            );
        }
        assert!(
            run > FRAMES as u64 * 9 / 10,
            "the kernel took {run} frames only"
        );
        let counted = total(bench) - before;
        assert!(counted >= run, "{run} frames, {counted} reasons");
    });
}
