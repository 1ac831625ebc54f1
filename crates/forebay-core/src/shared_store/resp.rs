//! RESP2, the protocol of Redis and Valkey (redis.io/docs/latest/develop/reference/protocol-spec): commands and replies.

/// Longest string in a reply, bytes. The longest that is asked for is a key for session tickets.
const MAX_STRING: usize = 64 << 10;
/// Longest line, bytes: an error, or a number.
const MAX_LINE: usize = 4096;
/// Most elements of an array.
const MAX_ELEMENTS: usize = 1024;
/// Deepest nesting of arrays.
const MAX_DEPTH: u32 = 6;

/// Reply of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// `+OK`, and strings.
    Text(Vec<u8>),
    /// `-ERR ...`.
    Error(String),
    /// A number.
    Number(i64),
    /// Nothing.
    Null,
    /// Several.
    Array(Vec<Reply>),
}

/// Bytes that are no reply, or one that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Appends a command.
pub(super) fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    let number = |out: &mut Vec<u8>, sign: u8, n: usize| {
        out.push(sign);
        out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
        out.extend_from_slice(b"\r\n");
    };
    number(out, b'*', words.len());
    for word in words {
        number(out, b'$', word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Reads a reply. Returns it with its length in bytes, or `None` if more bytes are needed.
///
/// # Errors
/// If the bytes are no reply.
pub(super) fn reply(bytes: &[u8]) -> Result<Option<(Reply, usize)>, Malformed> {
    let mut rest = bytes;
    Ok(take(&mut rest, MAX_DEPTH)?.map(|reply| (reply, bytes.len() - rest.len())))
}

fn take(rest: &mut &[u8], depth: u32) -> Result<Option<Reply>, Malformed> {
    let Some(line) = take_line(rest)? else { return Ok(None) };
    let Some((kind, text)) = line.split_first() else { return Err(Malformed) };
    match kind {
        b'+' => Ok(Some(Reply::Text(text.to_vec()))),
        b'-' => Ok(Some(Reply::Error(String::from_utf8_lossy(text).into_owned()))),
        b':' => number(text).map(|n| Some(Reply::Number(n))),
        b'$' => match length(text, MAX_STRING)? {
            Some(length) => take_string(rest, length),
            None => Ok(Some(Reply::Null)),
        },
        b'*' => match length(text, MAX_ELEMENTS)? {
            Some(count) => take_elements(rest, count, depth.checked_sub(1).ok_or(Malformed)?),
            None => Ok(Some(Reply::Null)),
        },
        _ => Err(Malformed),
    }
}

/// Takes a line without its end.
fn take_line<'b>(rest: &mut &'b [u8]) -> Result<Option<&'b [u8]>, Malformed> {
    let within = rest.get(..MAX_LINE).unwrap_or(rest);
    let Some(at) = memchr::memchr(b'\r', within) else {
        return if within.len() < MAX_LINE { Ok(None) } else { Err(Malformed) };
    };
    match rest.get(at + 1) {
        None => Ok(None),
        Some(b'\n') => {
            let (line, after) = rest.split_at(at);
            *rest = after.get(2..).unwrap_or_default();
            Ok(Some(line))
        }
        Some(_) => Err(Malformed),
    }
}

fn take_string(rest: &mut &[u8], length: usize) -> Result<Option<Reply>, Malformed> {
    let Some((text, after)) = rest.split_at_checked(length) else { return Ok(None) };
    match after {
        [b'\r', b'\n', after @ ..] => {
            *rest = after;
            Ok(Some(Reply::Text(text.to_vec())))
        }
        [] | [b'\r'] => Ok(None),
        _ => Err(Malformed),
    }
}

fn take_elements(rest: &mut &[u8], count: usize, depth: u32) -> Result<Option<Reply>, Malformed> {
    let mut all = Vec::new();
    for _ in 0..count {
        match take(rest, depth)? {
            Some(reply) => all.push(reply),
            None => return Ok(None),
        }
    }
    Ok(Some(Reply::Array(all)))
}

fn number(text: &[u8]) -> Result<i64, Malformed> {
    std::str::from_utf8(text).ok().and_then(|t| t.parse().ok()).ok_or(Malformed)
}

/// Reads a length of at most `most`; `None` is that of null, -1.
fn length(text: &[u8], most: usize) -> Result<Option<usize>, Malformed> {
    match number(text)? {
        -1 => Ok(None),
        n => usize::try_from(n).ok().filter(|n| *n <= most).map(Some).ok_or(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8]) -> Reply {
        let (reply, length) = reply(bytes).expect("valid").expect("complete");
        assert_eq!(length, bytes.len());
        reply
    }

    #[test]
    fn replies_of_all_kinds() {
        assert_eq!(whole(b"+OK\r\n"), Reply::Text(b"OK".to_vec()));
        assert_eq!(whole(b"-ERR no\r\n"), Reply::Error("ERR no".to_owned()));
        assert_eq!(whole(b":-12\r\n"), Reply::Number(-12));
        assert_eq!(whole(b"$4\r\na\r\nb\r\n"), Reply::Text(b"a\r\nb".to_vec()));
        assert_eq!(whole(b"$-1\r\n"), Reply::Null);
        assert_eq!(whole(b"*-1\r\n"), Reply::Null);
        let inner = Reply::Array(vec![Reply::Number(1), Reply::Null]);
        assert_eq!(
            whole(b"*2\r\n*2\r\n:1\r\n$-1\r\n+x\r\n"),
            Reply::Array(vec![inner, Reply::Text(b"x".to_vec())])
        );
    }

    #[test]
    fn invalid_replies_are_refused() {
        let deep = b"*1\r\n".repeat(7);
        let long = [b"+".as_slice(), &[b'a'; MAX_LINE]].concat();
        for bytes in [
            b"\r\n".as_slice(),
            b"?\r\n",
            b":\r\n",
            b":1x\r\n",
            b"+a\rb",
            b"$-2\r\n",
            b"$65537\r\n",
            b"*1025\r\n",
            b"$1\r\nabc\r\n",
            b"$99999999999999999999\r\n",
            &deep,
            &long,
        ] {
            assert_eq!(reply(bytes), Err(Malformed), "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn every_prefix_is_incomplete() {
        let bytes = b"*3\r\n:123\r\n$5\r\nab\r\nc\r\n-ERR x\r\n";
        for end in 0..bytes.len() {
            assert_eq!(reply(&bytes[..end]), Ok(None), "{end}");
        }
        // Bytes of the next reply are left.
        let two = [bytes.as_slice(), b"+"].concat();
        assert_eq!(reply(&two).map(|r| r.map(|(_, length)| length)), Ok(Some(bytes.len())));
    }

    /// Changes bytes of valid replies at random: the reader must neither panic nor read beyond the end.
    #[test]
    fn random_bytes_do_no_harm() {
        let seeds: [&[u8]; 4] = [
            b"*3\r\n:123\r\n$5\r\nab\r\nc\r\n-ERR x\r\n",
            b"$-1\r\n",
            b"*2\r\n*1\r\n*0\r\n+\r\n",
            b":9223372036854775807\r\n",
        ];
        let alphabet = b"*$:+-\r\n0123456789ax\0\xff";
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as usize % below
        };
        for round in 0..200_000 {
            let mut bytes = seeds[round % seeds.len()].to_vec();
            for _ in 0..=random(4) {
                let (at, new) = (random(bytes.len()), alphabet[random(alphabet.len())]);
                match random(3) {
                    0 => bytes[at] = new,
                    1 => bytes.insert(at, new),
                    _ => bytes.truncate(at.max(1)),
                }
            }
            if let Ok(Some((_, length))) = reply(&bytes) {
                assert!(length <= bytes.len());
                // The same bytes make the same reply, whatever follows.
                assert_eq!(reply(&bytes[..length]), reply(&bytes));
            }
        }
    }

    #[test]
    fn commands_are_arrays_of_strings() {
        let mut out = Vec::new();
        command(&mut out, &[b"GET", b"a\r\nb", b""]);
        assert_eq!(out, b"*3\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n$0\r\n\r\n");
    }
}
