//! Field lines as slices of a shared buffer, with known names as small integers (RFC 9110, section 5).
//! Hot path.

/// A slice of the buffer that a head lives in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Slice {
    /// The bytes themselves.
    pub fn of(self, buf: &[u8]) -> &[u8] {
        buf.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
    /// Length in bytes.
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }
    /// Whether nothing is in it.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

macro_rules! names {
    ($($id:ident = $text:literal,)*) => {
        /// Field names that the server itself looks at; everything else is `Other`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum Name { $($id,)* Other }

        impl Name {
            /// How many known names there are.
            pub const COUNT: usize = Name::Other as usize;
            /// Lower-case text of each known name, in the order of the enum.
            pub const TEXT: [&'static str; Name::COUNT] = [$($text,)*];
            /// Known names, in order.
            pub const ALL: [Name; Name::COUNT] = [$(Name::$id,)*];
        }
    };
}

names! {
    Host = "host", Connection = "connection", UserAgent = "user-agent", Accept = "accept",
    AcceptEncoding = "accept-encoding", AcceptLanguage = "accept-language", Cookie = "cookie",
    Referer = "referer", ContentLength = "content-length", ContentType = "content-type",
    TransferEncoding = "transfer-encoding", Expect = "expect", Te = "te", Trailer = "trailer",
    Upgrade = "upgrade", KeepAlive = "keep-alive", ProxyConnection = "proxy-connection",
    Http2Settings = "http2-settings", Authorization = "authorization", Range = "range",
    IfRange = "if-range", IfMatch = "if-match", IfNoneMatch = "if-none-match",
    IfModifiedSince = "if-modified-since", IfUnmodifiedSince = "if-unmodified-since",
    XForwardedFor = "x-forwarded-for", XRealIp = "x-real-ip", Via = "via", Priority = "priority",
    Depth = "depth", Destination = "destination", Overwrite = "overwrite", Date = "date",
    Server = "server", LastModified = "last-modified", Etag = "etag", Location = "location",
    ContentRange = "content-range", ContentEncoding = "content-encoding", AcceptRanges = "accept-ranges",
    CacheControl = "cache-control", Expires = "expires", Vary = "vary", SetCookie = "set-cookie",
    WwwAuthenticate = "www-authenticate", RetryAfter = "retry-after", Link = "link",
}

/// One field line: name and value as slices of the head's buffer.
#[derive(Clone, Copy, Debug)]
pub struct FieldLine {
    /// Known name, or `Other`.
    pub id: Name,
    /// The name as the peer wrote it.
    pub name: Slice,
    /// The value without surrounding white space.
    pub value: Slice,
}
