//! How many random histories a property test tries.

use proptest::prelude::ProptestConfig;

/// `few`, so that a test takes seconds unoptimised, or `PROPTEST_CASES`.
pub(crate) fn histories(few: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok();
    ProptestConfig {
        failure_persistence: None,
        cases: asked.and_then(|text| text.parse().ok()).unwrap_or(few),
        ..ProptestConfig::default()
    }
}
