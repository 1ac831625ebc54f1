//! Which location of a server takes a path: the choice that the server makes, for rules about what slips past a location.

use crate::plain::Texts;
use crate::scene::Scene;
use forebay_core::pattern::Pattern;
use std::borrow::Cow;
use std::cell::OnceCell;

/// Form of a location.
pub(crate) enum Form {
    /// `= /path`.
    Exact(String),
    /// `/path`, or `^~ /path`, which ends the search.
    Prefix { path: String, is_final: bool },
    /// `~ pattern`, or `~* pattern`, of texts alone.
    Texts(Texts),
    /// `~ pattern`, or `~* pattern`; compiled when it is first needed, `None` if it does not compile.
    Pattern { text: String, is_caseless: bool, compiled: OnceCell<Option<Pattern>> },
}

impl Form {
    /// Returns the form of a location; `None` for names and variables.
    pub(crate) fn of(s: &Scene<'_>, node: usize) -> Option<Form> {
        Some(match s.args(node) {
            [sign, text] if sign == "~" => Form::pattern(text, false),
            [sign, text] if sign == "~*" => Form::pattern(text, true),
            [sign, path] if sign == "=" => Form::Exact(path.to_string()),
            [text] => Form::of_word(text)?,
            _ => {
                let (path, is_final) = own_prefix(s, node)?;
                Form::Prefix { path: path.to_owned(), is_final }
            }
        })
    }

    /// Returns the form of a location of one word: `/path`, `=/path`, `~pattern`.
    fn of_word(text: &str) -> Option<Form> {
        Some(if let Some(text) = text.strip_prefix("~*") {
            Form::pattern(text, true)
        } else if let Some(text) = text.strip_prefix('~') {
            Form::pattern(text, false)
        } else if let Some(path) = text.strip_prefix('=') {
            Form::Exact(path.to_owned())
        } else {
            let (path, is_final) = prefix_of_word(text)?;
            Form::Prefix { path: path.to_owned(), is_final }
        })
    }

    fn pattern(text: &str, is_caseless: bool) -> Form {
        let engine = || Form::Pattern { text: text.to_owned(), is_caseless, compiled: OnceCell::new() };
        Texts::of(text, is_caseless).map_or_else(engine, Form::Texts)
    }

    fn is_match(&self, s: &Scene<'_>, path: &str) -> bool {
        match self {
            Form::Exact(own) => own == path,
            Form::Prefix { path: own, .. } => path.starts_with(own.as_str()),
            Form::Texts(texts) => texts.is_match(path),
            Form::Pattern { text, is_caseless, compiled } => {
                let pattern = compiled.get_or_init(|| s.pattern(text, *is_caseless));
                pattern.as_ref().is_some_and(|p| p.is_match(path.as_bytes()).unwrap_or(false))
            }
        }
    }
}

/// Returns the path of a location that is a prefix, and whether it ends the search.
fn own_prefix<'s>(s: &'s Scene<'_>, node: usize) -> Option<(&'s str, bool)> {
    match s.args(node) {
        [sign, path] if sign == "^~" => Some((path, true)),
        [text] if !text.starts_with(['~', '=']) => prefix_of_word(text),
        _ => None,
    }
}

fn prefix_of_word(text: &str) -> Option<(&str, bool)> {
    match text.strip_prefix("^~") {
        _ if text.starts_with(['@', '$']) => None,
        Some(path) => Some((path, true)),
        None => Some((text, false)),
    }
}

/// Returns the path of a location that is a prefix.
pub(crate) fn prefix<'s>(s: &'s Scene<'_>, node: usize) -> Option<&'s str> {
    own_prefix(s, node).map(|(path, _)| path)
}

/// Returns the regular expression of a location, without its sign.
pub(crate) fn pattern<'s>(s: &'s Scene<'_>, node: usize) -> Option<Cow<'s, str>> {
    // Without its sign the text of most locations is one word.
    if !s.arg(node, 0).starts_with('~') {
        return None;
    }
    match s.args(node) {
        [sign, text] if matches!(&**sign, "~" | "~*") => Some(Cow::Borrowed(text.trim_start())),
        [text] => Some(Cow::Borrowed(without_sign(text))),
        several => Some(Cow::Owned(without_sign(&several.join(" ")).to_owned())),
    }
}

fn without_sign(text: &str) -> &str {
    let bare = text.strip_prefix('~').unwrap_or(text);
    bare.strip_prefix('*').unwrap_or(bare).trim_start()
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
    let all = s.children(Some(block), "location").filter_map(|n| Some((n, s.form(n)?)));
    let is_exact = |form: &Form| matches!(form, Form::Exact(own) if own == path);
    if let Some((exact, _)) = all.clone().find(|(_, form)| is_exact(form)) {
        return Some(exact);
    }
    let prefixes = all.clone().filter_map(|(n, form)| match form {
        Form::Prefix { path: own, is_final } if path.starts_with(own.as_str()) => {
            Some((own.len(), *is_final, n))
        }
        _ => None,
    });
    let longest = prefixes.max_by_key(|(length, ..)| *length);
    if let Some((_, true, node)) = longest {
        return Some(node);
    }
    let mut patterns = all.filter(|(_, form)| matches!(form, Form::Texts(_) | Form::Pattern { .. }));
    let first = patterns.find(|(_, form)| form.is_match(s, path));
    first.map(|(n, _)| n).or(longest.map(|(.., node)| node))
}

/// Returns the location that takes all paths for which a pattern was made, with one of them; `None` if some come to it.
pub(crate) fn shadow(s: &Scene<'_>, server: usize, location: usize) -> Option<(String, usize)> {
    let text = pattern(s, location)?;
    let own = s.form(location)?;
    let mut paths: Vec<String> = samples(&text).into_iter().filter(|path| own.is_match(s, path)).collect();
    // Inside of a prefix, with the path around it. What matches two patterns is not made.
    if let Some(around) = s.parent(location).filter(|p| s.is(*p, "location")) {
        let prefix = prefix(s, around)?;
        paths.retain(|path| path.starts_with(prefix));
    }
    let takers: Vec<usize> = paths.iter().map(|path| chosen(s, server, path)).collect();
    let first = *takers.first()?;
    let lost = |taker: &usize| !s.is_within(*taker, location) && !s.is(*taker, "server");
    takers.iter().all(lost).then(|| Some((paths.into_iter().next()?, first)))?
}

/// Most paths that are made from a pattern.
const MOST_SAMPLES: usize = 12;

/// Returns paths that a pattern could be made for, one for each of its alternatives.
pub(crate) fn samples(pattern: &str) -> Vec<String> {
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
        let name = |path: &str| s.text(chosen(&s, server, path));
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
        assert_eq!(prefix(&s, chosen(&s, server, "/final/a")), Some("/final/"));
        assert_eq!(pattern(&s, chosen(&s, server, "/a.php")).as_deref(), Some("\\.(PHP|jpg)$"));
    }
}
