//! The PROXY protocol, versions 1 and 2, as HAProxy's `proxy-protocol.txt` describes it: a header
//! with the address of the client, which a proxy sends before anything else.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest header, bytes.
pub const MAX: usize = 4096;

/// Longest line of version 1, with its end, that the protocol allows. So many bytes without an end are refused. A line that comes
/// with its end may be longer, as in nginx.
const LONGEST_LINE: usize = 107;

/// Begins version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Addresses and extensions of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Address of the client that connected to the proxy.
    pub client: SocketAddr,
    /// Address to which the client connected.
    pub server: SocketAddr,
    /// Extensions of version 2 as they came; see [`tlv`].
    pub tlvs: Box<[u8]>,
}

/// Result of reading the first bytes of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The beginning of a header.
    Partial,
    /// A header of so many bytes. It has no addresses if the proxy connects for itself or does not know them.
    Complete(usize, Option<Header>),
}

/// The reason for refusing a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Neither version, or a field of version 1 that is wrong, or addresses that are cut short.
    Header,
    /// Version 2 of more than [`MAX`].
    TooLarge,
    /// Version 2 in form, but of another version.
    Version(u8),
}

/// Reads a header from the first bytes of a connection.
///
/// # Errors
/// The bytes cannot become a header.
pub fn parse(buf: &[u8]) -> Result<Parsed, Broken> {
    if starts(buf, SIGNATURE) {
        return version2(buf, STREAM);
    }
    if !starts(buf, b"PROXY ") {
        return Err(Broken::Header);
    }
    let Some(lf) = buf.iter().take(MAX).position(|b| *b == b'\n') else {
        return if buf.len() < LONGEST_LINE { Ok(Parsed::Partial) } else { Err(Broken::Header) };
    };
    let line = buf.get(..lf).unwrap_or_default();
    if line.starts_with(b"PROXY UNKNOWN") {
        return Ok(Parsed::Complete(lf + 1, None));
    }
    let header = version1(line).ok_or(Broken::Header)?;
    Ok(Parsed::Complete(lf + 1, Some(header)))
}

/// Reads a header of version 2 from the beginning of a datagram. Also returns the rest. `None`: the datagram does not begin with a
/// whole header.
pub fn parse_datagram(bytes: &[u8]) -> Option<(Option<Header>, &[u8])> {
    if !bytes.starts_with(SIGNATURE) {
        return None;
    }
    match version2(bytes, DATAGRAM) {
        Ok(Parsed::Complete(length, header)) => Some((header, bytes.get(length..)?)),
        Ok(Parsed::Partial) | Err(_) => None,
    }
}

/// Returns `true` if the bytes begin with `what`, or are the beginning of it.
fn starts(buf: &[u8], what: &[u8]) -> bool {
    let n = buf.len().min(what.len());
    buf.get(..n) == what.get(..n)
}

/// Reads `PROXY TCP4 CLIENT SERVER PORT PORT` and CR.
fn version1(line: &[u8]) -> Option<Header> {
    let text = std::str::from_utf8(line.strip_suffix(b"\r")?).ok()?;
    let mut words = text.split(' ').fuse();
    let words: [Option<&str>; 7] = std::array::from_fn(|_| words.next());
    let [Some(_), Some("TCP4" | "TCP6"), Some(client), Some(server), Some(from), Some(to), None] = words
    else {
        return None;
    };
    Some(Header { client: address(client, from)?, server: address(server, to)?, tlvs: Box::default() })
}

/// Reads an address and its port, which has digits only.
fn address(ip: &str, port: &str) -> Option<SocketAddr> {
    let ip: IpAddr = ip.parse().ok()?;
    if !port.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(SocketAddr::new(ip, port.parse().ok()?))
}

fn version2(buf: &[u8], transport: u8) -> Result<Parsed, Broken> {
    let Some(&[version, family, hi, lo]) = buf.get(12..16) else { return Ok(Parsed::Partial) };
    if version >> 4 != 2 {
        return Err(Broken::Version(version >> 4));
    }
    let end = 16 + usize::from(u16::from_be_bytes([hi, lo]));
    if end > MAX {
        return Err(Broken::TooLarge);
    }
    let Some(rest) = buf.get(16..end) else { return Ok(Parsed::Partial) };
    Ok(Parsed::Complete(end, known_addresses(version & 15, (family, transport), rest)?))
}

/// Reads the part behind the length. Only the own transport between IP addresses has addresses that we use, and the command LOCAL
/// (0) is for connections of the proxy itself.
fn known_addresses(
    command: u8,
    (family, transport): (u8, u8),
    rest: &[u8],
) -> Result<Option<Header>, Broken> {
    if family & 15 != transport {
        return Ok(None);
    }
    match (command, family >> 4) {
        (1, 1) => addresses::<4>(rest, |a| Ipv4Addr::from(a).into()).map(Some),
        (1, 2) => addresses::<16>(rest, |a| Ipv6Addr::from(a).into()).map(Some),
        _ => Ok(None),
    }
}

/// Reads two addresses, two ports and the extensions.
fn addresses<const N: usize>(rest: &[u8], ip: fn([u8; N]) -> IpAddr) -> Result<Header, Broken> {
    let (client, rest) = rest.split_first_chunk::<N>().ok_or(Broken::Header)?;
    let (server, rest) = rest.split_first_chunk::<N>().ok_or(Broken::Header)?;
    let (&[a, b, c, d], tlvs) = rest.split_first_chunk::<4>().ok_or(Broken::Header)?;
    Ok(Header {
        client: SocketAddr::new(ip(*client), u16::from_be_bytes([a, b])),
        server: SocketAddr::new(ip(*server), u16::from_be_bytes([c, d])),
        tlvs: tlvs.into(),
    })
}

/// The versions of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderVersion {
    /// A line of text.
    One,
    /// Binary.
    Two,
    /// Binary, in front of a datagram.
    Datagram,
}

impl HeaderVersion {
    /// Returns the version for a datagram. A line of text has no word for UDP, and stays as it is.
    pub fn over_udp(self) -> HeaderVersion {
        match self {
            HeaderVersion::One => HeaderVersion::One,
            HeaderVersion::Two | HeaderVersion::Datagram => HeaderVersion::Datagram,
        }
    }
}

/// Most bytes of extensions in a header, so that its length fits with any addresses.
pub const MAX_EXTENSIONS: usize = 0xffff - 36 - CHECKSUM.len();

/// Extension with the checksum of a header (CRC-32C), which is zero while it is computed.
const CHECKSUM: &[u8] = b"\x03\x00\x04\0\0\0\0";

/// Appends an extension of version 2 (TLV). The value has at most 65,535 bytes; a longer one is cut.
pub fn push_extension(kind: u8, value: &[u8], out: &mut Vec<u8>) {
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    let [high, low] = length.to_be_bytes();
    out.extend_from_slice(&[kind, high, low]);
    out.extend_from_slice(value.get(..usize::from(length)).unwrap_or_default());
}

/// Appends a header. `between`: the client and the server that it reached; `None` for a client without an IP address.
/// `extensions`: those of version 2 (see [`push_extension`]), at most [`MAX_EXTENSIONS`] bytes; version 1 has none.
pub fn write(
    version: HeaderVersion,
    between: Option<(SocketAddr, SocketAddr)>,
    extensions: &[u8],
    out: &mut Vec<u8>,
) {
    let transport = match (version, between) {
        (HeaderVersion::One, None) => return out.extend_from_slice(b"PROXY UNKNOWN\r\n"),
        (HeaderVersion::One, Some((client, server))) => return write_version1(client, server, out),
        (HeaderVersion::Two, _) => STREAM,
        (HeaderVersion::Datagram, _) => DATAGRAM,
    };
    let mut addresses = Vec::with_capacity(36);
    let family = between.map_or(0, |between| push_addresses(between, &mut addresses) | transport);
    // LOCAL: the receiver uses the addresses of the connection.
    let command = if between.is_some() { 0x21 } else { 0x20 };
    let length = u16::try_from(addresses.len() + extensions.len() + CHECKSUM.len()).unwrap_or(u16::MAX);
    let begin = out.len();
    out.extend_from_slice(SIGNATURE);
    out.extend_from_slice(&[command, family]);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&addresses);
    out.extend_from_slice(extensions);
    out.extend_from_slice(CHECKSUM);
    let checksum = crc32c(out.get(begin..).unwrap_or_default());
    out.truncate(out.len() - size_of_val(&checksum));
    out.extend_from_slice(&checksum.to_be_bytes());
}

/// Computes the CRC-32C (RFC 3720, appendix B.4). Bit by bit: a header is short, and there is one for a connection.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let step = |crc: u32, _| (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

fn write_version1(client: SocketAddr, server: SocketAddr, out: &mut Vec<u8>) {
    let text = match (client.ip(), server.ip()) {
        (IpAddr::V4(c), IpAddr::V4(s)) => format!("PROXY TCP4 {c} {s}"),
        (c, s) => format!("PROXY TCP6 {} {}", mapped(c), mapped(s)),
    };
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(format!(" {} {}\r\n", client.port(), server.port()).as_bytes());
}

/// Transport of version 2: TCP, in the byte that also has the family.
const STREAM: u8 = 1;
/// Transport of version 2: UDP.
const DATAGRAM: u8 = 2;

/// Appends the addresses of version 2. Returns the byte of their family.
fn push_addresses((client, server): (SocketAddr, SocketAddr), out: &mut Vec<u8>) -> u8 {
    let family = match (client.ip(), server.ip()) {
        (IpAddr::V4(c), IpAddr::V4(s)) => {
            out.extend_from_slice(&[c.octets(), s.octets()].concat());
            0x10
        }
        (c, s) => {
            out.extend_from_slice(&[mapped(c).octets(), mapped(s).octets()].concat());
            0x20
        }
    };
    out.extend_from_slice(&client.port().to_be_bytes());
    out.extend_from_slice(&server.port().to_be_bytes());
    family
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(a) => a.to_ipv6_mapped(),
        IpAddr::V6(a) => a,
    }
}

/// Type of the extension about TLS between client and proxy. Its value: a byte, the result of the
/// verification in four, and extensions of its own.
pub const TLV_SSL: u8 = 0x20;

/// Returns the value of the first extension of a type.
///
/// # Errors
/// An extension before it is cut short.
pub fn tlv(tlvs: &[u8], wanted: u8) -> Result<Option<&[u8]>, Broken> {
    let mut rest = tlvs;
    while !rest.is_empty() {
        let (&[kind, hi, lo], after) = rest.split_first_chunk::<3>().ok_or(Broken::Header)?;
        let len = usize::from(u16::from_be_bytes([hi, lo]));
        let (value, next) = after.split_at_checked(len).ok_or(Broken::Header)?;
        if kind == wanted {
            return Ok(Some(value));
        }
        rest = next;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_headers_are_read() {
        let addr = |a: &str| a.parse::<SocketAddr>().expect("address");
        for version in [HeaderVersion::One, HeaderVersion::Two] {
            for (client, server, read) in [
                ("1.2.3.4:5", "9.8.7.6:443", "1.2.3.4:5 9.8.7.6:443"),
                ("[2001:db8::1]:65535", "[::1]:80", "[2001:db8::1]:65535 [::1]:80"),
                ("1.2.3.4:5", "[::1]:80", "[::ffff:1.2.3.4]:5 [::1]:80"),
            ] {
                let mut out = Vec::new();
                write(version, Some((addr(client), addr(server))), b"", &mut out);
                assert_eq!(complete(&out), (out.len(), Some(read.to_owned())), "{version:?}");
            }
            let mut out = Vec::new();
            write(version, None, b"", &mut out);
            assert_eq!(complete(&out), (out.len(), None));
        }
        // As nginx writes them.
        let mut out = Vec::new();
        let between = (addr("127.0.0.1:47358"), addr("127.0.0.1:7861"));
        write(HeaderVersion::Two, Some(between), b"", &mut out);
        let header = b"\x21\x11\0\x13\x7f\0\0\x01\x7f\0\0\x01\xb8\xfe\x1e\xb5\x03\0\x04\x14\x4f\xf9\x79";
        assert_eq!(out[12..], *header);
        let mut out = Vec::new();
        write(HeaderVersion::Two, None, b"", &mut out);
        assert_eq!(out[12..], *b"\x20\0\0\x07\x03\0\x04\xa9\xb8\x7e\x8f");
        let mut out = Vec::new();
        write(HeaderVersion::Datagram, Some(between), b"", &mut out);
        let between = parse_datagram(&out).expect("a header").0.map(|h| format!("{} {}", h.client, h.server));
        assert_eq!(between.as_deref(), Some("127.0.0.1:47358 127.0.0.1:7861"));
        assert_eq!(complete(&out).1, None, "of another transport");
        out.extend_from_slice(b"text");
        assert_eq!(parse_datagram(&out).expect("a header").1, b"text");
        assert_eq!(parse_datagram(&out[..30]), None);
        assert_eq!(parse_datagram(b"text"), None);
        let (mut extensions, mut out) = (Vec::new(), Vec::new());
        push_extension(2, b"name", &mut extensions);
        push_extension(0xe0, &[7; 70_000], &mut extensions);
        assert_eq!(extensions.len(), 7 + 3 + 65_535, "cut");
        extensions.truncate(7);
        write(HeaderVersion::Two, Some((addr("1.2.3.4:5"), addr("5.6.7.8:9"))), &extensions, &mut out);
        let Ok(Parsed::Complete(n, Some(header))) = parse(&out) else { panic!("{}", out.escape_ascii()) };
        assert_eq!((n, tlv(&header.tlvs, 2)), (out.len(), Ok(Some(b"name".as_slice()))));
    }

    fn complete(buf: &[u8]) -> (usize, Option<String>) {
        match parse(buf) {
            Ok(Parsed::Complete(n, h)) => (n, h.map(|h| format!("{} {}", h.client, h.server))),
            other => panic!("{other:?} for {}", buf.escape_ascii()),
        }
    }

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let len = u16::try_from(body.len()).expect("short").to_be_bytes();
        [SIGNATURE.as_slice(), &[command, family], &len, body].concat()
    }

    const V4: &[u8] = b"\x01\x02\x03\x04\x05\x06\x07\x08\x00\x50\x01\xbb";

    #[test]
    fn version_1() {
        for (text, want) in [
            ("PROXY TCP4 1.2.3.4 5.6.7.8 1111 2222\r\n", Some("1.2.3.4:1111 5.6.7.8:2222")),
            ("PROXY TCP6 2001:db8::1 ::1 1 65535\r\n", Some("[2001:db8::1]:1 [::1]:65535")),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 0 02\r\n", Some("1.2.3.4:0 5.6.7.8:2")),
            ("PROXY UNKNOWN\r\n", None),
            ("PROXY UNKNOWN foo bar\r\n", None),
        ] {
            let (n, got) = complete(&[text.as_bytes(), b"GET /"].concat());
            assert_eq!((n, got.as_deref()), (text.len(), want));
            for cut in 0..text.len() {
                assert_eq!(parse(&text.as_bytes()[..cut]), Ok(Parsed::Partial), "{cut} of {text}");
            }
        }
        for bad in [
            "GET / HTTP/1.0\r\n",
            "PROXY\r\n",
            "proxy TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
            "PROXY TCP5 1.2.3.4 5.6.7.8 1 2\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 1111\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 1111 99999\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 +1 2\r\n",
            "PROXY TCP4 x 5.6.7.8 1 2\r\n",
            "PROXY TCP4  1.2.3.4 5.6.7.8 1 2\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n",
        ] {
            assert_eq!(parse(bad.as_bytes()), Err(Broken::Header), "{bad}");
        }
        let long = |end: &[u8]| [b"PROXY UNKNOWN ".as_slice(), &[b'1'; 107 - 14 - 1], end].concat();
        assert_eq!(parse(&long(b"")), Ok(Parsed::Partial));
        // Nothing that counts can follow.
        assert_eq!(parse(&long(b"1")), Err(Broken::Header));
        assert_eq!(complete(&long(b"1\r\n")), (109, None));
        assert_eq!(parse(&[b'P'; 1]), Ok(Parsed::Partial));
        let endless = [b"PROXY UNKNOWN ".as_slice(), &[b'1'; MAX], b"\r\n"].concat();
        assert_eq!(parse(&endless), Err(Broken::Header));
    }

    #[test]
    fn version_2() {
        let whole = v2(0x21, 0x11, V4);
        assert_eq!(complete(&whole), (28, Some("1.2.3.4:80 5.6.7.8:443".into())));
        for cut in 0..whole.len() {
            assert_eq!(parse(&whole[..cut]), Ok(Parsed::Partial), "{cut}");
        }
        let v6 = [[0u8; 15].as_slice(), &[1], &[0; 15], &[2], &[0, 1, 0, 2]].concat();
        assert_eq!(complete(&v2(0x21, 0x21, &v6)).1.as_deref(), Some("[::1]:1 [::2]:2"));
        for (command, family) in
            [(0x20, 0x11), (0x20, 0), (0x21, 0), (0x21, 0x12), (0x21, 0x31), (0x22, 0x11)]
        {
            assert_eq!(complete(&v2(command, family, V4)), (28, None), "{command:x} {family:x}");
        }
        assert_eq!(parse(&v2(0x11, 0x11, V4)), Err(Broken::Version(1)));
        assert_eq!(parse(&v2(0x21, 0x11, &V4[..11])), Err(Broken::Header));
        assert_eq!(parse(&v2(0x21, 0x11, &[0; 5000])), Err(Broken::TooLarge));
    }

    #[test]
    fn extensions() {
        let tlvs = b"\x01\x00\x02h2\x02\x00\x04host\xae\x00\x00";
        assert_eq!(tlv(tlvs, 1), Ok(Some(b"h2".as_slice())));
        assert_eq!(tlv(tlvs, 2), Ok(Some(b"host".as_slice())));
        assert_eq!(tlv(tlvs, 0xae), Ok(Some(b"".as_slice())));
        assert_eq!(tlv(tlvs, 3), Ok(None));
        assert_eq!(tlv(b"\x01\x00\x05ab", 1), Err(Broken::Header));
        assert_eq!(tlv(b"\x01\x00", 1), Err(Broken::Header));
        let whole = v2(0x21, 0x11, &[V4, tlvs].concat());
        let Ok(Parsed::Complete(_, Some(h))) = parse(&whole) else { panic!("complete") };
        assert_eq!(&*h.tlvs, tlvs);
    }
}
