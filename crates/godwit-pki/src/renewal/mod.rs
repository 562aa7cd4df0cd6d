//! Certificates that nodes renew by themselves: they live for weeks and not for a year.
//!
//! [`Renewals`] runs where the authority is, [`renew`] at a node. Both speak TLS 1.3, and both
//! show certificates of the authority: the node its own, which must not have ended, and the
//! authority's program one with a name that no node can have. The node makes a new key, which
//! never leaves it, and asks for a certificate of the name that it has. A request without a key
//! asks for the list of revoked certificates alone.
//!
//! ```text
//!   node                                authority
//!   "gwrenew1" length, request  ──────►  length 0: the list only; else PKCS #10, in DER
//!                               ◄──────  "gwrenew1" code, and if that is 0:
//!                                        length, certificate; length, list: PEM
//! ```
//!
//! Lengths have four octets, big-endian. What else is bounded: [`doors`] who may connect,
//! [`wire`] how much is read for how long, [`grant`] how often a node is given another one.

mod adopt;
mod ask;
mod doors;
mod grant;
mod said;
mod serve;
#[cfg(test)]
mod tests;
mod wire;

pub use ask::{Renewal, Renewed, renew};
pub use serve::Renewals;
pub use wire::Refused;

/// The name of the authority's program: longer than any node's.
const AUTHORITY: &str = "renews-certificates-of-nodes.godwit.invalid";
