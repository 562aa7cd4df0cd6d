//! `[service.policy]`.

use std::path::PathBuf;

use super::*;

/// As [`GOOD`], without twins, with this policy at the end of its service.
fn steered(policy: &str) -> String {
    let service = GOOD.replace("standby = \"shadow\"", "standby = \"none\"");
    format!("{service}\n[service.policy]\n{policy}\n")
}

#[test]
fn a_policy_says_where_connections_begin() {
    let config = parse(&steered("")).expect("all of it has defaults");
    let policy = config.services[0].policy.clone().expect("it is there");
    assert_eq!((policy.redirect, policy.margin), (None, 20));
    assert_eq!(policy.pressure, PathBuf::from("/proc/pressure/cpu"));
    assert!(config.programs().is_empty() && config.services[0].is_placed());
    let all = "redirect = 80\nmargin = 10\nconnections = 5000\npressure = \"psi\"\nprogram = \"by_cookie\"";
    let other = parse(&steered(all)).expect("valid");
    let policy = other.services[0].policy.clone().expect("it is there");
    assert_eq!((policy.redirect, policy.margin), (Some(80), 10));
    assert_eq!(policy.connections, Some(5000));
    assert!(policy.pressure.is_absolute() && policy.pressure.ends_with("psi"));
    assert_eq!(
        other.programs(),
        [&ProgramConfig::BuiltIn("by_cookie".into())]
    );
    assert_ne!(config.digest, other.digest);
    let elsewhere = parse(&steered("pressure = \"/sys/x\"")).expect("valid");
    assert_eq!(config.digest, elsewhere.digest, "a machine's own affair");
    let file = parse(&steered("program = \"./mine.bpf.o\"")).expect("valid");
    assert!(matches!(file.programs()[..], [ProgramConfig::File(path)] if path.is_absolute()));
}

#[test]
fn a_policy_that_means_nothing_is_one_sentence() {
    let cases = [
        ("redirect = 0", "redirect"),
        ("redirect = 101", "redirect"),
        ("margin = 0", "margin"),
        ("connections = 0", "connections"),
        (
            "program = \"by_colour\"",
            "\"by_class\", \"by_cookie\", \"least_loaded\"",
        ),
        ("progam = \"by_class\"", "did you mean `program`?"),
    ];
    for (policy, problem) in cases {
        let error = parse(&steered(policy)).expect_err(policy).to_string();
        assert!(error.contains(problem), "{error}");
        assert!(error.contains("service \"web\": policy"), "{error}");
    }
    let twins = GOOD.to_owned() + "\n[service.policy]\n";
    let error = parse(&twins).expect_err("twins").to_string();
    assert!(error.contains("[service.policy] needs standby"), "{error}");
}

/// Routers need no section of their own.
#[test]
fn routers_may_stand_before_the_servers() {
    let routed = steered("").replace("tap = \"mirror\"", "front = \"router\"");
    let config = parse(&routed).expect("valid");
    let service = &config.services[0];
    assert!(service.is_fronted() && !service.is_directed());
    let twins = GOOD.replace("tap = \"mirror\"", "front = \"router\"");
    let error = parse(&twins).expect_err("twins").to_string();
    assert!(
        error.contains("front = \"router\" needs standby"),
        "{error}"
    );
}
