//! Facts in which protocols of upstreams differ. All that chooses, asks, waits for and judges servers is the same for every protocol.

use forebay_http::field::{Classes, Name};

/// Reason phrases of a protocol's responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reasons {
    /// There are none.
    None,
    /// A response has one or not (`Status` of CGI).
    Optional,
    /// Responses have a status line, which is passed on as it is, with or without a phrase.
    Line,
}

impl Reasons {
    /// Returns the text of the status line that is passed on, from the status on. Where it is empty this server's own is sent.
    pub fn passed_on(self, text: &[u8]) -> &[u8] {
        // Three digits and a blank come before the phrase.
        let is_passed_on = match self {
            Reasons::None => false,
            Reasons::Optional => text.len() > 4,
            Reasons::Line => true,
        };
        if is_passed_on { text } else { b"" }
    }
}

/// Facts about a protocol, which are the same for all requests.
#[derive(Debug)]
pub struct Facts {
    /// Beginning of the names of its directives, with the underscore.
    pub prefix: &'static str,
    /// Beginning of a server's name in the error log.
    pub scheme: &'static [u8],
    /// The same if the connection is encrypted; `None`: connections never are.
    pub encrypted_scheme: Option<&'static [u8]>,
    /// `true` if the directive names a URL rather than a place.
    pub takes_url: bool,
    /// `true` if a place may begin with the scheme.
    pub takes_scheme: bool,
    /// `true` for protocols with requests and responses of HTTP.
    pub is_http: bool,
    /// Variable with the key that requests ask for; `None`: they have a URI or parameters.
    pub key: Option<&'static [u8]>,
    /// `true` if responses have no type, so that it follows from the URI.
    pub is_untyped: bool,
    /// Status of responses without content, in place of which an error page is sent.
    pub missing: Option<u16>,
    /// `true` if the error log names the server with the path.
    pub logs_path: bool,
    /// `true` if connections are kept for a group that the directive implies.
    pub is_reused_unasked: bool,
    /// Number by which idle connections differ from the connections of other protocols to the same server.
    pub made_for: u64,
    /// `true` if clients ask for trailers themselves.
    pub passes_te: bool,
    /// Protocols that connections offer in the handshake of TLS.
    pub alpn: &'static [&'static [u8]],
    /// Protocols that connections over QUIC offer; `None`: there are none.
    pub quic_alpn: Option<&'static [&'static [u8]]>,
    /// `true` if many requests share a connection, each on a stream that divides its content into frames.
    pub is_multiplexed: bool,
    /// `true` if the end of a request's content is marked apart from its length. A mark that was sent cannot be taken back.
    pub ends_apart: bool,
    /// `true` if the end of a body is sent even if the body is empty.
    pub sends_empty: bool,
    /// `true` if the bytes after a head are the content as it is, up to a known length or to the end of the connection.
    pub is_plain: bool,
    /// `true` if the protocol marks the end of a response whose length is not known, so that the connection may be used again.
    pub marks_end: bool,
    /// `true` if the end of what is read has to be decoded.
    pub judges_end: bool,
    /// Reason phrases of its responses.
    pub reasons: Reasons,
    /// `true` if a response that ends with its head has a length, 0, even if the server has not said so.
    pub is_empty_after_head: bool,
    /// `true` if fields that describe the server are not passed on.
    pub hides_server: bool,
    /// Field that is not passed on.
    pub hides: &'static [u8],
}

impl Facts {
    /// Facts about a protocol that says nothing else.
    pub(super) const NONE: Facts = Facts {
        prefix: "",
        scheme: b"",
        encrypted_scheme: None,
        takes_url: false,
        takes_scheme: false,
        is_http: false,
        key: None,
        is_untyped: false,
        missing: None,
        logs_path: true,
        is_reused_unasked: false,
        made_for: 0,
        passes_te: false,
        alpn: &[],
        quic_alpn: None,
        is_multiplexed: false,
        ends_apart: false,
        sends_empty: false,
        is_plain: false,
        marks_end: false,
        judges_end: false,
        reasons: Reasons::None,
        is_empty_after_head: false,
        hides_server: false,
        hides: b"",
    };

    /// Returns the beginning of a server's name in the error log.
    pub fn scheme(&self, encrypted: bool) -> &'static [u8] {
        self.encrypted_scheme.filter(|_| encrypted).unwrap_or(self.scheme)
    }

    /// Returns `true` if a field of a response is not passed on unless `proxy_pass_header` names it.
    pub fn hides(&self, name: Name, text: &[u8]) -> bool {
        self.hides_server && name.is(Classes::OF_SERVER)
            || text.eq_ignore_ascii_case(self.hides)
            || name.is(Classes::PRIVATE)
    }
}
