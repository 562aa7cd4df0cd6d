//! Values of the file that are types of their own.

use std::fmt;

/// What a director's hash of flows begins with. Who knows it can choose who serves him.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub u64);

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

/// The name of a network interface, as the kernel allows it (1 to 15 bytes).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceName(pub(super) String);

impl InterfaceName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
