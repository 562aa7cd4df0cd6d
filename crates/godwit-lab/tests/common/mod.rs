//! What the lab's tests share.

use std::io::Write as _;

use godwit_lab::{Lab, LabOptions};

/// A lab, or `None` with the reason printed if this machine can't have one.
pub(crate) fn lab(options: LabOptions) -> Option<Lab> {
    if let Err(reason) = Lab::available() {
        let _ = writeln!(std::io::stderr(), "skipped: {reason}");
        return None;
    }
    Some(Lab::new(options).expect("a lab can be built"))
}
