//! `godwit flows`: every flow, and why it is or is not protected.

use std::process::ExitCode;

use godwit_agent::control::Request;
use godwit_agent::flows::Flows;

use crate::agent_socket::AgentSocket;
use crate::out;
use crate::table::{Table, bytes, span};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// One line of JSON, schema godwit.flows/1.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    agent: AgentSocket,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut client = args.agent.connect()?;
    let text = if args.json {
        client.line(Request::Flows)?
    } else {
        render(client.flows()?)
    };
    out::lines(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn render(mut flows: Flows) -> String {
    flows
        .flows
        .sort_by(|a, b| (&a.service, &a.flow).cmp(&(&b.service, &b.flow)));
    let mut table = Table::new([
        "FLOW",
        "SERVICE",
        "ROLE",
        "STATE",
        "PROTECTED",
        "LAG",
        "IN",
        "OUT",
        "AGE",
        "QUIET",
    ]);
    for flow in &flows.flows {
        let protected = match &flow.reason {
            None => "yes".to_owned(),
            Some(reason) => format!("no: {reason}"),
        };
        table.row([
            flow.flow.clone(),
            flow.service.clone(),
            flow.role.clone(),
            flow.state.as_str().to_owned(),
            protected,
            flow.lag_bytes
                .map_or_else(|| "-".into(), |lag| bytes(lag.into())),
            bytes(flow.bytes_in),
            bytes(flow.bytes_out),
            span(flow.age_ms),
            span(flow.last_client_ms),
        ]);
    }
    let table = table.render();
    if table.is_empty() {
        format!("node {}: no flows\n", flows.node)
    } else {
        table
    }
}
