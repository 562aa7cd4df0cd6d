//! Whether clients are on the servers' own link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Check, Host, Scope};

/// The state of a connection that is there, in /proc/net/tcp.
const ESTABLISHED: &str = "01";

/// A network that is on the link of an interface: its address, and the length of its prefix.
type Subnet = (IpAddr, u32);

/// Who is on the link can send frames in a server's name: a client there is one to trust.
/// What is looked at is who is connected now, so a machine without clients can't tell.
pub(super) fn check(host: &impl Host, scope: &Scope) -> Option<Check> {
    const NAME: &str = "segment";
    let interface = scope.interface.as_deref()?;
    if scope.services.is_empty() {
        return None;
    }
    let clients = clients(host, &scope.services);
    let subnets = subnets(host, interface);
    let is_near = |client: &&IpAddr| subnets.iter().any(|subnet| contains(*subnet, **client));
    let near = clients.iter().filter(is_near).count();
    Some(match clients.iter().find(is_near) {
        Some(client) => Check {
            advice: Some(
                "clients there can send frames in a server's name (SECURITY.md): give servers a \
                 network of their own behind a router, or have the switch bind addresses to ports"
                    .into(),
            ),
            ..Check::ok(
                NAME,
                format!(
                    "{near} of {} clients share the link {interface} with the servers, {client} \
                     for one",
                    clients.len()
                ),
            )
        },
        None if clients.is_empty() => Check::ok(NAME, "no client is connected now to judge by"),
        None => Check::ok(
            NAME,
            format!("{} clients, none on the link {interface}", clients.len()),
        ),
    })
}

/// The addresses of those who are connected to a service.
fn clients(host: &impl Host, services: &[SocketAddr]) -> Vec<IpAddr> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let tables = tables.into_iter().filter_map(|path| host.text(path));
    let mut clients = Vec::new();
    for table in tables {
        let ends = table.lines().filter_map(connection);
        let ours = ends.filter(|(local, _)| services.contains(local));
        clients.extend(ours.map(|(_, client)| client));
    }
    clients.sort_unstable();
    clients.dedup();
    clients
}

/// `sl local_address rem_address st ...`, addresses as `hex:port`.
fn connection(line: &str) -> Option<(SocketAddr, IpAddr)> {
    let mut words = line.split_whitespace().skip(1);
    let (local, remote, state) = (words.next()?, words.next()?, words.next()?);
    let end = |word: &str| {
        let (address, port) = word.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        Some((words_of(address)?, port))
    };
    let ((local, port), (client, _)) = (end(local)?, end(remote)?);
    (state == ESTABLISHED).then_some((SocketAddr::new(local, port), client))
}

/// An address as the kernel shows it there: words of 32 bits, each as this machine has it.
fn words_of(hex: &str) -> Option<IpAddr> {
    let mut octets = Vec::new();
    for at in (0..hex.len()).step_by(8) {
        let word = u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?;
        octets.extend(word.to_ne_bytes());
    }
    let v4 = <[u8; 4]>::try_from(&octets[..]).map(|it| Ipv4Addr::from(it).into());
    let v6 = || <[u8; 16]>::try_from(&octets[..]).map(|it| Ipv6Addr::from(it).to_canonical());
    v4.or_else(|_| v6()).ok()
}

/// What is on the link of an interface, by the routes that lead to no router.
fn subnets(host: &impl Host, interface: &str) -> Vec<Subnet> {
    let v4 = host.text("/proc/net/route").unwrap_or_default();
    let v4 = v4.lines().filter_map(|line| subnet_v4(line, interface));
    let v6 = host.text("/proc/net/ipv6_route").unwrap_or_default();
    let v6 = v6.lines().filter_map(|line| subnet_v6(line, interface));
    v4.chain(v6).collect()
}

/// `Iface Destination Gateway Flags RefCnt Use Metric Mask ...`
fn subnet_v4(line: &str, interface: &str) -> Option<Subnet> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [name, destination, gateway, _, _, _, _, mask, ..] = words[..] else {
        return None;
    };
    let length = u32::from_str_radix(mask, 16).ok()?.count_ones();
    let is_link = name == interface && gateway == "00000000" && length > 0;
    is_link.then_some((words_of(destination)?, length))
}

/// `destination length source length next_hop metric counts flags device`, addresses as they
/// are on the wire.
fn subnet_v6(line: &str, interface: &str) -> Option<Subnet> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [destination, length, _, _, next_hop, .., name] = words[..] else {
        return None;
    };
    let address = |hex: &str| u128::from_str_radix(hex, 16).ok();
    let destination = Ipv6Addr::from(address(destination)?);
    let length = u32::from_str_radix(length, 16).ok()?;
    // A multicast prefix is on each link, and an address is no network.
    let is_network = (1..128).contains(&length) && !destination.is_multicast();
    let is_link = name == interface && address(next_hop)? == 0;
    (is_link && is_network).then_some((destination.into(), length))
}

fn contains((subnet, length): Subnet, address: IpAddr) -> bool {
    let is_same = |a: u128, b: u128, width: u32| {
        let shift = width.saturating_sub(length);
        shift >= 128 || a >> shift == b >> shift
    };
    match (subnet, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => is_same(a.to_bits().into(), b.to_bits().into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => is_same(a.to_bits(), b.to_bits(), 128),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}
