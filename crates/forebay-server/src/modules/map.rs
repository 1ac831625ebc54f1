//! `map` (nginx: ngx_http_map_module). Hot path: a constant key is one hash lookup.

use crate::config::Scope;
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_core::vars::{Computed, Map, Names};
use std::sync::Arc;

/// Returns the name of the variable that a block defines, without its `$`.
///
/// # Errors
/// `invalid variable name "x"`.
pub fn variable_name<'w>(d: &Directive, w: &'w Word, cx: &Scope<'_>) -> Result<&'w [u8], Error> {
    match w.text.as_slice() {
        [b'$', name @ ..] if !name.is_empty() => Ok(name),
        _ => Err(cx.error_at(d, w, format!("invalid variable name \"{}\"", w.as_str()))),
    }
}

/// Reads a `map` block.
///
/// # Errors
/// In nginx's words.
pub fn block(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let [source, name] = d.args.as_slice() else {
        return Err(cx.error(d, "invalid number of arguments in \"map\" directive"));
    };
    let mut map = Map::new(cx.template(d, source)?);
    let name = variable_name(d, name, cx)?;
    cx.vars.define_stored(name).map_err(|m| cx.error(d, m))?;
    for line in d.block.iter().flatten() {
        entry(&mut map, line, cx)?;
    }
    cx.vars.define_computed(name, Computed::Map(Arc::new(map))).map_err(|m| cx.error(d, m))?;
    Ok(())
}

fn entry(map: &mut Map, d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let value = match (d.name.text.as_slice(), d.args.as_slice()) {
        (b"hostnames", []) => {
            map.hostnames = true;
            return Ok(());
        }
        (b"volatile", []) => {
            map.volatile = true;
            return Ok(());
        }
        (_, [value]) => value,
        _ => return Err(cx.error(d, "invalid number of the map parameters")),
    };
    let value = cx.template(d, value)?;
    let index = map.value(value);
    match d.name.text.as_slice() {
        b"default" => {
            if map.default.is_some() {
                return Err(cx.error(d, "duplicate default map parameter"));
            }
            map.default = Some(index);
        }
        [b'~', b'*', re @ ..] => map.regexes.push((cx.pattern(d, re, true)?, index)),
        [b'~', re @ ..] => map.regexes.push((cx.pattern(d, re, false)?, index)),
        key => {
            let key = key.strip_prefix(b"\\").unwrap_or(key).to_ascii_lowercase();
            let added =
                if map.hostnames { map.table.add_host(&key, index) } else { map.table.add(&key, index) };
            added.map_err(|refused| cx.error(d, refused.message(&key)))?;
        }
    }
    Ok(())
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
