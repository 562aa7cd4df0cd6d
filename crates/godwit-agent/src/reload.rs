//! A changed file, taken without a restart of the process: `godwit reload`, SIGHUP,
//! `systemctl reload`.
//!
//! The file is read and checked first; a bad one is refused with a sentence, and nothing
//! changes. A good one begins another life in the same process: the driver and all threads
//! end as before a restart, which peers are told of, and start anew with the new file. The
//! data path goes on meanwhile, and what is no longer in the file ends as after a restart.
//!
//! A process that has given up its rights can't have them back, so some keys need a real
//! restart; that disturbs nobody either.

use std::error::Error;
use std::iter;
use std::sync::Arc;

use godwit_wire::GoodbyeReason;
use nix::net::if_::if_nametoindex;
use tokio::task::spawn_blocking;

use crate::config::{Config, Fencing, PeerRole};
use crate::control::lock_file;
use crate::director;
use crate::input::{Inbox, Input};
use crate::peers::Identity;
use crate::privileges;

/// Takes the changed file, or says why not.
pub(crate) async fn take(running: &Arc<Config>, inbox: &Inbox) -> Result<(), String> {
    let current = running.clone();
    let checked = spawn_blocking(move || has_place(&current).and_then(|()| check(&current))).await;
    let config = checked.map_err(|_| "the file can't be read now".to_owned())??;
    let gone = |_| "the agent is ending".to_owned();
    let (config, reloads) = (Arc::new(config), true);
    inbox.send(Input::Next { config, reloads }).map_err(gone)?;
    let (reason, done) = (GoodbyeReason::Restart, None);
    inbox.send(Input::Stop { reason, done }).map_err(gone)
}

/// Before a restart of the process: what is no longer in the file is handed to who still
/// has it. A file that is wrong is for the next process to complain about.
pub(crate) async fn foretell(running: &Arc<Config>, inbox: &Inbox) {
    let path = running.path.clone();
    let read = spawn_blocking(move || Config::load(&path)).await;
    if let Ok(Ok(config)) = read {
        let (config, reloads) = (Arc::new(config), false);
        // If the driver has ended already, that was it.
        let _ = inbox.send(Input::Next { config, reloads });
    }
}

/// What stands in the way of a file that is valid: why an agent would not start with it on
/// this machine, or why the agent that runs here would not take it.
pub fn obstacles(running: Option<&Config>, next: &Config) -> Vec<String> {
    let identity = Identity::load(&next.tls, next.node.name).err();
    let identity = identity.map(|error| format!("an agent would not start: {}", whole(&error)));
    let restart = running.and_then(|running| needs_restart(running, next));
    let restart =
        restart.map(|what| format!("{what} needs a restart, which disturbs no connection"));
    let interface = &next.node.interface;
    let is_missing = running.is_some() && if_nametoindex(interface.as_str()).is_err();
    let missing = is_missing.then(|| format!("there is no interface {interface} here"));
    identity.into_iter().chain(missing).chain(restart).collect()
}

/// A sentence with all that lies behind it.
pub(crate) fn whole(error: &dyn Error) -> String {
    let causes = iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Whether the next life finds the folder in which this one is known to be alone.
fn has_place(running: &Config) -> Result<(), String> {
    let (run_dir, name) = (&running.node.run_dir, running.node.name);
    let cookie = godwit_sock::netns_cookie().map_err(|error| error.to_string())?;
    let lock = lock_file(run_dir, cookie, name);
    if lock.exists() {
        return Ok(());
    }
    Err(format!(
        "{} has been deleted: that needs a restart (systemctl restart), which disturbs no \
         connection",
        lock.display()
    ))
}

/// The file as it is now, if this process can go on with it.
fn check(running: &Config) -> Result<Config, String> {
    let next = Config::load(&running.path).map_err(|error| whole(&error))?;
    // The next life begins with these, also if this one goes on with older ones.
    Identity::load(&next.tls, next.node.name).map_err(|error| whole(&error))?;
    match needs_restart(running, &next) {
        None => Ok(next),
        Some(what) => Err(format!(
            "{}: {what} needs a restart (systemctl restart), which disturbs no connection",
            running.path.display()
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
            director::room(running) < director::room(next),
            "a number of services that there is no room for",
        ),
        (
            director::has_fellows(running) != director::has_fellows(next),
            "a second director that comes or goes",
        ),
    ];
    facts
        .into_iter()
        .find_map(|(is_so, what)| is_so.then_some(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pair;

    #[test]
    fn a_bad_file_is_refused_with_a_sentence_and_a_good_one_taken() {
        let pair = Pair::new();
        let text = std::fs::read_to_string(&pair.a.path).expect("it is there");
        let write = |text: &str| std::fs::write(&pair.a.path, text).expect("it is written");
        assert_eq!(check(&pair.a).expect("nothing changed"), pair.a);
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
        let next = check(&pair.a).expect("another name");
        assert_eq!(next.services[0].name.as_str(), "shop");
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
