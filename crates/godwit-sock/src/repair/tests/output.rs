//! What is not acknowledged is read while the connection goes on, and a connection
//! that was stopped and left is let go.

use std::io::ErrorKind;
use std::os::fd::BorrowedFd;

use nix::sys::socket::{setsockopt, sockopt};

use super::super::queue::Queue;
use super::super::sys::TCP_REPAIR;
use super::*;

/// As different from each other as bytes are.
fn pattern(from: usize, length: usize) -> Vec<u8> {
    let byte = |at: usize| (at % 251).to_le_bytes()[0];
    (from..from + length).map(byte).collect()
}

fn copy(socket: &TcpStream) -> OwnedFd {
    let socket = socket.as_fd().try_clone_to_owned();
    socket.expect("descriptors are left")
}

/// Writes until the client's buffer and our own are full; how many bytes.
fn fill(server: &mut TcpStream) -> usize {
    server.set_nonblocking(true).expect("it is open");
    let mut written = 0;
    loop {
        match server.write(&pattern(written, 10_000)) {
            Ok(count) => written += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    server.set_nonblocking(false).expect("it is open");
    written
}

/// The client reads nothing, and its window is shut: some bytes are on their way, and
/// others were never sent.
#[test]
fn what_is_not_acknowledged_is_read() {
    alone(|| {
        for kind in KINDS {
            let (mut server, mut client) = connection(kind);
            let nothing = unacknowledged(copy(&server), u64::MAX).expect("it is open");
            assert_eq!((nothing.position.written, nothing.output.len()), (0, 0));
            setsockopt(&client, sockopt::RcvBuf, &20_000).expect("it is open");
            let written = fill(&mut server);
            let found = unacknowledged(copy(&server), u64::MAX).expect("it is open");
            assert_eq!(found.position.written, written as u64);
            let from = written - found.output.len();
            assert!(from as u64 <= found.position.acknowledged && from < written);
            assert!(found.output == pattern(from, written - from), "{kind:?}");
            let error = unacknowledged(copy(&server), 10).expect_err("more than ten");
            assert!(matches!(error, OutputError::TooLarge(_)), "{error}");
            server.shutdown(Shutdown::Write).expect("it is open");
            let mut heard = Vec::new();
            client.read_to_end(&mut heard).expect("all of it comes");
            assert!(heard == pattern(0, written), "{kind:?}");
        }
    });
}

/// Each time a chunk was written and the client acknowledges just then.
#[test]
fn it_is_exact_while_the_client_acknowledges() {
    alone(|| {
        let (mut server, mut client) = connection(KINDS[0]);
        let (chunk, rounds) = (7_000, 1_000);
        let reader = thread::spawn(move || {
            let mut heard = Vec::new();
            client.read_to_end(&mut heard).map(|_| heard)
        });
        let mut found_some = 0;
        for round in 1..=rounds {
            let written = chunk * round;
            let more = pattern(written - chunk, chunk);
            server.write_all(&more).expect("it is open");
            let found = unacknowledged(copy(&server), u64::MAX).expect("it is open");
            assert_eq!(found.position.written, written as u64);
            let from = written - found.output.len();
            assert!(from as u64 <= found.position.acknowledged);
            assert!(found.output == pattern(from, written - from), "{round}");
            found_some += usize::from(!found.output.is_empty());
        }
        server.shutdown(Shutdown::Write).expect("it is open");
        let heard = reader.join().expect("it reads").expect("all of it comes");
        assert!(heard == pattern(0, chunk * rounds));
        eprintln!("{found_some} of {rounds} times something was not acknowledged");
    });
}

fn is_stopped(socket: BorrowedFd<'_>) -> bool {
    TCP_REPAIR.get(socket).expect("it is TCP") != 0
}

/// Whoever has stopped it died in the middle of reading its queue.
#[test]
fn a_connection_that_was_left_is_let_go() {
    alone(|| {
        for kind in KINDS {
            let (mut server, mut client) = connection(kind);
            assert!(!mend(server.as_fd()).expect("it is TCP"));
            let paused = PausedSocket::pause(copy(&server)).expect("it runs");
            Queue::Send.choose(paused.as_fd()).expect("it is stopped");
            // Its end is not told to the socket.
            std::mem::forget(paused);
            assert!(is_stopped(server.as_fd()));
            server.read(&mut [0]).expect_err("it stands still");
            assert!(mend(server.as_fd()).expect("it is TCP"));
            assert!(!is_stopped(server.as_fd()));
            server.write_all(b"goes on").expect("it is open");
            let mut heard = [0; 7];
            client.read_exact(&mut heard).expect("it comes");
            assert_eq!(&heard, b"goes on");
        }
    });
}
