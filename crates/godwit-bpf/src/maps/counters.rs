//! `gw_counters`: how often each verdict was given. Names come from BTF.

use std::collections::BTreeMap;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Enum;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

/// A named way in which a packet left a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason(u32);

/// Typed access to `gw_counters`.
#[derive(Debug)]
pub struct Counters {
    handle: MapHandle,
    names: BTreeMap<Reason, String>,
}

impl Counters {
    pub(crate) fn new(handle: MapHandle, btf: Option<&Btf<'_>>) -> Self {
        Self {
            handle,
            names: btf.map(reason_names).unwrap_or_default(),
        }
    }

    /// Name and count over all CPUs of every reason, also those at 0.
    pub fn read(&self) -> Vec<(&str, u64)> {
        self.names
            .iter()
            .map(|(reason, name)| (name.as_str(), self.count(*reason)))
            .collect()
    }

    /// Count of one reason by its name; 0 for an unknown one.
    pub fn by_name(&self, name: &str) -> u64 {
        self.names
            .iter()
            .find(|(_, known)| *known == name)
            .map_or(0, |(reason, _)| self.count(*reason))
    }

    fn count(&self, reason: Reason) -> u64 {
        let per_cpu = self
            .handle
            .lookup_percpu(&reason.0.to_ne_bytes(), MapFlags::ANY)
            .ok()
            .flatten();
        per_cpu
            .iter()
            .flatten()
            .filter_map(|bytes| Some(u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?)))
            .sum()
    }
}

fn reason_names(btf: &Btf<'_>) -> BTreeMap<Reason, String> {
    let Some(reasons) = btf.type_by_name::<Enum<'_>>("gw_reason") else {
        return BTreeMap::new();
    };
    reasons
        .iter()
        .filter_map(|member| {
            let name = member.name?.to_str()?.strip_prefix("GW_REASON_")?;
            let number = u32::try_from(member.value).ok()?;
            (!matches!(name, "NONE" | "COUNT")).then(|| (Reason(number), name.to_lowercase()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    /// The reasons of the header, by their numbers, and what it says how many there are.
    fn reasons() -> (BTreeMap<u32, &'static str>, Option<u32>) {
        let header = include_str!("../../bpf/base/gw_reason.h");
        let header = header.split("enum gw_reason {").nth(1).expect("the enum");
        let header = header.split("};").next().expect("its end");
        let (mut names, mut count) = (BTreeMap::new(), None);
        for word in header.split("GW_REASON_").skip(1) {
            let Some((name, number)) = word.split_once('=') else {
                continue;
            };
            let number = number.split([',', '}']).next().expect("a number");
            let number: u32 = number.trim().parse().expect("a decimal");
            if name.trim() == "COUNT" {
                count = Some(number);
                continue;
            }
            let other = names.insert(number, name.trim());
            assert_eq!(other, None, "{number} is {name}, too");
        }
        (names, count)
    }

    /// Two reasons with one number are one counter, and each is shown under the other's
    /// name. Numbers are given by hand, on branches that do not see each other.
    #[test]
    fn each_reason_has_a_number_of_its_own() {
        let (names, count) = reasons();
        let most = names.keys().max().copied();
        assert_eq!(most, count.and_then(|count| count.checked_sub(1)));
        assert!(names.len() > 150, "{} were found", names.len());
    }

    /// What is counted is explained, and what is explained is counted.
    #[test]
    fn each_reason_has_a_row_in_the_documentation() {
        let docs = include_str!("../../../../docs/reasons.md");
        let rows = docs.lines().filter_map(|line| line.strip_prefix("| `"));
        let first = rows.filter_map(|row| row.split(" | ").next());
        let explained: BTreeSet<String> = first
            .flat_map(|names| names.split(", "))
            .map(|name| name.trim_matches('`').to_owned())
            .collect();
        let names = reasons().0.into_values().filter(|name| *name != "NONE");
        let counted: BTreeSet<String> = names.map(str::to_lowercase).collect();
        let missing: Vec<_> = counted.symmetric_difference(&explained).collect();
        assert!(missing.is_empty(), "docs/reasons.md: {missing:?}");
    }
}
