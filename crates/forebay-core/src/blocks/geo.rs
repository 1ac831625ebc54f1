//! `geo` (nginx: ngx_http_geo_module). Hot path: a lookup is a binary search in one sorted array.

use super::map::variable_name;
use crate::config::{Build, Context, Scope};
use crate::limit::cidr::Cidr;
use crate::vars::{AddressSource, Computed, Geo, Names, Segments, Value};
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// Networks and ranges of a block that is being read.
#[derive(Default)]
struct Networks {
    ranges: bool,
    begun: bool,
    proxies: Vec<Cidr>,
    recursive: bool,
    volatile: bool,
    values: Vec<Box<[u8]>>,
    numbers: HashMap<Box<[u8]>, Value>,
    /// Networks by address and length.
    v4: BTreeMap<(u32, u8), Value>,
    v6: BTreeMap<(u128, u8), Value>,
    /// End and value of each range by its start. Ranges do not overlap.
    spans: BTreeMap<u32, (u32, Value)>,
    default: Option<Value>,
}

/// Reads a `geo` block.
///
/// # Errors
/// In nginx's words.
pub fn block<C: Context>(d: &Directive, cx: &mut Scope<'_, C>) -> Result<(), Error> {
    let (source, name) = match d.args.as_slice() {
        [name] => (AddressSource::Client, name),
        [source, name] => (AddressSource::Var(cx.vars.reference(variable_name(d, source, cx)?)), name),
        _ => return Err(cx.error(d, "invalid number of arguments in \"geo\" directive")),
    };
    let name = variable_name(d, name, cx)?;
    cx.vars.define_stored(name).map_err(|m| cx.error(d, m))?;
    let mut b = Networks::default();
    for entry in d.block.iter().flatten() {
        b.entry(entry, cx)?;
    }
    cx.vars.define_computed(name, Computed::Geo(Arc::new(b.finish(source)))).map_err(|m| cx.error(d, m))?;
    Ok(())
}

fn text(w: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(w)
}

/// Error for a line that is no parameter.
const PARAMETERS: &str = "invalid number of the geo parameters";

impl Networks {
    fn entry(&mut self, d: &Directive, cx: &mut Build<'_>) -> Result<(), Error> {
        match (d.name.text.as_slice(), d.args.as_slice()) {
            (name, []) => self.flag(name).map_err(|text| cx.error(d, text)),
            (b"proxy", [net]) => {
                self.proxies.push(network(&net.text, d, cx)?);
                Ok(())
            }
            (name, [value]) => {
                self.begun = true;
                match (self.ranges, name) {
                    (false, b"delete") => self.delete_network(value, d, cx),
                    (false, _) => self.add_network(name, value, d, cx),
                    (true, b"delete") => self.delete_range(value, d, cx),
                    (true, b"default") => {
                        self.set_default(value, d, cx);
                        Ok(())
                    }
                    (true, _) => self.add_range(name, value, d, cx),
                }
            }
            _ => Err(cx.error(d, PARAMETERS)),
        }
    }

    /// Takes a parameter without a value.
    fn flag(&mut self, name: &[u8]) -> Result<(), &'static str> {
        match name {
            b"ranges" if !self.ranges && self.begun => {
                return Err("the \"ranges\" directive must be the first directive inside \"geo\" block");
            }
            b"ranges" => self.ranges = true,
            b"proxy_recursive" => self.recursive = true,
            b"volatile" => self.volatile = true,
            _ => return Err(PARAMETERS),
        }
        Ok(())
    }

    fn value(&mut self, w: &[u8]) -> Value {
        if let Some(n) = self.numbers.get(w) {
            return *n;
        }
        let n = Value::try_from(self.values.len()).unwrap_or(Value::MAX);
        self.values.push(w.into());
        self.numbers.insert(w.into(), n);
        n
    }

    /// Returns `value: "x", old value: "y"` for a warning.
    fn new_and_old(&self, value: Value, old: Value) -> String {
        let of = |v: Value| self.values.get(v as usize).map(|v| text(v)).unwrap_or_default();
        format!("value: \"{}\", old value: \"{}\"", of(value), of(old))
    }

    fn delete_network(&mut self, value: &Word, d: &Directive, cx: &mut Build<'_>) -> Result<(), Error> {
        let gone = match network(&value.text, d, cx)? {
            Cidr::V4(a, n) => self.v4.remove(&(a, n)),
            Cidr::V6(a, n) => self.v6.remove(&(a, n)),
            Cidr::Unix => None,
        };
        if gone.is_none() {
            cx.warn(d, format!("no network \"{}\" to delete", value.as_str()));
        }
        Ok(())
    }

    fn add_network(
        &mut self,
        name: &[u8],
        value: &Word,
        d: &Directive,
        cx: &mut Build<'_>,
    ) -> Result<(), Error> {
        // `default` is 0.0.0.0/0 and ::/0.
        let (v4, v6) = match name {
            b"default" => (Some((0, 0)), Some((0, 0))),
            name => match network(name, d, cx)? {
                Cidr::V4(a, n) => (Some((a, n)), None),
                Cidr::V6(a, n) => (None, Some((a, n))),
                Cidr::Unix => (None, None),
            },
        };
        let v = self.value(&value.text);
        let old = [v4.and_then(|k| self.v4.insert(k, v)), v6.and_then(|k| self.v6.insert(k, v))];
        for old in old.into_iter().flatten() {
            cx.warn(d, format!("duplicate network \"{}\", {}", text(name), self.new_and_old(v, old)));
        }
        Ok(())
    }

    fn set_default(&mut self, value: &Word, d: &Directive, cx: &mut Build<'_>) {
        let v = self.value(&value.text);
        if let Some(old) = self.default.replace(v) {
            cx.warn(d, format!("duplicate default geo range {}", self.new_and_old(v, old)));
        }
    }

    fn delete_range(&mut self, value: &Word, d: &Directive, cx: &mut Build<'_>) -> Result<(), Error> {
        let mut missing = false;
        for (a, b) in pieces(&value.text, d, cx)? {
            match self.spans.get(&a) {
                Some((e, _)) if *e == b => drop(self.spans.remove(&a)),
                _ => missing = true,
            }
        }
        if missing {
            cx.warn(d, format!("no address range \"{}\" to delete", value.as_str()));
        }
        Ok(())
    }

    fn add_range(
        &mut self,
        name: &[u8],
        value: &Word,
        d: &Directive,
        cx: &mut Build<'_>,
    ) -> Result<(), Error> {
        let pieces = pieces(name, d, cx)?;
        let v = self.value(&value.text);
        for (a, b) in pieces {
            self.insert(a, b, v, name, d, cx)?;
        }
        Ok(())
    }

    /// Adds a range within one block. It may be new, equal to another range, or inside another range, which it splits.
    fn insert(
        &mut self,
        a: u32,
        b: u32,
        v: Value,
        name: &[u8],
        d: &Directive,
        cx: &mut Build<'_>,
    ) -> Result<(), Error> {
        let Some((&start, &(end, old))) =
            self.spans.range(..=b).next_back().filter(|(_, (end, _))| *end >= a)
        else {
            self.spans.insert(a, (b, v));
            return Ok(());
        };
        if (start, end) == (a, b) {
            self.spans.insert(a, (b, v));
            cx.warn(d, format!("duplicate range \"{}\", {}", text(name), self.new_and_old(v, old)));
            return Ok(());
        }
        if start <= a && end >= b {
            self.spans.remove(&start);
            if start < a {
                self.spans.insert(start, (a - 1, old));
            }
            self.spans.insert(a, (b, v));
            if end > b {
                self.spans.insert(b + 1, (end, old));
            }
            return Ok(());
        }
        let other = format!("{}-{}", Ipv4Addr::from_bits(start), Ipv4Addr::from_bits(end));
        Err(cx.error(d, format!("range \"{}\" overlaps \"{other}\"", text(name))))
    }

    fn finish(self, source: AddressSource) -> Geo {
        let (v4, v6) = if self.ranges {
            let spans = self.spans.into_iter().map(|(start, (end, v))| (start, end, v));
            (Segments::build(spans, |a| a.checked_add(1)), None)
        } else {
            let host4 = |n: u8| u32::MAX.checked_shr(u32::from(n)).unwrap_or(0);
            let host6 = |n: u8| u128::MAX.checked_shr(u32::from(n)).unwrap_or(0);
            (
                Segments::build(self.v4.into_iter().map(|((a, n), v)| (a, a | host4(n), v)), |a| {
                    a.checked_add(1)
                }),
                Some(Segments::build(self.v6.into_iter().map(|((a, n), v)| (a, a | host6(n), v)), |a| {
                    a.checked_add(1)
                })),
            )
        };
        Geo {
            source,
            proxies: self.proxies,
            recursive: self.recursive,
            volatile: self.volatile,
            v4,
            v6,
            values: self.values,
            default: self.default,
        }
    }
}

/// Reads a range and divides it into blocks of 65536 addresses. nginx keeps ranges in such blocks and reports duplicates and
/// overlaps for each, so the messages are the same.
fn pieces(
    word: &[u8],
    d: &Directive,
    cx: &Build<'_>,
) -> Result<impl Iterator<Item = (u32, u32)> + use<>, Error> {
    let (start, end) = span(word).ok_or_else(|| cx.error(d, format!("invalid range \"{}\"", text(word))))?;
    Ok(((start >> 16)..=(end >> 16))
        .map(move |block| (start.max(block << 16), end.min(block << 16 | 0xffff))))
}

/// Reads a network. Warns if it has address bits beyond its prefix.
fn network(name: &[u8], d: &Directive, cx: &mut Build<'_>) -> Result<Cidr, Error> {
    if name == b"255.255.255.255" {
        return Ok(Cidr::V4(u32::MAX, 32));
    }
    let Some((net, low_bits)) = Cidr::parse(name).filter(|(net, _)| *net != Cidr::Unix) else {
        return Err(cx.error(d, format!("invalid network \"{}\"", text(name))));
    };
    if low_bits {
        cx.warn(d, format!("low address bits of {} are meaningless", text(name)));
    }
    Ok(net)
}

/// Reads a range, `FIRST-LAST`.
fn span(text: &[u8]) -> Option<(u32, u32)> {
    let (a, b) = std::str::from_utf8(text).ok()?.split_once('-')?;
    // nginx treats 255.255.255.255 as an invalid address here.
    let addr = |t: &str| t.parse().ok().filter(|a| *a != Ipv4Addr::BROADCAST).map(Ipv4Addr::to_bits);
    let (a, b) = (addr(a)?, addr(b)?);
    (a <= b).then_some((a, b))
}
