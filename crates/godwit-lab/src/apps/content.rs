//! Bytes that look random and can be computed at any offset.
//!
//! A checker that knows them names the first wrong byte, where a digest only
//! says that there is one.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use ring::digest::{self, SHA256};

/// A stream of bytes, the same for the same seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Chooses the stream.
    pub seed: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// SHA-256 of a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest([u8; 32]);

/// Compares a received stream with what it should be.
pub struct Checker {
    expected: Content,
    position: u64,
    first_wrong: Option<u64>,
    sha: digest::Context,
    scratch: Vec<u8>,
}

/// What a [`Checker`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Bytes received.
    pub bytes: u64,
    /// Position of the first byte that is wrong or too much, if any.
    pub first_wrong: Option<u64>,
    /// Digest of what was received.
    pub digest: Digest,
    /// True if exactly the expected bytes came, all of them.
    pub exact: bool,
}

const CHUNK: usize = 64 * 1024;
/// Bytes that one step of the generator makes; divides 256.
const WORD: usize = 8;

impl Content {
    /// Fills `buffer` with the bytes from `offset` on; ignores the length.
    pub fn fill(&self, offset: u64, buffer: &mut [u8]) {
        let mut index = offset / WORD as u64;
        let skip = usize::from(offset.to_le_bytes()[0]) % WORD;
        let head = buffer.len().min((WORD - skip) % WORD);
        let (head, body) = buffer.split_at_mut(head);
        if !head.is_empty() {
            head.copy_from_slice(&self.word(index)[skip..skip + head.len()]);
            index += 1;
        }
        let mut words = body.chunks_exact_mut(WORD);
        for chunk in &mut words {
            chunk.copy_from_slice(&self.word(index));
            index += 1;
        }
        let tail = words.into_remainder();
        tail.copy_from_slice(&self.word(index)[..tail.len()]);
    }

    /// Writes the whole stream to a new file and returns its digest.
    ///
    /// # Errors
    /// Fails if the file can't be written.
    pub fn write_to(&self, path: &Path) -> Result<Digest> {
        let failed = || format!("writing {}", path.display());
        let mut file = BufWriter::new(File::create(path).with_context(failed)?);
        let mut sha = digest::Context::new(&SHA256);
        let mut buffer = vec![0; CHUNK];
        let mut offset = 0;
        while offset < self.length {
            let part = self.part(offset, &mut buffer);
            sha.update(part);
            file.write_all(part).with_context(failed)?;
            offset += part.len() as u64;
        }
        file.flush().with_context(failed)?;
        Ok(Digest::of(sha))
    }

    /// The next part of the stream at `offset`, at most as long as `buffer`.
    pub fn part<'a>(&self, offset: u64, buffer: &'a mut [u8]) -> &'a [u8] {
        let left = self.length.saturating_sub(offset);
        let length = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let part = &mut buffer[..length];
        self.fill(offset, part);
        part
    }

    /// Eight bytes by index: splitmix64 with the index as its counter.
    const fn word(&self, index: u64) -> [u8; 8] {
        let mut z = self
            .seed
            .wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    }
}

impl Digest {
    fn of(sha: digest::Context) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(sha.finish().as_ref());
        Self(bytes)
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl std::fmt::Debug for Checker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checker")
            .field("expected", &self.expected)
            .field("position", &self.position)
            .field("first_wrong", &self.first_wrong)
            .finish_non_exhaustive()
    }
}

impl Checker {
    /// Expects `expected` from its first byte on.
    pub fn new(expected: Content) -> Self {
        Self {
            expected,
            position: 0,
            first_wrong: None,
            sha: digest::Context::new(&SHA256),
            scratch: vec![0; CHUNK],
        }
    }

    /// Takes the next received bytes.
    pub fn feed(&mut self, mut received: &[u8]) {
        self.sha.update(received);
        while !received.is_empty() {
            let length = received.len().min(CHUNK);
            let (now, later) = received.split_at(length);
            let expected = self
                .expected
                .part(self.position, &mut self.scratch[..length]);
            if self.first_wrong.is_none() && expected != now {
                let same = expected.iter().zip(now).take_while(|(a, b)| a == b).count();
                self.first_wrong = Some(self.position + same as u64);
            }
            self.position += length as u64;
            received = later;
        }
    }

    /// What came until now is all that comes.
    pub fn finish(self) -> Verdict {
        Verdict {
            bytes: self.position,
            first_wrong: self.first_wrong,
            digest: Digest::of(self.sha),
            exact: self.first_wrong.is_none() && self.position == self.expected.length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: Content = Content {
        seed: 7,
        length: 200_000,
    };

    #[test]
    fn bytes_do_not_depend_on_where_the_reading_starts() {
        let mut whole = vec![0; 100];
        CONTENT.fill(0, &mut whole);
        for offset in 0..20 {
            for length in 0..40 {
                let mut part = vec![0; length];
                CONTENT.fill(offset as u64, &mut part);
                assert_eq!(part, whole[offset..offset + length], "{offset}+{length}");
            }
        }
    }

    #[test]
    fn the_first_wrong_byte_is_named() {
        let mut bytes = vec![0; 200_000];
        CONTENT.fill(0, &mut bytes);
        bytes[150_001] ^= 1;
        let mut checker = Checker::new(CONTENT);
        bytes.chunks(1000).for_each(|part| checker.feed(part));
        let verdict = checker.finish();
        assert_eq!(verdict.first_wrong, Some(150_001));
        assert!(!verdict.exact);
    }

    #[test]
    fn a_short_and_a_long_stream_are_not_exact() {
        let mut bytes = vec![0; 200_001];
        CONTENT.fill(0, &mut bytes);
        let check = |part: &[u8]| {
            let mut checker = Checker::new(CONTENT);
            checker.feed(part);
            checker.finish()
        };
        assert!(!check(&bytes[..199_999]).exact);
        assert!(check(&bytes[..200_000]).exact);
        assert_eq!(check(&bytes).first_wrong, Some(200_000));
    }
}
