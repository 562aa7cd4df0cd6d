//! Private keys, and who may read them.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::sign::SigningKey;
use zeroize::Zeroizing;

use super::fault::{TlsError, in_file};
use crate::custody::own_user;
use crate::files;

/// What the group and others are asked to be without.
const OTHERS: u32 = 0o077;

/// Reads a key that nobody else can read: what others have read is no secret. Its bytes are
/// wiped; what the library signs with stays as long as the identity is used.
pub(super) fn read(path: &Path) -> Result<Arc<dyn SigningKey>, TlsError> {
    let unreadable = |source| TlsError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let file = files::open(path).map_err(unreadable)?;
    // Of the file that is read, whatever its name leads to a moment later.
    judge(path, &file.metadata().map_err(unreadable)?)?;
    let text = Zeroizing::new(files::rest(file).map_err(unreadable)?);
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(in_file(path, "private key"))?;
    let key = Zeroizing::new(key);
    any_supported_type(&key).map_err(|source| TlsError::Key {
        path: path.to_owned(),
        source,
    })
}

/// Whether only root and this process's user can read a key.
///
/// # Errors
/// If somebody else can, or may have put it there.
pub(crate) fn judge(path: &Path, file: &Metadata) -> Result<(), TlsError> {
    let path = path.to_owned();
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

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{FileExt as _, PermissionsExt as _, chown};

    use super::*;
    use crate::testing::{Pair, is_alone};

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

    /// A key for tests, with the lowest bit of each octet turned over: so that it is in no
    /// memory but what this test puts it into.
    const MASKED: &[u8] = b",,,,,CDFHO!QSHW@UD!JDX,,,,,\x0bLHFI@fD@LCLFCxpFRL58@fDFBBpFRL58@vDICF1v`vHC@PPfKU.ctq3pq3WpLwVE\x0b.v@h@y4mCWi0yDlTM7m6UrGrDS7iS@OB@@S1@OD@SIdNNl7[MpiS{yiSx6CVL8ms\x0bGwSquyfkuHNwVDKpt2{mg69sE1mopttp2Iq2Bby5veBd0O60UFlS1ivO\x0b,,,,,DOE!QSHW@UD!JDX,,,,,\x0b";

    /// In a process of its own, of whose memory all is read.
    #[test]
    fn the_text_of_a_key_that_was_read_is_nowhere_in_memory() {
        if !is_alone("peers::key::tests::the_text_of_a_key_that_was_read_is_nowhere_in_memory") {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("node.key");
        let mut text = Zeroizing::new(MASKED.to_vec());
        text.iter_mut().for_each(|octet| *octet ^= 1);
        fs::write(&path, &*text).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("ours");
        assert!(found() > 0, "what is there is found");
        drop(text);
        assert_eq!(found(), 0, "what was wiped is not");
        let key = read(&path).expect("it is a key");
        assert_eq!(found(), 0);
        drop(key);
    }

    /// How often this process has the middle of the key's text in its memory.
    fn found() -> usize {
        let middle = &MASKED[70..130];
        let maps = fs::read_to_string("/proc/self/maps").expect("it is there");
        let memory = fs::File::open("/proc/self/mem").expect("it is there");
        let mut count = 0;
        let mut buffer = Zeroizing::new(Vec::new());
        for line in maps.lines().filter(|line| line.contains(" rw-p ")) {
            let range = line.split(' ').next().and_then(|it| it.split_once('-'));
            let (from, to) = range.expect("a range");
            let at = |text| u64::from_str_radix(text, 16).expect("a number");
            let length = usize::try_from(at(to) - at(from)).expect("it fits");
            buffer.resize(length, 0);
            // Guard pages can't be read.
            if memory.read_exact_at(&mut buffer, at(from)).is_ok() {
                let is_it = |window: &[u8]| window.iter().zip(middle).all(|(a, b)| a ^ b == 1);
                count += buffer.windows(middle.len()).filter(|it| is_it(it)).count();
            }
            buffer.fill(0);
        }
        count
    }
}
