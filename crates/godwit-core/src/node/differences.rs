//! What differs between the files of two nodes, line by line.

use std::collections::BTreeMap;

use godwit_wire::ConfigLine;

/// How one line differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Both files have it, with different values.
    Both,
    /// Only the file of this node has it.
    Here,
    /// Only the peer's has it.
    There,
}

/// A line that differs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// As `service "web"`.
    pub section: String,
    /// As `address`; empty: the section as a whole is in one file only.
    pub key: String,
    /// Where it is.
    pub side: Side,
}

/// What differs, in the order of sections and keys. A section that only one file has is
/// one difference.
pub(super) fn compare(here: &[ConfigLine], there: &[ConfigLine]) -> Vec<Difference> {
    let (ours, theirs) = (by_section(here), by_section(there));
    let mut found = Vec::new();
    for (section, keys) in &ours {
        let Some(others) = theirs.get(section) else {
            found.push(whole(section, Side::Here));
            continue;
        };
        for (key, value) in keys {
            let side = match others.get(key) {
                Some(other) if other == value => continue,
                Some(_) => Side::Both,
                None => Side::Here,
            };
            found.push(one(section, key, side));
        }
        let only_there = others.keys().filter(|key| !keys.contains_key(*key));
        found.extend(only_there.map(|key| one(section, key, Side::There)));
    }
    let strange = theirs.keys().filter(|section| !ours.contains_key(*section));
    found.extend(strange.map(|section| whole(section, Side::There)));
    found.sort();
    found
}

type Sections<'a> = BTreeMap<&'a str, BTreeMap<&'a str, u64>>;

fn by_section(lines: &[ConfigLine]) -> Sections<'_> {
    let mut sections = Sections::new();
    for line in lines {
        let keys = sections.entry(&line.section).or_default();
        keys.insert(&line.key, line.value);
    }
    sections
}

fn whole(section: &str, side: Side) -> Difference {
    one(section, "", side)
}

fn one(section: &str, key: &str, side: Side) -> Difference {
    Difference {
        section: section.to_owned(),
        key: key.to_owned(),
        side,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_that_differs_is_named_once() {
        let line = ConfigLine::new;
        let here = [
            line("detect", "lease", "3s"),
            line("service \"web\"", "tap", "mirror"),
            line("service \"web\"", "unread", "stay"),
            line("service \"new\"", "tap", "mirror"),
            line("service \"new\"", "gate", "ack"),
        ];
        let there = [
            line("service \"old\"", "tap", "mirror"),
            line("service \"web\"", "tap", "multicast"),
            line("service \"web\"", "front", "none"),
            line("detect", "lease", "3s"),
        ];
        let found = compare(&here, &there);
        let expected = [
            one("service \"new\"", "", Side::Here),
            one("service \"old\"", "", Side::There),
            one("service \"web\"", "front", Side::There),
            one("service \"web\"", "tap", Side::Both),
            one("service \"web\"", "unread", Side::Here),
        ];
        assert_eq!(found, expected);
        assert_eq!(compare(&here, &here), []);
    }
}
