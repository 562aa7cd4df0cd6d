//! The same work with and without Godwit, interleaved.
//!
//! Two labs that differ in nothing else: in one the servers run under Godwit,
//! in the other `a` has the service address the plain way. A round is plain,
//! Godwit, plain: what drifts over a round hits both sides alike.

use anyhow::Result;

use super::pair::{Pair, start_server};
use super::report::Measured;
use super::stats::Samples;
use crate::cluster::ClusterOptions;
use crate::host::Host;
use crate::lab::{Lab, LabOptions};
use crate::process::Process;

/// Which side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    Plain,
    Godwit,
    /// Plain once more: what differs from the first is noise.
    PlainAgain,
}

/// Both labs, idle.
#[derive(Debug)]
pub(super) struct Labs {
    pub(super) plain: Lab,
    pub(super) godwit: Lab,
}

/// Both labs with their servers.
#[derive(Debug)]
pub(super) struct Arms<'a> {
    plain: &'a Lab,
    pub(super) plain_server: Process,
    pub(super) pair: Pair<'a>,
}

/// One quantity on the three arms, a value per round.
#[derive(Clone, Debug, Default)]
pub(super) struct Compared {
    plain: Samples,
    godwit: Samples,
    again: Samples,
}

impl Labs {
    /// Builds both and does the same to each.
    pub(super) fn new(prepare: impl Fn(&Lab) -> Result<()>) -> Result<Self> {
        let labs = Self {
            plain: Lab::new(LabOptions::default())?,
            godwit: Lab::new(LabOptions::default())?,
        };
        prepare(&labs.plain)?;
        prepare(&labs.godwit)?;
        Ok(labs)
    }

    /// Starts the servers of both, and Godwit in one.
    pub(super) fn start(&self) -> Result<Arms<'_>> {
        let plain_server = start_server(&self.plain, Host::A)?;
        self.plain.take_service_address(Host::A)?;
        Ok(Arms {
            plain: &self.plain,
            plain_server,
            pair: Pair::start(&self.godwit, ClusterOptions::unfenced())?,
        })
    }
}

impl Arm {
    /// A whole round.
    pub(super) const ROUND: &'static [Self] = &[Self::Plain, Self::Godwit, Self::PlainAgain];

    /// A round without a control, for those in a hurry.
    pub(super) const SHORT_ROUND: &'static [Self] = &[Self::Plain, Self::Godwit];
}

impl<'a> Arms<'a> {
    /// The lab where `arm` runs.
    pub(super) const fn lab(&self, arm: Arm) -> &'a Lab {
        match arm {
            Arm::Plain | Arm::PlainAgain => self.plain,
            Arm::Godwit => self.pair.lab,
        }
    }

    /// Runs `work` on each of `order` and records what it returns.
    pub(super) fn round(
        &self,
        order: &[Arm],
        compared: &mut Compared,
        mut work: impl FnMut(&Lab) -> Result<f64>,
    ) -> Result<()> {
        for &arm in order {
            compared.push(arm, work(self.lab(arm))?);
        }
        Ok(())
    }
}

impl Compared {
    pub(super) fn push(&mut self, arm: Arm, value: f64) {
        match arm {
            Arm::Plain => self.plain.push(value),
            Arm::Godwit => self.godwit.push(value),
            Arm::PlainAgain => self.again.push(value),
        }
    }

    /// Godwit / plain, and plain / plain; of the middle values.
    pub(super) fn ratio(&self) -> Measured {
        self.compare(|one, other| one / other)
    }

    /// Godwit - plain, and plain - plain; of the middle values.
    pub(super) fn difference(&self) -> Measured {
        self.compare(|one, other| one - other)
    }

    /// Godwit and plain as they are; of the middle values.
    pub(super) fn absolute(&self) -> Measured {
        Measured {
            value: self.godwit.p50(),
            control: self.plain.p50(),
            runs: self.godwit.runs(),
        }
    }

    fn compare(&self, how: impl Fn(f64, f64) -> f64) -> Measured {
        let against = |side: &Samples| Some(how(side.p50()?, self.plain.p50()?));
        Measured {
            value: against(&self.godwit),
            control: against(&self.again),
            runs: self.godwit.runs(),
        }
    }
}
