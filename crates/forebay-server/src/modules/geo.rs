//! `geo` (nginx: ngx_http_geo_module). Hot path: a lookup is a binary search in one sorted array.

use crate::config::Scope;
use crate::modules::map::variable_name;
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_core::limit::cidr::Cidr;
use forebay_core::vars::{Address, Computed, Geo, Names, Segments, Value};
use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// A block under construction.
#[derive(Default)]
struct Build {
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
pub fn block(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let (source, name) = match d.args.as_slice() {
        [name] => (Address::Client, name),
        [source, name] => (Address::Var(cx.vars.reference(variable_name(d, source, cx)?)), name),
        _ => return Err(cx.error(d, "invalid number of arguments in \"geo\" directive")),
    };
    let name = variable_name(d, name, cx)?;
    cx.vars.define_stored(name).map_err(|m| cx.error(d, m))?;
    let mut b = Build::default();
    for entry in d.block.iter().flatten() {
        b.entry(entry, cx)?;
    }
    cx.vars.define_computed(name, Computed::Geo(Arc::new(b.finish(source)))).map_err(|m| cx.error(d, m))?;
    Ok(())
}

fn text(w: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(w)
}

impl Build {
    fn entry(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
        match (d.name.text.as_slice(), d.args.as_slice()) {
            (b"ranges", []) => {
                if !self.ranges && self.begun {
                    let message = "the \"ranges\" directive must be the first directive inside \"geo\" block";
                    return Err(cx.error(d, message));
                }
                self.ranges = true;
            }
            (b"proxy_recursive", []) => self.recursive = true,
            (b"volatile", []) => self.volatile = true,
            (b"proxy", [net]) => {
                let net = network(&net.text, d, cx)?;
                self.proxies.push(net);
            }
            (name, [value]) => {
                self.begun = true;
                if self.ranges { self.range(name, value, d, cx)? } else { self.net(name, value, d, cx)? }
            }
            _ => return Err(cx.error(d, "invalid number of the geo parameters")),
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

    fn net(&mut self, name: &[u8], value: &Word, d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
        let (net, delete) = match name {
            b"delete" => (network(&value.text, d, cx)?, true),
            b"default" => (Cidr::Unix, false),
            name => (network(name, d, cx)?, false),
        };
        if delete {
            let gone = match net {
                Cidr::V4(a, n) => self.v4.remove(&(a, n)),
                Cidr::V6(a, n) => self.v6.remove(&(a, n)),
                Cidr::Unix => None,
            };
            if gone.is_none() {
                cx.warn(d, format!("no network \"{}\" to delete", value.as_str()));
            }
            return Ok(());
        }
        let v = self.value(&value.text);
        // `default` is 0.0.0.0/0 and ::/0.
        let (v4, v6) = match net {
            Cidr::V4(a, n) => (Some((a, n)), None),
            Cidr::V6(a, n) => (None, Some((a, n))),
            Cidr::Unix => (Some((0, 0)), Some((0, 0))),
        };
        let old = [v4.and_then(|k| self.v4.insert(k, v)), v6.and_then(|k| self.v6.insert(k, v))];
        for old in old.into_iter().flatten() {
            cx.warn(d, format!("duplicate network \"{}\", {}", text(name), self.new_and_old(v, old)));
        }
        Ok(())
    }

    fn range(&mut self, name: &[u8], value: &Word, d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
        if name == b"default" {
            let v = self.value(&value.text);
            if let Some(old) = self.default.replace(v) {
                cx.warn(d, format!("duplicate default geo range {}", self.new_and_old(v, old)));
            }
            return Ok(());
        }
        let (what, delete) = if name == b"delete" { (value.text.as_slice(), true) } else { (name, false) };
        let Some((start, end)) = span(what) else {
            return Err(cx.error(d, format!("invalid range \"{}\"", text(what))));
        };
        let v = if delete { 0 } else { self.value(&value.text) };
        let mut missing = false;
        // nginx keeps ranges in blocks of 65536 addresses and reports duplicates and overlaps for each block. Split
        // ranges likewise for the same messages.
        for block in (start >> 16)..=(end >> 16) {
            let (a, b) = (start.max(block << 16), end.min(block << 16 | 0xffff));
            if delete {
                match self.spans.get(&a) {
                    Some((e, _)) if *e == b => drop(self.spans.remove(&a)),
                    _ => missing = true,
                }
            } else {
                self.insert(a, b, v, name, d, cx)?;
            }
        }
        if missing {
            cx.warn(d, format!("no address range \"{}\" to delete", text(what)));
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
        cx: &mut Scope<'_>,
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

    fn finish(self, source: Address) -> Geo {
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

/// Reads a network. Warns if it has address bits beyond its prefix.
fn network(name: &[u8], d: &Directive, cx: &mut Scope<'_>) -> Result<Cidr, Error> {
    if name == b"255.255.255.255" {
        return Ok(Cidr::V4(u32::MAX, 32));
    }
    let Some((net, low_bits)) = Cidr::parse(name) else {
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

#[cfg(test)]
mod tests {
    use crate::testing;
    use forebay_net::addr::Peer;

    fn values(conf: &str, cases: &[(&str, &str)]) {
        let mut req = testing::request(conf, "");
        for (addr, want) in cases {
            testing::again(&mut req, &format!("a={addr}"));
            assert_eq!(testing::value(&mut req, "x").as_deref(), Some(*want), "{addr}");
        }
    }

    #[test]
    fn networks() {
        let conf = "geo $arg_a $x { default d; 10.0.0.0/8 ten; 10.1.0.0/16 sixteen; 10.1.2.3 host; 10.1.0.0/24 low;
            192.0.2.0/24 doc; delete 192.0.2.0/24; 2001:db8::/32 six; 2001:db8::1 one; 255.255.255.255 none; }";
        values(
            conf,
            &[
                ("10.9.9.9", "ten"),
                ("10.0.0.0", "ten"),
                ("10.255.255.255", "ten"),
                ("10.1.0.0", "low"),
                ("10.1.0.255", "low"),
                ("10.1.1.0", "sixteen"),
                ("10.1.2.3", "host"),
                ("10.1.2.4", "sixteen"),
                ("10.2.0.0", "ten"),
                ("11.0.0.0", "d"),
                ("9.255.255.255", "d"),
                ("192.0.2.1", "d"),
                ("2001:db8::1", "one"),
                ("2001:db8::2", "six"),
                ("2001:db9::", "d"),
                ("::ffff:10.1.2.3", "host"),
                ("junk", "none"),
            ],
        );
        values("geo $arg_a $x { 10.0.0.0/8 ten; }", &[("10.0.0.1", "ten"), ("1.1.1.1", ""), ("::1", "")]);
    }

    #[test]
    fn ranges() {
        let conf = "geo $arg_a $x { ranges; default d; 10.0.0.0-10.1.0.255 a; 10.0.0.10-10.0.0.20 b; 10.0.255.0-10.1.0.10 c;
            1.0.0.0-1.0.0.255 gone; delete 1.0.0.0-1.0.0.255; }";
        values(
            conf,
            &[
                ("10.0.0.9", "a"),
                ("10.0.0.10", "b"),
                ("10.0.0.20", "b"),
                ("10.0.0.21", "a"),
                ("10.1.0.10", "c"),
                ("10.1.0.11", "a"),
                ("10.1.1.0", "d"),
                ("9.255.255.255", "d"),
                ("1.0.0.1", "d"),
                ("::1", "d"),
            ],
        );
    }

    #[test]
    fn proxies() {
        let conf = "geo $x { default d; proxy 127.0.0.1; proxy 192.0.2.0/24; 1.1.1.1 one; 192.0.2.7 proxy; }
            geo $r { proxy_recursive; proxy 127.0.0.1; proxy 192.0.2.0/24; 1.1.1.1 one; }";
        let mut req = testing::request(conf, "");
        req.peer = Peer::Inet(([127, 0, 0, 1], 1).into());
        testing::head(&mut req, "X-Forwarded-For: 1.1.1.1, 192.0.2.7\n");
        assert_eq!(testing::value(&mut req, "x").as_deref(), Some("proxy"));
        assert_eq!(testing::value(&mut req, "r").as_deref(), Some("one"));
    }

    #[test]
    fn complaints() {
        for (conf, want) in [
            ("geo $x { 10.0.0.0/33 1; }", "invalid network \"10.0.0.0/33\""),
            ("geo $x { 255.255.255.255/32 1; }", "invalid network \"255.255.255.255/32\""),
            ("geo $x { ranges; 10.0.0.20-10.0.0.2 1; }", "invalid range \"10.0.0.20-10.0.0.2\""),
            (
                "geo $x { ranges; 10.0.0.10-10.0.0.20 2; 10.0.0.1-10.0.0.15 1; }",
                "range \"10.0.0.1-10.0.0.15\" overlaps \"10.0.0.10-10.0.0.20\"",
            ),
            (
                "geo $x { default 1; ranges; }",
                "the \"ranges\" directive must be the first directive inside \"geo\" block",
            ),
            (
                "geo $x { ranges; 255.255.255.0-255.255.255.255 1; }",
                "invalid range \"255.255.255.0-255.255.255.255\"",
            ),
            ("geo $x { foo; }", "invalid number of the geo parameters"),
        ] {
            assert_eq!(testing::error(conf).as_deref(), Some(want), "{conf}");
        }
        let two = "duplicate network \"default\", value: \"2\", old value: \"1\"";
        for (conf, want) in [
            ("geo $x { default 1; default 2; }", vec![two, two]),
            (
                "geo $x { ranges; default 1; default 2; }",
                vec!["duplicate default geo range value: \"2\", old value: \"1\""],
            ),
            ("geo $x { 10.0.0.1/8 1; }", vec!["low address bits of 10.0.0.1/8 are meaningless"]),
            ("geo $x { delete 10.0.0.0/8; }", vec!["no network \"10.0.0.0/8\" to delete"]),
            (
                "geo $x { ranges; 10.0.0.0-10.0.0.255 1; 10.0.0.0-10.0.0.255 2; }",
                vec!["duplicate range \"10.0.0.0-10.0.0.255\", value: \"2\", old value: \"1\""],
            ),
        ] {
            assert_eq!(testing::warnings(conf), want, "{conf}");
        }
    }
}
