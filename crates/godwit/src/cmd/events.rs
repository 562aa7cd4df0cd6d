//! `godwit events`: what happened, and what happens.

use std::process::ExitCode;

use anyhow::Context as _;
use godwit_agent::events::EventRecord;

use crate::agent_socket::AgentSocket;
use crate::out;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Lines of JSON, schema godwit.events/1.
    #[arg(long)]
    json: bool,
    /// Go on with what happens from now on.
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    agent: AgentSocket,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    for line in args.agent.connect()?.events(args.follow)? {
        let line = line.context("the agent went away")?;
        if args.json {
            out::lines(&line)?;
            continue;
        }
        let record: EventRecord =
            serde_json::from_str(&line).context("the agent's event is not understood")?;
        out::lines(&render(&record))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn render(record: &EventRecord) -> String {
    let mark = if record.warning { "!" } else { " " };
    format!(
        "{} {mark} {} {}",
        record.time,
        record.event,
        record.details()
    )
}
