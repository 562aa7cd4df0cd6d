//! One server: the model of its data path, and what its application has read.

use godwit_core::request::Connection;

/// A server, or a share: that of the server with the same number.
pub(super) type Id = usize;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Node {
    pub(super) is_on: bool,
    pub(super) connection: Connection,
    /// The share that its socket belongs to.
    pub(super) share: Id,
    /// The last request that its application has read.
    pub(super) read: u32,
    /// Others hear its heartbeats.
    pub(super) is_heard: bool,
    /// As its owner it knows of a twin of it.
    pub(super) is_protected: bool,
    /// Its question went by its standby.
    pub(super) by_way: bool,
    /// It has a copy of the question that is open.
    pub(super) is_kept: bool,
    /// And has put it again, as its standby was to hear the answer.
    pub(super) is_put_again: bool,
    /// When that was put first, and since when this machine is on.
    pub(super) asked_at: u32,
    pub(super) born_at: u32,
}

/// A share: of one server, and of the next one in the ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    /// Nobody owns it while both are off.
    pub(super) owner: Option<Id>,
    /// The other one stands by, and has the twins.
    pub(super) in_sync: bool,
}
