//! TCP: settings that a twin socket depends on, and who listens.

use super::{Check, Host, Scope};

/// What a socket of /proc/net/tcp is in while it listens.
const LISTEN: &str = "0A";

pub(super) fn checks(host: &impl Host, scope: &Scope) -> Vec<Check> {
    let mut checks = Vec::from_iter(listeners(host, scope));
    checks.push(mptcp(host, scope));
    checks
}

/// A twin comes into being the way of a SYN cookie, and is refused without.
pub(super) fn syncookies(host: &impl Host) -> Check {
    const NAME: &str = "tcp_syncookies";
    match host.number("/proc/sys/net/ipv4/tcp_syncookies") {
        Some(0) => Check::fail(
            NAME,
            "0: the kernel makes no twin sockets",
            "sysctl -w net.ipv4.tcp_syncookies=1",
        ),
        Some(value) => Check::ok(NAME, value.to_string()),
        None => Check::warn(NAME, "can't be read", "is /proc mounted?"),
    }
}

/// Options of TCP that can be switched off.
pub(crate) const OPTIONS: [&str; 3] = ["tcp_window_scaling", "tcp_sack", "tcp_timestamps"];

/// What is read of [`super::settings`] here.
pub(super) const FILES: [&str; 5] = [
    "/proc/sys/net/ipv4/tcp_syncookies",
    "/proc/sys/net/ipv4/tcp_window_scaling",
    "/proc/sys/net/ipv4/tcp_sack",
    "/proc/sys/net/ipv4/tcp_timestamps",
    "/proc/sys/net/ipv4/tcp_ecn",
];

/// A twin has ECN only where the kernel would have agreed to it (ip-sysctl.rst).
pub(super) fn ecn(host: &impl Host) -> Check {
    const NAME: &str = "tcp_ecn";
    match host.number("/proc/sys/net/ipv4/tcp_ecn") {
        Some(0) => Check::warn(
            NAME,
            "0: connections that have agreed on ECN lose it when they are taken over here",
            "sysctl -w net.ipv4.tcp_ecn=2, or set it to 0 on all servers",
        ),
        Some(value) => Check::ok(NAME, value.to_string()),
        None => Check::ok(NAME, "not visible from here"),
    }
}

pub(super) fn options(host: &impl Host) -> Check {
    const NAME: &str = "tcp_options";
    let off: Vec<_> = OPTIONS
        .into_iter()
        .filter(|option| host.number(&format!("/proc/sys/net/ipv4/{option}")) == Some(0))
        .collect();
    if off.is_empty() {
        return Check::ok(NAME, "window scaling, SACK and time stamps are on");
    }
    Check::warn(
        NAME,
        format!("{} off here", off.join(", ")),
        "set them alike on all servers: a twin needs what the owner has negotiated",
    )
}

/// Whether something listens on each service port: a twin needs a listener.
fn listeners(host: &impl Host, scope: &Scope) -> Option<Check> {
    const NAME: &str = "listeners";
    let listening: Vec<u16> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .filter_map(|path| host.text(path))
        .flat_map(|table| table.lines().filter_map(listening_port).collect::<Vec<_>>())
        .collect();
    let ports = scope.ports();
    let silent: Vec<_> = ports
        .iter()
        .filter(|port| !listening.contains(port))
        .map(ToString::to_string)
        .collect();
    if ports.is_empty() {
        return None;
    }
    Some(if silent.is_empty() {
        Check::ok(NAME, "something listens on each service port")
    } else {
        Check::warn(
            NAME,
            format!("nobody listens on port {}", silent.join(", ")),
            "start the service, here too: a standby runs it all the time",
        )
    })
}

/// `sl local_address rem_address st ...`, addresses as `hex:port`.
fn listening_port(line: &str) -> Option<u16> {
    let mut words = line.split_whitespace().skip(1);
    let (local, _, state) = (words.next()?, words.next()?, words.next()?);
    let (_, port) = local.rsplit_once(':')?;
    (state == LISTEN).then(|| u16::from_str_radix(port, 16).ok())?
}

/// The kernel makes no twin for a listener that speaks MPTCP, even if its
/// clients do not.
fn mptcp(host: &impl Host, scope: &Scope) -> Check {
    const NAME: &str = "mptcp";
    const ADVICE: &str = "let the service listen with plain TCP (GODEBUG=multipathtcp=0 for Go, \
                          no `mptcp` in its configuration), or sysctl -w net.mptcp.enabled=0";
    if host.number("/proc/sys/net/mptcp/enabled").unwrap_or(0) == 0 {
        return Check::ok(NAME, "off");
    }
    let Ok(sockets) = host.run("ss", &["-M", "-l", "-n", "-H"]) else {
        return Check::warn(
            NAME,
            "on, and `ss` can't list its listeners",
            "install iproute2",
        );
    };
    let ports: Vec<u16> = sockets.lines().filter_map(mptcp_port).collect();
    let service_ports = scope.ports();
    let ours = ports.iter().find(|port| service_ports.contains(port));
    match (ours, ports.as_slice()) {
        (Some(port), _) => Check::fail(
            NAME,
            format!("the listener on service port {port} speaks MPTCP"),
            ADVICE,
        ),
        (None, []) => Check::ok(NAME, "no listener speaks it"),
        (None, [..]) if !service_ports.is_empty() => {
            Check::ok(NAME, "no listener on a service port speaks it")
        }
        (None, [port, ..]) => Check::warn(
            NAME,
            format!("the listener on port {port} speaks MPTCP"),
            ADVICE,
        ),
    }
}

/// `LISTEN 0 511 0.0.0.0:80 0.0.0.0:*`
fn mptcp_port(line: &str) -> Option<u16> {
    let local = line.split_whitespace().nth(3)?;
    local.rsplit_once(':')?.1.parse().ok()
}
