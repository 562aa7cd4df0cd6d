//! Tags of the frames that agents make themselves (`gw_tag.h`): a load, and a probe of the link.
//!
//! A tag is SipHash-2-4 (Aumasson and Bernstein, 2012) of words of 64 bits: which kind of frame it
//! is, and the frame's bytes behind the Ethernet header, as far as the kind has them tagged.

/// What of a peer is not believed without a tag.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TagDemand {
    /// It has not said that it tags anything.
    #[default]
    Nothing,
    /// Slips and segments: its version tags no more.
    Segments,
    /// Also notes, probes and canaries.
    All,
}

/// What a tagged frame is, as its tag says it first (`enum gw_tag_kind`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum TagKind {
    /// How loaded a server is.
    Load = 6,
    /// A probe of the link, or the answer to one.
    Probe = 8,
}

/// Its tag under a key of 16 bytes. Of `bytes` whole words count.
pub fn tag_of(kind: TagKind, bytes: &[u8], key: [u8; 16]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_be_bytes(*word));
    siphash(core::iter::once(u64::from(kind as u8)).chain(words), key)
}

/// SipHash-2-4 of words, each as its bytes in little-endian order; the key's halves are read in
/// big-endian order.
pub fn siphash(words: impl Iterator<Item = u64>, key: [u8; 16]) -> u64 {
    let key = u128::from_be_bytes(key);
    let [k0, k1] = [(key >> 64), key & u128::from(u64::MAX)]
        .map(|half| u64::try_from(half).unwrap_or_default());
    let mut state = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let mut count = 0_u64;
    for word in words {
        take_in(&mut state, word);
        count = count.wrapping_add(1);
    }
    // The length in bytes, of which there are eight in a word.
    take_in(&mut state, count << 59);
    state[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut state);
    }
    state.into_iter().fold(0, |all, part| all ^ part)
}

const fn take_in(state: &mut [u64; 4], word: u64) {
    state[3] ^= word;
    round(state);
    round(state);
    state[0] ^= word;
}

const fn round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *b = b.rotate_left(13) ^ *a;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*d);
    *d = d.rotate_left(16) ^ *c;
    *a = a.wrapping_add(*d);
    *d = d.rotate_left(21) ^ *a;
    *c = c.wrapping_add(*b);
    *b = b.rotate_left(17) ^ *c;
    *c = c.rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `vectors_sip64` of the reference implementation, for 8 bytes: 0, 1, 2 ... under a key of
    /// 0, 1, 2 ...
    #[test]
    fn it_is_siphash() {
        let bytes = [0, 1, 2, 3, 4, 5, 6, 7];
        let high = u64::from_le_bytes(bytes);
        let low = u64::from_le_bytes(bytes.map(|byte| byte + 8));
        let key = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
        let tag = siphash(core::iter::once(high), key);
        assert_eq!(
            tag.to_le_bytes(),
            [0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93]
        );
    }

    #[test]
    fn kinds_are_told_apart() {
        let tag = |kind| tag_of(kind, &[7; 8], [1; 16]);
        assert_ne!(tag(TagKind::Load), tag(TagKind::Probe));
        assert_ne!(tag(TagKind::Load), tag_of(TagKind::Load, &[7; 16], [1; 16]));
    }
}
