//! A changed file, taken without a restart of the process: `godwit reload`, SIGHUP,
//! `systemctl reload`.
//!
//! The file, and those that it names, are read and checked first, in a thread aside: a file
//! system may hang. A bad file is refused with a sentence, and nothing changes. A good one
//! begins another life in the same process: the driver and all threads end as before a
//! restart, which peers are told of, and start anew with what was read. The data path goes on
//! meanwhile, and what is no longer in the file ends as after a restart.
//!
//! A process that has given up its rights can't have them back, so some keys need a real
//! restart; that disturbs nobody either.

mod joined;
pub(crate) mod kept;
pub(crate) mod machine;
mod owners;
mod ring;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use godwit_wire::GoodbyeReason;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::config::{Config, Fencing, PeerRole};
use crate::control::lock_file;
use crate::custody;
use crate::descriptors;
use crate::director::{has_fellows, room};
use crate::input::{Inbox, Input, Query};
use crate::peers::Identity;
use crate::privileges;
use crate::programs::judge_programs;
use crate::realtime::be_ordinary;
use crate::sentence::whole;
use crate::status::Status;

/// How long files may take to be read. Less than a client of the control socket waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// The same before an end, which comes all the same.
const LITTLE_PATIENCE: Duration = Duration::from_secs(1);

/// How long the driver may take to say where connections are.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// What takes changed files, one at a time.
#[derive(Debug, Clone)]
pub(crate) struct Reloads {
    running: Arc<Config>,
    inbox: Inbox,
    /// Whether a thread still reads.
    reads: Arc<AtomicBool>,
}

/// What another life begins with, all of it read.
pub type Fresh = (Arc<Config>, Identity);

impl Reloads {
    pub(crate) fn new(running: Arc<Config>, inbox: Inbox) -> Self {
        Self {
            running,
            inbox,
            reads: Arc::default(),
        }
    }

    /// Takes the changed file, or says why not.
    pub(crate) async fn take(&self) -> Result<(), String> {
        descriptors::suffice_for_a_life()?;
        let current = self.running.clone();
        let read = move || {
            let fresh = check(&current)?;
            has_place(&current, &fresh.0).map(|()| fresh)
        };
        let (config, identity) = self.aside(PATIENCE, read).await??;
        self.must_disturb_nobody(&config).await?;
        let gone = |_| "the agent is ending".to_owned();
        let identity = Some(identity);
        let next = Input::Next { config, identity };
        self.inbox.send(next).map_err(gone)?;
        let (reason, done) = (GoodbyeReason::Restart, None);
        self.inbox.send(Input::Stop { reason, done }).map_err(gone)
    }

    /// A ring does not change while connections of one server are on another, the owner of a pair
    /// stays one of its servers, and services of two owners do not come to one address.
    async fn must_disturb_nobody(&self, next: &Config) -> Result<(), String> {
        let running = &*self.running;
        if !ring::has_ring(running)
            && !owners::lose_servers(running, next)
            && !joined::join(running, next)
        {
            return Ok(());
        }
        let status = self.status().await?;
        let ring = ring::in_the_way(running, next, &status);
        let owners = ring.or_else(|| owners::in_the_way(running, next, &status));
        match owners.or_else(|| joined::in_the_way(running, next, &status)) {
            Some(sentence) => Err(format!("{}: {sentence}", self.running.path.display())),
            None => Ok(()),
        }
    }

    async fn status(&self) -> Result<Status, String> {
        let (reply, answer) = oneshot::channel();
        let gone = |_| "the agent is ending".to_owned();
        let ask = Input::Query(Query::Status(reply));
        self.inbox.send(ask).map_err(gone)?;
        let status = timeout(ANSWER_LIMIT, answer).await;
        let status = status.map_err(|_| "the agent is too busy to answer".to_owned())?;
        status.map_err(|_| "the agent is ending".to_owned())
    }

    /// Before a restart of the process: what is no longer in the file is handed to who still
    /// has it. A file that is wrong is for the next process to complain about.
    pub(crate) async fn foretell(&self) {
        let path = self.running.path.clone();
        let read = move || {
            let is_ours = custody::judge(&path).is_ok();
            is_ours.then(|| Config::load(&path).ok()).flatten()
        };
        if let Ok(Some(config)) = self.aside(LITTLE_PATIENCE, read).await {
            let (config, identity) = (Arc::new(config), None);
            // If the driver has ended already, that was it.
            let _ = self.inbox.send(Input::Next { config, identity });
        }
    }

    /// Has a thread of its own read files. One that hangs is left alone, and until it ends
    /// nothing else is read.
    async fn aside<T: Send + 'static>(
        &self,
        patience: Duration,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let file = self.running.path.display();
        if self.reads.swap(true, Ordering::AcqRel) {
            return Err(format!("{file}: it is being read already; try again"));
        }
        let (done, answer) = oneshot::channel();
        let reads = Reads(self.reads.clone());
        let thread = thread::Builder::new().name("gw-reload".into());
        let spawned = thread.spawn(move || {
            be_ordinary();
            let read = read();
            drop(reads);
            // Whoever asked may have given up.
            let _ = done.send(read);
        });
        spawned.map_err(|error| format!("{file}: no thread can read it now: {error}"))?;
        match timeout(patience, answer).await {
            Ok(Ok(read)) => Ok(read),
            Ok(Err(_)) => Err(format!("{file}: it can't be read now")),
            Err(_) => Err(format!(
                "{file}: this file, or one that it names, could not be read within {} s: its file \
                 system does not answer",
                patience.as_secs()
            )),
        }
    }
}

/// Another life with what this one began with: a thread of its own reads the keys, and says
/// so. If it can't, this life goes on.
pub(crate) fn begin_anew(running: &Arc<Config>, inbox: &Inbox) {
    let (config, inbox) = (running.clone(), inbox.clone());
    let thread = thread::Builder::new().name("gw-reload".into());
    let spawned = thread.spawn(move || {
        be_ordinary();
        let identity = match Identity::load_welcome(&config.tls, config.node.name) {
            Ok(identity) => Some(identity),
            Err(error) => return tracing::error!("can't begin anew: {}", whole(&error)),
        };
        let (reason, done) = (GoodbyeReason::Restart, None);
        let told = inbox.send(Input::Next { config, identity });
        // A driver that has ended begins nothing.
        let _ = told.and_then(|()| inbox.send(Input::Stop { reason, done }));
    });
    if let Err(error) = spawned {
        tracing::error!("can't begin anew: no thread can read the keys now: {error}");
    }
}

/// That a thread reads; it ends when this is dropped.
struct Reads(Arc<AtomicBool>);

impl Drop for Reads {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Sentences about files that an agent with this one would believe and somebody else can change.
fn changeable(next: &Config) -> Vec<String> {
    custody::faults(&custody::believed(next))
}

/// What stands in the way of a file that is valid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Obstacles {
    /// Why no agent starts with it here, or peers refuse a link to one that does.
    pub bars: Vec<String>,
    /// Why that is not known: this user may not read what it names.
    pub unknown: Option<String>,
    /// Why the agent that runs here would not take it, and what that costs.
    pub others: Vec<String>,
}

/// What stands in the way of a file that is valid: why an agent would not start with it on
/// this machine, or why the agent that runs here would not take it.
pub fn obstacles(running: Option<(&Config, Option<&Status>)>, next: &Config) -> Obstacles {
    let (identity, unknown) = match Identity::load(&next.tls, next.node.name) {
        Ok(identity) => (refusal(&identity, next), None),
        Err(error) if error.is_for_want_of_rights() => (None, Some(unreadable(&whole(&error)))),
        Err(error) => (Some(no_start(&whole(&error))), None),
    };
    let status = running.and_then(|(running, status)| Some((running, status?)));
    let held = status.and_then(|(running, status)| ring::in_the_way(running, next, status));
    let owned = status.and_then(|(running, status)| owners::in_the_way(running, next, status));
    let joined = status.and_then(|(running, status)| joined::in_the_way(running, next, status));
    let endings = status.map(|(running, status)| {
        let renamed = owners::endings(running, next, status);
        [ring::endings(running, next, status), renamed].concat()
    });
    let changeable = changeable(next).into_iter();
    // Some are why it would not start.
    let is_said = |it: &String| identity.as_ref().is_some_and(|said| said.ends_with(&**it));
    let changeable: Vec<_> = changeable.filter(|it| !is_said(it)).collect();
    let (programs, unread) = match judge_programs(next) {
        Ok(()) => (None, None),
        Err((why, true)) => (None, Some(unreadable(&why))),
        Err((why, false)) => (Some(no_start(&why)), None),
    };
    let running = running.map(|(running, _)| running);
    let lacks = lacks(running, next, machine::find_group).into_iter();
    let bars = identity.into_iter().chain(programs);
    let bars: Vec<_> = bars.chain(lacks.map(|it| no_start(&it))).collect();
    let restart = running.and_then(|running| {
        let what = needs_restart(running, next)?;
        let cost = match bars.is_empty() {
            true => running.restart_cost(next),
            false => "once nothing is in its way".to_owned(),
        };
        Some(format!("{what} needs a restart, {cost}"))
    });
    let others = changeable
        .into_iter()
        .chain(restart)
        .chain(held)
        .chain(joined);
    Obstacles {
        bars,
        unknown: unknown.or(unread),
        others: others
            .chain(owned)
            .chain(endings.into_iter().flatten())
            .collect(),
    }
}

fn no_start(why: &str) -> String {
    format!("an agent would not start: {why}")
}

fn refusal(identity: &Identity, next: &Config) -> Option<String> {
    let error = whole(&identity.judge(&next.tls).err()?);
    Some(format!(
        "a reload would be refused, and after a restart peers refuse a link: {error}"
    ))
}

fn unreadable(why: &str) -> String {
    format!(
        "whether an agent starts with this file is not known, as this user may not read what it \
         names: {why}"
    )
}

/// What this machine lacks for a start with a file, if that is meant for it.
fn lacks(running: Option<&Config>, next: &Config, group: machine::FindGroup) -> Vec<String> {
    if !machine::is_meant(running, next) {
        return Vec::new();
    }
    let taken = running.map(|running| machine::taken(running, next));
    let mut all = machine::lacks(next, group);
    all.extend(taken.unwrap_or_default());
    all
}

/// What a restart costs, or why it would fail, as the agent that runs can see it.
fn restart(running: &Config, next: &Config) -> String {
    let lacks = lacks(Some(running), next, machine::find_group_in_file);
    match lacks.first() {
        None => format!(" (systemctl restart), {}", running.restart_cost(next)),
        Some(why) => format!(", which would fail: {why}"),
    }
}

/// Whether the next life finds the folder in which this one is known to be alone.
fn has_place(running: &Config, next: &Config) -> Result<(), String> {
    let (run_dir, name) = (&running.node.run_dir, running.node.name);
    let cookie = godwit_sock::netns_cookie().map_err(|error| error.to_string())?;
    let lock = lock_file(run_dir, cookie, name);
    if lock.exists() {
        return Ok(());
    }
    Err(format!(
        "{} has been deleted: that needs a restart{}",
        lock.display(),
        restart(running, next)
    ))
}

/// The file as it is now, if this process can go on with it.
fn check(running: &Config) -> Result<Fresh, String> {
    let next = Config::load(&running.path).map_err(|error| whole(&error))?;
    // The next life begins with these, also if this one goes on with older ones: what peers
    // would refuse does not take the place of what they have taken.
    let identity = Identity::load_welcome(&next.tls, next.node.name);
    let identity = identity.map_err(|error| whole(&error))?;
    if let Some(sentence) = changeable(&next).into_iter().next() {
        return Err(sentence);
    }
    match needs_restart(running, &next) {
        None => Ok((Arc::new(next), identity)),
        Some(what) => Err(format!(
            "{}: {what} needs a restart{}",
            running.path.display(),
            restart(running, &next)
        )),
    }
}

/// What can't be done without the rights of the start.
fn needs_restart(running: &Config, next: &Config) -> Option<&'static str> {
    let (a, b) = (&running.node, &next.node);
    let moves = |config: &Config| config.own_shares().any(|(_, it)| it.moves());
    let vni = |config: &Config| config.director.as_ref().map(|it| it.vni);
    let stonith = |config: &Config| config.fencing() == Fencing::Stonith;
    let facts = [
        (a.name != b.name, "another [node] name"),
        (a.interface != b.interface, "another interface"),
        (a.run_dir != b.run_dir, "another run_dir"),
        (a.app_group != b.app_group, "another app_group"),
        (a.metrics != b.metrics, "another metrics address"),
    ];
    let found = facts
        .into_iter()
        .find_map(|(is_so, what)| is_so.then_some(what));
    if found.is_some() {
        return found;
    }
    let (own, other) = (running.own_peer(), next.own_peer());
    let facts = [
        (own.role != other.role, "another role"),
        (own.control != other.control, "another control address"),
        (own.reach != other.reach, "another reach"),
        (vni(running) != vni(next), "another vni"),
        (
            stonith(running) || stonith(next),
            "a new file with fencing = \"stonith\"",
        ),
        (
            running.programs() != next.programs(),
            "another policy program",
        ),
        (
            !moves(running) && moves(next),
            "the first service whose connections move",
        ),
        (
            !privileges::cover(running, next),
            "what needs more privileges",
        ),
    ];
    let found = facts
        .into_iter()
        .find_map(|(is_so, what)| is_so.then_some(what));
    found.or_else(|| (own.role == PeerRole::Director).then(|| of_director(running, next))?)
}

/// What the program of a director is made with.
fn of_director(running: &Config, next: &Config) -> Option<&'static str> {
    let (Some(a), Some(b)) = (&running.director, &next.director) else {
        return Some("the end of [director]");
    };
    let facts = [
        (a.hook != b.hook, "another hook"),
        (a.seed != b.seed, "another seed"),
        (a.table_size != b.table_size, "another table_size"),
        (a.max_entries != b.max_entries, "another max_entries"),
        (
            room(running) < room(next),
            "a number of services that there is no room for",
        ),
        (
            has_fellows(running) != has_fellows(next),
            "a second director that comes or goes",
        ),
    ];
    facts
        .into_iter()
        .find_map(|(is_so, what)| is_so.then_some(what))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::testing::{Pair, node, pki};

    #[test]
    fn a_bad_file_is_refused_with_a_sentence_and_a_good_one_taken() {
        let pair = Pair::new();
        let text = std::fs::read_to_string(&pair.a.path).expect("it is there");
        let write = |text: &str| std::fs::write(&pair.a.path, text).expect("it is written");
        assert_eq!(*check(&pair.a).expect("nothing changed").0, pair.a);
        write(&text.replace("name = \"web\"", "nam = \"web\""));
        let sentence = check(&pair.a).expect_err("a wrong key");
        assert!(sentence.contains("nam"), "{sentence}");
        let address = pair.a.services[0].addresses[0].to_string();
        let twice = "[cluster]\nvoters = [\"b\", \"b\"]\n[tls]";
        for (from, to) in [(&*address, "255.255.255.255:80"), ("[tls]", twice)] {
            assert!(text.contains(from), "{from}");
            write(&text.replacen(from, to, 1));
            let sentence = check(&pair.a).expect_err(to);
            assert!(!sentence.contains('\n'), "{sentence}");
        }
        write(&text.replace("name = \"web\"", "name = \"shop\""));
        let (next, _) = check(&pair.a).expect("another name");
        assert_eq!(next.services[0].name.as_str(), "shop");
    }

    #[test]
    fn a_file_that_others_can_write_is_not_taken_and_check_says_so() {
        let pair = Pair::new();
        let chmod = |path: &std::path::Path, mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(path, mode).expect("it is ours");
        };
        let tls = &pair.a.tls;
        for path in [&pair.a.path, &tls.ca, &tls.cert] {
            chmod(path, 0o666);
            let sentence = check(&pair.a).expect_err("others may write it");
            assert!(sentence.contains("chmod go-w"), "{sentence}");
            let said = obstacles(None, &pair.a);
            let said = [said.bars, said.others].concat();
            assert_eq!(said.len(), 1, "once: {said:?}");
            assert!(said[0].contains("chmod go-w"), "{said:?}");
            chmod(path, 0o644);
        }
        check(&pair.a).expect("only its owner may");
        assert_eq!(obstacles(None, &pair.a), Obstacles::default());
    }

    /// An expired certificate lies in place of the good one in use.
    #[test]
    fn what_peers_would_refuse_is_not_taken_in_place_of_what_is_in_use() {
        let mut pair = Pair::new();
        let authority = pair.dir().join("ca");
        let list = pair.dir().join("a/crl.pem");
        pair.a.tls.crl = Some(list.clone());
        let text = pair.a.text.replacen("[tls]", "[tls]\ncrl = \"crl.pem\"", 1);
        std::fs::write(&pair.a.path, text).expect("it is written");
        let folder = pair.dir().join("a");
        let issue = |days| {
            let issued = pki::issue(&authority, node("a"), &folder, Some(days));
            issued.expect("issued");
        };
        let refused = |why: &str| {
            let sentence = check(&pair.a).expect_err(why);
            assert!(sentence.contains(why), "{sentence}");
            assert!(sentence.contains("node.pem"), "{sentence}");
            let next = Config::load(&pair.a.path).expect("it is valid");
            let said = obstacles(Some((&pair.a, None)), &next).bars;
            assert!(said.iter().any(|it| it.contains(why)), "{said:?}");
            // It still starts: an owner goes on to serve.
            Identity::load(&next.tls, node("a")).expect("it fits together");
        };
        check(&pair.a).expect("a good one");
        issue(-3);
        refused("has expired");
        issue(90);
        check(&pair.a).expect("a good one");
        pki::revoke(&authority, node("a"));
        std::fs::copy(authority.join(pki::CRL), &list).expect("copied");
        refused("is revoked");
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.expect("a runtime").block_on(future)
    }

    /// Whoever asks is told, and the driver hears of nothing.
    #[test]
    fn a_file_system_that_hangs_is_waited_for_by_nobody_for_long() {
        let pair = Pair::new();
        let (inbox, inputs) = Inbox::new();
        let reloads = Reloads::new(Arc::new(pair.a.clone()), inbox);
        let (go_on, hangs) = std::sync::mpsc::channel::<()>();
        let hang = move || hangs.recv().is_ok();
        let short = Duration::from_millis(20);
        let sentence = block_on(reloads.aside(short, hang)).expect_err("it hangs");
        assert!(sentence.contains("does not answer"), "{sentence}");
        let sentence = block_on(reloads.take()).expect_err("one at a time");
        assert!(sentence.contains("being read already"), "{sentence}");
        assert!(inputs.try_recv().is_err(), "the driver hears nothing");
        go_on.send(()).expect("it hangs still");
        let end = std::time::Instant::now() + crate::testing::PATIENCE;
        while block_on(reloads.aside(PATIENCE, || ())).is_err() {
            assert!(std::time::Instant::now() < end, "it reads no more");
        }
    }

    /// Each is a sentence, and none is waited for.
    #[test]
    fn what_is_no_file_is_refused() {
        let pair = Pair::new();
        let path = &pair.a.path;
        let text = std::fs::read_to_string(path).expect("it is there");
        std::fs::remove_file(path).expect("it is there");
        nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).expect("made");
        let sentence = check(&pair.a).expect_err("a pipe");
        assert!(sentence.contains("it is a named pipe"), "{sentence}");
        std::fs::remove_file(path).expect("it is there");
        std::fs::write(path, text.replace("\"node.key\"", "\"/dev/zero\"")).expect("written");
        let sentence = check(&pair.a).expect_err("a device");
        assert!(sentence.contains("/dev/zero: it is a device"), "{sentence}");
    }

    #[test]
    fn what_needs_rights_needs_a_restart() {
        let pair = Pair::new();
        let mut next = pair.a.clone();
        next.node.app_group = Some("web".into());
        assert_eq!(needs_restart(&pair.a, &next), Some("another app_group"));
        assert_eq!(needs_restart(&pair.a, &pair.a), None);
    }
}
