//! `godwit status`: this node, its peers and its services.

use std::process::ExitCode;

use godwit_agent::control::Request;
use godwit_agent::directed::DirectorReport;
use godwit_agent::status::{PeerReport, ServiceReport, Status};

use crate::agent_socket::AgentSocket;
use crate::out;
use crate::table::{Table, span};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// One line of JSON, schema godwit.status/1.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    agent: AgentSocket,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut client = args.agent.connect()?;
    let text = if args.json {
        client.line(Request::Status)?
    } else {
        render(&client.status()?)
    };
    out::lines(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn render(status: &Status) -> String {
    let mut text = format!(
        "node {}, godwit {}, up {}\nfencing    {}\n{}",
        status.node,
        status.version,
        span(status.uptime_ms),
        status.fencing,
        data_path(status),
    );
    for section in [
        peers(&status.peers) + &missing_links(&status.peers),
        services(&status.services),
        status.director.as_ref().map(director).unwrap_or_default(),
        takeovers(&status.services),
        resets(&status.services),
    ] {
        if !section.is_empty() {
            text.push('\n');
            text.push_str(&section);
        }
    }
    if !status.warnings.is_empty() {
        text.push('\n');
    }
    for warning in &status.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text
}

/// A witness has none.
fn data_path(status: &Status) -> String {
    let path = &status.data_path;
    let attached = match path.attached {
        _ if status.role == "witness" => return String::new(),
        true => "attached",
        false => "NOT attached",
    };
    format!("data path  {attached} on {}\n", path.interface)
}

fn missing_links(peers: &[PeerReport]) -> String {
    let reasons = peers.iter().filter_map(|peer| {
        let no_link = peer.no_link.as_ref()?;
        Some(format!("no link to {}: {}\n", peer.name, no_link.found))
    });
    reasons.collect()
}

fn peers(peers: &[PeerReport]) -> String {
    let mut table = Table::new(["PEER", "ROLE", "LIVENESS", "LINK", "HEARD", "LONGEST GAP"]);
    for peer in peers {
        let heard = peer
            .last_heard_ms
            .map_or_else(|| "never".into(), |ms| format!("{ms:.1} ms ago"));
        table.row([
            peer.name.clone(),
            peer.role.clone(),
            peer.liveness.clone(),
            if peer.linked {
                "up".into()
            } else {
                "down".into()
            },
            heard,
            format!("{:.1} ms", peer.max_interarrival_ms),
        ]);
    }
    table.render()
}

fn services(services: &[ServiceReport]) -> String {
    let mut table = Table::new([
        "SERVICE",
        "ADDRESSES",
        "STATE",
        "OWNER",
        "EPOCH",
        "IN SYNC",
        "FLOWS",
        "PROTECTED",
    ]);
    for service in services {
        let none = || "-".to_owned();
        let in_sync = Some(service.ownership.in_sync.join(",")).filter(|names| !names.is_empty());
        table.row([
            service.name.clone(),
            service.addresses.join(","),
            service.ownership.state.clone(),
            service.ownership.owner.clone().unwrap_or_else(none),
            service.ownership.epoch.clone(),
            in_sync.unwrap_or_else(none),
            service.flows.total.to_string(),
            service.protected.to_string(),
        ]);
    }
    table.render()
}

fn director(director: &DirectorReport) -> String {
    let mut table = Table::new(["BACK-END", "STATE", "WEIGHT", "DRAINED", "MAC"]);
    for backend in &director.backends {
        table.row([
            backend.name.clone(),
            backend.state.clone(),
            backend.weight.to_string(),
            if backend.drained {
                "yes".into()
            } else {
                "no".into()
            },
            backend.mac.clone().unwrap_or_else(|| "not found".into()),
        ]);
    }
    let starting = if director.starting {
        ", still waiting for back-ends"
    } else {
        ""
    };
    let mut text = format!(
        "director   via {}{starting}\n\n{}",
        director.via,
        table.render()
    );
    for service in &director.services {
        let addresses = service.addresses.join(",");
        text.push_str(&format!(
            "\n{} ({addresses}): new connections go to ",
            service.name
        ));
        let part = |count: u32| f64::from(count) * 100.0 / f64::from(director.table_size.max(1));
        let mut parts: Vec<_> = service
            .slots
            .iter()
            .map(|(name, count)| format!("{name} {:.1} %", part(*count)))
            .collect();
        if service.nobody > 0 {
            parts.push(format!("nobody {:.1} %", part(service.nobody)));
        }
        text.push_str(&parts.join(", "));
        text.push('\n');
    }
    text
}

fn resets(services: &[ServiceReport]) -> String {
    let mut text = String::new();
    for service in services {
        for (reason, count) in &service.resets {
            let name = &service.name;
            text.push_str(&format!("reset {count} connections of {name}: {reason}\n"));
        }
    }
    text
}

fn takeovers(services: &[ServiceReport]) -> String {
    let mut text = String::new();
    for service in services {
        let Some(last) = &service.last_takeover else {
            continue;
        };
        text.push_str(&format!(
            "took {} over from {} {} ago ({}): noticed after {:.1} ms, stalled for about {:.1} ms\n",
            service.name,
            last.from,
            span(last.age_ms),
            last.reason,
            last.detection_ms,
            last.stall_ms,
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(role: &str) -> Status {
        let status = json!({
            "schema": "godwit.status/1", "node": "w", "role": role, "version": "1",
            "incarnation": 1, "uptime_ms": 1, "fencing": "lease", "services": [], "warnings": [],
            "data_path": {
                "interface": "eth0", "attached": false, "version": "", "reasons": {}
            },
            "peers": [{
                "name": "b", "role": "server", "liveness": "unknown", "linked": false,
                "no_link": {
                    "reason": "peer_expired", "found": "its certificate has expired",
                    "refused": true
                },
                "last_heard_ms": null, "max_interarrival_ms": 0.0, "ignored": 0,
                "config_differs": false
            }]
        });
        serde_json::from_value(status).expect("it is one")
    }

    #[test]
    fn a_witness_says_nothing_of_a_data_path() {
        assert!(!render(&status("witness")).contains("data path"));
        for role in ["server", "director", ""] {
            assert!(render(&status(role)).contains("data path  NOT attached on eth0"));
        }
    }

    #[test]
    fn the_reason_why_there_is_no_link_is_said() {
        let said = render(&status("witness"));
        assert!(
            said.contains("\nno link to b: its certificate has expired\n"),
            "{said}"
        );
    }
}
