//! One twin that is kept: where it stands, and how it follows its server.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd as _, AsRawFd as _};

use godwit_bpf::FlowState;
use godwit_core::MonoTime;
use godwit_core::snapshot::exports::since;
use godwit_core::snapshot::parcel::Parcel;
use godwit_sock::StreamPosition;
use godwit_wire::app::{Carried, SnapshotPlace};
use godwit_wire::{FlowId, SeqNumber, ShareId};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send, setsockopt, sockopt};

/// Bytes that are thrown away or written in one call.
const PIECE: usize = 256 << 10;

/// A twin, and the snapshot that it stands at.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) flow: FlowId,
    pub(super) share: ShareId,
    socket: TcpStream,
    /// Bytes of both streams that were before its socket, modulo 2^32.
    origin: (u32, u32),
    /// `None`: where the connection begins.
    snapshot: Option<Carried>,
    /// A later one, which it has not come to.
    next: Option<Parcel>,
    /// Bytes that are still to be written in the server's place, whichever.
    owed: u64,
    /// What is to be written then, as the server has.
    output: VecDeque<u8>,
    /// A commit that it has come to.
    reached: Option<u64>,
    /// Since when it could be given to a server.
    waits: Option<MonoTime>,
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
    /// The origin of a twin that is as old as its connection.
    pub(super) const START: (u32, u32) = (0, 0);

    pub(super) const fn new(
        flow: FlowId,
        share: ShareId,
        socket: TcpStream,
        origin: (u32, u32),
    ) -> Self {
        Self {
            flow,
            share,
            socket,
            origin,
            snapshot: None,
            next: None,
            owed: 0,
            output: VecDeque::new(),
            reached: None,
            waits: None,
        }
    }

    /// Since when it stands where a server could take it.
    pub(super) fn waits_since(&mut self, now: MonoTime) -> MonoTime {
        *self.waits.get_or_insert(now)
    }

    /// Takes note of a later snapshot: the one before it is not gone to any more.
    pub(super) fn expect(&mut self, snapshot: Parcel) {
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
            let owes = !self.write(buffer)?;
            let Some(next) = &self.next else {
                return Ok(if owes {
                    Progress::Owes
                } else {
                    Progress::Stands
                });
            };
            let at = StreamPosition::of(self.socket.as_fd())?;
            let place = next.exported.place;
            let read = ahead(place.read, self.origin.0, at.read);
            // A client that does not listen keeps nobody from committing: what does not
            // go out yet waits here.
            let written = ahead(place.written, self.origin.1, at.written + self.owes());
            match (read, written) {
                (Some(read), Some(_)) if read > at.unread => return Ok(Progress::Hears),
                (Some(read), Some(written)) => {
                    self.discard(read, buffer)?;
                    self.go_to(written);
                }
                // Older than where it stands: whoever must not go back does not.
                (read, written) => {
                    let behind = read.is_none_or(|read| read == 0)
                        && written.is_none_or(|written| written == 0);
                    let older = self.next.take();
                    let reached = older.and_then(|older| older.commit.filter(|_| behind));
                    self.reached = reached.or(self.reached);
                }
            }
        }
    }

    /// Stands at the next snapshot, but for so many bytes of output before it.
    fn go_to(&mut self, written: u64) {
        let Some(next) = self.next.take() else { return };
        let mut output = VecDeque::from(next.output);
        // What it has written or owes already, it does not write again.
        let due = usize::try_from(written).unwrap_or(usize::MAX);
        output.drain(..output.len().saturating_sub(due));
        let unknown = written - output.len() as u64;
        if unknown > 0 {
            // The client has these, and all before them.
            self.owed += self.output.len() as u64 + unknown;
            self.output.clear();
        }
        self.output.append(&mut output);
        self.reached = next.commit.or(self.reached);
        self.snapshot = Some(next.exported.carried);
    }

    /// The commit that it has come to since the last call: all that it takes to go on
    /// from there is here.
    pub(super) const fn take_reached(&mut self) -> Option<u64> {
        self.reached.take()
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

    /// Bytes that have yet to go into the socket.
    pub(super) fn owes(&self) -> u64 {
        self.owed + self.output.len() as u64
    }

    /// Whether all that is owed has gone into the socket.
    fn write(&mut self, buffer: &[u8]) -> io::Result<bool> {
        while self.owed > 0 || !self.output.is_empty() {
            let size = usize::try_from(self.owed).unwrap_or(PIECE);
            let piece = match self.owed {
                0 => self.output.as_slices().0,
                _ => buffer.get(..size.min(buffer.len())).unwrap_or_default(),
            };
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match send(self.socket.as_raw_fd(), piece, flags) {
                Ok(count) if self.owed == 0 => drop(self.output.drain(..count)),
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

    /// It was made at that snapshot.
    pub(super) fn begin_at(&mut self, snapshot: Parcel) {
        self.reached = snapshot.commit;
        self.snapshot = Some(snapshot.exported.carried);
    }

    /// The twin and the snapshot at which it stands.
    pub(super) const fn parts(&self) -> (&TcpStream, Option<&Carried>) {
        (&self.socket, self.snapshot.as_ref())
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

/// How far a place in a stream is ahead of where a socket stands; `None` if it is
/// behind. Both count modulo 2^32: they are never further apart than the leash.
fn ahead(place: u64, origin: u32, stands: u64) -> Option<u64> {
    let here = origin.wrapping_add(low(stands));
    let there = SeqNumber(low(place));
    there.checked_distance(SeqNumber(here)).map(u64::from)
}

/// Where a socket was made: bytes of both streams that were before it, modulo 2^32. A
/// server counts from there, others from the connection's first byte.
pub(in crate::driver) fn origin(flow: &FlowState) -> (u32, u32) {
    since((flow.id.irs, flow.iss), (flow.birth, flow.birth_ack))
}

/// Whether a socket that was made there was made at that snapshot.
pub(in crate::driver) fn is_origin(place: &SnapshotPlace, origin: (u32, u32)) -> bool {
    (low(place.read), low(place.written)) == origin
}

/// Modulo 2^32, as sequence numbers count.
fn low(position: u64) -> u32 {
    let [.., a, b, c, d] = position.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener};
    use std::time::{Duration, Instant};

    use godwit_wire::FlowKey;
    use godwit_wire::app::SnapshotKind;

    use super::*;
    use godwit_core::snapshot::parcel::Exported;

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
        let flow = FlowId { key, irs };
        (client, Kept::new(flow, ShareId(0), twin, Kept::START))
    }

    fn snapshot(read: u64, written: u64, name: &str) -> Parcel {
        let kind = SnapshotKind::Regenerable;
        let bytes = name.as_bytes().to_vec();
        let exported = Exported {
            place: SnapshotPlace {
                offset: 0,
                length: 0,
                kind,
                read,
                written,
            },
            carried: Carried { kind, bytes },
        };
        Parcel {
            commit: None,
            exported,
            output: Vec::new(),
        }
    }

    fn commit(number: u64, (read, written): (u64, u64), output: &[u8]) -> Parcel {
        Parcel {
            commit: Some(number),
            output: output.to_vec(),
            ..snapshot(read, written, "commit")
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

    /// One that was made while its connection ran, near where numbers come round.
    #[test]
    fn a_twin_that_was_born_late_counts_with_the_others() {
        let (mut client, mut kept) = pair();
        kept.origin = (u32::MAX - 9, 7);
        for (read, written, there) in [(0, 7, true), (1, 7, false), (0, 8, false)] {
            let place = snapshot((1 << 32) - 10 + read, written, "").exported.place;
            assert_eq!(is_origin(&place, kept.origin), there, "{read}, {written}");
        }
        client.write_all(&[1; 100]).expect("it is open");
        // The others have counted on; an agent between them has begun at 0 again.
        for round in [0, 1_u64 << 32] {
            let read = round + (1 << 32) - 10;
            kept.expect(snapshot(read - 1, 7, "before"));
            assert_eq!(go_on(&mut kept, None), Progress::Stands);
            assert_eq!((position(&kept), name(&kept)), ((0, 0), None));
        }
        kept.expect(snapshot(30, 17, "later"));
        assert_eq!(go_on(&mut kept, Some(Progress::Hears)), Progress::Stands);
        assert_eq!(
            (position(&kept), name(&kept)),
            ((40, 10), Some(&b"later"[..]))
        );
    }

    /// Its owner hears of that as of any other commit.
    #[test]
    fn a_twin_that_begins_at_a_commit_has_come_to_it() {
        let (_client, mut kept) = pair();
        kept.begin_at(commit(3, (0, 0), &[]));
        assert_eq!(go_on(&mut kept, None), Progress::Stands);
        assert_eq!(name(&kept), Some(&b"commit"[..]));
        assert_eq!((kept.take_reached(), kept.take_reached()), (Some(3), None));
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

    /// Of the output before a commit, what the client may lack is said as the server
    /// has said it; the commit is reached once its input is there.
    #[test]
    fn a_twin_says_what_the_client_may_lack() {
        let (mut client, mut kept) = pair();
        kept.expect(commit(7, (3, 10), b"lacks"));
        assert_eq!(go_on(&mut kept, None), Progress::Hears);
        assert_eq!(kept.take_reached(), None);
        client.write_all(b"hey").expect("it is open");
        assert_eq!(go_on(&mut kept, Some(Progress::Hears)), Progress::Stands);
        assert_eq!((kept.take_reached(), kept.take_reached()), (Some(7), None));
        assert_eq!(position(&kept), (3, 10));
        // Some of the next one's output was that of the one before.
        kept.expect(commit(8, (3, 14), b"cks more"));
        assert_eq!(go_on(&mut kept, None), Progress::Stands);
        assert_eq!(kept.take_reached(), Some(8));
        let mut heard = [0; 14];
        client
            .read_exact(&mut heard)
            .expect("as much as was written");
        assert_eq!(&heard[5..], b"lacksmore");
    }

    /// It waits for nobody: of several commits each is reached, and all that they have
    /// to say is said in the end.
    #[test]
    fn a_client_that_does_not_listen_is_waited_for_by_nobody() {
        let (mut client, mut kept) = pair();
        let (piece, mut said) = (1 << 20, Vec::new());
        for number in 1..=10 {
            let more = vec![u8::try_from(number).expect("small"); piece];
            said.extend_from_slice(&more);
            // All of it, each time: the client has acknowledged none.
            kept.expect(commit(number, (0, said.len() as u64), &said));
            go_on(&mut kept, None);
            assert_eq!(kept.take_reached(), Some(number));
        }
        assert_eq!(go_on(&mut kept, None), Progress::Owes);
        let length = said.len();
        let reader = std::thread::spawn(move || {
            let mut heard = vec![0; length];
            client.read_exact(&mut heard).map(|()| heard)
        });
        assert_eq!(go_on(&mut kept, Some(Progress::Owes)), Progress::Stands);
        let heard = reader.join().expect("it ends").expect("it comes");
        assert!(heard == said);
    }

    /// Sent again after a link was lost; or it can't be.
    #[test]
    fn a_commit_that_was_reached_is_reached() {
        let (mut client, mut kept) = pair();
        client.write_all(&[1; 9]).expect("it is open");
        kept.expect(snapshot(5, 5, "later"));
        assert_eq!(go_on(&mut kept, Some(Progress::Hears)), Progress::Stands);
        for (place, reached) in [
            ((5, 5), Some(1)),
            ((4, 5), Some(1)),
            ((0, 0), Some(1)),
            // It would have read more and written less.
            ((6, 4), None),
            ((4, 6), None),
        ] {
            kept.expect(commit(1, place, &[]));
            assert_eq!(go_on(&mut kept, None), Progress::Stands);
            assert_eq!(kept.take_reached(), reached, "{place:?}");
            assert_eq!(position(&kept), (5, 5));
        }
    }
}
