mod change;
mod director;
mod policy;
mod refused;
mod rules;

use std::path::Path;

use godwit_bpf::LogMode;

use super::*;
use director::directed;

/// A file with all keys, with both servers written out. Line numbers are asserted.
const GOOD: &str = r#"[node]
name = "a"
interface = "eth0"

[cluster]
voters = ["a", "b", "w"]

[[peer]]
name = "a"
role = "server"
control = "10.9.0.11:7400"
data = "10.9.0.11"

[[peer]]
name = "b"
role = "server"
control = "10.9.0.12:7400"
data = "10.9.0.12"

[tls]
ca = "ca.pem"
cert = "node.pem"
key = "node.key"

[detect]
heartbeat = "10ms"
misses = 3
lease = "60ms"
fencing = "lease"

[[service]]
name = "web"
address = ["10.9.0.100:80", "[2001:db8::100]:80"]
standby = "shadow"
tap = "mirror"
gate = "ack"
primary = "a"
backups = ["b"]
on_process_exit = "takeover"
on_lag = "demote"
leash = "4MiB"
lag_limit = "700ms"
on_divergence = "demote"
divergence_limit = "2s"
verify = "1%"
mask = ["Date"]
failback = "manual"
reprotect = "connection"
reprotect_cap = "64KiB"
snapshots = "lazy"
unread = "stay"
forward_idle = "1m"
"#;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(Path::new("/etc/godwit/godwit.toml"), text)
}

fn good() -> Config {
    parse(GOOD).expect("the example is valid")
}

#[test]
fn the_documented_example_is_read() {
    let config = good();
    assert_eq!(config.node.name.as_str(), "a");
    assert_eq!(config.node.run_dir, Path::new("/run/godwit"));
    assert_eq!(config.node.metrics, None);
    assert_eq!(config.tls.key, Path::new("/etc/godwit/node.key"));
    assert_eq!(config.detect.heartbeat, Duration::from_millis(10));
    let [service] = config.services.as_slice() else {
        panic!("one service");
    };
    assert_eq!(service.lag.leash, 4 << 20);
    assert_eq!(service.addresses[1].to_string(), "[2001:db8::100]:80");
    assert_eq!(config.own_peer().data.to_string(), "10.9.0.11");
    let others: Vec<_> = config.others().map(|peer| peer.name.as_str()).collect();
    assert_eq!(others, ["b"]);
    assert_eq!(config.own_shares().count(), 1);
}

#[test]
fn the_packaged_example_is_valid() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/godwit.toml");
    let config = Config::load(&path).expect("valid");
    assert_eq!(config.warnings, Vec::<String>::new());
}

#[test]
fn every_key_is_documented() {
    let docs = include_str!("../../../../docs/configuration.md");
    for line in directed().lines() {
        let Some((key, _)) = line.split_once(" = ") else {
            continue;
        };
        assert!(
            docs.contains(&format!("| `{key}`")),
            "{key} is not in docs/configuration.md"
        );
    }
}

#[test]
fn what_is_not_yet_in_force_is_a_warning() {
    let warnings = good().warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].starts_with("/etc/godwit/godwit.toml:29: [detect]: fencing"));
    assert_eq!(good().fencing(), Fencing::None, "w can't vote");
    assert!(warnings[1].contains(":6: [cluster]: voter \"w\" is no [[peer]]"));
    let text = GOOD.replace("fencing = \"lease\"", "fencing = \"none\"");
    assert_eq!(parse(&text).expect("valid").warnings.len(), 1);
}

/// What the data path can hold, and nothing that it would take for no mask.
#[test]
fn masks_are_a_few_names_of_headers() {
    let with = |mask: &str| parse(&GOOD.replace("[\"Date\"]", mask));
    let many = with(r#"["Date", "ETag", "X-Request-Id", "Via"]"#).expect("four");
    assert_eq!(many.services[0].verification().masks.len(), 4);
    assert!(
        with("[]").expect("none").services[0]
            .divergence
            .mask
            .is_empty()
    );
    for (bad, why) in [
        (
            r#"["a", "b", "c", "d", "e"]"#,
            "a list of at most 4 names of headers, not 5 names",
        ),
        (r#"["Date:"]"#, "entry 1 must be the name of a header"),
        (r#""Date:""#, "mask must be the name of a header"),
        (r#"[""]"#, "entry 1"),
        (r#"["Date", 7]"#, "entry 2"),
        (r#"["a-name-that-is-longer-than-a-mask"]"#, "entry 1"),
    ] {
        let error = with(bad).expect_err(bad).to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn keys_that_may_be_left_out_have_the_documented_values() {
    let short: String = GOOD
        .lines()
        .filter(|line| {
            let optional = [
                "voters",
                "data",
                "standby",
                "snapshots",
                "tap",
                "gate",
                "on_",
                "leash",
                "lag_limit",
                "divergence_limit",
                "verify",
                "mask",
                "failback",
                "forward_idle",
                "reprotect",
                "heartbeat",
                "misses",
                "lease",
                "fencing",
            ];
            !optional.iter().any(|key| line.starts_with(key))
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    let (short, long) = (parse(&short).expect("valid"), good());
    assert_eq!(short.services, long.services);
    assert_eq!(short.detect, long.detect);
    assert_eq!(short.peers, long.peers);
}

/// Each row: replace this, by that, and get this sentence.
const WRONG: &[(&str, &str, &str)] = &[
    ("[node]\n", "[node\n", "1: "),
    (
        "[node]\nname = \"a\"\ninterface = \"eth0\"\n",
        "",
        "1: section [node] is missing",
    ),
    (
        "interface = \"eth0\"\n",
        "",
        "1: [node]: `interface` is missing",
    ),
    (
        "\"eth0\"",
        "\"a-much-too-long-name\"",
        "3: [node]: interface must be the name of an interface (1 to 15 characters), not \"a-much-too-long-name\"",
    ),
    (
        "name = \"a\"\ninterface",
        "name = \"a b\"\ninterface",
        "2: [node]: name must be a name of 1 to 32 letters, digits, `-`, `_` or `.`, not \"a b\"",
    ),
    (
        "name = \"a\"\ninterface",
        "name = \"c\"\ninterface",
        "2: [node]: name is \"c\", but no [[peer]] is called so",
    ),
    (
        "name = \"b\"\nrole",
        "name = \"A\"\nrole",
        "15: peer \"A\": name \"A\" is already used at line 9",
    ),
    (
        "10.9.0.12:7400",
        "10.9.0.11:7400",
        "17: peer \"b\": control 10.9.0.11:7400 is already used at line 11",
    ),
    (
        "10.9.0.12:7400",
        "10.9.0.12",
        "17: peer \"b\": control must be address and port (1 to 65535), such as \"10.9.0.11:7400\" or \"[2001:db8::1]:80\", not \"10.9.0.12\"",
    ),
    (
        "role = \"server\"\ncontrol = \"10.9.0.12",
        "role = \"servr\"\ncontrol = \"10.9.0.12",
        "16: peer \"b\": role must be one of \"server\", \"witness\", \"director\" (did you mean \"server\"?), not \"servr\"",
    ),
    (
        "role = \"server\"\ncontrol = \"10.9.0.12",
        "role = \"witness\"\ncontrol = \"10.9.0.12",
        "38: service \"web\": backups names \"b\", which is no [[peer]] with role \"server\"",
    ),
    (
        "misses = 3",
        "mises = 3",
        "27: [detect]: unknown key `mises`, did you mean `misses`?",
    ),
    (
        "primary = \"a\"",
        "primry = \"a\"",
        "37: service \"web\": unknown key `primry`, did you mean `primary`?",
    ),
    (
        "primary = \"a\"\n",
        "",
        "31: service \"web\": `primary` is missing",
    ),
    (
        "misses = 3",
        "zebra = 3",
        "27: [detect]: unknown key `zebra`",
    ),
    (
        "misses = 3",
        "misses = 0",
        "27: [detect]: misses (0) must be 2 to 100",
    ),
    (
        "misses = 3",
        "misses = \"3\"",
        "27: [detect]: misses must be a whole number, not \"3\"",
    ),
    (
        "heartbeat = \"10ms\"",
        "heartbeat = 10",
        "26: [detect]: heartbeat must be a duration such as \"10ms\" or \"2s\", not 10",
    ),
    (
        "heartbeat = \"10ms\"",
        "heartbeat = \"100us\"",
        "26: [detect]: heartbeat (100us) must be 1ms to 10s",
    ),
    (
        "lease = \"60ms\"",
        "lease = \"30ms\"",
        "28: [detect]: lease (30ms) must be greater than misses * heartbeat (30ms)",
    ),
    (
        "heartbeat = \"10ms\"",
        "heartbeat = \"20ms\"",
        "28: [detect]: lease (60ms) must be greater than misses * heartbeat (60ms)",
    ),
    (
        "[[service]]",
        "[[servcie]]",
        "31: top level: unknown key `servcie`, did you mean `service`?",
    ),
    (
        "[[service]]",
        "[service]",
        "31: top level: service must be a list of tables, not a table",
    ),
    (
        "standby = \"shadow\"",
        "standby = \"replay\"",
        "34: service \"web\": standby = \"replay\" is not in this version; write \"shadow\", \"snapshot\" or \"none\"",
    ),
    (
        "tap = \"mirror\"",
        "tap = \"director\"",
        "35: service \"web\": tap = \"director\" is not in this version; write \"mirror\"",
    ),
    (
        "primary = \"a\"",
        "primary = \"x\"",
        "37: service \"web\": primary names \"x\", which is no [[peer]] with role \"server\"",
    ),
    (
        "backups = [\"b\"]",
        "backups = [\"a\"]",
        "38: service \"web\": \"a\" is both primary and backup",
    ),
    (
        "backups = [\"b\"]",
        "backups = []",
        "38: service \"web\": this version protects with one backup; list one, not 0",
    ),
    (
        "leash = \"4MiB\"",
        "leash = \"4mb\"",
        "41: service \"web\": leash must be a size such as \"64KiB\" or \"4MiB\", not \"4mb\"",
    ),
    (
        "leash = \"4MiB\"",
        "leash = \"2GiB\"",
        "41: service \"web\": leash (2GiB) must be 64KiB to 1GiB",
    ),
    (
        "\"[2001:db8::100]:80\"",
        "\"10.9.0.100:80\"",
        "33: service \"web\": address 10.9.0.100:80 is already used at line 33",
    ),
    (
        "\"[2001:db8::100]:80\"",
        "\"10.9.0.12:80\"",
        "33: service \"web\": address 10.9.0.12 is node \"b\"'s own; a service needs one that can move",
    ),
    (
        "\"[2001:db8::100]:80\"",
        "\"127.0.0.1:80\"",
        "33: service \"web\": address must be one that clients can reach, and 127.0.0.1:80 is loopback",
    ),
    (
        "\"[2001:db8::100]:80\"",
        "\"10.9.0.101:0\"",
        "33: service \"web\": address: entry 2 must be address and port (1 to 65535), such as \"10.9.0.11:7400\" or \"[2001:db8::1]:80\", not \"10.9.0.101:0\"",
    ),
    (
        "\"10.9.0.100:80\", \"[2001:db8::100]:80\"",
        "\n  \"10.9.0.100\"",
        "34: service \"web\": address: entry 1 must be address and port (1 to 65535), such as \"10.9.0.11:7400\" or \"[2001:db8::1]:80\", not \"10.9.0.100\"",
    ),
    (
        "address = [\"10.9.0.100:80\", \"[2001:db8::100]:80\"]",
        "address = \"10.9.0.100:0\"",
        "33: service \"web\": address must be address and port (1 to 65535), such as \"10.9.0.11:7400\" or \"[2001:db8::1]:80\", not \"10.9.0.100:0\"",
    ),
    (
        "mask = [\"Date\"]",
        "mask = [\"a\", \"b\", \"c\", \"d\", \"e\"]",
        "46: service \"web\": mask must be a list of at most 4 names of headers, not 5 names",
    ),
    (
        "mask = [\"Date\"]",
        "mask = [\"Via\", \"Date:\"]",
        "46: service \"web\": mask: entry 2 must be the name of a header, such as \"Date\": 1 to 31 letters, without a colon, not \"Date:\"",
    ),
    ("backups = [\"b\"]", "backups = [\"b\", [\"c\"]]", "38"),
];

#[test]
fn every_error_names_file_line_and_key() {
    for (from, to, expected) in WRONG {
        assert!(GOOD.contains(from), "{from}");
        let error = parse(&GOOD.replacen(from, to, 1))
            .expect_err(to)
            .to_string();
        let sentence = error
            .strip_prefix("/etc/godwit/godwit.toml:")
            .expect("the file");
        if expected.len() > 5 {
            assert_eq!(sentence, *expected);
        } else {
            assert!(sentence.starts_with(expected), "{sentence}");
        }
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn services_with_one_address_must_have_the_same_servers() {
    let second = "\n[[service]]\nname = \"ssh\"\naddress = \"10.9.0.100:22\"\nprimary = \"b\"\nbackups = [\"a\"]\n";
    let error = parse(&format!("{GOOD}{second}"))
        .expect_err("split")
        .to_string();
    assert!(
        error.ends_with(
            ":56: service \"ssh\": address 10.9.0.100 is also that of service \"web\", \
             so primary, backups, tap and front must be the same, and both or none must have twins"
        ),
        "{error}"
    );
    let same = second
        .replace("primary = \"b\"", "primary = \"a\"")
        .replace("[\"a\"]", "[\"b\"]");
    let config = parse(&format!("{GOOD}{same}")).expect("same servers");
    assert_eq!(
        config.shares().last().expect("two").0,
        ShareId::of_service("ssh")
    );
}

/// Each server of it has a share of its own, behind those of all services.
#[test]
fn a_service_whose_connections_move_has_a_share_per_server() {
    for standby in ["none", "snapshot"] {
        let text = GOOD.replace("standby = \"shadow\"", &format!("standby = \"{standby}\""));
        let second = "\n[[service]]\nname = \"ssh\"\naddress = \"10.9.0.101:22\"\n\
                      primary = \"b\"\nbackups = [\"a\"]\n";
        let config = parse(&format!("{text}{second}")).expect("valid");
        let shares = config
            .homes()
            .map(|(share, service, home)| (share, service.name, home));
        let name = |name| NodeName::new(name).expect("valid");
        let web = |home| ShareId::of_home("web", name(home));
        let ssh = ShareId::of_service("ssh");
        let wanted = [
            (web("a"), "web", "a"),
            (ssh, "ssh", "b"),
            (web("b"), "web", "b"),
        ];
        let wanted = wanted.map(|(share, service, home)| (share, name(service), name(home)));
        assert_eq!(shares.collect::<Vec<_>>(), wanted);
        let own = |config: &Config| config.own_shares().map(|(it, _)| it).collect::<Vec<_>>();
        assert_eq!(own(&config), [web("a"), ssh]);
        let other = format!("{text}{second}").replacen("name = \"a\"", "name = \"b\"", 1);
        let config = parse(&other).expect("valid");
        assert_eq!(own(&config), [ssh, web("b")]);
        let web = &config.services[0];
        assert_eq!(config.service_share(web), Some(ShareId::of_service("web")));
        assert_eq!(
            config.server_lost_hold(web),
            Duration::ZERO,
            "nobody takes over"
        );
        assert_eq!(web.gate_in_force(), Gate::Off);
    }
    let split = format!(
        "{GOOD}\n[[service]]\nname = \"ssh\"\naddress = \"10.9.0.100:22\"\n\
         standby = \"none\"\nprimary = \"a\"\nbackups = [\"b\"]\n"
    );
    parse(&split).expect_err("one address, with and without twins");
}

/// The agent may look into processes for a service whose connections move, and says
/// so to nobody where it may not.
#[test]
fn unread_connections_move_where_there_are_no_twins() {
    assert!(!good().services[0].moves_unread());
    let unread = GOOD.replace("unread = \"stay\"", "unread = \"move\"");
    let error = parse(&unread).expect_err("they have twins").to_string();
    let wanted = ": service \"web\": unread = \"move\" needs standby = \"none\", or \"snapshot\" \
                  that is lazy; with standby = \"shadow\" leave it out";
    assert!(error.ends_with(wanted), "{error}");
    for standby in ["none", "snapshot"] {
        let standby = format!("standby = \"{standby}\"");
        let moves = |text: &str| parse(&text.replace("standby = \"shadow\"", &standby));
        let config = moves(&unread).expect("valid");
        assert!(config.services[0].moves_unread());
        assert_ne!(config.digest, moves(GOOD).expect("valid").digest);
    }
}

#[test]
fn how_long_is_forwarded_for_the_silent_is_common() {
    let quick = |text: &str| parse(&text.replace("forward_idle = \"1m\"", "forward_idle = \"1s\""));
    assert_eq!(
        quick(GOOD).expect("valid").digest,
        good().digest,
        "it has twins"
    );
    let moves = GOOD.replace("standby = \"shadow\"", "standby = \"none\"");
    let config = quick(&moves).expect("valid");
    assert_eq!(
        config.services[0].handoff.forward_idle,
        Duration::from_secs(1)
    );
    assert_ne!(config.digest, parse(&moves).expect("valid").digest);
    parse(&GOOD.replace("\"1m\"", "\"999ms\"")).expect_err("too short");
}

/// It has a standby, as one with twins; its twins say nothing of their own.
#[test]
fn a_service_with_eager_snapshots_has_one_share_and_a_standby() {
    let eager = GOOD.replace("snapshots = \"lazy\"", "snapshots = \"eager\"");
    let error = parse(&eager).expect_err("no snapshots").to_string();
    let wanted = ": service \"web\": snapshots = \"eager\" needs standby = \"snapshot\"; \
                  with standby = \"shadow\" leave it out";
    assert!(error.ends_with(wanted), "{error}");
    let eager = eager.replace("standby = \"shadow\"", "standby = \"snapshot\"");
    let config = parse(&eager).expect("valid");
    assert_eq!(config.homes().count(), 1);
    let web = &config.services[0];
    assert!(web.is_kept() && !web.moves());
    assert_eq!(web.gate_in_force(), Gate::Ack);
    assert_eq!(web.verification().part, 0);
    assert!(web.leash_in_force() > web.lag.leash);
    assert!(config.server_lost_hold(web) > Duration::ZERO);
    let lazy = parse(&eager.replace("\"eager\"", "\"lazy\"")).expect("valid");
    assert_ne!(config.digest, lazy.digest, "both nodes must know");
    let request = eager.replace("reprotect = \"connection\"", "reprotect = \"request\"");
    let request = parse(&request).expect("valid");
    assert_eq!(request.services[0].log_mode(), LogMode::Latest);
    let two = eager.replace("backups = [\"b\"]", "backups = []");
    parse(&two).expect_err("a standby is needed");
}

/// Of services that must move together, one could be refused after the other.
#[test]
fn failback_needs_a_standby_and_an_address_of_its_own() {
    let auto = GOOD.replace("failback = \"manual\"", "failback = \"auto\"");
    let service = &parse(&auto).expect("valid").services[0];
    assert_eq!(service.failback, Failback::Auto);
    assert_eq!(service.failback_after, Duration::from_secs(60));
    let alone = auto.replace("standby = \"shadow\"", "standby = \"none\"");
    let error = parse(&alone).expect_err("no standby").to_string();
    let wanted = ": service \"web\": failback = \"auto\" needs a standby that holds the \
                  connections; with standby = \"none\" write \"manual\"";
    assert!(error.ends_with(wanted), "{error}");
    let second = "\n[[service]]\nname = \"ssh\"\naddress = \"10.9.0.100:22\"\n\
                  primary = \"a\"\nbackups = [\"b\"]\n";
    let error = parse(&format!("{auto}{second}"))
        .expect_err("shared")
        .to_string();
    let wanted = ": service \"ssh\": failback = \"auto\" needs an address of its own, \
                  and 10.9.0.100 is also that of service \"web\"";
    assert!(error.ends_with(wanted), "{error}");
}

#[test]
fn there_is_room_for_256_services() {
    let service = |port: u16| {
        format!(
            "[[service]]\nname = \"s{port}\"\naddress = \"10.9.0.100:{port}\"\nprimary = \"a\"\nbackups = [\"b\"]\n"
        )
    };
    let mut text = format!("{GOOD}{}", (1000..1255).map(service).collect::<String>());
    assert_eq!(parse(&text).expect("256 in all").services.len(), 256);
    text += &service(2000);
    let error = parse(&text).expect_err("257").to_string();
    assert!(
        error.ends_with("service \"s2000\": there are more than 256 shares"),
        "{error}"
    );
    let mut text = GOOD.replace("standby = \"shadow\"", "standby = \"none\"");
    let others = (1000..1255)
        .map(service)
        .map(|it| it.replace("10.9.0.100", "10.9.0.101"));
    text.extend(others);
    let error = parse(&text).expect_err("257 shares").to_string();
    assert!(error.contains("more than 256 shares"), "{error}");
}

#[test]
fn a_lease_is_checked_with_every_fencing_unless_it_is_left_out() {
    for fencing in ["lease", "stonith", "none"] {
        let text = GOOD
            .replace("heartbeat = \"10ms\"", "heartbeat = \"20ms\"")
            .replace(
                "fencing = \"lease\"",
                &format!("fencing = \"{fencing}\"\nstonith = \"true\""),
            );
        let error = parse(&text).expect_err(fencing).to_string();
        let wanted = "/etc/godwit/godwit.toml:28: [detect]: \
                      lease (60ms) must be greater than misses * heartbeat (60ms)";
        assert_eq!(error, wanted, "{fencing}");
        let without = parse(&text.replace("lease = \"60ms\"\n", "")).expect(fencing);
        assert_eq!(without.detect.lease, Duration::from_millis(120));
    }
}

#[test]
fn leases_are_in_force_with_three_voters_that_are_peers() {
    let witness = "\n[[peer]]\nname = \"w\"\nrole = \"witness\"\ncontrol = \"10.9.0.13:7400\"\n\
                   data = \"10.9.0.13\"\n";
    let config = parse(&format!("{GOOD}{witness}")).expect("valid");
    assert_eq!(config.fencing(), Fencing::Lease);
    assert_eq!(config.fencing_in_force(), "lease");
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let two = parse(&GOOD.replace(", \"w\"]", "]")).expect("valid");
    assert_eq!(two.fencing(), Fencing::None);
    assert_eq!(two.warnings.len(), 1, "{:?}", two.warnings);
}

#[test]
fn stonith_needs_its_command() {
    let text = GOOD.replace("fencing = \"lease\"", "fencing = \"stonith\"");
    let error = parse(&text).expect_err("no command").to_string();
    assert!(
        error.ends_with("fencing = \"stonith\" needs the command in stonith"),
        "{error}"
    );
}

#[test]
fn two_voters_may_have_stonith_and_its_command_a_limit() {
    let two = GOOD.replace(", \"w\"]", "]");
    assert_eq!(parse(&two).expect("valid").stonith_in_force(), None);
    let with = |lines: &str| two.replace("fencing = \"lease\"", lines);
    let stonith = "fencing = \"stonith\"\nstonith = \"off\"\n";
    let config = parse(&with(stonith)).expect("valid");
    assert_eq!(config.fencing_in_force(), "stonith");
    let half_a_minute = Duration::from_secs(30);
    assert_eq!(config.stonith_in_force(), Some(("off", half_a_minute)));
    let config = parse(&with(&format!("{stonith}stonith_limit = \"2s\""))).expect("valid");
    let two_seconds = Duration::from_secs(2);
    assert_eq!(config.stonith_in_force(), Some(("off", two_seconds)));
    for wrong in ["999ms", "601s"] {
        let text = with(&format!("{stonith}stonith_limit = \"{wrong}\""));
        let error = parse(&text).expect_err(wrong).to_string();
        assert!(error.contains("stonith_limit"), "{error}");
    }
}

#[test]
fn the_digest_is_the_same_on_all_nodes_and_ignores_spelling() {
    let digest = good().digest;
    let b = GOOD
        .replacen(
            "name = \"a\"\ninterface = \"eth0\"",
            "name = \"b\"\ninterface = \"ens3\"",
            1,
        )
        .replace("\"700ms\"", "\"700000us\"")
        .replace("ca.pem", "/elsewhere/ca.pem");
    assert_eq!(parse(&b).expect("valid").digest, digest);
    let other = GOOD.replace("\"700ms\"", "\"701ms\"");
    assert_ne!(parse(&other).expect("valid").digest, digest);
}

#[test]
fn an_unreadable_file_is_named() {
    let error = Config::load(Path::new("/nonexistent/godwit.toml")).expect_err("no file");
    assert_eq!(error.to_string(), "/nonexistent/godwit.toml");
}
