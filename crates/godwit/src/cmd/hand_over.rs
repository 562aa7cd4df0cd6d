//! `godwit move` and `godwit drain`: planned changes of owner.

use std::process::ExitCode;

use godwit_agent::control::{Client, ClientError, Refusal};
use godwit_agent::moves::MoveReport;
use serde::Serialize;

use crate::agent_socket::AgentSocket;
use crate::{exit, out};

#[derive(Debug, clap::Args)]
pub(crate) struct MoveArgs {
    /// Name of the service.
    #[arg(long)]
    service: String,
    /// Name of the node that is to own it; it must be in sync.
    #[arg(long, value_name = "NODE")]
    to: String,
    /// Reset connections that can't move, instead of staying for them.
    #[arg(long)]
    force: bool,
    /// One line of JSON, schema godwit.move/1 or godwit.error/1.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    agent: AgentSocket,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DrainArgs {
    /// The node whose services are to move away: this one, which is the default.
    #[arg(value_name = "NODE")]
    drained: Option<String>,
    /// Reset connections that can't move, instead of staying for them.
    #[arg(long)]
    force: bool,
    /// One line of JSON, schema godwit.drain/1.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    agent: AgentSocket,
}

/// `godwit.drain/1`.
#[derive(Debug, Serialize)]
struct DrainReport {
    schema: &'static str,
    node: String,
    /// Whether the node owns nothing any more.
    drained: bool,
    moved: Vec<MoveReport>,
    refused: Vec<Refusal>,
}

pub(crate) fn run_move(args: &MoveArgs) -> anyhow::Result<ExitCode> {
    let mut client = args.agent.connect()?;
    match client.hand_over(&args.service, &args.to, args.force) {
        Ok(report) if args.json => out::json(&report)?,
        Ok(report) => out::lines(&said(&report))?,
        Err(ClientError::Refused(refusal)) if args.json => {
            out::json(&refusal)?;
            return Ok(ExitCode::from(exit::REFUSED));
        }
        Err(error) => return Err(error.into()),
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run_drain(args: &DrainArgs) -> anyhow::Result<ExitCode> {
    let report = drain(
        &mut args.agent.connect()?,
        args.drained.as_deref(),
        args.force,
    )?;
    if args.json {
        out::json(&report)?;
    } else {
        for moved in &report.moved {
            out::lines(&said(moved))?;
        }
        for refused in &report.refused {
            out::error(&anyhow::anyhow!("{}", refused.error));
        }
        if report.drained {
            out::lines(&format!("node {} owns nothing", report.node))?;
        }
    }
    Ok(if report.drained {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(exit::REFUSED)
    })
}

/// Each service goes to the first standby that is in sync.
fn drain(client: &mut Client, node: Option<&str>, force: bool) -> Result<DrainReport, ClientError> {
    let status = client.status()?;
    let mut report = DrainReport {
        schema: "godwit.drain/1",
        node: status.node.clone(),
        drained: false,
        moved: Vec::new(),
        refused: Vec::new(),
    };
    if let Some(node) = node.filter(|node| *node != status.node) {
        let other = format!("this agent is node {}; run it on node {node}", status.node);
        report.refused.push(Refusal::because("other_node", other));
        return Ok(report);
    }
    for service in status.services.iter().filter(|it| it.role == "owner") {
        let gone = |moved: &MoveReport| moved.services.contains(&service.name);
        if report.moved.iter().any(gone) {
            continue;
        }
        let Some(to) = service.in_sync.first() else {
            let sentence = format!(
                "service {} has no standby in sync, so it stays here",
                service.name
            );
            report
                .refused
                .push(Refusal::because("not_in_sync", sentence));
            continue;
        };
        match client.hand_over(&service.name, to, force) {
            Ok(moved) => report.moved.push(moved),
            Err(ClientError::Refused(refusal)) => report.refused.push(refusal),
            Err(error) => return Err(error),
        }
    }
    report.drained = report.refused.is_empty();
    Ok(report)
}

fn said(report: &MoveReport) -> String {
    let (services, verb) = match &report.services[..] {
        [one] => (one.clone(), "is"),
        many => (many.join(", "), "are"),
    };
    format!(
        "{services} {verb} on {} now, with {} connections; silent for {:.1} ms",
        report.to, report.flows, report.silent_ms
    )
}
