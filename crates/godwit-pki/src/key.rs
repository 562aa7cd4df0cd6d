//! Private keys, whose bytes are wiped when nobody needs them any more.
//!
//! What `ring` computes with, and what libraries copy while they read or make a key, is theirs
//! and is not wiped.

use std::path::Path;

use rcgen::{KeyPair, PublicKeyData, SignatureAlgorithm, SigningKey};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use zeroize::{Zeroize as _, Zeroizing};

use crate::authority::certificate;
use crate::error::PkiError;
use crate::files;

/// A key pair.
#[derive(Debug)]
pub(crate) struct Key(KeyPair);

impl Key {
    pub(crate) fn generate() -> Result<Self, PkiError> {
        let made = KeyPair::generate();
        made.map(Self).map_err(certificate("making a key"))
    }

    /// Reads PEM; `what` is being done if it is none.
    pub(crate) fn read(path: &Path, what: &'static str) -> Result<Self, PkiError> {
        let text = Zeroizing::new(files::read(path)?);
        let der = PrivateKeyDer::from_pem_slice(text.as_bytes());
        let der = Zeroizing::new(der.map_err(|_| PkiError::Content {
            path: path.to_owned(),
            wanted: "a private key in PEM",
        })?);
        let pair = KeyPair::try_from(&*der).map_err(certificate(what))?;
        Ok(Self(pair))
    }

    /// As files have it.
    pub(crate) fn pem(&self) -> Zeroizing<String> {
        pem(self.0.serialized_der())
    }

    /// PKCS #8.
    pub(crate) fn der(&self) -> &[u8] {
        self.0.serialized_der()
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl PublicKeyData for Key {
    fn der_bytes(&self) -> &[u8] {
        self.0.der_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.0.algorithm()
    }
}

impl SigningKey for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.0.sign(message)
    }
}

/// RFC 7468, in one piece of memory, so that nothing of it stays elsewhere.
fn pem(der: &[u8]) -> Zeroizing<String> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const HEAD: &str = "-----BEGIN PRIVATE KEY-----\n";
    const TAIL: &str = "-----END PRIVATE KEY-----\n";
    // A line has 48 octets as 64 digits.
    let lines = der.len().div_ceil(48);
    let room = HEAD.len() + lines * 65 + TAIL.len();
    let mut text = Zeroizing::new(String::with_capacity(room));
    text.push_str(HEAD);
    for line in der.chunks(48) {
        for three in line.chunks(3) {
            let octet = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
            let bits = octet(0) << 16 | octet(1) << 8 | octet(2);
            for at in 0..4 {
                let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
                text.push(if at <= three.len() {
                    char::from(digit)
                } else {
                    '='
                });
            }
        }
        text.push('\n');
    }
    text.push_str(TAIL);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of every length, as the library writes it, and without growing.
    #[test]
    fn a_key_is_written_as_others_read_it() {
        for length in 0..200_u8 {
            let der: Vec<u8> = (0..length).map(|it| it.wrapping_mul(37)).collect();
            let text = pem(&der);
            let (_, read) = x509_parser::pem::parse_x509_pem(text.as_bytes()).expect("PEM");
            assert_eq!((read.label.as_str(), &read.contents), ("PRIVATE KEY", &der));
            assert!(text.lines().all(|line| line.len() <= 64), "{}", *text);
            assert!(
                text.len()
                    <= "-----BEGIN PRIVATE KEY-----".len() * 2 + 2 + der.len().div_ceil(48) * 65
            );
        }
        let key = Key::generate().expect("a key");
        assert_eq!(*key.pem(), key.0.serialize_pem());
    }
}
