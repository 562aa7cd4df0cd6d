//! Keys and certificates of a cluster.
//!
//! [`init`] makes an authority, which signs a certificate per node ([`issue()`]). A node is
//! known by the DNS name in its certificate, which is its name in the configuration. A
//! certificate lives for a year unless something else is said, and [`revoke()`] ends it before:
//! the authority's list says so to everybody who reads it. [`Renewals`] gives nodes that ask
//! certificates of a shorter life, and [`renew`] is how they ask. A cluster that has an authority
//! of its own needs nothing of this.
//!
//! The agent does not link this crate: `godwit pki` runs a program of its own.
//!
//! | file | beside the authority | beside a node |
//! |---|---|---|
//! | [`CA_CERT`] | the authority's certificate | a copy |
//! | [`CA_KEY`] | its key | never |
//! | [`CRL`] | what it has revoked | a copy, as of the last [`issue()`] |
//! | [`ISSUED`] | what it has issued: serial number, name, dates | never |
//! | [`NODE_CERT`], [`NODE_KEY`] | if nothing else is said | the node's |
//!
//! Whoever changes an authority's files holds the lock beside them, so several processes do
//! so one after the other. Files are made under another name and renamed: a reader sees the
//! old one or the new one.
#![forbid(unsafe_code)]

mod authority;
pub mod cli;
mod error;
mod files;
mod issue;
mod key;
mod parsed;
mod record;
mod renewal;
mod revoke;
#[cfg(test)]
mod tests;
mod times;

pub use authority::init;
pub use error::{PkiError, with_causes};
pub use issue::{Issued, Life, Order, issue};
pub use record::{Entry, Serial};
pub use renewal::{Refused, Renewal, Renewals, Renewed, renew};
pub use revoke::{Which, revoke};

/// The authority's certificate, in the folder of [`init`] and of every node.
pub const CA_CERT: &str = "ca.pem";
/// The authority's key, in the folder of [`init`] only.
pub const CA_KEY: &str = "ca.key";
/// A node's certificate.
pub const NODE_CERT: &str = "node.pem";
/// A node's key.
pub const NODE_KEY: &str = "node.key";
/// The list of certificates that were revoked.
pub const CRL: &str = "crl.pem";
/// The record of all certificates that the authority has issued.
pub const ISSUED: &str = "issued";

/// How many days a certificate is valid unless something else is said.
pub const USUAL_DAYS: u16 = 365;
/// How many days a certificate is valid that a node has renewed by itself.
pub const RENEWED_DAYS: u16 = 30;
/// The most days that a certificate may be valid, and an authority is.
pub const MOST_DAYS: u16 = 3650;
