//! Against what the programs say of themselves with `--help`.

use std::collections::{BTreeMap, BTreeSet};

use clap::Command;
use clap::error::ErrorKind;

use crate::{all, godwit, pages};

fn files() -> BTreeMap<String, String> {
    let made = all("2026-11-29").into_iter().map(|(path, content)| {
        let text = String::from_utf8(content).expect("it is text");
        (path.to_string_lossy().into_owned(), text)
    });
    made.collect()
}

/// `text` without what roff and shells escape.
fn plain(text: &str) -> String {
    text.replace('\\', "")
}

/// The words of a help text that are options.
fn options(help: &str) -> BTreeSet<String> {
    let words = help.split(|c: char| !c.is_ascii_lowercase() && c != '-');
    let long = words.filter(|word| word.len() > 3 && word.starts_with("--"));
    long.map(|word| word.trim_end_matches('-').to_owned())
        .collect()
}

/// Calls `look` for each command that is not hidden, with its words and its help.
fn each(command: &mut Command, look: &mut impl FnMut(&str, &str)) {
    let words = command.get_bin_name().unwrap_or("godwit").to_owned();
    look(&words, &command.render_long_help().to_string());
    for below in command.get_subcommands_mut().filter(|it| !it.is_hide_set()) {
        each(below, look);
    }
}

fn built() -> Command {
    let mut command = godwit().disable_help_subcommand(true);
    command.build();
    command
}

#[test]
fn each_command_has_a_page_with_each_option() {
    let files = files();
    let (mut count, mut seen) = (0, BTreeSet::new());
    each(&mut built(), &mut |words, help| {
        let path = format!("man/man8/{}.8", words.replace(' ', "-"));
        let page = files.get(&path).unwrap_or_else(|| panic!("no {path}"));
        for option in options(help) {
            assert!(plain(page).contains(&option), "{path} lacks {option}");
            seen.insert(option);
        }
        count += 1;
    });
    assert!(count >= 20, "{count} commands");
    for option in ["--config", "--detach", "--unless-valid-for", "--hostile"] {
        assert!(seen.contains(option), "{option} is an option: {seen:?}");
    }
    let pages = files.keys().filter(|path| path.starts_with("man/"));
    assert_eq!(pages.count(), count, "pages of nothing else");
}

/// The first line is what `whatis` reads, and what is hidden is in no page.
#[test]
fn pages_have_their_parts() {
    for (path, page) in files().iter().filter(|(path, _)| path.starts_with("man/")) {
        let page = plain(page);
        let name = path.trim_start_matches("man/man8/").trim_end_matches(".8");
        let title = format!(".TH {} 8 2026-11-29 ", name.to_uppercase());
        assert!(page.contains(&title), "{page}");
        assert!(page.contains(&format!(".SH NAME\n{name} - ")), "{page}");
        for part in [
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "\"EXIT STATUS\"",
            "\"SEE ALSO\"",
        ] {
            assert!(
                page.contains(&format!(".SH {part}\n")),
                "{path}: {part}\n{page}"
            );
        }
    }
    for (path, text) in files() {
        let hidden = ["stonith-helper", "director-load", "SUBCOMMANDS"];
        let has = hidden.iter().find(|word| plain(&text).contains(*word));
        assert_eq!(has, None, "{path}");
    }
}

#[test]
fn shells_complete_each_command_and_option() {
    let files = files();
    let places = [
        "bash-completion/completions/godwit",
        "zsh/site-functions/_godwit",
        "fish/vendor_completions.d/godwit.fish",
    ];
    for place in places {
        let text = &files[place];
        each(&mut built(), &mut |words, help| {
            let last = words.rsplit(' ').next().unwrap_or_default();
            assert!(text.contains(last), "{place} lacks {words}");
            for option in options(help) {
                // Fish has them as `-l config`.
                let bare = option.trim_start_matches('-');
                let has = text.contains(&option) || text.contains(&format!("-l {bare}"));
                assert!(has, "{place} lacks {option} of {words}");
            }
        });
        assert!(
            files.contains_key(&place.replace("godwit", "godwit-pki")),
            "{place}"
        );
    }
}

/// `godwit pki`, `demo`, `bench` and `chaos` are described by the programs that do it.
#[test]
fn commands_of_other_programs_are_in_it() {
    let command = built();
    let below = |name: &str| {
        let found = command.find_subcommand(name).expect("it is there");
        pages::shown(found).map(pages::name).collect::<Vec<_>>()
    };
    assert!(below("pki").contains(&"godwit-pki-renew".to_owned()));
    for name in ["demo", "bench", "chaos"] {
        let found = command.find_subcommand(name).expect("it is there");
        let has = |wanted| found.get_arguments().any(|it| it.get_id() == wanted);
        assert!(!has("arguments"), "{name} is not only handed on");
    }
}

/// Each word that comes leads to a branch with what may follow, also where a name has a hyphen.
#[test]
fn bash_finds_what_follows_a_command() {
    let files = files();
    for (name, least) in [("godwit", 20), ("godwit-pki", 6)] {
        let script = &files[&format!("bash-completion/completions/{name}")];
        let mut count = 0;
        for line in script.lines().map(str::trim) {
            let Some(set) = line
                .strip_prefix("cmd=\"")
                .and_then(|it| it.strip_suffix('"'))
            else {
                continue;
            };
            if !set.is_empty() {
                let label = format!("\n        {set})\n");
                assert!(script.contains(&label), "{name}: no branch {set}");
                count += 1;
            }
        }
        assert!(count >= least, "{name}: {count} branches");
    }
}

/// What is offered must be taken: `godwit-pki issue --version`, too.
#[test]
fn commands_of_the_pki_take_the_version_flag_that_their_pages_offer() {
    let (files, mut seen) = (files(), 0);
    let program = godwit_pki::cli::command();
    for command in pages::shown(&program).map(Command::get_name) {
        let page = plain(&files[&format!("man/man8/godwit-pki-{command}.8")]);
        if page.contains("--version") {
            let words = ["godwit-pki", command, "--version"];
            let said = program.clone().try_get_matches_from(words);
            let kind = said.map(drop).map_err(|error| error.kind());
            assert_eq!(kind, Err(ErrorKind::DisplayVersion), "{command}");
            seen += 1;
        }
    }
    assert_eq!(seen, 5, "all of them offer it");
}
