//! The search for what makes a configuration invalid.
//!
//! A configuration is made of a base and of units, such as the files of hosts or the keys of a ConfigMap. An error that names the file of a
//! unit tells its cause. Where none does, halves of the units are tried. The result is a set of units that work together.

use crate::judge::Refusal;
use forebay_conf::Node;
use forebay_conf::grammar::Contexts;
use forebay_conf::parse::body;
use forebay_conf::tree::Block;
use std::time::{Duration, Instant};

/// Bounds of a search.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Configurations that are built at most.
    pub builds: usize,
    /// Time after which no other one is built.
    pub time: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { builds: 400, time: Duration::from_secs(20) }
    }
}

/// Errors of a build of some units.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Errors in units, by their numbers.
    pub placed: Vec<(usize, Refusal)>,
    /// First of the other errors.
    pub other: Option<Refusal>,
}

impl Verdict {
    pub(crate) fn is_fine(&self) -> bool {
        self.placed.is_empty() && self.other.is_none()
    }
}

/// Result of a search.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Units that work together, in their order.
    pub good: Vec<usize>,
    /// Units that do not work, or not with those before them, and the first error of each.
    pub guilty: Vec<(usize, Refusal)>,
    /// Units that the bounds left no time for.
    pub undecided: Vec<usize>,
    /// Error of the base, without any unit.
    pub base: Option<Refusal>,
}

/// Finds the units that do not work. `build` makes a configuration of the base and the units of these numbers.
pub fn find(number: usize, bounds: Bounds, build: impl FnMut(&[usize]) -> Verdict) -> Found {
    let mut search = Search {
        build,
        left: bounds.builds,
        until: Instant::now() + bounds.time,
        base: false,
        found: Found::default(),
    };
    search.add((0..number).collect());
    search.found.good.sort_unstable();
    search.found.guilty.sort_by_key(|(unit, _)| *unit);
    search.found
}

struct Search<F> {
    build: F,
    left: usize,
    until: Instant,
    /// The base alone has been found to work.
    base: bool,
    found: Found,
}

impl<F: FnMut(&[usize]) -> Verdict> Search<F> {
    fn build(&mut self, units: &[usize]) -> Option<Verdict> {
        if self.left == 0 || Instant::now() > self.until {
            return None;
        }
        self.left -= 1;
        Some((self.build)(units))
    }

    /// Adds those of some units that work with the ones that are known to.
    fn add(&mut self, mut units: Vec<usize>) {
        loop {
            let all: Vec<usize> = self.found.good.iter().chain(&units).copied().collect();
            let Some(verdict) = self.build(&all) else {
                self.found.undecided.extend(units);
                return;
            };
            if verdict.is_fine() {
                self.base = true;
                self.found.good.extend(units);
                return;
            }
            if !self.base && !self.base_works() {
                self.found.undecided.extend(units);
                return;
            }
            let before = units.len();
            for (unit, refusal) in &verdict.placed {
                if let Some(at) = units.iter().position(|u| u == unit) {
                    units.remove(at);
                    self.found.guilty.push((*unit, refusal.clone()));
                }
            }
            if units.is_empty() {
                return;
            }
            if units.len() < before {
                continue;
            }
            // The error is in the base or in units that work without these.
            if let [unit] = *units {
                let refusal = verdict.other.or_else(|| verdict.placed.into_iter().next().map(|(_, r)| r));
                self.found.guilty.push((unit, refusal.unwrap_or_default()));
                return;
            }
            let second = units.split_off(units.len() / 2);
            self.add(units);
            units = second;
        }
    }

    fn base_works(&mut self) -> bool {
        let Some(verdict) = self.build(&[]) else { return false };
        self.base = verdict.is_fine();
        self.found.base = verdict.other;
        self.base
    }
}

/// Finds the place in a snippet that an error is about: the directive of its line, or a word that it names.
pub fn place(snippet: &str, context: Contexts, refusal: &Refusal) -> Option<usize> {
    let named = || {
        let words = refusal.message.split('"').skip(1).step_by(2).filter(|word| word.len() > 1);
        words.filter_map(|word| snippet.find(word)).next()
    };
    directive_at(snippet, context, &refusal.text).or_else(named)
}

/// Finds the directive of a snippet that a line of a configuration was printed of. Returns its offset in the snippet.
pub fn directive_at(snippet: &str, context: Contexts, line: &str) -> Option<usize> {
    let wanted = words(line);
    let parsed = body(snippet.as_bytes(), context);
    in_block(&parsed.tree.root, &wanted)
}

fn in_block(block: &Block, wanted: &str) -> Option<usize> {
    block.items.iter().find_map(|directive| {
        let mut node = Node::of(directive);
        let inner = node.block.take();
        let mut text = String::from_utf8(forebay_conf::print(&[node]).ok()?).ok()?;
        if inner.is_some() {
            text = text.trim_end().trim_end_matches(';').to_owned() + " {";
        }
        if words(&text) == wanted {
            return Some(directive.name.span.start as usize);
        }
        directive.block.as_ref().and_then(|inner| in_block(inner, wanted))
    })
}

/// Returns a line with single spaces.
fn words(line: &str) -> String {
    line.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns a line of a file, by its number from 1.
pub fn line_of(bytes: &[u8], number: usize) -> String {
    let line = bytes.split(|b| *b == b'\n').nth(number.saturating_sub(1)).unwrap_or_default();
    String::from_utf8_lossy(line).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { builds: 1000, time: Duration::from_secs(60) };

    fn other(message: &str) -> Verdict {
        Verdict { other: Some(Refusal::plain(message)), ..Verdict::default() }
    }

    fn guilty(found: &Found) -> Vec<usize> {
        found.guilty.iter().map(|(unit, _)| *unit).collect()
    }

    #[test]
    fn a_place_takes_one_more_build() {
        let mut builds = 0;
        let found = find(100, BOUNDS, |units| {
            builds += 1;
            let bad = units.iter().filter(|u| **u % 7 == 0);
            Verdict { placed: bad.map(|u| (*u, Refusal::plain("bad"))).collect(), other: None }
        });
        assert_eq!(guilty(&found).len(), 15);
        assert_eq!((found.good.len(), builds), (85, 3));
    }

    #[test]
    fn halves_are_tried_without_a_place() {
        let mut builds = 0;
        let found = find(1000, BOUNDS, |units| {
            builds += 1;
            if units.contains(&17) || units.contains(&900) { other("no place") } else { Verdict::default() }
        });
        assert_eq!(guilty(&found), [17, 900]);
        assert_eq!(found.good.len(), 998);
        assert!(builds < 50, "{builds}");
    }

    #[test]
    fn of_two_that_clash_the_first_stays() {
        let clash = |units: &[usize]| units.contains(&3) && units.contains(&8);
        let found = find(10, BOUNDS, |units| if clash(units) { other("clash") } else { Verdict::default() });
        assert_eq!(guilty(&found), [8]);
        // The error is in the first one.
        let placed = |units: &[usize]| Verdict {
            placed: clash(units).then(|| (3, Refusal::plain("duplicate"))).into_iter().collect(),
            other: None,
        };
        assert_eq!(find(10, BOUNDS, placed).guilty.len(), 1);
    }

    #[test]
    fn a_base_that_does_not_work_blames_no_unit() {
        let found = find(10, BOUNDS, |_| other("base"));
        assert_eq!((guilty(&found), found.base), (vec![], Some(Refusal::plain("base"))));
    }

    #[test]
    fn bounds_are_kept() {
        let mut builds = 0;
        let found = find(1 << 12, Bounds { builds: 30, ..BOUNDS }, |units| {
            builds += 1;
            if units.iter().any(|u| u % 2 == 0) { other("half") } else { Verdict::default() }
        });
        assert_eq!(builds, 30);
        assert!(!found.undecided.is_empty());
        assert_eq!(found.good.len() + found.guilty.len() + found.undecided.len(), 1 << 12);
    }

    #[test]
    fn lines_of_snippets_are_found_again() {
        let snippet = "# first\nset $a   1;\nif ($a) {\n  add_header X\n 1k;\n}\n";
        let at = |line| directive_at(snippet, Contexts::LOCATION, line);
        assert_eq!(at("        add_header X 1k;"), snippet.find("add_header"));
        assert_eq!(at("    if ($a) {"), snippet.find("if"));
        assert_eq!(at("set $b 1;"), None);
    }
}
