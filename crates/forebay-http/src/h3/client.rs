//! Heads between HTTP/1 and HTTP/3 for upstreams, as `h2/client.rs` makes them for HTTP/2 (RFC 9114, section 4.3). Hot path.

use super::encode;
use super::qpack::Decoder;
use crate::compression::secret::is_secret;
pub use crate::h2::client::{BadBlock, each_line};
use crate::h2::client::{each_field, lines};

/// Appends the field section of a request whose HTTP/1 head is `head`, by the static table. Fields of the HTTP/1 connection are left out,
/// `Host` becomes `:authority`. `trailers`: `te: trailers` is sent, unless the head says so itself.
pub fn request_section(head: &[u8], trailers: bool, out: &mut Vec<u8>) {
    encode::prefix(out);
    each_field(head, true, trailers, |name, value| match is_secret(name) {
        true => encode::sensitive(out, name, value),
        false => encode::field(out, name, value),
    });
}

/// A field section of a response.
#[derive(Clone, Copy, Debug)]
pub struct Section<'b> {
    /// As received.
    pub bytes: &'b [u8],
    /// It has the trailers, which have no status.
    pub trailers: bool,
    /// Most bytes of the HTTP/1 head.
    pub limit: usize,
}

/// Decodes a section into an HTTP/1 head, appended to `out`, which is empty. Returns the status, and whether the section refers to the
/// dynamic table. Trailers become field lines without a status line; their status is 0.
///
/// # Errors
/// [`BadBlock`]. After `Compression` the connection cannot be used any more.
pub fn response_head(
    decoder: &Decoder,
    section: &Section<'_>,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> (bool, Result<u16, BadBlock>) {
    let &Section { bytes, trailers, limit } = section;
    let mut dynamic = false;
    let head = lines(trailers, limit, out, |fields| {
        dynamic = decoder.decode(bytes, scratch, fields).map_err(|_| BadBlock::Compression)?;
        Ok(())
    });
    (dynamic, head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::{Field, Sink};

    struct Fields(Vec<String>);
    impl Sink for Fields {
        fn field(&mut self, Field { name, value, .. }: Field<'_>) {
            self.0.push(format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)));
        }
    }

    #[test]
    fn requests_lose_what_is_of_the_connection() {
        let head = b"PUT /a%20b?c HTTP/1.1\r\nX-One: 1\r\nHost: example.com\r\nConnection: close\r\nUpgrade: x\r\n\
                     Transfer-Encoding: chunked\r\nTE: trailers\r\nAuthorization: secret\r\nContent-Length: 3\r\n\r\n";
        let mut out = Vec::new();
        request_section(head, false, &mut out);
        let mut fields = Fields(Vec::new());
        assert_eq!(Decoder::new(0).decode(&out, &mut Vec::new(), &mut fields), Ok(false));
        let want = [
            ":method=PUT",
            ":path=/a%20b?c",
            ":scheme=https",
            ":authority=example.com",
            "x-one=1",
            "authorization=secret",
            "content-length=3",
            "te=trailers",
        ];
        assert_eq!(fields.0, want);
    }

    #[test]
    fn responses_become_heads_of_http_1() {
        let mut bytes = Vec::new();
        encode::prefix(&mut bytes);
        encode::status(&mut bytes, 404);
        encode::field(&mut bytes, b"content-type", b"text/html");
        let read = |bytes: &[u8], trailers, limit| {
            let mut out = Vec::new();
            let section = Section { bytes, trailers, limit };
            let (_, status) = response_head(&Decoder::new(0), &section, &mut Vec::new(), &mut out);
            status.map(|status| (status, String::from_utf8_lossy(&out).into_owned()))
        };
        let want = "HTTP/1.1 404 Not Found\r\ncontent-type: text/html\r\n\r\n";
        assert_eq!(read(&bytes, false, 4096), Ok((404, want.to_owned())));
        assert_eq!(read(&bytes, false, 30), Err(BadBlock::TooLarge));
        assert_eq!(read(&bytes, true, 4096), Err(BadBlock::Malformed("pseudo-header in trailers")));
        assert_eq!(read(&[0, 0], true, 4096), Ok((0, "\r\n".to_owned())));
        assert_eq!(read(&[0, 0], false, 4096), Err(BadBlock::Malformed("header without \":status\"")));
        assert_eq!(read(&[0], false, 4096), Err(BadBlock::Compression));
    }
}
