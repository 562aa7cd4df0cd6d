//! Loss at the switch, as nftables rules (this kernel has no netem): of a share
//! of the frames at random, of all in one direction of a link, or of all from one
//! machine to another.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::host::{Host, Network};

/// Denominator of [`Loss::per_myriad`].
pub const PER_MYRIAD: u16 = 10_000;

/// Random loss of the frames from one machine's data port to another's MAC.
///
/// From [`Host::A`] to [`Host::B`] these are the mirrored segments: the tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Where the frames come from.
    pub from: Host,
    /// Whose MAC they are sent to.
    pub to: Host,
    /// Frames dropped out of 10 000; more than that means all.
    pub per_myriad: u16,
}

/// One direction of a machine's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// What the machine sends.
    From,
    /// What is sent to the machine.
    To,
}

/// The rules in force at the switch.
#[derive(Debug, Default)]
pub(crate) struct SwitchRules {
    loss: BTreeMap<(Host, Host), u16>,
    cut: BTreeSet<(Network, Host, Host)>,
    closed: BTreeSet<(Host, Network, Way)>,
}

impl SwitchRules {
    pub(crate) fn set(&mut self, loss: Loss) {
        let pair = (loss.from, loss.to);
        match loss.per_myriad {
            0 => self.loss.remove(&pair),
            share => self.loss.insert(pair, share),
        };
    }

    pub(crate) fn set_cut(&mut self, way: (Network, Host, Host), cut: bool) {
        if cut {
            self.cut.insert(way);
        } else {
            self.cut.remove(&way);
        }
    }

    pub(crate) fn set_way(&mut self, way: (Host, Network, Way), open: bool) {
        if open {
            self.closed.remove(&way);
        } else {
            self.closed.insert(way);
        }
    }

    /// The whole rule set, replacing any earlier one in one transaction.
    ///
    /// Without rules there is no table at all: the fast path stays bare.
    pub(crate) fn render(&self) -> String {
        const TABLE: &str = "table bridge godwit_lab";
        // Naming it first makes the removal of an absent table succeed.
        let mut text = format!("{TABLE}\ndelete {TABLE}\n");
        if self.loss.is_empty() && self.cut.is_empty() && self.closed.is_empty() {
            return text;
        }
        let _ = writeln!(text, "{TABLE} {{\nchain close {{");
        let _ = writeln!(
            text,
            "type filter hook postrouting priority 300; policy accept;"
        );
        for (host, network, way) in &self.closed {
            if *way == Way::To {
                let _ = writeln!(text, "oifname \"{}\" counter drop", network.port(*host));
            }
        }
        let _ = writeln!(text, "}}\nchain thin {{");
        let _ = writeln!(
            text,
            "type filter hook prerouting priority -300; policy accept;"
        );
        for (host, network, way) in &self.closed {
            if *way == Way::From {
                let _ = writeln!(text, "iifname \"{}\" counter drop", network.port(*host));
            }
        }
        for (&(from, to), &share) in &self.loss {
            let port = Network::Data.port(from);
            let mac = to.mac(Network::Data);
            // nft refuses a comparison that is always true.
            let chance = if share < PER_MYRIAD {
                format!("numgen random mod {PER_MYRIAD} < {share} ")
            } else {
                String::new()
            };
            let _ = writeln!(
                text,
                "iifname \"{port}\" ether daddr {mac} {chance}counter drop"
            );
        }
        for &(network, from, to) in &self.cut {
            let (port, mac) = (network.port(from), to.mac(network));
            let _ = writeln!(text, "iifname \"{port}\" ether daddr {mac} counter drop");
        }
        text.push_str("}\n}\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_zero_leaves_no_table() {
        let mut rules = SwitchRules::default();
        let loss = Loss {
            from: Host::A,
            to: Host::B,
            per_myriad: 100,
        };
        rules.set(loss);
        let text = rules.render();
        assert!(text.contains("ether daddr 02:00:00:00:00:12 numgen random mod 10000 < 100"));
        assert!(text.contains("iifname \"p-a\""));
        rules.set(Loss {
            per_myriad: PER_MYRIAD,
            ..loss
        });
        assert!(rules.render().contains("00:12 counter drop"));
        rules.set(Loss {
            per_myriad: 0,
            ..loss
        });
        assert!(!rules.render().contains("chain"));
        let way = (Network::Control, Host::A, Host::B);
        rules.set_cut(way, true);
        assert!(
            rules
                .render()
                .contains("\"c-a\" ether daddr 02:00:00:00:01:12 counter drop")
        );
        rules.set_cut(way, false);
        assert!(!rules.render().contains("chain"));
    }

    #[test]
    fn a_link_may_be_closed_one_way() {
        let mut rules = SwitchRules::default();
        rules.set_way((Host::A, Network::Control, Way::From), false);
        rules.set_way((Host::B, Network::Data, Way::To), false);
        let text = rules.render();
        assert!(text.contains("iifname \"c-a\" counter drop"));
        assert!(text.contains("oifname \"p-b\" counter drop"));
        rules.set_way((Host::A, Network::Control, Way::From), true);
        rules.set_way((Host::B, Network::Data, Way::To), true);
        assert!(!rules.render().contains("chain"));
    }
}
