//! User and password of a request (RFC 7617).

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use forebay_http::field::Name;
use forebay_http::request::{Method, RequestHead};

/// Base64 as clients write it: with or without padding, and with any unused bits.
pub const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Returns `true` if the client authenticates to a proxy: CONNECT uses `Proxy-Authorization` (RFC 9110, section
/// 11.7).
pub fn is_proxy(head: &RequestHead) -> bool {
    head.method == Method::Connect
}

/// Returns the name of the field with the credentials.
fn field(head: &RequestHead) -> Name {
    if is_proxy(head) { Name::ProxyAuthorization } else { Name::Authorization }
}

/// Returns user and password of `Authorization: Basic ...`.
pub fn credentials(head: &RequestHead) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, rest) = head.get(field(head))?.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    // nginx ignores text after the padding, so it is ignored here.
    let text = rest.trim_ascii().split(|b| *b == b'=').next()?;
    let mut user = LENIENT.decode(text).ok()?;
    // The password may contain colons, but the user must not (RFC 7617, section 2), so the first colon separates them.
    let colon = memchr::memchr(b':', &user)?;
    let pass = user.split_off(colon + 1);
    user.pop();
    Some((user, pass))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn fields() {
        let mut req = testing::request("server {}", "");
        let mut of = |value: &str| {
            testing::head(&mut req, &format!("Authorization: {value}\n"));
            credentials(&req.head).map(|(u, p)| {
                (String::from_utf8_lossy(&u).into_owned(), String::from_utf8_lossy(&p).into_owned())
            })
        };
        let want = Some(("plain".to_owned(), "pass".to_owned()));
        assert_eq!(of("Basic cGxhaW46cGFzcw=="), want);
        assert_eq!(of("basic   cGxhaW46cGFzcw"), want);
        assert_eq!(of("Basic cGxhaW4="), None);
        assert_eq!(of("Basic"), None);
        assert_eq!(of("Basic !!!"), None);
        assert_eq!(of("Bearer cGxhaW46cGFzcw=="), None);
    }
}
