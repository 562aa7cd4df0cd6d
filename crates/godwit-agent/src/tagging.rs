//! Keys by which frames on the data network are proved to be another server's or a director's
//! ([`godwit_core::tags`], `gw_key.h`).
//!
//! What the data path goes by is written before a peer hears of it, so that nothing is refused
//! that it has sent in good faith. That its key is used a peer hears once it is found on the
//! link: before, nothing that it is sent can have tags.

use std::collections::BTreeMap;

use godwit_bpf::{MapError, TagKey, Trust, TrustTable};
use godwit_core::PeerId;
use godwit_core::tags::{Tags, With};
use godwit_wire::{MacAddr, TagDemand, TagWord, node_id};
use ring::rand::{SecureRandom as _, SystemRandom};
use zeroize::Zeroize as _;

use crate::config::{Config, PeerConfig, PeerRole, Reach};

/// Those with whom keys are agreed on: servers that share a service with this node; of a server
/// the directors, and of a director the back-ends on its link.
#[derive(Debug, Default)]
pub(crate) struct Tagging {
    sides: BTreeMap<PeerId, Side>,
}

/// One of them.
#[derive(Debug)]
struct Side {
    /// The number of its name.
    node: u32,
    with: With,
    tags: Tags,
    mac: Option<MacAddr>,
    /// It has yet to hear that its key is used.
    owed: bool,
}

/// Nobody agrees on these any more. Those before them were overwritten.
impl Drop for Side {
    fn drop(&mut self) {
        self.tags.out.zeroize();
        self.tags.believed.zeroize();
        self.tags.before.zeroize();
    }
}

/// Of whom tags are wanted, and who they are.
fn with(config: &Config, peer: &PeerConfig) -> Option<With> {
    let own = config.own_peer();
    let is_far = [own, peer].iter().any(|it| it.reach == Reach::Vxlan);
    if config.own_peer().role == PeerRole::Director {
        let mut directed = config.directed();
        let serves = directed.any(|service| service.has_member(peer.name));
        return (serves && !is_far).then_some(With::Director);
    }
    let mut own = config.own_shares();
    if peer.role == PeerRole::Director {
        let is_directed = own.any(|(_, service)| service.is_directed());
        return (is_directed && !is_far).then_some(With::Director);
    }
    own.any(|(_, service)| service.has_member(peer.name))
        .then_some(With::Server)
}

impl Tagging {
    /// Takes up what an earlier agent has agreed on. What it has left of others goes.
    pub(crate) fn take_up(config: &Config, table: &TrustTable) -> Self {
        let mut tagging = Self::new(config);
        let left = table.all().unwrap_or_else(|error| {
            tracing::error!(%error, "keys of an earlier agent can't be read");
            Vec::new()
        });
        for (mac, trust) in left {
            if !tagging.resume(mac, &trust)
                && let Err(error) = table.forget(mac)
            {
                tracing::warn!(%error, %mac, "a key of an earlier agent can't be removed");
            }
        }
        tagging
    }

    fn new(config: &Config) -> Self {
        let peers = (0..).map(PeerId).zip(config.others());
        let sides = peers.filter_map(|(id, peer)| {
            let side = Side {
                node: node_id(peer.name).get(),
                with: with(config, peer)?,
                tags: Tags::default(),
                mac: None,
                owed: false,
            };
            Some((id, side))
        });
        Self {
            sides: sides.collect(),
        }
    }

    /// Whether somebody goes on with it.
    fn resume(&mut self, mac: MacAddr, trust: &Trust) -> bool {
        let mut sides = self.sides.values_mut();
        let side = sides.find(|side| side.node == trust.node && side.mac.is_none());
        let Some(side) = side else {
            return false;
        };
        side.mac = Some(mac);
        let keys = (trust.believed, trust.before);
        let said = (trust.all, trust.demanded, trust.pending);
        side.tags = Tags::resume(trust.out, keys, said);
        true
    }

    /// For people; `None`: no keys are agreed on with it.
    pub(crate) fn of(&self, peer: PeerId) -> Option<&'static str> {
        self.sides.get(&peer).map(|side| side.tags.as_str())
    }

    /// With what notes and probes for that address are tagged, if they are.
    pub(crate) fn key_for(&self, mac: MacAddr) -> Option<TagKey> {
        let mut sides = self.sides.values();
        let side = sides.find(|side| side.mac == Some(mac))?;
        side.tags.out.filter(|_| side.tags.all)
    }

    /// Whether what it says is proved by now, and what it is sent; `None`: its version proves less
    /// than notes, or no keys are agreed on with it.
    pub(crate) fn proves_notes(&self, peer: PeerId) -> Option<bool> {
        let side = self.sides.get(&peer).filter(|side| side.tags.all)?;
        let tags = &side.tags;
        let is_settled = tags.demanded == TagDemand::All && !tags.pending;
        Some(is_settled && tags.out.is_some() && side.mac.is_some())
    }

    /// It is there on the link. Says what it is to hear.
    pub(crate) fn find(
        &mut self,
        peer: PeerId,
        mac: MacAddr,
        table: &TrustTable,
    ) -> Option<TagWord> {
        let side = self.sides.get_mut(&peer)?;
        if let Err(error) = side.find(mac, table) {
            tracing::error!(%error, %mac, "a key of a peer can't be written");
            return None;
        }
        std::mem::take(&mut side.owed).then_some(TagWord::Used)
    }

    /// This node is elsewhere on the link, and its peers have keys for where it was: nothing is
    /// demanded of them until they have a new link.
    pub(crate) fn lift(&mut self, table: &TrustTable) {
        for side in self.sides.values_mut() {
            side.tags.demanded = TagDemand::Nothing;
            if let Err(error) = side.write(table) {
                tracing::error!(%error, "that no tags are demanded can't be written");
            }
        }
    }

    /// It has introduced itself over a new link, with its latest version. Says what key it is to
    /// hear.
    pub(crate) fn greet(
        &mut self,
        peer: PeerId,
        version: u8,
        table: &TrustTable,
    ) -> Option<TagWord> {
        let mut fresh: TagKey = [0; 16];
        if SystemRandom::new().fill(&mut fresh).is_err() {
            tracing::error!("the kernel gives no random numbers: a peer is told no key");
            return None;
        }
        let side = self.sides.get_mut(&peer)?;
        side.owed = false;
        let with = side.with;
        side.agree(|tags| tags.greet(with, version, fresh), table)
    }

    /// It tells a key, or uses ours. Says what it is to hear.
    pub(crate) fn hear(
        &mut self,
        peer: PeerId,
        word: TagWord,
        table: &TrustTable,
    ) -> Option<TagWord> {
        let side = self.sides.get_mut(&peer)?;
        let answer = side.agree(|tags| tags.hear(word), table)?;
        side.owed = side.mac.is_none();
        (!side.owed).then_some(answer)
    }
}

impl Side {
    /// It is elsewhere on the link, as far as that is new.
    fn find(&mut self, mac: MacAddr, table: &TrustTable) -> Result<(), MapError> {
        let old = self.mac.replace(mac);
        if old == Some(mac) {
            return Ok(());
        }
        if let Some(old) = old {
            table.forget(old)?;
        }
        self.write(table)
    }

    fn agree(
        &mut self,
        step: impl FnOnce(&mut Tags) -> Option<TagWord>,
        table: &TrustTable,
    ) -> Option<TagWord> {
        let before = self.tags;
        let word = step(&mut self.tags);
        if let Err(error) = self.write(table) {
            // It goes on as it was, and the next link is another try.
            self.tags = before;
            tracing::error!(%error, "a key of a peer can't be written");
            return None;
        }
        word
    }

    fn write(&self, table: &TrustTable) -> Result<(), MapError> {
        let Some(mac) = self.mac else {
            return Ok(());
        };
        if self.tags == Tags::default() {
            return table.forget(mac);
        }
        let trust = Trust {
            node: self.node,
            out: self.tags.out,
            believed: self.tags.believed,
            before: self.tags.before,
            all: self.tags.all,
            demanded: self.tags.demanded,
            pending: self.tags.pending,
        };
        table.set(mac, &trust)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pair;

    /// Servers a and b, a far one c, a server of something else e, a director d, a witness w;
    /// as the file of `node`.
    fn config(node: &str) -> Config {
        let peer = |name: &str, role: &str, last: u8, more: &str| {
            format!(
                "[[peer]]\nname = \"{name}\"\nrole = \"{role}\"\ncontrol = \"10.9.0.{last}:7\"\n{more}"
            )
        };
        let service = |name: &str, port: u16, more: &str| {
            format!(
                "[[service]]\nname = \"{name}\"\naddress = \"10.9.0.{port}:{port}\"\n\
                 standby = \"none\"\n{more}"
            )
        };
        let text = [
            format!("[node]\nname = \"{node}\"\ninterface = \"eth0\"\n"),
            "[tls]\nca = \"a\"\ncert = \"b\"\nkey = \"c\"\n".to_owned(),
            "[detect]\nfencing = \"none\"\n".to_owned(),
            "[director]\nseed = \"0000000000000001\"\ntable_size = 251\n".to_owned(),
            peer("a", "server", 1, ""),
            peer("b", "server", 2, ""),
            peer("c", "server", 3, "data = \"10.8.0.3\"\nreach = \"vxlan\"\n"),
            peer("d", "director", 4, ""),
            peer("e", "server", 5, ""),
            peer("w", "witness", 6, ""),
            service(
                "web",
                80,
                "front = \"director\"\nprimary = \"b\"\nbackups = [\"a\", \"c\"]\n",
            ),
            service("ssh", 22, "primary = \"e\"\nbackups = [\"a\"]\n"),
        ];
        Config::parse("godwit.toml".as_ref(), &text.concat()).expect("valid")
    }

    /// With whom, and as whom, a node agrees on keys.
    fn sides(node: &str) -> String {
        let config = config(node);
        let tagging = Tagging::new(&config);
        let name = |id: &PeerId| config.others().nth(usize::from(id.0)).map(|it| it.name);
        let sides = tagging.sides.iter().map(|(id, side)| {
            let name = name(id).expect("it is a peer");
            format!("{name} {:?}", side.with)
        });
        sides.collect::<Vec<_>>().join(", ")
    }

    /// Both of two agree on with whom, or one would wait for keys that are never told.
    #[test]
    fn servers_agree_with_their_mates_and_directors_and_directors_with_back_ends() {
        assert_eq!(sides("a"), "b Server, c Server, d Director, e Server");
        assert_eq!(sides("b"), "a Server, c Server, d Director");
        assert_eq!(sides("c"), "a Server, b Server", "it is not on the link");
        assert_eq!(sides("d"), "a Director, b Director");
        assert_eq!(
            sides("e"),
            "a Server",
            "nobody stands before what it serves"
        );
    }

    /// Only of peers that there are, by the numbers of their names.
    #[test]
    fn an_earlier_agent_s_keys_are_taken_up() {
        let config = Pair::new().a;
        let mut tagging = Tagging::new(&config);
        let mut peers = config.others();
        let b = peers.next().expect("it has a peer").name;
        let mut left = Trust {
            node: node_id(b).get(),
            out: Some([2; 16]),
            believed: Some([1; 16]),
            demanded: TagDemand::Segments,
            ..Trust::default()
        };
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        assert!(tagging.resume(mac, &left));
        assert_eq!(tagging.of(PeerId(0)), Some("partly"));
        assert_eq!(tagging.key_for(mac), None, "its version would not know it");
        assert!(!tagging.resume(mac, &left), "twice");
        left.node += 1;
        assert!(!tagging.resume(mac, &left), "of a stranger");
        assert_eq!(tagging.proves_notes(PeerId(0)), None, "nor prove any");
        (left.node, left.all, left.demanded) = (node_id(b).get(), true, TagDemand::All);
        let mut tagging = Tagging::new(&config);
        assert!(tagging.resume(mac, &left));
        assert_eq!(tagging.proves_notes(PeerId(0)), Some(true));
        assert_eq!(tagging.of(PeerId(0)), Some("demanded"));
        assert_eq!(tagging.key_for(mac), left.out);
    }
}
