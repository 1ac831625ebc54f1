//! Bytes of a terminal as keys.

const ESCAPE: u8 = 0x1b;

/// Splits what a terminal sent into keys: an escape sequence, or a byte. Keys that are pressed quickly, or held, come together.
pub fn keys(bytes: &[u8]) -> Vec<&[u8]> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (key, after) = rest.split_at(length(rest).clamp(1, rest.len()));
        keys.push(key);
        rest = after;
    }
    keys
}

/// Returns the length of the first key: of a sequence that begins with CSI or SS3 (ECMA-48, 5.4), or of one byte.
fn length(bytes: &[u8]) -> usize {
    match bytes {
        [ESCAPE, b'[', parameters @ ..] => {
            parameters.iter().position(|b| matches!(b, 0x40..=0x7e)).map_or(bytes.len(), |end| end + 3)
        }
        [ESCAPE, b'O', ..] => 3,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_come_together_are_told_apart() {
        assert_eq!(keys(b"\x03\x03"), [b"\x03", b"\x03"]);
        let sent = b"j\x1b[A\x1bOB\x1b[5~\x1bq\x1b";
        assert_eq!(keys(sent), [b"j", &b"\x1b[A"[..], b"\x1bOB", b"\x1b[5~", b"\x1b", b"q", b"\x1b"]);
        assert_eq!(keys(b"\x1b[1;5"), [b"\x1b[1;5"]);
        assert_eq!(keys(b"\x1bO"), [b"\x1bO"]);
        assert!(keys(b"").is_empty());
    }
}
