//! Values that are one word out of a few.

use super::spelling::closest;
use super::value::{FromValue, Unfit, Value};

/// Declares an enum with its words in the file.
macro_rules! keyword {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The word in the file.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromValue for $name {
            fn from_value(value: &Value<'_>) -> Result<Self, Unfit> {
                const WORDS: &[&str] = &[$($word,)+];
                let word = value.as_str();
                $(if word == Some($word) {
                    return Ok(Self::$variant);
                })+
                Err(one_of(WORDS, word).into())
            }
        }
    };
}

keyword! {
    /// What a node is in the cluster.
    PeerRole {
        /// Runs the service and can own it.
        Server = "server",
        /// Only votes.
        Witness = "witness",
        /// Stands in front of many back-ends.
        Director = "director",
    }
}

keyword! {
    /// How a failed owner is kept from speaking.
    Fencing {
        /// By the end of its lease.
        Lease = "lease",
        /// By its power switch.
        Stonith = "stonith",
        /// Not at all.
        None = "none",
    }
}

keyword! {
    /// How the standby keeps up with a service's connections.
    Standby {
        /// A silent twin socket runs the same application on the same bytes.
        Shadow = "shadow",
        /// The logged request is replayed at takeover.
        Replay = "replay",
        /// By its application's last snapshot, of which [`Snapshots`] says when the
        /// standby gets it.
        Snapshot = "snapshot",
        /// Not at all; connections move one by one.
        None = "none",
    }
}

keyword! {
    /// When another server gets the snapshots of a connection.
    Snapshots {
        /// When the connection moves there.
        Lazy = "lazy",
        /// As soon as they are made, with all that the client says.
        Eager = "eager",
    }
}

keyword! {
    /// What becomes of connections that a server which knows nothing of Godwit has not
    /// read a byte of.
    Unread {
        /// They stay where they are.
        Stay = "stay",
        /// They can go to other servers: the agent may look into processes for them.
        Move = "move",
    }
}

keyword! {
    /// How the standby sees the client's segments.
    Tap {
        /// The owner clones them to the standby's MAC.
        Mirror = "mirror",
        /// The service address is on a multicast MAC.
        Multicast = "multicast",
        /// A director sends them to both.
        Director = "director",
    }
}

keyword! {
    /// What the client may be told that it has delivered.
    Gate {
        /// Only what the standby has too.
        Ack = "ack",
        /// Whatever the owner has; bytes may be lost at a takeover.
        Off = "off",
    }
}

keyword! {
    /// What happens when the owner's server process dies.
    OnProcessExit {
        /// The standby takes over.
        Takeover = "takeover",
        /// Its connections close, as without Godwit.
        Close = "close",
    }
}

keyword! {
    /// What happens to a flow whose twin is too far behind.
    OnLag {
        /// It goes on unprotected.
        Demote = "demote",
        /// The client waits.
        Wait = "wait",
    }
}

keyword! {
    /// What happens to a flow whose twin says something else.
    OnDivergence {
        /// It goes on unprotected.
        Demote = "demote",
        /// It is reported only.
        Report = "report",
    }
}

keyword! {
    /// From where on a client's input is kept, so that a standby that comes
    /// later can make a twin of a running connection.
    Reprotect {
        /// From the connection's first byte.
        Connection = "connection",
        /// From the latest request's first byte.
        Request = "request",
        /// Not at all.
        Off = "off",
    }
}

keyword! {
    /// Whether a returning primary becomes the owner again by itself.
    Failback {
        /// Only when told to.
        Manual = "manual",
        /// When it has been in sync for a while.
        Auto = "auto",
    }
}

keyword! {
    /// Who stands before a service's servers.
    Front {
        /// Nobody: clients' segments come to the servers.
        None = "none",
        /// A director.
        Director = "director",
        /// Routers that spread connections over the servers by themselves (RFC 2992).
        Router = "router",
    }
}

keyword! {
    /// How a director's frames come to a server.
    Reach {
        /// It is on the director's link.
        Link = "link",
        /// It is elsewhere: in a tunnel (RFC 7348).
        Vxlan = "vxlan",
    }
}

keyword! {
    /// Where a director's program is.
    Hook {
        /// In the driver.
        Xdp = "xdp",
        /// On any interface, behind the driver.
        Tcx = "tcx",
    }
}

fn one_of(words: &[&str], got: Option<&str>) -> String {
    let mut text = String::from("one of ");
    for (index, word) in words.iter().enumerate() {
        let join = if index == 0 { "" } else { ", " };
        text.push_str(&format!("{join}\"{word}\""));
    }
    if let Some(near) = got.and_then(|got| closest(got, words.iter().copied())) {
        text.push_str(&format!(" (did you mean \"{near}\"?)"));
    }
    text
}
