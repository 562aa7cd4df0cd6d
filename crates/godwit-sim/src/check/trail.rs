//! How a state came about.

use std::fmt;

use super::fault::Fault;

/// Faults, each with the number of the step that it came before.
#[derive(Debug, Clone, Default)]
pub(super) struct Trail {
    steps: u32,
    faults: Vec<(u32, Fault)>,
    /// What was said last of roles.
    pub(super) told: String,
}

impl Trail {
    /// One more step was taken.
    pub(super) const fn count(&mut self) {
        self.steps += 1;
    }

    pub(super) fn note(&mut self, fault: Fault) {
        self.faults.push((self.steps, fault));
    }

    /// The fault that comes next where as much has been taken as in `taken`.
    pub(super) fn fault_after(&self, taken: &Self) -> Option<Fault> {
        let (step, fault) = self.faults.get(taken.faults.len())?;
        (*step == taken.steps).then_some(*fault)
    }

    /// How many steps there were.
    pub(super) fn steps(&self) -> usize {
        usize::try_from(self.steps).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for Trail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (step, fault) in &self.faults {
            write!(f, "step {step}: {fault:?}, ")?;
        }
        write!(f, "step {}", self.steps)
    }
}
