//! `[director]`, and services before which one stands.

use super::*;

/// As [`GOOD`], with a director in front.
pub(super) fn directed() -> String {
    let text = GOOD
        .replace(
            "standby = \"shadow\"",
            "standby = \"none\"\nfront = \"director\"",
        )
        .replace("data = \"10.9.0.12\"", "data = \"10.9.0.12\"\nweight = 3");
    format!(
        "{text}
[[peer]]
name = \"d\"
role = \"director\"
control = \"10.9.0.16:7400\"

[director]
seed = \"0123456789abcdef\"
table_size = 251
max_entries = 2048
hook = \"tcx\"
grace = \"2s\"
"
    )
}

/// Nodes that wait for different times disagree; a version that does not know of it waits
/// for no time, and differs in nothing else.
#[test]
fn a_director_stands_before_servers_that_share_a_service() {
    let config = parse(&directed()).expect("valid");
    let director = config.director.as_ref().expect("it is there");
    assert_eq!(director.seed, Seed(0x0123_4567_89ab_cdef));
    assert_eq!(
        (
            director.table_size.get(),
            director.max_entries,
            director.hook
        ),
        (251, 2048, Hook::Tcx)
    );
    assert_eq!(director.grace, Duration::from_secs(2));
    let weights: Vec<_> = config.peers.iter().map(|peer| peer.weight).collect();
    assert_eq!(weights, [1, 3, 1]);
    assert_eq!(config.directed().count(), 1);
    assert!(
        !format!("{config:?}").contains("81985529216486895"),
        "the seed is no one's business"
    );

    let plain = directed()
        .replace("table_size = 251\n", "")
        .replace("max_entries = 2048\n", "")
        .replace("hook = \"tcx\"\n", "")
        .replace("grace = \"2s\"\n", "");
    let plain = parse(&plain).expect("valid").director.expect("it is there");
    assert_eq!(plain.table_size, TableSize::DEFAULT);
    assert_eq!((plain.max_entries, plain.hook), (1 << 20, Hook::Xdp));
    assert_eq!(plain.grace, Duration::from_secs(1));
}

/// One sentence each.
#[test]
fn what_is_wrong_about_a_director_is_said() {
    let cases = [
        (
            "\"none\"\nfront = \"director\"",
            "\"shadow\"\nfront = \"router\"",
            "front = \"router\" needs standby = \"none\"",
        ),
        (
            "role = \"director\"",
            "role = \"witness\"",
            "needs a section [director] and a [[peer]]",
        ),
        (
            "seed = \"0123456789abcdef\"\n",
            "",
            "[director]: `seed` is missing",
        ),
        (
            "0123456789abcdef",
            "0123",
            "seed must be 16 hexadecimal digits",
        ),
        (
            "table_size = 251",
            "table_size = 252",
            "table_size must be a prime from 251 to",
        ),
        (
            "max_entries = 2048",
            "max_entries = 20",
            "max_entries (20) must be 1024 to",
        ),
        ("\"tcx\"", "\"tc\"", "hook must be one of \"xdp\", \"tcx\""),
        (
            "grace = \"2s\"",
            "grace = \"2h\"",
            "grace (2h) must be 0ns to",
        ),
        (
            "weight = 3",
            "weight = 2000",
            "weight (2000) must be 0 to 1000",
        ),
    ];
    for (from, to, wanted) in cases {
        let text = directed();
        assert!(text.contains(from), "{from}");
        let error = parse(&text.replace(from, to))
            .expect_err(wanted)
            .to_string();
        assert!(error.contains(wanted), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
    // Who stands where matters to all, what one machine has room for does not.
    let digest = |text: &str| parse(text).expect("valid").digest;
    let own = digest(&directed());
    for (from, to, same) in [
        ("0123456789abcdef", "0123456789abcdee", false),
        ("251", "257", false),
        ("weight = 3", "weight = 4", false),
        ("max_entries = 2048", "max_entries = 4096", true),
        ("\"tcx\"", "\"xdp\"", true),
    ] {
        assert_eq!(digest(&directed().replace(from, to)) == own, same, "{from}");
    }
}

/// A tunnel's frames may be bound to who sends them on the back-end's own link. What others have
/// there matters to nobody else.
#[test]
fn a_tunnel_s_routers_are_stations() {
    let far = "weight = 3\nreach = \"vxlan\"";
    let with = |more: &str| directed().replace("weight = 3", &format!("{far}\n{more}"));
    let config = parse(&with(
        "routers = [\"02:00:00:00:00:07\", \"0a:00:00:00:00:08\"]",
    ));
    let config = config.expect("valid");
    let b = config.peers.iter().find(|peer| peer.name.as_str() == "b");
    let macs = [[2, 0, 0, 0, 0, 7], [10, 0, 0, 0, 0, 8]].map(MacAddr);
    assert_eq!(b.expect("it is there").routers, macs);
    let one = parse(&with("routers = \"02:00:00:00:00:07\"")).expect("valid");
    let none = parse(&with("")).expect("valid");
    assert_eq!((one.digest, config.digest), (none.digest, none.digest));
    let many = [r#""02:00:00:00:00:07""#; 17].join(", ");
    let cases = [
        (
            with("routers = [\"01:00:5e:00:00:07\"]"),
            "the MAC address of a station",
        ),
        (
            with("routers = [\"10.9.0.1\"]"),
            "the MAC address of a station",
        ),
        (
            with("routers = [\"00:00:00:00:00:00\"]"),
            "the MAC address of a station",
        ),
        (
            with(&format!("routers = [{many}]")),
            "routers must name 16 stations at most, not 17",
        ),
        (
            directed().replace("weight = 3", "routers = [\"02:00:00:00:00:07\"]"),
            "routers goes with reach = \"vxlan\" alone",
        ),
    ];
    for (text, sentence) in cases {
        let error = parse(&text).expect_err(sentence).to_string();
        assert!(error.contains(sentence), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}

/// Each server has a share, which the next one takes over.
#[test]
fn servers_behind_a_director_stand_by_for_each_other() {
    let text = directed().replace("\"none\"\nfront", "\"shadow\"\nfront");
    let third = "\n[[peer]]\nname = \"c\"\nrole = \"server\"\ncontrol = \"10.9.0.13:7400\"\n";
    let text = text.replace("backups = [\"b\"]", "backups = [\"b\", \"c\"]") + third;
    let config = parse(&text).expect("valid");
    let web = &config.services[0];
    assert!(web.is_ring() && !web.moves());
    assert_eq!(web.gate_in_force(), Gate::Ack);
    let name = |name| NodeName::new(name).expect("valid");
    for (home, standby) in [("a", "b"), ("b", "c"), ("c", "a")] {
        assert_eq!(web.standbys_of(name(home)), [name(standby)]);
    }
    let own: Vec<_> = config.own_shares().map(|(id, _)| id).collect();
    let share = |home| ShareId::of_home("web", name(home));
    assert_eq!(own, [share("a"), share("c")], "its own, and c's");
    let called = |id| config.share_name(id, web);
    assert_eq!(
        (called(own[0]), called(own[1])),
        ("web".into(), "web@c".into())
    );
    assert!(!config.is_ward(own[0]) && config.is_ward(own[1]));
    let cases = [
        (
            "tap = \"mirror\"",
            "tap = \"multicast\"",
            "tap = \"multicast\" does not go with front = \"director\"",
        ),
        (
            "weight = 3",
            "weight = 3\nreach = \"vxlan\"",
            "needs all its servers on the link, and \"b\" is reached by a tunnel",
        ),
        (
            "backups = [\"b\", \"c\"]",
            "backups = []",
            "list one, not 0",
        ),
    ];
    for (from, to, sentence) in cases {
        let changed = text.replace(from, to);
        assert_ne!(changed, text, "{from}");
        let error = parse(&changed).expect_err(to).to_string();
        assert!(error.contains(sentence), "{error}");
    }
}
