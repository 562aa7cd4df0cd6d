//! How version 0.1 numbered shares: by their places in the file. Its agents say so in
//! messages, and both sides of an upgrade must have the same file.

use godwit_wire::{Message, ShareId};

use super::Config;

/// The places of a file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    shares: Vec<ShareId>,
    /// Under which number nodes speak of a service's connections that move.
    services: Vec<ShareId>,
}

impl Places {
    pub(crate) fn new(config: &Config) -> Self {
        let services = config.services.iter();
        Self {
            shares: config.shares().map(|(share, _)| share).collect(),
            services: services
                .map(|it| ShareId::of_service(it.name.as_str()))
                .collect(),
        }
    }

    /// The share that such a peer means; what has no place is left as it is.
    pub(crate) fn share_at(&self, place: ShareId) -> ShareId {
        at(&self.shares, place)
    }

    /// What such a peer calls a share.
    pub(crate) fn place_of(&self, share: ShareId) -> ShareId {
        place_in(&self.shares, share)
    }

    /// Turns a message of such a peer into one of ours.
    pub(crate) fn understand(&self, message: &mut Message) {
        let places = self.of_message(message);
        if let Some(share) = message.share_mut() {
            *share = at(places, *share);
        }
    }

    /// Turns a message of ours into one for such a peer.
    pub(crate) fn speak(&self, message: &mut Message) {
        let places = self.of_message(message);
        if let Some(share) = message.share_mut() {
            *share = place_in(places, *share);
        }
    }

    fn of_message(&self, message: &Message) -> &[ShareId] {
        if let Message::Handoff(_) = message {
            &self.services
        } else {
            &self.shares
        }
    }
}

fn at(shares: &[ShareId], place: ShareId) -> ShareId {
    let index = usize::try_from(place.0).unwrap_or(usize::MAX);
    shares.get(index).copied().unwrap_or(place)
}

fn place_in(shares: &[ShareId], share: ShareId) -> ShareId {
    let mut places = (0..).map(ShareId).zip(shares);
    let found = places.find_map(|(place, it)| (*it == share).then_some(place));
    found.unwrap_or(share)
}

#[cfg(test)]
mod tests {
    use godwit_wire::{Epoch, Generation, Scope, StandbyMessage};

    use super::*;
    use crate::testing::Pair;

    #[test]
    fn a_share_is_called_by_its_place_and_understood_again() {
        let places = Places::new(&Pair::new().a);
        let (share, stranger) = (ShareId::of_service("web"), ShareId(77));
        assert_eq!(places.place_of(share), ShareId(0));
        assert_eq!(places.share_at(ShareId(0)), share);
        assert_eq!(places.share_at(stranger), stranger);
        let said = |share| {
            Message::Standby(
                Scope {
                    share,
                    epoch: Epoch::new(1, 1),
                    generation: Generation(1),
                },
                StandbyMessage::ServerLost,
            )
        };
        let mut message = said(share);
        places.speak(&mut message);
        assert_eq!(message, said(ShareId(0)));
        places.understand(&mut message);
        assert_eq!(message, said(share));
    }
}
