//! Which datagrams a UDP socket takes in: a filter (classic BPF) that the kernel runs before
//! it spends a place of the socket's buffer, or wakes anybody up.

use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd as _};

/// Offsets from here on are into the IP header (`SKF_NET_OFF`).
const NETWORK: u32 = (-0x10_0000_i32).cast_unsigned();

/// Other offsets are into the segment: bytes of a UDP header.
const UDP_HEADER: u32 = 8;

/// Where the source is in an IPv4 header, and in an IPv6 header.
const SOURCE_V4: u32 = 12;
const SOURCE_V6: u32 = 8;

/// Index of the drops in what `SO_MEMINFO` says, and how much that is.
const DROPS: usize = 8;
const MEMINFO: usize = 9;

/// One kind of datagram that is taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Where it comes from.
    pub source: IpAddr,
    /// What it has, and how far behind its begin.
    pub parts: Vec<(u32, Vec<u8>)>,
}

/// From now on `socket` takes in datagrams of so many bytes that are like one of `wanted`,
/// and drops all others. Replaces what was in force before, in one step.
///
/// # Errors
/// If there are too many to tell apart, or the kernel has no memory.
pub fn take_datagrams(
    socket: &impl AsFd,
    lengths: RangeInclusive<usize>,
    wanted: &[Wanted],
) -> io::Result<()> {
    let length = |length: usize| u32::try_from(length).map_err(io::Error::other);
    let (least, most) = (length(*lengths.start())?, length(*lengths.end())?);
    let mut program = program((least, most), wanted);
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let size =
        libc::socklen_t::try_from(size_of::<libc::sock_fprog>()).map_err(io::Error::other)?;
    let program = libc::sock_fprog {
        len,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the kernel copies `len` instructions from `filter`, which live until it returns.
    let err = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size,
        )
    };
    outcome(err)
}

/// Undoes [`take_datagrams`].
///
/// # Errors
/// If there is no filter.
pub fn take_all_datagrams(socket: &impl AsFd) -> io::Result<()> {
    crate::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0)
}

/// Datagrams for `socket` that the kernel has dropped: not wanted, or its buffer was full.
/// Begins anew after 2^32.
///
/// # Errors
/// If it is no socket.
pub fn dropped_datagrams(socket: &impl AsFd) -> io::Result<u32> {
    let mut values = [0_u32; MEMINFO];
    let mut length = libc::socklen_t::try_from(size_of_val(&values)).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes, which `values` has.
    let err = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    outcome(err).map(|()| values[DROPS])
}

fn program((least, most): (u32, u32), wanted: &[Wanted]) -> Vec<libc::sock_filter> {
    let mut program = vec![
        load(libc::BPF_W | libc::BPF_LEN, 0),
        jump(libc::BPF_JGE, least.saturating_add(UDP_HEADER), (1, 0)),
        answer(false),
        jump(libc::BPF_JGT, most.saturating_add(UDP_HEADER), (0, 1)),
        answer(false),
    ];
    for one in wanted {
        program.extend(kind(one));
    }
    program.push(answer(false));
    program
}

/// Takes in what is like `wanted`, or goes on behind itself.
fn kind(wanted: &Wanted) -> Vec<libc::sock_filter> {
    let (version, at, address) = match wanted.source {
        IpAddr::V4(address) => (0x40, SOURCE_V4, address.octets().to_vec()),
        IpAddr::V6(address) => (0x60, SOURCE_V6, address.octets().to_vec()),
    };
    // Loads, and what must have been loaded.
    let mut tests = vec![(libc::BPF_B, NETWORK, version)];
    let mut compare = |offset: u32, bytes: &[u8]| {
        let mut offset = offset;
        let (words, rest) = bytes.as_chunks::<4>();
        for word in words {
            tests.push((libc::BPF_W, offset, u32::from_be_bytes(*word)));
            offset = offset.wrapping_add(4);
        }
        for byte in rest {
            tests.push((libc::BPF_B, offset, u32::from(*byte)));
            offset = offset.wrapping_add(1);
        }
    };
    compare(NETWORK.wrapping_add(at), &address);
    for (offset, bytes) in &wanted.parts {
        compare(UDP_HEADER.saturating_add(*offset), bytes);
    }
    let mut program = Vec::new();
    // From the last test to the first, so that it is known how far the end is.
    program.push(answer(true));
    for (index, (size, offset, value)) in tests.into_iter().enumerate().rev() {
        let behind = u8::try_from(program.len()).unwrap_or(u8::MAX);
        program.push(jump(libc::BPF_JEQ, value, (0, behind)));
        if index == 0 {
            program.push(statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0xf0));
        }
        program.push(load(size | libc::BPF_ABS, offset));
    }
    program.reverse();
    program
}

fn load(what: u32, offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | what, offset)
}

fn jump(condition: u32, value: u32, (yes, no): (u8, u8)) -> libc::sock_filter {
    libc::sock_filter {
        jt: yes,
        jf: no,
        ..statement(libc::BPF_JMP | condition | libc::BPF_K, value)
    }
}

/// Takes in all of it, or nothing.
fn answer(yes: bool) -> libc::sock_filter {
    let bytes = if yes { u32::MAX } else { 0 };
    statement(libc::BPF_RET | libc::BPF_K, bytes)
}

#[expect(clippy::cast_possible_truncation, reason = "codes have 16 bits")]
const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

fn outcome(err: libc::c_int) -> io::Result<()> {
    match err {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;

    fn socket(address: &str) -> UdpSocket {
        let socket = UdpSocket::bind((address, 0)).expect("loopback");
        let patience = Some(Duration::from_millis(200));
        socket.set_read_timeout(patience).expect("it may be set");
        socket
    }

    fn wanted(source: &str, parts: &[(u32, &[u8])]) -> Wanted {
        let part = |(offset, bytes): &(u32, &[u8])| (*offset, bytes.to_vec());
        Wanted {
            source: source.parse().expect("an address"),
            parts: parts.iter().map(part).collect(),
        }
    }

    /// Which of `sent` arrive, from `from`.
    fn heard(ear: &UdpSocket, from: &UdpSocket, sent: &[&[u8]]) -> Vec<Vec<u8>> {
        let to = ear.local_addr().expect("bound");
        for datagram in sent {
            from.send_to(datagram, to).expect("loopback");
        }
        let mut buffer = [0; 100];
        let mut all = Vec::new();
        while let Ok(len) = ear.recv(&mut buffer) {
            all.push(buffer[..len].to_vec());
        }
        all
    }

    #[test]
    fn only_what_is_wanted_is_taken_in_and_the_rest_is_counted() {
        for (here, friend, stranger) in
            [("127.0.0.1", "127.0.0.2", "127.0.0.3"), ("::1", "::1", "")]
        {
            let ear = socket(here);
            let any = wanted("10.9.9.9", &[]);
            let one = wanted(friend, &[(0, b"GW"), (3, b"abcdefg")]);
            take_datagrams(&ear, 10..=20, &[any, one]).expect("it may");
            let from = socket(friend);
            let sent: [&[u8]; 6] = [
                b"GWxabcdefg",
                b"GWyabcdefgmore",
                b"GXxabcdefg",
                b"GWxabcdefx",
                b"GWxabcdef",
                b"GWxabcdefg and too long",
            ];
            let all = heard(&ear, &from, &sent);
            assert_eq!(all, sent[..2], "{here}");
            assert_eq!(dropped_datagrams(&ear).expect("a socket"), 4, "{here}");
            if !stranger.is_empty() {
                assert!(heard(&ear, &socket(stranger), &sent).is_empty());
            }
        }
    }

    #[test]
    fn a_later_filter_takes_the_place_of_an_earlier_one_until_there_is_none() {
        let (ear, from) = (socket("127.0.0.1"), socket("127.0.0.2"));
        take_datagrams(&ear, 1..=9, &[]).expect("it may");
        assert!(heard(&ear, &from, &[b"a"]).is_empty(), "nothing is wanted");
        take_datagrams(&ear, 1..=9, &[wanted("127.0.0.2", &[])]).expect("it may");
        assert_eq!(heard(&ear, &from, &[b"b"]).len(), 1);
        take_datagrams(&ear, 9..=9, &[]).expect("it may");
        take_all_datagrams(&ear).expect("there is one");
        assert_eq!(heard(&ear, &from, &[b"c"]).len(), 1);
        let too_many = vec![wanted("127.0.0.2", &[]); 4000];
        assert!(take_datagrams(&ear, 1..=9, &too_many).is_err());
    }
}
