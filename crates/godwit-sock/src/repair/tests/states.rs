//! Each state of a connection, moved (RFC 9293 section 3.3.2).

use godwit_wire::SeqNumber;

use super::*;

/// ESTABLISHED, with a request that the application has not read.
#[test]
fn an_established_socket_with_unread_bytes() {
    alone(|| {
        for kind in KINDS {
            let (mut server, mut client) = connection(kind);
            client.write_all(b"first").expect("it is open");
            expect(&mut server, b"first");
            client.write_all(b"unread").expect("it is open");
            let (snapshot, restored) = moved(server);
            assert_eq!(snapshot.queues.recv, b"unread");
            let mut server = released(restored);
            expect(&mut server, b"unread");
            for question in [&b"more"[..], b"and more"] {
                client.write_all(question).expect("it is open");
                expect(&mut server, question);
                server.write_all(question).expect("it is open");
                expect(&mut client, question);
            }
        }
    });
}

/// ESTABLISHED behind a zero window: most of the send queue was never sent.
#[test]
fn an_established_socket_with_unsent_bytes() {
    alone(|| {
        for kind in KINDS {
            let (mut server, mut client) = connection(kind);
            let all = pattern(20_000_000);
            let written = write_much(&mut server, &all);
            let (snapshot, restored) = moved(server);
            assert!(snapshot.queues.unsent > 0, "{snapshot}");
            let mut server = released(restored);
            let rest = all[written..].to_vec();
            let writer = thread::spawn(move || server.write_all(&rest).map(|()| server));
            expect(&mut client, &all);
            drop(writer.join().expect("no panic").expect("it is open"));
        }
    });
}

/// FIN-WAIT-2: our FIN is acknowledged, the client goes on.
#[test]
fn a_socket_that_has_ended_its_stream() {
    alone(|| {
        for kind in KINDS {
            let (server, mut client) = connection(kind);
            server.shutdown(Shutdown::Write).expect("it is open");
            expect_end(&mut client);
            wait_state(&server, TcpState::FinWait2);
            let (snapshot, restored) = moved(server);
            assert_eq!(snapshot.state, TcpState::FinWait2);
            let mut server = released(restored);
            client.write_all(b"late").expect("half open");
            expect(&mut server, b"late");
            drop(client);
            expect_end(&mut server);
        }
    });
}

/// CLOSE-WAIT: the client's FIN is told again, behind what was not read, or after
/// it and itself were.
#[test]
fn a_socket_whose_client_has_ended_its_stream() {
    alone(|| {
        for (kind, is_read) in KINDS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
            let (mut server, mut client) = connection(kind);
            client.write_all(b"all").expect("it is open");
            client.shutdown(Shutdown::Write).expect("it is open");
            wait_state(&server, TcpState::CloseWait);
            // Acknowledged, or it would come again.
            wait_state(&client, TcpState::FinWait2);
            if is_read {
                expect(&mut server, b"all");
                expect_end(&mut server);
            }
            let (snapshot, restored) = moved(server);
            assert_eq!(snapshot.state, TcpState::CloseWait);
            let mut server = released(restored);
            if !is_read {
                expect(&mut server, b"all");
            }
            expect_end(&mut server);
            assert_eq!(state(&server), TcpState::CloseWait as u8);
            server.write_all(b"answer").expect("half open");
            expect(&mut client, b"answer");
            server.shutdown(Shutdown::Write).expect("half open");
            expect_end(&mut client);
            wait_closed(&server);
        }
    });
}

/// FIN-WAIT-1: our FIN waits behind a zero window, with 20 MB before it.
#[test]
fn a_socket_with_a_queued_fin() {
    alone(|| {
        for kind in KINDS {
            let (mut server, mut client) = connection(kind);
            let all = pattern(20_000_000);
            let written = write_much(&mut server, &all);
            server.shutdown(Shutdown::Write).expect("it is open");
            let (snapshot, restored) = moved(server);
            assert_eq!(snapshot.state, TcpState::FinWait1);
            assert!(snapshot.queues.unsent > 0, "{snapshot}");
            let mut server = released(restored);
            client.write_all(b"late").expect("half open");
            expect(&mut server, b"late");
            expect(&mut client, &all[..written]);
            expect_end(&mut client);
            wait_state(&server, TcpState::FinWait2);
            drop(client);
            expect_end(&mut server);
        }
    });
}

/// LAST-ACK and CLOSING: both have ended their streams, ours is not acknowledged
/// to its end. Behind the client's FIN, ours is in LAST-ACK.
#[test]
fn a_socket_of_which_both_sides_have_ended() {
    use TcpState::{Closing, LastAck};
    alone(|| {
        for (kind, which) in KINDS
            .into_iter()
            .flat_map(|it| [(it, LastAck), (it, Closing)])
        {
            let (mut server, mut client) = connection(kind);
            let all = pattern(20_000_000);
            let written = write_much(&mut server, &all);
            client.write_all(b"unread").expect("it is open");
            if which == Closing {
                server.shutdown(Shutdown::Write).expect("it is open");
                wait_state(&server, TcpState::FinWait1);
            }
            client.shutdown(Shutdown::Write).expect("it is open");
            if which == LastAck {
                wait_state(&server, TcpState::CloseWait);
                server.shutdown(Shutdown::Write).expect("half open");
            }
            wait_state(&server, which);
            let (snapshot, restored) = moved(server);
            assert_eq!(snapshot.state, which);
            let mut server = released(restored);
            wait_state(&server, LastAck);
            expect(&mut server, b"unread");
            expect_end(&mut server);
            expect(&mut client, &all[..written]);
            expect_end(&mut client);
            wait_closed(&server);
        }
    });
}

/// Both queues may be long, and on either side of 2^32.
#[test]
fn a_socket_whose_numbers_wrap() {
    alone(|| {
        for (kind, distance) in KINDS.into_iter().zip([1, 1000, 100_000]) {
            let (mut server, mut client) = wrapping(kind, distance);
            let (up, down) = (pattern(3_000_000), pattern(20_000_000));
            let written = write_much(&mut server, &down);
            let sent_up = write_much(&mut client, &up);
            let (snapshot, restored) = moved(server);
            let (start, end) = (snapshot.copied_seq(), snapshot.rcv_nxt);
            assert!(end.0 < start.0, "{snapshot}");
            assert!(snapshot.write_seq.0 < u32::MAX - distance, "{snapshot}");
            let mut server = released(restored);
            let reader = thread::spawn(move || {
                expect(&mut server, &up[..sent_up]);
                server
            });
            expect(&mut client, &down[..written]);
            let mut server = reader.join().expect("it is exact");
            server.write_all(b"on").expect("it is open");
            expect(&mut client, b"on");
        }
    });
}

/// Forgotten while it is paused, a socket goes on.
#[test]
fn a_paused_socket_that_is_dropped_resumes() {
    alone(|| {
        let (server, mut client) = connection(KINDS[0]);
        let copy = server.try_clone().expect("a descriptor more");
        let paused = PausedSocket::pause(OwnedFd::from(server)).expect("it can be moved");
        drop(paused);
        let mut server = copy;
        server.write_all(b"still here").expect("it resumed");
        expect(&mut client, b"still here");
    });
}

/// Repair mode takes SO_REUSEADDR away, and a server could not be started again.
#[test]
fn a_paused_socket_is_not_in_the_way_of_its_listener() {
    use nix::sys::socket::{getsockopt, sockopt::ReuseAddr};
    alone(|| {
        for resumes in [false, true] {
            let (server, _client) = connection(KINDS[0]);
            let copy = server.try_clone().expect("a descriptor more");
            assert!(getsockopt(&copy, ReuseAddr).expect("an option"));
            let paused = PausedSocket::pause(OwnedFd::from(server)).expect("it can be moved");
            if resumes {
                let _ = paused.resume(Release::Probe).expect("it goes on");
            } else {
                drop(paused);
            }
            assert!(
                getsockopt(&copy, ReuseAddr).expect("an option"),
                "{resumes}"
            );
        }
    });
}

/// Abort after the restore: the target says nothing, the source goes on.
#[test]
fn an_abandoned_target_is_silent() {
    alone(|| {
        let (server, mut client) = connection(KINDS[0]);
        let paused = PausedSocket::pause(OwnedFd::from(server)).expect("it can be moved");
        let snapshot = snapshot(&paused);
        thread::spawn(move || {
            leave();
            let restored = RestoredSocket::restore(&snapshot, 0).expect("nobody has it here");
            restored.abandon();
        })
        .join()
        .expect("it can be restored");
        let mut server = TcpStream::from(paused.resume(Release::Silently).expect("it was paused"));
        server.write_all(b"after all").expect("it resumed");
        expect(&mut client, b"after all");
    });
}

/// A connection of which both directions are `distance` bytes before 2^32.
fn wrapping(kind: (&str, &str), distance: u32) -> (TcpStream, TcpStream) {
    let (server, client) = connection(kind);
    let (server, client) = (stopped(server), stopped(client));
    let start = SeqNumber(u32::MAX - distance);
    let restored = [server, client].map(|mut snapshot| {
        snapshot.write_seq = start;
        snapshot.rcv_nxt = start;
        snapshot.window.snd_wl1 = start;
        snapshot.window.rcv_wup = start;
        RestoredSocket::restore(&snapshot, 0).expect("nobody else has it")
    });
    let [server, client] = restored.map(released);
    (server, client)
}
