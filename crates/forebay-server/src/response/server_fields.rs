//! Fields that the server adds to responses. Hot path.

/// Fields that the server adds to a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerFields {
    /// `Server`. Without it, the field is left to the upstream (nginx: proxy_pass_header), and is absent if the upstream sends none.
    pub server: bool,
    /// `Date`, in the same way.
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
