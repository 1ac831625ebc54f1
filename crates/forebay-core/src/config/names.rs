//! `server_name` and the choice of a virtual server (nginx: server_name). Hot path.

use super::scope::{Context, Scope};
use crate::pattern::Pattern;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use std::collections::HashMap;

/// One name.
#[derive(Clone, Debug)]
pub enum ServerName {
    /// `example.org`, or empty: requests without a host.
    Exact(Vec<u8>),
    /// `*.example.org`: what stands after the star, with its dot.
    Head(Vec<u8>),
    /// `.example.org`: the name itself and all below it; kept with its dot.
    Dot(Vec<u8>),
    /// `www.example.*`: what stands before the star, with its dot.
    Tail(Vec<u8>),
    /// `~pattern`.
    Regex(Pattern, Vec<u8>),
}

impl ServerName {
    /// As `$server_name` shows it.
    pub fn text(&self) -> Vec<u8> {
        match self {
            ServerName::Exact(n) => n.clone(),
            ServerName::Head(n) => [b"*", n.as_slice()].concat(),
            ServerName::Dot(n) => n.get(1..).unwrap_or_default().to_vec(),
            ServerName::Tail(n) => [n.as_slice(), b"*"].concat(),
            ServerName::Regex(_, n) => n.clone(),
        }
    }

    /// As it is written in the configuration, in lower case.
    pub fn written(&self) -> Vec<u8> {
        match self {
            ServerName::Dot(n) => n.clone(),
            other => other.text(),
        }
    }

    /// Whether stars stand for whole labels at an end and no label is empty.
    pub fn is_well_formed(&self) -> bool {
        let (fixed, may_have_stars) = match self {
            ServerName::Exact(n) | ServerName::Head(n) | ServerName::Tail(n) => (n, false),
            ServerName::Dot(n) => (n, true),
            ServerName::Regex(..) => return true,
        };
        (may_have_stars || !fixed.contains(&b'*')) && !fixed.windows(2).any(|w| w == b"..")
    }

    /// Whether it is a regular expression, whose captures are set.
    pub fn has_captures(&self) -> bool {
        matches!(self, ServerName::Regex(..))
    }
}

/// Reads one directive.
///
/// # Errors
/// In nginx's words.
pub fn parse<C: Context>(
    d: &Directive,
    cx: &mut Scope<'_, C>,
    names: &mut Vec<ServerName>,
) -> Result<(), Error> {
    for w in &d.args {
        let raw = w.text.as_slice();
        let invalid = || format!("server name \"{}\" is invalid", w.as_str());
        if let Some(re) = raw.strip_prefix(b"~") {
            if re.is_empty() {
                return Err(cx.error_at(d, w, "empty regex in server name \"~\""));
            }
            let caseless = re.iter().any(u8::is_ascii_uppercase);
            names.push(ServerName::Regex(cx.pattern(d, re, caseless)?, raw.to_vec()));
            continue;
        }
        let name = raw.to_ascii_lowercase();
        if name.contains(&b'/') {
            cx.warn(d, format!("server name \"{}\" has suspicious symbols", w.as_str()));
        }
        let name = match name.as_slice() {
            b"" => ServerName::Exact(Vec::new()),
            b"$hostname" => {
                let host = rustix::system::uname().nodename().to_bytes().to_ascii_lowercase();
                ServerName::Exact(host)
            }
            [b'*', b'.', rest @ ..] if !rest.is_empty() => ServerName::Head([b".", rest].concat()),
            [b'.', rest @ ..] if !rest.is_empty() => ServerName::Dot(name.clone()),
            [b'*' | b'.', ..] => return Err(cx.error_at(d, w, invalid())),
            [rest @ .., b'.', b'*'] => ServerName::Tail([rest, b"."].concat()),
            // A star elsewhere stands for itself, as in nginx.
            n => ServerName::Exact(n.to_vec()),
        };
        names.push(name);
    }
    Ok(())
}

/// Servers of an address by name: exact, then the longest wildcard at the head, then the longest at the tail,
/// then regular expressions in file order.
#[derive(Clone, Debug, Default)]
pub struct NameTable {
    exact: HashMap<Vec<u8>, usize, foldhash::fast::RandomState>,
    heads: HashMap<Vec<u8>, usize, foldhash::fast::RandomState>,
    tails: HashMap<Vec<u8>, usize, foldhash::fast::RandomState>,
    regexes: Vec<(Pattern, usize)>,
}

impl NameTable {
    /// Adds a name; `false` if another server has it already.
    pub fn add(&mut self, name: &ServerName, server: usize) -> bool {
        fn insert(
            m: &mut HashMap<Vec<u8>, usize, foldhash::fast::RandomState>,
            k: &[u8],
            server: usize,
        ) -> bool {
            if m.contains_key(k) {
                return false;
            }
            m.insert(k.to_vec(), server);
            true
        }
        match name {
            ServerName::Exact(n) => insert(&mut self.exact, n, server),
            ServerName::Head(n) => insert(&mut self.heads, n, server),
            ServerName::Dot(n) => {
                let below = insert(&mut self.heads, n, server);
                insert(&mut self.exact, n.get(1..).unwrap_or_default(), server) && below
            }
            ServerName::Tail(n) => insert(&mut self.tails, n, server),
            ServerName::Regex(p, _) => {
                self.regexes.push((p.clone(), server));
                true
            }
        }
    }

    /// Whether no server but the default one can be meant.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.heads.is_empty() && self.tails.is_empty() && self.regexes.is_empty()
    }

    /// Finds the server of a host (lower case, no port), with the pattern that matched if it was one.
    ///
    /// # Errors
    /// The pattern that exceeded its limits: the right server is unknown.
    #[inline]
    pub fn find(&self, host: &[u8]) -> Result<Option<(usize, Option<&Pattern>)>, &Pattern> {
        if let Some(s) = self.exact.get(host) {
            return Ok(Some((*s, None)));
        }
        if !self.heads.is_empty() {
            let mut from = 0;
            while let Some(dot) = memchr::memchr(b'.', &host[from..]) {
                let at = from + dot;
                if let Some(s) = self.heads.get(&host[at..]) {
                    return Ok(Some((*s, None)));
                }
                from = at + 1;
            }
        }
        if !self.tails.is_empty() {
            let mut end = host.len();
            while let Some(dot) = memchr::memrchr(b'.', &host[..end]) {
                if let Some(s) = self.tails.get(&host[..=dot]) {
                    return Ok(Some((*s, None)));
                }
                end = dot;
            }
        }
        for (pattern, server) in &self.regexes {
            if pattern.is_match(host).map_err(|_| pattern)? {
                return Ok(Some((*server, Some(pattern))));
            }
        }
        Ok(None)
    }
}
