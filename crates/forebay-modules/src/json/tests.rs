use super::document::{Invalid, read};
use super::path::{Paths, Step, parse};

/// Returns what a path finds in a document; `Err` if it is no document.
fn find(path: &str, text: &[u8]) -> Result<Option<Vec<u8>>, Invalid> {
    let mut paths = Paths::default();
    // Another path beside it must not change what it finds.
    paths.add(&parse(b"other.path[1]").expect("a path"));
    paths.add(&parse(path.as_bytes()).expect("a path"));
    let found = read(text, &paths, 4)?;
    Ok(found[1].as_ref().map(|value| {
        let mut out = Vec::new();
        value.push(text, &mut out);
        out
    }))
}

fn text(path: &str, document: &str) -> Option<String> {
    let found = find(path, document.as_bytes()).unwrap_or_else(|Invalid| panic!("{document}"));
    found.map(|v| String::from_utf8(v).expect("UTF-8"))
}

#[test]
fn values_of_paths() {
    let whole = r#" { "a" : { "b" : [ 1 , {"c": "d\"\u00e9\n"} , [ ] ] , "": 5 } , "n":-1.50e+3,"t":true,"f":false,"z":null, "x.y":6, "s":"" } "#;
    for (path, wanted) in [
        ("a.b[0]", Some("1")),
        ("a.b[1].c", Some("d\"é\n")),
        ("a.b[1]", Some(r#"{"c": "d\"\u00e9\n"}"#)),
        ("a.b[2]", Some("[ ]")),
        ("a.b[3]", None),
        ("a.b", Some(r#"[ 1 , {"c": "d\"\u00e9\n"} , [ ] ]"#)),
        ("a[\"\"]", Some("5")),
        ("n", Some("-1.50e+3")),
        ("t", Some("true")),
        ("f", Some("false")),
        ("z", Some("null")),
        ("s", Some("")),
        ("[\"x.y\"]", Some("6")),
        ("$[\"x.y\"]", Some("6")),
        ("x.y", None),
        ("a[0]", None),
        ("a.b.c", None),
        ("n.m", None),
        ("A", None),
        ("$", Some(whole.trim())),
        ("$.a.b[0]", Some("1")),
    ] {
        assert_eq!(text(path, whole).as_deref(), wanted, "{path}");
    }
    assert_eq!(text("$", "\"a\\/b\"").as_deref(), Some("a/b"));
    assert_eq!(text("$[1][0]", "[0,[7]]").as_deref(), Some("7"));
}

/// As in most programs behind a proxy the last member counts, with all that is in it.
#[test]
fn members_of_one_name() {
    assert_eq!(text("a", r#"{"a":1,"a":2}"#).as_deref(), Some("2"));
    assert_eq!(text("a", r#"{"a":1,"\u0061":2}"#).as_deref(), Some("2"));
    assert_eq!(text("a.b", r#"{"a":{"b":1},"a":{"c":2}}"#), None);
    assert_eq!(text("a.b", r#"{"a":{"b":1,"b":3},"a":{"b":2}}"#).as_deref(), Some("2"));
}

#[test]
fn characters() {
    for (document, wanted) in [
        (r#"{"a":"\ud83d\ude00"}"#, "😀"),
        (r#"{"a":"\ud83d"}"#, "\u{fffd}"),
        (r#"{"a":"\ude00\ud83d"}"#, "\u{fffd}\u{fffd}"),
        (r#"{"a":"\ud83dx"}"#, "\u{fffd}x"),
        (r#"{"a":"\ud83d\u0041"}"#, "\u{fffd}A"),
        (r#"{"a":"\u0000\b\f\t\r"}"#, "\0\x08\x0c\t\r"),
    ] {
        assert_eq!(text("a", document).as_deref(), Some(wanted), "{document}");
    }
    assert_eq!(find("a", b"{\"a\":\"\xff\",\"b\":1}"), Ok(Some(b"\xff".to_vec())));
    assert_eq!(text(r#"["\ud83d\ude00"]"#, r#"{"😀":1}"#).as_deref(), Some("1"));
    assert_eq!(text(r#"["a\\\"\t"]"#, r#"{"a\\\"\u0009":1}"#).as_deref(), Some("1"));
}

#[test]
fn texts_that_are_no_documents() {
    for document in [
        "",
        " ",
        "{",
        "[",
        "\"",
        "{}x",
        "{} {}",
        "[1,]",
        "{\"a\":1,}",
        "{,}",
        "[,]",
        "{\"a\"}",
        "{a:1}",
        "{'a':1}",
        "01",
        "-",
        "1.",
        ".5",
        "+1",
        "1e",
        "0x1",
        "tru",
        "True",
        "NaN",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\\u12\"",
        "\"a\nb\"",
        "\"\0\"",
        "[1 2]",
        "{\"a\" 1}",
        "\u{feff}{}",
        "// a\n1",
        "[1]]",
        "nul",
        "{\"a\":}",
    ] {
        assert_eq!(find("a", document.as_bytes()), Err(Invalid), "{document}");
    }
}

#[test]
fn depth() {
    assert!(find("a", b"[[[[]]]]").is_ok());
    assert_eq!(find("a", b"[[[[[]]]]]"), Err(Invalid));
    assert_eq!(find("a", b"[[[[{}]]]]"), Err(Invalid));
    assert!(find("a", b"[[[[1]]],[[[2]]]]").is_ok());
    let hostile = vec![b'['; 1_000_000];
    assert_eq!(find("a", &hostile), Err(Invalid));
}

/// Each beginning of a document is read without a panic, and no beginning is a document.
#[test]
fn documents_that_are_cut() {
    let document = r#"{"a":[1.5e-3,true,"x\u0041"],"b":{"c":null}}"#.as_bytes();
    for end in 0..document.len() {
        assert_eq!(find("a", &document[..end]), Err(Invalid), "{end}");
    }
}

/// Bytes that a change puts into a document.
const CHANGES: &[u8] = br#"{}[]",:\ 019.-+etfn"#;

/// Documents with random changes are documents for us as they are for serde_json, which knows fewer escapes and numbers.
#[test]
fn changed_documents() {
    let seeds: [&[u8]; 3] = [
        br#"{"a":{"b":[1,-0.5,10e2,"x\"y"]},"a":null,"":[{}]}"#,
        br#"[[1,{"":true}],false," \\ ",{"a" : 0 , "b":[ ]}]"#,
        b"{\"key\":\"\xc3\xa9\",\n\t\"k\":[[[0]]]}",
    ];
    let mut seed = 11u32;
    let mut next = |below: usize| {
        seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12345);
        (seed >> 8) as usize % below
    };
    let mut whole = 0;
    for round in 0..30_000 {
        let mut text = seeds[round % seeds.len()].to_vec();
        for _ in 0..next(3) {
            let at = next(text.len());
            let byte = CHANGES[next(CHANGES.len())];
            match next(3) {
                0 => text[at] = byte,
                1 => text.insert(at, byte),
                _ => drop(text.remove(at)),
            }
        }
        let theirs = serde_json::from_slice::<serde_json::Value>(&text).is_ok();
        let ours = find("$", &text).is_ok();
        whole += usize::from(ours);
        let beyond = std::str::from_utf8(&text).map_or(true, |t| t.contains('e') || t.contains("[[[["));
        assert!(ours == theirs || beyond, "{} {ours}", text.escape_ascii());
    }
    assert!(whole > 1_000, "{whole}");
}

#[test]
fn paths() {
    let member = |name: &str| Step::Member(name.as_bytes().into());
    for (path, wanted) in [
        ("$", vec![]),
        ("a", vec![member("a")]),
        ("$a", vec![member("$a")]),
        ("a-b.c d", vec![member("a-b"), member("c d")]),
        ("[3][\"b\"].c", vec![Step::Element(3), member("b"), member("c")]),
        ("a[\"]\"]", vec![member("a"), member("]")]),
    ] {
        assert_eq!(parse(path.as_bytes()), Ok(wanted), "{path}");
    }
    for path in [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a[",
        "a[]",
        "a[x]",
        "a[-1]",
        "a[1",
        "a[1]b",
        "[\"a]",
        "[\"a\"",
        "[\"a\"x]",
        "a]",
        "a\"b",
        "[\"\\x\"]",
        "a[99999999999]",
        "$.",
        "$..a",
        "[\"a\\\"]",
    ] {
        assert!(parse(path.as_bytes()).is_err(), "{path}");
    }
}
