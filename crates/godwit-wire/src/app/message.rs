//! The messages, versions 1 and 2.

use core::fmt;

use alloc::vec::Vec;

use super::{MAX_SNAPSHOT, MAX_VERSION, MIN_VERSION, SHOWS};
use crate::cursor::{Reader, verify};
use crate::share::wire_enum;
use crate::{HandoffRefusal, ParseError};

const MAGIC: [u8; 2] = *b"GA";

wire_enum! {
    /// What an old snapshot is good for.
    SnapshotKind, "app: kind of snapshot" {
        /// The application makes the same output again from it.
        Regenerable = 1, "regenerable";
        /// The application must never go back from it, or from one before it of the
        /// same connection.
        Commit = 2, "commit";
    }
}

wire_enum! {
    /// Why no standby has what a server wants to be safe.
    CommitRefusal, "app: refusal of a commit" {
        /// No standby would serve the connection.
        Unprotected = 1, "unprotected";
        /// The standby has not said in time that it has it.
        Late = 2, "late";
        /// The connection is not as the process says.
        Mismatch = 3, "mismatch";
        /// Its output can't be read, or is more than travels with a snapshot.
        Output = 4, "output";
    }
}

wire_enum! {
    /// Why an agent does not work for a process or one of its listeners.
    AppRefusal, "app: refusal" {
        /// No version that both speak.
        Version = 1, "version";
        /// The region is not what the process says it is.
        Region = 2, "region";
        /// What came with the message is no TCP listener.
        NoListener = 3, "no_listener";
        /// The listener is not at the address of a service.
        NoService = 4, "no_service";
        /// The agent has as many processes or listeners as it looks after.
        Full = 5, "full";
        /// The process has not said who it is, or says it again.
        OutOfTurn = 6, "out_of_turn";
    }
}

/// A snapshot on its way to another server.
#[derive(Clone, PartialEq, Eq)]
pub struct Carried {
    /// What it is good for.
    pub kind: SnapshotKind,
    /// The application's bytes; nothing else knows what they mean.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for Carried {
    /// Without the bytes: they are the application's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} snapshot of {} bytes", self.kind, self.bytes.len())
    }
}

/// Where in the region a snapshot is, and where in the streams it belongs.
///
/// Positions count the bytes of data since the socket was made: of what its
/// application has read, and of what it has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotPlace {
    /// Bytes from the start of the region.
    pub offset: u64,
    /// Size, at most [`MAX_SNAPSHOT`].
    pub length: u32,
    /// What it is good for.
    pub kind: SnapshotKind,
    /// Bytes that the application had read.
    pub read: u64,
    /// Bytes that the application had written.
    pub written: u64,
}

impl SnapshotPlace {
    /// Size on the wire and in the region, in bytes.
    pub const LEN: usize = 29;

    pub(crate) fn emit(self, out: &mut Vec<u8>) {
        out.extend(self.offset.to_be_bytes());
        out.extend(self.length.to_be_bytes());
        out.push(self.kind.number());
        out.extend(self.read.to_be_bytes());
        out.extend(self.written.to_be_bytes());
    }

    pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let offset = reader.u64("app: snapshot offset")?;
        let at = reader.at();
        let length = reader.u32("app: snapshot length")?;
        verify(length <= MAX_SNAPSHOT, "app: snapshot length", at, length)?;
        Ok(Self {
            offset,
            length,
            kind: SnapshotKind::parse(reader)?,
            read: reader.u64("app: bytes read")?,
            written: reader.u64("app: bytes written")?,
        })
    }
}

/// What a request of the agent is about: a connection that the process has
/// entered into its region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject {
    /// The answer's name.
    pub request: u32,
    /// Where in the region the connection is.
    pub slot: u32,
    /// SO_COOKIE of its socket.
    pub cookie: u64,
}

impl Subject {
    fn emit(self, out: &mut Vec<u8>) {
        out.extend(self.request.to_be_bytes());
        out.extend(self.slot.to_be_bytes());
        out.extend(self.cookie.to_be_bytes());
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            request: reader.u32("app: request")?,
            slot: reader.u32("app: slot")?,
            cookie: reader.u64("app: cookie")?,
        })
    }
}

/// A message between a server process (P) and its agent (A).
///
/// Each request of the agent is answered under its number, by [`Taken`] or
/// [`Done`].
///
/// [`Taken`]: Self::Taken
/// [`Done`]: Self::Done
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppMessage {
    /// P: who it is. With the region, sealed against shrinking.
    Hello {
        /// Oldest version that it speaks.
        min: u8,
        /// Latest version that it speaks.
        max: u8,
        /// Slots of the region.
        slots: u32,
        /// Size of the region, in bytes.
        region: u64,
    },
    /// A: it is known now, and this version is spoken.
    Welcome {
        /// At most the latest of both.
        version: u8,
    },
    /// A: it is not; the connection ends.
    Refused {
        /// Why.
        reason: AppRefusal,
    },
    /// P: it accepts connections there. With the listener.
    Listen {
        /// The process's name for it.
        number: u32,
    },
    /// A: whether connections of other servers may be given to it.
    Listening {
        /// Which.
        number: u32,
        /// Why not.
        refusal: Option<AppRefusal>,
    },
    /// P: it does not accept there any more.
    Unlisten {
        /// Which.
        number: u32,
    },
    /// A: stop using a connection and hand it out.
    Take {
        /// Which.
        subject: Subject,
        /// How long to wait for a snapshot at its present positions.
        patience_ms: u32,
    },
    /// P: the answer. With the socket, unless refused.
    Taken {
        /// Which request.
        request: u32,
        /// The latest snapshot, if the connection has state at all, or why the
        /// process goes on with the connection.
        outcome: Result<Option<SnapshotPlace>, HandoffRefusal>,
    },
    /// A: go on with a connection that was taken.
    PutBack {
        /// Which.
        subject: Subject,
    },
    /// A: a connection that was taken is another server's now.
    Emigrated {
        /// Which.
        subject: Subject,
    },
    /// A: a connection of another server. With the socket and, if it has a
    /// snapshot that is not empty, a file of that.
    Give {
        /// The answer's name.
        request: u32,
        /// The process's name for the listener that shall accept it.
        number: u32,
        /// What the snapshot is good for, and its size in bytes; none if it
        /// has no state.
        snapshot: Option<(SnapshotKind, u32)>,
    },
    /// P: the answer to all other requests.
    Done {
        /// Which request.
        request: u32,
        /// Why not.
        refusal: Option<HandoffRefusal>,
    },
    /// P: this snapshot, at which the connection stands, is to be safe before the
    /// server goes on. With the socket.
    Commit {
        /// Which connection; the process's name for the answer.
        subject: Subject,
        /// The latest snapshot of the connection.
        place: SnapshotPlace,
    },
    /// A: the answer.
    Committed {
        /// Which request.
        request: u32,
        /// Why it is not safe.
        refusal: Option<CommitRefusal>,
    },
    /// P: an agent that has died has left this connection in repair mode. With the
    /// socket.
    Mend,
    /// P, from version 2 on: it has this connection, although the socket belongs to another
    /// account: an agent has made it, or a process that has passed it on. With the socket.
    Show {
        /// SO_COOKIE of the socket.
        cookie: u64,
    },
}

/// Numbers of the kinds.
mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const WELCOME: u8 = 2;
    pub(super) const REFUSED: u8 = 3;
    pub(super) const LISTEN: u8 = 4;
    pub(super) const LISTENING: u8 = 5;
    pub(super) const UNLISTEN: u8 = 6;
    pub(super) const TAKE: u8 = 7;
    pub(super) const TAKEN: u8 = 8;
    pub(super) const PUT_BACK: u8 = 9;
    pub(super) const EMIGRATED: u8 = 10;
    pub(super) const GIVE: u8 = 11;
    pub(super) const DONE: u8 = 12;
    pub(super) const COMMIT: u8 = 13;
    pub(super) const COMMITTED: u8 = 14;
    pub(super) const MEND: u8 = 15;
    pub(super) const SHOW: u8 = 16;
}

impl AppMessage {
    /// Reads a message, which is the whole of `bytes`.
    ///
    /// # Errors
    /// If it is none, or of another version.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(bytes);
        let magic = reader.array::<2>("app: magic")?;
        verify(magic == MAGIC, "app: magic", 0, u16::from_be_bytes(magic))?;
        let version = reader.u8("app: version")?;
        let spoken = (MIN_VERSION..=MAX_VERSION).contains(&version);
        verify(spoken, "app: version", 2, version)?;
        let latest = if version < SHOWS {
            kind::MEND
        } else {
            kind::SHOW
        };
        let message = Self::parse_body(&mut reader, latest)?;
        reader.finish("app: trailing bytes")?;
        Ok(message)
    }

    fn parse_body(reader: &mut Reader<'_>, latest: u8) -> Result<Self, ParseError> {
        let at = reader.at();
        let kind = reader.u8("app: kind")?;
        let known = (kind::HELLO..=latest).contains(&kind);
        verify(known, "app: kind", at, kind)?;
        Ok(match kind {
            kind::HELLO => Self::Hello {
                min: reader.u8("app: oldest version")?,
                max: reader.u8("app: latest version")?,
                slots: reader.u32("app: slots")?,
                region: reader.u64("app: region")?,
            },
            kind::WELCOME => Self::Welcome {
                version: reader.u8("app: spoken version")?,
            },
            kind::REFUSED => Self::Refused {
                reason: AppRefusal::parse(reader)?,
            },
            kind::LISTEN => Self::Listen {
                number: reader.u32("app: listener")?,
            },
            kind::LISTENING => Self::Listening {
                number: reader.u32("app: listener")?,
                refusal: optional(reader, AppRefusal::parse)?,
            },
            kind::UNLISTEN => Self::Unlisten {
                number: reader.u32("app: listener")?,
            },
            kind::TAKE => Self::Take {
                subject: Subject::parse(reader)?,
                patience_ms: reader.u32("app: patience")?,
            },
            kind::TAKEN => Self::Taken {
                request: reader.u32("app: request")?,
                outcome: match optional(reader, HandoffRefusal::parse)? {
                    Some(refusal) => Err(refusal),
                    None => Ok(optional(reader, SnapshotPlace::parse)?),
                },
            },
            kind::PUT_BACK => Self::PutBack {
                subject: Subject::parse(reader)?,
            },
            kind::EMIGRATED => Self::Emigrated {
                subject: Subject::parse(reader)?,
            },
            kind::GIVE => Self::Give {
                request: reader.u32("app: request")?,
                number: reader.u32("app: listener")?,
                snapshot: optional(reader, parse_size)?,
            },
            kind::DONE => Self::Done {
                request: reader.u32("app: request")?,
                refusal: optional(reader, HandoffRefusal::parse)?,
            },
            kind::COMMIT => Self::Commit {
                subject: Subject::parse(reader)?,
                place: SnapshotPlace::parse(reader)?,
            },
            kind::COMMITTED => Self::Committed {
                request: reader.u32("app: request")?,
                refusal: optional(reader, CommitRefusal::parse)?,
            },
            kind::SHOW => Self::Show {
                cookie: reader.u64("app: cookie")?,
            },
            _ => Self::Mend,
        })
    }

    /// Appends the message, at most [`MAX_MESSAGE`](super::MAX_MESSAGE) bytes.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend(MAGIC);
        out.extend([self.version(), self.kind()]);
        match self {
            Self::Hello {
                min,
                max,
                slots,
                region,
            } => {
                out.extend([*min, *max]);
                out.extend(slots.to_be_bytes());
                out.extend(region.to_be_bytes());
            }
            Self::Welcome { version } => out.push(*version),
            Self::Refused { reason } => out.push(reason.number()),
            Self::Listen { number } | Self::Unlisten { number } => {
                out.extend(number.to_be_bytes());
            }
            Self::Listening { number, refusal } => {
                out.extend(number.to_be_bytes());
                emit_optional(out, *refusal, |out, refusal| out.push(refusal.number()));
            }
            Self::Take {
                subject,
                patience_ms,
            } => {
                subject.emit(out);
                out.extend(patience_ms.to_be_bytes());
            }
            Self::Taken { request, outcome } => {
                out.extend(request.to_be_bytes());
                emit_optional(out, outcome.err(), |out, refusal| {
                    out.push(refusal.number())
                });
                if let Ok(place) = *outcome {
                    emit_optional(out, place, |out, place| place.emit(out));
                }
            }
            Self::PutBack { subject } | Self::Emigrated { subject } => subject.emit(out),
            Self::Commit { subject, place } => {
                subject.emit(out);
                place.emit(out);
            }
            Self::Committed { request, refusal } => {
                out.extend(request.to_be_bytes());
                emit_optional(out, *refusal, |out, refusal| out.push(refusal.number()));
            }
            Self::Mend => {}
            Self::Show { cookie } => out.extend(cookie.to_be_bytes()),
            Self::Give {
                request,
                number,
                snapshot,
            } => {
                out.extend(request.to_be_bytes());
                out.extend(number.to_be_bytes());
                emit_optional(out, *snapshot, |out, (kind, length)| {
                    out.push(kind.number());
                    out.extend(length.to_be_bytes());
                });
            }
            Self::Done { request, refusal } => {
                out.extend(request.to_be_bytes());
                emit_optional(out, *refusal, |out, refusal| out.push(refusal.number()));
            }
        }
    }

    /// The oldest that it is in.
    const fn version(&self) -> u8 {
        if matches!(self, Self::Show { .. }) {
            SHOWS
        } else {
            MIN_VERSION
        }
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => kind::HELLO,
            Self::Welcome { .. } => kind::WELCOME,
            Self::Refused { .. } => kind::REFUSED,
            Self::Listen { .. } => kind::LISTEN,
            Self::Listening { .. } => kind::LISTENING,
            Self::Unlisten { .. } => kind::UNLISTEN,
            Self::Take { .. } => kind::TAKE,
            Self::Taken { .. } => kind::TAKEN,
            Self::PutBack { .. } => kind::PUT_BACK,
            Self::Emigrated { .. } => kind::EMIGRATED,
            Self::Give { .. } => kind::GIVE,
            Self::Done { .. } => kind::DONE,
            Self::Commit { .. } => kind::COMMIT,
            Self::Committed { .. } => kind::COMMITTED,
            Self::Mend => kind::MEND,
            Self::Show { .. } => kind::SHOW,
        }
    }
}

/// One byte tells whether the value follows.
fn optional<T>(
    reader: &mut Reader<'_>,
    parse: impl FnOnce(&mut Reader<'_>) -> Result<T, ParseError>,
) -> Result<Option<T>, ParseError> {
    let at = reader.at();
    let there = reader.u8("app: presence")?;
    verify(there <= 1, "app: presence", at, there)?;
    (there == 1).then(|| parse(reader)).transpose()
}

fn emit_optional<T>(out: &mut Vec<u8>, value: Option<T>, emit: impl FnOnce(&mut Vec<u8>, T)) {
    out.push(value.is_some().into());
    if let Some(value) = value {
        emit(out, value);
    }
}

fn parse_size(reader: &mut Reader<'_>) -> Result<(SnapshotKind, u32), ParseError> {
    let kind = SnapshotKind::parse(reader)?;
    let at = reader.at();
    let length = reader.u32("app: snapshot length")?;
    verify(length <= MAX_SNAPSHOT, "app: snapshot length", at, length)?;
    Ok((kind, length))
}
