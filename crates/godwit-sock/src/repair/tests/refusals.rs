//! What can't be moved exactly is not moved.

use std::os::fd::BorrowedFd;

use super::*;

/// The same connection twice in one kernel: refused, the first one lives on.
#[test]
fn a_connection_that_is_here_already_is_refused() {
    alone(|| {
        let (server, _client) = connection(KINDS[1]);
        let paused = PausedSocket::pause(OwnedFd::from(server)).expect("it can be moved");
        let snapshot = snapshot(&paused);
        let error = RestoredSocket::restore(&snapshot, 0).expect_err("it is paused here");
        assert!(matches!(error, RestoreError::Exists), "{error:?}");
    });
}

/// A byte with the urgent flag (RFC 6093): TCP_REPAIR would lose it.
#[test]
fn urgent_data_are_refused() {
    alone(|| {
        let (server, client) = connection(KINDS[0]);
        let flags = nix::sys::socket::MsgFlags::MSG_OOB;
        let raw = std::os::fd::AsRawFd::as_raw_fd(&client);
        nix::sys::socket::send(raw, b"abcU", flags).expect("it is open");
        let (socket, error) = PausedSocket::pause(OwnedFd::from(server)).expect_err("urgent");
        assert!(matches!(error, PauseError::Urgent), "{error:?}");
        expect(&mut TcpStream::from(socket), b"abc");
    });
}

/// Bytes that the kernel counts and does not show make no snapshot.
#[test]
fn a_queue_that_hides_bytes_is_refused() {
    alone(|| {
        let (server, mut client) = connection(KINDS[0]);
        client.write_all(b"four").expect("it is open");
        let paused = PausedSocket::pause(OwnedFd::from(server)).expect("it can be moved");
        let wrong = |fd: BorrowedFd<'_>| {
            let mut hidden = view().hidden(fd)?;
            hidden.copied_seq = hidden.copied_seq - 2;
            Ok(hidden)
        };
        let error = paused.snapshot(wrong).expect_err("two are missing");
        let said = error.to_string();
        assert_eq!(said, "the receive queue shows 4 bytes, the kernel counts 6");
    });
}

/// A listener is none that can be moved.
#[test]
fn a_socket_without_a_connection_is_refused() {
    alone(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (_, error) = PausedSocket::pause(OwnedFd::from(listener)).expect_err("it listens");
        assert!(matches!(error, PauseError::State("LISTEN")), "{error:?}");
    });
}
