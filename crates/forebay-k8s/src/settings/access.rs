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
    "proxy-real-ip-cidr", "ssl-ciphers", "ssl-protocols", "whitelist-source-range",
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

/// Returns `true` for a key that decides on access whatever its value is.
pub fn closes(key: &str) -> bool {
    CLOSING.contains(&key)
}

/// Returns what holds in place of a value that fails.
pub fn on_failure(key: &str, value: &str) -> OnFailure {
    let deciding = || {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        value.split(|c| !is_word(c)).any(|word| DECIDING.contains(&word))
    };
    if key == "annotations-risk-level" {
        OnFailure::Strictest("Low")
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
    fn snippets_close_by_their_words() {
        let of = |text| on_failure("server-snippet", text);
        assert_eq!(of("client_max_body_size 1m;"), OnFailure::Default);
        assert_eq!(of("location /a {deny all;}"), OnFailure::Close);
        assert_eq!(of("denyx 1;"), OnFailure::Default);
        assert_eq!(on_failure("gzip-types", "deny"), OnFailure::Default);
    }
}
