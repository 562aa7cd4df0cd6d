//! Why sockets end.

/// Why sockets of this node are to end, silently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The connection is over at its owner.
    EndedAtOwner,
    /// The twins are of a generation in the in-sync set that is over.
    NotInSync,
    /// Another node owns the share.
    Superseded,
    /// Nobody owns the share any more: whoever does next begins it anew, unless somebody
    /// else has twins.
    NobodyOwns,
    /// The owner's connections go on without Godwit.
    OwnerDetached,
    /// This agent ends.
    Quit,
}

impl EndReason {
    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EndedAtOwner => "ended_at_owner",
            Self::NotInSync => "not_in_sync",
            Self::Superseded => "superseded",
            Self::NobodyOwns => "nobody_owns",
            Self::OwnerDetached => "owner_detached",
            Self::Quit => "quit",
        }
    }
}
