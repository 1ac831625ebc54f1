//! Which location of a server takes a path: the choice that the server makes, for rules about what slips past a location.

use crate::scene::Scene;
use forebay_core::pattern::Pattern;

/// Form of a location.
enum Form {
    /// `= /path`.
    Exact(String),
    /// `/path`, or `^~ /path`, which ends the search.
    Prefix { path: String, is_final: bool },
    /// `~ pattern`, or `~* pattern`.
    Pattern(Box<Pattern>),
}

/// A location of one level.
struct Location {
    node: usize,
    form: Form,
}

impl Location {
    fn of(s: &Scene<'_>, node: usize) -> Option<Location> {
        let args = s.args(node);
        let form = match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["=", path] => Form::Exact((*path).to_owned()),
            ["^~", path] => Form::Prefix { path: (*path).to_owned(), is_final: true },
            ["~", text] => Form::Pattern(Box::new(s.pattern(text, false)?)),
            ["~*", text] => Form::Pattern(Box::new(s.pattern(text, true)?)),
            [text] => one_word(s, text)?,
            _ => return None,
        };
        Some(Location { node, form })
    }

    fn is_match(&self, path: &str) -> bool {
        match &self.form {
            Form::Exact(own) => own == path,
            Form::Prefix { path: own, .. } => path.starts_with(own.as_str()),
            Form::Pattern(pattern) => pattern.is_match(path.as_bytes()).unwrap_or(false),
        }
    }
}

/// Returns the form of a location of one word: `/path`, `=/path`, `~pattern`. `None` for names and variables.
fn one_word(s: &Scene<'_>, text: &str) -> Option<Form> {
    let pattern = |text: &str, caseless| Some(Form::Pattern(Box::new(s.pattern(text, caseless)?)));
    if text.starts_with(['@', '$']) {
        None
    } else if let Some(text) = text.strip_prefix("~*") {
        pattern(text, true)
    } else if let Some(text) = text.strip_prefix('~') {
        pattern(text, false)
    } else if let Some(path) = text.strip_prefix('=') {
        Some(Form::Exact(path.to_owned()))
    } else if let Some(path) = text.strip_prefix("^~") {
        Some(Form::Prefix { path: path.to_owned(), is_final: true })
    } else {
        Some(Form::Prefix { path: text.to_owned(), is_final: false })
    }
}

/// Returns the path of a location that is a prefix.
pub(crate) fn prefix(s: &Scene<'_>, node: usize) -> Option<String> {
    match Location::of(s, node)?.form {
        Form::Prefix { path, .. } => Some(path),
        _ => None,
    }
}

/// Returns the regular expression of a location, without its sign.
pub(crate) fn pattern(s: &Scene<'_>, node: usize) -> Option<String> {
    let text = s.args(node).join(" ");
    let bare = text.strip_prefix('~')?;
    Some(bare.strip_prefix('*').unwrap_or(bare).trim_start().to_owned())
}

/// Returns the block that takes a path in a server: the server itself, or its innermost location.
pub(crate) fn chosen(s: &Scene<'_>, server: usize, path: &str) -> usize {
    let mut at = server;
    // Locations cannot be nested more deeply than blocks.
    for _ in 0..100 {
        match chosen_below(s, at, path) {
            Some(location) => at = location,
            None => break,
        }
    }
    at
}

/// Returns the location of one level that takes a path: an exact one, or the first pattern unless the longest prefix forbids them, or
/// the longest prefix.
fn chosen_below(s: &Scene<'_>, block: usize, path: &str) -> Option<usize> {
    let all = s.level(Some(block)).iter().filter(|n| s.is(**n, "location"));
    let matching: Vec<Location> =
        all.filter_map(|n| Location::of(s, *n)).filter(|l| l.is_match(path)).collect();
    let exact = matching.iter().find(|l| matches!(l.form, Form::Exact(_)));
    if let Some(exact) = exact {
        return Some(exact.node);
    }
    let prefixes = matching.iter().filter_map(|l| match &l.form {
        Form::Prefix { path, is_final } => Some((path.len(), *is_final, l.node)),
        _ => None,
    });
    let longest = prefixes.max_by_key(|(length, ..)| *length);
    if let Some((_, true, node)) = longest {
        return Some(node);
    }
    let first = matching.iter().find(|l| matches!(l.form, Form::Pattern(_)));
    first.map(|l| l.node).or(longest.map(|(.., node)| node))
}

/// Returns the location that takes all paths for which a pattern was made, with one of them; `None` if some come to it.
pub(crate) fn shadow(s: &Scene<'_>, server: usize, location: usize) -> Option<(String, usize)> {
    let text = pattern(s, location)?;
    let own = Location::of(s, location)?;
    let mut paths: Vec<String> = samples(&text).into_iter().filter(|path| own.is_match(path)).collect();
    // Inside of a prefix, with the path around it. What matches two patterns is not made.
    if let Some(around) = s.parent(location).filter(|p| s.is(*p, "location")) {
        let prefix = prefix(s, around)?;
        paths.retain(|path| path.starts_with(&prefix));
    }
    let takers: Vec<usize> = paths.iter().map(|path| chosen(s, server, path)).collect();
    let first = *takers.first()?;
    let lost = |taker: &usize| !is_within(s, *taker, location) && !s.is(*taker, "server");
    takers.iter().all(lost).then(|| Some((paths.into_iter().next()?, first)))?
}

/// Most paths that are made from a pattern.
const MOST_SAMPLES: usize = 12;

/// Returns paths that a pattern could be made for, one for each of its alternatives.
fn samples(pattern: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    let mut chars = pattern.trim_start_matches('^').trim_end_matches('$').chars().peekable();
    // Texts before an open group, and the alternatives that are complete.
    let mut open: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    while let Some(c) = chars.next() {
        match c {
            '(' => {
                while chars.next_if(|c| matches!(c, '?' | ':')).is_some() {}
                open.push((out.clone(), Vec::new()));
            }
            '|' => {
                if let Some((before, done)) = open.last_mut() {
                    done.append(&mut out);
                    out = before.clone();
                }
            }
            ')' => {
                if let Some((_, mut done)) = open.pop() {
                    out.append(&mut done);
                }
            }
            '[' => {
                while chars.next().is_some_and(|c| c != ']') {}
                push(&mut out, 'x');
            }
            '\\' => push(&mut out, chars.next().filter(|c| !c.is_ascii_alphanumeric()).unwrap_or('1')),
            '.' => push(&mut out, 'x'),
            '^' | '$' | '?' | '*' | '+' => {}
            _ => push(&mut out, c),
        }
        out.truncate(MOST_SAMPLES);
    }
    let rooted = |path: String| if path.starts_with('/') { path } else { format!("/x{path}") };
    out.into_iter().map(rooted).collect()
}

fn push(out: &mut [String], c: char) {
    for text in out {
        text.push(c);
    }
}

/// Returns `true` if a block is inside of another one, or the same.
pub(crate) fn is_within(s: &Scene<'_>, block: usize, outer: usize) -> bool {
    let mut at = Some(block);
    while let Some(b) = at {
        if b == outer {
            return true;
        }
        at = s.parent(b);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_conf::files::Files;
    use std::path::Path;

    #[test]
    fn locations_are_chosen_as_the_server_does() {
        let conf = "http { server { location / { } location = /exact { } location /images/ { location ~ \\.php$ { } }
            location ^~ /final/ { } location ~* \\.(PHP|jpg)$ { } location ~ ^/x { } location @named { } } }";
        let mut files = Files::recorded([("/n.conf", conf)]);
        let parsed = forebay_conf::parse::parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
        let s = Scene::new(&parsed.tree);
        let server = s.all("server").next().expect("a server");
        let name = |path: &str| s.args(chosen(&s, server, path)).join(" ");
        for (path, location) in [
            ("/a", "/"),
            ("/exact", "= /exact"),
            ("/images/a.jpg", "~* \\.(PHP|jpg)$"),
            ("/images/a.gif", "/images/"),
            ("/final/a.php", "^~ /final/"),
            ("/xa.html", "~ ^/x"),
        ] {
            assert_eq!(name(path), location, "{path}");
        }
        assert_eq!(samples("^/a/(b|c)\\.php$"), ["/a/c.php", "/a/b.php"]);
        assert_eq!(samples("\\.(?:css|js)"), ["/x.js", "/x.css"]);
        assert_eq!(prefix(&s, chosen(&s, server, "/final/a")).as_deref(), Some("/final/"));
        assert_eq!(pattern(&s, chosen(&s, server, "/a.php")).as_deref(), Some("\\.(PHP|jpg)$"));
    }
}
