//! What is spoken with upstreams. All that chooses, asks, waits for and judges them is the same for every protocol; where
//! the bytes differ, the code asks here. Hot path.

use forebay_http::fastcgi;

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
    /// Whether what is said is HTTP, in heads and content.
    pub fn is_http(self) -> bool {
        matches!(self, Protocol::Http | Protocol::Grpc)
    }

    /// How the error log begins the name of a server.
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

    /// Name of the directive that chooses it.
    pub fn directive(self) -> &'static str {
        match self {
            Protocol::Http => "proxy_pass",
            Protocol::FastCgi => "fastcgi_pass",
            Protocol::Uwsgi => "uwsgi_pass",
            Protocol::Scgi => "scgi_pass",
            Protocol::Grpc => "grpc_pass",
            Protocol::Memcached => "memcached_pass",
        }
    }

    /// Tells idle connections of this protocol from others to the same server.
    pub fn made_for(self) -> u64 {
        match self {
            Protocol::FastCgi => 0x6663_6769_0000_0000,
            Protocol::Memcached => 0x6d63_0000_0000_0000,
            // Connections of uwsgi and SCGI serve one request; who speaks HTTP/2 does so to all.
            Protocol::Http | Protocol::Uwsgi | Protocol::Scgi | Protocol::Grpc => 0,
        }
    }
}

/// How content is framed on its way to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Not at all: its length stands in the head.
    Plain,
    /// In chunks (RFC 9112, section 7.1).
    Chunked,
    /// In records of FastCGI.
    Records,
    /// In frames of HTTP/2, which the connection makes of it.
    Frames,
}

impl Framing {
    /// Whether the end of content is told apart from its length: a server that was told cannot be told otherwise.
    pub fn ends_apart(self) -> bool {
        matches!(self, Framing::Records | Framing::Frames)
    }

    /// Appends a piece of content.
    pub fn piece(self, out: &mut Vec<u8>, content: &[u8]) {
        match self {
            _ if content.is_empty() => {}
            Framing::Plain | Framing::Frames => out.extend_from_slice(content),
            Framing::Chunked => {
                out.extend_from_slice(format!("{:x}\r\n", content.len()).as_bytes());
                out.extend_from_slice(content);
                out.extend_from_slice(b"\r\n");
            }
            Framing::Records => fastcgi::stdin(out, content),
        }
    }

    /// Appends what stands before the next piece of a file of which `left` bytes are to be sent; gives the length of the
    /// piece. Only for content whose length was known beforehand.
    pub fn file_piece(self, out: &mut Vec<u8>, left: u64) -> u64 {
        match self {
            Framing::Plain | Framing::Chunked | Framing::Frames => left,
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
            Framing::Plain | Framing::Frames => {}
            Framing::Chunked => out.extend_from_slice(b"0\r\n\r\n"),
            Framing::Records => fastcgi::stdin_end(out),
        }
    }
}
