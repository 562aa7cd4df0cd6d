mod revoked;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::time::{Duration, Instant};

use godwit_core::Link;
use godwit_wire::{
    Epoch, FlowEpoch, FlowId, FlowKey, GoodbyeReason, HandoffId, HandoffMessage, HandoffStep,
    Heartbeat, MAX_INPUT_LEN, Message, PeerMessage, SeqNumber, ShareId,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::*;
use crate::heartbeat::Refused;
use crate::input::Inputs;
use crate::testing::{PATIENCE, Pair, hello, node, pki};

const OTHER: PeerId = PeerId(0);

/// One node's control side: what it is fed, and what it sends with.
struct Side {
    inputs: Inputs,
    /// Of several that came together.
    rest: RefCell<VecDeque<Input>>,
    sender: PeerSender,
    keys: Arc<HeartbeatKeys>,
    events: EventLog,
    name: NodeName,
}

async fn start_side(config: &Config) -> Side {
    let name = config.node.name;
    let identity = Identity::load(&config.tls, name).expect("certificates");
    let secret = [u8::try_from(name.as_str().len()).expect("short"); 32];
    let keys = Arc::new(HeartbeatKeys::new(config, &secret, 1));
    let (inbox, inputs) = Inbox::new();
    let means = Means {
        identity,
        keys: keys.clone(),
        inbox,
        events: EventLog::new(config),
    };
    let events = means.events.clone();
    let listener = StdListener::bind(config.own_peer().control).expect("free");
    listener.set_nonblocking(true).expect("it may be set");
    let sender = start(config, means, listener).expect("listening");
    Side {
        inputs,
        rest: RefCell::default(),
        sender,
        keys,
        events,
        name,
    }
}

/// Two sides that have greeted each other.
async fn linked(one: &Config, other: &Config) -> (Side, Side) {
    let sides = (start_side(one).await, start_side(other).await);
    sides.0.greet().await;
    sides.1.greet().await;
    sides
}

/// Waits until `done`, while the runtime of all sides goes on; says `what` there is if it never is.
async fn until(mut done: impl FnMut() -> bool, what: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{}", what());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

impl Side {
    /// Does as the core: answers a new link with a hello.
    async fn greet(&self) {
        assert_eq!(self.next_link().await, Some(Link::Up));
        let message = hello(self.name.as_str(), 1);
        self.say(message);
    }

    /// The other one has greeted.
    async fn hear_hello(&self) {
        let message = self.next_message().await;
        assert!(
            matches!(message, Some(Message::Peer(PeerMessage::Hello(_)))),
            "{message:?}"
        );
    }

    /// Greets on each link that it believes to have: TLS 1.3 does not tell who dials that
    /// he was refused.
    async fn greet_until_heard(&self, other: &Self) {
        let is_heard = || {
            if let Some(Input::Link { link: Link::Up, .. }) = self.next_input() {
                // It may be gone already.
                let _ = self.sender.send(OTHER, hello(self.name.as_str(), 1));
                self.sender.flush();
            }
            let Some(Input::Message { message, .. }) = other.next_input() else {
                return false;
            };
            assert!(
                matches!(message, Message::Peer(PeerMessage::Hello(_))),
                "{message:?}"
            );
            true
        };
        until(is_heard, || format!("{} is not heard", self.name)).await;
    }

    fn say(&self, message: Message) {
        self.sender.send(OTHER, message).expect("linked");
        self.sender.flush();
    }

    async fn next_link(&self) -> Option<Link> {
        self.wait(|input| {
            let Input::Link { link, .. } = input else {
                return None;
            };
            Some(link)
        })
        .await
    }

    async fn next_message(&self) -> Option<Message> {
        self.wait(|input| {
            let Input::Message { message, .. } = input else {
                return None;
            };
            Some(message)
        })
        .await
    }

    /// One at a time.
    fn next_input(&self) -> Option<Input> {
        let mut rest = self.rest.borrow_mut();
        match self.inputs.try_recv() {
            Ok(Input::Several(inputs)) => rest.extend(inputs),
            Ok(input) => rest.push_back(input),
            Err(_) => {}
        }
        rest.pop_front()
    }

    /// Looks for an input while the runtime of both sides goes on.
    async fn wait<T>(&self, wanted: impl Fn(Input) -> Option<T>) -> Option<T> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while tokio::time::Instant::now() < deadline {
            match self.next_input().map(&wanted) {
                Some(Some(found)) => return Some(found),
                Some(None) => {}
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        None
    }
}

#[tokio::test]
async fn a_link_carries_messages_both_ways() {
    let pair = Pair::new();
    let (a, b) = linked(&pair.a, &pair.b).await;
    a.hear_hello().await;
    b.hear_hello().await;
    let goodbye = Message::Peer(PeerMessage::Goodbye {
        reason: GoodbyeReason::Restart,
    });
    a.say(goodbye.clone());
    assert_eq!(b.next_message().await, Some(goodbye.clone()));
    b.say(goodbye.clone());
    assert_eq!(a.next_message().await, Some(goodbye));
    assert!(a.sender.is_linked(OTHER));
}

#[tokio::test]
async fn hellos_carry_the_key_for_that_peer() {
    let pair = Pair::new();
    let (a, b) = linked(&pair.a, &pair.b).await;
    let Some(Message::Peer(PeerMessage::Hello(hello))) = b.next_message().await else {
        panic!("a hello");
    };
    assert_eq!(Some(hello.heartbeat_key), a.keys.ours(OTHER).map(|it| *it));
}

#[tokio::test]
async fn a_node_of_another_authority_is_refused() {
    let pair = Pair::new();
    let elsewhere = tempfile::tempdir().expect("temporary folder");
    pki::init(elsewhere.path()).expect("authority");
    let mut foreign = pair.a.clone();
    let dir = elsewhere.path().join("a");
    pki::issue(elsewhere.path(), node("a"), &dir, None).expect("node");
    foreign.tls.ca = pair.a.tls.ca.clone();
    foreign.tls.cert = dir.join(pki::NODE_CERT);
    foreign.tls.key = dir.join(pki::NODE_KEY);
    assert_never_linked(&foreign, &pair.b).await;
}

#[tokio::test]
async fn a_node_that_trusts_another_authority_does_not_link() {
    let pair = Pair::new();
    let elsewhere = tempfile::tempdir().expect("temporary folder");
    pki::init(elsewhere.path()).expect("authority");
    let mut foreign = pair.a.clone();
    foreign.tls.ca = elsewhere.path().join(pki::CA_CERT);
    assert_never_linked(&foreign, &pair.b).await;
}

/// How long a link that must not come about has time to.
const NO_LINK: Duration = Duration::from_millis(500);

/// `dialler` keeps trying, and neither side gets a link.
async fn assert_never_linked(dialler: &Config, listener: &Config) {
    let (a, b) = (start_side(dialler).await, start_side(listener).await);
    tokio::time::sleep(NO_LINK).await;
    // TLS 1.3: a refused client learns of it after it believed to be through,
    // so its link may have been up, but no message ever came.
    while let Ok(input) = a.inputs.try_recv() {
        assert!(matches!(input, Input::Link { .. }), "{input:?}");
    }
    assert!(b.inputs.try_recv().is_err());
}

/// What a side says of the other one, and how often it said that to people.
async fn absence(side: &Side, expected: NoLink) -> usize {
    let absence = || side.sender.absence(OTHER);
    let is_it = || absence().is_some_and(|it| it.reason == expected);
    until(is_it, || format!("{:?}", absence())).await;
    let past = side.events.subscribe().past;
    past.iter().filter(|it| it.event == "link_refused").count()
}

/// Either certificate may have expired: both sides name the reason, once, and the dialler
/// becomes slower.
#[tokio::test]
async fn a_certificate_that_is_refused_is_named_on_both_sides() {
    const WHILE: Duration = Duration::from_millis(2500);
    for expired in ["a", "b"] {
        let pair = Pair::new();
        let out = pair.dir().join(expired);
        pki::issue(&pair.dir().join("ca"), node(expired), &out, Some(-3)).expect("issued");
        let (a, b) = (start_side(&pair.a).await, start_side(&pair.b).await);
        let reasons = match expired {
            "a" => (NoLink::OwnExpired, NoLink::PeerExpired),
            _ => (NoLink::PeerExpired, NoLink::OwnExpired),
        };
        tokio::time::sleep(WHILE).await;
        assert_eq!(absence(&a, reasons.0).await, 1, "told once");
        assert_eq!(absence(&b, reasons.1).await, 1, "told once");
        let ups = std::iter::from_fn(|| a.next_input());
        let ups = ups.filter(|it| matches!(it, Input::Link { link: Link::Up, .. }));
        assert!(ups.count() <= 8, "it dials as if nothing were wrong");
    }
}

#[tokio::test]
async fn who_is_not_there_is_not_refused() {
    let pair = Pair::new();
    let a = start_side(&pair.a).await;
    assert_eq!(absence(&a, NoLink::Unreachable).await, 0);
    let b = start_side(&pair.b).await;
    assert_eq!(absence(&b, NoLink::NotDialled).await, 0);
    a.greet().await;
    b.greet().await;
    a.hear_hello().await;
    assert_eq!(
        absence(&a, NoLink::Starting).await,
        0,
        "the reason before is forgotten"
    );
}

#[tokio::test]
async fn a_peer_with_another_name_is_refused() {
    let pair = Pair::new();
    // `c` has a certificate of the cluster, but is no peer of `b`.
    let dir = pair.dir().join("c");
    pki::issue(&pair.dir().join("ca"), node("c"), &dir, None).expect("node");
    let mut other = pair.a.clone();
    other.tls.cert = dir.join(pki::NODE_CERT);
    other.tls.key = dir.join(pki::NODE_KEY);
    let identity = Identity::load(&other.tls, node("c")).expect("certificates");
    let b = start_side(&pair.b).await;
    let stream = TcpStream::connect(pair.b.own_peer().control)
        .await
        .expect("listening");
    let server = tls::server_name(node("b")).expect("a name");
    if let Ok(mut stream) = identity.connector().connect(server, stream).await {
        let mut byte = [0];
        assert!(matches!(stream.read(&mut byte).await, Ok(0) | Err(_)));
    }
    assert!(b.inputs.try_recv().is_err());
}

#[test]
fn a_certificate_of_another_node_is_refused_at_start() {
    let pair = Pair::new();
    let error = Identity::load(&pair.b.tls, node("a")).expect_err("b's certificate");
    assert!(
        error
            .to_string()
            .ends_with("is not the certificate of node \"a\""),
        "{error}"
    );
}

#[tokio::test]
async fn a_hello_with_another_name_ends_the_link() {
    let pair = Pair::new();
    let (a, b) = (start_side(&pair.a).await, start_side(&pair.b).await);
    assert_eq!(a.next_link().await, Some(Link::Up));
    a.say(hello("c", 1));
    assert_eq!(b.next_link().await, Some(Link::Up));
    assert_eq!(b.next_link().await, Some(Link::Down));
}

#[tokio::test]
async fn a_link_that_begins_with_something_else_is_ended() {
    let pair = Pair::new();
    let (a, b) = (start_side(&pair.a).await, start_side(&pair.b).await);
    assert_eq!(a.next_link().await, Some(Link::Up));
    let goodbye = Message::Peer(PeerMessage::Goodbye {
        reason: GoodbyeReason::Detach,
    });
    a.say(goodbye);
    assert_eq!(b.next_link().await, Some(Link::Up));
    assert_eq!(b.next_link().await, Some(Link::Down));
}

#[tokio::test]
async fn garbage_on_the_control_port_disturbs_nobody() {
    let pair = Pair::new();
    let b = start_side(&pair.b).await;
    let mut stream = TcpStream::connect(pair.b.own_peer().control)
        .await
        .expect("listening");
    stream.write_all(&[0xff; 4096]).await.expect("sent");
    let a = start_side(&pair.a).await;
    a.greet().await;
    b.greet().await;
    b.hear_hello().await;
}

/// Connects from an address of loopback, and says nothing.
async fn connect_from(address: &str, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    let from = SocketAddr::new(address.parse().expect("an address"), 0);
    socket.bind(from).expect("loopback");
    socket.connect(to).await.expect("listening")
}

/// `a` has a link although somebody keeps connecting, and says nothing.
async fn assert_links_beside_silent(strangers: &'static str) {
    const HELD: usize = 64;
    let pair = Pair::new();
    let b = start_side(&pair.b).await;
    let to = pair.b.own_peer().control;
    let mut held = Vec::new();
    for _ in 0..HELD {
        held.push(connect_from(strangers, to).await);
    }
    let flood = tokio::spawn(async move {
        loop {
            held.push(connect_from(strangers, to).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let begun = Instant::now();
    let a = start_side(&pair.a).await;
    a.greet().await;
    b.greet().await;
    b.hear_hello().await;
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    flood.abort();
}

#[tokio::test]
async fn silent_strangers_keep_no_peer_out() {
    assert_links_beside_silent("127.0.0.3").await;
}

/// As an earlier life of the peer leaves them, or somebody with its address.
#[tokio::test]
async fn the_oldest_half_open_one_of_an_address_gives_way() {
    assert_links_beside_silent("127.0.0.1").await;
}

#[tokio::test]
async fn a_second_link_of_a_peer_replaces_the_first() {
    let pair = Pair::new();
    let b = start_side(&pair.b).await;
    for _ in 0..2 {
        let identity = Identity::load(&pair.a.tls, node("a")).expect("certificates");
        let stream = TcpStream::connect(pair.b.own_peer().control)
            .await
            .expect("listening");
        let server = tls::server_name(node("b")).expect("a name");
        let stream = identity
            .connector()
            .connect(server, stream)
            .await
            .expect("accepted");
        // Left open: the peer has no other way to know that it is dead.
        std::mem::forget(stream);
    }
    assert_eq!(b.next_link().await, Some(Link::Up));
    assert_eq!(b.next_link().await, Some(Link::Down));
    assert_eq!(b.next_link().await, Some(Link::Up));
    assert!(b.sender.is_linked(OTHER));
}

#[tokio::test]
async fn a_peer_that_does_not_read_loses_its_link() {
    let pair = Pair::new();
    let (a, _b) = linked(&pair.a, &pair.b).await;
    // Nothing here yields, so the writer can't empty its queue.
    let goodbye = Message::Peer(PeerMessage::Goodbye {
        reason: GoodbyeReason::Restart,
    });
    let error = (0..=QUEUE).find_map(|_| a.sender.send(OTHER, goodbye.clone()).err());
    assert_eq!(error, Some(SendError::Full));
    assert_eq!(a.sender.send(OTHER, goodbye), Err(SendError::NoLink));
    assert_eq!(a.next_link().await, Some(Link::Down));
    assert_eq!(a.next_link().await, Some(Link::Up));
}

/// A message that nobody could mistake for another one, as long as one may be.
fn numbered(number: u32) -> Message {
    let key = FlowKey {
        client: "10.9.0.10:1".parse().expect("an address"),
        service: "10.9.0.100:80".parse().expect("an address"),
    };
    let flow = FlowId {
        key,
        irs: SeqNumber(number),
    };
    Message::Handoff(HandoffMessage {
        share: ShareId(1),
        epoch: Epoch::NONE,
        id: HandoffId {
            flow,
            epoch: FlowEpoch(1),
        },
        step: HandoffStep::State {
            last: true,
            part: vec![7; MAX_INPUT_LEN],
        },
    })
}

fn number_of(message: Option<Message>) -> u32 {
    let Some(Message::Handoff(HandoffMessage { id, .. })) = message else {
        panic!("{message:?}");
    };
    id.flow.irs.0
}

/// What was said waits for no other thread: nothing here yields.
#[tokio::test]
async fn who_speaks_sends_by_its_own_hand() {
    let pair = Pair::new();
    let (a, b) = linked(&pair.a, &pair.b).await;
    b.hear_hello().await;
    let room = a.sender.room(OTHER);
    a.sender.send(OTHER, numbered(1)).expect("linked");
    assert_eq!(a.sender.room(OTHER), room - 1, "it is queued");
    a.sender.flush();
    assert_eq!(a.sender.room(OTHER), room, "it is sent");
    assert_eq!(number_of(b.next_message().await), 1);
}

/// Whoever is at it may not look again: the writer does.
#[tokio::test]
async fn what_is_said_while_another_one_sends_goes_out() {
    let pair = Pair::new();
    let (a, b) = linked(&pair.a, &pair.b).await;
    b.hear_hello().await;
    let outbox = lock(&a.sender.shared.slots[0].outbox).clone();
    let outbox = outbox.expect("linked");
    outbox.while_busy(|| a.say(numbered(1)));
    assert_eq!(number_of(b.next_message().await), 1);
}

/// More than sockets hold: the writer goes on, in order and to the last byte.
#[tokio::test]
async fn a_peer_that_reads_slowly_hears_everything() {
    const MANY: u32 = 500;
    let pair = Pair::new();
    let (a, b) = linked(&pair.a, &pair.b).await;
    b.hear_hello().await;
    for number in 0..MANY {
        a.say(numbered(number));
    }
    assert!(a.sender.room(OTHER) < QUEUE / 2, "not all of it had room");
    for number in 0..MANY {
        let message = b.next_message().await;
        assert_eq!(message, Some(numbered(number)));
    }
}

/// Whatever gets in whose way, nothing is left over or overtakes anything.
#[tokio::test]
async fn those_who_speak_at_once_are_all_heard() {
    const EACH: u32 = 100;
    let pair = Pair::new();
    let (a, b) = linked(&pair.a, &pair.b).await;
    b.hear_hello().await;
    let speakers = (0..4).map(|speaker| {
        let sender = a.sender.clone();
        std::thread::spawn(move || {
            for number in 0..EACH {
                let message = numbered(speaker << 16 | number);
                sender.send(OTHER, message).expect("linked");
                sender.flush();
            }
        })
    });
    let speakers: Vec<_> = speakers.collect();
    let mut next = [0; 4];
    for _ in 0..4 * EACH {
        let number = number_of(b.next_message().await);
        let heard = &mut next[(number >> 16) as usize];
        assert_eq!(number & 0xffff, *heard);
        *heard += 1;
    }
    for speaker in speakers {
        speaker.join().expect("no panic");
    }
}

#[tokio::test]
async fn without_a_link_sending_fails_at_once() {
    let pair = Pair::new();
    let a = start_side(&pair.a).await;
    let goodbye = Message::Peer(PeerMessage::Goodbye {
        reason: GoodbyeReason::Restart,
    });
    assert_eq!(
        a.sender.send(OTHER, goodbye.clone()),
        Err(SendError::NoLink)
    );
    assert_eq!(a.sender.send(PeerId(7), goodbye), Err(SendError::NoPeer));
}

/// A heartbeat of one side to the other.
fn signed(side: &Side, name: &str, sequence: u64) -> Vec<u8> {
    let heartbeat = Heartbeat {
        sender: node(name),
        incarnation: 1,
        sequence,
        sent_ns: 0,
        shares: Vec::new(),
    };
    let mut bytes = Vec::new();
    heartbeat.emit_unsigned(&mut bytes).expect("it fits");
    let signer = side.keys.signer(OTHER).expect("it is a peer");
    signer.sign(&mut bytes);
    bytes
}
