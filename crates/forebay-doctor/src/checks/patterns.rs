//! Checks of regular expressions that decide: where they begin and end, what a dot in them is, and patterns that are no patterns.

use super::ask::children;
use super::{Check, checks};
use crate::scene::Scene;
use forebay_conf::tree::{Directive, Span};

/// A condition of `if`.
pub(super) struct Condition {
    /// The directive.
    pub(super) node: usize,
    /// Name of the variable that is looked at.
    pub(super) variable: String,
    /// Operator; empty for a bare variable.
    pub(super) operator: String,
    /// Value or pattern that the variable is compared with.
    pub(super) value: String,
}

impl Condition {
    /// Returns `true` if the request is refused where the condition holds.
    pub(super) fn refuses(&self, s: &Scene<'_>) -> bool {
        children(s, self.node, "return").any(|r| s.arg(r, 0).starts_with('4'))
    }

    /// Returns `true` if the operator is one for regular expressions.
    fn is_of_pattern(&self) -> bool {
        self.operator.contains('~')
    }
}

/// Returns the condition of a directive `if` that compares a variable.
fn condition(s: &Scene<'_>, node: usize) -> Option<Condition> {
    let mut words: Vec<String> = s.args(node).iter().map(|w| w.clone().into_owned()).collect();
    if let Some(first) = words.first_mut() {
        *first = first.trim_start_matches('(').to_owned();
    }
    if words.first().is_some_and(String::is_empty) {
        words.remove(0);
    }
    if let Some(bare) = words.last().and_then(|w| w.strip_suffix(')')).map(str::to_owned) {
        words.pop();
        if !bare.is_empty() {
            words.push(bare);
        }
    }
    let mut words = words.into_iter();
    let variable = words.next()?.strip_prefix('$')?.to_owned();
    let operator = words.next().unwrap_or_default();
    let value: Vec<String> = words.collect();
    let value = value.join(" ").trim_matches(['"', '\'']).to_owned();
    Some(Condition { node, variable, operator, value })
}

/// Returns the conditions of all directives `if`.
pub(super) fn conditions<'s>(s: &'s Scene<'_>) -> impl Iterator<Item = Condition> + 's {
    s.all("if").filter_map(|n| condition(s, n))
}

/// Returns the lines of a table, without its options.
pub(super) fn lines<'s>(s: &'s Scene<'_>, table: usize) -> impl Iterator<Item = &'s Directive> + 's {
    const OPTIONS: [&str; 7] =
        ["hostnames", "volatile", "include", "ranges", "proxy", "proxy_recursive", "delete"];
    let lines = s.nodes.get(table).and_then(|n| n.d.block.as_ref()).into_iter().flatten();
    lines.filter(|e| !OPTIONS.contains(&e.name.as_str().as_ref()))
}

/// Returns the name of the variable that a table defines.
pub(super) fn defined(s: &Scene<'_>, table: usize) -> String {
    s.args(table).last().map(|w| w.trim_start_matches('$').to_owned()).unwrap_or_default()
}

/// Returns `true` if something in the same part of the configuration is refused by a variable.
pub(super) fn refuses_by(s: &Scene<'_>, variable: &str) -> bool {
    conditions(s).any(|c| c.variable == variable && c.refuses(s))
}

/// A regular expression and what it is compared with.
struct Compared {
    subject: String,
    pattern: String,
    span: Span,
    /// The variable that a table defines by it; `None` for a condition.
    defines: Option<String>,
    /// The table takes a part out of the text, as for a log, and decides nothing.
    is_extraction: bool,
}

/// Returns the regular expressions of conditions and tables.
fn compared(s: &Scene<'_>) -> Vec<Compared> {
    let of_conditions = conditions(s).filter(Condition::is_of_pattern).map(|c| Compared {
        span: s.span(c.node),
        subject: c.variable,
        pattern: c.value,
        defines: None,
        is_extraction: false,
    });
    let of_tables = s.all("map").flat_map(|n| {
        let patterns = lines(s, n).filter_map(move |e| Some((e, bare(&e.name.as_str())?.to_owned())));
        patterns.map(move |(e, pattern)| Compared {
            subject: s.arg(n, 0).trim_matches(['$', '{', '}']).to_owned(),
            pattern,
            span: e.name.span,
            defines: Some(defined(s, n)),
            is_extraction: e.args.first().is_some_and(|value| value.text.contains(&b'$')),
        })
    });
    of_conditions.chain(of_tables).collect()
}

/// Returns the regular expression behind `~` or `~*`.
fn bare(word: &str) -> Option<&str> {
    let rest = word.strip_prefix('~')?;
    Some(rest.strip_prefix('*').unwrap_or(rest))
}

/// Returns the alternatives of a pattern at its outermost level.
fn branches(pattern: &str) -> Vec<&str> {
    let (mut out, mut start, mut depth, mut in_class) = (Vec::new(), 0, 0_u32, false);
    let mut chars = pattern.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth = depth.saturating_add(1),
            ')' if !in_class => depth = depth.saturating_sub(1),
            '|' if depth == 0 && !in_class => {
                out.extend(pattern.get(start..at));
                start = at.saturating_add(1);
            }
            _ => {}
        }
    }
    out.extend(pattern.get(start..));
    out
}

fn begins(branch: &str) -> bool {
    ["^", "(^", "(?:^", "(,|^", "(?i)^"].iter().any(|p| branch.starts_with(p))
}

fn ends(branch: &str) -> bool {
    branch.ends_with('$') && !branch.ends_with("\\$") || branch.ends_with("$)") || branch.ends_with("|,)")
}

/// Returns `true` if a pattern fits whole texts only.
fn is_anchored(pattern: &str) -> bool {
    branches(pattern).iter().all(|b| begins(b) && (ends(b) || b.ends_with(',')))
}

/// Returns `true` if only the first of several alternatives is bound to the beginning, and only the last to the end.
fn is_half_bound(pattern: &str) -> bool {
    let all = branches(pattern);
    let [first, .., last] = all.as_slice() else { return false };
    begins(first) && !ends(first) && ends(last) && !begins(last)
}

/// Variables that say who a client is, by certificate or login.
fn is_of_person(variable: &str) -> bool {
    ["ssl_client_s_dn", "ssl_client_i_dn", "remote_user", "jwt_claim_", "jwt_sub", "oidc_claim_"]
        .iter()
        .any(|v| variable.starts_with(v))
}

fn is_address(variable: &str) -> bool {
    ["remote_addr", "realip_remote_addr", "proxy_protocol_addr"].contains(&variable)
}

/// Returns what a pattern for addresses takes besides what is meant.
fn loose_address(pattern: &str) -> Option<&'static str> {
    let bytes = pattern.as_bytes();
    let digit = |i: Option<usize>| i.and_then(|i| bytes.get(i)).is_some_and(u8::is_ascii_digit);
    let is_plain_dot = |(i, b): (usize, &u8)| {
        *b == b'.' && digit(i.checked_sub(1)) && (digit(Some(i + 1)) || i + 1 == bytes.len())
    };
    if bytes.iter().enumerate().any(is_plain_dot) {
        return Some("a dot is any letter, so ^10.1 takes 10x1 and 1001, too");
    }
    let is_v4 = pattern.contains("\\.");
    if is_v4 && branches(pattern).iter().any(|b| !begins(b)) {
        return Some("without ^ it takes addresses that only contain it");
    }
    let open = |b: &&str| b.ends_with(|c: char| c.is_ascii_digit()) && b.matches("\\.").count() == 3;
    (is_v4 && branches(pattern).iter().any(open)).then_some("without $ it takes longer numbers, too")
}

/// Returns the name in which a dot means any letter: `www.example` of `^www.example\.com$`.
fn loose_name(pattern: &str) -> Option<String> {
    let bytes = pattern.as_bytes();
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    let (at, _) = bytes.iter().enumerate().find(|(i, b)| {
        let before = i.checked_sub(1).and_then(|i| bytes.get(i)).is_some_and(|b| is_part(*b));
        let escaped = i.checked_sub(2).and_then(|i| bytes.get(i)) == Some(&b'\\');
        let after = bytes.get(i + 1..).unwrap_or_default();
        **b == b'.' && before && !escaped && after.len() > 1 && after.iter().take(2).all(|b| is_part(*b))
    })?;
    let open = pattern.get(..at)?;
    // Inside of brackets it is a dot.
    if open.rfind('[').is_some_and(|b| !open.get(b..).unwrap_or_default().contains(']')) {
        return None;
    }
    let start = open.rfind(|c: char| !c.is_ascii_alphanumeric() && c != '-').map_or(0, |i| i + 1);
    let rest = pattern.get(at + 1..)?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(rest.len());
    Some(format!("{}.{}", open.get(start..)?, rest.get(..end)?))
}

/// Returns `true` if a text that is compared as it is looks like a regular expression.
fn is_like_pattern(text: &str) -> bool {
    let group = text.split_once('(').is_some_and(|(_, rest)| {
        rest.split_once(')').is_some_and(|(inner, _)| inner.contains('|') && !inner.contains(' '))
    });
    let parts = [".*", ".+", "\\.", "\\d", "\\w", "(?:", "[a-z", "[0-9", "[^/"];
    let whole = text.len() > 1 && (text.starts_with('^') || text.ends_with('$'));
    whole || group || parts.iter().any(|p| text.contains(p))
}

/// Returns `true` if the keys of a table are names of hosts, with `*` at their ends.
fn has_names(s: &Scene<'_>, table: usize) -> bool {
    let lines = s.nodes.get(table).and_then(|n| n.d.block.as_ref()).into_iter().flatten();
    lines.into_iter().any(|e| e.name.text == b"hostnames")
}

/// Reports patterns where a plain text is compared.
fn plain_patterns(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let mut report = |span: Span, text: &str| {
        found(span, format!("without ~ \"{text}\" is compared letter by letter, and never met"));
    };
    for n in s.all("map") {
        let names = has_names(s, n);
        for e in lines(s, n) {
            let key = e.name.as_str();
            let bare = if names { key.trim_end_matches(".*") } else { &key };
            if !key.starts_with('~') && is_like_pattern(bare) {
                report(e.name.span, &key);
            }
        }
    }
    for c in conditions(s).filter(|c| matches!(c.operator.as_str(), "=" | "!=") && is_like_pattern(&c.value))
    {
        report(s.span(c.node), &c.value);
    }
    for n in s.all("location") {
        let args = s.args(n);
        let path = match args {
            [path] => path.trim_start_matches("^~").trim_start_matches('='),
            [sign, path] if sign == "=" || sign == "^~" => &**path,
            _ => continue,
        };
        if !path.starts_with(['~', '@', '$']) && (is_like_pattern(path) || path.starts_with("*.")) {
            report(s.span(n), path);
        }
    }
    for n in s.all("server_name") {
        for (i, name) in s.args(n).iter().enumerate().filter(|(_, a)| !a.starts_with(['~', '$'])) {
            // `www.example.*` is a form of names.
            if is_like_pattern(name.trim_end_matches(".*")) {
                report(s.arg_span(n, i), name);
            }
        }
    }
}

/// Words in names of programs that nearly everybody has.
const AGENTS: [&str; 10] =
    ["bot", "bots", "robot", "crawl", "crawler", "spider", "google", "mozilla", "http", "android"];

/// Returns the alternative of a pattern for programs that takes search engines or browsers, too.
fn wide_agent(pattern: &str) -> Option<&str> {
    let inner = pattern.trim_start_matches('^').trim_start_matches("(?:").trim_start_matches('(');
    let inner = inner.trim_end_matches('$').trim_end_matches(')');
    inner.split('|').find(|b| AGENTS.contains(&b.to_ascii_lowercase().trim_matches(['.', '*'])))
}

/// Returns `true` if a pattern fits sessions of one beginning only.
fn is_one_session(pattern: &str) -> bool {
    let lower = pattern.to_ascii_lowercase();
    lower.rsplit_once('=').is_some_and(|(name, value)| {
        let session = ["sess", "sid", "token", "auth_id"].iter().any(|w| name.contains(w));
        let plain = !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric());
        session && plain && !["true", "yes", "on"].contains(&value)
    })
}

/// Returns `true` if a variable decides what is kept in a cache.
fn decides_on_cache(s: &Scene<'_>, variable: &str) -> bool {
    let families = super::ask::FAMILIES.into_iter();
    let names = families.flat_map(|f| [format!("{f}_cache_bypass"), format!("{f}_no_cache")]);
    let word = format!("${variable}");
    names.into_iter().any(|name| s.all(&name).any(|n| s.has(n, &word)))
}

checks! { Check;
    "person-unanchored" |s, _, found| for c in compared(s).into_iter().filter(|c| is_of_person(&c.subject) && !c.is_extraction) {
        if !is_anchored(&c.pattern) && !c.pattern.contains(".*") {
            found(c.span, format!("every ${} that only contains {} is let in, whatever else is in it", c.subject, c.pattern));
        }
    },
    "address-pattern" |s, _, found| for c in compared(s).into_iter().filter(|c| is_address(&c.subject) && !c.is_extraction) {
        if let Some(text) = loose_address(&c.pattern) {
            found(c.span, format!("{}: {text}", c.pattern));
        }
    },
    "method-unanchored" |s, _, found| for c in conditions(s).filter(|c| c.variable == "request_method" && c.operator.starts_with("!~")) {
        if c.refuses(s) && !is_anchored(&c.value) && !is_half_bound(&c.value) {
            found(s.span(c.node), format!("a method that only contains {} passes, as XGET", branches(&c.value).first().unwrap_or(&"")));
        }
    },
    "alternatives-ungrouped" |s, _, found| {
        let mut report = |span, pattern: &str| if is_half_bound(pattern) {
            found(span, format!("^ belongs to the first alternative of {pattern} only, $ to the last"));
        };
        for c in compared(s) {
            report(c.span, &c.pattern);
        }
        for n in s.all("location") {
            report(s.span(n), &crate::routes::pattern(s, n).unwrap_or_default());
        }
        for n in s.all("rewrite") {
            report(s.arg_span(n, 0), s.arg(n, 0));
        }
        for n in s.all("server_name").chain(s.all("valid_referers")) {
            for (i, name) in s.args(n).iter().enumerate() {
                report(s.arg_span(n, i), bare(name).unwrap_or_default());
            }
        }
    },
    "key-is-pattern" |s, _, found| plain_patterns(s, found),
    "name-dot" |s, _, found| {
        let names = ["host", "http_host", "ssl_server_name", "ssl_preread_server_name", "http_origin", "http_referer"];
        let mut report = |span, pattern: &str| if let Some(name) = loose_name(pattern) {
            found(span, format!("the dot in {name} is any letter"));
        };
        for c in compared(s).into_iter().filter(|c| names.contains(&c.subject.as_str())) {
            report(c.span, &c.pattern);
        }
        for n in s.all("server_name").chain(s.all("valid_referers")) {
            for (i, name) in s.args(n).iter().enumerate() {
                report(s.arg_span(n, i), bare(name).unwrap_or_default());
            }
        }
    },
    "referers-unanchored" |s, _, found| for n in s.all("valid_referers") {
        for (i, name) in s.args(n).iter().enumerate() {
            if let Some(pattern) = bare(name).filter(|p| branches(p).iter().any(|b| !begins(b))) {
                found(s.arg_span(n, i), format!("an address of any site that only contains {pattern} fits, too"));
            }
        }
    },
    "agent-wide" |s, _, found| for c in compared(s).into_iter().filter(|c| c.subject == "http_user_agent") {
        let refused = match &c.defines {
            Some(variable) => refuses_by(s, variable),
            None => s.node_at(c.span).is_some_and(|n| children(s, n, "return").any(|r| s.arg(r, 0).starts_with('4'))),
        };
        if let Some(word) = wide_agent(&c.pattern).filter(|_| refused) {
            found(c.span, format!("\"{word}\" is in the names of search engines and browsers, too"));
        }
    },
    "session-by-value" |s, _, found| for c in compared(s).into_iter().filter(|c| c.subject == "http_cookie" && is_one_session(&c.pattern)) {
        if c.defines.as_ref().is_some_and(|v| decides_on_cache(s, v)) {
            found(c.span, format!("only sessions whose value begins as in {} are kept out of the cache", c.pattern));
        }
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_bound_or_not() {
        for pattern in ["^(GET|POST)$", "^a$|^b$", "(^|,)CN=a(,|$)"] {
            assert!(is_anchored(pattern), "{pattern}");
        }
        for pattern in ["GET|POST", "^GET|POST$", "^CN=a", "CN=a$"] {
            assert!(!is_anchored(pattern), "{pattern}");
        }
        assert!(is_half_bound("^a|b$") && !is_half_bound("^(a|b)$") && !is_half_bound("^a$|^b$"));
        assert_eq!(loose_name("^www.example\\.com$").as_deref(), Some("www.example"));
        assert_eq!(loose_name("^www\\.example\\.com$|[a.b]c.*d"), None);
        assert!(loose_address("^10.1").is_some() && loose_address("10\\.1\\.").is_some());
        assert!(loose_address("^10\\.0\\.0\\.1$").is_none() && loose_address("^192\\.168\\.").is_none());
        assert!(loose_address("^10\\.0\\.0\\.1").is_some());
        for text in ["^/internal/", "/a(b|c)", "/x/.*", "www\\.a"] {
            assert!(is_like_pattern(text), "{text}");
        }
        for text in ["Mozilla/5.0 (compatible; a|b)", "*.example.com", "/a", "$"] {
            assert!(!is_like_pattern(text), "{text}");
        }
        assert_eq!(wide_agent("(sqlmap|bot)"), Some("bot"));
        assert_eq!(wide_agent("semrushbot"), None);
    }
}
