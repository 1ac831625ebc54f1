//! Texts that a regular expression matches: one for each of its alternatives.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};

/// Most texts of one expression.
const MOST: usize = 24;

/// Longest text.
const LONGEST: usize = 2000;

/// Returns texts that an expression matches, empty for one that cannot be read. `(?=...)` and its like are left out, so that not
/// every text need match.
pub(crate) fn samples(pattern: &str, insensitive: bool) -> Vec<String> {
    let plain = without_looks(pattern);
    let parsed =
        ParserBuilder::new().case_insensitive(insensitive).unicode(true).utf8(false).build().parse(&plain);
    let Ok(hir) = parsed else { return Vec::new() };
    let mut texts = of(&hir);
    texts.retain(|t| t.len() <= LONGEST);
    texts.dedup();
    texts
}

/// Returns `true` if an expression begins at the beginning of a text.
pub(crate) fn is_anchored(pattern: &str) -> bool {
    let rest = pattern.trim_start_matches('(').trim_start_matches("?:");
    rest.starts_with('^') || rest.starts_with("\\A")
}

/// Removes looks ahead and behind, which the parser does not know.
fn without_looks(pattern: &str) -> String {
    const LOOKS: [&str; 4] = ["(?!", "(?=", "(?<!", "(?<="];
    let mut out = String::new();
    let mut rest = pattern;
    while let Some(first) = rest.chars().next() {
        if LOOKS.iter().any(|look| rest.starts_with(look)) {
            rest = behind_group(rest);
            continue;
        }
        if let Some(inner) = rest.strip_prefix("(?>") {
            out.push_str("(?:");
            rest = inner;
            continue;
        }
        let step = if first == '\\' {
            rest.char_indices().nth(2).map_or(rest.len(), |(i, _)| i)
        } else {
            first.len_utf8()
        };
        let (head, tail) = rest.split_at(step);
        out.push_str(head);
        rest = tail;
    }
    out
}

/// Returns what follows the group that a text begins with.
fn behind_group(text: &str) -> &str {
    let (mut depth, mut escaped) = (0usize, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '(' => depth += 1,
            ')' if depth == 1 => return text.get(i + 1..).unwrap_or_default(),
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    ""
}

fn of(hir: &Hir) -> Vec<String> {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => vec![String::new()],
        HirKind::Literal(l) => vec![crate::message::text(&l.0)],
        HirKind::Class(class) => members(class).into_iter().map(String::from).collect(),
        HirKind::Repetition(r) => {
            let times = r.min.clamp(u32::from(r.max != Some(0)), 64) as usize;
            let mut texts: Vec<String> = of(&r.sub).iter().map(|t| t.repeat(times)).collect();
            if r.min == 0 && is_choice(&r.sub) {
                texts.push(String::new());
            }
            texts
        }
        HirKind::Capture(c) => of(&c.sub),
        HirKind::Concat(parts) => {
            parts.iter().fold(vec![String::new()], |texts, part| joined(&texts, &of(part)))
        }
        HirKind::Alternation(parts) => parts.iter().flat_map(of).take(MOST).collect(),
    }
}

/// Returns `true` for a group, whose absence is an alternative of its own.
fn is_choice(hir: &Hir) -> bool {
    matches!(hir.kind(), HirKind::Capture(_) | HirKind::Concat(_) | HirKind::Alternation(_))
}

/// Returns texts of which every one of both lists is in at least one: not all pairs, which would be too many.
fn joined(left: &[String], right: &[String]) -> Vec<String> {
    let n = left.len().max(right.len()).min(MOST);
    let pairs = left.iter().cycle().zip(right.iter().cycle()).take(n);
    let mut texts: Vec<String> = pairs.map(|(a, b)| format!("{a}{b}")).collect();
    texts.retain(|t| t.len() <= LONGEST);
    texts
}

/// Returns all members of a class of a few, of which the parser makes alternatives of one character; else one. Of a letter in both
/// cases the small one counts.
fn members(class: &Class) -> Vec<char> {
    const FEW: usize = 4;
    let ranges: Vec<(char, char)> = match class {
        Class::Unicode(c) => c.iter().map(|r| (r.start(), r.end())).collect(),
        Class::Bytes(c) => c.iter().map(|r| (char::from(r.start()), char::from(r.end()))).collect(),
    };
    let has = |wanted: char| ranges.iter().any(|(start, end)| *start <= wanted && wanted <= *end);
    let all = ranges.iter().flat_map(|(start, end)| (*start..=*end).take(4 * FEW)).filter(|c| c.is_ascii());
    let folded: Vec<char> =
        all.filter(|c| !(c.is_ascii_uppercase() && has(c.to_ascii_lowercase()))).take(FEW + 1).collect();
    if (1..=FEW).contains(&folded.len()) {
        return folded;
    }
    let preferred = ['a', '1', 'x', '-', '/', '.', '_'].into_iter().find(|c| has(*c));
    let first = ranges.first().map_or('a', |(start, _)| (*start).max('!'));
    vec![preferred.unwrap_or(first)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_alternative_has_a_text() {
        assert_eq!(samples(r"\.(png|jpe?g)$", false), [".png", ".jpeg"]);
        assert_eq!(samples(r"^/user/(?<id>\d+)/(a|b)/?$", false), ["/user/1/a/", "/user/1/b/"]);
        assert_eq!(samples(r"^/x{3}[^/]+$", false), ["/xxxa"]);
        assert_eq!(samples("^/(?!admin)(.*)$", false), ["/a"]);
        assert_eq!(samples("^/a(/b)?$", false), ["/a/b", "/a"]);
        assert!(samples("(", false).is_empty());
    }

    #[test]
    fn texts_match_their_expressions() {
        for (pattern, insensitive) in [
            (r"^/(?:wp-(?:admin|includes)|\.git)/.*\.php$", false),
            (r"(?i)Mozilla/[45]\.0 \((compatible|Windows NT 1\d)\)", false),
            (r"\.PHP$", true),
            (r"^(www\.)?(?<domain>.+)\.example\.(com|org)$", false),
        ] {
            let hir =
                ParserBuilder::new().case_insensitive(insensitive).build().parse(pattern).expect("reads");
            let texts = samples(pattern, insensitive);
            assert!(!texts.is_empty(), "{pattern}");
            assert!(hir.properties().minimum_len().is_some_and(|n| texts.iter().all(|t| t.len() >= n)));
        }
    }

    #[test]
    fn anchors() {
        assert!(is_anchored("^/a") && is_anchored("(^/a|^/b)"));
        assert!(!is_anchored(r"\.php$"));
    }
}
