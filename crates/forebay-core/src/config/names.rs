//! `server_name` and the choice of a virtual server (nginx: server_name). Hot path.

use super::scope::{Context, Scope};
use crate::pattern::Pattern;
use crate::pattern::set::Patterns;
use crate::vars::HostTable;
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};

/// Name of a virtual server.
#[derive(Clone, Debug)]
pub enum ServerName {
    /// `example.org`; empty for requests without a host.
    Exact(Vec<u8>),
    /// `*.example.org`: the part after the star, with its dot.
    Head(Vec<u8>),
    /// `+.example.org`: a wildcard for one label. Holds `.example.org`.
    Label(Vec<u8>),
    /// `.example.org`, with its dot: the name itself and all below it.
    Dot(Vec<u8>),
    /// `www.example.*`: the part before the star, with its dot.
    Tail(Vec<u8>),
    /// `~pattern`, and the same as written.
    Regex(Pattern, Vec<u8>),
}

impl ServerName {
    /// Returns the name as `$server_name` has it.
    pub fn text(&self) -> Vec<u8> {
        match self {
            ServerName::Exact(n) => n.clone(),
            ServerName::Head(n) | ServerName::Label(n) => [b"*", n.as_slice()].concat(),
            ServerName::Dot(n) => n.get(1..).unwrap_or_default().to_vec(),
            ServerName::Tail(n) => [n.as_slice(), b"*"].concat(),
            ServerName::Regex(_, n) => n.clone(),
        }
    }

    /// Returns the name as written in the configuration, in lower case, with `*` for `+`.
    pub fn written(&self) -> Vec<u8> {
        match self {
            ServerName::Dot(n) => n.clone(),
            other => other.text(),
        }
    }

    /// Returns `false` if a label is empty, or if a star is not a whole label at one end. nginx refuses such names when it builds
    /// its tables; stars in a name with a leading dot pass there.
    pub fn is_well_formed(&self) -> bool {
        let (fixed, may_have_stars) = match self {
            ServerName::Exact(n) | ServerName::Head(n) | ServerName::Label(n) | ServerName::Tail(n) => {
                (n, false)
            }
            ServerName::Dot(n) => (n, true),
            ServerName::Regex(..) => return true,
        };
        (may_have_stars || !fixed.contains(&b'*')) && !fixed.windows(2).any(|w| w == b"..")
    }
}

/// Reads `server_name` and appends its names.
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
        if let Some(re) = raw.strip_prefix(b"~") {
            names.push(pattern(re, d, w, cx)?);
            continue;
        }
        let name = raw.to_ascii_lowercase();
        if name.contains(&b'/') {
            cx.warn(d, format!("server name \"{}\" has suspicious symbols", w.as_str()));
        }
        let invalid = || cx.error_at(d, w, format!("server name \"{}\" is invalid", w.as_str()));
        names.push(ServerName::literal(&name).ok_or_else(invalid)?);
    }
    Ok(())
}

/// Reads a regular expression, without its `~`.
fn pattern<C: Context>(
    re: &[u8],
    d: &Directive,
    w: &Word,
    cx: &mut Scope<'_, C>,
) -> Result<ServerName, Error> {
    if re.is_empty() {
        return Err(cx.error_at(d, w, "empty regex in server name \"~\""));
    }
    // Hosts are in lower case when they are matched, so a pattern with capitals must ignore the case.
    let caseless = re.iter().any(u8::is_ascii_uppercase);
    Ok(ServerName::Regex(cx.pattern(d, re, caseless)?, w.text.clone()))
}

impl ServerName {
    /// Reads a name in lower case that is no regular expression. Returns `None` if it is invalid.
    fn literal(name: &[u8]) -> Option<ServerName> {
        Some(match name {
            b"$hostname" => {
                ServerName::Exact(rustix::system::uname().nodename().to_bytes().to_ascii_lowercase())
            }
            [b'*', b'.', rest @ ..] if !rest.is_empty() => ServerName::Head([b".", rest].concat()),
            [b'+', b'.', rest @ ..] if !rest.is_empty() => ServerName::Label([b".", rest].concat()),
            [b'.', rest @ ..] if !rest.is_empty() => ServerName::Dot(name.to_vec()),
            [b'*' | b'.', ..] => return None,
            [rest @ .., b'.', b'*'] => ServerName::Tail([rest, b"."].concat()),
            // As in nginx: a star elsewhere is a plain character.
            n => ServerName::Exact(n.to_vec()),
        })
    }
}

/// Servers of an address by name. Exact names come first, then the wildcard of one label, the longest wildcard at the head, the
/// longest at the tail, and regular expressions in file order.
#[derive(Clone, Debug, Default)]
pub struct NameTable {
    names: HostTable<usize>,
    patterns: Patterns,
    /// Servers of the patterns.
    by_pattern: Vec<usize>,
}

impl NameTable {
    /// Adds a name. Returns `false` if the table has it already.
    pub fn add(&mut self, name: &ServerName, server: usize) -> bool {
        match name {
            ServerName::Exact(n) => self.names.add(n, server).is_ok(),
            ServerName::Head(n) => self.names.add_head(n, server).is_ok(),
            ServerName::Label(n) => self.names.add_label(n, server).is_ok(),
            ServerName::Dot(n) => {
                let below = self.names.add_head(n, server).is_ok();
                self.names.add(n.get(1..).unwrap_or_default(), server).is_ok() && below
            }
            ServerName::Tail(n) => self.names.add_tail(n, server).is_ok(),
            ServerName::Regex(p, _) => {
                self.patterns.push(p.clone());
                self.by_pattern.push(server);
                true
            }
        }
    }

    /// Returns `true` if there are no names, so that every request goes to the default server.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.patterns.is_empty()
    }

    /// Returns `true` if there are names that are regular expressions.
    pub fn has_patterns(&self) -> bool {
        !self.patterns.is_empty()
    }

    /// Finds the server of a host (lower case, no port), and the pattern if it is the name that matched.
    ///
    /// # Errors
    /// A pattern that exceeded its limits, so that the right server is unknown.
    #[inline]
    pub fn find(&self, host: &[u8]) -> Result<Option<(usize, Option<&Pattern>)>, &Pattern> {
        if let Some(s) = self.names.find(host) {
            return Ok(Some((*s, None)));
        }
        let first = self.patterns.first(host, |pattern| pattern.is_match(host).map_err(|_| pattern))?;
        Ok(first.and_then(|i| Some((*self.by_pattern.get(i)?, self.patterns.get(i)))))
    }
}
