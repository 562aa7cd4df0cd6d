//! `godwit-manual FOLDER [DATE]`: manual pages and completions of shells, as files to lay under
//! `PREFIX/share`. For `make install`; it is not installed itself.
//!
//! All of it is made of what the programs parse their arguments with. They link nothing of
//! this.
#![forbid(unsafe_code)]

mod pages;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Command;
use clap_complete::{Shell, generate};

/// A file, by its path below `share`.
type Made = (PathBuf, Vec<u8>);

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let Some(folder) = arguments.next() else {
        bail!("usage: godwit-manual FOLDER [DATE]");
    };
    for (path, content) in all(&arguments.next().unwrap_or_default()) {
        let path = Path::new(&folder).join(path);
        let parent = path.parent().unwrap_or_else(|| Path::new("/"));
        fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Pages have `date`, as 2026-11-29.
fn all(date: &str) -> Vec<Made> {
    let mut made = pages::of(&godwit(), date);
    for command in [godwit(), godwit_pki::cli::command()] {
        made.extend(completions(&command));
    }
    made
}

/// `godwit` as people know it: nothing that is hidden, and the commands of the programs that it
/// runs in the place of its own for them.
fn godwit() -> Command {
    let own = godwit_cli::command();
    let lab = godwit_lab::cli::command();
    let pki = godwit_pki::cli::command().name("pki");
    let mut whole = Command::new("godwit")
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .subcommand_required(true);
    if let Some(about) = own.get_about() {
        whole = whole.about(about.clone());
    }
    for (place, command) in pages::shown(&own).enumerate() {
        let other = [&pki].into_iter().chain(lab.get_subcommands());
        let mut other = other.filter(|it| it.get_name() == command.get_name());
        let command = other.next().unwrap_or(command).clone();
        whole = whole.subcommand(command.display_order(place));
    }
    whole
}

/// For bash, zsh and fish, where each looks for those of installed programs.
fn completions(command: &Command) -> Vec<Made> {
    let name = command.get_name();
    let places = [
        (Shell::Bash, format!("bash-completion/completions/{name}")),
        (Shell::Zsh, format!("zsh/site-functions/_{name}")),
        (
            Shell::Fish,
            format!("fish/vendor_completions.d/{name}.fish"),
        ),
    ];
    let made = places.map(|(shell, path)| {
        let mut content = Vec::new();
        generate(shell, &mut command.clone(), name, &mut content);
        if shell == Shell::Bash {
            content = one_spelling(content, name);
        }
        (path.into(), content)
    });
    made.into()
}

/// The script sets a variable to `godwit__pki__subcmd__issue`. `clap_complete` 4.6 asks for
/// `godwit__subcmd__pki__subcmd__issue`, as if the hyphen of `name` were a space.
fn one_spelling(script: Vec<u8>, name: &str) -> Vec<u8> {
    if !name.contains('-') {
        return script;
    }
    let script = String::from_utf8(script).expect("it is made of text");
    let asked = format!("{}__subcmd__", name.replace('-', "__subcmd__"));
    let set = format!("{}__subcmd__", name.replace('-', "__"));
    script.replace(&asked, &set).into_bytes()
}
