//! Why something of an authority was not done.

use std::error::Error;
use std::io;
use std::path::PathBuf;

/// Certificates that could not be made or revoked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PkiError {
    /// There is an authority already; a second one would lock out its nodes.
    #[error("{} exists; remove it to start anew", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file can't be read or written.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A key or certificate can't be made, or what was read is none.
    #[error("{what}")]
    Certificate {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: rcgen::Error,
    },
    /// A file does not hold what it should.
    #[error("{}: {wanted} was expected", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What should be there.
        wanted: &'static str,
    },
    /// Others may have read the authority's key.
    #[error(
        "{0}: its group or others may read or change it (mode {mode:03o}): chmod 600 {0}, and make \
         a new authority if somebody may have read it",
        path.display()
    )]
    KeyExposed {
        /// The key's file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Others could put files of theirs beside an authority's.
    #[error(
        "{0}: its group or others may write there (mode {mode:03o}): chmod go-w {0}, or name \
         another folder",
        path.display()
    )]
    FolderOpen {
        /// The folder.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A folder has the files of another node.
    #[error(
        "{} has the certificate of node \"{name}\": name another folder with --out, or remove \
         node.pem and node.key there",
        path.display()
    )]
    OtherNode {
        /// The folder.
        path: PathBuf,
        /// Whose certificate is there.
        name: String,
    },
    /// The list is of a later time than the record.
    #[error(
        "{}: an older copy: it was written with list {known} of {}, which has number {there} now. \
         Put the latest copy back. If that is lost, remove this one: what the list has stays \
         revoked, and certificates are revoked by their files then (--cert)",
        record.display(), list.display()
    )]
    OldRecord {
        /// The record.
        record: PathBuf,
        /// The list.
        list: PathBuf,
        /// The number of the list that the record was written with.
        known: u64,
        /// The number of the list that is there.
        there: u64,
    },
    /// An authority's own certificate can't be revoked.
    #[error(
        "{} is the certificate of the authority itself, which can't revoke itself: make a new \
         authority, and replace ca.pem on all nodes",
        path.display()
    )]
    OwnCertificate {
        /// The certificate's file.
        path: PathBuf,
    },
    /// Key and certificate are of two authorities.
    #[error("{} is not the key of {}: what it signs would be refused", key.display(), cert.display())]
    OtherKey {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        cert: PathBuf,
    },
    /// A certificate would outlive its authority.
    #[error(
        "the authority in {} ends in {left} days, before the certificate would: ask for {left} \
         days at most, or make a new authority",
        path.display()
    )]
    BeyondAuthority {
        /// The authority's certificate.
        path: PathBuf,
        /// The days that it has left.
        left: i64,
    },
    /// The authority itself is over.
    #[error("the authority in {} has ended: make a new one", path.display())]
    AuthorityEnded {
        /// The authority's certificate.
        path: PathBuf,
    },
    /// So many days are not asked for.
    #[error("{days} days: 1 to {} are possible", crate::MOST_DAYS)]
    Days {
        /// What was asked for.
        days: u16,
    },
    /// A certificate of another authority can't be revoked here.
    #[error("{} is not a certificate of the authority in {}", path.display(), authority.display())]
    NotIssuedHere {
        /// The certificate's file.
        path: PathBuf,
        /// The authority's certificate.
        authority: PathBuf,
    },
    /// No address to listen at.
    #[error("listening at {address}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// TLS can't be spoken with what is there.
    #[error("{what}")]
    Tls {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: rustls::Error,
    },
    /// The authority's program was not reached, or ended the connection.
    #[error("asking {from} for a certificate")]
    Asking {
        /// Its address.
        from: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It was reached and does not do it.
    #[error("{from} refuses: {reason}")]
    Refused {
        /// Its address.
        from: String,
        /// Why.
        reason: crate::Refused,
    },
    /// What it answered is not used.
    #[error("{from} answered something that is not used: {what}")]
    Answer {
        /// Its address.
        from: String,
        /// Why.
        what: &'static str,
    },
    /// A certificate has ended, so nobody believes that it is this node who asks.
    #[error("{} has ended, so it renews nothing: make another one (godwit pki issue)", path.display())]
    Ended {
        /// The certificate's file.
        path: PathBuf,
    },
    /// The record knows no such certificate.
    #[error("{} knows no certificate of {which}; name its file with --cert", record.display())]
    Unknown {
        /// The record.
        record: PathBuf,
        /// What was asked for.
        which: String,
    },
}

/// An error with all that lies behind it, on one line.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}
