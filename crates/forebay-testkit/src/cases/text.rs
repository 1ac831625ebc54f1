//! Expectations of a text: `json ...` as in rows, `"TEXT"`: all of it; `..."TEXT"`: its end; `~"TEXT"` and `!~"TEXT"`: a part of it, and
//! none; `2x "TEXT"`: so many.

use super::row::{json_holds, string};

/// Returns `true` if a text is as expected.
pub(super) fn holds(expected: &str, text: &str) -> bool {
    let quoted = |part: &str| {
        let bytes = string(part).unwrap_or_else(|| panic!("expected is {expected:?}"));
        String::from_utf8_lossy(&bytes).into_owned()
    };
    if let Some(rest) = expected.strip_prefix("json ") {
        return json_holds(rest, text.as_bytes());
    }
    if let Some(end) = expected.strip_prefix("...") {
        return text.ends_with(&quoted(end));
    }
    if let Some(part) = expected.strip_prefix("!~") {
        return !text.contains(&quoted(part));
    }
    if let Some(part) = expected.strip_prefix('~') {
        return text.contains(&quoted(part));
    }
    match expected.split_once("x ") {
        Some((count, part)) if count.parse::<usize>().is_ok() => {
            text.matches(&quoted(part)).count().to_string() == count
        }
        _ => text == quoted(expected),
    }
}

#[cfg(test)]
mod tests {
    use super::holds;

    #[test]
    fn expectations_hold_or_do_not() {
        for expected in [r#""a\r\na""#, r#"..."\na""#, r#"~"a\r""#, r#"!~"b""#, r#"2x "a""#] {
            assert!(holds(expected, "a\r\na"), "{expected}");
        }
        for expected in [r#""a""#, r#"..."b""#, r#"~"b""#, r#"!~"a""#, r#"1x "a""#] {
            assert!(!holds(expected, "a\r\na"), "{expected}");
        }
    }

    #[test]
    #[should_panic(expected = "expected is \"one\"")]
    fn an_expectation_that_is_none_is_refused() {
        holds("one", "");
    }
}
