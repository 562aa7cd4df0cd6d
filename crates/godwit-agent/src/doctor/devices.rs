//! What the service interface is made of, and what is made of it.

use godwit_sock::{Device, Devices};

use super::network::effective;
use super::{Check, Host, Scope};

const NAME: &str = "lower_devices";

/// Frames of the service also pass the devices below its interface. There is no
/// guard there, so nothing else may leave by them in the service's name.
pub(super) fn check(host: &impl Host, scope: &Scope) -> Option<Check> {
    let interface = scope.interface.as_deref()?;
    let devices = host.devices().ok()?;
    let service = devices.iter().find(|device| device.name == interface)?;
    if let Some(upper) = service.master.and_then(|master| devices.get(master)) {
        let upper = &upper.name;
        return Some(Check::fail(
            NAME,
            format!("{interface} is a port of {upper}: clients are reached through {upper}"),
            format!("write interface = \"{upper}\" in [node]"),
        ));
    }
    let below = devices.below(service.index);
    if below.is_empty() {
        return Some(Check::ok(NAME, "none"));
    }
    if scope.has_ipv4()
        && let Some(flux) = talkative(host, &devices, service)
    {
        return Some(flux);
    }
    let names = below.iter().filter_map(|index| devices.get(*index));
    let names: Vec<_> = names.map(|device| device.name.as_str()).collect();
    let names = names.join(", ");
    Some(Check::ok(NAME, format!("{names}; not guarded")))
}

/// Programs that see frames before Godwit can hide them from it.
pub(super) fn fronted(host: &impl Host, scope: &Scope) -> Option<Check> {
    const NAME: &str = "fronted";
    let interface = scope.interface.as_deref()?;
    let standing = host.standing(scope.pins.as_deref()?, interface).ok()?;
    let programs = standing.before.iter().map(|front| {
        let (number, way) = (front.id, front.way);
        let name = front.name.as_deref().unwrap_or("?");
        format!("{name} (id {number}, {way})")
    });
    let programs = programs.collect::<Vec<_>>().join(", ");
    Some(if programs.is_empty() {
        Check::ok(
            NAME,
            format!("no tcx program on {interface} before Godwit's"),
        )
    } else if standing.is_attached {
        Check::fail(
            NAME,
            format!("tcx programs before Godwit on {interface}: {programs}"),
            "detach them, or attach them behind (BPF_F_AFTER)",
        )
    } else {
        let found =
            format!("tcx programs on {interface}, which an agent will stand before: {programs}");
        Check::ok(NAME, found)
    })
}

/// Programs of another node's agent: this machine was that node, or both are meant to be here.
pub(super) fn beside(host: &impl Host, scope: &Scope) -> Option<Check> {
    const NAME: &str = "other_node";
    let interface = scope.interface.as_deref()?;
    let nodes = host.beside(scope.pins.as_deref()?, interface).ok()?;
    if nodes.is_empty() {
        return Some(Check::ok(
            NAME,
            format!("no other node's programs on {interface}"),
        ));
    }
    let found = format!(
        "programs of node {} on {interface}: they act on the same segments as this node's",
        nodes.join(", ")
    );
    let advice = format!(
        "if this machine was that node start this one's agent, which goes on with them; else \
         `godwit agent --detach --node {}`",
        nodes[0]
    );
    Some(Check::warn(NAME, found, advice))
}

/// Addresses of services that this node no longer has.
pub(super) fn left_addresses(host: &impl Host, scope: &Scope) -> Option<Check> {
    const NAME: &str = "left_address";
    let left = host.left_addresses(scope.pins.as_deref()?, &scope.services);
    let left = left.ok()?;
    if left.is_empty() {
        return Some(Check::ok(NAME, "no agent has left an address here"));
    }
    let found = format!(
        "an earlier agent has left {}, which no service of this node has: this machine answers \
         for it on the link",
        left.join(", ")
    );
    let advice = "start the agent, which removes it when no connection uses it; or remove it now \
                  (ip addr del ADDRESS dev INTERFACE)";
    Some(Check::warn(NAME, found, advice))
}

/// A device that others are stacked on hears ARP itself, and the kernel answers
/// on each interface for every address that it has: past the gate, also on a
/// standby. Ports of a bond or bridge hear nothing.
fn talkative(host: &impl Host, devices: &Devices, service: &Device) -> Option<Check> {
    let mut upper = service;
    while let Some(lower) = upper.stacked_on().and_then(|index| devices.get(index)) {
        let name = &lower.name;
        if effective(host, "ipv4", Some(name), "arp_ignore") == 0 {
            let found = format!("{name}, below the gate, answers ARP for service addresses");
            let advice = format!("sysctl -w net.ipv4.conf.{name}.arp_ignore=1");
            // Frames of a VLAN carry a tag: who asks there does not ask here.
            return Some(if upper.kind.as_deref() == Some("vlan") {
                Check::warn(NAME, found, advice)
            } else {
                Check::fail(NAME, found, advice)
            });
        }
        upper = lower;
    }
    None
}
