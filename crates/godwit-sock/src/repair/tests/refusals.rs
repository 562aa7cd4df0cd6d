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
        available().expect("other sockets can be");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (_, error) = PausedSocket::pause(OwnedFd::from(listener)).expect_err("it listens");
        assert!(matches!(error, PauseError::State("LISTEN")), "{error:?}");
    });
}

/// The states in which there is no connection, and the one in which there is none
/// yet although it was accepted.
#[test]
fn states_without_a_connection_are_named() {
    let said = |number| pause::unmovable(number).to_string();
    let names = [2, 6, 7, 10].map(said);
    for (said, name) in names
        .iter()
        .zip(["SYN-SENT", "TIME-WAIT", "CLOSED", "LISTEN"])
    {
        assert!(said.contains(name), "{said}");
    }
    assert!(matches!(pause::unmovable(3), PauseError::FastOpen));
}

/// TCP-MD5: the keys stay in the kernel.
#[test]
fn signed_segments_are_refused() {
    alone(|| {
        let (server, _client) = connection(KINDS[0]);
        // struct tcp_md5sig: an address, flags, prefix and key length, key.
        let mut signature = [0; 216];
        signature[..2].copy_from_slice(&2u16.to_ne_bytes());
        signature[4..8].copy_from_slice(&[10, 99, 0, 1]);
        signature[130..132].copy_from_slice(&3u16.to_ne_bytes());
        signature[136..139].copy_from_slice(b"key");
        let set = sys::TCP_MD5SIG.set_bytes(server.as_fd(), &signature);
        set.expect("the kernel knows of it");
        let paused = PausedSocket::pause(OwnedFd::from(server)).expect("it is connected");
        let error = paused.snapshot(|fd| view().hidden(fd));
        assert!(matches!(error, Err(SnapshotError::Signed)), "{error:?}");
    });
}

/// A layer above TCP that is the kernel's (kTLS), where this one has it.
#[test]
fn sockets_with_a_layer_above_are_refused() {
    alone(|| {
        let (server, _client) = connection(KINDS[0]);
        match sys::TCP_ULP.set_bytes(server.as_fd(), b"tls") {
            Ok(()) => {
                let (_, error) = PausedSocket::pause(server.into()).expect_err("its keys stay");
                assert!(matches!(error, PauseError::UpperLayer(name) if name == "tls"));
            }
            Err(error) => eprintln!("no kTLS here: {error:?}"),
        }
    });
}

/// Whatever the view says of a socket that no other kernel would have has a reason of its
/// own: such of these as this kernel has not are said by nobody else.
#[test]
fn what_only_this_kernel_has_is_refused() {
    use godwit_wire::snapshot::Traits;
    alone(|| {
        let (server, _client) = connection(KINDS[0]);
        let paused = PausedSocket::pause(OwnedFd::from(server)).expect("it can be moved");
        let refused = |say: fn(&mut Traits)| {
            let said = paused.snapshot(|fd| {
                let mut hidden = view().hidden(fd)?;
                say(&mut hidden.traits);
                Ok(hidden)
            });
            said.expect_err("it can't be moved")
        };
        let error = refused(|it| it.is_urgent = true);
        assert!(matches!(error, SnapshotError::Urgent), "{error:?}");
        let error = refused(|it| it.is_signed = true);
        assert!(matches!(error, SnapshotError::Signed), "{error:?}");
        let error = refused(|it| it.is_layered = true);
        assert!(matches!(error, SnapshotError::UpperLayer), "{error:?}");
        let error = refused(|it| it.is_taken = true);
        assert!(matches!(error, SnapshotError::Taken), "{error:?}");
        paused
            .snapshot(|fd| view().hidden(fd))
            .expect("it is none of these");
    });
}

/// Multipath TCP (RFC 8684) has no repair mode.
#[test]
fn multipath_sockets_are_refused() {
    use nix::sys::socket::{Backlog, SockaddrIn, accept, bind, connect, getsockname, listen};
    alone(|| {
        let make = || -> OwnedFd {
            // SAFETY: numbers in, a number out.
            let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP) };
            assert!(fd >= 0, "the kernel has it");
            // SAFETY: a fresh descriptor that is nobody else's.
            unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
        };
        let (listener, client) = (make(), make());
        let raw = |fd: &OwnedFd| std::os::fd::AsRawFd::as_raw_fd(fd);
        bind(raw(&listener), &SockaddrIn::new(10, 99, 0, 1, 0)).expect("it is ours");
        listen(&listener, Backlog::new(1).expect("a small one")).expect("it is bound");
        let service: SockaddrIn = getsockname(raw(&listener)).expect("it is bound");
        connect(raw(&client), &service).expect("it listens");
        let fd = accept(raw(&listener)).expect("it came");
        // SAFETY: a fresh descriptor that is nobody else's.
        let server = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
        let (_, error) = PausedSocket::pause(server).expect_err("it has subflows");
        assert!(matches!(error, PauseError::Multipath), "{error:?}");
    });
}

/// More than a snapshot may hold is not even read.
#[test]
fn queues_that_are_too_long_are_refused() {
    alone(|| {
        let (server, _client) = connection(KINDS[0]);
        let paused = PausedSocket::pause(OwnedFd::from(server)).expect("it can be moved");
        let wrong = |fd: BorrowedFd<'_>| {
            let mut hidden = view().hidden(fd)?;
            hidden.copied_seq = hidden.copied_seq - 70_000_000;
            Ok(hidden)
        };
        let error = paused.snapshot(wrong).expect_err("70 MB");
        let said = error.to_string();
        let wanted = "the receive queue holds 70000000 bytes, more than 67108864";
        assert_eq!(said, wanted);
    });
}

/// A segment that comes while a socket is read is no harm, many are; what the
/// application writes is.
#[test]
fn sockets_that_do_not_stand_still_are_refused() {
    alone(|| {
        let (server, _client) = connection(KINDS[0]);
        let paused = PausedSocket::pause(OwnedFd::from(server)).expect("it can be moved");
        let looks = std::cell::Cell::new(0);
        let after = |calm: u32, change: fn(&mut godwit_wire::snapshot::Hidden, u32)| {
            looks.set(0);
            paused.snapshot(|fd| {
                looks.set(looks.get() + 1);
                let mut hidden = view().hidden(fd)?;
                change(&mut hidden, looks.get().min(calm));
                Ok(hidden)
            })
        };
        let acknowledged = |hidden: &mut godwit_wire::snapshot::Hidden, look| {
            hidden.snd_una += look;
        };
        after(2, acknowledged).expect("only once");
        let error = after(100, acknowledged).expect_err("each time");
        assert!(matches!(error, SnapshotError::Restless), "{error:?}");
        let error = after(100, |hidden, look| {
            hidden.write_seq = hidden.write_seq + look - 1;
            hidden.snd_una = hidden.write_seq;
        });
        assert!(matches!(error, Err(SnapshotError::Written)), "{error:?}");
        let error = paused.snapshot(|_| Err(std::io::ErrorKind::Unsupported.into()));
        assert!(matches!(error, Err(SnapshotError::Hidden(_))), "{error:?}");
    });
}
