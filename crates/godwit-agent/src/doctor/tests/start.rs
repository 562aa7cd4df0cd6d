//! What an agent needs for itself.

use super::*;

/// The levels of a check's name, if it was made.
fn level(host: &PaperHost, start: Start, name: &str) -> Option<Level> {
    let scope = Scope { start, ..scope() };
    let report = examine(host, &scope);
    let mut checks = report.checks.iter();
    let found = checks.find(|check| check.name == name)?;
    assert_eq!(
        found.advice.is_some(),
        found.level != Level::Ok,
        "{found:?}"
    );
    Some(found.level)
}

#[test]
fn an_agent_that_would_not_start_is_a_failure() {
    let host = PaperHost::good();
    let metrics = |address: &str| Start {
        metrics: address.parse().ok(),
        ..Start::default()
    };
    let here = level(&host, metrics("127.0.0.1"), "metrics");
    assert_eq!(here, Some(Level::Ok));
    let elsewhere = level(&host, metrics("192.0.2.7"), "metrics");
    assert_eq!(elsewhere, Some(Level::Fail));
    let group = |name: &str| Start {
        app_group: Some(name.into()),
        ..Start::default()
    };
    assert_eq!(level(&host, group("web"), "app_group"), Some(Level::Ok));
    assert_eq!(level(&host, group("wbe"), "app_group"), Some(Level::Fail));
    for name in ["metrics", "app_group", "run_dir"] {
        assert_eq!(level(&host, Start::default(), name), None);
    }
}

/// The agent says it as a fact.
#[test]
fn who_votes_keeps_what_it_has_voted_for_in_memory() {
    let mut host = PaperHost::good();
    let mut with = |found: RunDir, votes| {
        host.run_dir = Some(found);
        let start = Start {
            run_dir: Some("/var/lib/godwit".into()),
            votes,
            ..Start::default()
        };
        level(&host, start, "run_dir")
    };
    assert_eq!(with(RunDir::InMemory, true), Some(Level::Ok));
    assert_eq!(with(RunDir::OnDisk, false), Some(Level::Ok));
    assert_eq!(with(RunDir::OnDisk, true), Some(Level::Warn));
    let unfit = RunDir::Unfit("it is a file".into());
    assert_eq!(with(unfit, false), Some(Level::Fail));
}
