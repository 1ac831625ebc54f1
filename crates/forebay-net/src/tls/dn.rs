//! Distinguished names in one form (RFC 5280, section 7.1), by which all names are compared: those of issuers, of constraints, of
//! revocation lists and of responders. As in OpenSSL, texts are compared without regard to the type of their strings, the case of
//! ASCII letters, and blanks at their ends or more than one between words.

use super::der::{Der, OID, SEQUENCE, SET, element};

const UTF8: u8 = 12;
const PRINTABLE: u8 = 19;
const T61: u8 = 20;
const IA5: u8 = 22;
const VISIBLE: u8 = 26;
const UNIVERSAL: u8 = 28;
const BMP: u8 = 30;

/// Returns the form of a name, DER, that equal names share. The form of a name begins with that of each name above it. What is no
/// name is its own form.
pub fn canonical(name: &[u8]) -> Vec<u8> {
    parts(name).unwrap_or_else(|| [&[0], name].concat())
}

/// Returns the form of a name; `None` if it cannot be parsed.
fn parts(name: &[u8]) -> Option<Vec<u8>> {
    let mut outer = Der(name);
    let mut rest = Der(outer.expect(SEQUENCE)?);
    if !outer.is_empty() {
        return None;
    }
    let mut form = Vec::new();
    while !rest.is_empty() {
        let mut set = Der(rest.expect(SET)?);
        let mut attributes = Vec::new();
        while !set.is_empty() {
            let mut attribute = Der(set.expect(SEQUENCE)?);
            let kind = attribute.whole(OID)?;
            let (tag, value) = attribute.next()?;
            let value = match text(tag, value) {
                Some(text) => element(UTF8, &[folded(&text).as_bytes()]),
                None => element(tag, &[value]),
            };
            attributes.push(element(SEQUENCE, &[kind, &value]));
        }
        // The order of a set means nothing.
        attributes.sort();
        form.extend(element(SET, &[&attributes.concat()]));
    }
    Some(form)
}

/// Returns the text of a string by its tag. `None` if it is of another type, or broken.
pub fn text(tag: u8, bytes: &[u8]) -> Option<String> {
    let wide = |pair: &[u8]| pair.iter().fold(0, |n: u32, b| n << 8 | u32::from(*b));
    match tag {
        UTF8 => std::str::from_utf8(bytes).ok().map(str::to_owned),
        PRINTABLE | IA5 | VISIBLE if bytes.is_ascii() => std::str::from_utf8(bytes).ok().map(str::to_owned),
        // As in OpenSSL, Latin-1.
        PRINTABLE | IA5 | VISIBLE | T61 => Some(bytes.iter().map(|b| char::from(*b)).collect()),
        BMP if bytes.len().is_multiple_of(2) => bytes.chunks(2).map(|c| char::from_u32(wide(c))).collect(),
        UNIVERSAL if bytes.len().is_multiple_of(4) => {
            bytes.chunks(4).map(|c| char::from_u32(wide(c))).collect()
        }
        _ => None,
    }
}

/// Makes letters of ASCII small and removes blanks that do not count.
fn folded(text: &str) -> String {
    let mut words = text.split(|c: char| c.is_ascii_whitespace() || c == '\u{b}').filter(|w| !w.is_empty());
    let mut out = words.next().unwrap_or_default().to_ascii_lowercase();
    for word in words {
        out.push(' ');
        out.extend(word.chars().map(|c| c.to_ascii_lowercase()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    /// Common name and organization.
    const KINDS: [&[u8]; 2] = [&[0x55, 4, 3], &[0x55, 4, 10]];

    fn attribute(kind: usize, tag: u8, text: &[u8]) -> Vec<u8> {
        element(SEQUENCE, &[&element(OID, &[KINDS[kind]]), &element(tag, &[text])])
    }

    fn name(parts: &[&[Vec<u8>]]) -> Vec<u8> {
        let sets: Vec<u8> = parts.iter().flat_map(|p| element(SET, &[&p.concat()])).collect();
        element(SEQUENCE, &[&sets])
    }

    fn of(tag: u8, text: &[u8]) -> Vec<u8> {
        canonical(&name(&[&[attribute(0, tag, text)]]))
    }

    #[test]
    fn equal_names_have_one_form() {
        let plain = of(UTF8, b"a big co");
        for same in [
            of(PRINTABLE, b"A Big Co"),
            of(IA5, b" a  big\tco "),
            of(T61, b"A BIG CO"),
            of(VISIBLE, b"a big  co"),
            of(BMP, b"\0a\0 \0B\0I\0g\0 \0c\0o"),
            of(UNIVERSAL, b"\0\0\0a\0\0\0 \0\0\0b\0\0\0i\0\0\0g\0\0\0 \0\0\0c\0\0\0o"),
        ] {
            assert_eq!(same, plain);
        }
        assert_eq!(of(T61, b"caf\xe9"), of(UTF8, "caf\u{e9}".as_bytes()));
        assert_eq!(of(BMP, b"\0c\0a\0f\0\xe9"), of(UTF8, "CAF\u{e9}".as_bytes()));
        for other in
            [of(UTF8, b"a bigco"), of(UTF8, b"a big c"), of(4, b"a big co"), of(UTF8, "CAF\u{c9}".as_bytes())]
        {
            assert_ne!(other, plain);
        }
        // Broken strings and names are equal only to themselves.
        assert_ne!(of(UTF8, b"\xff"), of(T61, b"\xff"));
        assert_ne!(of(BMP, b"a"), of(UTF8, b"a"));
        assert_ne!(canonical(b"x"), canonical(b"X"));
        let (cn, o) = (attribute(0, UTF8, b"x"), attribute(1, UTF8, b"y"));
        assert_eq!(
            canonical(&name(&[&[cn.clone(), o.clone()]])),
            canonical(&name(&[&[o.clone(), cn.clone()]]))
        );
        let (longer, shorter) =
            (canonical(&name(&[from_ref(&cn), from_ref(&o)])), canonical(&name(&[from_ref(&cn)])));
        assert!(longer.starts_with(&shorter));
        assert_ne!(longer, canonical(&name(&[&[o], &[cn]])));
        assert_eq!(canonical(&name(&[])), b"");
    }

    /// Whatever case, type and blanks a text gets, its form stays; a form is the form of itself.
    #[test]
    fn changes_that_do_not_count_change_nothing() {
        let mut seed = 1u32;
        let mut next = |n: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % n
        };
        for _ in 0..500 {
            let words: Vec<String> = (0..=next(3))
                .map(|_| (0..=next(5)).map(|_| char::from(b'a' + next(26) as u8)).collect())
                .collect();
            let mut changed = " ".repeat(next(3) as usize);
            for (i, word) in words.iter().enumerate() {
                if i > 0 {
                    changed += &" ".repeat(1 + next(3) as usize);
                }
                changed.extend(word.chars().map(|c| if next(2) == 0 { c } else { c.to_ascii_uppercase() }));
            }
            changed += &" ".repeat(next(3) as usize);
            let (tag, bytes) = match next(6) {
                0 => (BMP, changed.bytes().flat_map(|b| [0, b]).collect()),
                1 => (UNIVERSAL, changed.bytes().flat_map(|b| [0, 0, 0, b]).collect()),
                n => ([UTF8, PRINTABLE, T61, IA5][n as usize - 2], changed.clone().into_bytes()),
            };
            assert_eq!(of(tag, &bytes), of(UTF8, words.join(" ").as_bytes()), "{changed:?} as {tag}");
        }
    }
}
