//! What this crate reads of certificates and lists.

use std::path::Path;

use godwit_wire::NodeName;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer as _;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::error::PkiError;
use crate::record::Serial;

/// A certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub(crate) serial: Serial,
    pub(crate) names: Vec<String>,
    pub(crate) issuer: Vec<u8>,
    pub(crate) subject: Vec<u8>,
    pub(crate) public_key: Vec<u8>,
    pub(crate) not_before: i64,
    pub(crate) not_after: i64,
}

impl Parsed {
    /// Reads the first certificate of a text.
    pub(crate) fn read(text: &str, path: &Path) -> Result<Self, PkiError> {
        Self::of(text).ok_or_else(|| PkiError::Content {
            path: path.to_owned(),
            wanted: "a certificate in PEM",
        })
    }

    fn of(text: &str) -> Option<Self> {
        let (_, pem) = parse_x509_pem(text.as_bytes()).ok()?;
        Self::of_der(&pem.contents)
    }

    /// Reads a certificate as TLS has it.
    pub(crate) fn of_der(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        Some(Self {
            serial: Serial::new(certificate.tbs_certificate.raw_serial()),
            names: names(&certificate),
            issuer: certificate.issuer().as_raw().to_vec(),
            subject: certificate.subject().as_raw().to_vec(),
            public_key: certificate.public_key().raw.to_vec(),
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
        })
    }

    /// The node whose it is: the only name in it.
    pub(crate) fn node(&self) -> Option<NodeName> {
        match &self.names[..] {
            [name] => NodeName::new(name).ok(),
            [] | [_, _, ..] => None,
        }
    }

    pub(crate) fn is_of(&self, name: NodeName) -> bool {
        self.names.iter().any(|it| it == name.as_str())
    }
}

fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let names = extension.value.general_names.iter();
    let names = names.filter_map(|name| {
        if let GeneralName::DNSName(name) = name {
            Some((*name).to_owned())
        } else {
            None
        }
    });
    names.collect()
}

/// A list of revoked certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParsedList {
    pub(crate) issuer: Vec<u8>,
    pub(crate) number: u64,
    /// Since when, in seconds since 1970.
    pub(crate) revoked: Vec<(Serial, i64)>,
}

impl ParsedList {
    /// Reads the first list of a text; `None` if it is none, or has no number that we would give.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (_, pem) = parse_x509_pem(text.as_bytes()).ok()?;
        let (_, list) = CertificateRevocationList::from_der(&pem.contents).ok()?;
        let revoked = list.iter_revoked_certificates();
        let revoked =
            revoked.map(|it| (Serial::new(it.raw_serial()), it.revocation_date.timestamp()));
        Some(Self {
            issuer: list.issuer().as_raw().to_vec(),
            number: u64::try_from(list.crl_number()?).ok()?,
            revoked: revoked.collect(),
        })
    }
}
