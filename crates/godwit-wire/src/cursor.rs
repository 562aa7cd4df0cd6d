//! Bounds-checked reading of big-endian fields, shared by all formats.

use core::net::Ipv6Addr;

use crate::{Endpoint, Epoch, Generation, ParseError, SeqNumber, ShareId};

/// Walks over a buffer and never beyond it.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Offset of the next field from the start of the buffer.
    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    /// What has not been read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// An error about the field that starts at the next byte.
    pub(crate) fn error(&self, what: &'static str, got: impl Into<u64>) -> ParseError {
        ParseError {
            what,
            at: self.at,
            got: got.into(),
        }
    }

    pub(crate) fn bytes(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], ParseError> {
        let rest = self.rest();
        let field = rest
            .get(..len)
            .ok_or_else(|| self.error(what, rest.len() as u64))?;
        self.at += len;
        Ok(field)
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], ParseError> {
        let rest = self.rest();
        let field = rest
            .first_chunk::<N>()
            .ok_or_else(|| self.error(what, rest.len() as u64))?;
        self.at += N;
        Ok(*field)
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, ParseError> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, ParseError> {
        self.array(what).map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, ParseError> {
        self.array(what).map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, ParseError> {
        self.array(what).map(u64::from_be_bytes)
    }

    pub(crate) fn seq(&mut self, what: &'static str) -> Result<SeqNumber, ParseError> {
        self.u32(what).map(SeqNumber)
    }

    pub(crate) fn share(&mut self, what: &'static str) -> Result<ShareId, ParseError> {
        self.u32(what).map(ShareId)
    }

    pub(crate) fn epoch(&mut self, what: &'static str) -> Result<Epoch, ParseError> {
        self.u64(what).map(Epoch)
    }

    pub(crate) fn generation(&mut self, what: &'static str) -> Result<Generation, ParseError> {
        self.u32(what).map(Generation)
    }

    pub(crate) fn endpoint(&mut self, what: &'static str) -> Result<Endpoint, ParseError> {
        let addr = Ipv6Addr::from(self.array::<16>(what)?);
        Ok(Endpoint::new(addr, self.u16(what)?))
    }

    /// Reads a field that has one value only.
    pub(crate) fn expect(&mut self, value: u16, what: &'static str) -> Result<(), ParseError> {
        let at = self.at;
        let got = self.u16(what)?;
        verify(got == value, what, at, got)
    }

    /// Fails if anything is left: a format has no trailing bytes.
    pub(crate) fn finish(&self, what: &'static str) -> Result<(), ParseError> {
        match self.rest().len() {
            0 => Ok(()),
            left => Err(self.error(what, left as u64)),
        }
    }
}

/// Fails if a condition on the field at `at`, where `got` stands, does not hold.
pub(crate) fn verify(
    holds: bool,
    what: &'static str,
    at: usize,
    got: impl Into<u64>,
) -> Result<(), ParseError> {
    if holds {
        return Ok(());
    }
    Err(ParseError {
        what,
        at,
        got: got.into(),
    })
}
