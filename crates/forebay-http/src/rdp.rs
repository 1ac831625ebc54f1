//! Parser of the cookie with which an RDP client connects: the text in the X.224 Connection Request (MS-RDPBCGR, section 2.2.1.1; its
//! TPKT header is in RFC 1006, section 6).

/// Failure: the bytes are no connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotRequest;

/// Version of the TPKT header.
const TPKT: u8 = 3;

/// Code of a connection request. The lower half of its byte is the initial credit.
const CONNECTION_REQUEST: u8 = 0xe0;

/// Bytes of the TPKT header and the fixed part of the request.
const HEADERS: usize = 4 + 7;

/// Text before the cookie.
const PREFIX: &[u8] = b"Cookie: ";

/// Reads the request with which a connection begins. Returns `None` until the cookie is complete; the rest of the request may still
/// be missing then. The cookie is `NAME=VALUE`, and empty if the request has none.
///
/// # Errors
/// If the bytes cannot become such a request.
pub fn cookie(bytes: &[u8]) -> Result<Option<&[u8]>, NotRequest> {
    let Some(request) = Request::begin(bytes)? else { return Ok(None) };
    let Some(text) = request.here.strip_prefix(PREFIX) else {
        let may_follow = PREFIX.starts_with(request.here) && !request.complete;
        return Ok(if may_follow { None } else { Some(b"") });
    };
    match memchr::memmem::find(text, b"\r\n") {
        Some(end) => Ok(text.get(..end)),
        None if request.complete => Ok(Some(b"")),
        None => Ok(None),
    }
}

/// Returns the value of a cookie if it has the name, in any case.
pub fn value<'c>(cookie: &'c [u8], name: &[u8]) -> Option<&'c [u8]> {
    let equals = memchr::memchr(b'=', cookie)?;
    let (found, value) = cookie.split_at_checked(equals)?;
    if found.eq_ignore_ascii_case(name) { value.get(1..) } else { None }
}

/// Connection request whose fixed part has come.
struct Request<'b> {
    /// Bytes behind the fixed part that are here, without those behind the request.
    here: &'b [u8],
    /// All of the request is here.
    complete: bool,
}

impl<'b> Request<'b> {
    /// Reads the fixed part. Returns `None` until it has come.
    fn begin(bytes: &'b [u8]) -> Result<Option<Request<'b>>, NotRequest> {
        if bytes.first().is_some_and(|version| *version != TPKT) {
            return Err(NotRequest);
        }
        let Some(&[_, _, high, low]) = bytes.first_chunk() else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length < HEADERS || bytes.get(5).is_some_and(|code| code & 0xf0 != CONNECTION_REQUEST) {
            return Err(NotRequest);
        }
        // The length in the X.224 header is one byte, which long cookies exceed: only the one of the TPKT header counts.
        let request = bytes.get(..length).unwrap_or(bytes);
        let here = request.get(HEADERS..);
        Ok(here.map(|here| Request { here, complete: bytes.len() >= length }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a request with bytes behind its fixed part.
    fn request(text: &[u8]) -> Vec<u8> {
        let length = u16::try_from(HEADERS + text.len()).expect("short").to_be_bytes();
        let indicator = (length[1]).wrapping_sub(5);
        [&[TPKT, 0], length.as_slice(), &[indicator, 0xe0, 0, 0, 0, 0, 0], text].concat()
    }

    /// Protocols that the client asks for (RDP Negotiation Request).
    const NEGOTIATION: &[u8] = &[1, 0, 8, 0, 3, 0, 0, 0];

    #[test]
    fn a_cookie_is_read_in_any_pieces() {
        for cookie in ["mstshash=alice", "msts=3640205228.15629.0000", "mstshash=", "odd"] {
            let line = format!("Cookie: {cookie}\r\n");
            let whole = request(&[line.as_bytes(), NEGOTIATION].concat());
            let needed = HEADERS + line.len();
            for n in 0..=whole.len() {
                let expected = (n >= needed).then_some(cookie.as_bytes());
                assert_eq!(super::cookie(&whole[..n]), Ok(expected), "{n} bytes of {cookie}");
            }
        }
    }

    #[test]
    fn a_request_may_have_none() {
        assert_eq!(cookie(&request(b"")), Ok(Some(b"".as_slice())));
        assert_eq!(cookie(&request(NEGOTIATION)), Ok(Some(b"".as_slice())));
        // Known by the first byte that differs.
        assert_eq!(cookie(&request(NEGOTIATION)[..HEADERS + 1]), Ok(Some(b"".as_slice())));
        assert_eq!(cookie(&request(b"Cookie: mstshash=a")), Ok(Some(b"".as_slice())));
        assert_eq!(cookie(&request(b"Cook")), Ok(Some(b"".as_slice())));
        assert_eq!(cookie(&request(b"tsv://MS Terminal Services Plugin.1.x\r\n")), Ok(Some(b"".as_slice())));
    }

    #[test]
    fn bytes_behind_the_request_are_not_read() {
        let behind = [&request(b"Cookie: mstshash=a"), b"\r\n".as_slice()].concat();
        assert_eq!(cookie(&behind), Ok(Some(b"".as_slice())));
    }

    #[test]
    fn other_protocols_are_refused() {
        let others: [&[u8]; 5] =
            [b"G", b"\x16", b"\x03\0\0\x0a", b"\x03\0\0\x20\x1b\xd0", b"\x03\0\0\x20\x1b\x70"];
        for bytes in others {
            assert_eq!(cookie(bytes), Err(NotRequest), "{bytes:?}");
            assert_eq!(cookie(&bytes[..bytes.len() - 1]), Ok(None), "{bytes:?}");
        }
        // The longest length is only waited for.
        assert_eq!(cookie(b"\x03\0\xff\xff\xff\xe0\0\0\0\0\0Cookie: "), Ok(None));
    }

    #[test]
    fn values_have_names() {
        assert_eq!(value(b"mstshash=a=b", b"mstshash"), Some(b"a=b".as_slice()));
        assert_eq!(value(b"MSTShash=a", b"mstshash"), Some(b"a".as_slice()));
        assert_eq!(value(b"mstshash=a", b"msts"), None);
        assert_eq!(value(b"odd", b"odd"), None);
    }
}
