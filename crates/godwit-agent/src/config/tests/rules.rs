//! `[[service.rule]]`.

use godwit_bpf::RulePath;
use godwit_wire::node_id;

use super::*;

const RULES: &str = "
[[service.rule]]
host = \"Shop.example\"
prefix = \"/images/\"
to = [\"a\", \"b\"]

[[service.rule]]
suffix = \".png\"
to = [\"b\"]

[[service.rule]]
to = [\"a\"]
";

/// As [`GOOD`], without twins, with `rules` at the end of its service.
fn ruled(rules: &str) -> String {
    GOOD.replace("standby = \"shadow\"", "standby = \"none\"") + rules
}

#[test]
fn rules_name_servers_by_the_numbers_of_their_names() {
    let config = parse(&ruled(RULES)).expect("valid");
    let id = |name| node_id(NodeName::new(name).expect("valid")).get();
    let [images, pictures, all] = config.services[0].rules.as_slice() else {
        panic!("three");
    };
    assert_eq!(images.host.as_deref(), Some("Shop.example"));
    assert_eq!(images.path, RulePath::Prefix("/images/".into()));
    assert_eq!(images.placing().nodes, [id("a"), id("b")]);
    assert_eq!(pictures.path, RulePath::Suffix("png".into()));
    assert_eq!(pictures.placing().nodes, [id("b")]);
    assert_eq!(all.path, RulePath::Prefix(String::new()));
    assert_ne!(config.digest, parse(&ruled("")).expect("valid").digest);
}

#[test]
fn a_rule_that_means_nothing_is_one_sentence() {
    let cases = [
        ("to = []", "to must name a server"),
        ("to = [\"w\"]", "which is neither primary nor backup"),
        (
            "prefix = \"images\"\nto = [\"a\"]",
            "the beginning of a path",
        ),
        ("prefix = \"/a?b\"\nto = [\"a\"]", "the beginning of a path"),
        ("suffix = \"png\"\nto = [\"a\"]", "what a path ends in"),
        ("suffix = \".tar.gz\"\nto = [\"a\"]", "what a path ends in"),
        ("host = \"a:80\"\nto = [\"a\"]", "without a port"),
        ("prefix = \"/a\"\nsuffix = \".b\"\nto = [\"a\"]", "not both"),
        ("prefix = \"/a\"", "`to` is missing"),
        ("prefx = \"/a\"\nto = [\"a\"]", "did you mean `prefix`?"),
    ];
    for (rule, problem) in cases {
        let error = parse(&ruled(&format!("\n[[service.rule]]\n{rule}\n")));
        let error = error.expect_err(rule).to_string();
        assert!(error.contains(problem), "{error}");
        assert!(error.contains("service \"web\": rule"), "{error}");
    }
    let twice = "\n[[service.rule]]\nhost = \"A\"\nto = [\"a\"]\n[[service.rule]]\nhost = \"a\"\nto = [\"b\"]\n";
    let error = parse(&ruled(twice)).expect_err("twice").to_string();
    assert!(
        error.contains("about these requests already at line"),
        "{error}"
    );
    let twins = GOOD.to_owned() + "\n[[service.rule]]\nto = [\"a\"]\n";
    let error = parse(&twins).expect_err("twins").to_string();
    assert!(error.contains("[[service.rule]] needs standby"), "{error}");
}

/// What `godwit check` says of a rule stands in the file: it was once the program's own notation.
#[test]
fn a_rule_is_said_in_the_words_of_the_file() {
    let config = parse(&ruled(RULES)).expect("valid");
    let other = parse(&ruled(&RULES.replace("/images/", "/pictures/"))).expect("valid");
    let rules = config.services[0].rules.iter().map(ToString::to_string);
    assert_eq!(
        rules.collect::<Vec<_>>(),
        [
            "{ host = \"shop.example\", prefix = \"/images/\", to = [\"a\", \"b\"] }",
            "{ suffix = \".png\", to = [\"b\"] }",
            "{ to = [\"a\"] }",
        ]
    );
    let changes = config.changes(&other);
    let change = changes.iter().find(|it| it.section == "service \"web\"");
    let said = change.expect("it changes").sentence();
    let rule = "rule 1 from { host = \"shop.example\", prefix = \"/images/\", to = [\"a\", \"b\"] } to \
                { host = \"shop.example\", prefix = \"/pictures/\", to = [\"a\", \"b\"] }";
    assert!(said.contains(rule), "{said}");
}

/// A standby that the file does not provide for is not missing.
#[test]
fn a_service_without_a_standby_has_none() {
    let has = |text: &str| parse(text).expect("valid").services[0].has_standby();
    assert!(has(GOOD));
    assert!(!has(&ruled("")));
}
