//! The text protocol of memcached, as far as reading a value goes (protocol.txt, "Retrieval command"). No I/O. Hot path.

use crate::h1::request::content_length;

/// Bytes behind a value.
pub const TRAILER: &[u8] = b"\r\nEND\r\n";

/// Reply of a server about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// There is a value.
    Found {
        /// Flags stored with the value; `None` if they are not a number of 32 bits.
        flags: Option<u32>,
        /// Bytes.
        length: u64,
    },
    /// There is none.
    Missing,
}

/// The reason for which a line is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It is none at all.
    Reply,
    /// To another one.
    Key,
    /// The length of the value.
    Length,
}

/// Reads the first line of what a server has sent when it was asked for `key`, as that stood in the command. `None`: its end
/// has not come. Otherwise its length without the line feed, and the reply.
pub fn reply(bytes: &[u8], key: &[u8]) -> Option<(usize, Result<Reply, Wrong>)> {
    let end = memchr::memchr(b'\n', bytes)?;
    let line = &bytes[..end];
    Some((end, line.strip_suffix(b"\r").ok_or(Wrong::Reply).and_then(|line| read(line, key))))
}

fn read(line: &[u8], key: &[u8]) -> Result<Reply, Wrong> {
    if line == b"END" {
        return Ok(Reply::Missing);
    }
    let rest = line.strip_prefix(b"VALUE ").ok_or(Wrong::Reply)?;
    let (name, rest) = rest.split_at(memchr::memchr(b' ', rest).unwrap_or(rest.len()));
    if name != key {
        return Err(Wrong::Key);
    }
    let rest = rest.strip_prefix(b" ").ok_or(Wrong::Reply)?;
    let (flags, rest) = rest.split_at(memchr::memchr(b' ', rest).ok_or(Wrong::Reply)?);
    let length = content_length(&rest[1..]).ok_or(Wrong::Length)?;
    Ok(Reply::Found { flags: content_length(flags).and_then(|n| u32::try_from(n).ok()), length })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies() {
        let of = |text: &str| reply(text.as_bytes(), b"/k");
        let found = |flags, length| Ok(Reply::Found { flags, length });
        for (text, want) in [
            ("VALUE /k 0 5\r\nhello\r\nEND\r\n", found(Some(0), 5)),
            ("VALUE /k 4294967295 0\r\n", found(Some(u32::MAX), 0)),
            ("VALUE /k 4294967296 0\r\n", found(None, 0)),
            ("VALUE /k x 5\r\n", found(None, 5)),
            ("END\r\n", Ok(Reply::Missing)),
            ("END\n", Err(Wrong::Reply)),
            ("SERVER_ERROR out of memory\r\n", Err(Wrong::Reply)),
            ("VALUE /k\r\n", Err(Wrong::Reply)),
            ("VALUE /k 0\r\n", Err(Wrong::Reply)),
            ("VALUE /other 0 5\r\n", Err(Wrong::Key)),
            ("VALUE /kk 0 5\r\n", Err(Wrong::Key)),
            ("VALUE /k 0 x\r\n", Err(Wrong::Length)),
            ("VALUE /k 0 -1\r\n", Err(Wrong::Length)),
            ("VALUE /k 0 \r\n", Err(Wrong::Length)),
            ("VALUE /k 0 5 77\r\n", Err(Wrong::Length)),
            ("VALUE /k 0 99999999999999999999\r\n", Err(Wrong::Length)),
            ("\r\n", Err(Wrong::Reply)),
        ] {
            let end = text.find('\n').expect("a line");
            assert_eq!(of(text), Some((end, want)), "{text:?}");
        }
        assert_eq!((of("VALUE /k 0 5\r"), of("")), (None, None));
    }
}
