//! `godwit pki`: certificates for tests and small clusters.

use std::path::PathBuf;
use std::process::ExitCode;

use godwit_agent::pki;
use godwit_wire::NodeName;

use crate::out;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make an authority: ca.pem and ca.key. They never expire.
    Init {
        /// Folder of the authority; keep it off the servers.
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
    },
    /// Make the certificate of one node: node.pem, node.key and a copy of ca.pem.
    Issue {
        /// Folder of the authority.
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// The node's name, as in its `[[peer]]`.
        #[arg(long, value_name = "NAME")]
        name: NodeName,
        /// Folder for the node's files [default: the authority's].
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// How long it is valid [default: for ever].
        #[arg(long, value_name = "N", allow_negative_numbers = true)]
        days: Option<i64>,
    },
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Init { dir } => {
            pki::init(dir)?;
            out::lines(&format!("made an authority in {}", dir.display()))?;
        }
        Command::Issue {
            dir,
            name,
            out,
            days,
        } => {
            let out = out.as_ref().unwrap_or(dir);
            pki::issue(dir, *name, out, *days)?;
            out::lines(&format!(
                "made the certificate of {name} in {}",
                out.display()
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
