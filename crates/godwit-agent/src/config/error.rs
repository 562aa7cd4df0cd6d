//! What can be wrong with a configuration, always as one sentence.

use std::io;
use std::path::PathBuf;

/// A configuration that can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file can't be read at all.
    #[error("{}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A line of it is wrong.
    #[error("{}:{line}: {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        problem: Box<Problem>,
    },
}

/// What is wrong at one line. `section` reads like `[node]` or `service "web"`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Not TOML.
    #[error("{message}")]
    Syntax {
        /// The parser's words.
        message: String,
    },
    /// A key or section that nobody reads.
    #[error("{section}: unknown key `{key}`{}", did_you_mean(suggestion.as_deref()))]
    UnknownKey {
        /// Where.
        section: String,
        /// The key as written.
        key: String,
        /// A known key that looks like it.
        suggestion: Option<String>,
    },
    /// A key that must be there and is not.
    #[error("{section}: `{key}` is missing")]
    Missing {
        /// Where.
        section: String,
        /// The key.
        key: &'static str,
    },
    /// A section that must be there and is not.
    #[error("section {section} is missing")]
    MissingSection {
        /// Its heading.
        section: &'static str,
    },
    /// A value of the wrong kind or form.
    #[error("{section}: {key} must be {expected}, not {got}")]
    Malformed {
        /// Where.
        section: String,
        /// The key.
        key: &'static str,
        /// What would be right.
        expected: String,
        /// What stands there.
        got: String,
    },
    /// An entry of a list of the wrong kind or form.
    #[error("{section}: {key}: entry {number} must be {expected}, not {got}")]
    MalformedEntry {
        /// Where.
        section: String,
        /// The key.
        key: &'static str,
        /// Which entry, from 1.
        number: usize,
        /// What would be right.
        expected: String,
        /// What stands there.
        got: String,
    },
    /// A value of the right form outside its range.
    #[error("{section}: {key} ({got}) must be {least} to {most}")]
    OutOfRange {
        /// Where.
        section: String,
        /// The key.
        key: &'static str,
        /// What stands there.
        got: String,
        /// The least that is allowed.
        least: String,
        /// The most that is allowed.
        most: String,
    },
    /// Two things with one name or address.
    #[error("{section}: {key} {value} is already used at line {first_line}")]
    NotUnique {
        /// Where.
        section: String,
        /// The key.
        key: &'static str,
        /// What occurs twice.
        value: String,
        /// Where it occurred first.
        first_line: usize,
    },
    /// A service without an address.
    #[error("{section}: address must name at least one address with its port")]
    NoAddress {
        /// Where.
        section: String,
    },
    /// A service address that no client can come to.
    #[error("{section}: address must be one that clients can reach, and {address} is {kind}")]
    Unreachable {
        /// Where.
        section: String,
        /// The address with its port.
        address: String,
        /// What kind of address it is.
        kind: &'static str,
    },
    /// Two names with one number.
    #[error(
        "\"{name}\" and \"{other}\" stand in messages as the same number: give one of them \
         another name"
    )]
    SameNumber {
        /// The later one.
        name: String,
        /// The other one.
        other: String,
    },
    /// A name that no `[[peer]]` has, or one of the wrong role.
    #[error("{section}: {key} names \"{name}\", which is no [[peer]] with role \"server\"")]
    NotAServer {
        /// Where.
        section: String,
        /// The key.
        key: &'static str,
        /// The name.
        name: String,
    },
    /// This node is not among the peers.
    #[error("[node]: name is \"{name}\", but no [[peer]] is called so")]
    NodeIsNoPeer {
        /// The name.
        name: String,
    },
    /// The lease would end before a failure is even noticed.
    #[error("[detect]: lease ({lease}) must be greater than misses * heartbeat ({silence})")]
    LeaseTooShort {
        /// The lease.
        lease: String,
        /// Silence after which a peer is held to have failed.
        silence: String,
    },
    /// Nothing to power a node off with.
    #[error("[detect]: fencing = \"stonith\" needs the command in stonith")]
    NoStonith,
    /// The lease is over before the last segment has left the machine.
    #[error("[detect]: lease ({lease}) must be more than twice egress_residence ({residence})")]
    LeaseBelowResidence {
        /// The lease.
        lease: String,
        /// How long segments may wait below the data path.
        residence: String,
    },
    /// More shares than the data path has room for: one of each service, or of each
    /// server of it.
    #[error("service \"{name}\": there are more than {most} shares")]
    TooManyServices {
        /// The first one too many.
        name: String,
        /// The most that are allowed.
        most: usize,
    },
    /// Two services that share an address but not their servers.
    #[error(
        "{section}: address {address} is also that of service \"{other}\", \
         so primary, backups, tap and front must be the same, and both or none must have twins"
    )]
    AddressSplit {
        /// Where.
        section: String,
        /// The address without its port.
        address: String,
        /// The other service.
        other: String,
    },
    /// Nobody to hand connections back to.
    #[error(
        "{section}: failback = \"auto\" needs a standby that holds the connections; \
         with standby = \"{standby}\" write \"manual\""
    )]
    FailbackWithoutStandby {
        /// Where.
        section: String,
        /// What there is instead.
        standby: &'static str,
    },
    /// Snapshots that nobody makes.
    #[error(
        "{section}: snapshots = \"eager\" needs standby = \"snapshot\"; \
         with standby = \"{standby}\" leave it out"
    )]
    SnapshotsWithoutServer {
        /// Where.
        section: String,
        /// What there is instead.
        standby: &'static str,
    },
    /// Connections that have twins do not move by themselves.
    #[error(
        "{section}: unread = \"move\" needs standby = \"none\", or \"snapshot\" that is lazy; \
         with standby = \"{standby}\" leave it out"
    )]
    UnreadWithTwins {
        /// Where.
        section: String,
        /// What there is instead.
        standby: &'static str,
    },
    /// A connection with a twin has two servers, and a director knows one.
    #[error(
        "{section}: front = \"{front}\" needs standby = \"none\", \"snapshot\" that is lazy, or \
         \"shadow\" with a director; with standby = \"{standby}\" leave it out"
    )]
    FrontWithTwins {
        /// Where.
        section: String,
        /// What stands before its servers.
        front: &'static str,
        /// What there is instead.
        standby: &'static str,
    },
    /// A director gives each segment to one server.
    #[error("{section}: tap = \"{tap}\" does not go with front = \"director\"; write \"mirror\"")]
    FrontWithTap {
        /// Where.
        section: String,
        /// How its standbys were to see their clients.
        tap: &'static str,
    },
    /// Twins of connections behind a director, at a server that no mirrored frame reaches.
    #[error(
        "{section}: front = \"director\" with standby = \"shadow\" needs all its servers on the \
         link, and \"{name}\" is reached by a tunnel"
    )]
    RingBeyondLink {
        /// Where.
        section: String,
        /// That server.
        name: String,
    },
    /// A server and a director whose addresses can't be the ends of one tunnel.
    #[error(
        "{section}: reach = \"vxlan\" needs data addresses of one family, IPv4 or IPv6, here and \
         at director \"{name}\""
    )]
    TunnelOfTwoFamilies {
        /// Where.
        section: String,
        /// The director.
        name: String,
    },
    /// Routers before a server that a director's frames reach without one.
    #[error("{section}: routers goes with reach = \"vxlan\" alone: it is what a tunnel comes by")]
    RoutersOnLink {
        /// Where.
        section: String,
    },
    /// More routers than the data path has room for.
    #[error("{section}: routers must name {most} stations at most, not {found}")]
    TooManyRouters {
        /// Where.
        section: String,
        /// How many there are.
        found: usize,
        /// How many there may be.
        most: usize,
    },
    /// A service before which nobody stands.
    #[error(
        "{section}: front = \"director\" needs a section [director] and a [[peer]] with role \
         \"director\""
    )]
    FrontWithoutDirector {
        /// Where.
        section: String,
    },
    /// A rule about nothing that is there.
    #[error("{section}: a rule has a prefix or a suffix, not both")]
    RuleOfTwoPaths {
        /// Where.
        section: String,
    },
    /// Requests of a service whose connections stay together.
    #[error(
        "{section}: [[service.rule]] needs standby = \"none\", \"snapshot\" that is lazy, or \
         \"shadow\" behind a director; with standby = \"{standby}\" leave it out"
    )]
    RulesWithTwins {
        /// Where.
        section: String,
        /// What there is instead.
        standby: &'static str,
    },
    /// Connections of a service that stay together are to begin elsewhere.
    #[error(
        "{section}: [service.policy] needs standby = \"none\", \"snapshot\" that is lazy, or \
         \"shadow\" behind a director; with standby = \"{standby}\" leave it out"
    )]
    PolicyWithTwins {
        /// Where.
        section: String,
        /// What there is instead.
        standby: &'static str,
    },
    /// More programs than the data path has places for.
    #[error("{section}: all services together can have {most} different programs")]
    TooManyPrograms {
        /// Where.
        section: String,
        /// The most that are allowed.
        most: usize,
    },
    /// A rule that names a server of other services, or nobody.
    #[error("{section}: to names \"{name}\", which is neither primary nor backup of the service")]
    RuleForStranger {
        /// Where.
        section: String,
        /// The name.
        name: String,
    },
    /// A rule that names nobody.
    #[error("{section}: to must name a server")]
    RuleForNobody {
        /// Where.
        section: String,
    },
    /// Two rules about the same requests.
    #[error("{section}: there is a rule about these requests already at line {first_line}")]
    RuleTwice {
        /// Where.
        section: String,
        /// Where it occurred first.
        first_line: usize,
    },
    /// A node whose number the data path has no bit for.
    #[error("{section}: rules can name the first {most} [[peer]]s only, and \"{name}\" is none")]
    RuleForTooMany {
        /// Where.
        section: String,
        /// The name.
        name: String,
        /// The most that are allowed.
        most: u16,
    },
    /// Services that move together, and may be refused one by one.
    #[error(
        "{section}: failback = \"auto\" needs an address of its own, \
         and {address} is also that of service \"{other}\""
    )]
    FailbackOfSharedAddress {
        /// Where.
        section: String,
        /// The address without its port.
        address: String,
        /// The other service.
        other: String,
    },
    /// More backups than this version keeps twins on, or none.
    #[error("{section}: this version protects with one backup; list one, not {count}")]
    BackupCount {
        /// Where.
        section: String,
        /// How many are listed.
        count: usize,
    },
    /// The primary is its own backup.
    #[error("{section}: \"{name}\" is both primary and backup")]
    BackupIsPrimary {
        /// Where.
        section: String,
        /// The node.
        name: String,
    },
    /// Something that the format knows and this version does not do.
    #[error("{section}: {key} = \"{value}\" is not in this version; {instead}")]
    NotInThisVersion {
        /// Where.
        section: String,
        /// The key.
        key: &'static str,
        /// What was asked for.
        value: &'static str,
        /// What to write instead.
        instead: &'static str,
    },
    /// A service address that is a node's own.
    #[error(
        "{section}: address {address} is node \"{node}\"'s own; a service needs one that can move"
    )]
    AddressOfNode {
        /// Where.
        section: String,
        /// The address.
        address: String,
        /// The node.
        node: String,
    },
}

fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |key| format!(", did you mean `{key}`?"))
}
