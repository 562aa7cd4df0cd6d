//! Every decoder of the kernel's netlink answers at once, for noise: the tests
//! here, and a fuzz target.

use crate::netlink::read_datagram;
use crate::{address, device, listeners, neighbour, sockets, view};

/// Reads a datagram as the answer to each request that there is; how many
/// answers made sense to one.
pub fn read_all(datagram: &[u8]) -> usize {
    let mut understood = 0;
    // How it ends is the kernel's business.
    let _ = read_datagram(datagram, None, &mut |body: &[u8]| {
        let readings = [
            address::ours(body).is_some(),
            device::device(body).is_some(),
            listeners::listener(body).is_some(),
            listeners::queue(body).is_some(),
            neighbour::usable(body).is_some(),
            sockets::flow(body).is_some(),
            view::view(body).is_some(),
        ];
        understood += readings.into_iter().filter(|read| *read).count();
    });
    understood
}

#[cfg(test)]
mod tests {
    use super::*;

    /// splitmix64: enough for noise, and the same everywhere.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        fn below(&mut self, limit: usize) -> usize {
            usize::try_from(self.next() % limit as u64).expect("below a usize")
        }

        fn byte(&mut self) -> u8 {
            self.next().to_le_bytes()[0]
        }
    }

    /// A message with a header of the right length, or nearly.
    fn push_message(datagram: &mut Vec<u8>, noise: &mut Noise) {
        let body = noise.below(160);
        let wrong = u32::from(noise.byte()) * u32::from(noise.below(8) == 0);
        let length = 16 + u32::try_from(body).expect("small") + wrong;
        datagram.extend(length.to_ne_bytes());
        // Type, flags, sequence number, port.
        datagram.extend([20 + noise.byte() % 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        let start = datagram.len();
        datagram.extend((0..body).map(|_| noise.byte()));
        // Attributes of plausible lengths and types, from a plausible place on.
        let mut at = start + [8, 12, 16, 72][noise.below(4)];
        while at + 4 <= datagram.len() {
            let length = 4 + noise.below(40);
            datagram[at..at + 4].copy_from_slice(&[
                u8::try_from(length).expect("small"),
                0,
                noise.byte() % 40,
                0,
            ]);
            at += (length + 3) & !3;
        }
        datagram.resize(datagram.len().next_multiple_of(4), 0);
    }

    /// No answer panics or goes round for ever; some are understood, or the
    /// noise would be too wild to prove anything.
    #[test]
    fn noise_is_read_or_refused() {
        let mut noise = Noise(11);
        let mut understood = 0;
        for _ in 0..20_000 {
            let mut datagram = Vec::new();
            for _ in 0..noise.below(4) {
                push_message(&mut datagram, &mut noise);
            }
            for _ in 0..noise.below(4) {
                let at = noise.below(datagram.len().max(1));
                if let Some(byte) = datagram.get_mut(at) {
                    *byte = noise.byte();
                }
            }
            if noise.below(3) == 0 {
                datagram.truncate(noise.below(datagram.len() + 1));
            }
            understood += read_all(&datagram);
        }
        assert!(understood > 1000, "{understood}");
    }
}
