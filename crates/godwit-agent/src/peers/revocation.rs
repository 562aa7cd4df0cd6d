//! Certificates that were revoked: the lists of their authorities (RFC 5280 section 5).
//!
//! A list is believed if an authority that is in use has signed it. It says nothing of
//! certificates of other issuers: those stay as good as they were. TLS knows nothing of
//! lists here: a peer is judged when its link begins, and again when a list changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use godwit_wire::NodeName;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, SignatureVerificationAlgorithm, TrustAnchor,
};
use tokio::sync::watch;

use super::der::{
    BIT_STRING, EXPLICIT_0, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, element, is_time,
    skip, time, unsigned, whole,
};
use super::fault::{TlsError, in_file};
use super::tls::read_pem;
use super::validity::Label;
use crate::locks::lock;

/// `id-ce-cRLNumber`, 2.5.29.20.
const NUMBER: &[u8] = &[0x55, 0x1d, 0x14];

/// The lists in force, and who was refused because of them.
#[derive(Debug)]
pub(super) struct Revocations {
    lists: watch::Sender<Arc<Lists>>,
    /// By peer, the numbers of its certificates: no more than the lists have.
    refused: Mutex<BTreeMap<NodeName, BTreeSet<String>>>,
}

/// All lists of one file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lists(Vec<List>);

/// What one authority has revoked.
#[derive(Debug, PartialEq, Eq)]
struct List {
    issuer: Vec<u8>,
    /// Grows from list to list; shorter is less.
    number: Vec<u8>,
    issued: i64,
    /// When the authority wanted to have made the next one.
    next: Option<i64>,
    serials: BTreeSet<Vec<u8>>,
}

/// A list as it was read, not yet believed.
struct Unproven<'a> {
    list: List,
    signed: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
}

impl Revocations {
    pub(super) fn new(lists: Lists) -> Self {
        Self {
            lists: watch::Sender::new(Arc::new(lists)),
            refused: Mutex::default(),
        }
    }

    /// Puts lists into force that are not older than those before. Only the list of an
    /// authority that is no longer in use may be missing.
    pub(super) fn replace(
        &self,
        lists: Lists,
        path: &Path,
        authorities: &[TrustAnchor<'_>],
    ) -> Result<(), TlsError> {
        let before = self.lists.borrow().clone();
        for old in &before.0 {
            let mut of_it = lists.0.iter().filter(|new| new.issuer == old.issuer);
            let is_in_use = authorities
                .iter()
                .any(|it| it.subject.as_ref() == old.issuer);
            let is_there = of_it.clone().next().is_some();
            if (is_there || is_in_use) && of_it.all(|new| new.is_older_than(old)) {
                let path = path.to_owned();
                return Err(TlsError::OlderList { path });
            }
        }
        lock(&self.refused).clear();
        self.lists.send_replace(Arc::new(lists));
        Ok(())
    }

    /// The number of the first certificate of a chain that is revoked.
    pub(super) fn find(&self, chain: &[CertificateDer<'_>]) -> Option<String> {
        self.lists.borrow().find(chain)
    }

    /// Wakes up whoever waits for other lists.
    pub(super) fn changes(&self) -> watch::Receiver<Arc<Lists>> {
        self.lists.subscribe()
    }

    /// Until one of them is.
    pub(super) async fn until_found(&self, chain: &[CertificateDer<'_>]) -> String {
        let mut changes = self.changes();
        loop {
            let found = changes.borrow_and_update().find(chain);
            if let Some(serial) = found {
                return serial;
            }
            if changes.changed().await.is_err() {
                // Whoever waits has the sender: this does not happen.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Notes that a peer got no link; whether that is news.
    pub(super) fn refuse(&self, peer: NodeName, serial: &str) -> bool {
        let mut refused = lock(&self.refused);
        refused.entry(peer).or_default().insert(serial.to_owned())
    }

    /// A peer has a link, so it has another certificate.
    pub(super) fn forgive(&self, peer: NodeName) {
        lock(&self.refused).remove(&peer);
    }

    pub(super) fn refused(&self) -> BTreeMap<NodeName, BTreeSet<String>> {
        lock(&self.refused).clone()
    }

    /// Whether the authority wanted to have made another list by now.
    pub(super) fn is_overdue(&self, now: i64) -> bool {
        let lists = self.lists.borrow();
        lists.0.iter().filter_map(|it| it.next).any(|it| it < now)
    }
}

impl Lists {
    /// Reads a file with one list or several, in PEM, each signed by one of `authorities`.
    pub(super) fn load(path: &Path, authorities: &[TrustAnchor<'_>]) -> Result<Self, TlsError> {
        let lists: Result<Vec<_>, _> =
            CertificateRevocationListDer::pem_slice_iter(&read_pem(path)?).collect();
        let lists = lists.map_err(in_file(path, "list of revoked certificates"))?;
        let wrong = |reason| TlsError::List {
            path: path.to_owned(),
            reason,
        };
        if lists.is_empty() {
            return Err(wrong("no list of revoked certificates in it"));
        }
        let lists = lists.iter().map(|der| {
            let unproven = Unproven::read(der)
                .ok_or_else(|| wrong("a list that can't be read, or has critical extensions"))?;
            if !authorities.iter().any(|it| unproven.is_signed_by(it)) {
                return Err(wrong("a list that no authority in use has signed"));
            }
            Ok(unproven.list)
        });
        lists.collect::<Result<_, _>>().map(Self)
    }

    fn find(&self, chain: &[CertificateDer<'_>]) -> Option<String> {
        let labels = chain.iter().filter_map(|it| Label::of(it));
        let mut labels = labels.filter(|label| self.0.iter().any(|list| list.names(label)));
        labels.next().map(|label| hexadecimal(label.serial))
    }
}

impl List {
    fn names(&self, label: &Label<'_>) -> bool {
        self.issuer == label.issuer && self.serials.contains(label.serial)
    }

    /// Lists without numbers go by their time.
    fn is_older_than(&self, other: &Self) -> bool {
        let rank = |it: &Self| (it.number.len(), it.number.clone());
        if self.number.is_empty() || other.number.is_empty() {
            return self.issued < other.issued;
        }
        rank(self) < rank(other)
    }
}

impl<'a> Unproven<'a> {
    fn read(der: &'a [u8]) -> Option<Self> {
        let (content, _) = element(der, SEQUENCE)?;
        let signed = whole(content)?;
        let (fields, rest) = element(content, SEQUENCE)?;
        let (algorithm, rest) = element(rest, SEQUENCE)?;
        let signature = bits(rest)?;
        Some(Self {
            list: List::read(fields)?,
            signed,
            algorithm,
            signature,
        })
    }

    fn is_signed_by(&self, authority: &TrustAnchor<'_>) -> bool {
        let key = authority.subject_public_key_info.as_ref();
        let Some((algorithm, rest)) = element(key, SEQUENCE) else {
            return false;
        };
        let Some(key) = bits(rest) else {
            return false;
        };
        let fits = |it: &&dyn SignatureVerificationAlgorithm| {
            it.signature_alg_id().as_ref() == self.algorithm
                && it.public_key_alg_id().as_ref() == algorithm
        };
        let known = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        let mut known = known.all.iter().copied().filter(fits);
        authority.subject.as_ref() == self.list.issuer
            && known.any(|it| {
                it.verify_signature(key, self.signed, self.signature)
                    .is_ok()
            })
    }
}

impl List {
    /// The fields of `TBSCertList`.
    fn read(fields: &[u8]) -> Option<Self> {
        let fields = match element(fields, INTEGER) {
            Some((_version, fields)) => fields,
            None => fields,
        };
        // The algorithm of its signature.
        let fields = skip(fields)?;
        let (issuer, fields) = element(fields, SEQUENCE)?;
        let (issued, mut fields) = time(fields)?;
        let mut next = None;
        if is_time(fields) {
            let (seconds, rest) = time(fields)?;
            (next, fields) = (Some(seconds), rest);
        }
        let mut serials = BTreeSet::new();
        if let Some((mut entries, rest)) = element(fields, SEQUENCE) {
            while !entries.is_empty() {
                let (entry, others) = element(entries, SEQUENCE)?;
                let (serial, entry) = element(entry, INTEGER)?;
                let (_since, entry) = time(entry)?;
                numbers(entry)?;
                serials.insert(unsigned(serial).to_vec());
                entries = others;
            }
            fields = rest;
        }
        let number = match element(fields, EXPLICIT_0) {
            Some((extensions, _)) => numbers(extensions)?,
            None => Vec::new(),
        };
        Some(Self {
            issuer: issuer.to_vec(),
            number,
            issued,
            next,
            serials,
        })
    }
}

/// The number of a list among its extensions. `None` if one of them is critical: it would
/// say that the list is not what it seems to be.
fn numbers(extensions: &[u8]) -> Option<Vec<u8>> {
    const TRUE: &[u8] = &[0x01, 0x01, 0xff];
    let mut number = Vec::new();
    if extensions.is_empty() {
        return Some(number);
    }
    let (mut extensions, _) = element(extensions, SEQUENCE)?;
    while !extensions.is_empty() {
        let (extension, others) = element(extensions, SEQUENCE)?;
        let (name, value) = element(extension, OBJECT_IDENTIFIER)?;
        if value.starts_with(TRUE) {
            return None;
        }
        if name == NUMBER {
            let (value, _) = element(value, OCTET_STRING)?;
            let (value, _) = element(value, INTEGER)?;
            number = unsigned(value).to_vec();
        }
        extensions = others;
    }
    Some(number)
}

/// The octets of a bit string.
fn bits(bytes: &[u8]) -> Option<&[u8]> {
    let (content, _) = element(bytes, BIT_STRING)?;
    let (unused, octets) = content.split_first()?;
    (*unused == 0).then_some(octets)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use rustls::RootCertStore;
    use tempfile::TempDir;

    use super::*;
    use crate::testing::{node, pki};

    /// An authority, and the files of one node.
    struct Stage {
        dir: TempDir,
    }

    impl Stage {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a folder");
            pki::init(dir.path()).expect("an authority");
            Self { dir }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn issue(&self, name: &str) -> Vec<CertificateDer<'static>> {
            let out = self.path(name);
            pki::issue(self.dir.path(), node(name), &out, None).expect("issued");
            vec![CertificateDer::from_pem_file(out.join(pki::NODE_CERT)).expect("PEM")]
        }

        fn anchors(&self) -> Vec<TrustAnchor<'static>> {
            let mut roots = RootCertStore::empty();
            let own = CertificateDer::from_pem_file(self.path(pki::CA_CERT)).expect("PEM");
            roots.add(own).expect("an authority");
            roots.roots
        }

        fn lists(&self) -> Result<Lists, TlsError> {
            Lists::load(&self.path(pki::CRL), &self.anchors())
        }

        fn revoke(&self, name: &str) {
            pki::revoke(self.dir.path(), node(name));
        }
    }

    #[test]
    fn a_list_names_what_was_revoked_and_nothing_else() {
        let (ours, others) = (Stage::new(), Stage::new());
        let (a, b) = (ours.issue("a"), ours.issue("b"));
        assert_eq!(ours.lists().expect("it is one").find(&a), None);
        ours.revoke("a");
        let lists = ours.lists().expect("it is one");
        let serial = hexadecimal(Label::of(&a[0]).expect("a certificate").serial);
        assert_eq!(lists.find(&a), Some(serial.clone()));
        assert_eq!(lists.find(&b), None);
        assert_eq!(lists.find(&[b[0].clone(), a[0].clone()]), Some(serial));
        assert_eq!(lists.find(&others.issue("a")), None, "not its issuer's");
        assert_eq!(lists.find(&ours.issue("a")), None, "issued later");
    }

    #[test]
    fn lists_of_others_and_altered_ones_are_refused() {
        let (ours, others) = (Stage::new(), Stage::new());
        let path = ours.path(pki::CRL);
        let good = fs::read_to_string(&path).expect("it is there");
        let refused = |text: &str, why: &str| {
            fs::write(&path, text).expect("written");
            let error = ours.lists().expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        };
        let other = fs::read_to_string(others.path(pki::CRL)).expect("it is there");
        refused(&other, "no authority in use has signed");
        refused(&(good.clone() + &other), "no authority in use has signed");
        refused("", "no list of revoked certificates");
        let own = fs::read_to_string(ours.path(pki::CA_CERT)).expect("it is there");
        refused(&own, "no list of revoked certificates");
        fs::write(&path, &good).expect("written");
        let der = CertificateRevocationListDer::from_pem_file(&path).expect("PEM");
        let proves = |der: &[u8]| {
            let anchors = ours.anchors();
            let list = Unproven::read(der);
            list.is_some_and(|list| anchors.iter().any(|it| list.is_signed_by(it)))
        };
        assert!(proves(&der));
        for at in 0..der.len() {
            assert!(!proves(&der[..at]), "cut at {at}");
            let mut altered = der.to_vec();
            altered[at] ^= 1;
            assert!(!proves(&altered), "altered at {at}");
        }
    }

    #[test]
    fn an_older_list_does_not_replace_a_newer_one() {
        let stage = Stage::new();
        let a = stage.issue("a");
        let path = stage.path(pki::CRL);
        let older = stage.lists().expect("it is one");
        stage.revoke("a");
        let revocations = Revocations::new(stage.lists().expect("it is one"));
        let anchors = stage.anchors();
        let error = revocations.replace(older, &path, &anchors);
        let error = error.expect_err("it is older");
        assert!(error.to_string().contains("older"), "{error}");
        assert!(revocations.find(&a).is_some(), "the former is in force");
        let error = revocations.replace(Lists::default(), &path, &anchors);
        error.expect_err("nor does one of nobody");
        stage.issue("b");
        stage.revoke("b");
        let newer = stage.lists().expect("it is one");
        revocations
            .replace(newer, &path, &anchors)
            .expect("it is newer");
        let same = stage.lists().expect("it is one");
        revocations
            .replace(same, &path, &anchors)
            .expect("it is the same");
        // Without its authority the list has no use.
        let others = Stage::new();
        let lists = others.lists().expect("it is one");
        let replaced = revocations.replace(lists, &path, &others.anchors());
        replaced.expect("the authority was replaced");
        assert_eq!(revocations.find(&a), None);
    }

    #[test]
    fn numbers_are_compared_by_their_value() {
        let list = |number: &[u8], issued| List {
            issuer: Vec::new(),
            number: number.to_vec(),
            issued,
            next: None,
            serials: BTreeSet::new(),
        };
        assert!(list(&[0xff], 2).is_older_than(&list(&[1, 0], 1)));
        assert!(list(&[1, 0], 2).is_older_than(&list(&[1, 1], 1)));
        assert!(!list(&[1, 1], 1).is_older_than(&list(&[1, 1], 2)));
        assert!(list(&[], 1).is_older_than(&list(&[1], 2)), "by their time");
        assert!(!list(&[], 2).is_older_than(&list(&[9], 1)));
    }

    #[test]
    fn what_is_refused_is_news_once() {
        let revocations = Revocations::new(Lists::default());
        assert!(revocations.refuse(node("a"), "01"));
        assert!(!revocations.refuse(node("a"), "01"));
        assert!(revocations.refuse(node("a"), "02"), "another certificate");
        assert!(!revocations.refuse(node("a"), "01"), "in turns, too");
        assert_eq!(revocations.refused().len(), 1);
        revocations.forgive(node("a"));
        assert!(revocations.refused().is_empty());
    }
}
