//! What a server hears of a connection, and what becomes of it.

use godwit_wire::QuestionWord;

use super::Server;

/// What a client's segment says, as far as it matters where the connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Said {
    /// The SYN of this very connection.
    Syn,
    /// A SYN with its addresses and ports, and another sequence number. Anybody can send it.
    OtherSyn,
    /// It completes the handshake of another connection with them.
    Completes,
    /// A request, whole in this segment. If the connection is here it is a new one.
    Request(u32),
    /// A request together with earlier ones that the client repeats.
    Rest(u32),
    /// It acknowledges what this server's socket has not said.
    AcknowledgesMore,
    /// An acknowledgement, data that is no request.
    Other,
    /// RST.
    Reset,
    /// FIN.
    Fin,
}

/// A question or an answer: the number of the handoff, and the request that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offer {
    /// In the life of the connection.
    pub number: u32,
    /// Which request.
    pub request: u32,
}

/// All that may happen to a connection at one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Input {
    /// A client's segment; of which server, if one has sent it on.
    Client(Said, Option<Server>),
    /// What its owner mirrors to its standby: of which request, if of any.
    Fed(Option<u32>),
    /// This server's TCP wants to say something.
    Own,
    /// Another server offers it, and this one is meant.
    Ask(Offer),
    /// The answer to a question.
    Accepted(Offer, Server),
    /// The other answer.
    Refused(Offer, Server),
    /// This server's agent: who was asked, or is in its place, does not have the connection, and
    /// may have forgotten that it had.
    Lapse(Offer, Server),
    /// A question that is to go by this server.
    AskByWay {
        /// What is asked.
        offer: Offer,
        /// By whom.
        from: Server,
        /// Whom.
        to: Server,
    },
    /// The answer to it: "accepted", or else.
    AnswerByWay {
        /// What is answered.
        offer: Offer,
        /// By whom.
        from: Server,
        /// The connection is there.
        accepted: bool,
    },
    /// To a standby: its owner has got it with this request.
    Came(Offer, Server),
    /// The agent of whoever has asked has the question ruled out.
    RuleOut(u32),
    /// The timer of the entry.
    Timer,
    /// The standby becomes the owner.
    TakeOver,
    /// The owner becomes the standby.
    StandBy,
    /// A new twin is made of what the owner has noted.
    Installed,
    /// The agent has the twin removed: its standby's part ends.
    Forget,
    /// The connection is over.
    Over,
}

/// The server that was asked, or has the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mate {
    /// It serves, or another one in its place.
    Serves,
    /// It is not known to serve. It may.
    Silent,
    /// It is known to be without power.
    Dead,
    /// This server has taken over what it had.
    Ours,
}

/// What else counts, at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Around {
    /// Who is to have a new request; `None`: it stays, whatever the reason.
    pub target: Option<Server>,
    /// How it is with whom the entry names.
    pub mate: Mate,
    /// The connection has a twin at a standby that is in sync and not the target.
    pub by_standby: bool,
    /// Why no connection could be taken, if so.
    pub unwilling: Option<Reason>,
    /// A question is put to another server, in whose place this one is.
    pub in_place: bool,
    /// The twin here has read all, and its server is not at work on it.
    pub twin_is_idle: bool,
    /// The other server of the share that this one is the standby of, or was.
    pub ward: Option<Server>,
    /// It is so now.
    pub stands_by: bool,
}

/// Why something is as it is: a counter of the data path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The target has it.
    Accepted,
    /// The target would not have it.
    Refused,
    /// It was given to a server that has no power.
    MateGone,
    /// The connection is this server's again: whom it had asked has no power.
    Reclaimed,
    /// This server does not own its share.
    NotOwner,
    /// Nothing listens here.
    NoListener,
    /// The kernel makes no socket of it.
    MaterialiseRefused,
    /// There is a socket of it that does not make way.
    BornBefore,
    /// Its agent was told that the question is over.
    RuledOut,
    /// The same question was answered before.
    Again,
    /// It is not about what is known here, or out of date.
    StaleSlip,
    /// A question is open.
    SynTooEarly,
    /// It was sent on by whom it would be sent on to.
    SentBack,
    /// Another server has sent it on, and nothing is known of it.
    NoSlip,
    /// A question is open, and its own server is not heard.
    Unanswered,
    /// Nobody remembers what became of the question.
    Lapsed,
    /// Another server has the connection.
    Away,
    /// A twin is silent.
    Suppressed,
}

impl Reason {
    /// The name of the counter; `None`: which one depends on more than is known here.
    #[must_use]
    pub const fn counter(self) -> Option<&'static str> {
        match self {
            Self::Accepted => Some("accepted"),
            Self::Refused => Some("refused"),
            Self::MateGone => Some("mate_gone"),
            Self::Reclaimed => Some("reclaimed"),
            Self::NotOwner => Some("not_owner"),
            Self::NoListener => Some("no_listener"),
            Self::MaterialiseRefused => Some("materialise_refused"),
            Self::BornBefore => Some("born_before"),
            Self::RuledOut => Some("ruled_out"),
            Self::StaleSlip => Some("stale_slip"),
            Self::SynTooEarly => Some("syn_too_early"),
            Self::SentBack => Some("sent_back"),
            Self::NoSlip => Some("no_slip"),
            Self::Unanswered => Some("unanswered"),
            Self::Lapsed => Some("lapsed"),
            Self::Away => Some("away"),
            Self::Again | Self::Suppressed => None,
        }
    }
}

/// What becomes of the frame at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// This server's TCP has it; why that is worth a word.
    Serve(Option<Reason>),
    /// It goes out as a question, under the number and to whom the entry says.
    Ask {
        /// By way of this server's standby.
        by_way: bool,
    },
    /// The client is told to say the request alone.
    AskForRest,
    /// It goes on to that server, as it is.
    SendOn(Server),
    /// The same, to the owner of the twin that is here.
    ToOwner,
    /// It goes to whom was asked, and this server's socket is reset: the client has shown
    /// that the question was accepted.
    LeaveLate(Server),
    /// A socket is made of it, and the answer is "accepted".
    Come,
    /// The answer is "accepted", as before, and this server's TCP has the segment again.
    AcceptAgain,
    /// The answer is "accepted", as before, and no more.
    OnlyAnswer,
    /// The answer is "refused".
    Refuse(Reason),
    /// It becomes the RST of this server's own socket.
    Reset(Reason),
    /// It goes on to that server, and the RST of the twin here is made of it.
    SendOnAndReset(Server),
    /// A twin is made of it.
    MakeTwin {
        /// One that was there has made way.
        again: bool,
    },
    /// The twin has it.
    Feed,
    /// What this server's TCP says goes on to the gate.
    Speak,
    /// It is dropped.
    Drop(Reason),
    /// What the agent is told.
    Settled(QuestionWord),
    /// The agent is told that the question has no answer.
    Remind,
    /// There is no frame.
    Nothing,
}
