//! Bytes to messages. Hostile input: nothing here panics or trusts a count.

use super::{
    DirectorWord, FlowMessage, HandoffMessage, Message, MoveStep, NetworkMessage, PeerMessage,
    Question, RejoinMessage, Scope, SnapshotMessage, StandbyMessage, TwinMessage, kind,
};
use crate::cursor::Reader;
use crate::message::Header;
use crate::{Epoch, ParseError, Role, ShareClaim};

/// Reads the body that `header` announced; offsets in errors count from its start.
pub(crate) fn parse_body(header: &Header, body: &[u8]) -> Result<Message, ParseError> {
    let mut reader = Reader::new(body);
    let message = parse(header.kind, header.epoch, &mut reader)?;
    reader.finish("message: trailing bytes")?;
    Ok(message)
}

/// Which group each kind is of.
fn parse(kind: u8, epoch: Epoch, reader: &mut Reader<'_>) -> Result<Message, ParseError> {
    Ok(match kind {
        kind::HELLO | kind::GOODBYE | kind::CONFIG_LINES => {
            Message::Peer(PeerMessage::parse(kind, reader)?)
        }
        kind::TAGS | kind::PLACE => Message::Network(NetworkMessage::parse(kind, reader)?),
        kind::SHARE_STATE => Message::Claim(ShareClaim {
            share: reader.share("share state: share")?,
            role: Role::parse(reader)?,
            epoch,
        }),
        kind::HANDOFF => Message::Handoff(HandoffMessage::parse(epoch, reader)?),
        kind::QUESTION => Message::Question(Question::parse(reader)?),
        kind::DIRECTOR => Message::Director(DirectorWord::parse(reader)?),
        kind::STANDBY_READY | kind::STANDBY_LEFT | kind::SERVER_LOST => {
            let scope = Scope::parse(epoch, reader)?;
            Message::Standby(scope, StandbyMessage::parse(kind, reader)?)
        }
        kind::MOVE => {
            let scope = Scope::parse(epoch, reader)?;
            Message::Move(scope, MoveStep::parse(reader)?)
        }
        kind::FLOW_DEMOTE | kind::FLOW_DEMOTED | kind::TWIN_CLOSED => {
            let scope = Scope::parse(epoch, reader)?;
            Message::Flow(scope, FlowMessage::parse(kind, reader)?)
        }
        kind::DIGEST | kind::OUTPUT => {
            let scope = Scope::parse(epoch, reader)?;
            Message::Twin(scope, TwinMessage::parse(kind, reader)?)
        }
        kind::FLOW_RESTORE | kind::FLOW_INPUT | kind::FLOW_ADMIT | kind::FLOW_ADMITTED => {
            let scope = Scope::parse(epoch, reader)?;
            Message::Rejoin(scope, RejoinMessage::parse(kind, reader)?)
        }
        kind::FLOW_SNAPSHOT | kind::FLOW_SNAPSHOT_KEPT => {
            let scope = Scope::parse(epoch, reader)?;
            Message::Snapshot(scope, SnapshotMessage::parse(kind, reader)?)
        }
        other => {
            return Err(ParseError {
                what: "message: kind",
                at: 0,
                got: u64::from(other),
            });
        }
    })
}

impl Scope {
    fn parse(epoch: Epoch, reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            share: reader.share("message: share")?,
            epoch,
            generation: reader.generation("message: generation")?,
        })
    }
}
