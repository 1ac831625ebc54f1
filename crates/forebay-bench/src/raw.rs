//! Loads of bytes over TCP, TLS and UDP: the message that is sent and the answer that is awaited.

use crate::Error;
use crate::url::Scheme;
use clap::Args;

/// Bytes of the message and of the answer without options.
const SIZE: u64 = 64;
/// Longest message. Connections keep what a socket does not take at once.
const LONGEST: u64 = 64 << 20;
/// Longest datagram over IPv4.
const DATAGRAM: usize = 65_507;

/// First words of messages that `bench backend` obeys.
pub(crate) const ORDER: &str = "forebay ";
/// Order for so many bytes.
pub(crate) const DOWN: &str = "down";
/// Order to take so many bytes.
pub(crate) const UP: &str = "up";
/// Answer when the bytes of an [`UP`] order have arrived.
pub(crate) const TAKEN: &[u8] = b"OK\n";

/// End of an answer over TCP. Over UDP an answer is a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// So many bytes, at least 1.
    Bytes(u64),
    /// The bytes that come first, in one piece.
    First,
    /// The end of the connection.
    Close,
}

impl Answer {
    fn parse(text: &str) -> Result<Answer, String> {
        match text {
            "first" => Ok(Answer::First),
            "close" => Ok(Answer::Close),
            size => Ok(Answer::Bytes(bytes(size).map_err(|e| format!("{e}, first or close"))?)),
        }
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Answer::Bytes(n) => write!(f, "{n}"),
            Answer::First => f.write_str("first"),
            Answer::Close => f.write_str("close"),
        }
    }
}

/// Parses a number of bytes above 0: `64`, `16k`, `1m`, `1g`.
fn bytes(text: &str) -> Result<u64, String> {
    let size = forebay_conf::units::offset(text.as_bytes()).filter(|n| *n > 0);
    size.ok_or_else(|| format!("\"{text}\": expected a number of bytes such as 64, 16k or 1m"))
}

/// Options for loads of bytes.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RawArgs {
    /// Send messages of this size and await as many bytes (default: 64)
    #[arg(long, value_name = "SIZE", group = "message", value_parser = bytes, help_heading = HEADING)]
    pub size: Option<u64>,
    /// Send this: text with \r \n \t \0 \\ \xHH, or hex:DIGITS, @FILE, or dns:NAME[/TYPE], a query
    #[arg(long, value_name = "TEXT", group = "message", help_heading = HEADING)]
    pub payload: Option<String>,
    /// Have `forebay bench backend` send so many bytes for each message
    #[arg(long, value_name = "SIZE", group = "message", value_parser = bytes, help_heading = HEADING)]
    pub download: Option<u64>,
    /// Send so many bytes to `forebay bench backend`
    #[arg(long, value_name = "SIZE", group = "message", value_parser = bytes, help_heading = HEADING)]
    pub upload: Option<u64>,
    /// End of an answer: a number of bytes, first (what comes first), or close
    #[arg(long, value_name = "END", value_parser = Answer::parse, help_heading = HEADING)]
    pub answer: Option<Answer>,
}

/// Heading of these options in the help text.
const HEADING: &str = "Bytes over tcp://, tls:// and udp://";

/// A message with the end of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Bytes to send.
    pub bytes: Vec<u8>,
    /// End of the answer.
    pub answer: Answer,
    /// Length of a datagram that is right; `None`: any.
    pub length: Option<u64>,
    /// Description in reports.
    pub name: String,
}

impl RawArgs {
    /// Returns `true` if any of the options is given.
    pub(crate) fn are_given(&self) -> bool {
        self.payload.is_some()
            || self.answer.is_some()
            || [self.size, self.download, self.upload].iter().any(Option::is_some)
    }

    /// Returns `true` if a file is named.
    pub(crate) fn names_file(&self) -> bool {
        self.payload.as_ref().is_some_and(|text| text.starts_with('@'))
    }

    /// Returns the payload for a machine that cannot read its file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn without_file(&self) -> Result<Option<String>, Error> {
        match &self.payload {
            Some(text) if self.names_file() => {
                let digits: String = payload(text)?.iter().map(|b| format!("{b:02x}")).collect();
                Ok(Some(format!("hex:{digits}")))
            }
            other => Ok(other.clone()),
        }
    }

    /// Returns the message of these options.
    ///
    /// # Errors
    /// A payload of another form, and what the protocol has not.
    pub(crate) fn message(&self, scheme: Scheme) -> Result<Message, Error> {
        let message = self.described(scheme)?;
        if scheme == Scheme::Udp {
            self.check_datagram(&message)?;
        }
        Ok(message)
    }

    fn described(&self, scheme: Scheme) -> Result<Message, Error> {
        if let Some(size) = self.download {
            let bytes = format!("{ORDER}{DOWN} {size}\n").into_bytes();
            let answer = self.given_answer(Answer::Bytes(size))?;
            return Ok(Message { bytes, answer, length: None, name: format!("{size} bytes down") });
        }
        if let Some(size) = self.upload {
            let mut bytes = format!("{ORDER}{UP} {size}\n").into_bytes();
            bytes.resize(bytes.len() + limited(size)?, 0);
            let answer = self.given_answer(Answer::Bytes(TAKEN.len() as u64))?;
            return Ok(Message { bytes, answer, length: None, name: format!("{size} bytes up") });
        }
        if let Some(text) = &self.payload {
            let mut bytes = payload(text)?;
            if text.starts_with(DNS) && scheme != Scheme::Udp {
                // RFC 1035, section 4.2.2: over TCP a message has its length before it. That of a query fits.
                let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
                bytes.splice(..0, length.to_be_bytes());
            }
            let answer = self.answer.unwrap_or(Answer::First);
            let length = exact(self.answer);
            let name = format!("{} bytes, answer {}", bytes.len(), end(answer));
            return Ok(Message { bytes, answer, length, name });
        }
        let size = self.size.unwrap_or(SIZE);
        let answer = self.answer.unwrap_or(Answer::Bytes(size));
        let name = match answer {
            Answer::Bytes(n) if n == size => format!("{size} bytes there and back"),
            other => format!("{size} bytes, answer {}", end(other)),
        };
        let bytes = b"0123456789abcdef".iter().copied().cycle().take(limited(size)?).collect();
        Ok(Message { bytes, answer, length: exact(Some(answer)), name })
    }

    /// Returns the answer of an order, which `--answer` does not change.
    fn given_answer(&self, answer: Answer) -> Result<Answer, Error> {
        match self.answer {
            None => Ok(answer),
            Some(_) => Err(Error::Usage("--answer is not for --download and --upload".into())),
        }
    }

    fn check_datagram(&self, message: &Message) -> Result<(), Error> {
        if self.download.is_some() || self.upload.is_some() {
            let text = "--download and --upload are for tcp and tls: over udp use --size";
            return Err(Error::Usage(text.into()));
        }
        if message.answer == Answer::Close {
            return Err(Error::Usage("--answer close is for tcp and tls: datagrams have no end".into()));
        }
        let longest = message.length.map_or(0, |n| n as usize).max(message.bytes.len());
        if longest > DATAGRAM {
            return Err(Error::Usage(format!("a datagram has at most {DATAGRAM} bytes")));
        }
        Ok(())
    }
}

fn end(answer: Answer) -> String {
    match answer {
        Answer::Bytes(n) => format!("{n} bytes"),
        Answer::First => "what comes first".into(),
        Answer::Close => "until the connection closes".into(),
    }
}

fn exact(answer: Option<Answer>) -> Option<u64> {
    match answer {
        Some(Answer::Bytes(n)) => Some(n),
        _ => None,
    }
}

fn limited(size: u64) -> Result<usize, Error> {
    let fits = usize::try_from(size).ok().filter(|_| size <= LONGEST);
    fits.ok_or_else(|| Error::Usage(format!("a message has at most {} MiB", LONGEST >> 20)))
}

/// Parses `--payload`: text with escapes, `hex:DIGITS`, `@FILE`, or `dns:NAME[/TYPE]`.
fn payload(text: &str) -> Result<Vec<u8>, Error> {
    if let Some(file) = text.strip_prefix('@') {
        let bytes = std::fs::read(file).map_err(Error::io(file))?;
        return limited(bytes.len() as u64).map(|_| bytes);
    }
    let bytes = match (text.strip_prefix("hex:"), text.strip_prefix(DNS)) {
        (Some(digits), _) => hex(digits),
        (_, Some(question)) => query(question),
        (None, None) => unescape(text),
    };
    bytes.ok_or_else(|| {
        Error::Usage(format!(
            "--payload {text}: expected text with \\r \\n \\t \\0 \\\\ \\xHH, hex:DIGITS, @FILE or dns:NAME/TYPE"
        ))
    })
}

/// Start of a payload that is a DNS query.
const DNS: &str = "dns:";

/// Bytes of the header of a DNS message (RFC 1035, section 4.1.1).
const HEADER: usize = 12;

/// Types of DNS records that a query may ask for (RFC 1035, section 3.2.2; RFC 2782; RFC 3596).
const RECORDS: [(&str, u16); 7] =
    [("A", 1), ("NS", 2), ("SOA", 6), ("MX", 15), ("TXT", 16), ("AAAA", 28), ("SRV", 33)];

/// Returns the DNS query for `NAME` or `NAME/TYPE` (RFC 1035, section 4.1). The type is A without one.
fn query(question: &str) -> Option<Vec<u8>> {
    let (name, record) = question.split_once('/').unwrap_or((question, "A"));
    let (_, record) = RECORDS.iter().find(|(known, _)| record.eq_ignore_ascii_case(known))?;
    // Any number, recursion desired, one question.
    let mut bytes = b"fb\x01\0\0\x01\0\0\0\0\0\0".to_vec();
    for label in name.trim_end_matches('.').split('.').filter(|_| name != ".") {
        let length = u8::try_from(label.len()).ok().filter(|n| (1..=63).contains(n))?;
        bytes.push(length);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    // RFC 1035, section 2.3.4.
    if bytes.len() > HEADER + 255 {
        return None;
    }
    bytes.extend_from_slice(&record.to_be_bytes());
    // Class IN.
    bytes.extend_from_slice(&1u16.to_be_bytes());
    Some(bytes)
}

/// Returns the bytes that hexadecimal digits stand for. Blanks between bytes are left out.
fn hex(digits: &str) -> Option<Vec<u8>> {
    let digits: Vec<char> = digits.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| byte(pair.first().copied()?, pair.get(1).copied()?)).collect()
}

fn byte(high: char, low: char) -> Option<u8> {
    let value = high.to_digit(16)? * 16 + low.to_digit(16)?;
    u8::try_from(value).ok()
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        bytes.push(match chars.next()? {
            'r' => b'\r',
            'n' => b'\n',
            't' => b'\t',
            '0' => 0,
            '\\' => b'\\',
            'x' => byte(chars.next()?, chars.next()?)?,
            _ => return None,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads() {
        assert_eq!(payload("PING\\r\\n").expect("text"), b"PING\r\n");
        assert_eq!(payload("\\x00a\\\\\\0ä").expect("text"), "\0a\\\0ä".as_bytes());
        assert_eq!(payload("hex:00 ffA0").expect("hex"), [0, 255, 160]);
        assert_eq!(
            payload("dns:a.bc").expect("a query"),
            b"fb\x01\0\0\x01\0\0\0\0\0\0\x01a\x02bc\0\0\x01\0\x01"
        );
        assert!(payload("dns:a.bc./aaaa").expect("a query").ends_with(b"\x02bc\0\0\x1c\0\x01"));
        assert!(payload("dns:./NS").expect("a query").ends_with(b"\0\0\0\0\x02\0\x01"));
        let longest = format!("dns:{0}.{0}.{0}.{1}", "a".repeat(63), "a".repeat(61));
        assert!(payload(&longest).is_ok() && payload(&format!("{longest}a")).is_err());
        assert!(Answer::parse("x").is_err_and(|e| e.ends_with("16k or 1m, first or close")));
        for bad in [
            "dns:",
            "dns:a..b",
            "dns:a/B",
            "\\",
            "\\q",
            "\\x1",
            "\\xg0",
            "hex:0",
            "hex:0g",
            "@/nonexistent/file",
        ] {
            assert!(payload(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn messages_and_their_answers() {
        let args = |change: &dyn Fn(&mut RawArgs)| {
            let mut args = RawArgs::default();
            change(&mut args);
            args
        };
        let message = |change: &dyn Fn(&mut RawArgs)| args(change).message(Scheme::Tcp).expect("a message");
        let plain = message(&|_| ());
        assert_eq!(
            (plain.bytes.len(), plain.answer, plain.name.as_str()),
            (64, Answer::Bytes(64), "64 bytes there and back")
        );
        let down = message(&|a| a.download = Some(1 << 30));
        assert_eq!(
            (down.bytes.as_slice(), down.answer),
            (&b"forebay down 1073741824\n"[..], Answer::Bytes(1 << 30))
        );
        let up = message(&|a| a.upload = Some(100));
        assert_eq!((up.bytes.len(), up.answer), ("forebay up 100\n".len() + 100, Answer::Bytes(3)));
        let dns = message(&|a| a.payload = Some("dns:a".into()));
        assert_eq!((&dns.bytes[..2], dns.bytes.len(), dns.answer), (&[0, 19][..], 21, Answer::First));
        assert_eq!(dns.name, "21 bytes, answer what comes first");
        let ping = message(&|a| a.payload = Some("PING\\r\\n".into()));
        assert_eq!((ping.answer, ping.length), (Answer::First, None));
        for bad in [
            args(&|a| (a.upload, a.answer) = (Some(1), Some(Answer::First))),
            args(&|a| a.size = Some(LONGEST + 1)),
        ] {
            assert!(bad.message(Scheme::Tcp).is_err(), "{bad:?}");
        }
        for bad in [
            args(&|a| a.download = Some(1)),
            args(&|a| a.answer = Some(Answer::Close)),
            args(&|a| a.size = Some(65_508)),
        ] {
            assert!(bad.message(Scheme::Udp).is_err(), "{bad:?}");
        }
    }
}
