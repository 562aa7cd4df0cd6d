//! Connections of one session: they are taken out of their servers' hands together or
//! not at all.

use std::collections::BTreeMap;

use godwit_wire::FlowKey;
use godwit_wire::app::region::SlotState;

use super::message::PatienceOfAll;
use super::region::Patience;
use super::{Apps, Held, Office};
use crate::locks::lock;

/// Which connections somebody wants to take together.
#[derive(Debug, Default)]
pub(super) struct Parties {
    members: BTreeMap<FlowKey, u64>,
    formed: u64,
}

impl Parties {
    /// Whoever is in a party stays in it: then the rest is no party.
    fn form(&mut self, flows: &[FlowKey]) {
        if flows.iter().any(|flow| self.members.contains_key(flow)) {
            return;
        }
        self.formed += 1;
        let members = flows.iter().map(|flow| (*flow, self.formed));
        self.members.extend(members);
    }

    fn leave(&mut self, flow: FlowKey) {
        self.members.remove(&flow);
    }

    /// Whether the two are of one party.
    fn are_together(&self, one: FlowKey, other: FlowKey) -> bool {
        let party = self.members.get(&one);
        party.is_some() && party == self.members.get(&other)
    }
}

impl Apps {
    /// The connections that belong together, in whichever processes of one account they
    /// are, by the name of their session; sessions of one are none.
    pub fn sessions(&self) -> Vec<Vec<FlowKey>> {
        let mut sessions = BTreeMap::<(u32, Vec<u8>), Vec<FlowKey>>::new();
        let mut patience = PatienceOfAll::default();
        for client in self.office.clients() {
            let uid = client.account.uid;
            client.region.each(patience.of(&client), |_, connection| {
                if !connection.session.is_empty() && connection.state == SlotState::Live {
                    let session = sessions.entry((uid, connection.session)).or_default();
                    session.push(connection.key);
                }
            });
        }
        let sessions = sessions.into_values();
        sessions.filter(|session| session.len() > 1).collect()
    }

    /// These are about to be taken, together: they are in nobody's way. One that joins
    /// their session later is.
    pub fn form_party(&self, flows: &[FlowKey]) {
        lock(&self.office.desk).parties.form(flows);
    }

    /// It has gone, or stays.
    pub fn leave_party(&self, flow: FlowKey) {
        lock(&self.office.desk).parties.leave(flow);
    }
}

impl Office {
    /// Whether others belong to the session of a connection that do not go with it.
    pub(super) fn has_company(&self, session: &[u8], flow: FlowKey, own: Held) -> bool {
        if session.is_empty() {
            return false;
        }
        let Some(account) = self.client(own).map(|client| client.account.uid) else {
            return false;
        };
        let mut others = Vec::new();
        let mut patience = Patience::default();
        let mut clients = self.clients();
        // Others may use any name.
        clients.retain(|client| client.account.uid == account);
        for client in clients {
            client.region.each(&mut patience, |slot, other| {
                let same = (client.id, slot) == (own.client, own.slot);
                if !same && other.session == session {
                    others.push(other.key);
                }
            });
        }
        let desk = lock(&self.desk);
        let stays = |other: &FlowKey| !desk.parties.are_together(flow, *other);
        others.iter().any(stays)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(port: u16) -> FlowKey {
        FlowKey {
            client: format!("10.9.0.10:{port}").parse().expect("an address"),
            service: "10.9.0.100:80".parse().expect("an address"),
        }
    }

    #[test]
    fn a_party_is_formed_once_and_left_one_by_one() {
        let mut parties = Parties::default();
        assert!(!parties.are_together(flow(1), flow(2)));
        parties.form(&[flow(1), flow(2)]);
        assert!(parties.are_together(flow(1), flow(2)));
        // Somebody has joined the session since, and wants to go, too.
        parties.form(&[flow(1), flow(2), flow(3)]);
        assert!(!parties.are_together(flow(1), flow(3)));
        assert!(parties.are_together(flow(1), flow(2)));
        parties.leave(flow(1));
        assert!(!parties.are_together(flow(1), flow(2)));
        parties.leave(flow(2));
        parties.form(&[flow(1), flow(2), flow(3)]);
        assert!(parties.are_together(flow(1), flow(3)));
    }
}
