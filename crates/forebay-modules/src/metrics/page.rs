//! `dashboard` (ours): the page that shows the counters live.

use super::api::{answer, below};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forebay_core::digest::sha256;
use forebay_http::request::Method;
use forebay_server::module::Verdict;
use forebay_server::request::Request;
use std::sync::OnceLock;

/// The page, with all that it needs.
const PAGE: &str = include_str!("dashboard.html");

/// Answers a request to `dashboard` with the page, and below `api/` with the values that the page asks for.
pub(super) fn handle(req: &mut Request) -> Verdict {
    let below = below(req);
    // The page asks for values below its own location, so that one access rule covers both.
    if let Some(path) = below.strip_prefix("api") {
        return answer(req, path.strip_prefix('/').unwrap_or(path));
    }
    if !below.is_empty() {
        return Verdict::Status(404);
    }
    if !matches!(req.method, Method::Get | Method::Head) {
        return Verdict::Status(405);
    }
    req.resp.status = 200;
    req.resp.content_type = b"text/html".to_vec();
    req.resp.charset = b"utf-8".to_vec();
    for (name, value) in FIELDS {
        req.resp.fields.push(name.as_bytes(), value.as_bytes());
    }
    req.resp.fields.push(b"Content-Security-Policy", policy().as_bytes());
    req.resp.set_body(PAGE.as_bytes());
    Verdict::Done
}

/// Other fields of the response.
const FIELDS: [(&str, &str); 3] = [
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
];

/// Returns the policy of the page: its own style and script by their hashes, nothing from outside, no markup from text.
fn policy() -> &'static str {
    static POLICY: OnceLock<String> = OnceLock::new();
    POLICY.get_or_init(|| {
        // The hashes are made from the page itself, so they cannot get out of step with it.
        let hash = |element| STANDARD.encode(sha256(content(element).as_bytes()));
        format!(
            "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; img-src data:; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'self'; require-trusted-types-for 'script'",
            hash("style"),
            hash("script")
        )
    })
}

/// Returns the content of the only element of this name in the page.
fn content(element: &str) -> &'static str {
    let after = PAGE.split_once(&format!("<{element}>")).map_or("", |(_, after)| after);
    after.split_once(&format!("</{element}>")).map_or("", |(content, _)| content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_needs_nothing_else() {
        assert!(PAGE.len() < 60_000, "{}", PAGE.len());
        for element in ["style", "script"] {
            assert!(content(element).len() > 1000);
            assert_eq!(PAGE.matches(&format!("<{element}")).count(), 1);
        }
        for word in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            " style=\"",
            "onclick=",
            "src=",
        ] {
            assert!(!PAGE.contains(word), "{word}");
        }
        // Addresses are the namespace of SVG elements and an example.
        let after: Vec<_> = PAGE.split("://").skip(1).collect();
        assert!(after.iter().all(|a| a.starts_with("www.w3.org/2000/svg") || a.starts_with("GROUP;")));
        assert!(policy().contains("script-src 'sha256-") && !policy().contains("unsafe"), "{}", policy());
    }
}
