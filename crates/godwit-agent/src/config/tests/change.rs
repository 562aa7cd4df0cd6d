//! What another file would change.

use super::*;

const SECOND: &str = "\n[[service]]\nname = \"ssh\"\naddress = \"10.9.0.101:22\"\n\
                      primary = \"b\"\nbackups = [\"a\"]\n";

fn what(from: &str, to: &str) -> Vec<(String, &'static str)> {
    let (from, to) = (parse(from).expect("valid"), parse(to).expect("valid"));
    let changes = from.changes(&to).into_iter();
    let changes = changes.filter(|change| change.what != "unchanged");
    changes
        .map(|change| (change.section, change.what))
        .collect()
}

#[test]
fn each_kind_of_change_has_its_name() {
    let two = format!("{GOOD}{SECOND}");
    let ssh = |what| vec![("service \"ssh\"".to_owned(), what)];
    assert_eq!(what(&two, &two), []);
    assert_eq!(what(GOOD, &two), ssh("added"));
    assert_eq!(what(&two, GOOD), ssh("removed"));
    let elsewhere = two.replace("10.9.0.101:22", "10.9.0.102:22");
    assert_eq!(what(&two, &elsewhere), ssh("readdressed"));
    let slower = two.replace(
        "backups = [\"a\"]\n",
        "backups = [\"a\"]\nlag_limit = \"1s\"\n",
    );
    assert_eq!(what(&two, &slower), ssh("changed"));
    let renamed = two.replace("\"ssh\"", "\"shell\"");
    let expected = [ssh("renamed"), vec![("service \"shell\"".into(), "added")]].concat();
    assert_eq!(what(&two, &renamed), expected);
}

#[test]
fn a_list_of_revoked_certificates_is_optional_and_a_change() {
    let listed = GOOD.replace("[tls]\n", "[tls]\ncrl = \"crl.pem\"\n");
    let path = |text: &str| parse(text).expect("valid").tls.crl;
    assert_eq!(path(GOOD), None);
    assert_eq!(path(&listed), Some("/etc/godwit/crl.pem".into()));
    assert_eq!(what(GOOD, &listed), [("tls".to_owned(), "changed")]);
}

/// The digest says the same: two files that differ in order only are one.
#[test]
fn order_means_nothing() {
    let two = format!("{GOOD}{SECOND}");
    let start = GOOD.find("[[service]]").expect("it has one");
    let (head, web) = GOOD.split_at(start);
    let swapped = format!("{head}{SECOND}\n{web}");
    assert_eq!(what(&two, &swapped), []);
    let digest = |text: &str| parse(text).expect("valid").digest;
    assert_eq!(digest(&two), digest(&swapped));
    assert_ne!(digest(&two), digest(GOOD));
}

#[test]
fn a_change_is_one_sentence() {
    let from = parse(GOOD).expect("valid");
    let to = parse(&GOOD.replace("10.9.0.100", "10.9.0.99")).expect("valid");
    let changes = from.changes(&to);
    let change = changes.iter().find(|it| it.what == "readdressed");
    let sentence = change.expect("it is elsewhere").sentence();
    assert!(
        sentence.starts_with("service \"web\": readdressed; address from 10.9.0.100"),
        "{sentence}"
    );
}

/// A server's own connections go by its name. Those of a pair can be handed over before.
#[test]
fn another_name_says_what_it_costs() {
    let renamed = |text: &str| {
        let text = text.replace("name = \"b\"\n", "name = \"y\"\n");
        text.replace("\"b\"", "\"y\"")
    };
    for (text, costs) in [
        (GOOD.to_owned(), false),
        (
            GOOD.replace("standby = \"shadow\"", "standby = \"none\""),
            true,
        ),
    ] {
        let text = text.replace("[node]\nname = \"a\"", "[node]\nname = \"b\"");
        let (from, to) = (
            parse(&text).expect("valid"),
            parse(&renamed(&text)).expect("valid"),
        );
        let changes = from.changes(&to);
        let node = changes.iter().find(|it| it.section == "node");
        let means = &node.expect("another name").means;
        assert_eq!(
            means.contains("which ends the connections that node b has of web"),
            costs,
            "{means}"
        );
        let drained = "disturbs no connection once node b owns none of web: hand them over";
        assert_eq!(means.contains(drained), !costs, "{means}");
        assert!(from.restart_cost(&from).contains("disturbs no"));
    }
}
