//! Fields whose values are secrets. An attacker who has a client send requests of his choice, and sees the lengths of what is sent, can
//! guess a value that is in a table of the connection piece by piece (RFC 7541, section 7.1; RFC 9204, section 7.1). So no
//! encoder puts these fields into its table. In requests to upstreams they are marked, so that no table on the way has them either; in
//! responses they are not, as in nginx, since there are clients that do not read marked lines.

/// Names of fields with secrets.
const NAMES: [&str; 8] = [
    "authentication-info",
    "authorization",
    "cookie",
    "cookie2",
    "proxy-authentication-info",
    "proxy-authorization",
    "set-cookie",
    "set-cookie2",
];

/// Parts of names that tell a secret: `X-Auth-Token`, `X-Api-Key`, `X-CSRFToken`, `X-Session-Id`.
const PARTS: [&str; 15] = [
    "access-key",
    "api-key",
    "api_key",
    "apikey",
    "auth-key",
    "credential",
    "csrf",
    "jwt",
    "passw",
    "private-key",
    "secret",
    "session",
    "signature",
    "token",
    "xsrf",
];

/// Returns `true` if no table may have the values of a field. Upper and lower case are the same.
pub const fn is_secret(name: &[u8]) -> bool {
    let mut i = 0;
    while i < NAMES.len() {
        if NAMES[i].len() == name.len() && begins(name, 0, NAMES[i].as_bytes()) {
            return true;
        }
        i += 1;
    }
    let mut at = 0;
    while at < name.len() {
        // The first letters of the parts: most bytes of names are others.
        if matches!(name[at] | 0x20, b'a' | b'c' | b'j' | b'p' | b's' | b't' | b'x') && part_begins(name, at)
        {
            return true;
        }
        at += 1;
    }
    false
}

const fn part_begins(name: &[u8], at: usize) -> bool {
    let mut i = 0;
    while i < PARTS.len() {
        if begins(name, at, PARTS[i].as_bytes()) {
            return true;
        }
        i += 1;
    }
    false
}

/// Returns `true` if `name` has `part`, which is in lower case, at a place.
const fn begins(name: &[u8], at: usize, part: &[u8]) -> bool {
    let mut i = 0;
    while i < part.len() {
        if at + i >= name.len() || name[at + i].to_ascii_lowercase() != part[i] {
            return false;
        }
        i += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_secrets() {
        for name in [
            "Authorization",
            "cookie",
            "Set-Cookie",
            "Proxy-Authorization",
            "X-CSRF-Token",
            "x-xsrf-token",
            "X-Api-Key",
            "apikey",
            "X-Amz-Security-Token",
            "client-secret",
            "X-Session-Id",
            "x-goog-signature",
            "X-JWT-Assertion",
            "X-Vault-Token",
            "X-Password",
        ] {
            assert!(is_secret(name.as_bytes()), "{name}");
        }
        for name in [
            "",
            "accept",
            "content-type",
            "server",
            "x-request-id",
            "cookies-allowed",
            "x-cache",
            "etag",
            "x-auth-user",
        ] {
            assert!(!is_secret(name.as_bytes()), "{name}");
        }
    }
}
