use super::*;

fn pattern(text: &str) -> Pattern {
    Pattern::compile(text.as_bytes(), false, &mut NoNames).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn wrong(text: &str) -> String {
    let e = Pattern::compile(text.as_bytes(), false, &mut NoNames).unwrap_err();
    e.strip_prefix("pcre2_compile() failed: ").map(str::to_owned).unwrap_or(e)
}

/// Pattern, texts that match, texts that do not.
type Case = (&'static str, &'static [&'static [u8]], &'static [&'static [u8]]);

#[test]
fn patterns_match_as_pcre_does() {
    let cases: &[Case] = &[
        ("^a$", &[b"a", b"a\n"], &[b"a\n\n", b"ab"]),
        ("^a\\Z", &[b"a", b"a\n"], &[b"a\nb"]),
        ("^a\\z", &[b"a"], &[b"a\n"]),
        ("(?m)^a$", &[b"a\nb", b"b\na"], &[b"ba"]),
        ("^(?=a)a$", &[b"a", b"a\n"], &[b"a\n\n"]),
        ("^a{,3}$", &[b"a{,3}"], &[b"aa"]),
        ("^{a}$", &[b"{a}"], &[b"a"]),
        ("^a{2,3}$", &[b"aa", b"aaa"], &[b"a", b"aaaa"]),
        ("^]$", &[b"]"], &[b""]),
        ("^[]a]+$", &[b"]a"], &[b"b"]),
        ("^[^]a]$", &[b"b"], &[b"]"]),
        ("^[[:alpha:]_-]+$", &[b"a_-Z"], &[b"1"]),
        ("^[[:^digit:]]$", &[b"a", b"\xff"], &[b"1"]),
        ("^\\h\\d\\w\\s$", &[b"\t1_ ", b"\xa01_\x0b"], &[b"a1_ "]),
        ("^\\R$", &[b"\r\n", b"\n", b"\x85"], &[b"a"]),
        ("^\\Qa.b\\E.$", &[b"a.bc"], &[b"axbc"]),
        ("^\\/\\_\\-\\:\\@\\!\\\"$", &[b"/_-:@!\""], &[]),
        ("^\\x41\\x{42}\\o{103}\\0104\\t$", &[b"ABC\x084\t"], &[]),
        ("^(a)(?:b)\\1$", &[b"aba"], &[b"abb"]),
        ("^(?'n'a)(?P=n)\\k<n>\\k{n}\\g{n}\\g{1}\\g1\\g{-1}$", &[b"aaaaaaaa"], &[b"aaaaaaa"]),
        ("^a++b$", &[b"aab"], &[b"aac"]),
        ("^a++a$", &[], &[b"aa"]),
        ("^(?>a+)a$", &[], &[b"aa"]),
        ("^(?!x)[a-z]+(?<!z)$", &[b"ab"], &[b"xa", b"az"]),
        ("(?i)^aB$", &[b"Ab"], &[b"a"]),
        ("^a(?i:b)c$", &[b"aBc"], &[b"aBC"]),
        ("(?s)^a.b$", &[b"a\nb"], &[]),
        ("^a.b$", &[b"a\xffb"], &[b"a\nb"]),
        ("(?x) ^ a b # comment\n c [ ] $", &[b"abc "], &[b"abc"]),
        ("^(?#comment)a$", &[b"a"], &[]),
        ("^é$", &[b"\xc3\xa9"], &[b"e"]),
        ("^[é]{2}$", &[b"\xc3\xa9"], &[b"e"]),
        ("^[\\w.-]+$", &[b"a.-_"], &[b"/"]),
        ("^[a\\-z]+$", &[b"a-z"], &[b"b"]),
        ("^\\.(?:gif|jpe?g)$", &[b".gif", b".jpg", b".jpeg"], &[b"xgif"]),
        ("^(?=a)*(?!b){2}a$", &[b"a"], &[b"b"]),
        ("^.*\\z$", &[b"a"], &[b"a\n"]),
        ("^\\p{N}$", &[b"7", b"\xb2"], &[b"a", b"\xe9"]),
        ("^\\pL\\P{Lu}[\\p{^N}_]$", &[b"ab_", b"\xe9b-"], &[b"aB_", b"ab7", b"7b_"]),
        ("^\\p{L&}\\p{Xan}\\p{Latin}\\p{Any}$", &[b"aZ\xff\x00"], &[b"1Zbc", b"aZ1c"]),
        ("", &[b"", b"x"], &[]),
    ];
    for (p, yes, no) in cases {
        let re = pattern(p);
        for t in *yes {
            assert_eq!(re.is_match(t), Ok(true), "{p} should match {t:?}");
        }
        for t in *no {
            assert_eq!(re.is_match(t), Ok(false), "{p} should not match {t:?}");
        }
    }
}

#[test]
fn errors_are_those_of_pcre() {
    let cases = [
        ("a**", "quantifier does not follow a repeatable item in \"a**\" at \"*\""),
        ("a{2}{3}", "quantifier does not follow a repeatable item in \"a{2}{3}\" at \"}\""),
        ("(a", "missing closing parenthesis in \"(a\""),
        (")", "unmatched closing parenthesis in \")\" at \")\""),
        ("[a", "missing terminating ] for character class in \"[a\""),
        ("[z-a]", "range out of order in character class in \"[z-a]\" at \"a]\""),
        ("[[:foo:]]", "unknown POSIX class name in \"[[:foo:]]\" at \"foo:]]\""),
        ("a{3,2}", "numbers out of order in {} quantifier in \"a{3,2}\" at \"}\""),
        ("\\", "\\ at end of pattern in \"\\\""),
        ("\\y", "unrecognized character follows \\ in \"\\y\" at \"y\""),
        ("\\1", "reference to non-existent subpattern in \"\\1\" at \"1\""),
        ("(?z)", "unrecognized character after (? or (?- in \"(?z)\" at \"z)\""),
        ("(?R)", "recursion and subroutine calls are not supported in \"(?R)\" at \"R)\""),
        ("a\\p{Nope}", "unknown property after \\P or \\p in \"a\\p{Nope}\""),
        ("\\p{L", "malformed \\P or \\p sequence in \"\\p{L\""),
        ("(?(1)a|b)", "conditional groups are not supported in \"(?(1)a|b)\" at \"(1)a|b)\""),
    ];
    for (p, e) in cases {
        assert_eq!(wrong(p), e);
    }
}

#[test]
fn captures_of_the_shorter_text_are_found() {
    let mut c = Captures::default();
    assert_eq!(pattern("^/(.*)$").captures(b"/ab\n", &mut c), Ok(true));
    assert_eq!(c.groups.get(1), Some(&(1, 3)));
}

#[test]
fn a_match_without_groups_empties_those_of_the_match_before() {
    let mut c = Captures::default();
    assert_eq!(pattern("(a)").captures(b"a", &mut c), Ok(true));
    assert_eq!(pattern("x").captures(b"ab", &mut c), Ok(false));
    assert_eq!((c.text.as_slice(), c.groups.len()), (b"a".as_slice(), 2), "no match changes nothing");
    assert_eq!(pattern("b$").captures(b"ab\n", &mut c), Ok(true));
    assert!(c.text.is_empty() && c.groups.is_empty());
}

#[test]
fn nothing_is_kept_for_patterns_of_the_past() {
    let kept = || LOCATIONS.with_borrow(HashMap::len);
    let (mut c, re) = (Captures::default(), pattern("a(.)"));
    forget();
    for _ in 0..3 {
        assert_eq!(re.captures(b"ab", &mut c), Ok(true));
        assert_eq!((kept(), c.groups.get(1)), (1, Some(&(1, 2))));
        forget();
        assert_eq!(kept(), 0);
    }
}
