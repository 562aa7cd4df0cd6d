//! Who owns what: shares, roles, epochs, generations, and why a flow is alone.

use core::fmt;

use crate::ParseError;

/// A share: the flows of one service whose home is one node.
///
/// Also the index of its entry in the data path's map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ShareId(pub u32);

impl fmt::Display for ShareId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A period in which one node owns a share; a later owner has a greater one.
///
/// The upper half is the incarnation of the claiming agent, the lower half
/// counts claims. Zero means that no owner is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    /// No owner is known.
    pub const NONE: Self = Self(0);

    /// Puts the two halves together.
    pub const fn new(incarnation: u32, counter: u32) -> Self {
        Self((incarnation as u64) << 32 | counter as u64)
    }

    /// The upper half: start of the agent that claimed, in seconds since 1970.
    pub const fn incarnation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The lower half: counts claims, from 1.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half is meant")]
    pub const fn counter(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.incarnation(), self.counter())
    }
}

/// One uninterrupted membership of a standby in the in-sync set of a share.
///
/// A flow is protected only while its generation is that of its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u32);

impl Generation {
    /// No standby.
    pub const NONE: Self = Self(0);

    /// The generation after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Whether there is no standby.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Declares an enum whose numbers are on the wire: explicit, append-only.
macro_rules! wire_enum {
    (
        $(#[$meta:meta])*
        $name:ident, $what:literal {
            $($(#[$doc:meta])* $variant:ident = $number:literal, $text:literal;)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$doc])* $variant = $number,)+
        }

        impl $name {
            /// Every value, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The number on the wire and in the data path's maps.
            pub const fn number(self) -> u8 {
                self as u8
            }

            /// The stable name, as events, counters and the command line show it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            pub(crate) fn parse(
                reader: &mut crate::cursor::Reader<'_>,
            ) -> Result<Self, crate::ParseError> {
                let at = reader.at();
                let number = reader.u8($what)?;
                Self::try_from(number).map_err(|error| crate::ParseError { at, ..error })
            }
        }

        impl TryFrom<u8> for $name {
            type Error = crate::ParseError;

            fn try_from(number: u8) -> Result<Self, crate::ParseError> {
                match number {
                    $($number => Ok(Self::$variant),)+
                    _ => Err(crate::ParseError { what: $what, at: 0, got: u64::from(number) }),
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

pub(crate) use wire_enum;

wire_enum! {
    /// What a node does for a share.
    Role, "role" {
        /// Neither speaks nor listens.
        None = 0, "none";
        /// Speaks to the clients.
        Owner = 1, "owner";
        /// Runs silent twins.
        Shadow = 2, "shadow";
    }
}

wire_enum! {
    /// Why a flow is not protected. Append-only: the data path has the same numbers.
    UnprotectedReason, "unprotected reason" {
        /// The standby left the in-sync set while the flow was running.
        StandbyLost = 1, "standby_lost";
        /// No twin answered for it within 30 ms of its handshake.
        NotConfirmed = 2, "not_confirmed";
        /// What the client was told trailed what the owner has for `lag_limit`.
        Lagging = 3, "lagging";
        /// The twin closed or reset before the flow ended.
        TwinClosed = 4, "twin_closed";
        /// There was no standby when it began.
        NoStandby = 5, "no_standby";
        /// It was taken over, and its old owner is gone.
        AfterTakeover = 6, "after_takeover";
        /// The standby may lack acknowledged bytes of it.
        NotInSync = 7, "not_in_sync";
        /// The service is configured with `gate = "off"`.
        GateOff = 8, "gate_off";
        /// It is older than the standby.
        Predates = 9, "predates";
        /// The twin's application said more or less than the owner's.
        DivergedLength = 10, "diverged_length";
        /// The twin's application said other bytes than the owner's.
        DivergedContent = 11, "diverged_content";
        /// Its server must not go back from where it stands, and the standby is not
        /// known to have come there.
        CommitFailed = 12, "commit_failed";
        /// Its segments are signed (TCP-MD5, TCP-AO): nobody may change them, and a twin
        /// would need the key.
        SignedSegments = 13, "signed_segments";
    }
}

wire_enum! {
    /// Why a standby is no longer in the in-sync set of a share.
    LeaveReason, "leave reason" {
        /// Its heartbeats stopped.
        StandbySilent = 1, "standby_silent";
        /// It did not confirm in time that it gives up a flow.
        DemoteUnconfirmed = 2, "demote_unconfirmed";
        /// More flows need attention than the owner can watch.
        SupervisionOverflow = 3, "supervision_overflow";
        /// It came back without its twins.
        StandbyRestarted = 4, "standby_restarted";
        /// It said goodbye.
        StandbyQuit = 5, "standby_quit";
        /// It asked under another epoch than the owner's.
        WrongEpoch = 6, "wrong_epoch";
        /// The owner says goodbye or has been superseded.
        OwnerLeft = 7, "owner_left";
        /// Its server process has died, nothing listens there, or no server process has
        /// registered there or with the owner, which it needs (eager snapshots).
        ServerLost = 8, "server_lost";
        /// It did not take over when the owner's server had died.
        NotTaken = 9, "not_taken";
        /// Something that it relies on is wrong there: it can have no twins.
        Unfit = 10, "unfit";
        /// Canaries of its owner do not reach it, or their echo does not come back.
        NotHeard = 11, "not_heard";
        /// Canaries reach it, and no twin is born of them.
        NotBorn = 12, "not_born";
    }
}

wire_enum! {
    /// Why a standby does not become the owner when it is asked to.
    MoveRefusal, "move refusal" {
        /// It does not hold the twins of that generation.
        NotInSync = 1, "not_in_sync";
        /// Nothing listens there, or what does is stopped.
        NoServer = 2, "no_server";
        /// Its server process has died within the last second.
        ServerDied = 3, "server_died";
    }
}

wire_enum! {
    /// Why an agent ends.
    GoodbyeReason, "goodbye reason" {
        /// It comes back at once; the data path goes on meanwhile.
        Restart = 1, "restart";
        /// It takes its programs away; connections go on without Godwit.
        Detach = 2, "detach";
        /// The node goes down; its connections need another owner.
        Shutdown = 3, "shutdown";
    }
}

/// What a node says of one share, in heartbeats and in `ShareState`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareClaim {
    /// The share.
    pub share: ShareId,
    /// What the sender does for it.
    pub role: Role,
    /// The sender's own epoch if it is the owner, else the latest it knows of.
    pub epoch: Epoch,
}

impl ShareClaim {
    /// Size on the wire, in bytes.
    pub const LEN: usize = 4 + 1 + 8;

    pub(crate) fn emit(self, out: &mut alloc::vec::Vec<u8>) {
        out.extend_from_slice(&self.share.0.to_be_bytes());
        out.push(self.role.number());
        out.extend_from_slice(&self.epoch.0.to_be_bytes());
    }

    pub(crate) fn parse(reader: &mut crate::cursor::Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            share: reader.share("share claim: share")?,
            role: Role::parse(reader)?,
            epoch: reader.epoch("share claim: epoch")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn an_epoch_is_ordered_by_incarnation_first() {
        let epoch = Epoch::new(7, 3);
        assert_eq!((epoch.incarnation(), epoch.counter()), (7, 3));
        assert!(Epoch::new(7, u32::MAX) < Epoch::new(8, 0));
        assert_eq!(epoch.to_string(), "7.3");
    }

    #[test]
    fn numbers_on_the_wire_never_change() {
        let roles: std::vec::Vec<_> = Role::ALL.iter().map(|role| role.number()).collect();
        assert_eq!(roles, [0, 1, 2]);
        for (index, reason) in UnprotectedReason::ALL.iter().enumerate() {
            assert_eq!(usize::from(reason.number()), index + 1);
            assert_eq!(UnprotectedReason::try_from(reason.number()), Ok(*reason));
        }
        assert!(UnprotectedReason::try_from(0).is_err());
        assert!(UnprotectedReason::try_from(14).is_err());
        assert!(Role::try_from(3).is_err());
    }
}
