//! What is wrong with this node's place on the link: facts for [`crate::surroundings`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use godwit_bpf::Fronting;
use godwit_core::MonoTime;
use godwit_core::fitness::Consequence;
use godwit_sock::Device;

use crate::facts::{Look, Wrong};

/// The source, in [`Look`].
pub(super) const SOURCE: &str = "link";

/// Every fact of this source.
const WATCHED: [&str; 14] = [
    "interface",
    "carrier",
    "arp",
    "master",
    "fronted",
    "xdp",
    "mtu",
    "qdisc",
    "service_address",
    "own_address",
    "births",
    "other_interface",
    "interface_address",
    "residence",
];

/// Queueing disciplines that send what they have as soon as the interface takes it.
const PROMPT: [&str; 12] = [
    "noqueue",
    "mq",
    "pfifo_fast",
    "pfifo",
    "bfifo",
    "fq",
    "fq_codel",
    "sfq",
    "sfb",
    "codel",
    "noop",
    "prio",
];

/// What one look has found of an interface that is there.
#[derive(Debug, Clone, Default)]
pub(super) struct Found {
    pub(super) device: Device,
    /// Name and kind of the device that it is a port of.
    pub(super) master: Option<(String, Option<String>)>,
    /// Who stands before Godwit's programs.
    pub(super) fronting: Vec<Fronting>,
    /// Service addresses that can't be put back.
    pub(super) unplaced: Vec<IpAddr>,
    /// Since when each service address is here.
    pub(super) placed: BTreeMap<IpAddr, MonoTime>,
    /// Service addresses that no route of type `local` leads to.
    pub(super) strange: Vec<IpAddr>,
    /// Addresses of this node that it does not have.
    pub(super) own_missing: Vec<IpAddr>,
    /// Families (`IPv4`, `IPv6`) of services of which the interface has no address of its
    /// own any more, though it had when the agent started.
    pub(super) bare: Vec<&'static str>,
    /// Of a queue that holds frames longer than is reckoned with: what was found, and what
    /// to do.
    pub(super) long_queue: Option<(String, String)>,
    /// Longest packet that the interface took when the agent started.
    pub(super) first_mtu: u32,
    /// Why births of twins are not watched.
    pub(super) births: Option<String>,
    /// Interfaces by which segments of services come or leave around tap and gate, lately.
    pub(super) strays: Vec<Astray>,
}

/// An interface by which segments of services come or leave, or try to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Astray {
    pub(super) name: String,
    /// They are dropped: their flows are protected, or another node's.
    pub(super) is_dropped: bool,
}

/// All facts; `found` is why the interface can't serve, or what it is.
pub(super) fn look(name: &str, found: Result<&Found, &str>) -> Look {
    let wrong = match found {
        Ok(found) => wrong_of(name, found),
        Err(why) => vec![wrong(
            "interface",
            Consequence::NoService,
            format!("{name}: {why}"),
            format!("bring {name} back: Godwit takes it as soon as it is there"),
        )],
    };
    Look {
        source: SOURCE,
        watched: WATCHED.map(str::to_owned).to_vec(),
        wrong,
        days_left: BTreeMap::new(),
    }
}

fn wrong_of(name: &str, found: &Found) -> Vec<Wrong> {
    let mut all = Vec::new();
    all.extend(unplugged(name, found));
    all.extend(mute(name, found));
    all.extend(port_of(name, found));
    all.extend(fronted(name, found));
    all.extend(quiet(name, found));
    all.extend(addresses(found));
    all.extend(astray(name, found));
    all.extend(bare(name, found));
    let queue = found.long_queue.clone();
    all.extend(queue.map(|(found, advice)| wrong("residence", Consequence::Say, found, advice)));
    all.extend(found.births.as_ref().map(|why| {
        wrong(
            "births",
            Consequence::Say,
            format!("births of twins are not watched: {why}"),
            "remove what killed agents have left (`godwit agent --detach`, or their folders in \
             /sys/fs/bpf/godwit), then restart the agent",
        )
    }));
    all
}

fn unplugged(name: &str, found: &Found) -> Option<Wrong> {
    (!found.device.is_running).then(|| {
        wrong(
            "carrier",
            Consequence::NoService,
            format!("{name} is down or has no carrier"),
            format!("ip link set {name} up, or look at its cable"),
        )
    })
}

/// Who knows the address already still comes, and announcements are Godwit's own.
fn mute(name: &str, found: &Found) -> Option<Wrong> {
    found.device.is_mute.then(|| {
        wrong(
            "arp",
            Consequence::HandOver,
            format!("{name} answers no ARP and no neighbour discovery"),
            format!("ip link set {name} arp on"),
        )
    })
}

/// A VRF takes packets as they are; others take frames away.
fn port_of(name: &str, found: &Found) -> Option<Wrong> {
    let (upper, kind) = found.master.as_ref()?;
    if kind.as_deref() == Some("vrf") {
        return None;
    }
    Some(wrong(
        "master",
        Consequence::NoService,
        format!("{name} is a port of {upper}: clients are reached through {upper}"),
        format!("ip link set {name} nomaster, or write interface = \"{upper}\" in [node]"),
    ))
}

fn fronted(name: &str, found: &Found) -> Option<Wrong> {
    if found.fronting.is_empty() {
        return None;
    }
    let programs = found.fronting.iter().map(|front| {
        let number = front.id;
        let way = front.way;
        match &front.name {
            Some(name) => format!("tcx program {name} (id {number}, {way})"),
            None => format!("tcx program {number} ({way}; `bpftool prog show id {number}`)"),
        }
    });
    let programs: Vec<_> = programs.collect();
    Some(wrong(
        "fronted",
        Consequence::NoTwins,
        format!("before Godwit on {name}: {}", programs.join(", ")),
        "detach it, or attach it behind (BPF_F_AFTER)",
    ))
}

/// What makes frames late or lost, and is said.
fn quiet(name: &str, found: &Found) -> Vec<Wrong> {
    let device = &found.device;
    let mut all = Vec::new();
    let mut say = |fact, found: String, advice: String| {
        all.push(wrong(fact, Consequence::Say, found, advice));
    };
    if let Some(id) = device.xdp {
        say(
            "xdp",
            format!("XDP program {id} sees frames of {name} before Godwit"),
            "see that it passes ARP, neighbour discovery and TCP of the services".into(),
        );
    }
    if device.mtu < found.first_mtu {
        let (now, first) = (device.mtu, found.first_mtu);
        say(
            "mtu",
            format!("the MTU of {name} is {now}, it was {first}: longer segments are not mirrored"),
            format!("ip link set {name} mtu {first}, or the same MTU on the whole link"),
        );
    }
    let kind = device.qdisc.as_str();
    if !kind.is_empty() && !PROMPT.contains(&kind) {
        say(
            "qdisc",
            format!("{kind} on {name} holds frames back: an old owner may be heard late"),
            "write an egress_residence in [detect] that covers its longest delay, or use fq".into(),
        );
    }
    all
}

fn addresses(found: &Found) -> Vec<Wrong> {
    let unplaced = found.unplaced.iter().map(|address| {
        wrong(
            "service_address",
            Consequence::NoService,
            format!("{address} is not on this machine and can't be put back"),
            "see the agent's log for the reason",
        )
    });
    let strange = found.strange.iter().map(|address| {
        wrong(
            "service_address",
            Consequence::NoService,
            format!(
                "{address} is on this machine, and no local route leads to it: what clients say \
                 is not taken in"
            ),
            format!(
                "remove the address (`ip address del`): Godwit puts it back with its route; \
                     see `ip route get {address}` and `ip rule`"
            ),
        )
    });
    let own = found.own_missing.iter().map(|address| {
        wrong(
            "own_address",
            Consequence::Say,
            format!("{address} (`control` or `data` of this node) is no address of this machine"),
            "add it again, or correct this node's [[peer]] on all nodes",
        )
    });
    // One of each: a fact is wrong or right.
    let service = unplaced.chain(strange).take(1);
    service.chain(own.take(1)).collect()
}

/// Routes go with addresses: clients of that family are not reached.
fn bare(name: &str, found: &Found) -> Option<Wrong> {
    let families = found.bare.join(" and ");
    (!families.is_empty()).then(|| {
        wrong(
            "interface_address",
            Consequence::NoService,
            format!(
                "{name} has no {families} address of its own any more, and no route to clients by it"
            ),
            format!(
                "add it again; of IPv6 net.ipv6.conf.{name}.keep_addr_on_down=1 keeps it when the \
                 interface goes down"
            ),
        )
    })
}

/// A client whose segments come in elsewhere is answered elsewhere, too.
fn astray(name: &str, found: &Found) -> Option<Wrong> {
    let Astray {
        name: other,
        is_dropped,
    } = found.strays.first()?;
    let text = if *is_dropped {
        format!(
            "segments of a service that would leave by {other} are dropped: Godwit is on {name}"
        )
    } else {
        format!("clients come by {other}, where they are not protected: Godwit is on {name}")
    };
    Some(wrong(
        "other_interface",
        Consequence::Say,
        text,
        format!("route clients by {name} on both sides (`ip route get CLIENT`)"),
    ))
}

fn wrong(
    name: &str,
    consequence: Consequence,
    found: impl Into<String>,
    advice: impl Into<String>,
) -> Wrong {
    Wrong {
        name: name.into(),
        share: None,
        consequence,
        found: found.into(),
        advice: advice.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> Found {
        Found {
            device: Device {
                is_running: true,
                mtu: 1500,
                qdisc: "noqueue".into(),
                ..Device::default()
            },
            first_mtu: 1500,
            ..Found::default()
        }
    }

    fn names(found: &Found) -> Vec<String> {
        let wrong = look("eth0", Ok(found)).wrong;
        assert!(wrong.iter().all(|it| WATCHED.contains(&it.name.as_str())));
        wrong.into_iter().map(|it| it.name).collect()
    }

    #[test]
    fn a_healthy_interface_has_nothing_wrong() {
        assert_eq!(names(&healthy()), [""; 0]);
    }

    #[test]
    fn each_fact_is_wrong_alone() {
        let front = Fronting {
            way: "egress",
            id: 7,
            name: None,
        };
        type Change = (&'static str, fn(&mut Found));
        let changes: [Change; 11] = [
            ("arp", |it| it.device.is_mute = true),
            ("service_address", |it| {
                it.strange = vec![[10, 0, 0, 9].into()]
            }),
            ("residence", |it| {
                it.long_queue = Some(("12 ms".into(), "shorten it".into()))
            }),
            ("interface_address", |it| it.bare = vec!["IPv6"]),
            ("carrier", |it| it.device.is_running = false),
            ("xdp", |it| it.device.xdp = Some(9)),
            ("mtu", |it| it.device.mtu = 1400),
            ("qdisc", |it| it.device.qdisc = "netem".into()),
            ("master", |it| {
                it.master = Some(("br0".into(), Some("bridge".into())))
            }),
            ("own_address", |it| {
                it.own_missing = vec![[10, 0, 0, 1].into()]
            }),
            ("service_address", |it| {
                it.unplaced = vec![[10, 0, 0, 9].into()]
            }),
        ];
        for (name, change) in changes {
            let mut found = healthy();
            change(&mut found);
            assert_eq!(names(&found), [name]);
        }
        let mut found = healthy();
        found.fronting = vec![front];
        assert_eq!(names(&found), ["fronted"]);
        for is_dropped in [false, true] {
            let mut found = healthy();
            let name = "eth7".to_owned();
            found.strays = vec![Astray { name, is_dropped }];
            assert_eq!(names(&found), ["other_interface"]);
            let said = &look("eth0", Ok(&found)).wrong[0];
            assert!(said.found.contains("eth7"), "{said:?}");
            assert_eq!(said.found.contains("dropped"), is_dropped);
        }
        let mut found = healthy();
        found.master = Some(("vrf0".into(), Some("vrf".into())));
        assert_eq!(names(&found), [""; 0], "a VRF leaves it its frames");
        found.device.mtu = 9000;
        assert_eq!(names(&found), [""; 0], "longer ones are no harm");
    }

    #[test]
    fn an_interface_that_is_gone_serves_nobody() {
        let wrong = look("eth0", Err("it is not there")).wrong;
        assert_eq!(wrong.len(), 1);
        assert_eq!(wrong[0].consequence, Consequence::NoService);
    }
}
