//! `godwit-sim`: histories of whole clusters, checked.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum as _};
use godwit_sim::check::{self, Bounds, Flaw};
use godwit_sim::commits;
use godwit_sim::requests::{self, Rule};
use godwit_sim::{Limits, Mutant};

/// Simulates clusters in which everything goes wrong that can, and checks that
/// no two nodes speak and that nothing acknowledged is lost.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// The first seed. With --trace: the only one.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Stop after so many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// Stop when so many faults have counted [default: 1000000 without --seconds].
    #[arg(long)]
    faults: Option<u64>,
    /// Run the history of one seed and say what happens.
    #[arg(long)]
    trace: bool,
    /// Stop when so many histories were wrong.
    #[arg(long, default_value_t = 10)]
    violations: usize,
    /// Threads [default: one per CPU].
    #[arg(long)]
    threads: Option<usize>,
    /// Take a mechanism away, to see that it is missed.
    #[arg(long, value_enum)]
    mutant: Option<Mutant>,
    /// Try every history of a small cluster instead, within the bounds of CI, or
    /// within those that follow.
    #[arg(long, conflicts_with_all = ["seconds", "faults", "mutant"])]
    exhaustive: bool,
    #[command(flatten)]
    within: Within,
    /// Run so many histories of connections that go with their requests instead.
    #[arg(long)]
    requests: Option<u64>,
    /// With --requests: break a rule, to see that it is missed.
    #[arg(long, value_enum, requires = "requests")]
    broken: Option<Rule>,
    /// Run so many histories of snapshots that servers commit instead.
    #[arg(long)]
    commits: Option<u64>,
    /// With --commits: what agents or standbys fail to do, to see that it is missed.
    #[arg(long, value_enum, requires = "commits")]
    failing: Option<commits::Fault>,
}

/// With --exhaustive: what its histories are.
#[derive(Debug, clap::Args)]
struct Within {
    /// With --exhaustive: faults in one history.
    #[arg(long, requires = "exhaustive")]
    most_faults: Option<u8>,
    /// With --most-faults: moves in one history.
    #[arg(long, default_value_t = 0, requires = "most_faults")]
    moves: u8,
    /// With --most-faults: steps of time in a term, at least 3.
    #[arg(long, default_value_t = 3, requires = "most_faults", value_parser = clap::value_parser!(u32).range(3..))]
    ticks: u32,
    /// With --most-faults: steps of time that outages last.
    #[arg(long, num_args = 1.., default_values_t = [4], requires = "most_faults")]
    outages: Vec<u8>,
    /// With --most-faults: stop agents between any two actions as well.
    #[arg(long, requires = "most_faults")]
    between: bool,
    /// With --most-faults: from the first moment on.
    #[arg(long, requires = "most_faults")]
    boot: bool,
    /// With --most-faults: with the share where its primary is not.
    #[arg(long, requires = "most_faults")]
    away: bool,
    /// With --most-faults: with clocks that are wrong.
    #[arg(long, requires = "most_faults")]
    drift: bool,
    /// With --exhaustive: take a mechanism away.
    #[arg(long, value_enum, requires = "exhaustive")]
    flaw: Option<Flaw>,
}

fn main() -> ExitCode {
    carry_out(&Args::parse()).unwrap_or_else(|error| ExitCode::from(godwit_sim::unheard(&error)))
}

fn carry_out(args: &Args) -> io::Result<ExitCode> {
    if args.exhaustive {
        return exhaust(args);
    }
    if let Some(histories) = args.requests {
        return follow(args, histories);
    }
    if let Some(histories) = args.commits {
        return commit(args, histories);
    }
    let (tally, wrong) = if args.trace {
        let outcome = godwit_sim::history(args.seed, args.mutant, true);
        let tally = outcome.tally.clone();
        let wrong = outcome.violation.is_some().then_some(outcome);
        (tally, wrong.into_iter().collect())
    } else {
        godwit_sim::run(&limits(args))
    };
    // Without it the history is another one.
    let mutant = args.mutant.and_then(|it| it.to_possible_value());
    let mutant = mutant.map_or_else(String::new, |it| format!(" --mutant {}", it.get_name()));
    let mut out = io::stdout().lock();
    for outcome in &wrong {
        let what = outcome.violation.as_deref().unwrap_or_default();
        writeln!(out, "seed {}: {what}", outcome.seed)?;
        let again = format!("godwit-sim --seed {} --trace", outcome.seed);
        writeln!(out, "    again: {again}{mutant}")?;
    }
    writeln!(out, "{tally}")?;
    writeln!(
        out,
        "{} faults, {} takeovers, {} streams, {} violations",
        tally.faults,
        tally.takeovers,
        tally.streams,
        wrong.len()
    )?;
    Ok(if wrong.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn exhaust(args: &Args) -> io::Result<ExitCode> {
    let threads = threads(args);
    let all = match args.within.most_faults {
        Some(faults) => vec![Bounds {
            faults,
            moves: args.within.moves,
            ticks: args.within.ticks,
            outages: args.within.outages.clone(),
            between: args.within.between,
            boot: args.within.boot,
            away: args.within.away,
            drift: args.within.drift,
            flaw: None,
            threads,
        }],
        None => Bounds::for_ci(threads).into(),
    };
    let mut violations = 0;
    for mut bounds in all {
        bounds.flaw = args.within.flaw;
        let begun = Instant::now();
        let verdict = check::exhaust(&bounds);
        let story = verdict.violation.as_deref().unwrap_or_default();
        let told = if args.trace { story.len() } else { 1 };
        let mut out = io::stdout().lock();
        for line in &story[story.len().saturating_sub(told)..] {
            writeln!(out, "{line}")?;
        }
        let wrong = u32::from(!story.is_empty());
        violations += wrong;
        writeln!(
            out,
            "{bounds}: {} states, depth {}, {:.1} s, {wrong} violations",
            verdict.states,
            verdict.depth,
            begun.elapsed().as_secs_f64(),
        )?;
    }
    Ok(if violations == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn follow(args: &Args, histories: u64) -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    match requests::run(args.seed, histories, args.broken) {
        Ok(sums) => {
            writeln!(out, "{sums}, 0 violations")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(wrong) => {
            for line in &wrong.story {
                writeln!(out, "{line}")?;
            }
            writeln!(out, "seed {}: 1 violation", wrong.seed)?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn threads(args: &Args) -> usize {
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    args.threads.unwrap_or_else(all)
}

fn limits(args: &Args) -> Limits {
    let endless = u64::MAX;
    Limits {
        seed: args.seed,
        faults: match (args.faults, args.seconds) {
            (Some(faults), _) => faults,
            (None, Some(_)) => endless,
            (None, None) => 1_000_000,
        },
        time: Duration::from_secs(args.seconds.unwrap_or(endless)),
        violations: args.violations,
        threads: threads(args),
        mutant: args.mutant,
    }
}

fn commit(args: &Args, histories: u64) -> io::Result<ExitCode> {
    let mut out = io::stdout().lock();
    match commits::run(args.seed, histories, args.failing) {
        Ok(sums) => {
            writeln!(out, "{sums}, 0 violations")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(wrong) => {
            writeln!(out, "seed {}: {}", wrong.seed, wrong.what)?;
            Ok(ExitCode::FAILURE)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(["godwit-sim"].into_iter().chain(line.split_whitespace()))
    }

    /// A flawed run that says "0 violations" would be none.
    #[test]
    fn nothing_is_ignored() {
        for line in [
            "--exhaustive --most-faults 1 --ticks 0",
            "--exhaustive --most-faults 1 --ticks 2",
            "--exhaustive --ticks 6",
            "--flaw no-fence",
            "--most-faults 1",
            "--exhaustive --seconds 2",
            "--exhaustive --faults 2",
            "--exhaustive --mutant no-fence",
            "--broken silent",
            "--failing early-answer",
        ] {
            let error = parse(line).expect_err(line);
            assert_ne!(error.kind(), ErrorKind::InvalidValue, "{line}");
        }
    }

    /// What `make sim` and docs/simulation.md have.
    #[test]
    fn defaults_need_nothing_else() {
        for line in [
            "",
            "--exhaustive",
            "--exhaustive --most-faults 1 --ticks 3",
            "--exhaustive --most-faults 2 --moves 1 --between --outages 1 4",
            "--exhaustive --most-faults 2 --away --outages 0 4",
            "--exhaustive --flaw no-fence --most-faults 2 --trace",
            "--seed 1 --seconds 2",
            "--requests 20000",
            "--requests 20000 --broken silent",
            "--commits 20000",
            "--commits 20000 --failing early-answer",
        ] {
            if let Err(error) = parse(line) {
                panic!("{line}: {error}");
            }
        }
    }
}
