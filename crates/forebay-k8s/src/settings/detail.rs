//! Checks of values whose type is too wide: lists of words of which each must be known. Without them a word would be dropped in silence.

use crate::tree::is_pattern;
use crate::value::{Invalid, ciphers, regex_lint};
use forebay_conf::units;

/// Checks a value beyond its type.
///
/// # Errors
/// The reason and the place.
pub(super) fn check(key: &str, text: &str) -> Result<(), Invalid> {
    match key {
        "ssl-protocols" => protocols(text),
        "ssl-ciphers" if ciphers(text).is_none() => Err(Invalid::new(0, "no known cipher is among them")),
        "ssl-ecdh-curve" => {
            let known = ["auto", "X25519MLKEM768", "X25519", "prime256v1", "P-256", "secp384r1", "P-384"];
            let fine = text.trim().split(':').any(|c| known.contains(&c));
            if fine { Ok(()) } else { Err(Invalid::new(0, "no known curve is among them")) }
        }
        "worker-processes" => {
            let fine = text.trim() == "auto" || text.trim().parse::<u16>().is_ok_and(|n| n > 0);
            if fine { Ok(()) } else { Err(Invalid::new(0, "it must be a number or \"auto\"")) }
        }
        "worker-cpu-affinity" => words(text, "neither \"auto\" nor a mask", |w| {
            w == "auto" || w.bytes().all(|b| matches!(b, b'0' | b'1'))
        }),
        "proxy-next-upstream" => words(text, "no condition of proxy_next_upstream", |w| {
            forebay_conf::grammar::NEXT_UPSTREAM.contains(&w)
        }),
        "large-client-header-buffers" => {
            let parts: Vec<&str> = text.split_ascii_whitespace().collect();
            let fine = matches!(*parts, [number, size] if number.parse::<u32>().is_ok() && units::size(size.as_bytes()).is_some());
            if fine { Ok(()) } else { Err(Invalid::new(0, "it must be a number and a size, such as 4 8k")) }
        }
        "proxy-cookie-domain" | "proxy-cookie-path" => {
            let parts: Vec<&str> = text.split_ascii_whitespace().collect();
            let fine = parts == ["off"] || parts.len() == 2;
            if fine { Ok(()) } else { Err(Invalid::new(0, "it must be \"off\" or two words")) }
        }
        "block-user-agents" | "block-referers" | "skip-access-log-urls" => {
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
            match parts.into_iter().find(|part| !is_pattern(part)) {
                Some(part) => Err(at(text, part, "is no text and no regular expression that can be matched")),
                None => Ok(()),
            }
        }
        "gzip-disable" => match regex_lint(text.trim()) {
            Some(reason) => Err(Invalid::new(0, reason)),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

fn protocols(text: &str) -> Result<(), Invalid> {
    const ALL: [&str; 6] = ["SSLv2", "SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"];
    words(text, "no protocol", |w| ALL.contains(&w))?;
    let some = text.split_ascii_whitespace().any(|w| matches!(w, "TLSv1.2" | "TLSv1.3"));
    if some { Ok(()) } else { Err(Invalid::new(0, "neither TLSv1.2 nor TLSv1.3 is among them")) }
}

fn words(text: &str, what: &str, fine: impl Fn(&str) -> bool) -> Result<(), Invalid> {
    match text.split_ascii_whitespace().find(|w| !fine(w)) {
        Some(word) => Err(at(text, word, &format!("is {what}"))),
        None => Ok(()),
    }
}

fn at(text: &str, part: &str, what: &str) -> Invalid {
    Invalid::new(text.find(part).unwrap_or(0), format!("\"{}\" {what}", part.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_known() {
        let refused = |key, text| check(key, text).is_err();
        assert!(refused("ssl-protocols", "SSLv3") && refused("ssl-protocols", "TLSv1.2 TLSv9"));
        assert!(!refused("ssl-protocols", "TLSv1 TLSv1.2"));
        assert!(refused("block-user-agents", "curl,~*("));
        assert!(refused("proxy-next-upstream", "error sometimes"));
        assert_eq!(check("proxy-next-upstream", "error nope").map_err(|e| e.at), Err(6));
    }

    #[test]
    fn defaults_pass() {
        for row in crate::settings::ROWS.iter().filter(|row| !row.default.is_empty()) {
            assert_eq!(check(row.name, row.default), Ok(()), "{}", row.name);
        }
    }
}
