use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use godwit_wire::NodeName;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P384_SHA384};
use tempfile::TempDir;
use x509_parser::pem::parse_x509_pem;

use super::adopt::{Folder, with_list};
use super::grant::{Request, grant};
use super::wire::{
    Granted, REQUEST_MOST, Timed, read_answer, read_request, write_answer, write_request,
};
use super::{AUTHORITY, Refused, Renewal, Renewals, Renewed, renew};
use crate::key::Key;
use crate::parsed::Parsed;
use crate::record::Record;
use crate::times::{self, DAY};
use crate::*;

/// An authority, and nodes that it has made certificates for.
struct Stage {
    dir: TempDir,
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        init(&dir.path().join("ca")).expect("an authority");
        let this = Self { dir };
        this.issue("a");
        this
    }

    fn authority(&self) -> PathBuf {
        self.dir.path().join("ca")
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn issue(&self, name: &str) {
        let order = Order {
            name: NodeName::new(name).expect("a name"),
            out: &self.folder(name),
            life: Life::Usual,
            unless_valid_for: None,
        };
        issue(&self.authority(), &order).expect("issued");
    }

    fn revoke(&self, name: &str) {
        let which = Which::Name(NodeName::new(name).expect("a name"));
        revoke(&self.authority(), &which).expect("revoked");
    }

    fn serve(&self) -> SocketAddr {
        let any = "127.0.0.1:0".parse().expect("an address");
        let renewals = Renewals::bind(&self.authority(), any, RENEWED_DAYS).expect("it listens");
        let renewals = Arc::new(renewals);
        let address = renewals.address().expect("it has one");
        thread::spawn(move || renewals.run());
        address
    }

    /// What the node gets for a request, made so many days from now.
    fn ask(&self, request: &[u8], later: i64) -> Result<Granted, Refused> {
        let pem = text(&self.folder("a").join(NODE_CERT));
        let (_, shown) = parse_x509_pem(pem.as_bytes()).expect("PEM");
        let request = Request {
            shown: &shown.contents,
            request,
        };
        let now = times::now() + later * DAY;
        let granted = grant(&self.authority(), RENEWED_DAYS, &request, now);
        granted
            .map(|(_, _, granted)| granted)
            .map_err(|it| it.reason)
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).expect("it is there")
}

fn renewal<'a>(from: &'a str, folder: &'a Path) -> Renewal<'a> {
    Renewal {
        from,
        folder,
        unless_valid_for: None,
    }
}

fn request_of(names: &[&str], key: &KeyPair) -> Vec<u8> {
    let names: Vec<_> = names.iter().map(|it| (*it).to_owned()).collect();
    let params = CertificateParams::new(names).expect("names");
    let request = params.serialize_request(key).expect("signed");
    request.der().to_vec()
}

fn new_request() -> Vec<u8> {
    request_of(&["a"], &KeyPair::generate().expect("a key"))
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let names = entries.map(|it| it.expect("listed").file_name());
    let mut names: Vec<_> = names.map(|it| it.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The pair in a folder fits together, or this panics.
fn present(folder: &Path) -> Parsed {
    let folder = Folder::open(folder).expect("it is there");
    folder.read().expect("it fits").cert
}

#[test]
fn a_node_gets_a_short_life_a_new_key_and_the_list() {
    let stage = Stage::new();
    let from = stage.serve().to_string();
    let folder = stage.folder("a");
    let old = (text(&folder.join(NODE_KEY)), present(&folder).serial);
    // Made by hand, so it is replaced at once.
    let made = renew(&renewal(&from, &folder)).expect("renewed");
    let Renewed::Made { serial, days } = made else {
        panic!("{made:?}");
    };
    assert!((29..=30).contains(&days), "{days}");
    let cert = present(&folder);
    assert_eq!((&cert.serial, cert.serial != old.1), (&serial, true));
    assert_ne!(text(&folder.join(NODE_KEY)), old.0);
    let mode = fs::metadata(folder.join(NODE_KEY)).expect("there").mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(names_in(&folder), [CA_CERT, CRL, NODE_KEY, NODE_CERT]);
    let mut record = Record::read(&stage.authority().join(ISSUED)).expect("there");
    assert!(record.find(&serial).is_some(), "it can be revoked by name");
    // It has more than half of its life; what was revoked is heard of all the same.
    stage.issue("b");
    stage.revoke("b");
    let list = text(&stage.authority().join(CRL));
    assert_ne!(text(&folder.join(CRL)), list);
    let kept = renew(&renewal(&from, &folder)).expect("kept");
    assert!(matches!(kept, Renewed::Kept { .. }), "{kept:?}");
    assert_eq!(text(&folder.join(CRL)), list);
    assert_eq!(present(&folder).serial, serial);
    // With what it was given it is given another one.
    let wanted = Renewal {
        unless_valid_for: Some(31),
        ..renewal(&from, &folder)
    };
    let made = renew(&wanted).expect("renewed");
    assert!(matches!(made, Renewed::Made { .. }), "{made:?}");
    stage.revoke("a");
    let error = renew(&wanted).expect_err("revoked");
    let is_said = matches!(
        error,
        PkiError::Refused {
            reason: Refused::Revoked,
            ..
        }
    );
    assert!(is_said, "{error}");
}

#[test]
fn what_is_not_granted_has_a_name() {
    let stage = Stage::new();
    let key = |request: &[u8]| stage.ask(request, 0).map(drop);
    let pair = KeyPair::generate().expect("a key");
    assert_eq!(key(&request_of(&["b"], &pair)), Err(Refused::OtherName));
    assert_eq!(key(&request_of(&[], &pair)), Err(Refused::OtherName));
    let both = request_of(&["a", "b"], &pair);
    assert_eq!(key(&both), Err(Refused::OtherName));
    let big = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).expect("a key");
    assert_eq!(key(&request_of(&["a"], &big)), Err(Refused::KeyKind));
    let own = text(&stage.folder("a").join(NODE_KEY));
    let own = KeyPair::from_pem(&own).expect("a key");
    assert_eq!(key(&request_of(&["a"], &own)), Err(Refused::SameKey));
    assert_eq!(key(b"nothing"), Err(Refused::Malformed));
    // Whoever asks must have the key.
    let mut forged = new_request();
    *forged.last_mut().expect("it has octets") ^= 1;
    assert_eq!(key(&forged), Err(Refused::Malformed));
    assert_eq!(key(&new_request()), Ok(()));
    let record = stage.authority().join(ISSUED);
    let before = text(&record);
    fs::write(&record, "").expect("written");
    assert_eq!(key(&new_request()), Err(Refused::Unknown));
    assert_eq!(key(b""), Err(Refused::Unknown));
    fs::write(&record, before.replace(" a ", " b ")).expect("written");
    assert_eq!(key(&new_request()), Err(Refused::Unknown));
    fs::write(&record, before).expect("written");
    stage.revoke("a");
    assert_eq!(key(&new_request()), Err(Refused::Revoked));
    assert_eq!(key(b""), Err(Refused::Revoked));
    fs::remove_file(stage.authority().join(CA_KEY)).expect("there");
    assert_eq!(key(b""), Err(Refused::Authority));
    let names: std::collections::BTreeSet<_> = Refused::ALL.map(Refused::as_str).into();
    assert_eq!(names.len(), Refused::ALL.len());
    for (index, reason) in Refused::ALL.into_iter().enumerate() {
        assert_eq!(reason.index(), index);
    }
}

#[test]
fn a_node_is_given_few_in_a_day() {
    let stage = Stage::new();
    // One was made by hand today.
    for _ in 0..5 {
        stage.ask(&new_request(), 0).expect("it is given one");
    }
    assert_eq!(stage.ask(&new_request(), 0), Err(Refused::TooOften));
    stage.ask(b"", 0).expect("the list costs nothing");
    let granted = stage.ask(&new_request(), 2).expect("another day");
    let path = Path::new(NODE_CERT);
    let made = Parsed::read(&granted.certificate, path).expect("it is one");
    // It begins before now, for clocks that are behind.
    assert_eq!(made.not_after - made.not_before, 31 * DAY);
}

#[test]
fn strangers_get_nothing_and_nobody_is_believed_to_be_the_authority() {
    assert!(NodeName::new(AUTHORITY).is_err(), "no node has its name");
    let (stage, other) = (Stage::new(), Stage::new());
    let (ours, theirs) = (stage.serve().to_string(), other.serve().to_string());
    let folder = stage.folder("a");
    let before = text(&folder.join(NODE_CERT));
    let error = renew(&renewal(&theirs, &folder)).expect_err("of another authority");
    assert!(matches!(error, PkiError::Asking { .. }), "{error}");
    // One that takes the other authority for its own is not taken for a node.
    fs::copy(
        stage.authority().join(CA_CERT),
        other.folder("a").join(CA_CERT),
    )
    .expect("copied");
    let error = renew(&renewal(&ours, &other.folder("a"))).expect_err("a stranger");
    assert!(matches!(error, PkiError::Asking { .. }), "{error}");
    assert_eq!(text(&folder.join(NODE_CERT)), before);
    assert_eq!(names_in(&folder), [CA_CERT, CRL, NODE_KEY, NODE_CERT]);
    renew(&renewal(&ours, &folder)).expect("its own");
}

#[test]
fn a_request_has_a_size_and_an_end() {
    let mut told = Vec::new();
    write_request(&mut told, &[7; REQUEST_MOST]).expect("written");
    let read = read_request(&mut &told[..]).expect("just so");
    assert_eq!(read, [7; REQUEST_MOST]);
    for cut in [0, 7, 11, told.len() - 1] {
        assert_eq!(read_request(&mut &told[..cut]), Err(Refused::Cut), "{cut}");
    }
    let mut long = Vec::new();
    write_request(&mut long, &[7; REQUEST_MOST + 1]).expect("written");
    // Before any of it is read.
    assert_eq!(read_request(&mut &long[..12]), Err(Refused::TooLong));
    told[0] ^= 1;
    assert_eq!(read_request(&mut &told[..]), Err(Refused::Malformed));
}

#[test]
fn answers_are_read_as_they_were_written() {
    let granted = Granted {
        certificate: "one".into(),
        list: String::new(),
    };
    let all = Refused::ALL.map(Err).into_iter().chain([Ok(granted)]);
    for answer in all {
        let mut told = Vec::new();
        write_answer(&mut told, &answer).expect("written");
        assert_eq!(read_answer(&mut &told[..]).expect("read"), answer);
        for cut in 0..told.len() {
            read_answer(&mut &told[..cut]).expect_err("it is cut");
        }
    }
    let mut unknown = b"gwrenew1".to_vec();
    unknown.push(200);
    read_answer(&mut &unknown[..]).expect_err("of a later version");
    *unknown.last_mut().expect("there") = 0;
    unknown.extend(u32::MAX.to_be_bytes());
    let error = read_answer(&mut &unknown[..]).expect_err("too long");
    assert!(error.to_string().contains("1 MiB"), "{error}");
}

/// Each octet comes in time, and the whole does not.
#[test]
fn who_sends_slowly_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("it listens");
    let mut sender = TcpStream::connect(listener.local_addr().expect("it has one")).expect("there");
    let (stream, _) = listener.accept().expect("accepted");
    thread::spawn(move || {
        while sender.write_all(b"g").is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    let began = Instant::now();
    let end = began + Duration::from_millis(100);
    let mut octets = [0; 10_000];
    let error = std::io::Read::read_exact(&mut Timed::new(&stream, end), &mut octets);
    assert_eq!(error.map_err(|it| Refused::of(&it)), Err(Refused::Slow));
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_crash_between_two_files_leaves_a_pair_or_is_repaired() {
    let stage = Stage::new();
    let path = stage.folder("a");
    let old = present(&path);
    let prepared = || {
        let key = KeyPair::generate().expect("a key");
        let granted = stage.ask(&request_of(&["a"], &key), 0).expect("given");
        let folder = Folder::open(&path).expect("there");
        let file = stage.folder("key");
        fs::write(&file, key.serialize_pem()).expect("written");
        let key = Key::read(&file, "reading a key").expect("a key");
        folder
            .prepare(&key, &granted.certificate, None)
            .expect("on the disk");
        (folder, granted.certificate)
    };
    // Before the first is renamed.
    drop(prepared());
    assert_eq!(present(&path), old);
    assert_eq!(names_in(&path), [CA_CERT, CRL, NODE_KEY, NODE_CERT]);
    // Between the first and the second.
    let (folder, certificate) = prepared();
    folder.rename(".node.key.next", NODE_KEY).expect("renamed");
    folder.read().expect_err("they do not fit");
    drop(folder);
    let new = present(&path);
    assert_ne!(new, old);
    assert_eq!(text(&path.join(NODE_CERT)), certificate);
    assert_eq!(names_in(&path), [CA_CERT, CRL, NODE_KEY, NODE_CERT]);
}

#[test]
fn lists_of_other_authorities_stay_and_older_ones_are_refused() {
    let (stage, other) = (Stage::new(), Stage::new());
    let of = |stage: &Stage, name| text(&stage.authority().join(name));
    let first = of(&stage, CRL);
    stage.revoke("a");
    let second = of(&stage, CRL);
    let both = of(&stage, CA_CERT) + &of(&other, CA_CERT);
    let issuer = present(&stage.folder("a")).issuer;
    let theirs = of(&other, CRL);
    let merged = |present: Option<&str>, list: &str| with_list(present, list, &issuer, &both);
    assert_eq!(merged(None, &first), Ok(Some(first.clone())));
    assert_eq!(merged(Some(&first), &first), Ok(None));
    let file = first.clone() + &theirs;
    assert_eq!(
        merged(Some(&file), &second),
        Ok(Some(theirs.clone() + &second))
    );
    merged(Some(&(second.clone() + &theirs)), &first).expect_err("older");
    merged(None, &theirs).expect_err("of another authority");
    let alone = with_list(None, &second, &issuer, &of(&other, CA_CERT));
    alone.expect_err("nobody has signed it");
    merged(None, "nothing").expect_err("no list");
}

#[test]
fn a_certificate_that_has_ended_renews_nothing() {
    let stage = Stage::new();
    let order = Order {
        name: NodeName::new("a").expect("a name"),
        out: &stage.folder("a"),
        life: Life::Until(std::time::SystemTime::now() - Duration::from_secs(60)),
        unless_valid_for: None,
    };
    issue(&stage.authority(), &order).expect("issued");
    let from = stage.serve().to_string();
    let error = renew(&renewal(&from, &stage.folder("a"))).expect_err("it has ended");
    assert!(matches!(error, PkiError::Ended { .. }), "{error}");
}

/// As with a service that has a user of its own, while root makes certificates by hand.
#[test]
fn what_root_makes_in_an_authority_s_folder_is_its_owner_s() {
    let stage = Stage::new();
    let folder = stage.authority();
    if fs::metadata(&folder).expect("there").uid() != 0 {
        eprintln!("skipped: only root gives files away");
        return;
    }
    for name in names_in(&folder) {
        chown(folder.join(name), Some(1234), Some(1234)).expect("given away");
    }
    chown(&folder, Some(1234), Some(1234)).expect("given away");
    stage.issue("a");
    stage.revoke("a");
    for name in names_in(&folder) {
        let file = fs::metadata(folder.join(&name)).expect("there");
        assert_eq!((file.uid(), file.gid()), (1234, 1234), "{name}");
        let others = file.permissions().mode() & 0o022;
        assert_eq!(others, 0, "{name}");
    }
    let key = fs::metadata(stage.folder("a").join(NODE_KEY)).expect("there");
    assert_eq!(key.uid(), 0, "a node's files are not the authority's");
}
