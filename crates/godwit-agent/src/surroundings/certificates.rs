//! Certificates: how long they are valid, and renewed ones.
//!
//! Renewed files are taken without a restart: new links use them, running links go on.
//! Files that can't be used are said, and the identity before is kept. They may be
//! replaced one after the other, so files that do not fit together count only after a
//! moment.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use godwit_core::MonoTime;
use godwit_core::fitness::Consequence;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::of_checks;
use super::watch::Source;
use crate::clock;
use crate::config::Config;
use crate::custody::believed;
use crate::doctor::{Host as _, LiveHost, certificates, custody};
use crate::facts::{Look, Wrong};
use crate::files;
use crate::peers::Identity;

/// Three files are asked for when they were changed.
const PERIOD: Duration = Duration::from_secs(1);

/// As [`PERIOD`], while files do not fit together.
pub(super) const SOON: Duration = Duration::from_millis(100);

/// How long one file may be newer than the others.
pub(super) const TORN: Duration = Duration::from_millis(400);

/// What makes a folder worth a look.
pub(super) const CHANGES: AddWatchFlags = AddWatchFlags::IN_CLOSE_WRITE
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_CREATE)
    .union(AddWatchFlags::IN_DELETE);

/// The fact that renewed files are not in use.
const RENEWAL: &str = "certificate_renewal";

/// What tells a file from another of the same name.
pub(super) type Stamp = Option<(u64, u64, i64, i64, u64)>;

/// The files of `[tls]`.
pub(super) struct Certificates {
    config: Arc<Config>,
    identity: Identity,
    events: Inotify,
    /// The files as they are in use, `None` before the first look.
    stamps: Option<Vec<Stamp>>,
    /// Texts of what is in use, in the order of [`certificates::named`].
    in_use: Vec<Vec<u8>>,
    /// Since when the files can't be used.
    failing: Option<MonoTime>,
    /// Why renewed files are not in use, once that is said.
    fault: Option<String>,
    /// These and others that only root and this process's user should change.
    believed: Vec<PathBuf>,
}

impl Certificates {
    /// Where events of their folders come from.
    ///
    /// # Errors
    /// If the kernel has no room for it.
    pub(super) fn events() -> io::Result<Inotify> {
        let flags = InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK;
        Inotify::init(flags).map_err(Into::into)
    }

    /// Looks at files: their file system may hang.
    pub(super) fn new(config: &Arc<Config>, identity: Identity, events: Inotify) -> Self {
        let mut this = Self {
            config: config.clone(),
            identity,
            events,
            stamps: None,
            in_use: Vec::new(),
            failing: None,
            fault: None,
            believed: believed(config),
        };
        this.watch_folders();
        this.take();
        this
    }

    fn files(&self) -> [PathBuf; 3] {
        let tls = &self.config.tls;
        [tls.ca.clone(), tls.cert.clone(), tls.key.clone()]
    }

    /// Renamed files and links that are changed make events of their folder. A folder
    /// that is replaced is noticed by the files in it.
    fn watch_folders(&self) {
        for folder in self.files().iter().filter_map(|file| file.parent()) {
            if let Err(error) = self.events.add_watch(folder, CHANGES) {
                tracing::debug!(folder = %folder.display(), %error, "not watched by events");
            }
        }
    }

    /// Remembers what is in use.
    fn take(&mut self) {
        self.stamps = Some(self.files().iter().map(stamp).collect());
        let named = certificates::named(&self.config.tls);
        let texts = named.map(|(_, path)| files::read(path).unwrap_or_default());
        self.in_use = texts.into();
        self.failing = None;
        self.fault = None;
    }

    /// Puts changed files into use, or says after a moment why not.
    fn renew(&mut self, now: MonoTime) {
        let stamps: Vec<_> = self.files().iter().map(stamp).collect();
        if self.stamps.as_ref() == Some(&stamps) {
            self.failing = None;
            self.fault = None;
            return;
        }
        match self.identity.renew(&self.config.tls, self.config.node.name) {
            Ok(()) => {
                tracing::info!("renewed certificates are in use for new links");
                self.watch_folders();
                self.take();
            }
            Err(error) => {
                let since = *self.failing.get_or_insert(now);
                if now.since(since) >= TORN {
                    self.fault = Some(with_causes(&error));
                }
            }
        }
    }
}

/// `None` if it is not there.
pub(super) fn stamp(path: &PathBuf) -> Stamp {
    let file = fs::metadata(path).ok()?;
    let (seconds, nanos) = (file.mtime(), file.mtime_nsec());
    Some((file.dev(), file.ino(), seconds, nanos, file.len()))
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

impl Source for Certificates {
    fn name(&self) -> &'static str {
        "certificates"
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn take_events(&mut self) -> bool {
        while self.events.read_events().is_ok_and(|some| !some.is_empty()) {}
        true
    }

    fn period(&self) -> Duration {
        if self.failing.is_some() { SOON } else { PERIOD }
    }

    fn look(&mut self) -> Look {
        self.renew(clock::now());
        let (mut checks, mut look_days) = (Vec::new(), Vec::new());
        let named = certificates::named(&self.config.tls);
        for ((name, path), pem) in named.into_iter().zip(&self.in_use) {
            let remaining = certificates::remaining(name, path, pem, LiveHost.seconds());
            look_days.extend(remaining.days.map(|days| (name.to_owned(), days)));
            checks.push(remaining.check);
        }
        // What is in use may be of another authority, too: a start takes that.
        let judged = self.identity.judge_chain(&self.config.tls);
        certificates::note_refusal(&mut checks, judged);
        checks.extend(certificates::key(&self.config.tls.key));
        checks.push(custody::look(&self.believed));
        let mut look = of_checks("certificates", checks);
        look.days_left = look_days.into_iter().collect();
        look.watched.push(RENEWAL.into());
        if let Some(fault) = &self.fault {
            look.wrong.push(Wrong {
                name: RENEWAL.into(),
                share: None,
                consequence: Consequence::Say,
                found: format!("renewed files can't be used, the old ones are kept: {fault}"),
                advice: "put a certificate of this node, its key and its authority there".into(),
            });
        }
        look
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::thread;
    use std::time::Instant;

    use super::*;
    use crate::testing::{PATIENCE, Pair, node, pki};

    fn wrong(look: &Look) -> Vec<&str> {
        look.wrong.iter().map(|wrong| wrong.name.as_str()).collect()
    }

    fn made(config: &Config, identity: Identity) -> Certificates {
        let events = Certificates::events().expect("inotify");
        Certificates::new(&Arc::new(config.clone()), identity, events)
    }

    /// Looks until that is what is wrong.
    fn until(source: &mut Certificates, expected: &[&str]) -> Look {
        let end = Instant::now() + PATIENCE;
        loop {
            let look = source.look();
            if wrong(&look) == expected {
                return look;
            }
            assert!(Instant::now() < end, "{look:?}, not {expected:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn renewed_files_are_taken_and_broken_ones_are_said() {
        let pair = Pair::new();
        let tls = &pair.a.tls;
        let identity = Identity::load(tls, node("a")).expect("an identity");
        let mut source = made(&pair.a, identity.clone());
        let look = source.look();
        assert_eq!(wrong(&look), Vec::<&str>::new());
        let days = |look: &Look| look.days_left.get("certificate").copied();
        assert!(days(&look).is_some_and(|days| days > 300), "{look:?}");

        let folder = tls.cert.parent().expect("a folder").to_owned();
        let authority = pair.dir().join("ca");
        let issue = |name: &str, days| {
            // What another node has there stays there.
            fs::remove_file(&tls.cert).expect("it is there");
            pki::issue(&authority, node(name), &folder, Some(days)).expect("issued");
        };
        issue("a", 90);
        let look = until(&mut source, &[]);
        assert!(days(&look).is_some_and(|days| (88..=91).contains(&days)));
        issue("a", 5);
        until(&mut source, &["certificate"]);
        // Expired: the one before is kept, and still warns.
        issue("a", -3);
        let look = until(&mut source, &["certificate", RENEWAL]);
        assert!(look.wrong[1].found.contains("xpired"), "{look:?}");
        // Of another node, and no certificate at all.
        issue("b", 90);
        let look = until(&mut source, &["certificate", RENEWAL]);
        assert!(look.wrong[1].found.contains("not the certificate of node"));
        fs::write(&tls.cert, "nothing").expect("written");
        until(&mut source, &["certificate", RENEWAL]);
        issue("a", 365);
        let look = until(&mut source, &[]);
        assert!(days(&look).is_some_and(|days| days > 300), "{look:?}");
    }

    /// As it is in use, and when it is to be renewed.
    #[test]
    fn a_key_that_others_can_read_is_said_and_not_taken() {
        let pair = Pair::new();
        let tls = &pair.a.tls;
        let identity = Identity::load(tls, node("a")).expect("an identity");
        let mut source = made(&pair.a, identity);
        until(&mut source, &[]);
        let mode = |mode| {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(&tls.key, mode).expect("it is ours");
        };
        mode(0o640);
        let look = until(&mut source, &["key_file"]);
        assert!(look.wrong[0].found.contains("chmod 600"), "{look:?}");
        let folder = tls.cert.parent().expect("a folder");
        let authority = pair.dir().join("ca");
        pki::issue(&authority, node("a"), folder, Some(90)).expect("issued");
        mode(0o604);
        let look = until(&mut source, &["key_file", RENEWAL]);
        assert!(look.wrong[1].found.contains("chmod 600"), "{look:?}");
        mode(0o600);
        until(&mut source, &[]);
    }

    /// An account without privileges appends its own authority, and would be a peer.
    #[test]
    fn what_others_can_write_is_said_and_not_taken() {
        let mut pair = Pair::new();
        let folder = pair.a.tls.cert.parent().expect("a folder").to_owned();
        pair.a.tls.crl = Some(folder.join(pki::CRL));
        let tls = &pair.a.tls;
        let identity = Identity::load(tls, node("a")).expect("an identity");
        let mut source = made(&pair.a, identity);
        until(&mut source, &[]);
        let chmod = |path: &PathBuf, mode| {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(path, mode).expect("it is ours");
        };
        let crl = tls.crl.clone().expect("just named");
        for path in [&tls.ca, &tls.cert, &crl, &pair.a.path] {
            chmod(path, 0o666);
            let look = until(&mut source, &["believed_files"]);
            let said = &look.wrong[0].found;
            assert!(said.contains(&format!("go-w {}", path.display())), "{said}");
            chmod(path, 0o644);
            until(&mut source, &[]);
        }
        // No node starts with such an authority, or with such a folder.
        let start = || Identity::load(tls, node("a")).map(drop);
        for (path, wrong, right) in [(&tls.ca, 0o666, 0o644), (&folder, 0o777, 0o755)] {
            chmod(path, wrong);
            let error = start().expect_err("others may write").to_string();
            assert!(error.contains("chmod go-w"), "{error}");
            chmod(path, right);
            start().expect("only its owner");
        }
        let other = tempfile::tempdir().expect("a folder");
        pki::init(other.path()).expect("an authority");
        let both = [tls.ca.clone(), other.path().join(pki::CA_CERT)];
        let both = both.map(|path| fs::read(path).expect("it is there"));
        chmod(&tls.ca, 0o666);
        fs::write(&tls.ca, both.concat()).expect("written");
        let look = until(&mut source, &["believed_files", RENEWAL]);
        assert!(look.wrong[1].found.contains("chmod go-w"), "{look:?}");
        chmod(&tls.ca, 0o644);
        until(&mut source, &[]);
        // The file with the certificate is taken only while it is its owner's, too.
        pki::issue(&pair.dir().join("ca"), node("a"), &folder, Some(90)).expect("issued");
        fs::write(&tls.ca, both.concat()).expect("written");
        chmod(&tls.cert, 0o664);
        until(&mut source, &["believed_files", RENEWAL]);
        chmod(&tls.cert, 0o644);
        until(&mut source, &[]);
    }

    /// A start takes them, as an owner is to serve.
    #[test]
    fn a_certificate_that_peers_refuse_is_said_from_the_start_on() {
        let pair = Pair::new();
        let tls = &pair.a.tls;
        let elsewhere = tempfile::tempdir().expect("a folder");
        pki::init(elsewhere.path()).expect("an authority");
        fs::copy(elsewhere.path().join("ca.pem"), &tls.ca).expect("copied");
        let identity = Identity::load(tls, node("a")).expect("it fits together");
        let mut source = made(&pair.a, identity);
        let look = until(&mut source, &["certificate"]);
        assert!(look.wrong[0].found.contains("no authority in "), "{look:?}");
    }

    #[test]
    fn files_of_another_authority_are_refused() {
        let pair = Pair::new();
        let tls = &pair.a.tls;
        let identity = Identity::load(tls, node("a")).expect("an identity");
        let mut source = made(&pair.a, identity);
        let elsewhere = tempfile::tempdir().expect("a folder");
        pki::init(elsewhere.path()).expect("an authority");
        let out = elsewhere.path().join("a");
        pki::issue(elsewhere.path(), node("a"), &out, None).expect("issued");
        fs::copy(out.join("node.key"), &tls.key).expect("copied");
        fs::copy(out.join("node.pem"), &tls.cert).expect("copied");
        until(&mut source, &[RENEWAL]);
        // Nor when its certificate is there: peers do not know it.
        fs::copy(out.join("ca.pem"), &tls.ca).expect("copied");
        let torn = Instant::now() + 2 * TORN;
        while Instant::now() < torn {
            assert_eq!(wrong(&source.look()), [RENEWAL]);
            thread::sleep(Duration::from_millis(20));
        }
        // Beside the old one it may: that is how an authority is replaced.
        let both = [
            fs::read(pair.dir().join("ca/ca.pem")),
            fs::read(out.join("ca.pem")),
        ];
        fs::write(&tls.ca, both.map(|it| it.expect("read")).concat()).expect("written");
        until(&mut source, &[]);
    }
}
