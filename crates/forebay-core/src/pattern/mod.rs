//! Regular expressions of nginx.conf. The `regex` crate runs them, in linear time; `fancy-regex` runs those with look-around or
//! back-references. Both are memory-safe.
//!
//! `bridge/mod.rs` translates PCRE2's language, `needs.rs` finds bytes without which a pattern cannot match, `set.rs` searches lists of
//! patterns, `backtrack.rs` bounds `fancy-regex`, and `fleeting.rs` has the patterns of SSI pages.

use crate::vars::{Captures, Evaluate, Names, VarError, VarId};
use backtrack::Backtracking;
pub(crate) use backtrack::cpu_time;
use forebay_conf::error::Level;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

mod backtrack;
pub mod bridge;
pub mod fleeting;
mod needs;
pub mod set;

/// Match that ended without a result, since it took too many steps or too long. The request must fail then: to take it for "does
/// not match" would let clients get around a rule that denies access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitExceeded;

impl From<LimitExceeded> for VarError {
    fn from(_: LimitExceeded) -> VarError {
        VarError::LOGGED
    }
}

/// Compiled form of a pattern.
#[derive(Debug)]
enum Engine {
    /// A pattern of the `regex` crate. `dollar`: it has a `$`, which in PCRE2 also matches before a final line end, so a text
    /// that ends in one is tried without it, too.
    Plain {
        re: regex::bytes::Regex,
        dollar: bool,
        needs: Option<needs::Needs>,
    },
    Backtracking(Box<Backtracking>),
}

#[derive(Debug)]
struct Compiled {
    id: u32,
    engine: Engine,
    /// Named groups by number, with their variables.
    names: Vec<(usize, VarId)>,
    /// Number of groups, the whole match included.
    groups: usize,
    /// Pattern as written.
    text: Box<[u8]>,
}

/// A compiled pattern. Clones share it.
#[derive(Clone, Debug)]
pub struct Pattern(Arc<Compiled>);

static NEXT_ID: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Memory for the groups of a match, by the id of the pattern. With it, a match allocates nothing.
    static LOCATIONS: RefCell<HashMap<u32, regex::bytes::CaptureLocations, foldhash::fast::RandomState>> = RefCell::default();
}

/// Frees the memory that this thread keeps for patterns. To be called after a reload, since the patterns of the former
/// configuration are not used again.
pub fn forget() {
    LOCATIONS.with_borrow_mut(HashMap::clear);
}

impl Pattern {
    /// Compiles a pattern; its named groups become variables.
    ///
    /// # Errors
    /// `pcre2_compile() failed: ... in "PATTERN"`.
    pub fn compile(text: &[u8], caseless: bool, vars: &mut impl Names) -> Result<Pattern, String> {
        let source = String::from_utf8_lossy(text);
        let failed = |m: &str, at: usize| match text.get(at..).filter(|r| !r.is_empty()) {
            Some(rest) => format!(
                "pcre2_compile() failed: {m} in \"{source}\" at \"{}\"",
                String::from_utf8_lossy(rest)
            ),
            None => format!("pcre2_compile() failed: {m} in \"{source}\""),
        };
        let bridged = bridge::bridge(text).map_err(|e| failed(e.message, e.at))?;
        let (engine, names) = build(&bridged, caseless).map_err(|m| failed(&m, text.len()))?;
        let groups = names.len();
        let mut bound = Vec::new();
        for (i, n) in names.iter().enumerate() {
            if let Some(n) = n {
                bound.push((i, vars.define_stored(n.as_bytes())?));
            }
        }
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Ok(Pattern(Arc::new(Compiled { id, engine, names: bound, groups, text: text.into() })))
    }

    /// Returns the pattern as written in the configuration.
    pub fn text(&self) -> &[u8] {
        &self.0.text
    }

    /// Returns the number of groups, the whole match not counted.
    pub fn groups(&self) -> usize {
        self.0.groups.saturating_sub(1)
    }

    /// Returns `true` if the pattern has named groups.
    pub fn has_names(&self) -> bool {
        !self.0.names.is_empty()
    }

    /// Returns `true` if a match may need backtracking, whose time can grow exponentially with the length of the text.
    pub fn backtracks(&self) -> bool {
        matches!(self.0.engine, Engine::Backtracking(_))
    }

    /// Returns `true` if a text matches. Captures nothing.
    ///
    /// # Errors
    /// The match exceeded its limits. The caller logs it ([`Pattern::log_failure`]).
    pub fn is_match(&self, text: &[u8]) -> Result<bool, LimitExceeded> {
        match &self.0.engine {
            Engine::Plain { needs, .. } if lacks(needs, text) => Ok(false),
            Engine::Plain { re, dollar, .. } => Ok(matches_plain(re, *dollar, text)),
            Engine::Backtracking(re) => re.is_match(text),
        }
    }

    /// Logs that a match exceeded its limits, in nginx's words. -47 is PCRE2's number for its match limit.
    pub fn log_failure<E: Evaluate>(&self, req: &mut E, text: &[u8]) -> LimitExceeded {
        req.log_with(Level::Alert, |out| out.extend_from_slice(&self.failure(text)));
        LimitExceeded
    }

    /// Returns the message for a match that exceeded its limits.
    pub fn failure(&self, text: &[u8]) -> Vec<u8> {
        [b"pcre2_match() failed: -47 on \"", text, b"\" using \"", self.text(), b"\""].concat()
    }

    /// Matches a text. If it matches, sets `$1`, `$2` and so on, and the variables of named groups.
    ///
    /// # Errors
    /// The match exceeded its limits, which is logged at level alert.
    pub fn exec<E: Evaluate>(&self, req: &mut E, text: &[u8]) -> Result<bool, LimitExceeded> {
        match self.captures(text, req.captures()) {
            Ok(true) if self.0.names.is_empty() => return Ok(true),
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(LimitExceeded) => return Err(self.log_failure(req, text)),
        }
        let captures = std::mem::take(req.captures());
        for (group, var) in &self.0.names {
            // (1, 0) marks a group that took no part in the match.
            let (a, b) = captures.groups.get(*group).copied().unwrap_or((1, 0));
            let value = if a <= b { captures.text.get(a as usize..b as usize) } else { None };
            // As in nginx: such a group leaves an empty value.
            req.store(*var, Some(value.unwrap_or_default()));
        }
        *req.captures() = captures;
        Ok(true)
    }

    /// Matches a text and fills `captures`. Leaves them unchanged without a match. Those of a pattern without groups are empty: where
    /// the match begins and ends, which takes a search backwards, is asked by nobody.
    ///
    /// # Errors
    /// The match exceeded its limits. The caller logs it ([`Pattern::log_failure`]).
    pub fn captures(&self, text: &[u8], captures: &mut Captures) -> Result<bool, LimitExceeded> {
        match &self.0.engine {
            Engine::Plain { needs, .. } if lacks(needs, text) => Ok(false),
            Engine::Plain { re, dollar, .. } if self.groups() == 0 => {
                let found = matches_plain(re, *dollar, text);
                if found {
                    captures.text.clear();
                    captures.groups.clear();
                }
                Ok(found)
            }
            Engine::Plain { re, dollar, .. } => LOCATIONS.with_borrow_mut(|cache| {
                let locs = cache.entry(self.0.id).or_insert_with(|| re.capture_locations());
                let found = re.captures_read(locs, text).is_some()
                    || *dollar && without_line_end(text).is_some_and(|t| re.captures_read(locs, t).is_some());
                if !found {
                    return Ok(false);
                }
                captures.text.clear();
                captures.text.extend_from_slice(text);
                captures.groups.clear();
                let groups =
                    (0..locs.len()).map(|i| locs.get(i).map_or((1, 0), |(a, b)| (a as u32, b as u32)));
                captures.groups.extend(groups);
                Ok(true)
            }),
            Engine::Backtracking(re) => {
                let Some(found) = re.groups(text)? else { return Ok(false) };
                captures.text.clear();
                captures.text.extend_from_slice(text);
                captures.groups.clear();
                let groups = found.iter().map(|g| g.map_or((1, 0), |(a, b)| (a as u32, b as u32)));
                captures.groups.extend(groups);
                Ok(true)
            }
        }
    }
}

fn matches_plain(re: &regex::bytes::Regex, dollar: bool, text: &[u8]) -> bool {
    re.is_match(text) || dollar && without_line_end(text).is_some_and(|t| re.is_match(t))
}

/// Sink for the names of a pattern that is only examined.
struct NoNames;

impl Names for NoNames {
    fn reference(&mut self, _: &[u8]) -> VarId {
        VarId(0)
    }
    fn define_stored(&mut self, _: &[u8]) -> Result<VarId, String> {
        Ok(VarId(0))
    }
}

/// Compiles a pattern that is only matched, for tools; `None` if it does not compile.
pub fn matcher(text: &[u8], caseless: bool) -> Option<Pattern> {
    Pattern::compile(text, caseless, &mut NoNames).ok()
}

/// Returns `true` if a pattern compiles and needs backtracking (see [`Pattern::backtracks`]).
pub fn needs_backtracking(text: &[u8]) -> bool {
    Pattern::compile(text, false, &mut NoNames).is_ok_and(|p| p.backtracks())
}

/// Returns `true` if a text lacks bytes that every match has, so that the engine need not run.
#[inline]
fn lacks(needs: &Option<needs::Needs>, text: &[u8]) -> bool {
    // The engine also tries a text without its final line end, which this does not.
    needs.as_ref().is_some_and(|n| text.last() != Some(&b'\n') && !n.met_by(text))
}

/// Returns a text without its final line end. Returns `None` if it has none.
fn without_line_end(text: &[u8]) -> Option<&[u8]> {
    text.strip_suffix(b"\n")
}

/// Compiles a pattern for the engine that can run it. Also returns the names of its groups, beginning with the whole match.
fn build(b: &bridge::Bridged, caseless: bool) -> Result<(Engine, Vec<Option<String>>), String> {
    // The engines' messages are long. Their last line has the reason.
    let short =
        |m: String| m.lines().last().unwrap_or_default().trim().trim_start_matches("error: ").to_string();
    if !b.hard {
        let re = regex::bytes::RegexBuilder::new(&b.plain).case_insensitive(caseless).unicode(false).build();
        let re = re.map_err(|e| short(e.to_string()))?;
        let names = re.capture_names().map(|n| n.map(str::to_owned)).collect();
        let needs = needs::Needs::of(&b.plain, caseless);
        return Ok((Engine::Plain { re, dollar: b.dollar, needs }, names));
    }
    let re = Backtracking::compile(&b.fancy, caseless).map_err(short)?;
    let names = re.names();
    Ok((Engine::Backtracking(Box::new(re)), names))
}

#[cfg(test)]
mod tests;
