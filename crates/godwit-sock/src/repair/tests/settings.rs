//! What a socket knows and what has been set goes along.

use nix::sys::socket::{setsockopt, sockopt};

use super::*;

/// What no socket option sets goes along all the same: congestion window, slow
/// start threshold, ECN; and the algorithm is the one that it was.
#[test]
fn what_a_socket_has_learnt() {
    alone(|| {
        std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1").expect("root may");
        for (kind, algorithm) in KINDS.into_iter().zip(["cubic", "bbr", "reno"]) {
            let (server, mut client) = connection(kind);
            setsockopt(&server, sockopt::TcpCongestion, &algorithm.into()).expect("it is known");
            let (mut snapshot, first) = moved(server);
            assert!(snapshot.options.ecn, "{:?}", snapshot.options);
            assert_eq!(snapshot.congestion.name, algorithm.as_bytes());
            first.abandon();
            snapshot.congestion.snd_cwnd = 77;
            snapshot.congestion.snd_ssthresh = 55;
            let restored = RestoredSocket::restore(&snapshot, 0).expect("nobody else has it");
            view()
                .carry(restored.as_fd(), &snapshot)
                .expect("it is restored");
            let hidden = view()
                .hidden(restored.as_fd())
                .expect("it is in repair mode");
            assert_eq!(hidden.snd_cwnd, 77, "{algorithm}");
            // BBR has no threshold: its start says so.
            let threshold = if algorithm == "bbr" { i32::MAX } else { 55 };
            assert_eq!(hidden.snd_ssthresh.cast_signed(), threshold, "{algorithm}");
            let mut server = released(restored);
            server.write_all(b"on").expect("it is open");
            expect(&mut client, b"on");
            let (snapshot, _) = moved(server);
            assert!(snapshot.options.ecn, "{:?}", snapshot.options);
            assert_eq!(snapshot.congestion.name, algorithm.as_bytes());
        }
    });
}

/// What the application has set is as it was, however often it moves; buffers
/// that were made larger for the journey too.
#[test]
fn what_the_application_has_set() {
    alone(|| {
        for kind in KINDS {
            let (server, mut client) = connection(kind);
            setsockopt(&server, sockopt::SndBuf, &30_000).expect("it is open");
            setsockopt(&server, sockopt::TcpKeepIdle, &77).expect("it is open");
            setsockopt(&server, sockopt::KeepAlive, &true).expect("it is open");
            let linger = libc::linger {
                l_onoff: 1,
                l_linger: 7,
            };
            setsockopt(&server, sockopt::Linger, &linger).expect("it is open");
            sys::TCP_NOTSENT_LOWAT
                .set(server.as_fd(), 5)
                .expect("it is open");
            let (tos, tclass) = (sys::IP_TOS, sys::IPV6_TCLASS);
            let class = if kind.1.contains(':') { tclass } else { tos };
            class.set(server.as_fd(), 0x10).expect("it is open");
            server.set_nonblocking(true).expect("it is open");
            client.write_all(&pattern(50_000)).expect("it is open");
            let (first, restored) = moved(server);
            let settings = &first.settings;
            assert_eq!((settings.traffic_class, settings.linger), (0x10, Some(7)));
            assert_eq!((settings.keep_idle, settings.notsent_lowat), (77, 5));
            assert_eq!((settings.sndbuf, settings.sndbuf_locked), (60_000, true));
            assert!(settings.nonblocking && !settings.rcvbuf_locked);
            let (second, _) = moved(released(restored));
            assert_eq!(first.settings, second.settings);
            assert_eq!(first.options, second.options);
            assert_eq!(first.queues, second.queues);
        }
    });
}

/// The options that are not for the program are the kernel's business as before,
/// and a socket that is not in repair mode is not shown.
#[test]
fn a_view_is_nobody_elses() {
    alone(|| {
        let (server, _client) = connection(KINDS[0]);
        let before = sys::TCP_MAXSEG.get(server.as_fd()).expect("it is open");
        view().hidden(server.as_fd()).expect_err("it is not paused");
        let during = sys::TCP_MAXSEG.get(server.as_fd()).expect("it is open");
        assert_eq!(before, during);
        // Longer than a page.
        let mut info = vec![0; 70_000];
        let filled = sys::TCP_INFO.get_bytes(server.as_fd(), &mut info);
        let filled = filled.expect("it is open");
        assert!(filled > 200 && info[0] == 1, "{filled}");
    });
}

/// Segments are as long as they were. (The kernel counts with 536 bytes when it
/// connects in repair mode, and does not think of it again.)
#[test]
fn how_long_segments_may_be() {
    alone(|| {
        for kind in KINDS {
            let (server, _client) = connection(kind);
            let before = snd_mss(&server);
            let (_, restored) = moved(server);
            let server = released(restored);
            assert_eq!(snd_mss(&server), before);
        }
    });
}

/// A kernel that is short of memory takes back the window that it has offered, and
/// would not take such a window from us.
#[test]
fn a_window_that_has_shrunk() {
    alone(|| {
        for kind in KINDS {
            let (server, mut client) = connection(kind);
            let mut snapshot = stopped(server);
            snapshot.window.snd_wl1 = snapshot.rcv_nxt + 1000;
            snapshot.window.rcv_wnd = 0;
            let restored = RestoredSocket::restore(&snapshot, 0).expect("a window of nothing");
            let mut server = released(restored);
            client.write_all(b"on").expect("it is open");
            expect(&mut server, b"on");
        }
    });
}

/// `tcpi_snd_mss` of include/uapi/linux/tcp.h.
fn snd_mss(stream: &TcpStream) -> u32 {
    let mut info = [0; 20];
    let filled = sys::TCP_INFO.get_bytes(stream.as_fd(), &mut info);
    filled.expect("it is open");
    u32::from_ne_bytes(*info.last_chunk().expect("it is long enough"))
}
