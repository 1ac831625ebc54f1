use super::*;

fn words(src: &[u8]) -> Vec<Vec<u8>> {
    let mut lexer = Lexer::new(src, FileId(0));
    match lexer.next() {
        Item::Simple(words, _) | Item::Open(words, _) => words.into_iter().map(|w| w.text).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_word() {
    // As nginx printed them back in an error text.
    for (written, read) in [
        (r"a\ b", r"a\ b"),
        (r"a\;b", r"a\;b"),
        (r#"a\"b"#, "a\"b"),
        (r"a\'b", "a'b"),
        (r"a\\b", r"a\b"),
        (r"a\tb", "a\tb"),
        (r"a\nb", "a\nb"),
        (r"a\rb", "a\rb"),
        (r"a\xb", r"a\xb"),
        (r#""a\tb""#, "a\tb"),
        (r#""a\"b""#, "a\"b"),
        (r#""a b{};""#, "a b{};"),
        ("$${", "$${"),
        ("${a}", "${a}"),
        ("${{a", "${{a"),
        (r"a\{b", r"a\{b"),
        (r#"\"ab"#, "\"ab"),
        ("a}b", "a}b"),
        ("$", "$"),
        ("${", "${"),
        (r"\{", r"\{"),
        (r"\;", r"\;"),
        ("\"a\nb\"", "a\nb"),
        ("a\x0bb", "a\x0bb"),
        (r"$\{", r"$\{"),
        ("a\\\nb", "a\\\nb"),
        ("a#b", "a#b"),
        ("$\"a\"", "$\"a\""),
        ("a'b", "a'b"),
        ("''", ""),
    ] {
        let got = words(format!("user {written};").as_bytes());
        assert_eq!(got, [b"user".to_vec(), read.as_bytes().to_vec()], "{written}");
    }
}

#[test]
fn several_words() {
    for (written, read) in [
        ("a${b c}d", vec!["a${b", "c}d"]),
        ("\"a\")", vec!["a", ")"]),
        ("\"a\")b", vec!["a", ")b"]),
        ("$\"a b\"", vec!["$\"a", "b\""]),
        ("\"a\" )", vec!["a", ")"]),
        ("a #b\nc", vec!["a", "c"]),
        ("a\t\r\nb", vec!["a", "b"]),
    ] {
        let got = words(format!("{written};").as_bytes());
        assert_eq!(got, read.iter().map(|w| w.as_bytes().to_vec()).collect::<Vec<_>>(), "{written}");
    }
    assert_eq!(words(b"\xff\xfe {"), [b"\xff\xfe".to_vec()]);
    assert_eq!(words(b"if ($a = \"b\"){"), [&b"if"[..], b"($a", b"=", b"b", b")"].map(<[u8]>::to_vec));
}

#[test]
fn spans() {
    let mut lexer = Lexer::new(b"a;\n  bc \"d\ne\"\n ;", FileId(3));
    assert!(matches!(lexer.next(), Item::Simple(..)));
    let Item::Simple(words, end) = lexer.next() else { panic!("a statement") };
    assert_eq!(words[0].span, Span { file: FileId(3), line: 2, column: 3, start: 5, end: 7 });
    assert_eq!(words[1].span, Span { file: FileId(3), line: 2, column: 6, start: 8, end: 13 });
    assert!(words[1].quoted);
    assert_eq!(end, Span { file: FileId(3), line: 4, column: 2, start: 15, end: 16 });
    assert!(matches!(lexer.next(), Item::Eof { told: false, .. }));
    assert!(matches!(lexer.next(), Item::Eof { .. }));
}

fn errors(src: &str) -> Vec<String> {
    let mut lexer = Lexer::new(src.as_bytes(), FileId(0));
    let mut found = vec![];
    loop {
        match lexer.next() {
            Item::Bad(error) | Item::BadOpen(error) => {
                found.push(format!("{}:{}", error.message, error.at.expect("a place").line));
            }
            Item::Eof { .. } => return found,
            _ => {}
        }
    }
}

#[test]
fn all_mistakes() {
    assert_eq!(
        errors("a }\n;\n\"b\"c;\n{\n}\nd"),
        [
            "unexpected \"}\":1",
            "unexpected \";\":2",
            "unexpected \"c\":3",
            "unexpected \"{\":4",
            "unexpected end of file, expecting \";\" or \"}\":6",
        ]
    );
}

#[test]
fn words_that_do_not_fit() {
    let a = |n| "a".repeat(n);
    assert_eq!(errors(&format!("user {};", a(4095))), Vec::<String>::new());
    let long = "too long parameter \"aaaaaaaaaa...\" started:2";
    assert_eq!(errors(&format!("x;\nuser {};", a(4096))), [long]);
    assert_eq!(errors(&format!("user \"{}\";", a(4094))), Vec::<String>::new());
    assert_eq!(errors(&format!("x;\nuser \"{}\";", a(4095))), [long]);
    let open = "too long parameter, probably missing terminating \"\"\" character:1";
    assert_eq!(errors(&format!("user \"{}\";", a(4096))), [open]);
    assert_eq!(errors(&format!("user \"{}", a(5000))), [open]);
    assert_eq!(errors(&format!("#{}\n", a(4094))), Vec::<String>::new());
    assert_eq!(errors(&format!("#{}\n", a(4095))), ["too long parameter \"#aaaaaaaaa...\" started:1"]);
    assert_eq!(errors(&format!("#{}", a(4095))), Vec::<String>::new());
    let end = "unexpected end of file, expecting \";\" or \"}\":1";
    assert_eq!(errors(&format!("user {}", a(4091))), [end]);
}
