//! How long the certificates of this node are valid.

use std::fs;
use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::{Check, Host, Scope};
use crate::config::TlsPaths;
use crate::peers::{Validity, judge_key};

/// Seconds of a day.
const DAY: i64 = 86_400;

/// The fact that nobody else can read the key.
const KEY: &str = "key_file";

/// Fewer days than these are a warning, or than a third of the certificate's life: a short one
/// is renewed when half of that is over.
const FEW: i64 = 14;

/// A check, and the days that are left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remaining {
    pub(crate) check: Check,
    pub(crate) days: Option<i64>,
}

pub(super) fn checks(host: &impl Host, scope: &Scope) -> Vec<Check> {
    let Some(paths) = &scope.certificates else {
        return Vec::new();
    };
    let key = key(&paths.key);
    let remaining = named(paths).map(|(name, path)| {
        let pem = host.read(&path.to_string_lossy()).unwrap_or_default();
        remaining(name, path, &pem, host.seconds()).check
    });
    remaining.into_iter().chain(key).collect()
}

/// Whether others can read the key; `None` if it can't be looked at.
pub(crate) fn key(path: &Path) -> Option<Check> {
    let file = fs::metadata(path).ok()?;
    let shown = path.display();
    Some(match judge_key(path, &file) {
        Ok(()) => Check::ok(KEY, format!("{shown}, for its owner only")),
        Err(error) => Check::fail(
            KEY,
            error.to_string(),
            "no agent starts with it, and it is no secret if somebody has read it: make another \
             one (godwit pki issue)",
        ),
    })
}

/// The files with certificates, and the names of their facts.
pub(crate) fn named(paths: &TlsPaths) -> [(&'static str, &Path); 2] {
    [("certificate", &paths.cert), ("authority", &paths.ca)]
}

/// Of several certificates in one file, the first to end counts.
pub(crate) fn remaining(name: &'static str, path: &Path, pem: &[u8], now: i64) -> Remaining {
    let path = path.display();
    let certificates = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
    let validities: Vec<_> = certificates.filter_map(|it| Validity::of(&it)).collect();
    let first_to_end = validities.iter().min_by_key(|it| it.not_after);
    let few = first_to_end.map_or(0, |it| ((it.not_after - it.not_before) / 3).min(FEW * DAY));
    let first_end = first_to_end.map(|validity| validity.not_after);
    let last_begin = validities.iter().map(|it| it.not_before).max();
    let (Some(end), Some(begin)) = (first_end, last_begin) else {
        return Remaining {
            check: Check::warn(
                name,
                format!("{path} can't be read"),
                "run as a user who may read it, and see that it holds PEM",
            ),
            days: None,
        };
    };
    let days = (end - now).div_euclid(DAY);
    let advice = "put renewed files there: the agent takes them without a restart";
    let check = if now < begin {
        Check::fail(
            name,
            format!("{path} is not valid yet: no new link to a peer can be made"),
            "set the clock (timedatectl), or put a valid certificate there",
        )
    } else if now > end {
        let found = format!("{path} has expired: no new link to a peer can be made");
        Check::fail(name, found, advice)
    } else if end - now < few {
        Check::warn(name, format!("{path} expires in {days} days"), advice)
    } else {
        Check::ok(name, format!("{path}, {days} days left"))
    };
    Remaining {
        check,
        days: Some(days),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;
    use crate::testing::pki;

    /// By day of the life of a certificate.
    #[test]
    fn the_end_is_said_before_it_comes() {
        let dir = tempfile::tempdir().expect("a folder");
        pki::init(dir.path()).expect("an authority");
        let name = "a".parse().expect("a name");
        pki::issue(dir.path(), name, dir.path(), Some(100)).expect("a certificate");
        let path = dir.path().join("node.pem");
        let pem = fs::read(&path).expect("there");
        let der = CertificateDer::from_pem_slice(&pem).expect("PEM");
        let validity = Validity::of(&der).expect("a certificate");
        let table = [
            (validity.not_after - 100 * DAY, Level::Ok, "100 days left"),
            (validity.not_after - 14 * DAY, Level::Ok, "14 days left"),
            (validity.not_after - 13 * DAY, Level::Warn, "in 13 days"),
            (validity.not_after, Level::Warn, "in 0 days"),
            (validity.not_after + 1, Level::Fail, "has expired"),
            (validity.not_before - 1, Level::Fail, "not valid yet"),
        ];
        for (now, level, found) in table {
            let remaining = remaining("certificate", &path, &pem, now);
            assert_eq!(remaining.check.level, level, "{found}");
            assert!(remaining.check.found.contains(found), "{remaining:?}");
        }
        let torn = remaining("certificate", &path, &pem[..50], validity.not_before);
        assert_eq!((torn.check.level, torn.days), (Level::Warn, None));
    }

    /// It is renewed when half of it is over, so 14 days before its end all may be well.
    #[test]
    fn a_short_life_is_warned_of_when_two_thirds_of_it_are_over() {
        let dir = tempfile::tempdir().expect("a folder");
        let (authority, out) = (dir.path().join("ca"), dir.path().join("a"));
        pki::init(&authority).expect("an authority");
        pki::issue(&authority, "a".parse().expect("a name"), &out, None).expect("issued");
        pki::renew(&authority, &out, 29);
        let pem = fs::read(out.join("node.pem")).expect("there");
        let der = CertificateDer::from_pem_slice(&pem).expect("PEM");
        let validity = Validity::of(&der).expect("a certificate");
        assert_eq!(validity.not_after - validity.not_before, 30 * DAY);
        for (left, level) in [(14, Level::Ok), (10, Level::Ok), (9, Level::Warn)] {
            let now = validity.not_after - left * DAY;
            let remaining = remaining("certificate", &out, &pem, now);
            assert_eq!(remaining.check.level, level, "{left}");
            assert_eq!(remaining.days, Some(left));
        }
    }
}
