//! Path and query that a request is served for. Hot path.

use forebay_http::request::RequestHead;

/// Number of internal redirects and rewrites that a request may take, plus one (nginx: 10).
pub const MAX_CHANGES: u8 = 11;

/// Path and query in effect, and how they came about. The client's own are in the head of the request.
#[derive(Debug)]
pub struct Uri {
    /// Decoded path (`$uri`).
    pub path: Vec<u8>,
    /// Query (`$args`).
    pub args: Vec<u8>,
    /// `true` after a redirect within the server, so that `internal` locations are open.
    pub internal: bool,
    /// `true` after a rewrite or redirect: an upstream gets this path, not the client's.
    pub rewritten: bool,
    /// `true` if the location belongs to the path. This ends with a rewrite that stays in its location, and a handler that replaces the
    /// location's part of the path has to know that.
    pub valid_location: bool,
    /// `true` if `try_files` found a file below the `alias` of a regular expression: the path is appended to it.
    pub add_uri_to_alias: bool,
    /// Changes of the path that are left.
    pub changes_left: u8,
}

impl Default for Uri {
    fn default() -> Uri {
        Uri {
            path: Vec::new(),
            args: Vec::new(),
            internal: false,
            rewritten: false,
            valid_location: true,
            add_uri_to_alias: false,
            changes_left: 0,
        }
    }
}

impl Uri {
    /// Takes path and query of a request that begins.
    #[inline]
    pub fn begin(&mut self, head: &mut RequestHead) {
        self.clear();
        std::mem::swap(&mut self.path, &mut head.path);
        self.args.extend_from_slice(head.args.of(&head.buf));
        self.changes_left = MAX_CHANGES;
    }

    /// Empties it, keeps the memory.
    #[inline]
    pub fn clear(&mut self) {
        // Every field is named, so that a new field cannot be left out.
        let Uri { path, args, internal, rewritten, valid_location, add_uri_to_alias, changes_left } = self;
        path.clear();
        args.clear();
        (*internal, *rewritten, *valid_location, *add_uri_to_alias) = (false, false, true, false);
        *changes_left = 0;
    }

    /// Takes path and query of a target within the server.
    pub fn replace(&mut self, target: &[u8]) {
        let mut split = target.splitn(2, |b| *b == b'?');
        self.path = split.next().unwrap_or_default().to_vec();
        self.args = split.next().unwrap_or_default().to_vec();
        self.rewritten = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_a_path_and_a_query() {
        let mut uri = Uri::default();
        for (target, path, args) in [("/a", "/a", ""), ("/b?c=d?e", "/b", "c=d?e"), ("?", "", "")] {
            uri.replace(target.as_bytes());
            assert_eq!((&*uri.path, &*uri.args), (path.as_bytes(), args.as_bytes()));
        }
        assert!(uri.rewritten && !uri.internal);
    }
}
