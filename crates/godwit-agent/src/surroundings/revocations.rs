//! Lists of revoked certificates, and who was refused because of them.
//!
//! A changed list is taken without a restart: links of peers that are on it end. One that
//! can't be used is said, and the former stays in force. A file may be in the middle of being
//! written, so what can't be used counts only after a moment.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use godwit_core::MonoTime;
use godwit_core::fitness::Consequence;
use nix::sys::inotify::Inotify;

use super::certificates::{CHANGES, SOON, Stamp, TORN, stamp};
use super::watch::Source;
use crate::clock;
use crate::doctor::{Host as _, LiveHost};
use crate::facts::{Look, Wrong};
use crate::peers::Identity;
use crate::sentence::whole;

/// Who was refused is asked for, and whether the file was changed.
const PERIOD: Duration = Duration::from_millis(500);

/// The fact that a certificate is revoked that somebody uses.
const REVOKED: &str = "certificate_revoked";

/// The fact that a list is not in force, or old.
const LIST: &str = "revocation_list";

/// The file of `[tls] crl`.
pub(super) struct Revocations {
    path: PathBuf,
    identity: Identity,
    events: Inotify,
    /// The file as it is in force.
    stamp: Stamp,
    /// Since when the file can't be used.
    failing: Option<MonoTime>,
    /// Why it can't, once that is said.
    fault: Option<String>,
}

impl Revocations {
    /// Looks at a file: its file system may hang.
    pub(super) fn new(path: PathBuf, identity: Identity, events: Inotify) -> Self {
        if let Some(folder) = path.parent()
            && let Err(error) = events.add_watch(folder, CHANGES)
        {
            tracing::debug!(folder = %folder.display(), %error, "not watched by events");
        }
        let mut this = Self {
            path,
            identity,
            events,
            stamp: None,
            failing: None,
            fault: None,
        };
        // It may have changed since the identity was made.
        this.follow(clock::now());
        this
    }

    fn follow(&mut self, now: MonoTime) {
        let stamp = stamp(&self.path);
        // What can't be used now may be of an authority that comes into use later.
        if stamp.is_some() && stamp == self.stamp && self.fault.is_none() {
            return;
        }
        match self.identity.renew_lists(&self.path) {
            Ok(()) => {
                tracing::info!(path = %self.path.display(), "a list of revoked certificates");
                self.stamp = stamp;
                self.failing = None;
                self.fault = None;
            }
            Err(error) => {
                let since = *self.failing.get_or_insert(now);
                if now.since(since) >= TORN {
                    self.fault = Some(whole(&error));
                }
            }
        }
    }

    /// Certificates that are revoked and in use, or were to be used.
    fn revoked(&self) -> Option<String> {
        let own = self.identity.own_revoked().map(|serial| {
            format!("the certificate of this node ({serial}) is revoked: no new link is made")
        });
        let peers = self.identity.refused_peers().into_iter();
        let peers = peers.map(|(peer, serials)| {
            let serials: Vec<_> = serials.into_iter().collect();
            let serials = serials.join(", ");
            format!(
                "the certificate that peer \"{peer}\" came with ({serials}) is revoked: no link"
            )
        });
        let found: Vec<_> = own.into_iter().chain(peers).collect();
        (!found.is_empty()).then(|| found.join("; "))
    }

    fn wrong_list(&self) -> Option<(String, &'static str)> {
        let path = self.path.display();
        if let Some(fault) = &self.fault {
            let found = format!("the list can't be used, and the former is in force: {fault}");
            return Some((found, "put the authority's latest list there"));
        }
        let is_overdue = self.identity.is_list_overdue(LiveHost.seconds());
        let found = || format!("{path} should have been followed by another list by now");
        is_overdue.then(|| (found(), "have the authority make one, and put it there"))
    }
}

impl Source for Revocations {
    fn name(&self) -> &'static str {
        LIST
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn take_events(&mut self) -> bool {
        while self.events.read_events().is_ok_and(|some| !some.is_empty()) {}
        true
    }

    fn period(&self) -> Duration {
        if self.failing.is_some() && self.fault.is_none() {
            SOON
        } else {
            PERIOD
        }
    }

    fn look(&mut self) -> Look {
        self.follow(clock::now());
        let advice = "make another one (godwit pki issue), and find out who has the old key";
        let revoked = self.revoked().map(|found| (REVOKED, found, advice));
        let list = self.wrong_list();
        let list = list.map(|(found, advice)| (LIST, found, advice));
        let wrong = revoked.into_iter().chain(list);
        let wrong = wrong.map(|(name, found, advice)| Wrong {
            name: name.into(),
            share: None,
            consequence: Consequence::Say,
            found,
            advice: advice.into(),
        });
        Look {
            source: LIST,
            watched: vec![REVOKED.into(), LIST.into()],
            wrong: wrong.collect(),
            days_left: [].into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::thread;
    use std::time::Instant;

    use super::*;
    use crate::surroundings::certificates::Certificates;
    use crate::testing::{PATIENCE, Pair, node, pki};

    fn watching(path: &Path, identity: &Identity) -> Revocations {
        let events = Certificates::events().expect("inotify");
        Revocations::new(path.to_owned(), identity.clone(), events)
    }

    /// What is wrong with a fact, once the sources agree that it is.
    fn until(source: &mut Revocations, fact: &str, is_wrong: bool) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let look = source.look();
            let mut wrong = look.wrong.iter().filter(|wrong| wrong.name == fact);
            let found = wrong.next().map(|wrong| wrong.found.clone());
            if found.is_some() == is_wrong {
                return found.unwrap_or_default();
            }
            assert!(Instant::now() < end, "{look:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_list_is_followed_and_a_bad_one_leaves_the_former_in_force() {
        let mut pair = Pair::new();
        let authority = pair.dir().join("ca");
        let path = pair.dir().join("crl.pem");
        let list = authority.join(pki::CRL);
        let publish = || {
            fs::copy(&list, &path).expect("copied");
        };
        publish();
        let first = fs::read(&path).expect("it is there");
        pair.a.tls.crl = Some(path.clone());
        let identity = Identity::load(&pair.a.tls, node("a")).expect("an identity");
        let mut source = watching(&path, &identity);
        assert_eq!(source.look().wrong, []);
        pki::revoke(&authority, node("a"));
        publish();
        let said = until(&mut source, REVOKED, true);
        assert!(said.contains("of this node"), "{said}");
        for (bad, why) in [(&first[..], "older"), (b"nothing", "no list of revoked")] {
            fs::write(&path, bad).expect("written");
            let said = until(&mut source, LIST, true);
            assert!(said.contains(why), "{said}");
            assert!(identity.own_revoked().is_some(), "the former is in force");
            publish();
            until(&mut source, LIST, false);
        }
        fs::remove_file(&path).expect("it is there");
        let said = until(&mut source, LIST, true);
        assert!(said.contains("No such file"), "{said}");
        publish();
        until(&mut source, LIST, false);
        // With another certificate all is well.
        let folder = pair.a.tls.cert.parent().expect("a folder");
        pki::issue(&authority, node("a"), folder, None).expect("issued");
        identity.renew(&pair.a.tls, node("a")).expect("it is good");
        until(&mut source, REVOKED, false);
        // One that is revoked already is not taken.
        pki::revoke(&authority, node("a"));
        publish();
        until(&mut source, REVOKED, true);
        let error = identity.renew(&pair.a.tls, node("a")).expect_err("revoked");
        assert!(error.to_string().contains("is revoked"), "{error}");
    }

    #[test]
    fn a_list_that_others_can_write_is_not_taken() {
        let mut pair = Pair::new();
        let authority = pair.dir().join("ca");
        let path = pair.dir().join("crl.pem");
        fs::copy(authority.join(pki::CRL), &path).expect("copied");
        let chmod = |mode| {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(&path, mode).expect("it is ours");
        };
        pair.a.tls.crl = Some(path.clone());
        let identity = Identity::load(&pair.a.tls, node("a")).expect("an identity");
        let mut source = watching(&path, &identity);
        chmod(0o646);
        pki::revoke(&authority, node("a"));
        let list = fs::read(authority.join(pki::CRL)).expect("it is there");
        fs::write(&path, list).expect("written");
        let said = until(&mut source, LIST, true);
        assert!(said.contains("chmod go-w"), "{said}");
        assert_eq!(identity.own_revoked(), None);
        chmod(0o644);
        until(&mut source, LIST, false);
        assert!(identity.own_revoked().is_some());
    }

    /// The file that is wrong is named, and not the list that is right.
    #[test]
    fn with_another_authority_no_node_starts_and_its_file_is_named() {
        let mut pair = Pair::new();
        pair.a.tls.crl = Some(pair.dir().join("ca").join(pki::CRL));
        let other = tempfile::tempdir().expect("a folder");
        pki::init(other.path()).expect("an authority");
        fs::copy(other.path().join(pki::CA_CERT), &pair.a.tls.ca).expect("copied");
        let start = |pair: &Pair| {
            let refused = Identity::load(&pair.a.tls, node("a")).map(drop);
            refused.expect_err("files that do not fit").to_string()
        };
        let said = start(&pair);
        assert!(said.contains("ca.pem: none of its authorities"), "{said}");
        // The other way round the list is wrong.
        fs::copy(pair.dir().join("ca").join(pki::CA_CERT), &pair.a.tls.ca).expect("copied");
        pair.a.tls.crl = Some(other.path().join(pki::CRL));
        let said = start(&pair);
        assert!(said.contains("crl.pem: a list that no authority"), "{said}");
    }

    /// Files are copied one after the other, and not always in the best order.
    #[test]
    fn a_list_counts_once_its_authority_is_in_use() {
        let mut pair = Pair::new();
        let authority = pair.dir().join("ca");
        let path = pair.dir().join("crl.pem");
        fs::copy(authority.join(pki::CRL), &path).expect("copied");
        pair.a.tls.crl = Some(path.clone());
        let identity = Identity::load(&pair.a.tls, node("a")).expect("an identity");
        let mut source = watching(&path, &identity);
        let other = tempfile::tempdir().expect("a folder");
        pki::init(other.path()).expect("an authority");
        let beside = |path: &Path, name: &str| {
            let both = [authority.join(name), other.path().join(name)];
            let both = both.map(|it| fs::read(it).expect("it is there"));
            fs::write(path, both.concat()).expect("written");
        };
        beside(&path, pki::CRL);
        let said = until(&mut source, LIST, true);
        assert!(said.contains("no authority in use"), "{said}");
        beside(&pair.a.tls.ca, pki::CA_CERT);
        let renewed = identity.renew(&pair.a.tls, node("a"));
        renewed.expect("the old one is there, too");
        until(&mut source, LIST, false);
        // The new one's list must not be missing from now on.
        fs::copy(authority.join(pki::CRL), &path).expect("copied");
        let said = until(&mut source, LIST, true);
        assert!(said.contains("missing"), "{said}");
    }
}
