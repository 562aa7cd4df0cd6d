use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use godwit_wire::NodeName;
use tempfile::TempDir;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer as _;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::parsed::{Parsed, ParsedList};
use crate::record::Record;
use crate::times::{self, DAY};
use crate::*;

fn folder() -> TempDir {
    let dir = tempfile::tempdir().expect("temporary folder");
    // Whatever the mask of who runs this is.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    dir
}

fn authority() -> TempDir {
    let dir = folder();
    init(dir.path()).expect("an authority");
    dir
}

fn node(name: &str) -> NodeName {
    NodeName::new(name).expect("a name")
}

fn order<'a>(name: &str, out: &'a Path) -> Order<'a> {
    Order {
        name: node(name),
        out,
        life: Life::Usual,
        unless_valid_for: None,
    }
}

fn made(dir: &Path, name: &str, out: &Path) -> Entry {
    match issue(dir, &order(name, out)).expect("issued") {
        Issued::Made { entry, .. } => entry,
        Issued::Kept { .. } => panic!("nothing was there"),
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("written").permissions().mode() & 0o777
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).expect("it is there")
}

/// What the list says is revoked.
fn listed(dir: &Path) -> Vec<String> {
    let text = text(&dir.join(CRL));
    let (_, pem) = parse_x509_pem(text.as_bytes()).expect("PEM");
    let (_, list) = CertificateRevocationList::from_der(&pem.contents).expect("a list");
    let serials = list.iter_revoked_certificates();
    serials
        .map(|it| Serial::new(it.raw_serial()).to_string())
        .collect()
}

#[test]
fn keys_are_readable_by_their_owner_only() {
    let dir = authority();
    let out = dir.path().join("a");
    made(dir.path(), "a", &out);
    assert_eq!(mode(&dir.path().join(CA_KEY)), 0o600);
    assert_eq!(mode(&out.join(NODE_KEY)), 0o600);
    assert_eq!(text(&out.join(CA_CERT)), text(&dir.path().join(CA_CERT)));
    assert_eq!(text(&out.join(CRL)), text(&dir.path().join(CRL)));
    assert!(listed(&out).is_empty());
}

/// A link or an open file that somebody has put there does not get the key.
#[test]
fn what_was_planted_is_replaced_and_not_written_to() {
    let dir = authority();
    let out = dir.path().join("a");
    fs::create_dir(&out).expect("a folder");
    let trap = dir.path().join("trap");
    fs::write(&trap, "").expect("written");
    symlink(&trap, out.join(NODE_KEY)).expect("a link");
    // The names that are written to first, for this process.
    for attempt in 0..3 {
        let planted = format!(".{NODE_KEY}.{}-{attempt}", std::process::id());
        symlink(&trap, out.join(planted)).expect("a link");
    }
    made(dir.path(), "a", &out);
    assert_eq!(text(&trap), "");
    let key = out.join(NODE_KEY);
    assert!(!key.symlink_metadata().expect("written").is_symlink());
    assert_eq!(mode(&key), 0o600);
}

#[test]
fn a_second_authority_does_not_replace_the_first() {
    let dir = authority();
    assert!(matches!(init(dir.path()), Err(PkiError::Exists { .. })));
    // Nor does it write through a link that leads nowhere yet.
    let other = folder();
    let trap = other.path().join("trap");
    symlink(&trap, other.path().join(CA_KEY)).expect("a link");
    assert!(matches!(init(other.path()), Err(PkiError::Exists { .. })));
    assert!(!trap.exists());
}

#[test]
fn without_an_authority_the_missing_file_is_named() {
    let dir = folder();
    let error = issue(dir.path(), &order("a", dir.path())).expect_err("no authority");
    assert!(error.to_string().ends_with("ca.pem"), "{error}");
    let missing = dir.path().join("nowhere");
    let error = issue(&missing, &order("a", dir.path())).expect_err("no folder");
    assert!(error.to_string().ends_with("nowhere/ca.pem"), "{error}");
}

#[test]
fn authorities_have_names_of_their_own() {
    let subject = |dir: &TempDir| {
        let path = dir.path().join(CA_CERT);
        Parsed::read(&text(&path), &path)
            .expect("it is one")
            .subject
    };
    assert_ne!(subject(&authority()), subject(&authority()));
}

#[test]
fn the_key_of_another_authority_signs_nothing() {
    let (dir, other) = (authority(), authority());
    fs::copy(other.path().join(CA_KEY), dir.path().join(CA_KEY)).expect("copied");
    let error = issue(dir.path(), &order("a", dir.path())).expect_err("another key");
    assert!(matches!(error, PkiError::OtherKey { .. }), "{error}");
    let error = revoke(dir.path(), &Which::Name(node("a"))).expect_err("another key");
    assert!(matches!(error, PkiError::OtherKey { .. }), "{error}");
}

#[test]
fn a_certificate_lives_for_a_year_and_an_authority_for_ten() {
    let dir = authority();
    let now = times::now();
    let of = |path: &Path| Parsed::read(&text(path), path).expect("it is one");
    let days = |path: &Path| (of(path).not_after - now + DAY / 2).div_euclid(DAY);
    assert_eq!(days(&dir.path().join(CA_CERT)), 3650);
    let out = dir.path().join("a");
    made(dir.path(), "a", &out);
    assert_eq!(days(&out.join(NODE_CERT)), 365);
    for (asked, given) in [(1, 1), (90, 90)] {
        let mut order = order("a", &out);
        order.life = Life::Days(asked);
        issue(dir.path(), &order).expect("issued");
        assert_eq!(days(&out.join(NODE_CERT)), given);
    }
    for asked in [0, 3651, u16::MAX] {
        let mut order = order("a", &out);
        order.life = Life::Days(asked);
        let error = issue(dir.path(), &order).expect_err("so many are not asked for");
        assert!(matches!(error, PkiError::Days { .. }), "{error}");
    }
}

/// A day before the authority's end, and a day after it.
#[test]
fn no_certificate_outlives_its_authority() {
    let dir = authority();
    let day = Duration::from_secs(86_400);
    let shorten = |ends: SystemTime| {
        let key = rcgen::KeyPair::from_pem(&text(&dir.path().join(CA_KEY))).expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.not_after = ends.into();
        let pem = params.self_signed(&key).expect("signed").pem();
        fs::write(dir.path().join(CA_CERT), pem).expect("written");
    };
    let out = dir.path().join("a");
    let mut order = order("a", &out);
    shorten(SystemTime::now() + day + day / 2);
    order.life = Life::Days(2);
    let error = issue(dir.path(), &order).expect_err("it would outlive it");
    assert!(error.to_string().contains("1 days at most"), "{error}");
    order.life = Life::Days(1);
    issue(dir.path(), &order).expect("issued");
    order.life = Life::Usual;
    let issued = issue(dir.path(), &order).expect("issued");
    assert!(matches!(
        issued,
        Issued::Made {
            days: 1,
            is_cut: true,
            ..
        }
    ));
    shorten(SystemTime::now() - day);
    let error = issue(dir.path(), &order).expect_err("it is over");
    assert!(matches!(error, PkiError::AuthorityEnded { .. }), "{error}");
}

/// As a timer has it: each day, for certificates of 90 days.
#[test]
fn a_certificate_is_renewed_when_it_is_time_to() {
    let dir = authority();
    let out = dir.path().join("a");
    let mut order = order("a", &out);
    order.life = Life::Days(90);
    order.unless_valid_for = Some(30);
    let is_made = |order: &Order<'_>| {
        let issued = issue(dir.path(), order).expect("issued");
        matches!(issued, Issued::Made { .. })
    };
    assert!(is_made(&order), "there was none");
    assert!(!is_made(&order), "it has 90 days");
    order.unless_valid_for = Some(91);
    assert!(is_made(&order), "it has less than 91");
    order.unless_valid_for = Some(30);
    assert!(!is_made(&order));
    let key = text(&out.join(NODE_KEY));
    fs::write(out.join(NODE_KEY), text(&dir.path().join(CA_KEY))).expect("written");
    assert!(is_made(&order), "its key was another one");
    assert_ne!(text(&out.join(NODE_KEY)), key);
    for mode in [0o644, 0o640, 0o602] {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(out.join(NODE_KEY), mode).expect("it is ours");
        assert!(is_made(&order), "no node starts with such a key");
        assert!(!is_made(&order));
    }
    revoke(dir.path(), &Which::Name(node("a"))).expect("revoked");
    assert!(is_made(&order), "it was revoked");
    made(dir.path(), "b", &dir.path().join("b"));
    revoke(dir.path(), &Which::Name(node("b"))).expect("revoked");
    assert!(!is_made(&order));
    assert_eq!(
        text(&out.join(CRL)),
        text(&dir.path().join(CRL)),
        "it is of today"
    );
}

#[test]
fn the_list_has_what_was_revoked_by_name_file_or_number() {
    let dir = authority();
    let out = dir.path().join("out");
    let first = made(dir.path(), "a", &out);
    let second = made(dir.path(), "a", &out);
    let of_b = made(dir.path(), "b", &dir.path().join("b"));
    let of_c = made(dir.path(), "c", &dir.path().join("c"));
    let number = || {
        let list = ParsedList::read(&text(&dir.path().join(CRL)));
        list.expect("it is one").number
    };
    let before = number();
    let revoked = revoke(dir.path(), &Which::Name(node("a"))).expect("revoked");
    assert_eq!(revoked.len(), 2);
    assert!(
        number() > before,
        "a list has a number above the one before"
    );
    let both = [first.serial.to_string(), second.serial.to_string()];
    assert_eq!(listed(dir.path()), both);
    revoke(dir.path(), &Which::Serial(of_b.serial.clone())).expect("revoked");
    let last = Which::Certificate(dir.path().join("c").join(NODE_CERT));
    let [entry] = &revoke(dir.path(), &last).expect("revoked")[..] else {
        panic!("one");
    };
    assert_eq!((&entry.serial, entry.name), (&of_c.serial, Some(node("c"))));
    assert_eq!(listed(dir.path()).len(), 4);
    // Revoked once more, it stays revoked since then.
    let record = Record::read(&dir.path().join(ISSUED)).expect("it is there");
    let since = record.entries[0].revoked.expect("it is");
    assert!((times::now() - since).abs() < 3600);
    let again = revoke(dir.path(), &Which::Name(node("a"))).expect("revoked");
    assert_eq!(again[0].revoked, Some(since));
    let next = made(dir.path(), "a", &out);
    assert!(!listed(dir.path()).contains(&next.serial.to_string()));
}

#[test]
fn what_was_not_issued_here_is_not_revoked_here() {
    let (dir, other) = (authority(), authority());
    let out = other.path().join("a");
    made(other.path(), "a", &out);
    let before = text(&dir.path().join(CRL));
    let path = out.join(NODE_CERT);
    let error = revoke(dir.path(), &Which::Certificate(path)).expect_err("another's");
    assert!(matches!(error, PkiError::NotIssuedHere { .. }), "{error}");
    let error = revoke(dir.path(), &Which::Name(node("a"))).expect_err("nobody");
    assert!(
        error.to_string().contains("no certificate of \"a\""),
        "{error}"
    );
    let serial = "0a:ff".parse().expect("a number");
    let error = revoke(dir.path(), &Which::Serial(serial)).expect_err("nobody");
    assert!(error.to_string().contains("number 0aff"), "{error}");
    assert_eq!(text(&dir.path().join(CRL)), before);
}

/// Of an authority of an earlier version there is neither list nor record.
#[test]
fn what_was_issued_before_there_was_a_record_is_revoked_by_its_file() {
    let dir = authority();
    let out = dir.path().join("a");
    let entry = made(dir.path(), "a", &out);
    for file in [ISSUED, CRL] {
        fs::remove_file(dir.path().join(file)).expect("it is there");
    }
    let path = out.join(NODE_CERT);
    let revoked = revoke(dir.path(), &Which::Certificate(path)).expect("revoked");
    assert_eq!(
        (revoked[0].issued, revoked[0].name),
        (None, Some(node("a")))
    );
    assert_eq!(listed(dir.path()), [entry.serial.to_string()]);
}

#[test]
fn those_who_issue_and_revoke_at_once_lose_nothing() {
    let dir = authority();
    let first = made(dir.path(), "n0", &dir.path().join("n0"));
    thread::scope(|scope| {
        for number in 1..=8 {
            let dir = dir.path();
            scope.spawn(move || {
                let name = format!("n{number}");
                made(dir, &name, &dir.join(&name));
                revoke(dir, &Which::Name(node(&name))).expect("revoked");
            });
        }
    });
    let record = Record::read(&dir.path().join(ISSUED)).expect("it is there");
    assert_eq!(record.entries.len(), 9);
    let kept = record.entries.iter().filter(|it| it.revoked.is_none());
    assert_eq!(
        kept.map(|it| &it.serial).collect::<Vec<_>>(),
        [&first.serial]
    );
    assert_eq!(listed(dir.path()).len(), 8);
    let left_over = fs::read_dir(dir.path()).expect("a folder").filter(|it| {
        let name = it.as_ref().expect("listed").file_name();
        name.to_string_lossy().starts_with('.')
    });
    assert_eq!(left_over.count(), 0);
}

#[test]
fn lines_of_the_record_are_read_as_they_were_written() {
    let dir = authority();
    made(dir.path(), "a", &dir.path().join("a"));
    made(dir.path(), "b", &dir.path().join("b"));
    revoke(dir.path(), &Which::Name(node("b"))).expect("revoked");
    let path = dir.path().join(ISSUED);
    let before = text(&path);
    Record::read(&path).expect("read").write().expect("written");
    assert_eq!(text(&path), before);
    assert_eq!(mode(&path), 0o600);
    for bad in [
        "zz a - 2026-11-29T16:05:00Z -",
        "0a a - -",
        "0a a - 2026-13-29T16:05:00Z - -",
    ] {
        fs::write(&path, bad).expect("written");
        let error = issue(dir.path(), &order("a", dir.path())).expect_err(bad);
        assert!(matches!(error, PkiError::Content { .. }), "{error}");
    }
}

#[test]
fn times_are_shown_as_they_are_read() {
    for seconds in [0, 951_782_400, 1_796_000_000, 2_208_988_799] {
        assert_eq!(times::read(&times::show(seconds)), Some(seconds));
    }
    assert_eq!(times::show(951_782_400), "2000-02-29T00:00:00Z");
    for bad in [
        "",
        "2026-11-29",
        "2026-02-30T00:00:00Z",
        "2026-11-29T16:05Z",
    ] {
        assert_eq!(times::read(bad), None, "{bad}");
    }
}

/// The record is lost, and a command without a word of it comes before the next revocation.
#[test]
fn what_is_on_the_list_stays_revoked_without_the_record() {
    let dir = authority();
    let at = |name: &str| dir.path().join(name);
    let [a, b] = ["a", "b"].map(|name| made(dir.path(), name, &at(name)).serial);
    let a = (a.to_string(), Which::Name(node("a")));
    revoke(dir.path(), &a.1).expect("revoked");
    let since = ParsedList::read(&text(&at(CRL)))
        .expect("it is one")
        .revoked[0]
        .1;
    fs::remove_file(at(ISSUED)).expect("it is there");
    let c = made(dir.path(), "c", &at("c")).serial;
    revoke(dir.path(), &Which::Name(node("c"))).expect("revoked");
    let mut expected = [a.0.clone(), c.to_string()];
    expected.sort();
    let sorted = || {
        let mut found = listed(dir.path());
        found.sort();
        found
    };
    assert_eq!(sorted(), expected);
    let record = Record::read(&at(ISSUED)).expect("it is there");
    let entry = record.entries.iter().find(|it| it.name.is_none());
    let entry = entry.expect("the record has it again");
    assert_eq!(
        (entry.serial.to_string(), entry.revoked),
        (a.0, Some(since))
    );
    let error = revoke(dir.path(), &Which::Name(node("b"))).expect_err("not by its name");
    assert!(error.to_string().contains("--cert"), "{error}");
    revoke(dir.path(), &Which::Certificate(at("b").join(NODE_CERT))).expect("revoked");
    assert!(listed(dir.path()).contains(&b.to_string()));
    assert_eq!(listed(dir.path()).len(), 3);
}

#[test]
fn an_older_copy_of_the_record_is_refused_and_one_of_the_list_is_not() {
    let dir = authority();
    let at = |name: &str| dir.path().join(name);
    for name in ["a", "b", "c"] {
        made(dir.path(), name, &at(name));
    }
    let (old, old_list) = (text(&at(ISSUED)), text(&at(CRL)));
    revoke(dir.path(), &Which::Name(node("b"))).expect("revoked");
    let (new, list) = (text(&at(ISSUED)), text(&at(CRL)));
    fs::write(at(ISSUED), &old).expect("written");
    let error = revoke(dir.path(), &Which::Name(node("c"))).expect_err("an older copy");
    assert!(matches!(error, PkiError::OldRecord { .. }), "{error}");
    assert!(
        error.to_string().contains("issued: an older copy"),
        "{error}"
    );
    assert_eq!((text(&at(ISSUED)), text(&at(CRL))), (old, list.clone()));
    // The latest is back; or a revocation was interrupted before its list was written.
    fs::write(at(ISSUED), &new).expect("written");
    fs::write(at(CRL), &old_list).expect("written");
    revoke(dir.path(), &Which::Name(node("c"))).expect("revoked");
    assert_eq!(listed(dir.path()).len(), 2);
    let number = |text: &str| ParsedList::read(text).expect("it is one").number;
    assert!(number(&text(&at(CRL))) > number(&list), "nodes take it");
}

#[test]
fn a_list_that_can_not_be_read_is_not_replaced() {
    let (dir, other) = (authority(), authority());
    made(dir.path(), "a", &dir.path().join("a"));
    let path = dir.path().join(CRL);
    let torn = text(&path)[..40].to_owned();
    let foreign = text(&other.path().join(CRL));
    for bad in ["", "nothing", &torn, &foreign] {
        fs::write(&path, bad).expect("written");
        let error = revoke(dir.path(), &Which::Name(node("a"))).expect_err(bad);
        assert!(
            error.to_string().contains("crl.pem: this authority's list"),
            "{error}"
        );
        assert_eq!(text(&path), bad);
    }
    fs::remove_file(&path).expect("it is there");
    revoke(dir.path(), &Which::Name(node("a"))).expect("revoked");
    assert_eq!(listed(dir.path()).len(), 1);
}

/// Also where a timer asks.
#[test]
fn one_node_does_not_get_the_folder_of_another() {
    let dir = authority();
    let out = dir.path().join("a");
    made(dir.path(), "a", &out);
    let before = [NODE_CERT, NODE_KEY].map(|name| text(&out.join(name)));
    for unless_valid_for in [None, Some(30)] {
        let mut order = order("b", &out);
        order.unless_valid_for = unless_valid_for;
        let error = issue(dir.path(), &order).expect_err("a's");
        assert!(
            error.to_string().contains("the certificate of node \"a\""),
            "{error}"
        );
    }
    assert_eq!(
        [NODE_CERT, NODE_KEY].map(|name| text(&out.join(name))),
        before
    );
    for name in [NODE_CERT, NODE_KEY] {
        fs::remove_file(out.join(name)).expect("it is there");
    }
    made(dir.path(), "b", &out);
}

#[test]
fn an_authority_does_not_revoke_itself() {
    let dir = authority();
    let before = text(&dir.path().join(CRL));
    let own = Which::Certificate(dir.path().join(CA_CERT));
    let error = revoke(dir.path(), &own).expect_err("itself");
    assert!(matches!(error, PkiError::OwnCertificate { .. }), "{error}");
    assert_eq!(text(&dir.path().join(CRL)), before);
}

#[test]
fn an_authority_that_others_can_read_or_write_is_not_used() {
    let chmod = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    let dir = folder();
    for mode in [0o777, 0o775, 0o702] {
        chmod(dir.path(), mode);
        let error = init(dir.path())
            .expect_err("others may write there")
            .to_string();
        assert!(error.contains("chmod go-w"), "{error}");
        assert!(!dir.path().join(CA_KEY).exists());
    }
    chmod(dir.path(), 0o1777);
    init(dir.path()).expect("as /tmp");
    let key = dir.path().join(CA_KEY);
    for mode in [0o644, 0o640, 0o602] {
        chmod(&key, mode);
        let error = issue(dir.path(), &order("a", &dir.path().join("a")));
        let error = error.expect_err("others may have read it").to_string();
        assert!(error.contains("ca.key: its group or others"), "{error}");
        let error = revoke(dir.path(), &Which::Name(node("a"))).expect_err("as well");
        assert!(matches!(error, PkiError::KeyExposed { .. }), "{error}");
    }
    chmod(&key, 0o400);
    made(dir.path(), "a", &dir.path().join("a"));
}

#[test]
fn a_file_that_is_no_key_is_named() {
    let dir = authority();
    for bad in ["", "garbage", "-----BEGIN PRIVATE KEY-----"] {
        fs::write(dir.path().join(CA_KEY), bad).expect("written");
        let error = issue(dir.path(), &order("a", dir.path())).expect_err(bad);
        assert!(
            error.to_string().contains("ca.key: a private key in PEM"),
            "{error}"
        );
    }
}
