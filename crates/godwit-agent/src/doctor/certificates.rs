//! Whether an agent starts with the files of `[tls]`, peers take them, and for how long.

use std::fs;
use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use godwit_wire::NodeName;

use super::{Check, Host, Level, Scope};
use crate::config::TlsPaths;
use crate::peers::{Identity, TlsError, Validity, judge_key};
use crate::sentence::whole;

/// Seconds of a day.
const DAY: i64 = 86_400;

/// The facts that the certificate is good for links, and that nobody else can read the key.
const CERTIFICATE: &str = "certificate";
const KEY: &str = "key_file";

/// The facts that the list is good, and that the certificate is not on it.
const LIST: &str = "revocation_list";
const REVOKED: &str = "certificate_revoked";

/// That the files fit together, as an agent finds at its start.
const IDENTITY: &str = "identity";

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
    let Some((name, paths)) = &scope.certificates else {
        return Vec::new();
    };
    let key = key(&paths.key);
    let remaining = named(paths).map(|(name, path)| {
        let pem = host.read(&path.to_string_lossy()).unwrap_or_default();
        remaining(name, path, &pem, host.seconds()).check
    });
    let mut checks: Vec<_> = remaining.into_iter().chain(key).collect();
    let is_wrong = checks.iter().any(|check| check.level == Level::Fail);
    let found = identity(*name, paths, host.seconds());
    // What is said already is not said again in other words.
    let found = found.filter(|check| !is_wrong || check.level == Level::Ok);
    if let Some(found) = found {
        checks.retain(|check| check.name != found.name);
        checks.push(found);
    }
    checks
}

/// What an agent does at its start with these files, and its peers with what it shows them.
/// `None` if that is said best by the other checks.
fn identity(name: NodeName, paths: &TlsPaths, now: i64) -> Option<Check> {
    let identity = match Identity::load(paths, name) {
        Ok(identity) => identity,
        // The other checks say that it can't be read, or who can change it.
        Err(error) if error.is_for_want_of_rights() => return None,
        Err(TlsError::Changeable(_)) => return None,
        Err(error) => {
            let list = paths.crl.as_deref();
            let check = if list == Some(error.path()) {
                LIST
            } else {
                IDENTITY
            };
            let advice = "no agent starts with these files: put a certificate of this node, its \
                          key, its authority and the latest list there (godwit pki issue)";
            return Some(Check::fail(check, whole(&error), advice));
        }
    };
    let path = paths.cert.display();
    Some(match identity.judge(paths) {
        Err(error) => refusal(&error),
        Ok(()) if identity.is_list_overdue(now) => Check::warn(
            LIST,
            "the list of revoked certificates should have been followed by another one by now",
            "have the authority make one, and put it there",
        ),
        Ok(()) => Check::ok(IDENTITY, format!("{path} fits its key, authority and list")),
    })
}

/// Why peers refuse a link.
fn refusal(error: &TlsError) -> Check {
    let (name, advice) = if matches!(error, TlsError::Revoked { .. }) {
        let advice = "make another one (godwit pki issue), and find out who has the old key";
        (REVOKED, advice)
    } else {
        let advice = "peers refuse a link: put a certificate of their authority there";
        (CERTIFICATE, advice)
    };
    Check::fail(name, whole(error), advice)
}

/// Puts what peers have against the certificate in place of what its dates say, unless those
/// are wrong themselves.
pub(crate) fn note_refusal(checks: &mut [Check], judged: Result<(), TlsError>) {
    let Err(error) = judged else {
        return;
    };
    let is_it = |check: &&mut Check| check.name == CERTIFICATE && check.level != Level::Fail;
    if let Some(check) = checks.iter_mut().find(is_it) {
        *check = refusal(&error);
    }
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
    [(CERTIFICATE, &paths.cert), ("authority", &paths.ca)]
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
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::doctor::LiveHost;
    use crate::testing::{Pair, node, pki};

    /// What fails, at most one thing.
    fn failed(scope: &Scope) -> (String, String) {
        let found = checks(&LiveHost, scope).into_iter();
        let failed = found.filter(|check| check.level == Level::Fail);
        let failed: Vec<_> = failed.map(|it| (it.name, it.found)).collect();
        assert!(failed.len() <= 1, "{failed:?}");
        failed.into_iter().next().unwrap_or_default()
    }

    /// Whatever no agent starts with, or no peer takes, is a failure here.
    #[test]
    fn files_that_do_not_fit_together_are_a_failure() {
        let mut pair = Pair::new();
        let list = pair.dir().join("a/crl.pem");
        pair.a.tls.crl = Some(list.clone());
        let (tls, scope) = (pair.a.tls.clone(), Scope::of(&pair.a));
        let (authority, of_b) = (pair.dir().join("ca"), pair.dir().join("b"));
        copy(&authority.join(pki::CRL), &list);
        let other = another_authority();
        let good = |file: &Path| fs::read(file).expect("it is there");
        let files = [&tls.cert, &tls.key, &tls.ca, &list].map(|it| (it, good(it)));
        assert_eq!(failed(&scope), Default::default());
        let revoke = || {
            pki::revoke(&authority, node("a"));
            copy(&authority.join(pki::CRL), &list);
        };
        let not_its_own = "not the certificate of node";
        let cases: [(&str, &dyn Fn(), &str); 7] = [
            (
                IDENTITY,
                &|| copy(&of_b.join("node.pem"), &tls.cert),
                not_its_own,
            ),
            (
                IDENTITY,
                &|| copy(&of_b.join("node.key"), &tls.key),
                "is not that of",
            ),
            (
                IDENTITY,
                &|| copy(&other.path().join("ca.pem"), &tls.ca),
                "ca.pem: none of its authorities",
            ),
            (
                LIST,
                &|| copy(&other.path().join("crl.pem"), &list),
                "no authority in use",
            ),
            (
                LIST,
                &|| fs::remove_file(&list).expect("there"),
                "No such file",
            ),
            (
                LIST,
                &|| fs::write(&list, "x").expect("written"),
                "no list of revoked",
            ),
            (REVOKED, &revoke, "is revoked"),
        ];
        for (name, spoil, why) in cases {
            spoil();
            let (check, found) = failed(&scope);
            assert_eq!(check, name, "{found}");
            assert!(found.contains(why), "{found}");
            for (path, text) in &files {
                fs::write(path, text).expect("written");
            }
        }
    }

    /// No agent starts with such a file; the fact `believed_files` says so.
    #[test]
    fn what_others_can_write_is_not_said_twice() {
        let pair = Pair::new();
        let scope = Scope::of(&pair.a);
        fs::set_permissions(&pair.a.tls.ca, Permissions::from_mode(0o666)).expect("ours");
        assert_eq!(failed(&scope), Default::default());
    }

    /// Without a list nothing but the authority's own key says so.
    #[test]
    fn a_certificate_of_another_authority_is_a_failure() {
        let pair = Pair::new();
        let scope = Scope::of(&pair.a);
        assert_eq!(failed(&scope), Default::default());
        copy(&another_authority().path().join("ca.pem"), &pair.a.tls.ca);
        let (check, found) = failed(&scope);
        assert_eq!(check, CERTIFICATE, "{found}");
        assert!(found.contains("no authority in "), "{found}");
    }

    fn another_authority() -> tempfile::TempDir {
        let other = tempfile::tempdir().expect("a folder");
        pki::init(other.path()).expect("an authority");
        other
    }

    fn copy(from: &Path, to: &Path) {
        fs::copy(from, to).expect("copied");
    }

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
