//! Rules that drop what connection tracking does not understand.
//!
//! A standby's connection tracking sees half of each connection: a twin that
//! starts to speak looks `invalid` to it, and a rule that drops those would
//! cut off every connection at the takeover.

use super::{Check, Host};

const NAME: &str = "conntrack";

const LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";
const LOOSE: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_loose";

pub(super) fn checks(host: &impl Host) -> Vec<Check> {
    vec![conntrack(host)]
}

fn conntrack(host: &impl Host) -> Check {
    let nft = host.run("nft", &["list", "ruleset"]);
    let iptables = ["iptables-save", "ip6tables-save"].map(|program| host.run(program, &[]));
    let seen = nft.is_ok() || iptables.iter().any(Result::is_ok);
    let nft = nft.unwrap_or_default();
    let iptables = iptables.map(Result::unwrap_or_default).concat();
    let rule = nft
        .lines()
        .find(|line| drops_invalid_nft(line))
        .or_else(|| iptables.lines().find(|line| drops_invalid_iptables(line)));
    match rule {
        None if !seen => Check::warn(
            NAME,
            "neither `nft` nor `iptables-save` can show the rules",
            "make sure that no rule drops `ct state invalid`",
        ),
        None => Check::ok(NAME, "no rule drops invalid segments"),
        Some(rule) if is_on(host, LIBERAL) && is_on(host, LOOSE) => {
            Check::ok(NAME, format!("`{}`, but tracking is liberal", rule.trim()))
        }
        Some(rule) => Check::fail(
            NAME,
            format!(
                "`{}` would drop connections that were taken over",
                rule.trim()
            ),
            "sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1 \
             net.netfilter.nf_conntrack_tcp_loose=1, or accept the service's port before that rule",
        ),
    }
}

fn is_on(host: &impl Host, path: &str) -> bool {
    host.number(path) == Some(1)
}

/// `ct state invalid drop`, `ct state { invalid, untracked } counter reject`, and
/// verdict maps `ct state vmap { ..., invalid : drop }`.
fn drops_invalid_nft(line: &str) -> bool {
    let Some((_, rest)) = line.split_once("ct state ") else {
        return false;
    };
    if let Some((_, map)) = rest.split_once("vmap") {
        return map
            .split([',', '{', '}'])
            .filter_map(|entry| entry.split_once(':'))
            .any(|(state, verdict)| state.contains("invalid") && is_refusal(verdict));
    }
    rest.contains("invalid") && !rest.starts_with("!=") && is_refusal(rest)
}

fn is_refusal(words: &str) -> bool {
    words
        .split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| matches!(word, "drop" | "reject"))
}

/// `-A INPUT -m conntrack --ctstate INVALID -j DROP`
fn drops_invalid_iptables(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let states = words.find_map(|word| matches!(word, "--ctstate" | "--state").then_some(()));
    let invalid = states.is_some()
        && words
            .next()
            .is_some_and(|states| states.split(',').any(|state| state == "INVALID"));
    let target = line
        .split_whitespace()
        .skip_while(|word| *word != "-j")
        .nth(1);
    invalid && matches!(target, Some("DROP" | "REJECT"))
}
