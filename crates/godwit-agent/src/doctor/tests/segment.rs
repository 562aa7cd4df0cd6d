use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

const SERVICE: &str = "10.9.0.100";
const SERVICE_V6: &str = "fd00:9::100";
const HEAD: &str = "  sl  local_address rem_address   st\n";
const ESTABLISHED: &str = "01";
const TIME_WAIT: &str = "06";

fn word(octets: [u8; 4]) -> String {
    format!("{:08X}", u32::from_ne_bytes(octets))
}

/// As in /proc/net/tcp and /proc/net/route.
fn v4(address: &str) -> String {
    let address: Ipv4Addr = address.parse().expect("an address");
    word(address.octets())
}

/// As in /proc/net/tcp6.
fn v6(address: &str) -> String {
    let address: Ipv6Addr = address.parse().expect("an address");
    let octets = address.octets();
    let words = octets.chunks_exact(4);
    words.map(|it| word(it.try_into().expect("four"))).collect()
}

/// A line of /proc/net/ipv6_route.
fn route_v6(to: &str, length: &str, by: &str) -> String {
    let on_wire = |address: &str| {
        let address: Ipv6Addr = address.parse().expect("an address");
        format!("{:032x}", address.to_bits())
    };
    let (to, by, zero) = (on_wire(to), on_wire(by), on_wire("::"));
    format!("{to} {length} {zero} 00 {by} 00000100 1 0 00000001 eth0\n")
}

/// 10.9.0.0/24 and fd00:9::/64 are on the link of eth0; the rest is behind a router, or
/// elsewhere.
fn host() -> PaperHost {
    let mut host = PaperHost::good();
    let routes = format!(
        "Iface Destination Gateway Flags RefCnt Use Metric Mask\n\
         eth0 00000000 {} 0003 0 0 0 00000000\n\
         eth0 {} 00000000 0001 0 0 0 {}\n\
         eth1 {} 00000000 0001 0 0 0 {}\n",
        v4("10.9.0.1"),
        v4("10.9.0.0"),
        v4("255.255.255.0"),
        v4("10.8.0.0"),
        v4("255.255.0.0"),
    );
    host.set("/proc/net/route", &routes);
    let routes = [
        route_v6("fd00:9::", "40", "::"),
        route_v6("::", "00", "fe80::1"),
        route_v6("ff00::", "08", "::"),
        route_v6("fd00:7::", "40", "fe80::1"),
    ];
    host.set("/proc/net/ipv6_route", &routes.concat());
    host
}

/// What is said of connections, by their two ends, and whether there is advice.
fn found(pairs: &[(&str, &str)], pairs_v6: &[(&str, &str)], state: &str) -> (String, bool) {
    let table = |pairs: &[(&str, &str)], hex: fn(&str) -> String| {
        let lines = pairs.iter().enumerate().map(|(at, (here, there))| {
            let (here, there) = (hex(here), hex(there));
            format!("{at}: {here}:0050 {there}:9C40 {state} 0\n")
        });
        lines.collect::<String>()
    };
    let mut host = host();
    host.set("/proc/net/tcp", &(HEAD.to_owned() + &table(pairs, v4)));
    host.set("/proc/net/tcp6", &(HEAD.to_owned() + &table(pairs_v6, v6)));
    let services = [format!("{SERVICE}:80"), format!("[{SERVICE_V6}]:80")];
    let scope = Scope {
        services: services.map(|it| it.parse().expect("an address")).into(),
        ..scope()
    };
    let check = check(&examine(&host, &scope), "segment").clone();
    assert_eq!(check.level, Level::Ok);
    (check.found, check.advice.is_some())
}

/// Clients behind routers, and beside the servers: of both families, and of a listener for
/// both.
#[test]
fn clients_on_the_servers_link_are_said() {
    let far = [(SERVICE, "192.0.2.7"), (SERVICE, "10.8.0.7")];
    let far_v6 = [(SERVICE_V6, "fd00:7::7"), (SERVICE_V6, "2001:db8::7")];
    let (said, advises) = found(&far, &far_v6, ESTABLISHED);
    assert_eq!(said, "4 clients, none on the link eth0");
    assert!(!advises);
    let mapped = ("::ffff:10.9.0.100", "::ffff:10.9.0.7");
    for (near, near_v6, who) in [
        (vec![(SERVICE, "10.9.0.7")], vec![], "10.9.0.7"),
        (vec![], vec![(SERVICE_V6, "fd00:9::7")], "fd00:9::7"),
        (vec![], vec![mapped], "10.9.0.7"),
    ] {
        let near = [&far[..], &near].concat();
        let near_v6 = [&far_v6[..], &near_v6].concat();
        let (said, advises) = found(&near, &near_v6, ESTABLISHED);
        assert!(said.starts_with("1 of 5 clients"), "{said}");
        assert!(said.contains(who) && advises, "{said}");
    }
}

#[test]
fn who_is_no_client_now_is_not_judged() {
    let nobody = ("no client is connected now to judge by".to_owned(), false);
    assert_eq!(found(&[(SERVICE, "10.9.0.7")], &[], TIME_WAIT), nobody);
    let other = [("10.9.0.11", "10.9.0.7")];
    assert_eq!(found(&other, &[], ESTABLISHED), nobody, "no service");
}
