use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::thread;

use godwit_sock::join_group;
use godwit_wire::MacAddr;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::{get_no_new_privs, set_no_new_privs};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

use super::*;

/// On a thread of its own: there is no way back.
fn under_filter<T: Send>(role: PeerRole, work: impl FnOnce() -> T + Send) -> T {
    let confined = || {
        set_no_new_privs().unwrap();
        restrict(role, false).unwrap();
        work()
    };
    thread::scope(|scope| scope.spawn(confined).join().unwrap())
}

fn datagrams(family: AddressFamily) -> Result<(), Errno> {
    socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).map(drop)
}

#[test]
fn what_an_agent_does_is_left_to_it() {
    let folder = tempfile::tempdir().unwrap();
    under_filter(PeerRole::Witness, || {
        thread::Builder::new().spawn(|| {}).unwrap().join().unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        tcp.set_nonblocking(true).unwrap();
        let udp = UdpSocket::bind("[::1]:0").unwrap();
        udp.send_to(b"beat", udp.local_addr().unwrap()).unwrap();
        let path = folder.path().join("socket");
        let ordinary = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Other);
        let middle = ThreadPriority::Crossplatform(48u8.try_into().unwrap());
        set_thread_priority_and_policy(thread_native_id(), middle, ordinary).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        fs::remove_file(path).unwrap();
        let large = vec![1; 1 << 20];
        assert_eq!(large.len(), 1 << 20);
    });
    under_filter(PeerRole::Server, || {
        assert_eq!(datagrams(AddressFamily::Netlink), Ok(()));
    });
}

/// A file with twins that are kept, or with a multicast tap, is taken while the agent runs.
#[test]
fn what_a_reload_does_is_left_to_a_server() {
    let limit = || getrlimit(Resource::RLIMIT_NOFILE).map(drop);
    let more = || setrlimit(Resource::RLIMIT_CORE, 0, 0);
    let group = MacAddr([0x03, 0x67, 10, 0, 0, 100]);
    let joined = || {
        let error = join_group("no-such-if", group).unwrap_err();
        error.raw_os_error()
    };
    // Without rights both are refused alike.
    let is_root = nix::unistd::Uid::effective().is_root();
    for (role, wanted) in [
        (PeerRole::Server, libc::ENODEV),
        (PeerRole::Witness, libc::EPERM),
    ] {
        under_filter(role, || {
            assert_eq!(limit(), Ok(()));
            assert_eq!(more(), Err(Errno::EPERM));
            assert!(!is_root || joined() == Some(wanted), "{:?}", joined());
        });
    }
}

#[test]
fn the_rest_is_refused() {
    let program = || Command::new("/bin/true").status().map_err(|err| err.kind());
    assert!(
        program().is_ok_and(|status| status.success()),
        "it is there"
    );
    for role in [PeerRole::Server, PeerRole::Witness] {
        under_filter(role, || {
            assert_eq!(program(), Err(ErrorKind::PermissionDenied));
            assert_eq!(unshare(CloneFlags::CLONE_FS), Err(Errno::EPERM));
            assert_eq!(get_no_new_privs(), Err(Errno::EPERM), "prctl");
            assert_eq!(datagrams(AddressFamily::Alg), Err(Errno::EPERM));
        });
    }
    under_filter(PeerRole::Witness, || {
        assert_eq!(datagrams(AddressFamily::Netlink), Err(Errno::EPERM));
    });
}

/// Sockets of others are left to one that is told to look for them.
#[test]
fn sockets_of_others_are_taken_where_that_is_wanted() {
    let taken = |processes| {
        thread::scope(|scope| {
            let confined = || {
                set_no_new_privs().unwrap();
                restrict(PeerRole::Server, processes).unwrap();
                godwit_sock::ForeignProcess::open(std::process::id()).map(drop)
            };
            scope.spawn(confined).join().unwrap()
        })
    };
    assert_eq!(
        taken(false).map_err(|err| err.kind()),
        Err(ErrorKind::PermissionDenied)
    );
    taken(true).unwrap();
}

/// What the agent calls before the filter is there, besides what it goes on with. It mounts
/// nothing and enters no namespace where systemd has mounted bpffs.
const AT_START: &[&str] = &[
    "bpf",
    "capget",
    "capset",
    "clone",
    "execve",
    "getrlimit",
    "ioctl",
    "mlockall",
    "mmap",
    "mprotect",
    "prctl",
    "prlimit64",
    "rename",
    "seccomp",
    "socket",
    "socketpair",
    "tgkill",
];

/// The calls of a set of systemd's, those that the sets in it have included.
fn set_of_systemd(name: &str, into: &mut BTreeSet<String>) {
    let output = Command::new("systemd-analyze")
        .args(["syscall-filter", name])
        .output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    for word in text
        .lines()
        .skip(1)
        .map(str::trim)
        .filter(|word| !word.starts_with('#'))
    {
        if word.starts_with('@') {
            set_of_systemd(word, into);
        } else {
            into.insert(word.to_owned());
        }
    }
}

/// What `SystemCallFilter=` of a unit lets pass.
fn permitted_by(unit: &str) -> BTreeSet<String> {
    let packaging = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");
    let mut permitted = BTreeSet::new();
    let text = fs::read_to_string(format!("{packaging}/{unit}")).unwrap();
    for list in text
        .lines()
        .filter_map(|line| line.strip_prefix("SystemCallFilter="))
    {
        let (refuses, list) = match list.strip_prefix('~') {
            Some(list) => (true, list),
            None => (false, list),
        };
        let mut named = BTreeSet::new();
        for word in list.split_whitespace() {
            if word.starts_with('@') {
                set_of_systemd(word, &mut named);
            } else {
                named.insert(word.to_owned());
            }
        }
        if refuses {
            permitted = &permitted - &named;
        } else {
            permitted.append(&mut named);
        }
    }
    permitted
}

/// A unit's filter is there from the first instruction on: it must let the start
/// pass, and nothing that the agent's own one lets pass may be missing.
#[test]
fn units_permit_what_agents_need() {
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        eprintln!("skipped: no systemd-analyze here");
        return;
    }
    let units = [
        ("godwit.service", AT_START),
        ("godwit-director.service", AT_START),
        // It loads no program.
        ("godwit-witness.service", &[]),
    ];
    for (unit, at_start) in units {
        let permitted = permitted_by(unit);
        let own = ALWAYS
            .iter()
            .chain(OLDER)
            .map(|(name, _)| name.trim_start_matches("SYS_"));
        for call in own.chain(at_start.iter().copied()) {
            assert!(permitted.contains(call), "{unit}: {call}");
        }
        for never in [
            "init_module",
            "mount",
            "kexec_load",
            "ptrace",
            "reboot",
            "perf_event_open",
        ] {
            assert!(!permitted.contains(never), "{unit}: {never}");
        }
    }
}
