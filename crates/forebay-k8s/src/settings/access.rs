//! What holds in place of a value of the ConfigMap that fails.

/// What holds in place of a value that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// The default.
    Default,
    /// The value that allows least.
    Strictest(&'static str),
    /// The value that worked last. Without one, all paths of Ingresses answer 503.
    Close,
}

/// Keys that decide who is let in, or by which address or field a client is known. Their defaults let more in than their authors wish.
#[rustfmt::skip]
const CLOSING: &[&str] = &[
    "annotation-value-word-blocklist", "block-cidrs", "block-referers", "block-user-agents", "denylist-source-range",
    "forwarded-for-header", "global-auth-method", "global-auth-response-headers", "global-auth-snippet", "global-auth-url",
    "proxy-real-ip-cidr", "proxy-set-headers", "ssl-ciphers", "ssl-protocols", "whitelist-source-range",
];

/// Keys with directives. They decide on access if one of [`DECIDING`] is among their words.
const SNIPPETS: &[&str] =
    &["http-snippet", "location-snippet", "main-snippet", "server-snippet", "stream-snippet"];

/// Words of directives that decide who is let in.
#[rustfmt::skip]
const DECIDING: &[&str] = &[
    "allow", "auth_basic", "auth_basic_user_file", "auth_delay", "auth_request", "deny", "if", "internal", "limit_conn",
    "limit_except", "limit_req", "real_ip_header", "return", "satisfy", "secure_link", "set_real_ip_from",
    "ssl_client_certificate", "ssl_crl", "ssl_protocols", "ssl_reject_handshake", "ssl_verify_client", "valid_referers",
];

/// Words of [`DECIDING`] that annotations often have for other purposes.
const COMMON: &[&str] = &["if", "internal", "return"];

/// Returns `true` for the snippet of an annotation that decides who is let in.
pub fn snippet_decides(text: &str) -> bool {
    let words: Vec<&str> = text.split(|c| !is_word(c)).filter(|word| !word.is_empty()).collect();
    let denies = |pair: &[&str]| matches!(pair, ["return", status] if status.starts_with(['4', '5']) && status.len() == 3);
    words.iter().any(|word| DECIDING.contains(word) && !COMMON.contains(word)) || words.windows(2).any(denies)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Returns `true` for a key that decides on access whatever its value is.
pub fn closes(key: &str) -> bool {
    CLOSING.contains(&key)
}

/// Returns what holds in place of a value that fails.
pub fn on_failure(key: &str, value: &str) -> OnFailure {
    let deciding = || value.split(|c| !is_word(c)).any(|word| DECIDING.contains(&word));
    if key == "annotations-risk-level" {
        OnFailure::Strictest("Low")
    } else if matches!(key, "force-ssl-redirect" | "ssl-redirect") {
        OnFailure::Strictest("true")
    } else if CLOSING.contains(&key) || SNIPPETS.contains(&key) && deciding() {
        OnFailure::Close
    } else {
        OnFailure::Default
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_exist() {
        for key in CLOSING.iter().chain(SNIPPETS) {
            assert!(crate::settings::row(key).is_some(), "{key}");
        }
    }

    #[test]
    fn snippets_of_annotations_close_by_their_words() {
        for text in [
            "deny all;",
            "auth_basic \"x\";",
            "if ($a) { return 403; }",
            "return 503 text;",
            "limit_req zone=a;",
        ] {
            assert!(snippet_decides(text), "{text}");
        }
        for text in
            ["return 301 https://a/b;", "if ($a) { set $b 1; }", "add_header X-Denyx 1;", "return 200;", ""]
        {
            assert!(!snippet_decides(text), "{text}");
        }
    }

    #[test]
    fn snippets_close_by_their_words() {
        let of = |text| on_failure("server-snippet", text);
        assert_eq!(of("client_max_body_size 1m;"), OnFailure::Default);
        assert_eq!(of("location /a {deny all;}"), OnFailure::Close);
        assert_eq!(of("denyx 1;"), OnFailure::Default);
        assert_eq!(on_failure("gzip-types", "deny"), OnFailure::Default);
        for key in ["force-ssl-redirect", "ssl-redirect"] {
            assert_eq!(on_failure(key, "yes"), OnFailure::Strictest("true"), "{key}");
        }
    }
}
