//! `godwit reload`: the running agent takes its changed file.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use godwit_agent::GIVEN_UP;
use godwit_agent::control::ClientError;
use godwit_agent::status::Status;
use serde::Serialize;

use crate::agent_socket::AgentSocket;
use crate::{exit, out};

/// An agent is there again within a second or two, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// One line of JSON, schema godwit.reload/1 or godwit.error/1.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    agent: AgentSocket,
}

/// `godwit.reload/1`.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    node: String,
    /// Whether the changed file is in force.
    reloaded: bool,
    /// Why not; empty if it is.
    reason: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut client = args.agent.connect()?;
    let before = client.status()?.incarnation;
    if let Err(error) = client.reload() {
        if let (ClientError::Refused(refusal), true) = (&error, args.json) {
            out::json(refusal)?;
            return Ok(ExitCode::from(exit::REFUSED));
        }
        return Err(error.into());
    }
    drop(client);
    let status = next_life(args, before)?;
    let mut warnings = status.warnings.iter();
    let failed = warnings.find(|text| text.starts_with(GIVEN_UP));
    let report = Report {
        schema: "godwit.reload/1",
        node: status.node.clone(),
        reloaded: failed.is_none(),
        reason: failed.cloned().unwrap_or_default(),
    };
    match (&failed, args.json) {
        (_, true) => out::json(&report)?,
        (None, false) => out::lines("the changed file is in force")?,
        (Some(sentence), false) => out::lines(sentence)?,
    }
    Ok(match failed {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::from(exit::FAILED),
    })
}

/// What the agent says of itself once it has started anew.
fn next_life(args: &Args, before: u64) -> anyhow::Result<Status> {
    let end = Instant::now() + PATIENCE;
    loop {
        let status = args.agent.connect().map(|mut client| client.status());
        if let Ok(Ok(status)) = status
            && status.incarnation != before
        {
            return Ok(status);
        }
        anyhow::ensure!(
            Instant::now() < end,
            "the agent took the file and does not answer since; its log says why"
        );
        thread::sleep(Duration::from_millis(20));
    }
}
