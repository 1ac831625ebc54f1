//! Patterns that need backtracking, with bounds on the steps and on the time of a match.
//!
//! A match that exceeds the bounds is an error, never "does not match".

use super::LimitExceeded;
use fancy_regex::{BytesMode, Regex, RegexBuilder};
use std::sync::OnceLock;
use std::time::Duration;

/// Limits on the steps of a match. A match that exceeds one runs again with the next, if there is time for it. The last is PCRE2's
/// default match limit; a match that exceeds that one fails.
const LIMITS: [usize; 6] = [100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// Each limit is this many times the one before it.
const GROWTH: u32 = 10;

/// CPU time that one match may take, about.
const LONGEST: Duration = Duration::from_millis(100);

/// Texts longer than this many bytes begin with the smallest limit: one step may look at all of the text.
const LONG_TEXT: usize = 4096;

/// The groups of a match: offsets of the first byte and of the byte behind the last; `None`: not part of the match.
pub(super) type GroupOffsets = Vec<Option<(usize, usize)>>;

/// A pattern that may backtrack.
#[derive(Debug)]
pub(super) struct Backtracking {
    source: Box<str>,
    caseless: bool,
    /// The same pattern with each of [`LIMITS`], compiled when it is first needed: the engine takes its limit when it compiles.
    by_limit: [OnceLock<Option<Regex>>; LIMITS.len()],
}

impl Backtracking {
    /// Compiles a pattern in the language of `fancy_regex`.
    ///
    /// # Errors
    /// The engine's message.
    pub(super) fn compile(source: &str, caseless: bool) -> Result<Backtracking, String> {
        let first = compile(source, caseless, LIMITS[1]).map_err(|e| e.to_string())?;
        let pattern = Backtracking {
            source: source.into(),
            caseless,
            by_limit: [const { OnceLock::new() }; LIMITS.len()],
        };
        let _ = pattern.by_limit[1].set(Some(first));
        Ok(pattern)
    }

    /// Names of the groups, the whole match first.
    pub(super) fn names(&self) -> Vec<Option<String>> {
        self.with_limit(1)
            .map_or_else(Vec::new, |re| re.capture_names().map(|n| n.map(str::to_owned)).collect())
    }

    /// Tells whether the pattern matches.
    ///
    /// # Errors
    /// The match took too many steps or too long.
    pub(super) fn is_match(&self, text: &[u8]) -> Result<bool, LimitExceeded> {
        self.run(text, |re| re.is_match(text))
    }

    /// Finds the groups of the first match.
    ///
    /// # Errors
    /// The match took too many steps or too long.
    pub(super) fn groups(&self, text: &[u8]) -> Result<Option<GroupOffsets>, LimitExceeded> {
        self.run(text, |re| {
            let found = re.captures(text)?;
            Ok(found.map(|c| (0..c.len()).map(|i| c.get(i).map(|m| (m.start(), m.end()))).collect()))
        })
    }

    /// Tries with growing limits, as long as the next attempt is likely to end in time.
    fn run<T>(
        &self,
        text: &[u8],
        find: impl Fn(&Regex) -> Result<T, fancy_regex::Error>,
    ) -> Result<T, LimitExceeded> {
        let first = usize::from(text.len() <= LONG_TEXT);
        for limit in first..LIMITS.len() {
            let re = self.with_limit(limit).ok_or(LimitExceeded)?;
            // Nearly all matches end within the first limit: only the others are worth a look at the clock.
            let begun = (limit > first).then(cpu_time);
            if let Ok(found) = find(re) {
                return Ok(found);
            }
            let spent = begun.map_or(Duration::ZERO, |begun| cpu_time().saturating_sub(begun));
            if spent * GROWTH > LONGEST {
                break;
            }
        }
        Err(LimitExceeded)
    }

    fn with_limit(&self, i: usize) -> Option<&Regex> {
        self.by_limit
            .get(i)?
            .get_or_init(|| compile(&self.source, self.caseless, *LIMITS.get(i)?).ok())
            .as_ref()
    }
}

fn compile(source: &str, caseless: bool, limit: usize) -> Result<Regex, fancy_regex::Error> {
    RegexBuilder::new(source)
        .case_insensitive(caseless)
        .unicode_mode(false)
        .bytes_mode(BytesMode::Ascii)
        .backtrack_limit(limit)
        .build()
}

/// Returns the CPU time of this thread. Time of other threads does not count against a match.
pub(crate) fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec.try_into().unwrap_or(0), t.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_match_that_needs_many_steps_is_found() {
        // Some thousand steps, beyond the first limit.
        let p = Backtracking::compile("^(?:(?=a)a|(?=a)aa)+$", false).expect("a pattern");
        let text = [b"a".repeat(16), b"b".to_vec()].concat();
        assert_eq!(p.is_match(&text), Ok(false));
        assert!(p.by_limit[2].get().is_some(), "the first limit was enough");
    }

    #[test]
    fn a_match_without_end_is_an_error_in_bounded_time() {
        let p = Backtracking::compile("^(?:(?=a)a|(?=a)aa)+$", false).expect("a pattern");
        for text in [b"a".repeat(60), b"a".repeat(30_000)] {
            let text = [text, b"b".to_vec()].concat();
            let begun = cpu_time();
            assert_eq!(p.is_match(&text), Err(LimitExceeded));
            assert!(p.groups(&text).is_err());
            // Two matches; ten times their bound, since an unoptimized build may overshoot.
            let spent = cpu_time() - begun;
            assert!(spent < 20 * LONGEST, "{spent:?}");
        }
    }
}
