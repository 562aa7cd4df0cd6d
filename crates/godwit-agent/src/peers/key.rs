//! Private keys, and who may read them.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::OnceLock;

use nix::unistd::geteuid;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;

use super::fault::{TlsError, in_file};
use crate::files;

/// What the group and others are asked to be without.
const OTHERS: u32 = 0o077;

/// Reads a key that nobody else can read: what others have read is no secret.
pub(super) fn read(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let unreadable = |source| TlsError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let file = files::open(path).map_err(unreadable)?;
    // Of the file that is read, whatever its name leads to a moment later.
    judge(path, &file.metadata().map_err(unreadable)?)?;
    let text = files::rest(file).map_err(unreadable)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(in_file(path, "private key"))
}

/// Whether only root and this process's user can read a key.
///
/// # Errors
/// If somebody else can, or may have put it there.
pub(crate) fn judge(path: &Path, file: &Metadata) -> Result<(), TlsError> {
    let path = path.to_owned();
    // Asked for at the start in any case.
    let user = own_user();
    let (mode, owner) = (file.mode() & 0o777, file.uid());
    if mode & OTHERS != 0 {
        return Err(TlsError::KeyExposed { path, mode });
    }
    if owner != 0 && owner != user {
        return Err(TlsError::KeyOwner { path, owner });
    }
    Ok(())
}

/// As it was when the process began: later its filter of system calls knows no such question.
fn own_user() -> u32 {
    static USER: OnceLock<u32> = OnceLock::new();
    *USER.get_or_init(|| geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown};

    use super::*;
    use crate::testing::Pair;

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let pair = Pair::new();
        let path = &pair.a.tls.key;
        read(path).expect("it is made with 600");
        for mode in [0o400, 0o600, 0o700] {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
            read(path).expect("its owner only");
        }
        for mode in [0o640, 0o604, 0o620, 0o601, 0o644] {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
            let error = read(path).expect_err("others, too").to_string();
            assert!(error.contains(&format!("mode {mode:o}")), "{error}");
            assert!(error.contains("chmod 600 /"), "{error}");
        }
    }

    #[test]
    fn a_key_of_somebody_else_is_refused() {
        if own_user() != 0 {
            eprintln!("skipped: only root gives files away");
            return;
        }
        let pair = Pair::new();
        let path = &pair.a.tls.key;
        chown(path, Some(12_345), None).expect("we are root");
        let error = read(path).expect_err("another's").to_string();
        assert!(error.contains("belongs to user 12345"), "{error}");
        chown(path, Some(0), Some(12_345)).expect("we are root");
        read(path).expect("its group can't read it");
    }
}
