//! Fields that the server adds to responses. Hot path.

/// Fields that the server adds to a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerFields {
    /// `Server`. Without it the field is the upstream's business (nginx: proxy_pass_header): where that sends none there is none.
    pub server: bool,
    /// `Date`, likewise.
    pub date: bool,
    /// `Vary: Accept-Encoding` (nginx: gzip_vary).
    pub vary: bool,
    /// Trailers, which take the chunked coding (nginx: add_trailer).
    pub trailers: bool,
}

impl Default for ServerFields {
    fn default() -> ServerFields {
        ServerFields { server: true, date: true, vary: false, trailers: false }
    }
}
