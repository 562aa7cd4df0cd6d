//! What several of these tests need.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// `godwit-pki`, where `godwit pki` looks for it: beside the program that is tested. `godwit-lab`
/// is there, too. Cargo builds programs of the package under test only, so it is asked for these.
pub(crate) fn pki() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_godwit")).parent();
        let folder = folder.expect("it is in a folder");
        let profile = folder.file_name().and_then(|name| name.to_str());
        let profile = match profile.expect("it is named after the profile") {
            "debug" => "dev",
            other => other,
        };
        let built = Command::new(env!("CARGO"))
            .args([
                "build",
                "--locked",
                "--package",
                "godwit-pki",
                "--package",
                "godwit-lab",
            ])
            .args(["--profile", profile, "--target-dir"])
            .arg(folder.parent().expect("it is in a folder of its own"))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo runs");
        assert!(built.status.success(), "{built:?}");
        folder.join("godwit-pki")
    })
}
