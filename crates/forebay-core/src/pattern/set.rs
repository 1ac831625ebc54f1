//! Lists of patterns of which the first that matches counts: those of a map, of server names, of locations. Most patterns of a long
//! list have a text that every match contains (`~*bot17/[0-9]+`). One automaton finds all such texts in a single pass, and only the
//! patterns that may match run. Hot path.

use super::{Engine, Pattern, needs};
use aho_corasick::{AhoCorasick, MatchKind, StartKind};
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

/// Shortest list for which an automaton is made.
const LEAST: usize = 6;

/// Patterns in the order in which they are tried.
#[derive(Clone, Debug, Default)]
pub struct Patterns {
    list: Vec<Pattern>,
    /// Made by [`Patterns::prepare`] or the first search; `None` within: the patterns are tried one by one.
    filter: OnceLock<Option<Arc<Filter>>>,
}

/// Automaton over the texts that matches contain.
#[derive(Debug)]
struct Filter {
    automaton: AhoCorasick,
    /// Patterns that need a text, by its number.
    owners: Vec<Vec<u32>>,
    /// Patterns that need none of them, a bit for each.
    always: Vec<u64>,
}

thread_local! {
    /// Patterns that may match, a bit for each.
    static MAY: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl FromIterator<Pattern> for Patterns {
    fn from_iter<I: IntoIterator<Item = Pattern>>(patterns: I) -> Patterns {
        Patterns { list: patterns.into_iter().collect(), filter: OnceLock::new() }
    }
}

impl Patterns {
    /// Adds a pattern at the end.
    pub fn push(&mut self, pattern: Pattern) {
        self.list.push(pattern);
        self.filter = OnceLock::new();
    }

    /// Returns `true` if there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the pattern with a number.
    pub fn get(&self, number: usize) -> Option<&Pattern> {
        self.list.get(number)
    }

    /// Makes the automaton, so that the first search need not.
    pub fn prepare(&self) {
        self.filter();
    }

    fn filter(&self) -> Option<&Filter> {
        if self.list.len() < LEAST {
            return None;
        }
        self.filter.get_or_init(|| Filter::new(&self.list).map(Arc::new)).as_deref()
    }

    /// Calls `test` with each pattern that may match a text, in order, until it returns `true`. Returns the number of that pattern.
    ///
    /// # Errors
    /// Errors of `test`, which end the search.
    pub fn first<'p, E>(
        &'p self,
        text: &[u8],
        mut test: impl FnMut(&'p Pattern) -> Result<bool, E>,
    ) -> Result<Option<usize>, E> {
        let Some(filter) = self.filter() else {
            for (number, pattern) in self.list.iter().enumerate() {
                if test(pattern)? {
                    return Ok(Some(number));
                }
            }
            return Ok(None);
        };
        // Taken out, since `test` may search another list.
        let mut may = MAY.take();
        filter.candidates(text, &mut may);
        let found = self.first_of(&may, test);
        MAY.replace(may);
        found
    }

    /// Calls `test` with each pattern whose bit is set, in order.
    fn first_of<'p, E>(
        &'p self,
        bits: &[u64],
        mut test: impl FnMut(&'p Pattern) -> Result<bool, E>,
    ) -> Result<Option<usize>, E> {
        for (i, word) in bits.iter().enumerate() {
            let mut word = *word;
            while word != 0 {
                let number = i * 64 + word.trailing_zeros() as usize;
                if let Some(pattern) = self.list.get(number)
                    && test(pattern)?
                {
                    return Ok(Some(number));
                }
                word &= word - 1;
            }
        }
        Ok(None)
    }
}

impl Filter {
    /// Makes the automaton, unless too few patterns would profit from it.
    fn new(patterns: &[Pattern]) -> Option<Filter> {
        let mut texts: Vec<Vec<u8>> = Vec::new();
        let mut owners: Vec<Vec<u32>> = Vec::new();
        let mut always = vec![0u64; patterns.len().div_ceil(64)];
        let mut numbers = std::collections::HashMap::new();
        let mut filtered = 0;
        for (i, pattern) in patterns.iter().enumerate() {
            let required = match &pattern.0.engine {
                Engine::Plain { re, .. } => needs::required(re.as_str()),
                Engine::Backtracking(_) => None,
            };
            let Some(required) = required else {
                always[i / 64] |= 1 << (i % 64);
                continue;
            };
            filtered += 1;
            for text in required {
                let number = *numbers.entry(text.clone()).or_insert_with(|| {
                    texts.push(text);
                    owners.push(Vec::new());
                    texts.len() - 1
                });
                if owners[number].last() != Some(&(i as u32)) {
                    owners[number].push(i as u32);
                }
            }
        }
        if filtered < LEAST {
            return None;
        }
        // Without regard to case: a pattern that distinguishes it runs once too often.
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .start_kind(StartKind::Unanchored)
            .ascii_case_insensitive(true)
            .build(&texts);
        Some(Filter { automaton: automaton.ok()?, owners, always })
    }

    /// Sets the bits of the patterns that may match a text.
    fn candidates(&self, text: &[u8], may: &mut Vec<u64>) {
        may.clear();
        may.extend_from_slice(&self.always);
        for found in self.automaton.find_overlapping_iter(text) {
            for owner in &self.owners[found.pattern().as_usize()] {
                may[*owner as usize / 64] |= 1 << (owner % 64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::NoNames;
    use super::*;

    fn compile(patterns: &[(&str, bool)]) -> Vec<Pattern> {
        let compiled =
            |(text, caseless): &(&str, bool)| Pattern::compile(text.as_bytes(), *caseless, &mut NoNames);
        patterns.iter().map(|p| compiled(p).expect("a pattern")).collect()
    }

    const LIST: &[(&str, bool)] = &[
        (r"^/api/v[12]/(users|groups)", false),
        (r"\.(css|js|woff2?)$", true),
        (r"bot7/[0-9]+", true),
        (r"(?i)Mixed", false),
        (r"^/(en|de)/shop", false),
        (r"a.*bc", false),
        (r"x{3}y", false),
        (r"(foo|bar)+baz?", true),
        (r"(one)?two", false),
        (r"[0-9]{5}", false),
        (r"(?=.*secret)/s", false),
        (r"q$", false),
        (r"\x41\x42C", false),
        (r"^$", false),
    ];

    #[test]
    fn the_first_match_is_that_of_the_list() {
        let patterns = compile(LIST);
        let set: Patterns = patterns.iter().cloned().collect();
        let pieces = [
            "",
            "/api/v1/users",
            "/API/V1/",
            ".CSS",
            ".js",
            ".woff",
            "BOT7/9",
            "bot7/x",
            "mixed",
            "MIXED",
            "/de/shop",
            "a-bc",
            "abc",
            "xxxy",
            "xxy",
            "foobarba",
            "FOOBAZ",
            "two",
            "12345",
            "/secret/s",
            "q",
            "q\n",
            "ABC",
            "abC",
            "é",
        ];
        let (mut tested, mut hits) = (0, 0);
        for a in pieces {
            for b in pieces {
                for c in pieces {
                    let text = [a, b, c].concat();
                    let matches = |p: &Pattern| p.is_match(text.as_bytes());
                    let want = patterns.iter().position(|p| matches(p) == Ok(true));
                    let got = set.first(text.as_bytes(), |p| {
                        tested += 1;
                        matches(p)
                    });
                    assert_eq!(got, Ok(want), "{text:?}");
                    hits += usize::from(want.is_some());
                }
            }
        }
        assert!(hits > 1000);
        assert!(tested < 7 * pieces.len().pow(3), "{tested}: about half of the patterns do not run");
    }

    /// Of hundreds of patterns, those run whose text is there.
    #[test]
    fn patterns_without_their_text_do_not_run() {
        let texts: Vec<String> = (0..300).map(|i| format!("bot{i}/[0-9]+\\.[0-9]+")).collect();
        let patterns = compile(&texts.iter().map(|t| (t.as_str(), true)).collect::<Vec<_>>());
        let set: Patterns = patterns.into_iter().collect();
        let mut ran = Vec::new();
        let mut first = |text: &[u8]| {
            set.first(text, |p| {
                ran.push(String::from_utf8_lossy(p.text()).into_owned());
                p.is_match(text)
            })
        };
        assert_eq!(first(b"Mozilla/5.0 (compatible; BOT17/2; Bot299/1.0)"), Ok(Some(299)));
        assert_eq!(first(b"Mozilla/5.0"), Ok(None));
        assert_eq!(ran, [texts[17].clone(), texts[299].clone()]);
    }

    #[test]
    fn an_error_ends_the_search() {
        let patterns = compile(LIST);
        for n in [LIST.len(), 2] {
            let set: Patterns = patterns.iter().take(n).cloned().collect();
            let mut ran = 0;
            let result = set.first(b"/api/v1/users.css", |_| {
                ran += 1;
                if ran == 1 { Ok(false) } else { Err(ran) }
            });
            assert_eq!(result, Err(2));
        }
        assert_eq!(Patterns::default().first(b"x", |_| Err(())), Ok(None));
    }
}
