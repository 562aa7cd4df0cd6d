//! A manual page for each command that is not hidden, in section 8.

use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::Made;

const SECTION: &str = "8";

/// `src/exit.rs` of `godwit`; `godwit-pki` and `godwit-lab` end with the first two, and with 2
/// for what they do not understand.
const CODES: [(&str, &str); 4] = [
    ("0", "It is done."),
    (
        "1",
        "It failed, for the reason in the one line on standard error.",
    ),
    ("2", "The arguments or the configuration are wrong."),
    ("3", "It was refused, for the reason that is said."),
];

/// Pages of `program` and of all its commands.
pub(crate) fn of(program: &Command, date: &str) -> Vec<Made> {
    // `godwit help COMMAND` shows what the page says.
    let mut program = program.clone().disable_help_subcommand(true);
    program.build();
    let mut made = Vec::new();
    add(&program, None, date, &mut made);
    made
}

fn add(command: &Command, parent: Option<&str>, date: &str, made: &mut Vec<Made>) {
    let name = name(command);
    made.push((
        Path::new("man/man8").join(format!("{name}.{SECTION}")),
        page(command, parent, date),
    ));
    for below in shown(command) {
        add(below, Some(&name), date, made);
    }
}

/// `godwit-pki-init` of `godwit pki init`.
pub(crate) fn name(command: &Command) -> String {
    let words = command.get_bin_name().unwrap_or_else(|| command.get_name());
    words.replace(' ', "-")
}

/// The commands that people are to know of.
pub(crate) fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|it| !it.is_hide_set())
}

fn page(command: &Command, parent: Option<&str>, date: &str) -> Vec<u8> {
    let name = name(command);
    let command = command.clone().subcommand_help_heading("COMMANDS");
    let is_parent = shown(&command).next().is_some();
    // Commands below it are listed under the name to display.
    let man = Man::new(command.display_name(&name))
        .title(name.to_uppercase())
        .section(SECTION)
        .date(date)
        .source(format!("godwit {}", env!("CARGO_PKG_VERSION")))
        .manual("Godwit");
    let mut text = Vec::new();
    let parts = [
        Man::render_title,
        Man::render_name_section,
        Man::render_synopsis_section,
        Man::render_description_section,
        Man::render_options_section,
    ];
    let written = parts.iter().try_for_each(|part| part(&man, &mut text));
    let written = written.and_then(|()| match is_parent {
        true => man.render_subcommands_section(&mut text),
        false => Ok(()),
    });
    written
        .and_then(|()| ending(&name, parent).to_writer(&mut text))
        .expect("memory takes what is written");
    text
}

/// What is the same of all.
fn ending(name: &str, parent: Option<&str>) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in CODES {
        roff.control("TP", []);
        roff.text([bold(code)]);
        roff.text([roman(meaning)]);
    }
    roff.control("SH", ["SEE ALSO"]);
    let mut others = vec!["godwit", "godwit-doctor", "godwit-status"];
    others.extend(parent);
    others.retain(|other| *other != name);
    others.sort_unstable();
    others.dedup();
    let others = others.iter().map(|other| format!("{other}({SECTION})"));
    roff.text([roman(others.collect::<Vec<_>>().join(", "))]);
    roff.control("PP", []);
    roff.text([roman(
        "The documents in share/doc/godwit: README.md, docs/cli.md, docs/configuration.md.",
    )]);
    roff
}
