//! The header of a reply, as far as a load generator needs it.

/// Room for a header.
pub(super) const HEAD: usize = 1024;

/// Characters of a server's name that are kept.
pub(super) const NAME: usize = 8;

/// Who served a reply, as `Served-By` says; empty if it does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Server([u8; NAME]);

/// A reply's header that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Its bytes, the empty line included.
    pub(super) length: usize,
    pub(super) body: u64,
    pub(super) server: Server,
}

impl Server {
    fn named(name: &[u8]) -> Self {
        let mut server = Self::default();
        let length = name.len().min(NAME);
        server.0[..length].copy_from_slice(&name[..length]);
        server
    }

    pub(super) fn name(&self) -> String {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        String::from_utf8_lossy(&self.0[..end]).into_owned()
    }

    pub(super) fn is_known(&self) -> bool {
        self.0[0] != 0
    }
}

/// Reads what has come of a header: `Ok(None)` if it is not complete.
///
/// # Errors
/// Fails if it is none of a 200, or says no length.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<Head>, ()> {
    let Some(end) = find(bytes, b"\r\n\r\n") else {
        return if bytes.len() < HEAD {
            Ok(None)
        } else {
            Err(())
        };
    };
    let mut lines = bytes[..end].split(|byte| *byte == b'\n');
    let status = lines.next().unwrap_or_default();
    if !status.starts_with(b"HTTP/1.1 200") {
        return Err(());
    }
    let mut body = None;
    let mut server = Server::default();
    for line in lines {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(value) = value(line, b"content-length:") {
            body = str::from_utf8(value).ok().and_then(|it| it.parse().ok());
        } else if let Some(value) = value(line, b"served-by:") {
            server = Server::named(value);
        }
    }
    Ok(Some(Head {
        length: end + 4,
        body: body.ok_or(())?,
        server,
    }))
}

fn value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, value) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|it| it == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nServed-By: b\r\ncontent-length:  500\r\n\r\nbody";

    #[test]
    fn a_header_says_how_long_and_by_whom() {
        let head = parse(REPLY).expect("it is one").expect("it is complete");
        assert_eq!((head.length, head.body), (REPLY.len() - 4, 500));
        assert_eq!(head.server.name(), "b");
    }

    #[test]
    fn a_part_of_a_header_is_waited_for() {
        for end in 0..REPLY.len() - 4 {
            assert_eq!(parse(&REPLY[..end]), Ok(None), "{end}");
        }
        assert!(parse(&[b'x'; HEAD]).is_err());
    }

    #[test]
    fn other_replies_are_wrong() {
        assert!(parse(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").is_err());
        assert!(parse(b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n").is_err());
    }
}
