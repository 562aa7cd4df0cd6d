//! `godwit move` and `godwit drain`: planned changes of owner.

use std::process::ExitCode;

use anyhow::Context as _;
use godwit_agent::control::{Client, ClientError, Refusal};
use godwit_agent::moves::{FlowMoves, MoveReport};
use serde::Serialize;

use crate::agent_socket::AgentSocket;
use crate::{exit, out};

#[derive(Debug, clap::Args)]
pub(crate) struct MoveArgs {
    /// Name of the service.
    #[arg(long, required_unless_present = "flow")]
    service: Option<String>,
    /// One connection of a service without twins, as `godwit flows` shows it.
    #[arg(
        long,
        value_name = "CLIENT -> SERVICE",
        conflicts_with_all = ["service", "force", "count", "percent"]
    )]
    flow: Option<String>,
    /// At most so many connections of a service without twins.
    #[arg(long, value_name = "K", conflicts_with_all = ["force", "percent"])]
    count: Option<usize>,
    /// So many of a hundred.
    #[arg(
        long,
        value_name = "P",
        conflicts_with = "force",
        value_parser = clap::value_parser!(u8).range(..=100)
    )]
    percent: Option<u8>,
    /// Name of the node where they are to be; a standby must be in sync.
    #[arg(long, value_name = "NODE")]
    to: String,
    /// Reset connections that can't move, instead of staying for them.
    #[arg(long)]
    force: bool,
    /// One line of JSON, schema godwit.move/1, godwit.flow_moves/1 or
    /// godwit.error/1.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    agent: AgentSocket,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DrainArgs {
    /// The node whose services are to move away: this one, which is the default. At a
    /// director the back-end that is to get no new connections.
    #[arg(value_name = "NODE")]
    drained: Option<String>,
    /// Reset connections that can't move, instead of staying for them.
    #[arg(long)]
    force: bool,
    /// At a director: the back-end is to get new connections again.
    #[arg(long, conflicts_with = "force")]
    undo: bool,
    /// One line of JSON, schema godwit.drain/1, at a director godwit.backend/1.
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
    let part = (args.count, args.percent);
    let ended = match (&args.flow, &args.service) {
        (Some(flow), _) => client
            .hand_over_flow(flow, &args.to)
            .map(Ended::Connections),
        (None, Some(service)) if part != (None, None) => client
            .hand_over_flows(service, part, &args.to)
            .map(Ended::Connections),
        (None, service) => client
            .hand_over(service.as_deref().unwrap_or_default(), &args.to, args.force)
            .map(Ended::Service),
    };
    match ended {
        Ok(ended) => ended.show(args.json),
        Err(ClientError::Refused(refusal)) if args.json => {
            out::json(&refusal)?;
            Ok(ExitCode::from(exit::REFUSED))
        }
        Err(error) => Err(error.into()),
    }
}

/// How a move came to its end.
enum Ended {
    Service(MoveReport),
    Connections(FlowMoves),
}

impl Ended {
    fn show(&self, json: bool) -> anyhow::Result<ExitCode> {
        match self {
            Self::Service(report) if json => out::json(report)?,
            Self::Service(report) => out::lines(&said(report))?,
            Self::Connections(report) if json => out::json(report)?,
            Self::Connections(report) => out::lines(&said_of_flows(report))?,
        }
        Ok(match self {
            Self::Connections(report) if !report.stayed.is_empty() => ExitCode::from(exit::REFUSED),
            Self::Service(_) | Self::Connections(_) => ExitCode::SUCCESS,
        })
    }
}

/// A line for each that stayed, and one for all that moved.
fn said_of_flows(report: &FlowMoves) -> String {
    let mut lines: Vec<_> = report
        .stayed
        .iter()
        .map(|it| format!("{} stays on {}: {}", it.flow, report.from, it.reason))
        .collect();
    let longest = report.moved.iter().map(|it| it.silent_ms);
    let longest = longest.fold(0.0, f64::max);
    lines.push(match report.moved.len() {
        1 => format!(
            "one connection is on {} now; silent for {longest:.1} ms",
            report.to
        ),
        count => format!(
            "{count} connections are on {} now; silent for {longest:.1} ms at most",
            report.to
        ),
    });
    lines.join("\n")
}

pub(crate) fn run_drain(args: &DrainArgs) -> anyhow::Result<ExitCode> {
    let mut client = args.agent.connect()?;
    if client.status()?.director.is_some() {
        return drain_backend(&mut client, args);
    }
    anyhow::ensure!(
        !args.undo,
        "--undo is for directors: services are moved back by `godwit move`"
    );
    let report = drain(&mut client, args.drained.as_deref(), args.force)?;
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

/// What a back-end of a director has stays there.
fn drain_backend(client: &mut Client, args: &DrainArgs) -> anyhow::Result<ExitCode> {
    let backend = args.drained.as_deref();
    let backend = backend.context("say which back-end: godwit drain NODE")?;
    match client.drain(backend, !args.undo) {
        Ok(done) if args.json => out::json(&done)?,
        Ok(done) => out::lines(&format!(
            "{} gets {} connections{}",
            done.backend,
            if done.drained { "no new" } else { "new" },
            if done.drained {
                "; those that it has stay"
            } else {
                " again"
            },
        ))?,
        Err(ClientError::Refused(refusal)) if args.json => {
            out::json(&refusal)?;
            return Ok(ExitCode::from(exit::REFUSED));
        }
        Err(error) => return Err(error.into()),
    }
    Ok(ExitCode::SUCCESS)
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
    for service in status
        .services
        .iter()
        .filter(|it| it.ownership.role == "owner")
    {
        let gone = |moved: &MoveReport| moved.services.contains(&service.name);
        if report.moved.iter().any(gone) {
            continue;
        }
        let Some(to) = service.ownership.in_sync.first() else {
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
