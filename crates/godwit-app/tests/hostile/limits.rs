//! What one process or one account can use up of an agent.

use std::io::{self, Write as _};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::thread;
use std::time::{Duration, Instant};

use godwit_sock::send_with;
use godwit_wire::app::region::Connection;
use godwit_wire::app::{AppMessage, AppRefusal, Subject};
use nix::sys::socket::{setsockopt, sockopt};

use crate::liar::{Liar, Site, connection, place, site};

/// Longer than anything here may take.
const LINGER: libc::c_int = 15;

/// A socket that takes its time to be closed, as a file of a dead file server does: its
/// client reads nothing, and its server wants to know that all has arrived.
fn slow_to_close(site: &Site) -> (TcpStream, TcpStream) {
    let (client, mut server, _) = connection(site);
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: LINGER,
    };
    setsockopt(&server, sockopt::Linger, &linger).expect("a socket");
    server.set_nonblocking(true).expect("a socket");
    while server.write(&[0; 1 << 16]).is_ok() {}
    (client, server)
}

/// How often it is tried to be gone before the agent closes what it was sent.
const TRIES: u32 = 8;

/// The good one is served within a second while the agent closes what a liar has sent it:
/// with a message, with one too many, with what is no message, before a word.
#[test]
fn a_descriptor_that_does_not_close_holds_nobody_up() {
    let site = site();
    let good = Liar::introduced(&site);
    let commit = AppMessage::Commit {
        subject: Subject {
            request: 3,
            slot: 0,
            cookie: 4,
        },
        place: place(0, 4),
    };
    let listen = AppMessage::Listen { number: 9 };
    let messages = [listen, commit, AppMessage::Mend].map(|message| {
        let mut bytes = Vec::new();
        message.emit(&mut bytes);
        (bytes, 1)
    });
    let more = [(b"hello".to_vec(), 1), (b"many".to_vec(), 9)];
    for (bytes, count) in messages.into_iter().chain(more) {
        for knows in [true, false].repeat(TRIES as usize) {
            let liar = if knows {
                Liar::introduced(&site)
            } else {
                Liar::connect(&site)
            };
            let (client, server) = slow_to_close(&site);
            if knows {
                liar.keeps_the_agent_busy();
            }
            send_with(liar.socket.as_fd(), &bytes, &vec![server.as_fd(); count])
                .expect("there is room");
            // Who closes last waits: one of these, or the agent.
            thread::spawn(move || drop((server, client)));
            is_served(&site, &good);
        }
    }
    let begun = Instant::now();
    drop(site);
    let took = begun.elapsed();
    assert!(
        took < Duration::from_secs(5),
        "the agent ends after {took:?}"
    );
}

/// The driver of these tests takes nothing out of its queue.
#[test]
fn commits_take_no_more_memory_than_they_may() {
    let site = site();
    let liar = Liar::introduced(&site);
    let (_client, server, entered) = connection(&site);
    let place = place(1 << 16, 512 << 10);
    let kept = vec![place];
    liar.enter(0, &Connection { kept, ..entered });
    for request in 1..=1000 {
        let subject = Subject {
            request,
            slot: 0,
            cookie: entered.cookie,
        };
        liar.say(&AppMessage::Commit { subject, place }, &[server.as_fd()]);
        if request % 20 == 0 {
            liar.listens(&site);
        }
    }
    let refused = site.apps.refused();
    // 112 MiB, of 128, and 16 that the output of the next could have.
    assert_eq!(refused.get("memory"), Some(&(1000 - 2 * 112)));
}

fn is_served(site: &Site, good: &Liar) {
    let begun = Instant::now();
    for _ in 0..3 {
        good.listens(site);
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "it has waited");
}

#[test]
fn strangers_have_two_seconds() {
    let site = site();
    let good = Liar::introduced(&site);
    let begun = Instant::now();
    let strangers = [Liar::connect(&site), Liar::connect(&site)];
    for stranger in strangers {
        assert_eq!(stranger.hear(), None);
    }
    let took = begun.elapsed();
    assert!(
        took > Duration::from_millis(1900) && took < Duration::from_secs(4),
        "{took:?}"
    );
    good.listens(&site);
}

/// Those that say nothing are few, so that they keep nobody out.
#[test]
fn one_account_keeps_few_strangers() {
    let site = site();
    let strangers: Vec<_> = (0..200).map(|_| Liar::connect(&site)).collect();
    let last = strangers.last().expect("many");
    let reason = AppRefusal::Full;
    assert_eq!(last.hear(), Some((AppMessage::Refused { reason }, 0)));
    assert_eq!(last.hear(), None);
    drop(strangers);
    Liar::introduced(&site).listens(&site);
}

/// What it asks for has to be answered, and the answers are kept for it, up to a few
/// megabytes.
#[test]
fn who_does_not_listen_is_let_go() {
    let site = site();
    let mut liars: Vec<_> = (0..4).map(|_| Liar::introduced(&site)).collect();
    let good = Liar::introduced(&site);
    let mut bytes = Vec::new();
    AppMessage::Listen { number: 1 }.emit(&mut bytes);
    let end = Instant::now() + Duration::from_secs(20);
    while !liars.is_empty() {
        assert!(Instant::now() < end, "{} are still there", liars.len());
        liars.retain(|liar| match send_with(liar.socket.as_fd(), &bytes, &[]) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        });
    }
    good.listens(&site);
    assert_eq!(site.apps.refused().get("deaf"), Some(&4));
}
