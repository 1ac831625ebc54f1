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
    let conf =
        "geo $arg_a $x { default d; 10.0.0.0/8 ten; 10.1.0.0/16 sixteen; 10.1.2.3 host; 10.1.0.0/24 low;
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
        ("geo $x { unix: 1; }", "invalid network \"unix:\""),
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
