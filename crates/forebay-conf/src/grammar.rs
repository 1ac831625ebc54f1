//! The table of directives: one row a directive and module.
//!
//! The rows are in `data/directives.tsv`. Its column `support` is the support for the directive in Forebay
//! (see [`Support`]). Its column `check` has nginx's rule for the words of directives without behaviour.

use std::fmt::{self, Display};
use std::sync::{LazyLock, OnceLock};

const TSV: &str = include_str!("../data/directives.tsv");

/// One row of the grammar table.
#[derive(Debug)]
pub struct Row {
    /// Directive name.
    pub name: &'static str,
    /// Module, as nginx names it without `ngx_` and `_module`.
    pub module: &'static str,
    /// Contexts that allow it.
    pub contexts: Contexts,
    /// Number of words that it takes.
    pub args: Arity,
    /// The directive opens a block.
    pub block: bool,
    /// Default as nginx documents it; empty where there is none to print.
    pub default: &'static str,
    /// Deprecated or obsolete in nginx.
    pub status: Status,
    /// Support for it in Forebay.
    pub support: Support,
    /// A second such directive in the same block is an error. Only set for rows without behaviour.
    pub once: bool,
    /// Rule for its words. Only set for rows without behaviour: the behaviour of the others checks them.
    pub value: Value,
}

/// Rule for the words of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// No rule here.
    Any,
    /// A number.
    Number,
    /// A number from the first to the second.
    Range(u64, u64),
    /// A size.
    Size,
    /// A size of no less than so many bytes.
    SizeFrom(u64),
    /// A power of two.
    Power,
    /// A size that nginx can give a memory pool.
    Pool,
    /// An offset.
    Offset,
    /// A time in milliseconds.
    Millis,
    /// A time in seconds.
    Seconds,
    /// A size, or a text with variables.
    SizeOrVariable,
    /// A number and a size.
    Buffers,
    /// Each word one of these, `|` between them, in either case.
    OneOf(&'static str),
    /// One of these, `|` between them, as written; `*` at an end stands for anything, `<offset>` for an offset.
    Exactly(&'static str),
}

/// Names of values without a parameter.
const SIMPLE_VALUES: [(&str, Value); 10] = [
    ("", Value::Any),
    ("num", Value::Number),
    ("size", Value::Size),
    ("pool", Value::Pool),
    ("power", Value::Power),
    ("offset", Value::Offset),
    ("msec", Value::Millis),
    ("sec", Value::Seconds),
    ("size-or-variable", Value::SizeOrVariable),
    ("buffers", Value::Buffers),
];

/// Reader of a value's parameter.
type ReadParameter = fn(&'static str) -> Option<Value>;

/// Names of values with a parameter after a colon.
const VALUES_WITH_PARAMETER: [(&str, ReadParameter); 4] = [
    ("num", Value::range),
    ("exactly", |forms| Some(Value::Exactly(forms))),
    ("size", |least| least.parse().ok().map(Value::SizeFrom)),
    ("one-of", |words| Some(Value::OneOf(words))),
];

impl Value {
    fn parse(text: &'static str) -> Option<Value> {
        let known = SIMPLE_VALUES.iter().find(|(name, _)| *name == text);
        known.map(|(_, value)| *value).or_else(|| Value::with_parameter(text))
    }

    fn with_parameter(text: &'static str) -> Option<Value> {
        let (kind, parameter) = text.split_once(':')?;
        let (_, read) = VALUES_WITH_PARAMETER.iter().find(|(name, _)| *name == kind)?;
        read(parameter)
    }

    fn range(parameter: &'static str) -> Option<Value> {
        let (min, max) = parameter.split_once('-')?;
        Some(Value::Range(min.parse().ok()?, max.parse().ok()?))
    }
}

/// Standing of a directive in nginx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Current.
    Current,
    /// Works, and the named directive should be used (if there is one).
    Deprecated(Option<&'static str>),
    /// Accepted and ignored by nginx, with a warning that names the directive that replaces it (if there is one).
    Obsolete(Option<&'static str>),
}

impl Display for Status {
    /// Writes the word and what to use instead; nothing for a current directive.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, instead) = match self {
            Status::Current => return Ok(()),
            Status::Deprecated(instead) => ("deprecated", instead),
            Status::Obsolete(instead) => ("obsolete", instead),
        };
        f.write_str(word)?;
        instead.map_or(Ok(()), |name| write!(f, ": use `{name}`"))
    }
}

impl Status {
    fn parse(text: &'static str) -> Option<Status> {
        let (status, instead) =
            text.split_once(':').map_or((text, None), |(status, instead)| (status, Some(instead)));
        match status {
            "" => Some(Status::Current),
            "deprecated" => Some(Status::Deprecated(instead)),
            "obsolete" => Some(Status::Obsolete(instead)),
            _ => None,
        }
    }
}

/// Support for a directive in Forebay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Has behaviour.
    Yes,
    /// No behaviour yet; ignoring it is harmless, so it is accepted with a warning.
    Hint,
    /// Its effect holds by design; accepted without a message.
    Met,
    /// No behaviour yet, and ignoring it would change responses or access: refused, with this advice what to do today (not empty if
    /// the parser has no own).
    Later(&'static str),
    /// Will never be supported, for this reason: refused.
    Never(&'static str),
}

impl Support {
    fn parse(text: &'static str) -> Option<Support> {
        match text {
            "yes" => Some(Support::Yes),
            "hint" => Some(Support::Hint),
            "met" => Some(Support::Met),
            "later" => Some(Support::Later("")),
            _ => Support::with_reason(text),
        }
    }

    fn with_reason(text: &'static str) -> Option<Support> {
        let (word, reason) = text.split_once(':').filter(|(_, reason)| !reason.is_empty())?;
        match word {
            "later" => Some(Support::Later(reason)),
            "never" => Some(Support::Never(reason)),
            _ => None,
        }
    }

    /// Returns `true` if a configuration with the directive is refused.
    pub fn is_refused(self) -> bool {
        matches!(self, Support::Later(_) | Support::Never(_))
    }
}

/// A set of contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contexts(u32);

/// Names of the contexts in the table; the place in the list is the bit.
const CONTEXTS: [&str; 17] = [
    "main",
    "events",
    "http",
    "server",
    "location",
    "if-in-server",
    "if-in-location",
    "limit_except",
    "upstream",
    "stream",
    "stream-server",
    "stream-upstream",
    "mail",
    "mail-server",
    "acme_issuer",
    "oidc_provider",
    "mgmt",
];

#[allow(missing_docs)]
impl Contexts {
    pub const MAIN: Contexts = Contexts(1);
    pub const EVENTS: Contexts = Contexts(1 << 1);
    pub const HTTP: Contexts = Contexts(1 << 2);
    pub const SERVER: Contexts = Contexts(1 << 3);
    pub const LOCATION: Contexts = Contexts(1 << 4);
    pub const IF_IN_SERVER: Contexts = Contexts(1 << 5);
    pub const IF_IN_LOCATION: Contexts = Contexts(1 << 6);
    pub const LIMIT_EXCEPT: Contexts = Contexts(1 << 7);
    pub const UPSTREAM: Contexts = Contexts(1 << 8);
    pub const STREAM: Contexts = Contexts(1 << 9);
    pub const STREAM_SERVER: Contexts = Contexts(1 << 10);
    pub const STREAM_UPSTREAM: Contexts = Contexts(1 << 11);
    pub const MAIL: Contexts = Contexts(1 << 12);
    pub const MAIL_SERVER: Contexts = Contexts(1 << 13);
    pub const ACME_ISSUER: Contexts = Contexts(1 << 14);

    /// Returns `true` if the two sets have a context in common.
    pub fn meets(self, other: Contexts) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the names of the contexts in the set, outermost first.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        CONTEXTS.iter().enumerate().filter(move |(i, _)| self.0 & (1 << i) != 0).map(|(_, n)| *n)
    }

    /// Reads names of contexts with commas between them.
    pub(crate) fn parse(text: &str) -> Option<Contexts> {
        let bit = |name| CONTEXTS.iter().position(|c| *c == name).map(|i| 1u32 << i);
        text.split(',').try_fold(0, |set, name| Some(set | bit(name)?)).map(Contexts)
    }
}

/// Number of words that a directive takes after its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arity {
    /// At least so many.
    pub min: usize,
    /// At most so many; `None`: no limit.
    pub max: Option<usize>,
    /// The one word is `on` or `off`.
    pub flag: bool,
}

impl Display for Arity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Arity { flag: true, .. } => f.write_str("flag"),
            Arity { min, max: None, .. } => write!(f, "{min} or more"),
            Arity { min, max: Some(max), .. } if min == max => write!(f, "{min}"),
            Arity { min, max: Some(max), .. } if max == min + 1 => write!(f, "{min} or {max}"),
            Arity { min, max: Some(max), .. } => write!(f, "{min} to {max}"),
        }
    }
}

impl Arity {
    /// Returns `true` if a directive may have this number of words.
    pub fn allows(self, count: usize) -> bool {
        count >= self.min && self.max.is_none_or(|max| count <= max)
    }

    fn parse(text: &str) -> Option<Arity> {
        if text == "flag" {
            return Some(Arity { min: 1, max: Some(1), flag: true });
        }
        let (min, max) = Arity::bounds(text)?;
        Some(Arity { min, max, flag: false })
    }

    /// Reads the least and the largest number of words.
    fn bounds(text: &str) -> Option<(usize, Option<usize>)> {
        if text == "any" {
            return Some((0, None));
        }
        if let Some(min) = text.strip_suffix('+') {
            return Some((min.parse().ok()?, None));
        }
        // A single number is both bounds.
        let (min, max) = text.split_once(['|', '-']).unwrap_or((text, text));
        Some((min.parse().ok()?, Some(max.parse().ok()?)))
    }
}

impl Row {
    /// Returns the number of words that it takes, for people: `1 or 2`, `flag`, `1, block`.
    pub fn arguments(&self) -> String {
        match (self.block, self.args.to_string().as_str()) {
            (true, "0") => "block".to_owned(),
            (true, count) => format!("{count}, block"),
            (false, count) => count.to_owned(),
        }
    }

    fn parse(line: &'static str) -> Option<Row> {
        let columns: Vec<&'static str> = line.split('\t').collect();
        let &[name, module, contexts, args, default, status, support, check, ..] = columns.as_slice() else {
            return None;
        };
        let (once, value) = check
            .strip_prefix("once")
            .map_or((false, check), |value| (true, value.strip_prefix(',').unwrap_or(value)));
        let (block, args) = args.strip_prefix("block:").map_or((false, args), |args| (true, args));
        Some(Row {
            name,
            module,
            contexts: Contexts::parse(contexts)?,
            args: Arity::parse(args)?,
            block,
            default,
            status: Status::parse(status)?,
            once,
            value: Value::parse(value)?,
            support: Support::parse(support)?,
        })
    }
}

/// Lines of the table, without its first one, and of modules outside of this project.
fn lines() -> impl Iterator<Item = &'static str> {
    TSV.lines().skip(1).chain(FURTHER.get_or_init(|| "").lines())
}

/// Rows of modules outside of this project.
static FURTHER: OnceLock<&str> = OnceLock::new();

/// Adds rows to the table, before it is first used. `rows`: lines with the columns of `data/directives.tsv`, without its first line.
///
/// # Errors
/// The line that is no row, or `""` if the table is in use or has been extended.
pub fn extend(rows: &'static str) -> Result<(), &'static str> {
    match rows.lines().find(|line| Row::parse(line).is_none()) {
        Some(line) => Err(line),
        None => FURTHER.set(rows).map_err(|_| ""),
    }
}

/// All rows. A server never needs them all, and each process would have them: see [`BY_NAME`].
static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| lines().filter_map(Row::parse).collect());

/// Line of the table.
struct Line {
    text: &'static str,
    /// Length of the name, bytes.
    name_len: usize,
    /// Rows of the directive, in its first line, once they have been asked for.
    rows: OnceLock<Box<[Row]>>,
}

impl Line {
    fn name(&self) -> &'static str {
        self.text.get(..self.name_len).unwrap_or_default()
    }

    /// Returns the place of a name in [`BY_NAME`]. Most comparisons of lengths decide, and need no look at the names.
    fn place(name: &[u8]) -> (usize, &[u8]) {
        (name.len(), name)
    }
}

/// Lines by the lengths of their names, then by their names.
static BY_NAME: LazyLock<Vec<Line>> = LazyLock::new(|| {
    let mut all = Vec::with_capacity(lines().count());
    all.extend(lines().map(|text| Line {
        text,
        name_len: text.find('\t').unwrap_or(text.len()),
        rows: OnceLock::new(),
    }));
    all.sort_by_key(|line| Line::place(line.name().as_bytes()));
    all
});

/// Conditions of `proxy_next_upstream`.
pub const NEXT_UPSTREAM: &[&str] = &[
    "error",
    "timeout",
    "invalid_header",
    "http_500",
    "http_502",
    "http_503",
    "http_504",
    "http_403",
    "http_404",
    "http_429",
    "non_idempotent",
    "off",
];

/// Returns all rows, in the order of the table.
pub fn all() -> &'static [Row] {
    &ROWS
}

/// Returns the names of all rows, in no order that means anything. Names of several rows are there several times.
pub fn names() -> impl Iterator<Item = &'static str> {
    BY_NAME.iter().map(Line::name)
}

/// Returns the rows of a directive, one a module; empty if nginx has no such directive.
pub fn rows(name: &[u8]) -> &'static [Row] {
    let first = BY_NAME.partition_point(|line| Line::place(line.name().as_bytes()) < Line::place(name));
    let lines = BY_NAME.get(first..).unwrap_or_default();
    let own = || lines.iter().take_while(|line| line.name().as_bytes() == name);
    match own().next() {
        Some(first) => first.rows.get_or_init(|| own().filter_map(|line| Row::parse(line.text)).collect()),
        None => &[],
    }
}

/// Returns the row of a directive that `context` allows.
pub fn row(name: &[u8], context: Contexts) -> Option<&'static Row> {
    rows(name).iter().find(|row| row.contexts.meets(context))
}

/// Returns the directive that an unknown name probably means.
pub(crate) fn suggest(name: &[u8]) -> Option<&'static str> {
    suggest_where(name, |_| true)
}

/// Returns the directive of `context` with the most similar name.
pub(crate) fn suggest_in(name: &[u8], context: Contexts) -> Option<&'static str> {
    suggest_where(name, |row| row.contexts.meets(context)).or_else(|| suggest(name))
}

fn suggest_where(name: &[u8], keep: impl Fn(&Row) -> bool) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let limit = slips(name.len());
    if name.is_empty() || name.len() > 64 {
        return None;
    }
    let mask = letters(&name);
    ROWS.iter()
        .filter(|row| row.name.len().abs_diff(name.len()) <= limit)
        // Each slip changes at most two letters of the set. This spares most names the long comparison.
        .filter(|row| (letters(row.name.as_bytes()) ^ mask).count_ones() as usize <= 2 * limit)
        .filter(|row| !matches!(row.support, Support::Never(_)) && keep(row))
        .map(|row| (distance(&name, row.name.as_bytes()), row.name))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, name)| name)
}

/// Returns the candidate that a name probably means; `None` if all are too different.
pub fn nearest<'c>(name: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let name = name.to_ascii_lowercase();
    let limit = slips(name.len());
    candidates
        .filter(|c| c.len().abs_diff(name.len()) <= limit && name.len() <= 64)
        .map(|c| (distance(name.as_bytes(), c.to_ascii_lowercase().as_bytes()), c))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, c)| c)
}

/// Slips that a name of this length may have: a third of the letters wrong is another word.
fn slips(length: usize) -> usize {
    (length / 3).min(3)
}

/// Returns the set of bytes in a name, folded to 64.
fn letters(name: &[u8]) -> u64 {
    name.iter().fold(0, |set, byte| set | 1 << (byte % 64))
}

/// Letters to insert, remove, change or swap with their neighbour.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut now = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y)).min(last[j + 1] + 1).min(now[j] + 1);
            let swapped = i > 0 && j > 0 && a[i - 1] == y && b[j - 1] == x;
            if swapped {
                best = best.min(before[j - 1] + 1);
            }
            now.push(best);
        }
        before = std::mem::replace(&mut last, now);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_line_is_a_row() {
        assert_eq!(all().len(), TSV.lines().count() - 1);
        assert_eq!(all().len(), 1102);
    }

    #[test]
    fn a_name_has_its_rows_in_the_order_of_the_table() {
        let told = |row: &Row| format!("{row:?}");
        for name in names() {
            let found: Vec<String> = rows(name.as_bytes()).iter().map(told).collect();
            let expected: Vec<String> = all().iter().filter(|row| row.name == name).map(told).collect();
            assert!(!found.is_empty() && found == expected, "{name}: {found:?}");
        }
        assert_eq!(names().count(), all().len());
        assert!(
            ["", "a", "proxy_pas", "proxy_passs", "zzz"].iter().all(|name| rows(name.as_bytes()).is_empty())
        );
        assert!(rows(b"proxy_pass\xff").is_empty());
    }

    #[test]
    fn no_row_twice() {
        let mut seen = HashSet::new();
        for row in all() {
            for context in row.contexts.names() {
                assert!(seen.insert((row.name, row.module, context)), "{} in {context}", row.name);
            }
        }
    }

    #[test]
    fn one_row_a_name_and_context() {
        let mut seen = HashSet::new();
        for row in all() {
            for context in row.contexts.names() {
                assert!(seen.insert((row.name, context)), "{} in {context}", row.name);
            }
        }
    }

    #[test]
    fn arities() {
        assert!(row(b"listen", Contexts::SERVER).is_some_and(|r| !r.args.allows(0) && r.args.allows(9)));
        assert!(row(b"expires", Contexts::HTTP).is_some_and(|r| r.args.allows(2) && !r.args.allows(3)));
        assert!(row(b"if", Contexts::SERVER).is_some_and(|r| r.block && r.args.allows(1)));
        assert!(row(b"gzip", Contexts::HTTP).is_some_and(|r| r.args.flag));
        assert!(row(b"listen", Contexts::HTTP).is_none());
        assert!(rows(b"\xff").is_empty());
    }

    #[test]
    fn suggestions() {
        assert_eq!(suggest(b"servr_name"), Some("server_name"));
        assert_eq!(suggest(b"sever"), Some("server"));
        assert_eq!(suggest(b"Server_Name"), Some("server_name"));
        assert_eq!(suggest(b"lsiten"), Some("listen"));
        assert_eq!(suggest(b"content_by_lua_block"), None);
        assert_eq!(suggest(b""), None);
        assert_eq!(suggest(b"x"), None);
    }
}
