//! A small HTTP/1 client for requests that the server itself makes: health checks, OCSP. Runs on the process's tokio thread.
//! Limits the length of heads and bodies; the time is up to the caller.

pub mod blocking;
mod line;

use forebay_http::h1::chunked::{Chunked, Step};
use forebay_http::h1::client::{self, ResponseHead, framing_of_response};
use forebay_http::h1::request::Status;
use forebay_http::request::Framing;
use forebay_net::blame::Blamed;
use std::io;

pub use line::{Line, Opened};

/// Failure of an exchange.
#[derive(Debug)]
pub enum Failure {
    /// The request cannot be sent.
    Send(io::Error),
    /// The connection cannot be read.
    Receive(io::Error),
    /// The connection ends before the head of the response is complete.
    NoHead,
    /// The head of the response is invalid or too long.
    InvalidHead,
    /// The coding of the body is invalid.
    InvalidChunk,
    /// The connection ends before the body is complete.
    Incomplete,
}

impl Failure {
    /// Adds the side at fault.
    pub fn blamed(self) -> Blamed<Failure> {
        match self {
            Failure::Send(e) => Blamed::from(e).map(Failure::Send),
            Failure::Receive(e) => Blamed::from(e).map(Failure::Receive),
            of_peer => Blamed::Peer(of_peer),
        }
    }
}

/// Body of a response, as far as it was read.
#[derive(Debug)]
pub struct Body {
    /// Content.
    pub bytes: Vec<u8>,
    /// Part of the response that was read.
    pub read: Read,
}

/// Part of a response that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// All of it, and nothing follows: the connection may serve another request.
    All,
    /// All of it. The connection has ended, or has bytes that no request asked for.
    Last,
    /// As much as the limit allows.
    Part,
}

impl Line {
    /// Sends a request.
    ///
    /// # Errors
    /// [`Failure::Send`].
    pub async fn request(&mut self, text: &[u8]) -> Result<(), Failure> {
        self.write_all(text).await.map_err(Failure::Send)
    }

    /// Reads a head, of at most `limit` bytes, which may be interim. `head.buf` then may have bytes after it, as it may have
    /// before from an earlier one.
    ///
    /// # Errors
    /// [`Failure::Receive`], [`Failure::NoHead`], [`Failure::InvalidHead`].
    pub async fn head(&mut self, head: &mut ResponseHead, limit: usize) -> Result<(), Failure> {
        loop {
            // Bytes behind an interim head may be the next one: without this the read below could wait for ever.
            if !head.buf.is_empty() {
                match client::parse(head, limit) {
                    Ok(Status::Complete) => return Ok(()),
                    Ok(Status::Partial) => {}
                    Err(_) => return Err(Failure::InvalidHead),
                }
            }
            if self.more(&mut head.buf).await? == 0 {
                return Err(Failure::NoHead);
            }
        }
    }

    /// Reads heads up to the final one.
    ///
    /// # Errors
    /// As [`Line::head`].
    pub async fn final_head(&mut self, limit: usize) -> Result<ResponseHead, Failure> {
        let mut head = ResponseHead::default();
        loop {
            self.head(&mut head, limit).await?;
            if !head.is_interim() {
                return Ok(head);
            }
            let len = head.len;
            head.advance(len);
        }
    }

    /// Reads the body of the response to a GET request, until it has `limit` bytes or a few more.
    ///
    /// # Errors
    /// [`Failure::Receive`], [`Failure::InvalidChunk`], [`Failure::Incomplete`].
    pub async fn body(&mut self, head: &ResponseHead, limit: usize) -> Result<Body, Failure> {
        let raw = head.buf.get(head.len..).unwrap_or_default().to_vec();
        match framing_of_response(head, false) {
            Framing::None => {
                let read = if raw.is_empty() { Read::All } else { Read::Last };
                Ok(Body { bytes: Vec::new(), read })
            }
            Framing::Length(length) => self.sized(raw, length, limit).await,
            Framing::Stream => self.until_end(raw, limit).await,
            Framing::Chunked => self.chunked(raw, limit).await,
        }
    }

    async fn more(&mut self, buf: &mut Vec<u8>) -> Result<usize, Failure> {
        self.read(buf).await.map_err(Failure::Receive)
    }

    async fn sized(&mut self, mut bytes: Vec<u8>, length: u64, limit: usize) -> Result<Body, Failure> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        while bytes.len() < length.min(limit) {
            if self.more(&mut bytes).await? == 0 {
                return Err(Failure::Incomplete);
            }
        }
        let read = match bytes.len().cmp(&length) {
            std::cmp::Ordering::Less => Read::Part,
            std::cmp::Ordering::Equal => Read::All,
            std::cmp::Ordering::Greater => Read::Last,
        };
        bytes.truncate(length);
        Ok(Body { bytes, read })
    }

    async fn until_end(&mut self, mut bytes: Vec<u8>, limit: usize) -> Result<Body, Failure> {
        while bytes.len() < limit {
            if self.more(&mut bytes).await? == 0 {
                return Ok(Body { bytes, read: Read::Last });
            }
        }
        Ok(Body { bytes, read: Read::Part })
    }

    async fn chunked(&mut self, mut raw: Vec<u8>, limit: usize) -> Result<Body, Failure> {
        let (mut chunks, mut bytes) = (Chunked::default(), Vec::new());
        loop {
            if let Some(read) = dechunk(&mut chunks, &raw, &mut bytes)? {
                return Ok(Body { bytes, read });
            }
            if bytes.len() >= limit {
                return Ok(Body { bytes, read: Read::Part });
            }
            raw.clear();
            if self.more(&mut raw).await? == 0 {
                return Err(Failure::Incomplete);
            }
        }
    }
}

/// Decodes what has come of a chunked body. Returns `None` if more follows.
fn dechunk(chunks: &mut Chunked, raw: &[u8], bytes: &mut Vec<u8>) -> Result<Option<Read>, Failure> {
    let mut rest = raw;
    loop {
        match chunks.decode(rest) {
            Ok(Step::Data { start, end }) => {
                bytes.extend_from_slice(rest.get(start..end).unwrap_or_default());
                rest = rest.get(end..).unwrap_or_default();
            }
            Ok(Step::More) => return Ok(None),
            Ok(Step::End { consumed }) if consumed == rest.len() => return Ok(Some(Read::All)),
            Ok(Step::End { .. }) => return Ok(Some(Read::Last)),
            Err(_) => return Err(Failure::InvalidChunk),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    /// Reads a response with a body limit of 8 bytes from a connection that ends after it.
    fn read(response: &str) -> Result<(u16, Body), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        runtime.block_on(async {
            let (ours, mut theirs) = tokio::io::duplex(1024);
            theirs.write_all(response.as_bytes()).await.expect("room");
            drop(theirs);
            let mut line = Line::over(ours);
            let head = line.final_head(256).await?;
            let body = line.body(&head, 8).await?;
            Ok((head.status, body))
        })
    }

    fn body(fields_and_body: &str) -> Result<(String, Read), Failure> {
        let (status, body) = read(&format!("HTTP/1.1 200 OK\r\n{fields_and_body}"))?;
        assert_eq!(status, 200);
        Ok((String::from_utf8(body.bytes).expect("text"), body.read))
    }

    #[test]
    fn a_body_ends_as_its_head_says() {
        let is = |text: &str, content: &str, read: Read| {
            assert_eq!(body(text).expect(text), (content.to_owned(), read), "{text}");
        };
        is("Content-Length: 3\r\n\r\nabc", "abc", Read::All);
        is("Content-Length: 3\r\n\r\nabcd", "abc", Read::Last);
        is("Content-Length: 0\r\n\r\n", "", Read::All);
        is("\r\nabc", "abc", Read::Last);
        is("Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n", "abcd", Read::All);
        is("Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nmore", "", Read::Last);
    }

    #[test]
    fn a_long_body_is_read_in_part() {
        for text in [
            "Content-Length: 20\r\n\r\n0123456789",
            "\r\n0123456789",
            "Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n",
        ] {
            let (content, read) = body(text).expect(text);
            assert_eq!((content.as_str(), read), ("0123456789", Read::Part), "{text}");
        }
    }

    #[test]
    fn cut_answers_fail() {
        assert!(matches!(body("Content-Length: 3\r\n\r\nab"), Err(Failure::Incomplete)));
        assert!(matches!(body("Transfer-Encoding: chunked\r\n\r\n3\r\nab"), Err(Failure::Incomplete)));
        assert!(matches!(body("Transfer-Encoding: chunked\r\n\r\nx"), Err(Failure::InvalidChunk)));
        assert!(matches!(body("Content-"), Err(Failure::NoHead)));
        assert!(matches!(body(&format!("A: {}\r\n\r\n", "x".repeat(300))), Err(Failure::InvalidHead)));
    }

    #[test]
    fn interim_responses_are_skipped() {
        let response = "HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        let (status, body) = read(response).expect("a response");
        assert_eq!((status, body.bytes.len(), body.read), (204, 0, Read::All));
    }
}
