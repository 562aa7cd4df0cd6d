//! The error of a name that does not exist.

/// A demonstration, benchmark, figure, fault or attack that does not exist was asked for: the
/// arguments are wrong, not the run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unknown(String);

impl Unknown {
    /// With the sentence for people.
    pub(crate) const fn new(sentence: String) -> Self {
        Self(sentence)
    }
}
