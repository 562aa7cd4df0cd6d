//! Errors as people read them.

use std::error::Error;
use std::iter;

/// A sentence with all that lies behind it.
pub(crate) fn whole(error: &dyn Error) -> String {
    let causes = iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
