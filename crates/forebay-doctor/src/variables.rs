//! Values that variables of a configuration can hold: whether the client chooses them, and which values are written down.

use super::scene::{Scene, Table};
use forebay_conf::tree::{Directive, Span};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Variables that are the client's own text.
const CLIENTS: [&str; 9] = [
    "host",
    "uri",
    "document_uri",
    "request_uri",
    "args",
    "query_string",
    "request_body",
    "ssl_server_name",
    "rdp_cookie",
];

/// Families of such variables.
const FAMILIES: [&str; 5] = ["http_", "arg_", "cookie_", "ssl_preread_", "mqtt_preread_"];

/// Returns the names of the variables in a text, `$a` and `${a}` alike, with the places where they begin.
pub fn named(text: &str) -> Vec<(usize, &str)> {
    let mut out = Vec::new();
    for (at, _) in text.match_indices('$') {
        let rest = text.get(at + 1..).unwrap_or_default();
        let rest = rest.strip_prefix('{').unwrap_or(rest);
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = rest.get(..end).unwrap_or_default();
        // `$10` is `$1` and a zero.
        let name = if name.starts_with(|c: char| c.is_ascii_digit()) { &name[..1] } else { name };
        if !name.is_empty() {
            out.push((at, name));
        }
    }
    out
}

/// Returns the variable in a text, used in `block`, by which the client chooses it; `set` is followed.
pub(crate) fn by_client(s: &Scene<'_>, block: Option<usize>, text: &str) -> Option<String> {
    chosen(s, block, text, 8)
}

fn chosen(s: &Scene<'_>, block: Option<usize>, text: &str, depth: u32) -> Option<String> {
    named(text)
        .into_iter()
        .map(|(_, name)| name)
        .find(|name| {
            let own = FAMILIES.iter().any(|p| name.starts_with(p));
            let number = name.starts_with(|c: char| c.is_ascii_digit()) && *name != "0";
            own || number
                || CLIENTS.contains(name)
                || is_captured(s, block, name)
                || (depth > 0 && sets(s, block, name).any(|v| chosen(s, block, v, depth - 1).is_some()))
        })
        .map(str::to_owned)
}

/// Directives that give variables their values, by the names of these.
#[derive(Default)]
pub(crate) struct Definitions<'t> {
    /// `set`, then `auth_request_set`, by their servers.
    sets: Table<Option<usize>, Table<&'t [u8], Vec<usize>>>,
    /// `json_set`.
    of_documents: Table<&'t [u8], Vec<usize>>,
    /// Blocks of `map`, `num_map`, `geo` and `split_clients`.
    tables: Table<&'t [u8], Vec<usize>>,
}

impl<'t> Definitions<'t> {
    pub(crate) fn of(s: &Scene<'t>) -> Definitions<'t> {
        let mut all = Definitions::default();
        let word = |n: usize, is_last: bool| {
            let args = &s.nodes.get(n)?.d.args;
            let word = if is_last { args.last() } else { args.first() };
            word?.text.strip_prefix(b"$")
        };
        for n in s.all("set").chain(s.all("auth_request_set")) {
            if let Some(name) = word(n, false) {
                let of_server = all.sets.entry(s.around(n, "server")).or_default();
                of_server.entry(name).or_default().push(n);
            }
        }
        for n in s.all("json_set") {
            if let Some(name) = word(n, false) {
                all.of_documents.entry(name).or_default().push(n);
            }
        }
        for n in TABLES.into_iter().flat_map(|table| s.all(table)) {
            if let Some(name) = word(n, true) {
                all.tables.entry(name).or_default().push(n);
            }
        }
        all
    }
}

/// Directives by the variables in their arguments that are written as `$name`.
#[derive(Default)]
pub(crate) struct Mentions<'t>(BTreeMap<&'t [u8], Vec<usize>>);

impl<'t> Mentions<'t> {
    pub(crate) fn of(s: &Scene<'t>) -> Mentions<'t> {
        let mut all = Mentions::default();
        for (n, node) in s.nodes.iter().enumerate() {
            for word in &node.d.args {
                for name in word.text.split(|b| *b == b'$').skip(1) {
                    let end = name.iter().position(|b| !b.is_ascii_alphanumeric() && *b != b'_');
                    let name = name.get(..end.unwrap_or(name.len())).unwrap_or_default();
                    all.0.entry(name).or_default().push(n);
                }
            }
        }
        all
    }

    /// Returns the directives with a variable whose name begins so.
    pub(crate) fn beginning<'m>(&'m self, name: &'m str) -> impl Iterator<Item = usize> + 'm {
        let fits =
            self.0.range(name.as_bytes()..).take_while(|(known, _)| known.starts_with(name.as_bytes()));
        fits.flat_map(|(_, nodes)| nodes.iter().copied())
    }
}

/// Directives whose blocks define a variable.
const TABLES: [&str; 4] = ["map", "num_map", "geo", "split_clients"];

/// Returns `true` if a pattern around a block captures this name.
fn is_captured(s: &Scene<'_>, block: Option<usize>, name: &str) -> bool {
    patterns(s, block).iter().any(|p| group(p, name).is_some())
}

/// Returns the values that `set` gives a variable in the server around a block, and the variables with the documents out of which
/// `json_set` takes it.
fn sets<'s, 't>(
    s: &'s Scene<'t>,
    block: Option<usize>,
    name: &str,
) -> impl Iterator<Item = &'s str> + use<'s, 't> {
    let server = block.and_then(|b| if s.is(b, "server") { Some(b) } else { s.around(b, "server") });
    let known = s.definitions();
    let given = known.sets.get(&server).and_then(|of_server| of_server.get(name.as_bytes()));
    let of_document = known.of_documents.get(name.as_bytes());
    given.into_iter().chain(of_document).flatten().map(|n| s.arg(*n, 1))
}

/// Returns `true` if the first word of a directive is the variable of this name.
pub(crate) fn is_name(s: &Scene<'_>, n: usize, name: &str) -> bool {
    s.arg(n, 0).strip_prefix('$') == Some(name)
}

/// Returns the first words of lines in a block of data that are no entries.
fn options(table: &str) -> &'static [&'static str] {
    match table {
        "map" => &["hostnames", "volatile", "include"],
        "num_map" => &["volatile", "include"],
        "geo" => &["ranges", "proxy", "proxy_recursive", "delete", "include"],
        _ => &[],
    }
}

/// Returns `true` if a table defines a variable.
pub(crate) fn is_of_table(s: &Scene<'_>, name: &str) -> bool {
    s.definitions().tables.contains_key(name.as_bytes())
}

/// Returns the blocks of `map`, `geo` and `split_clients` that define a variable for `block`. The blocks http and stream have
/// variables of their own.
fn tables<'s, 't>(
    s: &'s Scene<'t>,
    block: Option<usize>,
    name: &str,
) -> impl Iterator<Item = usize> + use<'s, 't> {
    let outermost = block.map(|b| s.outermost(b));
    let all = s.definitions().tables.get(name.as_bytes()).into_iter().flatten().copied();
    all.filter(move |n| outermost.is_none_or(|o| s.outermost(*n) == o))
}

/// Returns the values that `set`, `map`, `geo` and `split_clients` have for a variable; `None` if another variable is
/// among them.
pub(crate) fn values(s: &Scene<'_>, block: Option<usize>, name: &str) -> Option<Vec<String>> {
    let mut out: Vec<String> = sets(s, block, name).map(str::to_owned).collect();
    for n in tables(s, block, name) {
        let d = s.nodes[n].d;
        let options = options(&d.name.as_str());
        for entry in d.block.iter().flat_map(|b| b.iter()) {
            if !options.contains(&entry.name.as_str().as_ref()) {
                out.push(entry.args.first()?.as_str().into_owned());
            }
        }
    }
    (!out.is_empty() && out.iter().all(|v| !v.contains('$'))).then_some(out)
}

/// Returns the values that `set` and `json_set` give a variable, as written.
pub(crate) fn written_by_set<'s, 't>(
    s: &'s Scene<'t>,
    block: Option<usize>,
    name: &str,
) -> impl Iterator<Item = &'s str> + use<'s, 't> {
    sets(s, block, name)
}

/// Returns the values of the tables that define a variable, as written.
pub(crate) fn values_of_tables(s: &Scene<'_>, block: Option<usize>, name: &str) -> Vec<String> {
    entries_of_tables(s, block, name).into_iter().map(|entry| entry.value).collect()
}

/// A line of a table.
pub(crate) struct Entry {
    /// What is compared.
    pub(crate) key: String,
    /// What the variable gets.
    pub(crate) value: String,
    /// The place of the line.
    pub(crate) span: Span,
}

impl Entry {
    /// Returns `true` if everything comes to the line: it is the default, or a pattern for all.
    pub(crate) fn takes_all(&self) -> bool {
        let all = ["default", "~.", "~.*", "~.+", "~^", "~^.*$", "~^.+$", "~^(.*)$", "~^(.+)$", "~*.*"];
        all.contains(&self.key.as_str()) || self.key.starts_with("~^(?<") && self.key.ends_with(">.+)$")
    }
}

/// Returns the lines of the tables that define a variable.
pub(crate) fn entries_of_tables(s: &Scene<'_>, block: Option<usize>, name: &str) -> Vec<Entry> {
    let lines = tables(s, block, name).filter_map(|n| s.nodes.get(n)).flat_map(|n| {
        let options = options(&n.d.name.as_str());
        let lines = n.d.block.iter().flat_map(|b| b.iter());
        lines.filter(move |e| !options.contains(&e.name.as_str().as_ref()))
    });
    let entry = |e: &Directive| {
        let value = e.args.first()?.as_str().into_owned();
        Some(Entry { key: e.name.as_str().into_owned(), value, span: e.name.span })
    };
    lines.filter_map(entry).collect()
}

/// Returns the variables that a text, used in `block`, depends on: its own, and those that `set`, `map` and
/// `split_clients` make them from.
pub(crate) fn sources(s: &Scene<'_>, block: Option<usize>, text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut texts: Vec<Cow<'_, str>> = vec![Cow::Borrowed(text)];
    while let Some(text) = texts.pop() {
        for (_, name) in named(&text).into_iter().filter(|(_, name)| !name.is_empty()) {
            if found.iter().any(|f| f == name) {
                continue;
            }
            found.push(name.to_owned());
            texts.extend(sets(s, block, name).map(Cow::Borrowed));
            let tables = tables(s, block, name).filter(|n| s.args(*n).len() > 1);
            texts.extend(tables.map(|n| Cow::Borrowed(s.arg(n, 0))));
        }
    }
    found
}

/// Returns regular expressions that are matched before a block is entered, the innermost first.
pub(crate) fn patterns<'s>(s: &'s Scene<'_>, block: Option<usize>) -> Vec<&'s str> {
    let mut out = Vec::new();
    let mut at = block;
    while let Some(b) = at {
        if s.is(b, "location") && s.arg(b, 0).starts_with('~') {
            out.push(s.last_arg(b).trim_start_matches(['~', '*']));
        }
        if s.is(b, "if") {
            out.push(s.last_arg(b).trim_end_matches(')'));
        }
        if s.is(b, "server") {
            let names = s.children(Some(b), "server_name").flat_map(|n| s.args(n));
            out.extend(names.filter_map(|name| name.strip_prefix('~')));
        }
        at = s.parent(b);
    }
    out
}

/// Returns the text of a group of a regular expression, by its number or name; `""` for one that is empty.
pub(crate) fn group<'p>(pattern: &'p str, wanted: &str) -> Option<&'p str> {
    groups(pattern)
        .into_iter()
        .enumerate()
        .find_map(|(i, (name, text))| (name == Some(wanted) || (i + 1).to_string() == wanted).then_some(text))
}

/// A group that captures: its name and its text.
type Group<'p> = (Option<&'p str>, &'p str);

/// Groups that capture, in order.
pub(crate) fn groups(pattern: &str) -> Vec<Group<'_>> {
    let bytes = pattern.as_bytes();
    // Of each open group its index in `out`, if it captures.
    let mut open: Vec<Option<usize>> = Vec::new();
    let mut out: Vec<Group<'_>> = Vec::new();
    let (mut i, mut in_class) = (0, false);
    while let Some(b) = bytes.get(i) {
        match b {
            b'\\' => i += 1,
            b'[' if !in_class => {
                in_class = true;
                // A bracket in first place is a plain one.
                i += usize::from(bytes.get(i + 1) == Some(&b'^'));
                i += usize::from(bytes.get(i + 1) == Some(&b']'));
            }
            b']' => in_class = false,
            b'(' if !in_class => {
                let group = group_at(pattern.get(i + 1..).unwrap_or_default());
                open.push(group.map(|_| out.len()));
                out.extend(group);
            }
            b')' if !in_class => {
                if let Some(Some((_, text))) = open.pop().map(|n| n.and_then(|n| out.get_mut(n))) {
                    let left = pattern.len() - i;
                    *text = text.get(..text.len().saturating_sub(left)).unwrap_or_default();
                }
            }
            _ => {}
        }
        i += 1;
    }
    out
}

/// Returns the group that begins with `rest`, the text behind its parenthesis, if it captures. Its text goes on to the end
/// of the pattern.
fn group_at(rest: &str) -> Option<Group<'_>> {
    let named =
        ["?<", "?P<", "?'"].iter().find_map(|p| rest.strip_prefix(p)).filter(|n| !n.starts_with(['=', '!']));
    let name = named.and_then(|n| n.split(['>', '\'']).next());
    if rest.starts_with('?') && name.is_none() || rest.starts_with('*') {
        return None;
    }
    let skip = name.and_then(|n| Some(rest.find(n)? + n.len() + 1)).unwrap_or(0);
    Some((name, rest.get(skip..).unwrap_or_default()))
}

/// Returns `true` if a group can match a line feed in a decoded path.
pub(crate) fn takes_line_feeds(group: &str) -> bool {
    let negated = group.match_indices("[^").any(|(at, _)| {
        let class = group.get(at..).and_then(|c| c.split(']').next()).unwrap_or_default();
        !["\\n", "\\s", "\\v", "\\R"].iter().any(|w| class.contains(w))
    });
    negated || ["\\s", "\\D", "\\W", "(?s"].iter().any(|w| group.contains(w) && !group.contains("[^"))
}

/// Returns the part of a pattern that repeats a repetition: `(a+)+` takes exponential time where it does not match.
pub(crate) fn repeats_itself(pattern: &str) -> Option<String> {
    let is_repeat = |c: Option<char>| matches!(c, Some('+' | '*'));
    for (at, _) in pattern.match_indices('(') {
        let body = pattern.get(at + 1..).and_then(|r| r.split(')').next()).unwrap_or_default();
        let after = pattern.get(at + body.len() + 2..).unwrap_or_default();
        let inner = body.strip_prefix("?:").unwrap_or(body);
        let Some(atom) = inner.strip_suffix(['+', '*']) else { continue };
        let one = atom.chars().count() == 1
            || (atom.starts_with('\\') && atom.chars().count() == 2)
            || (atom.starts_with('[') && atom.find(']') == Some(atom.len() - 1));
        if one && is_repeat(after.chars().next()) && !after.starts_with("*+") && !after.starts_with("++") {
            return Some(format!("({body}){}", &after[..1]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_in_a_text() {
        let names = |t| named(t).into_iter().map(|(_, n)| n).collect::<Vec<_>>();
        assert_eq!(names("http://${arg_a}b/$1x$host"), ["arg_a", "1", "host"]);
        assert!(names("a$ $").is_empty());
    }

    #[test]
    fn groups_of_a_pattern() {
        let p = "^/(?<a>[^/)]+)/(?:x|(y\\))?)(z)$";
        assert_eq!(group(p, "a"), Some("[^/)]+"));
        assert_eq!(group(p, "1"), Some("[^/)]+"));
        assert_eq!(group(p, "2"), Some("y\\)"));
        assert_eq!(group(p, "3"), Some("z"));
        assert_eq!(group(p, "4"), None);
        assert!(takes_line_feeds("[^/]+") && !takes_line_feeds(".*") && !takes_line_feeds("[^/\\s]+"));
        assert!(takes_line_feeds("\\W+") && !takes_line_feeds("[a-z]+"));
    }

    #[test]
    fn repeats_of_repeats() {
        for bad in ["^(a+)+$", "^/([a-z]*)*x", "(?:\\w+)+", "(.*)+"] {
            assert!(repeats_itself(bad).is_some(), "{bad}");
        }
        for good in ["^/(a+)/(b+)$", "(\\.[a-z]+)*", "(a+)", "\\.(css|js)$", "(a+)++"] {
            assert_eq!(repeats_itself(good), None, "{good}");
        }
    }
}
