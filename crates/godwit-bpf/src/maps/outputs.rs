//! `gw_verifies` and `gw_outputs`: how much of the output is compared, and the
//! sums of it (`gw_verify.h`).

use std::sync::Arc;

use godwit_wire::{Endpoint, FlowKey, SeqNumber, ShareId};
use libbpf_rs::MapHandle;

use super::slots::Slots;
use super::{MapError, TypedMap};
use crate::skel::types;

const _: () = assert!(size_of::<types::gw_verify>() == 152);
const _: () = assert!(size_of::<types::gw_output>() == 568);

/// The most headers whose values may differ.
pub const MAX_MASKS: usize = 4;

/// The longest name of such a header, in bytes.
pub const MAX_MASK_LEN: usize = 31;

/// How much of a share's output is compared, and how.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verification {
    /// Of 2^32; `u32::MAX`: everything; 0: nothing.
    pub part: u32,
    /// Names of headers whose values may differ, in ASCII, any case; those
    /// beyond [`MAX_MASKS`] or longer than [`MAX_MASK_LEN`] are left out.
    pub masks: Vec<String>,
}

impl Verification {
    fn to_raw(&self) -> types::gw_verify {
        let mut raw = types::gw_verify {
            part: self.part,
            masks: 0,
            mask: [types::gw_mask {
                name: [0; MAX_MASK_LEN + 1],
                len: 0,
            }; MAX_MASKS],
        };
        let usable = self
            .masks
            .iter()
            .filter(|name| !name.is_empty() && name.len() <= MAX_MASK_LEN);
        for (index, (name, mask)) in usable.zip(&mut raw.mask).enumerate() {
            for (to, from) in mask.name.iter_mut().zip(name.bytes()) {
                *to = from.to_ascii_lowercase();
            }
            mask.len = u32::try_from(name.len()).unwrap_or_default();
            raw.masks |= 1 << index;
        }
        raw
    }
}

/// The sum of the output up to a position, from where its block of 64 KiB
/// begins. Two sides that have said the same have the same sum there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputSum {
    /// Behind the last byte in the sum: offset in the stream, from 0, modulo 2^32.
    pub upto: u32,
    /// The sum.
    pub sum: u32,
}

impl OutputSum {
    const fn from_word(word: u64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "two halves of a word")]
        match word {
            0 => None,
            word => Some(Self {
                upto: (word >> 32) as u32,
                sum: word as u32,
            }),
        }
    }

    /// Whether the block ends there: both sides keep such a sum for a while.
    pub const fn is_whole_block(self) -> bool {
        self.upto.trailing_zeros() >= 16
    }
}

/// The sums that are kept of a flow's output.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// The four-tuple.
    pub key: FlowKey,
    /// Which use of it.
    pub irs: SeqNumber,
    latest: u64,
    blocks: [u64; 64],
}

impl Output {
    /// All of them, in no order; one of a whole block may be there twice.
    pub fn sums(&self) -> impl Iterator<Item = OutputSum> + '_ {
        let words = self.blocks.iter().chain([&self.latest]);
        words.filter_map(|word| OutputSum::from_word(*word))
    }

    /// The sum at a position, if there is one.
    pub fn sum_at(&self, upto: u32) -> Option<u32> {
        self.sums().find(|s| s.upto == upto).map(|s| s.sum)
    }

    /// The sum up to the latest byte that was looked at.
    pub fn latest(&self) -> Option<OutputSum> {
        OutputSum::from_word(self.latest)
    }
}

/// Typed access to `gw_verifies` and `gw_outputs`.
#[derive(Debug)]
pub struct OutputTable {
    verifies: TypedMap<u32, types::gw_verify>,
    slots: Arc<Slots>,
    outputs: TypedMap<types::gw_flow_key, types::gw_output>,
}

impl OutputTable {
    pub(crate) fn new(verifies: MapHandle, outputs: MapHandle, slots: Arc<Slots>) -> Self {
        Self {
            verifies: TypedMap::new(verifies, "gw_verifies"),
            slots,
            outputs: TypedMap::new(outputs, "gw_outputs"),
        }
    }

    /// Says how much of a share's output is to be compared. Must be alike on
    /// both sides; sums that are there already stay.
    ///
    /// # Errors
    /// Fails if the kernel refuses the write.
    pub fn verify(&self, share: ShareId, how: &Verification) -> Result<(), MapError> {
        self.verifies.update(&self.slots.of(share)?, &how.to_raw())
    }

    /// The sums of one flow, if any of its output was chosen.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn get(&self, key: FlowKey) -> Result<Option<Output>, MapError> {
        let raw_key = types::gw_flow_key::from(key);
        let raw = self.outputs.lookup(&raw_key)?;
        Ok(raw.map(|raw| output(raw_key, &raw)))
    }

    /// Calls `each` for every flow that has sums; those that come or go
    /// meanwhile may be missed or seen.
    ///
    /// # Errors
    /// Fails if the kernel refuses the read.
    pub fn for_each(&self, mut each: impl FnMut(Output)) -> Result<(), MapError> {
        self.outputs.for_each(|key, raw| each(output(key, &raw)))
    }
}

fn output(raw_key: types::gw_flow_key, raw: &types::gw_output) -> Output {
    Output {
        key: FlowKey {
            client: Endpoint::from(raw_key.client),
            service: Endpoint::from(raw_key.service),
        },
        irs: SeqNumber(raw.irs),
        latest: raw.latest,
        blocks: raw.block_sums,
    }
}
