//! `godwit-pki`, which `godwit pki` runs: keys and certificates of a cluster.

use std::error::Error;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory as _, Parser, Subcommand};
use godwit_wire::NodeName;

use crate::{
    CRL, Issued, Life, MOST_DAYS, Order, RENEWED_DAYS, Renewal, Renewals, Renewed, Serial,
    USUAL_DAYS, Which, init, issue, renew, revoke, with_causes,
};

/// Makes and revokes certificates of a cluster.
#[derive(Debug, Parser)]
#[command(
    name = "godwit-pki",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make an authority: ca.pem, ca.key and crl.pem, for ten years.
    Init {
        /// Folder of the authority; keep it off the servers.
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
    },
    /// Make the certificate of one node: node.pem, node.key and copies of ca.pem and crl.pem.
    Issue {
        /// Folder of the authority.
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// The node's name, as in its `[[peer]]`.
        #[arg(long, value_name = "NAME", value_parser = node_name)]
        name: NodeName,
        /// Folder for the node's files [default: the authority's].
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Days that it is valid for, 1 to 3650 [default: 365, or as long as the authority].
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_DAYS)))]
        days: Option<u16>,
        /// Do nothing if the certificate that is there is valid for so many days.
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u16).range(0..=i64::from(MOST_DAYS)))]
        unless_valid_for: Option<u16>,
    },
    /// End certificates before their time: they come onto the list crl.pem.
    Revoke {
        /// Folder of the authority.
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        #[command(flatten)]
        which: Revoked,
    },
    /// Give nodes that ask certificates with a short life, until it is stopped.
    Serve {
        /// Folder of the authority.
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// Address and port that nodes reach.
        #[arg(long, value_name = "ADDR:PORT")]
        listen: SocketAddr,
        /// Days that a renewed certificate is valid for, 1 to 3650, or as long as the authority.
        #[arg(long, value_name = "N", default_value_t = RENEWED_DAYS, value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_DAYS)))]
        days: u16,
    },
    /// Renew the certificate of this node, with a new key, and take the list of revoked ones.
    Renew {
        /// Where `godwit-pki serve` listens.
        #[arg(long, value_name = "ADDR:PORT")]
        from: String,
        /// Folder with node.pem, node.key and ca.pem.
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// Keep a certificate that is valid for so many days [default: half of its life].
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u16).range(0..=i64::from(MOST_DAYS)))]
        unless_valid_for: Option<u16>,
    },
}

/// One of them.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Revoked {
    /// All certificates that this node has had until now.
    #[arg(value_name = "NAME", value_parser = node_name)]
    name: Option<NodeName>,
    /// The certificate in this file.
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// The certificate with this number, as in the file `issued`.
    #[arg(long, value_name = "HEX")]
    serial: Option<Serial>,
}

fn node_name(text: &str) -> Result<NodeName, String> {
    NodeName::new(text).map_err(|_| {
        format!(
            "a node's name has 1 to {} of a-z A-Z 0-9 . _ -, and nothing else",
            NodeName::MAX_LEN
        )
    })
}

/// What the program can be told.
pub fn command() -> clap::Command {
    Cli::command()
}

/// The program.
pub fn run() -> ExitCode {
    match carry_out(Cli::parse().command) {
        Ok(said) => {
            // What was done is done, whether or not somebody reads it.
            let _ = writeln!(io::stdout(), "{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "godwit: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

fn carry_out(command: Command) -> Result<String, Box<dyn Error>> {
    match command {
        Command::Init { dir } => {
            init(&dir)?;
            Ok(format!("made an authority in {}", dir.display()))
        }
        Command::Issue {
            dir,
            name,
            out,
            days,
            unless_valid_for,
        } => {
            let order = Order {
                name,
                out: out.as_ref().unwrap_or(&dir),
                life: days.map_or(Life::Usual, Life::Days),
                unless_valid_for,
            };
            Ok(said(&order, issue(&dir, &order)?))
        }
        Command::Revoke { dir, which } => {
            let which = match (which.name, which.cert, which.serial) {
                (Some(name), _, _) => Which::Name(name),
                (None, Some(path), _) => Which::Certificate(path),
                (None, None, Some(serial)) => Which::Serial(serial),
                (None, None, None) => return Err("say whose certificate, or which".into()),
            };
            let revoked = revoke(&dir, &which)?;
            let serials = revoked.iter().map(|entry| entry.serial.to_string());
            let list = dir.join(CRL);
            Ok(format!(
                "revoked {}; have all nodes follow {} ([tls] crl)",
                serials.collect::<Vec<_>>().join(", "),
                list.display()
            ))
        }
        Command::Serve { dir, listen, days } => {
            let renewals = Arc::new(Renewals::bind(&dir, listen, days)?);
            let _ = writeln!(
                io::stderr(),
                "godwit-pki: certificates of {} are renewed at {}, for {days} days",
                dir.display(),
                renewals.address()?
            );
            renewals.run()
        }
        Command::Renew {
            from,
            dir,
            unless_valid_for,
        } => {
            let wanted = Renewal {
                from: &from,
                folder: &dir,
                unless_valid_for,
            };
            let dir = dir.display();
            Ok(match renew(&wanted)? {
                Renewed::Made { serial, days } => format!(
                    "renewed the certificate in {dir} (number {serial}), valid for {days} days"
                ),
                Renewed::Kept { days } => format!(
                    "kept the certificate in {dir}, valid for {days} days; the list is of today"
                ),
            })
        }
    }
}

fn said(order: &Order<'_>, issued: Issued) -> String {
    let (name, out) = (order.name, order.out.display());
    match issued {
        Issued::Made { days, is_cut, .. } => {
            let why = if is_cut {
                format!(", and not for {USUAL_DAYS}: its authority ends then")
            } else {
                String::new()
            };
            format!("made the certificate of {name} in {out}, valid for {days} days{why}")
        }
        Issued::Kept { days } => {
            format!("kept the certificate of {name} in {out}, valid for {days} days")
        }
    }
}
