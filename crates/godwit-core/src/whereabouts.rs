//! Where a peer is on the data network.
//!
//! ARP and neighbour discovery say so, and anybody on the link can say anything by them. A peer
//! says where it is over its authenticated link, too ([`godwit_wire::NetworkMessage::Place`]),
//! anew when that changes. What it has said holds until it says otherwise, also while it has no
//! link: who can end a link must not gain by that. Whether it is on this link at all is found
//! by asking.

use godwit_wire::{Hello, MacAddr, PLACE_VERSION};

/// What is known of one peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Whereabouts {
    said: Option<MacAddr>,
    /// It takes such words itself.
    listens: bool,
}

impl Whereabouts {
    /// It has introduced itself over a new link. Says whether it is to hear where we are.
    pub const fn greet(&mut self, hello: &Hello) -> bool {
        self.listens = hello.max_version >= PLACE_VERSION;
        if !self.listens {
            // Its node went back to an earlier version, which says nothing.
            self.said = None;
        }
        self.listens
    }

    /// It says that it is there.
    pub const fn hear(&mut self, mac: MacAddr) {
        self.said = Some(mac);
    }

    /// Whether it is to hear when we are elsewhere.
    pub const fn listens(&self) -> bool {
        self.listens
    }

    /// Where it has said that it is.
    pub const fn said(&self) -> Option<MacAddr> {
        self.said
    }

    /// Where it is, if this was found on the link.
    pub fn place(&self, found: Option<MacAddr>) -> Option<MacAddr> {
        found.map(|found| self.said.unwrap_or(found))
    }
}

#[cfg(test)]
mod tests {
    use godwit_wire::NodeName;

    use super::*;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const FORGER: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xee]);

    fn hello(max_version: u8) -> Hello {
        Hello {
            name: NodeName::new("b").expect("a name"),
            incarnation: 1,
            min_version: 1,
            max_version,
            heartbeat_key: [0; 32],
            config_digest: [0; 32],
        }
    }

    #[test]
    fn what_a_peer_has_said_holds_until_it_says_otherwise() {
        let mut it = Whereabouts::default();
        assert!(it.greet(&hello(PLACE_VERSION)) && it.listens());
        assert_eq!(it.place(Some(FORGER)), Some(FORGER), "it has said nothing");
        it.hear(A);
        assert_eq!(it.place(Some(FORGER)), Some(A));
        assert_eq!(it.place(None), None, "it is not on this link");
        it.hear(B);
        // A new link of the same peer, before it has said anything.
        assert!(it.greet(&hello(PLACE_VERSION)));
        assert_eq!((it.place(Some(FORGER)), it.said()), (Some(B), Some(B)));
    }

    #[test]
    fn one_of_an_earlier_version_is_where_it_is_found() {
        let mut it = Whereabouts::default();
        it.greet(&hello(PLACE_VERSION));
        it.hear(A);
        assert!(!it.greet(&hello(PLACE_VERSION - 1)) && !it.listens());
        assert_eq!((it.place(Some(B)), it.said()), (Some(B), None));
    }
}
