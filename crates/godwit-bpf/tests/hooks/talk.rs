//! Which requests may go to another server, and which must not: heads, bodies, and where
//! replies end (`gw_talk.h`).

use godwit_bpf::{Hook, Mate};
use godwit_lab::host::{Host, Network};
use godwit_wire::TcpFlags;

use crate::bench::{Bench, IRS, ISS, from_service, on_bench, to_service};
use crate::transfer::place;

const DATA: TcpFlags = TcpFlags(TcpFlags::ACK.0 | TcpFlags::PSH.0);
const CLIENT: u32 = IRS.wrapping_add(1);
const SERVICE: u32 = ISS + 1;

/// Reasons that a request is looked at, each of which excludes the others.
const FATES: [&str; 15] = [
    "asked",
    "kept_body",
    "kept_busy",
    "kept_long",
    "kept_here",
    "kept_alone",
    "stays_gap",
    "stays_pipelined",
    "stays_not_http",
    "stays_spans",
    "stays_body",
    "stays_bound",
    "stays_reply",
    "table_full",
    "client_beyond",
];

/// A client's connection, byte by byte.
struct Talk<'a> {
    bench: &'a Bench,
    port: u16,
    v6: bool,
    seq: u32,
    ack: u32,
}

impl<'a> Talk<'a> {
    fn begin(bench: &'a Bench, port: u16) -> Self {
        let v6 = port.is_multiple_of(2);
        bench.connect(port, v6);
        Self {
            bench,
            port,
            v6,
            seq: CLIENT,
            ack: SERVICE,
        }
    }

    /// The client says something: what was decided of it.
    fn ask(&mut self, text: &[u8]) -> Vec<String> {
        let frame = to_service(self.port, self.v6, self.seq, self.ack, DATA, text);
        self.seq = self
            .seq
            .wrapping_add(u32::try_from(text.len()).expect("short"));
        let (_, reasons) = self.bench.pass(Hook::Tap, &frame);
        fates(reasons)
    }

    /// Our server says something, which acknowledges all that the client has said; the
    /// client has it.
    fn reply(&mut self, text: &[u8]) -> Vec<String> {
        let frame = from_service(self.port, self.v6, self.ack, self.seq, DATA, text);
        self.ack = self
            .ack
            .wrapping_add(u32::try_from(text.len()).expect("short"));
        let (_, reasons) = self.bench.pass(Hook::Gate, &frame);
        fates(reasons)
    }
}

fn fates(reasons: Vec<String>) -> Vec<String> {
    let is_fate = |it: &String| FATES.contains(&it.as_str());
    reasons.into_iter().filter(is_fate).collect()
}

fn with_placing(work: impl FnOnce(&Bench) + Send) {
    on_bench(|bench| {
        place(bench, Mate::Open(Host::B.mac(Network::Data)));
        work(bench);
    });
}

fn get(path: &str, fields: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: s\r\n{fields}\r\n").into_bytes()
}

/// What b would be asked for is asked for if it is whole and plain, and nothing else is.
#[test]
fn whole_and_plain_requests_go() {
    let long = "x".repeat(1300);
    with_placing(|bench| {
        for (port, (text, fate)) in (100..).zip(REQUESTS) {
            let shown = String::from_utf8_lossy(text).into_owned();
            assert_eq!(Talk::begin(bench, port).ask(text), [*fate], "{shown:?}");
        }
        let long = get("/b/x", &format!("Cookie: {long}\r\n"));
        assert_eq!(Talk::begin(bench, 99).ask(&long), ["asked"]);
        let longer = get("/b/x", &format!("Cookie: {}\r\n", "x".repeat(1400)));
        assert_eq!(Talk::begin(bench, 98).ask(&longer), ["kept_long"]);
        let longest = get("/b/x", &format!("Cookie: {}\r\n", "x".repeat(2100)));
        assert_eq!(Talk::begin(bench, 97).ask(&longest), ["stays_spans"]);
    });
}

/// A request goes when all of the last reply is there; where that ends must be known.
#[test]
fn a_request_goes_when_the_last_reply_is_whole() {
    with_placing(|bench| {
        for (port, (words, fate)) in (200..).zip(REPLIES) {
            let mut talk = Talk::begin(bench, port);
            assert_eq!(talk.ask(&get("/a/x", "")), ["kept_here"]);
            let mut said = Vec::new();
            for word in *words {
                said.extend(talk.reply(word.as_bytes()));
            }
            let next = talk.ask(&get("/b/x", ""));
            match *fate {
                // Known when the reply was said; nothing is looked at from then on.
                "stays_reply" => {
                    assert_eq!((said, next), (vec![(*fate).into()], vec![]), "{words:?}")
                }
                // By its length more was to come.
                "stays_pipelined_or_busy" => {
                    assert!(
                        next == ["stays_pipelined"] || next == ["kept_busy"],
                        "{words:?} {next:?}"
                    );
                }
                _ => assert_eq!(
                    (said, next),
                    (vec![], vec![(*fate).to_owned()]),
                    "{words:?}"
                ),
            }
        }
    });
}

/// The reply to a HEAD has a length and no body.
#[test]
fn a_head_has_no_body() {
    with_placing(|bench| {
        let mut talk = Talk::begin(bench, 300);
        talk.ask(b"HEAD /a/x HTTP/1.1\r\nHost: s\r\n\r\n");
        talk.reply(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
        assert_eq!(talk.ask(&get("/b/x", "")), ["asked"]);
    });
}

/// The rest of a body is no request, however it looks, also when the reply came early.
#[test]
fn a_body_is_no_request() {
    with_placing(|bench| {
        let inner = get("/b/x", "");
        let mut talk = Talk::begin(bench, 310);
        let head = format!(
            "POST /a/x HTTP/1.1\r\nHost: s\r\nContent-Length: {}\r\n\r\n",
            inner.len()
        );
        assert_eq!(talk.ask(head.as_bytes()), ["kept_body"]);
        talk.reply(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n");
        assert!(talk.ask(&inner).is_empty(), "it is the body");
        talk.reply(b"");
        assert_eq!(talk.ask(&get("/b/y", "")), ["asked"], "this is one");
    });
}

/// Who asks before he has his reply stays, whatever he asks for then.
#[test]
fn who_pipelines_stays() {
    with_placing(|bench| {
        let mut talk = Talk::begin(bench, 320);
        talk.ask(&get("/a/x", ""));
        assert_eq!(talk.ask(&get("/b/x", "")), ["stays_pipelined"]);
        talk.reply(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        talk.reply(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert!(talk.ask(&get("/b/x", "")).is_empty());
    });
}

/// A client that has not said that it has the whole reply is served where it is, once.
#[test]
fn a_reply_that_is_not_acknowledged_keeps_the_request() {
    with_placing(|bench| {
        let mut talk = Talk::begin(bench, 330);
        talk.ask(&get("/a/x", ""));
        talk.reply(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc");
        talk.ack -= 1;
        assert_eq!(talk.ask(&get("/b/x", "")), ["kept_busy"]);
        talk.ack += 1;
        talk.reply(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(talk.ask(&get("/b/x", "")), ["asked"]);
    });
}

/// What a client begins with, and what becomes of it.
const REQUESTS: &[(&[u8], &str)] = &[
    (b"GET /b/x HTTP/1.1\r\nHost: s\r\n\r\n", "asked"),
    (b"GET /b/x?y=/z HTTP/1.0\r\n\r\n", "asked"),
    (b"HEAD /b/ HTTP/1.1\r\nHost: s\r\nX: a:b\r\n\r\n", "asked"),
    (
        b"POST /b/x HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
        "asked",
    ),
    (b"PUT /b/x HTTP/1.1\r\ncontent-length:  0\r\n\r\n", "asked"),
    (
        b"GET /b/x HTTP/1.1\r\nAuthorization: Basic x\r\n\r\n",
        "asked",
    ),
    (b"GET /a/x HTTP/1.1\r\nHost: s\r\n\r\n", "kept_here"),
    (b"GET /b HTTP/1.1\r\nHost: s\r\n\r\n", "kept_here"),
    (b"GET http://s/b/x HTTP/1.1\r\n\r\n", "kept_here"),
    (
        b"POST /b/x HTTP/1.1\r\nContent-Length: 4\r\n\r\nabc",
        "kept_body",
    ),
    (
        b"POST /b/x HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n",
        "kept_body",
    ),
    (
        b"POST /b/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "stays_body",
    ),
    (
        b"GET /b/x HTTP/1.1\r\n\r\nGET /b/y HTTP/1.1\r\n\r\n",
        "stays_pipelined",
    ),
    (
        b"GET /b/x HTTP/1.1\r\nAuthorization: NTLM TlRM\r\n\r\n",
        "stays_bound",
    ),
    (
        b"GET /b/x HTTP/1.1\r\nauthorization:negotiate YII\r\n\r\n",
        "stays_bound",
    ),
    (
        b"CONNECT /b/:1 HTTP/1.1\r\nHost: s\r\n\r\n",
        "stays_not_http",
    ),
    (b"GET /b/x HTTP/1.1\r\nHost: s\r\n", "stays_spans"),
    (b"G", "stays_spans"),
    (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "stays_not_http",
    ),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "stays_not_http"),
    (b"GET /b/x\r\n\r\n", "stays_not_http"),
    (b"GET /b/x HTTP/1.1\nHost: s\n\n", "stays_not_http"),
    (b"GET /b/x HTTP/1.1\r\nA: b\n\r\n", "stays_not_http"),
    (b"GET /b/x HTTP/1.1\r\nA: b\r\n c\r\n\r\n", "stays_not_http"),
    (b"GET /b/x HTTP/1.1\r\nA : b\r\n\r\n", "stays_not_http"),
    (
        b"POST /b/x HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
        "stays_not_http",
    ),
    (
        b"POST /b/x HTTP/1.1\r\nContent-Length: +1\r\n\r\na",
        "stays_not_http",
    ),
    (
        b"POST /b/x HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\na",
        "stays_not_http",
    ),
    (
        b"GET /b/x HTTP/1.1\r\nHost: s\r\nHost: t\r\n\r\n",
        "stays_not_http",
    ),
];

macro_rules! ok {
    ($rest:literal) => {
        concat!("HTTP/1.1 200 OK\r\n", $rest)
    };
}

macro_rules! chunked {
    ($body:literal) => {
        concat!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            $body
        )
    };
}

/// Words of our server, and what becomes of the next request.
const REPLIES: &[(&[&str], &str)] = &[
    (&[ok!("Content-Length: 3\r\n\r\nabc")], "asked"),
    (&[ok!("Content-Length: 3\r\n\r\n"), "abc"], "asked"),
    (
        &[ok!("Content-Length: 4\r\n\r\nabc")],
        "stays_pipelined_or_busy",
    ),
    (&[ok!("Content-Length: 2\r\n\r\nabc")], "kept_busy"),
    (&["HTTP/1.1 204 No Content\r\n\r\n"], "asked"),
    (
        &["HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n"],
        "asked",
    ),
    (
        &[concat!(
            "HTTP/1.1 100 Continue\r\n\r\n",
            ok!("Content-Length: 0\r\n\r\n")
        )],
        "asked",
    ),
    (
        &[
            "HTTP/1.1 103 Early Hints\r\n\r\n",
            ok!("Content-Length: 0\r\n\r\n"),
        ],
        "asked",
    ),
    (&[chunked!("3\r\nabc\r\n0\r\n\r\n")], "asked"),
    (
        &[
            chunked!("3\r\nabc\r\n"),
            "A\r\n0\r\n\r\n01234\r\n",
            "0\r\n\r\n",
        ],
        "asked",
    ),
    (&[chunked!("3\r\nabc\r\n0\r\n")], "stays_reply"),
    (&[chunked!("3\r\nabc\r\n0\r\nX: y\r\n\r\n")], "stays_reply"),
    (&[chunked!("3;x\r\nabc\r\n0\r\n\r\n")], "stays_reply"),
    (&[chunked!("z\r\n")], "stays_reply"),
    // A chunk that looks like the end of all chunks.
    (
        &[chunked!("8\r\nab\r\n0\r\n\r\n")],
        "stays_pipelined_or_busy",
    ),
    (&[ok!(""), "Content-Length: 0\r\n\r\n"], "stays_reply"),
    (&[ok!("\r\nabc")], "stays_reply"),
    (&["HTTP/1.1 101 Switching Protocols\r\n\r\n"], "stays_reply"),
    (&[ok!("Transfer-Encoding: gzip\r\n\r\n")], "stays_reply"),
    (&["SSH-2.0-x\r\n"], "stays_reply"),
];
