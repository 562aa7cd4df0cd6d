//! One twin that is kept: where it stands, and how it follows its server.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd as _, AsRawFd as _};

use godwit_sock::StreamPosition;
use godwit_wire::app::Carried;
use godwit_wire::{FlowId, ShareId};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send, setsockopt, sockopt};

use crate::apps::Exported;

/// Bytes that are thrown away or written in one call.
const PIECE: usize = 256 << 10;

/// A twin, and the snapshot that it stands at.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) flow: FlowId,
    pub(super) share: ShareId,
    socket: TcpStream,
    /// `None`: where the connection begins.
    snapshot: Option<Carried>,
    /// A later one, which it has not come to.
    next: Option<Exported>,
    /// Bytes that are still to be written in the server's place.
    owed: u64,
}

/// Whether a twin has anything left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It stands at the last snapshot.
    Stands,
    /// What its server had read has not come here yet.
    Hears,
    /// What its server had written does not go out yet.
    Owes,
}

impl Kept {
    pub(super) const fn new(flow: FlowId, share: ShareId, socket: TcpStream) -> Self {
        Self {
            flow,
            share,
            socket,
            snapshot: None,
            next: None,
            owed: 0,
        }
    }

    /// Takes note of a later snapshot: the one before it is not gone to any more.
    pub(super) fn expect(&mut self, snapshot: Exported) {
        self.next = Some(snapshot);
    }

    /// Goes on to the latest snapshot as far as it can now. `buffer` is for what is
    /// thrown away, and has the bytes that are written: which ones does not matter.
    ///
    /// # Errors
    /// If the connection is over.
    pub(super) fn go_on(&mut self, buffer: &mut Vec<u8>) -> io::Result<Progress> {
        buffer.resize(PIECE, 0);
        loop {
            if !self.write(buffer)? {
                return Ok(Progress::Owes);
            }
            let Some(next) = &self.next else {
                return Ok(Progress::Stands);
            };
            let at = StreamPosition::of(self.socket.as_fd())?;
            let read = next.place.read.checked_sub(at.read);
            let written = next.place.written.checked_sub(at.written);
            match (read, written) {
                (Some(read), Some(_)) if read > at.unread => return Ok(Progress::Hears),
                (Some(read), Some(written)) => {
                    self.discard(read, buffer)?;
                    self.owed = written;
                    self.snapshot = self.next.take().map(|next| next.carried);
                }
                // Older than where it stands.
                (Some(_) | None, _) => self.next = None,
            }
        }
    }

    /// What has come is read, and goes nowhere.
    fn discard(&self, mut bytes: u64, buffer: &mut [u8]) -> io::Result<()> {
        while bytes > 0 {
            let size = usize::try_from(bytes).unwrap_or(PIECE).min(buffer.len());
            let piece = buffer.get_mut(..size).unwrap_or_default();
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
            match recv(self.socket.as_raw_fd(), piece, flags) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = bytes.saturating_sub(count as u64),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Whether all that is owed has gone into the socket.
    fn write(&mut self, buffer: &[u8]) -> io::Result<bool> {
        while self.owed > 0 {
            let size = usize::try_from(self.owed).unwrap_or(PIECE);
            let piece = buffer.get(..size.min(buffer.len())).unwrap_or_default();
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match send(self.socket.as_raw_fd(), piece, flags) {
                Ok(count) => self.owed = self.owed.saturating_sub(count as u64),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }

    /// A snapshot whose input has not come is of no use to whoever serves it now.
    pub(super) fn expect_no_more(&mut self) {
        self.next = None;
    }

    /// Whether its connection has ended.
    pub(super) fn is_over(&self) -> bool {
        StreamPosition::of(self.socket.as_fd())
            .is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock)
    }

    /// The same, standing at that snapshot.
    pub(super) fn at(mut self, snapshot: Option<Carried>) -> Self {
        self.snapshot = snapshot;
        self
    }

    /// The twin and the snapshot at which it stands.
    pub(super) fn into_parts(self) -> (TcpStream, Option<Carried>) {
        (self.socket, self.snapshot)
    }

    /// Ends it by a RST, which its data path does not let out.
    pub(super) fn end(self) {
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        if let Err(error) = setsockopt(&self.socket, sockopt::Linger, &linger) {
            tracing::debug!(flow = %self.flow.key, %error, "a kept twin lingers");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener};
    use std::time::{Duration, Instant};

    use godwit_wire::app::{SnapshotKind, SnapshotPlace};
    use godwit_wire::{FlowKey, SeqNumber};

    use super::*;

    fn pair() -> (TcpStream, Kept) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let client = TcpStream::connect(address).expect("it listens");
        let (twin, _) = listener.accept().expect("somebody connects");
        let nowhere = SocketAddr::from(([10, 9, 0, 10], 1)).into();
        let key = FlowKey {
            client: nowhere,
            service: nowhere,
        };
        let irs = SeqNumber(0);
        (client, Kept::new(FlowId { key, irs }, ShareId(0), twin))
    }

    fn snapshot(read: u64, written: u64, name: &str) -> Exported {
        let kind = SnapshotKind::Regenerable;
        let bytes = name.as_bytes().to_vec();
        Exported {
            place: SnapshotPlace {
                offset: 0,
                length: 0,
                kind,
                read,
                written,
            },
            carried: Carried { kind, bytes },
        }
    }

    fn position(kept: &Kept) -> (u64, u64) {
        let at = StreamPosition::of(kept.socket.as_fd()).expect("it is connected");
        (at.read, at.written)
    }

    /// Goes on until it does not say `not` any more.
    fn go_on(kept: &mut Kept, not: Option<Progress>) -> Progress {
        let (end, mut buffer) = (Instant::now() + Duration::from_secs(10), Vec::new());
        loop {
            let progress = kept.go_on(&mut buffer).expect("it is connected");
            if Some(progress) != not || Instant::now() > end {
                return progress;
            }
        }
    }

    fn name(kept: &Kept) -> Option<&[u8]> {
        kept.snapshot.as_ref().map(|carried| &carried.bytes[..])
    }

    #[test]
    fn a_twin_goes_where_its_server_was() {
        let (mut client, mut kept) = pair();
        client.write_all(&[1; 100]).expect("it is open");
        assert_eq!(go_on(&mut kept, None), Progress::Stands);
        assert_eq!((position(&kept), name(&kept)), ((0, 0), None));
        kept.expect(snapshot(40, 10, "first"));
        assert_eq!(go_on(&mut kept, Some(Progress::Hears)), Progress::Stands);
        assert_eq!(
            (position(&kept), name(&kept)),
            ((40, 10), Some(&b"first"[..]))
        );
        // What its server had read is still on its way to here.
        kept.expect(snapshot(101, 10, "third"));
        assert_eq!(go_on(&mut kept, None), Progress::Hears);
        assert_eq!(
            (position(&kept), name(&kept)),
            ((40, 10), Some(&b"first"[..]))
        );
        client.write_all(&[1]).expect("it is open");
        assert_eq!(go_on(&mut kept, Some(Progress::Hears)), Progress::Stands);
        assert_eq!(
            (position(&kept), name(&kept)),
            ((101, 10), Some(&b"third"[..]))
        );
        client
            .read_exact(&mut [0; 10])
            .expect("as much as was written");
    }

    /// Late or wrong: it never goes back, in neither stream.
    #[test]
    fn a_twin_does_not_go_back() {
        let (mut client, mut kept) = pair();
        client.write_all(&[1; 100]).expect("it is open");
        kept.expect(snapshot(40, 10, "here"));
        assert_eq!(go_on(&mut kept, Some(Progress::Hears)), Progress::Stands);
        for (read, written) in [(39, 10), (40, 9), (0, 0), (50, 0), (0, 50)] {
            kept.expect(snapshot(read, written, "earlier"));
            assert_eq!(go_on(&mut kept, None), Progress::Stands);
            assert_eq!(
                (position(&kept), name(&kept)),
                ((40, 10), Some(&b"here"[..]))
            );
        }
    }

    /// More than goes out at a time, and nobody waits for it.
    #[test]
    fn what_is_owed_is_written_when_there_is_room() {
        let (client, mut kept) = pair();
        let much = 64 << 20;
        kept.expect(snapshot(0, much, "far"));
        assert_eq!(go_on(&mut kept, None), Progress::Owes);
        let reader = std::thread::spawn(move || {
            let mut rest = client.try_clone().expect("descriptors are left").take(much);
            io::copy(&mut rest, &mut io::sink()).expect("it comes");
            client.shutdown(std::net::Shutdown::Both)
        });
        assert_eq!(go_on(&mut kept, Some(Progress::Owes)), Progress::Stands);
        assert_eq!(
            (position(&kept), name(&kept)),
            ((0, much), Some(&b"far"[..]))
        );
        reader.join().expect("it ends").expect("it was open");
    }
}
