//! What a lab's switch does with packets beside forwarding them, and its hosts with addresses.

use std::thread;

/// Environment variable that says which switch labs have: `plain` or `looks`.
pub const SWITCH_VARIABLE: &str = "GODWIT_SWITCH";

/// How a switch treats the packets in the frames that it forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// It reads Ethernet headers only.
    Plain,
    /// A Linux bridge with its defaults and `bridge-nf-call-iptables=1`, the default of
    /// container hosts: it checks IP packets, and cuts off what stands behind them in a
    /// frame; it snoops IGMP and MLD. Its hosts look for others with their IPv6 addresses
    /// (duplicate address detection), but for those that the lab gives them.
    Looks,
}

impl Switch {
    /// What [`SWITCH_VARIABLE`] says, if it says anything.
    pub fn asked_for() -> Option<Self> {
        match std::env::var(SWITCH_VARIABLE).ok()?.as_str() {
            "looks" => Some(Self::Looks),
            "plain" => Some(Self::Plain),
            _ => None,
        }
    }

    /// What [`SWITCH_VARIABLE`] says; else one that looks into packets in half of all
    /// tests: which half follows from the name of the thread, which is the test's.
    pub fn of_this_test() -> Self {
        Self::asked_for().unwrap_or_else(|| {
            let this = thread::current();
            Self::of_name(this.name().unwrap_or_default())
        })
    }

    /// What [`SWITCH_VARIABLE`] says; else one that looks if `seed` is odd.
    pub(crate) fn of_seed(seed: u64) -> Self {
        let looks = !seed.is_multiple_of(2);
        Self::asked_for().unwrap_or(if looks { Self::Looks } else { Self::Plain })
    }

    fn of_name(name: &str) -> Self {
        let sum = name.bytes().fold(0_u8, u8::wrapping_add);
        if sum.is_multiple_of(2) {
            Self::Looks
        } else {
            Self::Plain
        }
    }

    /// The bridge's `mcast_snooping`.
    pub(super) const fn snoops(self) -> &'static str {
        self.netfilter()
    }

    /// The hosts' `accept_dad`.
    pub(super) const fn dad(self) -> &'static str {
        self.netfilter()
    }

    /// The value of `bridge-nf-call-*`.
    pub(super) const fn netfilter(self) -> &'static str {
        match self {
            Self::Plain => "0",
            Self::Looks => "1",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_has_the_same_switch_each_time() {
        assert_eq!(Switch::of_name("a"), Switch::Plain);
        assert_eq!(Switch::of_name("b"), Switch::Looks);
        assert_eq!(Switch::of_name("ab"), Switch::Plain);
    }
}
