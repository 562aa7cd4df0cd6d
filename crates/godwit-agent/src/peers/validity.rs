//! From when until when a certificate is valid, and which one it is (RFC 5280 section 4.1.2).
//!
//! TLS judges a certificate only when a link is made. This reads the two times, so that
//! people hear of the end before it comes, and what a list of revoked ones names it by.

use super::der::{EXPLICIT_0, INTEGER, SEQUENCE, element, skip, time, unsigned};

/// The first and the last second of a certificate, since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: i64,
    pub(crate) not_after: i64,
}

/// What no other certificate has: its number among those of its issuer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label<'a> {
    pub(super) issuer: &'a [u8],
    pub(super) serial: &'a [u8],
}

impl Validity {
    /// Reads DER; `None` if it is no certificate.
    pub(crate) fn of(certificate: &[u8]) -> Option<Self> {
        let (_, times) = Label::and_times(certificate)?;
        let (not_before, times) = time(times)?;
        let (not_after, _) = time(times)?;
        Some(Self {
            not_before,
            not_after,
        })
    }
}

impl<'a> Label<'a> {
    /// Reads DER; `None` if it is no certificate.
    pub(super) fn of(certificate: &'a [u8]) -> Option<Self> {
        Self::and_times(certificate).map(|(label, _)| label)
    }

    fn and_times(certificate: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (certificate, _) = element(certificate, SEQUENCE)?;
        let (mut fields, _) = element(certificate, SEQUENCE)?;
        if fields.first() == Some(&EXPLICIT_0) {
            fields = skip(fields)?;
        }
        let (serial, fields) = element(fields, INTEGER)?;
        // The algorithm of its signature.
        let fields = skip(fields)?;
        let (issuer, fields) = element(fields, SEQUENCE)?;
        let (times, _) = element(fields, SEQUENCE)?;
        let serial = unsigned(serial);
        Some((Self { issuer, serial }, times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hostile or torn files must not panic.
    #[test]
    fn what_is_cut_is_no_certificate() {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject as _;

        let dir = tempfile::tempdir().expect("a folder");
        crate::testing::pki::init(dir.path()).expect("an authority");
        let der = CertificateDer::from_pem_file(dir.path().join("ca.pem")).expect("PEM");
        let whole = Validity::of(&der).expect("a certificate");
        assert!(whole.not_before < whole.not_after);
        for cut in 0..der.len() {
            assert_eq!(Validity::of(&der[..cut]), None, "{cut}");
            assert_eq!(Label::of(&der[..cut]), None, "{cut}");
        }
    }
}
