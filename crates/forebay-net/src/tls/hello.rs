//! Parser of the parts of a ClientHello by which a server chooses its configuration (RFC 8446, section 4.1.2; RFC 6066,
//! section 3). rustls then parses it again and checks it.

use super::record::{self, Broken, HANDSHAKE, HEADER};

/// Longest ClientHello that is accepted, bytes, with the headers of its records. OpenSSL takes 131 KB; real ones are below 3 KB.
pub const MAX_HELLO: usize = 64 * 1024;

/// A ClientHello.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Host name asked for (SNI), lower case, without a final dot.
    pub server_name: Option<Vec<u8>>,
    /// Host name as the client wrote it, if different.
    pub written_name: Option<Vec<u8>>,
    /// Cipher suites offered, in order.
    pub ciphers: Vec<u16>,
    /// Groups offered, in order.
    pub groups: Vec<u16>,
    /// Groups with a key share (RFC 8446, section 4.2.8), in order.
    pub shares: Vec<u16>,
    /// A session of TLS 1.3 is to be resumed (section 4.2.11).
    pub offers_session: bool,
    /// Signature algorithms offered, in order.
    pub sigalgs: Vec<u16>,
    /// TLS 1.3 is offered.
    pub v13: bool,
    /// TLS 1.2 is offered.
    pub v12: bool,
    /// The client announces early data (0-RTT).
    pub early_data: bool,
    /// The session that is to be resumed (TLS 1.2).
    pub session_id: Vec<u8>,
    /// Highest version offered, as on the wire (0x0304: TLS 1.3).
    pub version: u16,
    /// Names for ALPN, each after its length in one byte (RFC 7301, section 3.1).
    pub alpn: Vec<u8>,
    /// Transport parameters of QUIC (RFC 9001, section 8.2).
    pub transport_parameters: Vec<u8>,
}

impl Hello {
    /// Returns the names for ALPN, in order. Ends at one that is cut short.
    pub fn protocols(&self) -> impl Iterator<Item = &[u8]> {
        let mut list = Reader(&self.alpn);
        std::iter::from_fn(move || list.list8())
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }
    fn byte(&mut self) -> Option<u8> {
        self.take(1).and_then(|b| b.first().copied())
    }
    fn short(&mut self) -> Option<u16> {
        self.take(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
    }
    /// Reads a list with its length in 1 byte.
    fn list8(&mut self) -> Option<&'a [u8]> {
        let n = self.byte()?;
        self.take(usize::from(n))
    }
    /// Reads a list with its length in 2 bytes.
    fn list16(&mut self) -> Option<&'a [u8]> {
        let n = self.short()?;
        self.take(usize::from(n))
    }
}

fn shorts(bytes: &[u8]) -> Vec<u16> {
    bytes.chunks_exact(2).map(|b| u16::from_be_bytes([b[0], b[1]])).collect()
}

/// A ClientHello that arrives in pieces. Each byte is read once, however small the pieces are.
#[derive(Debug, Default)]
pub struct Reading {
    /// Bytes of the input in records that have been read.
    at: usize,
    /// Contents of these records.
    message: Vec<u8>,
}

impl Reading {
    /// Reads the new records; `input` is everything received on the connection so far. Returns `None` until the
    /// ClientHello is complete.
    ///
    /// # Errors
    /// If it cannot become one.
    pub fn more(&mut self, input: &[u8]) -> Result<Option<Hello>, Broken> {
        loop {
            let Some(record) = self.next_record(input)? else { return Ok(None) };
            self.append(record)?;
            self.at += record.len();
            if let Some(body) = self.body()? {
                return body_of(body).map(Some).ok_or(Broken::Undecodable);
            }
        }
    }

    /// Reads the next bytes of a handshake that has no records (RFC 9001, section 4.1.3). Returns `None` until the ClientHello is
    /// complete.
    ///
    /// # Errors
    /// If it cannot become one.
    pub fn more_of_stream(&mut self, bytes: &[u8]) -> Result<Option<Hello>, Broken> {
        self.message.extend_from_slice(bytes);
        // The first message of a client is its ClientHello, whose type is 1 (RFC 8446, section 4).
        if self.message.first().is_some_and(|kind| *kind != 1) {
            return Err(Broken::Malformed);
        }
        match self.body()? {
            Some(body) => body_of(body).map(Some).ok_or(Broken::Undecodable),
            None => Ok(None),
        }
    }

    /// Returns the bytes of the handshake so far.
    pub fn stream(&self) -> &[u8] {
        &self.message
    }

    /// Returns the first record that has not been read, `None` while it is incomplete.
    fn next_record<'i>(&self, input: &'i [u8]) -> Result<Option<&'i [u8]>, Broken> {
        let rest = input.get(self.at..).unwrap_or_default();
        match record::whole(rest)? {
            Some(n) => Ok(rest.get(..n)),
            // Without this limit a client could have the server gather bytes without end, before anything is known of it.
            None if input.len() > MAX_HELLO => Err(Broken::Overflow),
            None => Ok(None),
        }
    }

    /// Appends the content of a record.
    fn append(&mut self, record: &[u8]) -> Result<(), Broken> {
        let content = record.get(HEADER..).unwrap_or_default();
        if record.first() != Some(&HANDSHAKE) || content.is_empty() {
            return Err(Broken::Malformed);
        }
        // Records that are not encrypted have no room for more (RFC 8446, section 5.1).
        if content.len() > record::MAX_CONTENT {
            return Err(Broken::Overflow);
        }
        self.message.extend_from_slice(content);
        if self.message.first() == Some(&1) { Ok(()) } else { Err(Broken::Malformed) }
    }

    /// Returns the body of the message, if it is complete.
    fn body(&self) -> Result<Option<&[u8]>, Broken> {
        let Some(&[_, a, b, c]) = self.message.first_chunk() else { return Ok(None) };
        let len = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        // By the announced length already: nothing is gathered for a message that will be refused.
        if len > MAX_HELLO { Err(Broken::Overflow) } else { Ok(self.message.get(4..4 + len)) }
    }
}

fn body_of(body: &[u8]) -> Option<Hello> {
    let mut r = Reader(body);
    let version = r.short()?;
    r.take(32)?;
    let session_id = r.list8()?.to_vec();
    let ciphers = shorts(r.list16()?);
    // The compression methods.
    r.list8()?;
    let hello = Hello { ciphers, v12: version >= 0x0303, session_id, version, ..Hello::default() };
    hello.with_extensions(r)
}

impl Hello {
    /// Takes the extensions, if there are any.
    fn with_extensions(mut self, mut rest: Reader<'_>) -> Option<Hello> {
        if rest.0.is_empty() {
            return Some(self);
        }
        let mut extensions = Reader(rest.list16()?);
        while !extensions.0.is_empty() {
            let kind = extensions.short()?;
            let length = usize::from(extensions.short()?);
            // Takes a last extension that is cut short as far as it goes, as nginx's preread does. rustls refuses it.
            let content = extensions.take(length.min(extensions.0.len()))?;
            self.extension(kind, Reader(content))?;
        }
        Some(self)
    }

    /// Takes an extension (RFC 8446, section 4.2).
    fn extension(&mut self, kind: u16, mut data: Reader<'_>) -> Option<()> {
        match kind {
            0 => {
                if let Some((name, written)) = server_name(&mut data) {
                    (self.server_name, self.written_name) = (Some(name), written);
                }
            }
            10 => self.groups = shorts(data.list16()?),
            13 => self.sigalgs = shorts(data.list16()?),
            16 => self.alpn = data.list16()?.to_vec(),
            41 => self.offers_session = true,
            42 => self.early_data = true,
            51 => self.shares = shares(&mut data),
            57 => self.transport_parameters = data.0.to_vec(),
            43 => {
                let versions = shorts(data.list8()?);
                self.v13 = versions.contains(&0x0304);
                self.v12 = versions.contains(&0x0303);
                // Drafts of TLS 1.3 have numbers of their own. Clients mix in values that no version has (RFC 8701).
                let versions = versions.into_iter().map(|v| if v >> 8 == 0x7f { 0x0304 } else { v });
                let known = versions.filter(|v| (0x0300..=0x0304).contains(v));
                self.version = known.max().unwrap_or(self.version);
            }
            _ => {}
        }
        Some(())
    }
}

/// Returns the groups of key shares. Ends at one that is cut short.
fn shares(data: &mut Reader<'_>) -> Vec<u16> {
    let mut list = Reader(data.list16().unwrap_or_default());
    let next = || {
        let group = list.short()?;
        list.list16().map(|_| group)
    };
    std::iter::from_fn(next).collect()
}

/// Returns the name by which servers are found, and the name as written if that is different.
fn server_name(data: &mut Reader<'_>) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let mut list = Reader(data.list16()?);
    while !list.0.is_empty() {
        let kind = list.byte()?;
        let name = list.list16()?;
        if kind == 0 {
            let written = name;
            let name = name.strip_suffix(b".").unwrap_or(name).to_ascii_lowercase();
            let sound = !name.is_empty() && name.len() < 256 && name.iter().all(|b| b.is_ascii_graphic());
            let written = (written != name).then(|| written.to_vec());
            return sound.then_some((name, written));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([5; 32]);
        body.extend([0, 0, 4, 0x13, 0x01, 0xc0, 0x2f, 1, 0]);
        body.extend((extensions.len() as u16).to_be_bytes());
        body.extend(extensions);
        let mut message = vec![1, 0, (body.len() >> 8) as u8, body.len() as u8];
        message.extend(body);
        message
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in message.chunks(size) {
            out.extend([22, 3, 1, (piece.len() >> 8) as u8, piece.len() as u8]);
            out.extend(piece);
        }
        out
    }

    const EXTENSIONS: &[u8] = &[
        0, 0, 0, 9, 0, 7, 0, 0, 4, b'A', b'.', b'b', b'.', 0, 10, 0, 4, 0, 2, 0, 29, 0, 43, 0, 3, 2, 3, 4, 0,
        13, 0, 4, 0, 2, 4, 3, 0, 42, 0, 0, 0, 51, 0, 12, 0, 10, 0, 29, 0, 1, 7, 0, 23, 0, 1, 7, 0, 41, 0, 0,
        0, 16, 0, 7, 0, 5, 2, b'h', b'2', 1, b'x',
    ];

    fn parse(input: &[u8]) -> Result<Option<Hello>, Broken> {
        Reading::default().more(input)
    }

    #[test]
    fn a_record_in_clear_holds_16_kilobytes() {
        // Extension 21, padding (RFC 7685).
        let padded = |len: usize| {
            let message = hello(&[&[0, 21, (len >> 8) as u8, len as u8][..], &vec![0; len]].concat());
            records(&message, message.len())
        };
        let most = record::MAX_CONTENT + HEADER - padded(0).len();
        assert!(matches!(parse(&padded(most)), Ok(Some(_))));
        assert_eq!(parse(&padded(most + 1)), Err(Broken::Overflow));
    }

    /// Bytes are read once, also when they come one at a time.
    #[test]
    fn bytes_of_a_hello_are_read_once() {
        let bytes = records(&hello(EXTENSIONS), 3);
        let mut reading = Reading::default();
        for end in 1..bytes.len() {
            assert_eq!(reading.more(&bytes[..end]), Ok(None), "{end}");
            // What was taken is never looked at again.
            let mut rest = bytes[..end].to_vec();
            rest[..reading.at].fill(0);
            assert_eq!(reading.more(&rest), Ok(None), "{end}");
        }
        assert_eq!(reading.at / 8, reading.message.len() / 3, "whole records");
        assert!(reading.more(&bytes).unwrap().is_some());
    }

    #[test]
    fn name_and_offers_are_found_however_they_are_cut() {
        let message = hello(EXTENSIONS);
        for size in [1, 3, 50, 1000] {
            let bytes = records(&message, size);
            let got = parse(&bytes).unwrap().unwrap();
            assert_eq!(got.server_name.as_deref(), Some(b"a.b".as_slice()));
            assert_eq!(got.written_name.as_deref(), Some(b"A.b.".as_slice()));
            let protocols: Vec<Vec<u8>> = got.protocols().map(<[u8]>::to_vec).collect();
            assert_eq!((got.version, protocols), (0x0304, vec![b"h2".to_vec(), b"x".to_vec()]));
            assert_eq!((got.ciphers, got.groups, got.sigalgs), (vec![0x1301, 0xc02f], vec![29], vec![0x403]));
            assert!(got.v13 && !got.v12 && got.early_data && got.offers_session);
            assert_eq!(got.shares, [29, 23]);
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes[..cut]), Ok(None), "{cut}");
            }
        }
    }

    #[test]
    fn other_bytes_than_a_hello_are_refused_at_once() {
        assert_eq!(parse(b"GET / HTTP/1.1\r\n"), Err(Broken::Malformed));
        assert_eq!(parse(&[22, 3, 1, 0, 0]), Err(Broken::Malformed));
        assert_eq!(parse(&[22, 3, 1, 0, 1, 2]), Err(Broken::Malformed));
        assert_eq!(parse(&[22, 3, 1, 0, 4, 1, 255, 0, 0]), Err(Broken::Overflow));
        // The last extension says that it is longer than the message: nginx's preread takes it as far as it goes.
        let cut = parse(&records(&hello(&[0, 43, 0, 7, 2, 0x7f, 0x1c]), 1000)).unwrap().unwrap();
        assert_eq!(cut.version, 0x0304);
        let mut short = hello(EXTENSIONS);
        // The list of extensions is longer than the message.
        short[47] = 200;
        assert_eq!(parse(&records(&short, 1000)), Err(Broken::Undecodable));
    }
}
