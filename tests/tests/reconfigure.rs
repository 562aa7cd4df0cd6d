//! Files that change: services that come, go, and get other names, addresses and places,
//! under running connections.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use godwit_lab::cluster::{Cluster, ClusterOptions, Fencing, Service};
use godwit_lab::host::Host;
use godwit_lab::{Lab, LabOptions};
use godwit_tests::change::{How, change, reload};
use godwit_tests::stage::{
    PORT, assert_no_live_reset, assert_one_voice, assert_unnoticed, flow, in_sync, servers,
    service_v4, service_v6, stage, throughout, until, wait_event, wait_in_sync, wait_protected,
    witness,
};
use godwit_tests::traffic::{Load, Traffic};
use godwit_tests::{DEADLINE, STALL_LIMIT};
use nix::sys::signal::Signal;

/// Where the second service is.
const SHOP: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 9, 0, 101)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 0x101)),
];

/// How long an owner waits for a twin that says nothing (`lag_limit`).
const TWIN_PATIENCE: Duration = Duration::from_millis(700);

fn two_services() -> ClusterOptions {
    let web = Service::new("web", PORT);
    let shop = Service {
        addresses: SHOP,
        ..Service::new("shop", PORT)
    };
    ClusterOptions {
        services: vec![web, shop],
        ..ClusterOptions::default()
    }
}

/// A service before all others, where nobody listens.
fn with_another_first(text: &str) -> String {
    let another = "[[service]]\nname = \"another\"\naddress = [\"10.9.0.102:81\", \
                   \"[2001:db8:9::102]:81\"]\nprimary = \"a\"\nbackups = [\"b\"]\n\n[[service]]";
    text.replacen("[[service]]", another, 1)
}

/// The file without its last service.
fn without_the_last(text: &str) -> String {
    let last = text.rfind("[[service]]").expect("it has services");
    text[..last].to_owned()
}

fn echoes(lab: &Lab) -> [Traffic; 2] {
    [service_v4(), service_v6()].map(|to| Traffic::start(lab, to, Load::Echo))
}

/// What people are told of a connection.
fn name_of(cluster: &Cluster<'_>, host: Host, echo: &Traffic) -> Option<String> {
    flow(cluster, host, echo.local()).map(|flow| flow.service)
}

fn has_address(lab: &Lab, host: Host, address: IpAddr) -> bool {
    let mut command = Command::new("ip");
    command.args(["addr", "show"]);
    let shown = lab.node(host).run(command, DEADLINE).expect("ip runs");
    shown.stdout.contains(&format!("{address}/"))
}

/// Its flows were taken for the other service's, and its clients waited for ever.
#[test]
fn a_service_that_is_put_before_another_one_disturbs_nobody() {
    for (order, how) in [
        ([Host::A, Host::B], How::Restart),
        ([Host::B, Host::A], How::Restart),
        ([Host::A, Host::B], How::Reload),
    ] {
        let Some(lab) = stage(LabOptions::default()) else {
            return;
        };
        let _servers = servers(&lab);
        let mut cluster = in_sync(&lab, ClusterOptions::default());
        let capture = witness(&lab);
        let since = Instant::now();
        let echoes = echoes(&lab);
        for host in order {
            for echo in &echoes {
                wait_protected(&cluster, Host::A, echo.local());
            }
            change(&mut cluster, host, how, with_another_first);
            wait_web_in_sync(&mut cluster);
        }
        for echo in echoes {
            wait_protected(&cluster, Host::A, echo.local());
            let name = name_of(&cluster, Host::A, &echo);
            assert_eq!(name.as_deref(), Some("web"), "{order:?} {how:?}");
            echo.finish(since, STALL_LIMIT);
        }
        assert_unnoticed(capture);
    }
}

/// A service behind all others, with a server.
fn with_shop(text: &str) -> String {
    let [v4, v6] = SHOP;
    format!(
        "{text}\n[[service]]\nname = \"shop\"\naddress = [\"{v4}:{PORT}\", \"[{v6}]:{PORT}\"]\n\
         primary = \"a\"\nbackups = [\"b\"]\n"
    )
}

fn role(cluster: &Cluster<'_>, host: Host, service: &str) -> Option<String> {
    let services = cluster.status(host).ok()?.services;
    let found = services.into_iter().find(|it| it.name == service);
    found.map(|it| it.role)
}

/// It stayed where it had begun, for want of a failback. The standby's node takes its file
/// first, and another one before its primary has any.
#[test]
fn a_service_that_began_at_the_standby_goes_to_its_primary() {
    for how in [How::Reload, How::Restart] {
        let Some(lab) = stage(LabOptions::default()) else {
            return;
        };
        let _servers = servers(&lab);
        let mut cluster = in_sync(&lab, ClusterOptions::default());
        // A majority of the voters has to have it.
        change(&mut cluster, Host::Witness, How::Reload, with_shop);
        change(&mut cluster, Host::B, how, with_shop);
        let owns = |cluster: &Cluster<'_>, host| {
            let role = role(cluster, host, "shop")?;
            (role == "owner").then_some(())
        };
        until("it begins at b", || owns(&cluster, Host::B));
        change(&mut cluster, Host::B, How::Reload, |text| {
            text.replacen("[detect]", "# Nothing new.\n[detect]", 1)
        });
        let capture = witness(&lab);
        let since = Instant::now();
        let echoes = SHOP.map(|to| Traffic::start(&lab, SocketAddr::new(to, PORT), Load::Echo));
        change(&mut cluster, Host::A, how, with_shop);
        until("it goes to a", || owns(&cluster, Host::A));
        wait_event(&cluster, Host::B, "home_hand_over");
        let shadows = |cluster: &Cluster<'_>| Some(role(cluster, Host::B, "shop")? == "shadow");
        until("b stands by", || shadows(&cluster)?.then_some(()));
        for echo in echoes {
            wait_protected(&cluster, Host::A, echo.local());
            echo.finish(since, STALL_LIMIT);
        }
        assert_no_live_reset(&capture.finish().expect("it is complete"));
    }
}

/// The new service has no server, so it alone is not in sync.
fn wait_web_in_sync(cluster: &mut Cluster<'_>) {
    until("b is in sync for web", || {
        let status = cluster.status(Host::A).ok()?;
        let mut services = status.services.iter();
        let web = services.find(|service| service.name == "web")?;
        (!web.in_sync.is_empty()).then_some(())
    });
}

/// Twins end in silence, an owner's clients are told, and nobody answers for the address
/// any more; the other service goes on.
#[test]
fn a_service_that_is_taken_out_ends_in_order() {
    for how in [How::Restart, How::Reload] {
        for order in [[Host::B, Host::A], [Host::A, Host::B]] {
            take_out(order, how);
        }
    }
}

fn take_out(order: [Host; 2], how: How) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, two_services());
    let capture = witness(&lab);
    let since = Instant::now();
    let echoes = echoes(&lab);
    let shop = Traffic::start(&lab, SocketAddr::new(SHOP[0], PORT), Load::Echo);
    wait_protected(&cluster, Host::A, shop.local());
    for host in order {
        change(&mut cluster, host, how, without_the_last);
        for echo in &echoes {
            echo.goes_on();
        }
        for address in SHOP {
            until("the address is gone", || {
                (!has_address(&lab, host, address)).then_some(())
            });
        }
        wait_web_in_sync(&mut cluster);
    }
    shop.outcome().expect_err("its service is gone");
    for echo in echoes {
        wait_protected(&cluster, Host::A, echo.local());
        echo.finish(since, STALL_LIMIT);
    }
    assert_one_voice(&capture.finish().expect("the capture ends"));
}

/// One file has the service no longer, the other has: an owner hands it over, twins leave
/// before they end, and nobody waits until a twin that is no more is given up.
#[test]
fn a_service_that_one_file_has_lost_is_served_by_the_other() {
    for how in [How::Restart, How::Reload] {
        for (loser, keeper) in [(Host::B, Host::A), (Host::A, Host::B)] {
            for edit in [without_the_last, with_the_last_renamed] {
                lose(loser, keeper, how, edit);
            }
        }
    }
}

fn with_the_last_renamed(text: &str) -> String {
    text.replace("name = \"shop\"", "name = \"mall\"")
}

fn lose(loser: Host, keeper: Host, how: How, edit: fn(&str) -> String) {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, two_services());
    let since = Instant::now();
    let shop = SHOP.map(|address| {
        let echo = Traffic::start(&lab, SocketAddr::new(address, PORT), Load::Echo);
        wait_protected(&cluster, Host::A, echo.local());
        echo
    });
    change(&mut cluster, loser, how, edit);
    until("its owner says that nobody stands by", || {
        let status = cluster.status(keeper).ok()?;
        let mut services = status.services.iter();
        let shop = services.find(|service| service.name == "shop")?;
        (shop.state == "owner" && shop.in_sync.is_empty()).then_some(())
    });
    for echo in shop {
        echo.goes_on();
        echo.finish(since, TWIN_PATIENCE / 2);
    }
}

/// The two of the other address go on; those of the old one end.
#[test]
fn a_service_that_gets_another_address_is_at_the_new_one_only() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, two_services());
    let since = Instant::now();
    let echoes = echoes(&lab);
    let elsewhere = |text: &str| text.replace("10.9.0.101", "10.9.0.103");
    for host in [Host::B, Host::A] {
        let client = lab.client().enter(|| TcpStream::connect((SHOP[0], PORT)));
        let mut client = client.expect("the machine is there").expect("it is served");
        let patience = client.set_read_timeout(Some(DEADLINE));
        patience.expect("it can be set");
        change(&mut cluster, host, How::Reload, elsewhere);
        assert!(!has_address(&lab, host, SHOP[0]), "the old one at {host}");
        if host == Host::A {
            let told = client.read(&mut [0]).expect_err("nobody serves it");
            assert_eq!(told.kind(), ErrorKind::ConnectionReset, "{told}");
        }
    }
    wait_in_sync(&mut cluster, Host::A);
    let new = SocketAddr::from(([10, 9, 0, 103], PORT));
    let fresh = Traffic::start(&lab, new, Load::Echo);
    wait_protected(&cluster, Host::A, fresh.local());
    for echo in echoes {
        wait_protected(&cluster, Host::A, echo.local());
        echo.finish(since, STALL_LIMIT);
    }
}

/// Each node says which line it is, and takes it back; what both have stays protected.
#[test]
fn two_files_that_differ_are_told_apart_line_by_line() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, two_services());
    let echo = Traffic::start(&lab, service_v4(), Load::Echo);
    let slower = |text: &str| {
        let changed = text.replace(
            "name = \"shop\"\n",
            "name = \"shop\"\nlag_limit = \"900ms\"\n",
        );
        with_another_first(&changed)
    };
    let before = cluster.config_file(Host::B).expect("it was written");
    let before = fs::read_to_string(before).expect("it can be read");
    change(&mut cluster, Host::B, How::Reload, slower);
    wait_web_in_sync(&mut cluster);
    wait_protected(&cluster, Host::A, echo.local());
    let says = |cluster: &Cluster<'_>, host, sentence: &str| {
        let status = cluster.status(host).ok()?;
        let mut warnings = status.warnings.iter();
        warnings.any(|text| text.contains(sentence)).then_some(())
    };
    for host in Host::SERVERS {
        until("the line is named", || {
            says(&cluster, host, "service \"shop\": lag_limit differs")
        });
        until("the service is named", || {
            says(&cluster, host, "service \"another\" in its file")
        });
    }
    change(&mut cluster, Host::B, How::Reload, |_| before.clone());
    for host in Host::SERVERS {
        until("it is taken back", || {
            says(&cluster, host, "in its file").is_none().then_some(())
        });
    }
    echo.finish(Instant::now(), Duration::from_secs(60));
}

/// What a command says, on either stream, and whether it went well.
fn say(cluster: &Cluster<'_>, args: &[&str]) -> (String, bool) {
    let output = cluster.godwit(Host::A, args).expect("it runs");
    (
        [output.stdout, output.stderr].concat(),
        output.status.success(),
    )
}

/// A file that is edited and not taken is said, whether it could be or not, until it says
/// again what is in force. `godwit check` compares it with that, and who asks for the
/// status is told it whatever the file says.
#[test]
fn a_file_that_is_not_in_force_is_said() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let cluster = in_sync(&lab, ClusterOptions::default());
    let path = cluster.config_file(Host::A).expect("it was written");
    let text = fs::read_to_string(&path).expect("it can be read");
    let file = path.to_str().expect("it is ASCII");
    let said = |what: &str| {
        let since = Instant::now();
        until(what, || {
            let status = cluster.status(Host::A).ok()?;
            let mut warnings = status.warnings.iter();
            warnings.any(|warning| warning.contains(what)).then_some(())
        });
        assert!(since.elapsed() < SAID, "{what}: {:?}", since.elapsed());
    };
    let (checked, _) = say(&cluster, &["check", file]);
    assert!(
        checked.contains("says what the agent of node a says"),
        "{checked}"
    );

    fs::write(&path, text.replace("primary", "primmary")).expect("it can be written");
    said("a restart would fail");
    let (status, is_well) = say(&cluster, &["status", "--config", file]);
    assert!(
        is_well && status.contains("a restart would fail"),
        "{status}"
    );

    let slower = text.replacen("primary = ", "lag_limit = \"900ms\"\nprimary = ", 1);
    fs::write(&path, slower).expect("it can be written");
    said("is not what is in force: service \"web\"");
    for args in [&["check", file][..], &["check", file, "--config", file]] {
        let (checked, is_well) = say(&cluster, args);
        let wanted = "service \"web\": changed; lag_limit from 700ms to 900ms";
        assert!(is_well && checked.contains(wanted), "{checked}");
    }

    fs::write(&path, format!("# as before\n{text}")).expect("it can be written");
    until("it is taken back", || {
        let status = cluster.status(Host::A).ok()?;
        status.warnings.is_empty().then_some(())
    });
}

/// A second, and what asking takes on a busy machine.
const SAID: Duration = Duration::from_millis(2500);

/// A bad file is refused with its sentence, and nothing changes.
#[test]
fn a_bad_file_is_not_reloaded() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let before = cluster.status(Host::A).expect("it answers").incarnation;
    let path = cluster.config_file(Host::A).expect("it was written");
    let text = fs::read_to_string(&path).expect("it can be read");
    fs::write(&path, text.replace("primary", "primmary")).expect("it can be written");
    let output = reload(&cluster, Host::A);
    assert!(!output.status.success(), "{output:?}");
    fs::write(&path, &text).expect("it can be written");
    // Nor one whose key or certificate can't be used: another life would not begin.
    let lines = text.lines();
    let files: Vec<_> = lines
        .filter_map(|line| {
            line.strip_prefix("key = ")
                .or_else(|| line.strip_prefix("cert = "))
        })
        .map(|quoted| path.with_file_name(quoted.trim_matches('"')))
        .collect();
    assert_eq!(files.len(), 2, "{text}");
    for file in files {
        let kept = fs::read(&file).expect("it can be read");
        for torn in [&kept[..kept.len() / 2], &[]] {
            fs::write(&file, torn).expect("it can be written");
            let output = reload(&cluster, Host::A);
            assert!(!output.status.success(), "{}: {output:?}", file.display());
        }
        fs::write(&file, kept).expect("it can be written");
    }
    let after = cluster.status(Host::A).expect("it answers").incarnation;
    assert_eq!(before, after, "nothing was started anew");
    wait_in_sync(&mut cluster, Host::A);
}

/// Somebody deletes the folder by which commands find an agent. Told to reload, it goes on as
/// it was; a restart makes the folder anew.
#[test]
fn a_folder_that_is_gone_ends_no_agent() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let since = Instant::now();
    let echo = Traffic::start(&lab, service_v4(), Load::Echo);
    for host in [Host::B, Host::A] {
        wait_protected(&cluster, Host::A, echo.local());
        let socket = cluster.socket(host).expect("it has one");
        let folder = socket.parent().expect("it is in a folder").to_owned();
        fs::remove_dir_all(&folder).expect("it is there");
        let agent = cluster.agent(host).expect("it runs");
        agent.signal(Signal::SIGHUP).expect("it is told");
        throughout("it goes on", Duration::from_secs(1), || agent.is_running());
        echo.goes_on();
        cluster.stop_agent(host).expect("the agent ends");
        cluster.start_agent(host).expect("the agent starts");
        wait_in_sync(&mut cluster, Host::A);
    }
    echo.finish(since, STALL_LIMIT);
}

/// Another agent of the same node, which keeps its folder elsewhere, is refused before it
/// touches the programs of the one that runs.
#[test]
fn a_second_agent_is_refused_before_it_does_anything() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let echo = Traffic::start(&lab, service_v4(), Load::Echo);
    wait_protected(&cluster, Host::A, echo.local());
    let path = cluster.config_file(Host::A).expect("it was written");
    let text = fs::read_to_string(&path).expect("it can be read");
    let other = path.with_file_name("another.toml");
    fs::write(&other, text.replace("/run\"", "/another\"")).expect("it can be written");
    let other = other.to_str().expect("it is UTF-8");
    let refused = cluster.godwit(Host::A, &["agent", "--config", other]);
    let refused = refused.expect("it runs");
    assert!(
        !refused.status.success() && refused.stderr.contains("in use"),
        "{refused:?}"
    );
    let log = cluster.agent(Host::A).expect("it runs").log();
    assert!(!log.contains("stand first"), "{log}");
    wait_protected(&cluster, Host::A, echo.local());
    echo.goes_on();
}

/// The filter of system calls refused what both need, and the file was given up.
#[test]
fn eager_snapshots_and_multicast_taps_are_taken_by_a_reload() {
    let eager = "standby = \"snapshot\"\nsnapshots = \"eager\"";
    let multicast = "standby = \"shadow\"\ntap = \"multicast\"";
    for (keys, is_served) in [(eager, false), (multicast, true)] {
        let Some(lab) = stage(LabOptions::default()) else {
            return;
        };
        let _servers = servers(&lab);
        let mut cluster = in_sync(&lab, ClusterOptions::default());
        for host in [Host::B, Host::A] {
            change(&mut cluster, host, How::Reload, |text| {
                text.replacen("standby = \"shadow\"", keys, 1)
            });
        }
        // Another life with such a file.
        let output = reload(&cluster, Host::A);
        assert!(output.status.success(), "{output:?}");
        if is_served {
            wait_web_in_sync(&mut cluster);
            let since = Instant::now();
            let echo = Traffic::start(&lab, service_v4(), Load::Echo);
            wait_protected(&cluster, Host::A, echo.local());
            echo.finish(since, STALL_LIMIT);
        }
    }
}

/// A file in which node a is called aa, with a certificate of that name.
fn with_another_name(text: &str) -> String {
    let text = text.replace("\"a\"", "\"aa\"");
    text.replace("\"node.", "\"aa/node.")
}

/// Writes files in which node a is called aa, and makes its certificate; where they are.
fn give_another_name(cluster: &Cluster<'_>, lab: &Lab) -> [String; 3] {
    let folder = |host| lab.node(host).folder().expect("it has one").to_owned();
    let out = folder(Host::A).join("aa").display().to_string();
    let authority = lab.folder().join("pki").display().to_string();
    let args = ["--dir", &authority, "--name", "aa", "--out", &out];
    let issued = cluster.godwit(Host::A, &[&["pki", "issue"], &args[..]].concat());
    let issued = issued.expect("it runs");
    assert!(issued.status.success(), "{issued:?}");
    [Host::A, Host::B, Host::Witness].map(|host| {
        let path = cluster.config_file(host).expect("it was written");
        let text = fs::read_to_string(&path).expect("it can be read");
        let text = if host == Host::A {
            with_another_name(&text)
        } else {
            text.replace("\"a\"", "\"aa\"")
        };
        fs::write(&path, text).expect("it can be written");
        path.to_str().expect("it is ASCII").to_owned()
    })
}

/// That node does not take a file without the owner, and says so before.
fn refuses_without_owner(cluster: &Cluster<'_>, host: Host, file: &str) {
    let check = &["check", file][..];
    let reload = &["reload", "--config", file][..];
    for (args, is_well) in [(check, true), (reload, false)] {
        let output = cluster.godwit(host, args).expect("it runs");
        let said = [output.stdout, output.stderr].concat();
        assert_eq!(output.status.success(), is_well, "{said}");
        let sentence = "a owns it, and this file has no server a";
        assert!(said.contains(sentence), "{host}: {said}");
    }
}

/// Nor does it after a restart. It says so in its status, and once in its log.
fn begins_with_owner(cluster: &mut Cluster<'_>, host: Host) {
    cluster.stop_agent(host).expect("it ends");
    cluster.start_agent(host).expect("it starts");
    let sentence = "is not taken: service \"web\": a owns it, and this file has no server a";
    until(&format!("{host} has seen who owns"), || {
        let log = cluster.agent(host).expect("it was started").log();
        let count = log.matches(sentence).count();
        assert!(count <= 1, "{log}");
        (count == 1).then_some(())
    });
    let warnings = cluster.status(host).expect("it answers").warnings;
    let is_said = |it: &String| it.contains("is not in force: it lacks a of service \"web\"");
    assert!(warnings.iter().any(is_said), "{host}: {warnings:?}");
}

/// Nodes know each other by name. Nobody takes a file without the owner while it has
/// connections, by a reload or a restart. Nor does that node start under another name: a standby
/// goes on with them, or it is drained before.
#[test]
fn an_owner_keeps_its_name_until_its_connections_are_elsewhere() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(&lab, ClusterOptions::default());
    let echo = Traffic::start(&lab, service_v4(), Load::Echo);
    wait_protected(&cluster, Host::A, echo.local());
    let [own, standby, third] = give_another_name(&cluster, &lab);
    let (checked, is_valid) = say(&cluster, &["check", &own]);
    for wanted in ["from a to aa", "owns it with 1 connections", "drain at a"] {
        assert!(is_valid && checked.contains(wanted), "{wanted}: {checked}");
    }
    let (reloaded, is_taken) = say(&cluster, &["reload", "--config", &own]);
    let sentence = "hand them over first";
    assert!(!is_taken && reloaded.contains(sentence), "{reloaded}");
    refuses_without_owner(&cluster, Host::B, &standby);
    refuses_without_owner(&cluster, Host::Witness, &third);
    wait_protected(&cluster, Host::A, echo.local());
    for host in [Host::B, Host::Witness] {
        begins_with_owner(&mut cluster, host);
        echo.goes_on();
    }
    wait_in_sync(&mut cluster, Host::A);
    wait_protected(&cluster, Host::A, echo.local());

    cluster.stop_agent(Host::A).expect("it ends");
    let refused = cluster.godwit(Host::A, &["agent", "--config", &own]);
    let refused = refused.expect("it ends within a second");
    let sentence = "this machine was node \"a\", which owns service web with 1 connections";
    let is_said = refused.stderr.contains(sentence);
    assert!(!refused.status.success() && is_said, "{refused:?}");
    echo.goes_on();
    cluster.wait_owner(Host::B, DEADLINE).expect("b takes over");
    echo.goes_on();

    for host in [Host::B, Host::Witness] {
        let output = reload(&cluster, host);
        assert!(output.status.success(), "{output:?}");
    }
    let pins = cluster.pins(Host::A).expect("the machine is there");
    let name = format!("{}a", pins.file_name().expect("it has one").display());
    let others = pins.with_file_name(name);
    lab.remove_at_end(&others).expect("it is remembered");
    cluster.start_agent(Host::A).expect("it starts now");
    until("aa stands by", || {
        let status = cluster.status(Host::B).ok()?;
        let in_sync = &status.services.first()?.in_sync;
        in_sync.iter().any(|name| name == "aa").then_some(())
    });
    echo.finish(Instant::now(), Duration::from_secs(60));
}

/// A detached owner leaves its connections alone, and the address that they need. The next agent
/// has no service there: it says so, and takes the address away when they have ended.
#[test]
fn an_address_that_a_detached_owner_has_left_goes_with_its_connections() {
    let Some(lab) = stage(LabOptions::default()) else {
        return;
    };
    let _servers = servers(&lab);
    let mut cluster = in_sync(
        &lab,
        ClusterOptions {
            fencing: Fencing::None,
            ..two_services()
        },
    );
    // Nobody else begins the service.
    change(&mut cluster, Host::B, How::Reload, without_the_last);
    let since = Instant::now();
    let echo = Traffic::start(&lab, SocketAddr::new(SHOP[0], PORT), Load::Echo);
    let path = cluster.config_file(Host::A).expect("it was written");
    let file = path.to_str().expect("it is ASCII");
    let (detached, is_well) = say(&cluster, &["agent", "--config", file, "--detach"]);
    for address in SHOP {
        let stays = format!("{address} on ");
        assert!(is_well && detached.contains(&stays), "{stays}: {detached}");
    }
    let text = fs::read_to_string(&path).expect("it can be read");
    fs::write(&path, without_the_last(&text)).expect("it can be written");
    cluster.start_agent(Host::A).expect("it starts");
    let warning = |cluster: &Cluster<'_>| {
        let status = cluster.status(Host::A).ok()?;
        let mut warnings = status.warnings.into_iter();
        Some(warnings.find(|text| text.starts_with("left_address: ")))
    };
    until("the one that is used is said", || {
        warning(&cluster)??
            .contains("left 10.9.0.101 on lo, which")
            .then_some(())
    });
    until("the other one goes", || {
        (!has_address(&lab, Host::A, SHOP[1])).then_some(())
    });
    echo.goes_on();
    assert!(has_address(&lab, Host::A, SHOP[0]), "it is used");
    echo.finish(since, STALL_LIMIT);
    until("it goes with its connections", || {
        (!has_address(&lab, Host::A, SHOP[0])).then_some(())
    });
    until("nothing is said any more", || {
        warning(&cluster)?.is_none().then_some(())
    });
    let own = [service_v4(), service_v6()].map(|service| service.ip());
    assert!(
        own.iter().all(|it| has_address(&lab, Host::A, *it)),
        "its own stay"
    );
}
