//! Texts of others (authorities, certificates, upstreams, clients) as logs, terminals and pages may show them.

/// Returns `true` for a character that would control what shows it: control characters, ends of lines, marks of direction, and
/// characters that are not seen, by which one name is made to look like another.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// Returns `true` if a byte has to be looked at more closely.
#[inline]
fn is_suspect(b: &u8) -> bool {
    b.is_ascii_control() || !b.is_ascii()
}

/// Escapes hidden characters as access logs do, `\x0A`. Bytes that are not UTF-8 stay, as in nginx's logs, except those that terminals
/// of eight bits take as control characters.
pub fn escape(bytes: &mut Vec<u8>) {
    escape_if(bytes, |b| b < 0xa0);
}

/// Escapes hidden characters, and the bytes of no character that `is_bad` is true for.
fn escape_if(bytes: &mut Vec<u8>, is_bad: impl Fn(u8) -> bool) {
    // Such characters are rare, so most texts are only searched. The search goes by pieces of 32 bytes, since the compiler
    // vectorizes a fold without an early exit.
    let has_any = |piece: &[u8]| piece.iter().fold(false, |found, b| found | is_suspect(b));
    let Some(piece) = bytes.chunks(32).position(has_any) else { return };
    let clean = piece * 32;
    let Some(first) = bytes.iter().skip(clean).position(is_suspect) else { return };
    let rest = bytes.split_off(clean + first);
    for chunk in rest.utf8_chunks() {
        for c in chunk.valid().chars() {
            let mut buf = [0; 4];
            let encoded = c.encode_utf8(&mut buf).as_bytes();
            if is_hidden(c) { push_escaped(bytes, encoded) } else { bytes.extend_from_slice(encoded) }
        }
        for b in chunk.invalid() {
            if is_bad(*b) { push_escaped(bytes, &[*b]) } else { bytes.push(*b) }
        }
    }
}

fn push_escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    for b in bytes {
        out.extend_from_slice(format!("\\x{b:02X}").as_bytes());
    }
}

/// Returns a text with its hidden characters escaped.
pub fn printable(text: impl AsRef<[u8]>) -> String {
    let mut bytes = text.as_ref().to_vec();
    escape_if(&mut bytes, |_| true);
    // What is left is UTF-8.
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_shown() {
        for (text, shown) in [
            ("plain text", "plain text"),
            ("a\nb\x1b[1m\0\x7f", "a\\x0Ab\\x1B[1m\\x00\\x7F"),
            ("ev\u{202e}gpj.exe", "ev\\xE2\\x80\\xAEgpj.exe"),
            (
                "a\u{2066}b\u{2069}\u{200b}\u{feff}",
                "a\\xE2\\x81\\xA6b\\xE2\\x81\\xA9\\xE2\\x80\\x8B\\xEF\\xBB\\xBF",
            ),
            ("\u{85}\u{9b}\u{e0041}", "\\xC2\\x85\\xC2\\x9B\\xF3\\xA0\\x81\\x81"),
            ("Zürich 東京 \u{1f600} \u{5d0}", "Zürich 東京 \u{1f600} \u{5d0}"),
        ] {
            assert_eq!(printable(text), shown);
            let long = format!("{}{text}", "x".repeat(70));
            assert_eq!(printable(&long), format!("{}{shown}", "x".repeat(70)));
        }
        assert_eq!(printable(b"a\xff\x9bb\xe2\x80"), "a\\xFF\\x9Bb\\xE2\\x80");
        let mut line = b"a\xff\x9bb\xe9".to_vec();
        escape(&mut line);
        assert_eq!(line, b"a\xff\\x9Bb\xe9");
    }

    #[test]
    fn characters_are_escaped_wherever_they_stand() {
        for n in 0..70 {
            let mut line = vec![b'a'; n];
            line.extend_from_slice(b"\x1b[1m\tb");
            escape(&mut line);
            assert_eq!(line, [&vec![b'a'; n], &b"\\x1B[1m\\x09b"[..]].concat(), "{n}");
        }
    }

    #[test]
    fn nothing_hidden_is_left() {
        for c in (0..=0x10_ffff).filter_map(char::from_u32) {
            let shown = printable(c.to_string());
            assert!(!shown.chars().any(is_hidden), "{c:?}");
            assert_eq!(shown == c.to_string(), !is_hidden(c), "{c:?}");
        }
    }
}
