//! `map` (nginx: ngx_http_map_module). Hot path: a constant key is one hash lookup.

use crate::config::scope::Scope;
use crate::config::template::Template;
use crate::host_table::HostTable;
use crate::pattern::{LimitExceeded, Pattern};
use crate::request::{Request, VarError};
use crate::variables::Compute;
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use std::sync::Arc;

/// One `map` block.
#[derive(Debug, Default)]
struct Map {
    source: Template,
    hostnames: bool,
    volatile: bool,
    table: HostTable<u32>,
    regexes: Vec<(Pattern, u32)>,
    values: Vec<Template>,
    default: Option<u32>,
}

/// Name of the variable that a block defines, without its `$`.
///
/// # Errors
/// `invalid variable name "x"`.
pub fn variable_name<'w>(d: &Directive, w: &'w Word, cx: &Scope<'_>) -> Result<&'w [u8], Error> {
    match w.text.as_slice() {
        [b'$', name @ ..] if !name.is_empty() => Ok(name),
        _ => Err(cx.error_at(d, w, format!("invalid variable name \"{}\"", w.as_str()))),
    }
}

/// Reads a block.
///
/// # Errors
/// In nginx's words.
pub fn block(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let [source, name] = d.args.as_slice() else {
        return Err(cx.error(d, "invalid number of arguments in \"map\" directive"));
    };
    let mut map = Map { source: cx.template(d, source)?, ..Map::default() };
    let name = variable_name(d, name, cx)?;
    cx.vars.define_stored(name).map_err(|m| cx.error(d, m))?;
    for entry in d.block.iter().flatten() {
        map.entry(entry, cx)?;
    }
    cx.vars.define_computed(name, Arc::new(map)).map_err(|m| cx.error(d, m))?;
    Ok(())
}

impl Map {
    fn entry(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
        let value = match (d.name.text.as_slice(), d.args.as_slice()) {
            (b"hostnames", []) => {
                self.hostnames = true;
                return Ok(());
            }
            (b"volatile", []) => {
                self.volatile = true;
                return Ok(());
            }
            (_, [value]) => value,
            _ => return Err(cx.error(d, "invalid number of the map parameters")),
        };
        let value = cx.template(d, value)?;
        let index = self.value(value);
        match d.name.text.as_slice() {
            b"default" => {
                if self.default.is_some() {
                    return Err(cx.error(d, "duplicate default map parameter"));
                }
                self.default = Some(index);
            }
            [b'~', b'*', re @ ..] => self.regexes.push((cx.pattern(d, re, true)?, index)),
            [b'~', re @ ..] => self.regexes.push((cx.pattern(d, re, false)?, index)),
            key => {
                let key = key.strip_prefix(b"\\").unwrap_or(key).to_ascii_lowercase();
                let added = if self.hostnames {
                    self.table.add_host(&key, index)
                } else {
                    self.table.add(&key, index)
                };
                added.map_err(|refused| cx.error(d, refused.message(&key)))?;
            }
        }
        Ok(())
    }

    /// Number of a value; equal ones share it, as large maps have few different ones.
    fn value(&mut self, value: Template) -> u32 {
        // Looking back a little finds most repetitions without a second table.
        let recent = self.values.iter().rev().take(16).position(|v| *v == value);
        let at = match recent {
            Some(back) => self.values.len() - 1 - back,
            None => {
                self.values.push(value);
                self.values.len() - 1
            }
        };
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// Finds the number of the value for a text; a pattern that exceeds its limits is an error.
    fn find(&self, req: &mut Request, text: &[u8]) -> Result<Option<u32>, LimitExceeded> {
        let host = match text {
            [host @ .., b'.'] if self.hostnames => host,
            text => text,
        };
        if !self.table.is_empty() {
            let mut lower = req.take_buf();
            lower.extend(host.iter().map(u8::to_ascii_lowercase));
            let found = self.table.find(&lower).copied();
            req.give_buf(lower);
            if found.is_some() {
                return Ok(found);
            }
        }
        // As in nginx no pattern is tried on an empty value.
        if host.is_empty() {
            return Ok(self.default);
        }
        for (pattern, value) in &self.regexes {
            if pattern.exec(req, host)? {
                return Ok(Some(*value));
            }
        }
        Ok(self.default)
    }
}

impl Compute for Map {
    fn compute(&self, req: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
        let mut text = req.take_buf();
        self.source.eval(req, &mut text)?;
        let found = self.find(req, &text);
        req.give_buf(text);
        if let Some(value) = found?.and_then(|i| self.values.get(i as usize)) {
            value.eval(req, out)?;
        }
        Ok(true)
    }

    fn volatile(&self) -> bool {
        self.volatile
    }
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn lookups() {
        let conf = r#"
            map $arg_a $x { default d; a 1; B 2; ~^c(.) "re $1"; ~*^D(?<named>.*)$ "$named-$arg_a"; \~lit lit; "" empty; }
            map $arg_a$arg_b $two { ab both; volatile; }
            map $arg_a $h { hostnames; *.example.org head; .dot.net dot; www.* tail; ~^x re; }
        "#;
        let mut req = testing::request(conf, "");
        let cases = [
            ("a=a", "x", "1"),
            ("a=A", "x", "1"),
            ("a=b", "x", "2"),
            ("a=cz", "x", "re z"),
            ("a=Cz", "x", "d"),
            ("a=dEf", "x", "Ef-dEf"),
            ("a=~lit", "x", "lit"),
            ("", "x", "empty"),
            ("a=other", "x", "d"),
            ("a=a&b=b", "two", "both"),
            ("a=a", "two", ""),
            ("a=Foo.Example.Org.", "h", "head"),
            ("a=dot.net", "h", "dot"),
            ("a=www.x.y", "h", "tail"),
            ("a=xyz", "h", "re"),
        ];
        for (args, var, want) in cases {
            testing::again(&mut req, args);
            assert_eq!(testing::value(&mut req, var).as_deref(), Some(want), "{args}");
        }
    }

    #[test]
    fn patterns_are_not_tried_on_an_empty_value() {
        let conf = "map $arg_a $x { default d; ~.* re; } map $arg_a $h { hostnames; default d; ~.* re; } \
                    map $arg_a $none { ~^$ re; }";
        let mut req = testing::request(conf, "");
        for (args, x, h, none) in [("", "d", "d", ""), ("a=", "d", "d", ""), ("a=.", "re", "d", "")] {
            testing::again(&mut req, args);
            for (name, want) in [("x", x), ("h", h), ("none", none)] {
                assert_eq!(testing::value(&mut req, name).as_deref(), Some(want), "{args} {name}");
            }
        }
    }

    #[test]
    fn cached_unless_volatile() {
        let mut req = testing::request(
            "map $arg_a $c { a 1; default 2; } map $arg_a $v { volatile; a 1; default 2; }",
            "a=a",
        );
        assert_eq!(testing::value(&mut req, "c").as_deref(), Some("1"));
        assert_eq!(testing::value(&mut req, "v").as_deref(), Some("1"));
        req.args = b"a=b".to_vec();
        assert_eq!(testing::value(&mut req, "c").as_deref(), Some("1"));
        assert_eq!(testing::value(&mut req, "v").as_deref(), Some("2"));
    }

    #[test]
    fn circles_end() {
        let mut req = testing::request("map $a $b { default $a; } map $b $a { default $b; }", "");
        let id = testing::id(&req, "a");
        assert!(req.var(id, &mut Vec::new()).is_err());
    }

    #[test]
    fn errors() {
        for (conf, want) in [
            ("map $uri x { a b; }", "invalid variable name \"x\""),
            ("map $uri $ { a b; }", "invalid variable name \"$\""),
            ("map $uri $x { a b; A c; }", "conflicting parameter \"a\""),
            ("map $uri $x { default b; default c; }", "duplicate default map parameter"),
            ("map $uri $x { a b c; }", "invalid number of the map parameters"),
            ("map $uri $x { hostnames; .a.com 1; a.com 2; }", "conflicting parameter \"a.com\""),
            ("map $uri $x { hostnames; a.*.c 1; }", "invalid hostname or wildcard \"a.*.c\""),
            ("map $uri $uri { a b; }", "the duplicate \"uri\" variable"),
            ("map $nope $x { a b; }", "unknown \"nope\" variable"),
        ] {
            assert_eq!(testing::error(conf).as_deref(), Some(want), "{conf}");
        }
    }
}
