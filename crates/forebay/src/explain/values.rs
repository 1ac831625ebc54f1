//! Values of variables of a session that is only described: those that its description has, and what `set`, `map`, `num_map` and
//! `geo` make of them.

use forebay_conf::tree::{Block, Directive};
use forebay_core::blocks::num_map;
use forebay_core::limit::cidr::Cidr;
use forebay_core::pattern::Pattern;
use forebay_core::vars::{HostTable, Names, VarId};
use forebay_doctor::variables::named;
use forebay_net::addr::Peer;

/// Most definitions that are followed for one value.
const DEPTH: u32 = 16;

/// Known values, and the definitions of others.
pub(super) struct Values<'t> {
    /// Names and values.
    pub known: Vec<(&'static str, String)>,
    /// The stream block.
    pub stream: &'t Block,
    /// The server of the session.
    pub server: &'t Block,
}

/// A directive that chose a value, and the value.
pub(super) struct Choice<'t> {
    /// Entry of a table, as it is written.
    pub entry: &'t Directive,
    /// Its table.
    pub table: &'t Directive,
}

impl<'t> Values<'t> {
    /// Returns a text with the values of its variables, and adds the choices that were made. `None` if a value is not known.
    pub(super) fn expand(&self, text: &str, choices: &mut Vec<Choice<'t>>) -> Option<String> {
        self.expand_within(text, choices, DEPTH)
    }

    fn expand_within(&self, text: &str, choices: &mut Vec<Choice<'t>>, depth: u32) -> Option<String> {
        let depth = depth.checked_sub(1)?;
        let mut out = String::new();
        let mut rest = 0;
        for (at, name) in named(text) {
            out.push_str(text.get(rest..at)?);
            out.push_str(&self.value(name, choices, depth)?);
            let braces = text.get(at + 1..)?.starts_with('{');
            rest = at + 1 + name.len() + if braces { 2 } else { 0 };
        }
        out.push_str(text.get(rest..)?);
        Some(out)
    }

    fn value(&self, name: &str, choices: &mut Vec<Choice<'t>>, depth: u32) -> Option<String> {
        if let Some((_, value)) = self.known.iter().find(|(known, _)| *known == name) {
            return Some(value.clone());
        }
        let is_named = |d: &&Directive, at: usize| arg(d, at).strip_prefix('$') == Some(name);
        let set = self.server.iter().filter(|d| d.name.text == b"set" && is_named(d, 0)).last();
        if let Some(set) = set {
            return self.expand_within(&arg(set, 1), choices, depth);
        }
        let mut tables = self.stream.iter().filter(|d| is_named(d, d.args.len().saturating_sub(1)));
        let table = tables.find(|d| matches!(d.name.text.as_slice(), b"map" | b"num_map" | b"geo"))?;
        let source = if table.args.len() > 1 { arg(table, 0) } else { "$remote_addr".to_owned() };
        let source = self.expand_within(&source, choices, depth)?;
        let entry = match table.name.text.as_slice() {
            b"map" => entry_of_map(table, &source),
            b"num_map" => entry_of_num_map(table, &source),
            _ => entry_of_geo(table, &source),
        }?;
        choices.push(Choice { entry, table });
        self.expand_within(&arg(entry, 0), choices, depth)
    }
}

/// Returns an argument as text; empty if there is none.
pub(super) fn arg(d: &Directive, at: usize) -> String {
    d.args.get(at).map(|w| w.as_str().into_owned()).unwrap_or_default()
}

/// Finds the entry of a `map` for a value. `None` if there is none, or if the value is not known from here.
fn entry_of_map<'t>(map: &'t Directive, value: &str) -> Option<&'t Directive> {
    let lines: Vec<&Directive> = map.block.iter().flat_map(|b| b.iter()).collect();
    // Its entries are in another file.
    if lines.iter().any(|d| d.name.text == b"include") {
        return None;
    }
    let hostnames = lines.iter().any(|d| d.name.text == b"hostnames" && d.args.is_empty());
    let entries = lines.iter().enumerate().filter(|(_, d)| !d.args.is_empty());
    let mut table = HostTable::default();
    let is_name = |d: &Directive| d.name.text != b"default" && !d.name.text.starts_with(b"~");
    for (n, d) in entries.filter(|(_, d)| is_name(d)) {
        let key = d.name.text.to_ascii_lowercase();
        let key = key.strip_prefix(b"\\").unwrap_or(&key);
        // The configuration has been checked.
        let _ = if hostnames { table.add_host(key, n) } else { table.add(key, n) };
    }
    let pattern = |d: &&Directive| matches_pattern(&d.name.text, value).unwrap_or(false);
    let exact = table.find(value.to_ascii_lowercase().as_bytes()).and_then(|n| lines.get(*n).copied());
    let default = || lines.iter().copied().find(|d| d.name.text == b"default");
    exact.or_else(|| lines.iter().copied().find(pattern)).or_else(default)
}

/// Finds the entry of a `num_map` for a value: a single number before ranges.
fn entry_of_num_map<'t>(map: &'t Directive, value: &str) -> Option<&'t Directive> {
    let lines: Vec<&Directive> = map.block.iter().flat_map(|b| b.iter()).collect();
    if lines.iter().any(|d| d.name.text == b"include") {
        return None;
    }
    let number = num_map::number(value.as_bytes());
    let has = |d: &&&Directive, single: bool| {
        let range = num_map::range(&d.name.text).filter(|r| (r.start() == r.end()) == single);
        range.is_some_and(|range| number.is_some_and(|n| range.contains(&n)))
    };
    let single = lines.iter().find(|d| has(d, true));
    let entry = single.or_else(|| lines.iter().find(|d| has(d, false)));
    entry.or_else(|| lines.iter().find(|d| d.name.text == b"default")).copied()
}

/// Returns whether a value matches a key of the form `~PATTERN` or `~*PATTERN`; `None` for other keys.
fn matches_pattern(key: &[u8], value: &str) -> Option<bool> {
    let pattern = key.strip_prefix(b"~")?;
    let (pattern, caseless) = pattern.strip_prefix(b"*").map_or((pattern, false), |p| (p, true));
    Pattern::compile(pattern, caseless, &mut Nameless).ok()?.is_match(value.as_bytes()).ok()
}

/// Finds the entry of a `geo` for an address: the smallest network that contains it.
fn entry_of_geo<'t>(geo: &'t Directive, address: &str) -> Option<&'t Directive> {
    let lines: Vec<&Directive> = geo.block.iter().flat_map(|b| b.iter()).collect();
    let is_foreign =
        |d: &&Directive| matches!(d.name.text.as_slice(), b"include" | b"ranges" | b"delete" | b"proxy");
    if lines.iter().any(is_foreign) {
        return None;
    }
    let peer = Peer::Inet((address.parse::<std::net::IpAddr>().ok()?, 0).into());
    let bits = |cidr: Cidr| match cidr {
        Cidr::V4(_, bits) | Cidr::V6(_, bits) => bits,
        Cidr::Unix => 0,
    };
    let network =
        |d: &&Directive| Cidr::parse(&d.name.text).map(|(cidr, _)| cidr).filter(|c| c.contains(peer));
    let entries = lines.iter().copied().filter_map(|d| Some((bits(network(&d)?), d)));
    let smallest = entries.max_by_key(|(bits, _)| *bits).map(|(_, d)| d);
    smallest.or_else(|| lines.iter().copied().find(|d| d.name.text == b"default"))
}

/// Takes the names in a pattern, whose values nothing uses.
struct Nameless;

impl Names for Nameless {
    fn reference(&mut self, _: &[u8]) -> VarId {
        VarId(0)
    }

    fn define_stored(&mut self, _: &[u8]) -> Result<VarId, String> {
        Ok(VarId(0))
    }
}
