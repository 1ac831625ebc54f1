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
    req.uri.args = b"a=b".to_vec();
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
