//! What a lab's switch does with packets beside forwarding them.

use std::thread;

/// Environment variable that says which switch labs have: `plain` or `looks`.
pub const SWITCH_VARIABLE: &str = "GODWIT_SWITCH";

/// How a switch treats the packets in the frames that it forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// It reads Ethernet headers only.
    Plain,
    /// A Linux bridge with `bridge-nf-call-iptables=1`, the default of container hosts: it
    /// checks IP packets, and cuts off what stands behind them in a frame.
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

    fn of_name(name: &str) -> Self {
        let sum = name.bytes().fold(0_u8, u8::wrapping_add);
        if sum.is_multiple_of(2) {
            Self::Looks
        } else {
            Self::Plain
        }
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
