//! `godwit-lab`, which `godwit demo`, `bench` and `chaos` run.

use std::process::Command;

#[test]
fn a_lab_of_another_version_says_so() {
    let output = Command::new(env!("CARGO_BIN_EXE_godwit-lab"))
        .args(["demo", "nothing"])
        .env("GODWIT_LAB_CALLER", "0.0.1")
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    let own = env!("CARGO_PKG_VERSION");
    assert_eq!(
        said.trim(),
        format!(
            "godwit-lab: this is godwit-lab {own}, and godwit is of version 0.0.1: \
             install both from one build"
        )
    );
}
