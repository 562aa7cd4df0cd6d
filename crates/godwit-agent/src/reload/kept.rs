//! The file that was in force before a restart, for a start with one that a reload would refuse.
//!
//! A running node does not take a file without the owner of a service ([`super::owners`]). A
//! restart has forgotten the file before, and with it the owner: a standby would end its twins, a
//! voter would not renew the lease. Nor may the new process refuse to start, for then the owner
//! has no standby and no voter either. So a copy of the file in force is kept in the runtime
//! directory. A process that is started with a file that lacks a server of a service begins with
//! the copy. It takes the other file as a reload does, once it knows who owns.
//!
//! A copy of another boot counts for nothing: nobody has connections that this node knew of.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Reloads, owners};
use crate::config::Config;
use crate::custody;
use crate::files;
use crate::votes::boot;

/// How long a new process waits to hear from an owner, beside `startup_grace`: peers have linked
/// by then.
const PATIENCE: Duration = Duration::from_secs(3);

const LOOK: Duration = Duration::from_millis(100);

/// Where the copy of a node's file is.
fn path(config: &Config) -> io::Result<PathBuf> {
    let (cookie, name) = (godwit_sock::netns_cookie()?, config.node.name);
    Ok(config.node.run_dir.join(format!("file-n{cookie}-{name}")))
}

/// This file is in force from now on.
pub(crate) fn keep(config: &Config) {
    let kept = path(config).and_then(|path| {
        let (boot, length) = (boot(), config.text.len());
        // It may hold what only root may read, as the file does.
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let text = format!("{boot} {length}\n{}", config.text);
        options.open(path)?.write_all(text.as_bytes())
    });
    if let Err(error) = kept {
        tracing::warn!(%error, "the next process will not know which file was in force");
    }
}

/// The next process begins with its file, whatever that has.
fn forget(config: &Config) {
    let gone = path(config).and_then(fs::remove_file);
    if let Err(error) = gone {
        tracing::debug!(%error, "no file was kept");
    }
}

/// The file that was in force before, in this boot.
fn before(next: &Config) -> Option<Config> {
    let path = path(next).ok()?;
    custody::judge(&path).ok()?;
    let kept = files::read_text(&path).ok()?;
    let (head, text) = kept.split_once('\n')?;
    // One that was cut off is another file.
    if head != format!("{} {}", boot(), text.len()) {
        return None;
    }
    let before = Config::parse(&next.path, text).ok()?;
    let is_same =
        before.node.name == next.node.name && before.own_peer().role == next.own_peer().role;
    is_same.then_some(before)
}

/// The file to begin with, and the one that waits until it is known who owns.
pub(crate) fn choose(next: Config) -> (Config, Option<Arc<Config>>) {
    let Some(mut before) = before(&next) else {
        return (next, None);
    };
    let lost = owners::lost_servers(&before, &next);
    if lost.is_empty() {
        return (next, None);
    }
    before.warnings.push(format!(
        "{} is not in force: it lacks {}, and the node goes on with the file before until none of \
         them owns the service (godwit drain there, then godwit reload here)",
        next.path.display(),
        lost.join(", ")
    ));
    (before, Some(Arc::new(next)))
}

impl Reloads {
    /// Takes the file that waits as soon as nobody owns what it would end. If somebody does,
    /// that is said once, and the file waits for `godwit reload`.
    pub(crate) async fn catch_up(self, next: Arc<Config>) {
        let until = Instant::now() + self.running.detect.startup_grace + PATIENCE;
        let path = self.running.path.display();
        loop {
            let Ok(status) = self.status().await else {
                return;
            };
            if let Some(sentence) = owners::in_the_way(&self.running, &next, &status) {
                return tracing::error!("{path} is not taken: {sentence}");
            }
            if owners::are_known(&self.running, &next, &status) || Instant::now() >= until {
                break;
            }
            sleep(LOOK).await;
        }
        match self.take().await {
            Ok(()) => tracing::info!("{path} is taken"),
            Err(sentence) => {
                // Nobody owns what it ends; so another start may have it.
                forget(&self.running);
                tracing::error!("not taken: {sentence}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::testing::Pair;

    /// With a runtime directory.
    fn pair() -> Pair {
        let pair = Pair::new();
        fs::create_dir(&pair.a.node.run_dir).expect("made");
        pair
    }

    /// The file of `pair.a` in which the other server is called so.
    fn with_other(pair: &Pair, name: &str) -> Config {
        let text = pair.a.text.replace("\"b\"", &format!("\"{name}\""));
        Config::parse(&pair.a.path, &text).expect("valid")
    }

    #[test]
    fn a_file_without_a_server_waits_and_any_other_does_not() {
        let pair = pair();
        let renamed = with_other(&pair, "bb");
        assert!(choose(renamed.clone()).1.is_none(), "nothing is known");
        keep(&pair.a);
        let (begun, waits) = choose(renamed.clone());
        assert_eq!(begun.text, pair.a.text);
        assert_eq!(waits.as_deref(), Some(&renamed));
        let [warning] = &begun.warnings[..] else {
            panic!("{:?}", begun.warnings);
        };
        assert!(warning.contains("b of service \"web\""), "{warning}");
        let slower = pair
            .a
            .text
            .replacen("[detect]", "[detect]\nflap_limit = 7", 1);
        let slower = Config::parse(&pair.a.path, &slower).expect("valid");
        assert_eq!(choose(slower.clone()), (slower, None));
        keep(&renamed);
        assert_eq!(choose(renamed.clone()), (renamed, None), "it is in force");
    }

    #[test]
    fn a_copy_of_another_boot_or_one_that_was_cut_off_counts_for_nothing() {
        let pair = pair();
        let renamed = with_other(&pair, "bb");
        keep(&pair.a);
        let path = path(&pair.a).expect("Linux 5.14");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "it may hold secrets");
        let kept = fs::read_to_string(&path).expect("there");
        let other = kept.replacen(&boot(), "another", 1);
        for strange in [&*other, &kept[..kept.len() - 1], ""] {
            fs::write(&path, strange).expect("written");
            assert!(choose(renamed.clone()).1.is_none(), "{strange}");
        }
        fs::write(&path, &kept).expect("written");
        assert!(choose(renamed.clone()).1.is_some());
        forget(&pair.a);
        assert!(choose(renamed).1.is_none());
    }
}
