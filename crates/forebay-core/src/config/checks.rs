//! Checks beyond single directives: repeated words, names of thread pools. Few of them affect how requests are served, but
//! nginx users expect the messages.

use super::scope::Build;
use super::value::first;
use forebay_conf::error::Error;
use forebay_conf::tree::{Block, Directive, Word};
use forebay_conf::units;
use std::collections::HashMap;

/// Directives of which each takes words from a set, by how their names end (those of families) or in full.
const SETS: &[&str] = &[
    "_next_upstream",
    "_cache_use_stale",
    "_cache_methods",
    "_ignore_headers",
    "ssl_protocols",
    "dav_methods",
    "keepalive_disable",
    "gzip_proxied",
    "userid_flags",
];

/// Pools defined by `thread_pool`, and the directives that use them.
#[derive(Debug, Default)]
pub struct Pools {
    names: Vec<Vec<u8>>,
    wanted: Vec<(Vec<u8>, Error)>,
}

impl Pools {
    /// Checks a `thread_pool` and notes its name.
    fn add(&mut self, d: &Directive, cx: &Build<'_>) -> Result<(), Error> {
        let name = first(d);
        if self.names.iter().any(|n| n == name) {
            return Err(cx.error(d, format!("duplicate thread pool \"{}\"", String::from_utf8_lossy(name))));
        }
        let mut threads = false;
        for w in d.args.iter().skip(1) {
            let invalid = |what: &str| cx.error_at(d, w, format!("invalid {what} value \"{}\"", w.as_str()));
            threads |= pool_parameter(w).map_err(invalid)?;
        }
        if !threads {
            return Err(cx.error(d, "\"thread_pool\" must have \"threads\" parameter"));
        }
        self.names.push(name.to_vec());
        Ok(())
    }

    /// Records that an `aio` directive uses a pool, which may be defined later.
    fn want(&mut self, d: &Directive, cx: &Build<'_>) {
        if let Some(name) = first(d).strip_prefix(b"threads=").filter(|n| !n.contains(&b'$')) {
            let text = format!("unknown thread pool \"{}\"", String::from_utf8_lossy(name));
            self.wanted.push((name.to_vec(), cx.error(d, text)));
        }
    }

    /// Returns the error for the first pool that is used but not defined.
    pub fn missing(self) -> Option<Error> {
        let Pools { names, wanted } = self;
        wanted.into_iter().find(|(name, _)| name != b"default" && !names.contains(name)).map(|(_, e)| e)
    }
}

/// Checks a parameter of `thread_pool`. Returns whether it is the number of threads, or the name of one with a wrong value.
fn pool_parameter(w: &Word) -> Result<bool, &'static str> {
    if let Some(n) = w.text.strip_prefix(b"threads=") {
        return units::number(n).filter(|n| *n > 0).map(|_| true).ok_or("threads");
    }
    match w.text.strip_prefix(b"max_queue=").map(units::number) {
        Some(None) => Err("max_queue"),
        _ => Ok(false),
    }
}

/// Checks all directives and collects the errors.
pub fn tree(block: &Block, pools: &mut Pools, cx: &mut Build<'_>) {
    level(&block.items, &mut HashMap::new(), pools, cx);
}

/// Words of directives at a level so far.
type Seen<'t> = HashMap<&'t [u8], Vec<Vec<u8>>>;

/// Checks the directives of a level, with those of included files.
fn level<'t>(items: &'t [Directive], seen: &mut Seen<'t>, pools: &mut Pools, cx: &mut Build<'_>) {
    for d in items {
        match &d.block {
            Some(file) if d.name.text == b"include" => {
                let before = (cx.warnings.len(), pools.wanted.len());
                level(&file.items, seen, pools, cx);
                if d.unit.is_some()
                    && before != (cx.warnings.len(), pools.wanted.len())
                    && let Some(again) = &mut cx.again
                {
                    again.unclean.insert(first(d).to_vec());
                }
            }
            Some(file) if d.name.text == b"state" => {
                directive(d, seen, pools, cx);
                level(&file.items, seen, pools, cx);
            }
            inner => {
                directive(d, seen, pools, cx);
                if let Some(inner) = inner.as_ref().filter(|_| d.row.is_some()) {
                    tree(inner, pools, cx);
                }
            }
        }
    }
}

/// Checks one directive.
fn directive<'t>(d: &'t Directive, seen: &mut Seen<'t>, pools: &mut Pools, cx: &mut Build<'_>) {
    if d.row.is_none() {
        return;
    }
    let name = d.name.text.as_slice();
    if takes_set(name) {
        twice(d, seen.entry(name).or_default(), "value", cx);
    } else if name.ends_with(b"_types") {
        // `text/html` is always among them.
        let known = seen.entry(name).or_insert_with(|| vec![b"text/html".to_vec()]);
        twice(d, known, "MIME type", cx);
    }
    if name == b"thread_pool" {
        let added = pools.add(d, cx);
        cx.keep(added);
    } else if name == b"aio" {
        pools.want(d, cx);
    } else if name.ends_with(b"send_lowat") {
        // A socket option of BSD.
        cx.warn(d, format!("\"{}\" is not supported, ignored", d.name.as_str()));
    }
}

/// Returns `true` if a directive is one of [`SETS`].
fn takes_set(name: &[u8]) -> bool {
    SETS.iter().any(|s| {
        let of_family = |rest: &[u8]| rest.is_empty() || rest.ends_with(b"_") || s.starts_with('_');
        name.strip_suffix(s.as_bytes()).is_some_and(of_family)
    })
}

/// Warns of words that a directive, or one of the same name before it, has given already. Case does not count.
fn twice(d: &Directive, known: &mut Vec<Vec<u8>>, what: &str, cx: &mut Build<'_>) {
    for w in &d.args {
        let text = w.text.to_ascii_lowercase();
        if known.iter().any(|k| k == b"*") {
            return;
        }
        if known.contains(&text) {
            // The message has types in lower case, as nginx's.
            let shown = if what == "value" { w.as_str() } else { String::from_utf8_lossy(&text) };
            cx.warn(d, format!("duplicate {what} \"{shown}\""));
        } else {
            known.push(text);
        }
    }
}
