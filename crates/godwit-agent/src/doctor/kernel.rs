//! The kernel itself: version, type information, the one kfunc, rights, clocks.

use super::{Check, Host};

/// The first version with `bpf_sk_assign_tcp_reqsk`.
const OLDEST: (u32, u32) = (6, 9);

const KFUNC: &str = "bpf_sk_assign_tcp_reqsk";
const BTF: &str = "/sys/kernel/btf/vmlinux";
const BPFFS: &str = "/sys/fs/bpf";

/// Bits of CapEff, include/uapi/linux/capability.h, and what each is for.
const CAPABILITIES: &[(u32, &str)] = &[
    (12, "CAP_NET_ADMIN"),
    (13, "CAP_NET_RAW"),
    (38, "CAP_PERFMON"),
    (39, "CAP_BPF"),
];
const CAP_SYS_NICE: u32 = 23;

/// What the data path can't be loaded without.
pub(super) fn essentials(host: &impl Host) -> Vec<Check> {
    vec![version(host), btf(host), kfunc(host), capabilities(host)]
}

/// What makes it slow, unsafe or hard to keep.
pub(super) fn others(host: &impl Host) -> Vec<Check> {
    vec![
        jit(host),
        lockdown(host),
        bpffs(host),
        realtime(host),
        clock(host),
        hypervisor(host),
    ]
}

fn version(host: &impl Host) -> Check {
    const NAME: &str = "kernel";
    let Some(release) = host.text("/proc/sys/kernel/osrelease") else {
        return Check::warn(NAME, "version can't be read", "is /proc mounted?");
    };
    match parse_release(&release) {
        Some(version) if version >= OLDEST => Check::ok(NAME, release),
        _ => Check::fail(
            NAME,
            format!("{release} is older than {}.{}", OLDEST.0, OLDEST.1),
            format!("install a kernel of {}.{} or newer", OLDEST.0, OLDEST.1),
        ),
    }
}

fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn btf(host: &impl Host) -> Check {
    const NAME: &str = "btf";
    match host.read(BTF) {
        Ok(bytes) if strings(&bytes).is_some() => Check::ok(NAME, BTF),
        Ok(_) => Check::fail(
            NAME,
            format!("{BTF} is no BTF"),
            "use another kernel package",
        ),
        Err(error) => Check::fail(
            NAME,
            format!("{BTF}: {error}"),
            "use a kernel with CONFIG_DEBUG_INFO_BTF=y, and mount sysfs at /sys",
        ),
    }
}

fn kfunc(host: &impl Host) -> Check {
    const NAME: &str = "kfunc";
    let btf = host.read(BTF).unwrap_or_default();
    let known = strings(&btf).is_some_and(|strings| {
        strings
            .split(|byte| *byte == 0)
            .any(|string| string == KFUNC.as_bytes())
    });
    if known {
        Check::ok(NAME, KFUNC)
    } else {
        Check::fail(
            NAME,
            format!("the kernel does not know {KFUNC}"),
            "use a kernel of 6.9 or newer with CONFIG_SYN_COOKIES=y and CONFIG_DEBUG_INFO_BTF=y",
        )
    }
}

/// The string section of BTF: names of everything that has a type.
///
/// Header: magic u16, version u8, flags u8, `hdr_len`, `type_off`, `type_len`,
/// `str_off`, `str_len` as u32 in the machine's byte order; the offsets count
/// from the header's end (Documentation/bpf/btf.rst).
fn strings(btf: &[u8]) -> Option<&[u8]> {
    const MAGIC: u16 = 0xeb9f;
    let word = |at: usize| {
        let bytes = btf.get(at..at + 4)?;
        usize::try_from(u32::from_ne_bytes(bytes.try_into().ok()?)).ok()
    };
    let magic = u16::from_ne_bytes(btf.get(..2)?.try_into().ok()?);
    if magic != MAGIC {
        return None;
    }
    let start = word(4)?.checked_add(word(16)?)?;
    btf.get(start..start.checked_add(word(20)?)?)
}

fn capabilities(host: &impl Host) -> Check {
    const NAME: &str = "capabilities";
    let Some(effective) = effective_capabilities(host) else {
        return Check::warn(NAME, "can't be read", "is /proc mounted?");
    };
    let missing: Vec<_> = CAPABILITIES
        .iter()
        .filter(|(bit, _)| effective & (1 << bit) == 0)
        .map(|(_, name)| *name)
        .collect();
    if missing.is_empty() {
        let names: Vec<_> = CAPABILITIES.iter().map(|(_, name)| *name).collect();
        return Check::ok(NAME, names.join(", "));
    }
    Check::fail(
        NAME,
        format!("missing {}", missing.join(", ")),
        "run as root, or grant these to the agent",
    )
}

fn effective_capabilities(host: &impl Host) -> Option<u64> {
    let status = host.text("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn realtime(host: &impl Host) -> Check {
    const NAME: &str = "real-time";
    if effective_capabilities(host).is_some_and(|bits| bits & (1 << CAP_SYS_NICE) != 0) {
        return Check::ok(NAME, "CAP_SYS_NICE");
    }
    Check::warn(
        NAME,
        "no CAP_SYS_NICE: heartbeats may be late under load",
        "grant it, or leave room in [detect]: misses * heartbeat of 100 ms and more",
    )
}

fn jit(host: &impl Host) -> Check {
    const NAME: &str = "bpf-jit";
    match host.number("/proc/sys/net/core/bpf_jit_enable") {
        Some(0) => Check::warn(
            NAME,
            "off: programs are interpreted",
            "sysctl -w net.core.bpf_jit_enable=1",
        ),
        Some(_) => Check::ok(NAME, "on"),
        // Not shown in other namespaces than the first one.
        None => Check::ok(NAME, "not visible from here"),
    }
}

fn lockdown(host: &impl Host) -> Check {
    const NAME: &str = "lockdown";
    let Some(modes) = host.text("/sys/kernel/security/lockdown") else {
        return Check::ok(NAME, "not visible from here");
    };
    if modes.contains("[confidentiality]") {
        return Check::fail(
            NAME,
            "confidentiality: the kernel refuses the data path",
            "start the kernel with lockdown=integrity or less",
        );
    }
    Check::ok(NAME, modes)
}

fn bpffs(host: &impl Host) -> Check {
    const NAME: &str = "bpffs";
    if host.has_bpffs(BPFFS) {
        return Check::ok(NAME, BPFFS);
    }
    Check::warn(
        NAME,
        format!("not mounted at {BPFFS} in this mount namespace"),
        "mount -t bpf bpf /sys/fs/bpf; with `ip netns exec` use `nsenter --net` instead",
    )
}

fn clock(host: &impl Host) -> Check {
    const NAME: &str = "clock";
    const GOOD: [&str; 5] = [
        "tsc",
        "kvm-clock",
        "hyperv_clocksource_tsc_page",
        "xen",
        "arch_sys_counter",
    ];
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    match host.text(path) {
        Some(source) if GOOD.contains(&source.as_str()) => Check::ok(NAME, source),
        Some(source) => Check::warn(
            NAME,
            format!("{source} is slow to read"),
            "find out why the kernel does not use the tsc (dmesg | grep -i clocksource)",
        ),
        None => Check::ok(NAME, "not visible from here"),
    }
}

fn hypervisor(host: &impl Host) -> Check {
    const NAME: &str = "hypervisor";
    let virtual_machine = host.text("/proc/cpuinfo").is_some_and(|info| {
        info.lines()
            .any(|line| line.starts_with("flags") && line.contains(" hypervisor"))
    });
    if !virtual_machine {
        return Check::ok(NAME, "none");
    }
    Check::warn(
        NAME,
        "a virtual machine: its clock stops while it is paused",
        "never pause or snapshot it while it serves; a paused owner is replaced and comes back",
    )
}
