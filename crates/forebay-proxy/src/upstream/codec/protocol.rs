//! Protocols of upstreams, and in which facts they differ. All that chooses, asks, waits for and judges servers is the same for
//! every protocol. Hot path.

use crate::modules::proxy::HttpVersion;
use forebay_http::fastcgi;
use forebay_http::field::{Classes, Name};
use forebay_http::h1::client::{ResponseHead, framing_of_response};
use forebay_http::request;

/// A protocol that upstreams are spoken to by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP in any version (`proxy_pass`).
    #[default]
    Http,
    /// `fastcgi_pass`.
    FastCgi,
    /// `uwsgi_pass`.
    Uwsgi,
    /// `scgi_pass`.
    Scgi,
    /// `grpc_pass`: HTTP/2, content both ways at once.
    Grpc,
    /// `memcached_pass`.
    Memcached,
}

impl Protocol {
    /// Returns `true` for protocols with requests and responses of HTTP.
    pub fn is_http(self) -> bool {
        matches!(self, Protocol::Http | Protocol::Grpc)
    }

    /// Returns the beginning of a server's name in the error log.
    pub fn scheme(self, encrypted: bool) -> &'static [u8] {
        match self {
            Protocol::Http if encrypted => b"https://",
            Protocol::Http => b"http://",
            Protocol::FastCgi => b"fastcgi://",
            Protocol::Uwsgi if encrypted => b"suwsgi://",
            Protocol::Uwsgi => b"uwsgi://",
            Protocol::Scgi => b"scgi://",
            Protocol::Grpc if encrypted => b"grpcs://",
            Protocol::Grpc => b"grpc://",
            Protocol::Memcached => b"memcached://",
        }
    }

    /// Returns `true` if the directive names a URL rather than a place.
    pub fn takes_url(self) -> bool {
        self == Protocol::Http
    }

    /// Returns `true` if a place may begin with the scheme.
    pub fn takes_scheme(self) -> bool {
        matches!(self, Protocol::Uwsgi | Protocol::Grpc)
    }

    /// Returns `true` if connections may be encrypted.
    pub fn may_encrypt(self) -> bool {
        matches!(self, Protocol::Http | Protocol::Uwsgi | Protocol::Grpc)
    }

    /// Returns `true` if requests ask for the value of `$memcached_key`.
    pub fn has_key(self) -> bool {
        self == Protocol::Memcached
    }

    /// Returns `true` if responses have no type, so that it follows from the URI.
    pub fn is_untyped(self) -> bool {
        self == Protocol::Memcached
    }

    /// Returns `true` if a response of this status has no content, so that an error page is sent.
    pub fn is_missing(self, status: u16) -> bool {
        self == Protocol::Memcached && status == 404
    }

    /// Returns `true` if the error log names the server with the path.
    pub fn logs_path(self) -> bool {
        self != Protocol::Grpc
    }

    /// Returns `true` if connections are kept for a group that the directive implies.
    pub fn is_reused_unasked(self, version: HttpVersion) -> bool {
        self == Protocol::Http && matches!(version, HttpVersion::V11 | HttpVersion::V3)
    }

    /// Returns `true` if a body with this framing can be passed on as it comes (nginx: proxy_request_buffering off).
    pub fn can_stream(self, framing: request::Framing, version: HttpVersion) -> bool {
        match self {
            Protocol::Http => !(framing == request::Framing::Chunked && version == HttpVersion::V10),
            Protocol::FastCgi | Protocol::Grpc => true,
            // Their parameters name the length.
            Protocol::Uwsgi | Protocol::Scgi => matches!(framing, request::Framing::Length(_)),
            Protocol::Memcached => false,
        }
    }

    /// Returns the framing of content on its way to a server; `chunked`: over HTTP/1 its length is not known.
    pub fn framing(self, chunked: bool) -> Framing {
        match self {
            Protocol::FastCgi => Framing::Records,
            Protocol::Http if chunked => Framing::Chunked,
            _ => Framing::Plain,
        }
    }

    /// Returns the framing of the content of a response. `stored`: the response is stored.
    pub fn framing_of_response(self, head: &ResponseHead, to_head: bool, stored: bool) -> request::Framing {
        // nginx stores what a program answers to HEAD.
        let program = !self.is_http() && self != Protocol::Memcached;
        match framing_of_response(head, to_head && !(program && stored)) {
            // The protocol marks the end.
            request::Framing::Chunked if program => request::Framing::Stream,
            framing => framing,
        }
    }

    /// Returns `true` if a field of a response is not passed on unless `proxy_pass_header` names it.
    pub fn hides(self, name: Name, text: &[u8]) -> bool {
        let own = match self {
            Protocol::Http => name.is(Classes::OF_SERVER) || text.eq_ignore_ascii_case(b"X-Pad"),
            Protocol::FastCgi | Protocol::Scgi => text.eq_ignore_ascii_case(b"Status"),
            Protocol::Grpc => name.is(Classes::OF_SERVER),
            Protocol::Uwsgi | Protocol::Memcached => false,
        };
        own || name.is(Classes::PRIVATE)
    }

    /// Returns the beginning of the names of its directives.
    pub fn prefix(self) -> &'static str {
        match self {
            Protocol::Http => "proxy_",
            Protocol::FastCgi => "fastcgi_",
            Protocol::Uwsgi => "uwsgi_",
            Protocol::Scgi => "scgi_",
            Protocol::Grpc => "grpc_",
            Protocol::Memcached => "memcached_",
        }
    }

    /// Returns a number by which idle connections of this protocol differ from others to the same server.
    pub fn made_for(self) -> u64 {
        match self {
            Protocol::FastCgi => 0x6663_6769_0000_0000,
            Protocol::Memcached => 0x6d63_0000_0000_0000,
            // Connections of uwsgi and SCGI serve one request. HTTP/2 is told apart by its version.
            Protocol::Http | Protocol::Uwsgi | Protocol::Scgi | Protocol::Grpc => 0,
        }
    }
}

/// Framing of content on its way to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Without: its length is in the head.
    Plain,
    /// In chunks (RFC 9112, section 7.1).
    Chunked,
    /// In records of FastCGI.
    Records,
    /// In frames of HTTP/2 or HTTP/3, into which the stream divides it.
    Stream,
}

impl Framing {
    /// Returns `true` if the end of content is marked apart from its length. A mark that was sent cannot be taken back.
    pub fn ends_apart(self) -> bool {
        matches!(self, Framing::Records | Framing::Stream)
    }

    /// Appends a piece of content.
    pub fn piece(self, out: &mut Vec<u8>, content: &[u8]) {
        match self {
            _ if content.is_empty() => {}
            Framing::Plain | Framing::Stream => out.extend_from_slice(content),
            Framing::Chunked => {
                out.extend_from_slice(format!("{:x}\r\n", content.len()).as_bytes());
                out.extend_from_slice(content);
                out.extend_from_slice(b"\r\n");
            }
            Framing::Records => fastcgi::stdin(out, content),
        }
    }

    /// Returns `true` if nothing stands between pieces of content.
    pub fn is_plain(self) -> bool {
        matches!(self, Framing::Plain | Framing::Stream)
    }

    /// Appends the bytes before the next piece of a file of which `left` bytes are to be sent, and returns the length of the
    /// piece. Only for content whose length was known beforehand.
    pub fn file_piece(self, out: &mut Vec<u8>, left: u64) -> u64 {
        match self {
            Framing::Plain | Framing::Chunked | Framing::Stream => left,
            Framing::Records => {
                let len = left.min(fastcgi::MAX_CONTENT as u64);
                fastcgi::stdin_header(out, len as usize);
                len
            }
        }
    }

    /// Appends the end of the content.
    pub fn end(self, out: &mut Vec<u8>) {
        match self {
            Framing::Plain | Framing::Stream => {}
            Framing::Chunked => out.extend_from_slice(b"0\r\n\r\n"),
            Framing::Records => fastcgi::stdin_end(out),
        }
    }
}
