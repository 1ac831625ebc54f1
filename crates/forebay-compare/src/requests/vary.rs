//! Variations of a request: other methods, fields, versions, escapes, bodies and answers of upstreams.

use super::{Ask, Content, Version};
use crate::message::Field;
use crate::recorder::WISHES;

/// A kind of variation.
type Variation = fn(&Ask) -> Vec<Ask>;

/// The variations, from those that matter most.
const VARIATIONS: [Variation; 7] = [coded, conditional, methods, versions, bodies, escapes, unusual_fields];

/// Returns the variations of a request. `proxied`: an upstream may answer it.
pub(crate) fn of(ask: &Ask, proxied: bool) -> Vec<Ask> {
    if ask.front.quic {
        return over_quic(ask, proxied);
    }
    let mut all = again(ask);
    if proxied {
        all.extend(wishes(ask));
    }
    all.extend(VARIATIONS.iter().flat_map(|vary| vary(ask)));
    all
}

/// The variations that HTTP/3 can have.
fn over_quic(ask: &Ask, proxied: bool) -> Vec<Ask> {
    let mut all = again(ask);
    if proxied {
        all.extend(wishes(ask));
    }
    let kinds: [Variation; 5] = [coded, conditional, methods, bodies, escapes];
    all.extend(kinds.iter().flat_map(|vary| vary(ask)));
    all
}

fn with(ask: &Ask, fields: &[(&str, &str)]) -> Ask {
    let mut ask = ask.clone();
    ask.fields.extend(fields.iter().map(|(n, v)| -> Field { ((*n).to_owned(), (*v).to_owned()) }));
    ask
}

/// The same once more: caches have it now.
fn again(ask: &Ask) -> Vec<Ask> {
    vec![ask.clone()]
}

/// All answers of the recorder, each under a query of its own, so that no cache mixes them up.
fn wishes(ask: &Ask) -> Vec<Ask> {
    let separator = if ask.target.contains('?') { '&' } else { '?' };
    let mut all = Vec::new();
    for wish in WISHES {
        let target = format!("{}{separator}answer={wish}", ask.target);
        all.push(Ask { wish, target, ..ask.clone() });
        if matches!(wish, "cache" | "gzip") {
            all.extend(all.last().cloned());
        }
    }
    all
}

fn coded(ask: &Ask) -> Vec<Ask> {
    vec![
        with(ask, &[("Accept-Encoding", "gzip")]),
        with(ask, &[("Accept-Encoding", "gzip;q=0, br")]),
        with(ask, &[("Accept-Encoding", "gzip, deflate, br, zstd"), ("Via", "1.1 proxy")]),
        with(ask, &[("Accept-Encoding", "gzip"), ("Range", "bytes=0-3")]),
    ]
}

fn conditional(ask: &Ask) -> Vec<Ask> {
    vec![
        with(ask, &[("If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT")]),
        with(ask, &[("If-Modified-Since", "Thu, 01 Jan 1970 00:00:01 GMT")]),
        with(ask, &[("If-None-Match", "*")]),
        with(ask, &[("If-None-Match", "\"nothing\"")]),
        with(ask, &[("If-Match", "\"nothing\"")]),
        with(ask, &[("If-Unmodified-Since", "Thu, 01 Jan 1970 00:00:01 GMT")]),
        with(ask, &[("Range", "bytes=0-4")]),
        with(ask, &[("Range", "bytes=-5")]),
        with(ask, &[("Range", "bytes=1-2,4-5")]),
        with(ask, &[("Range", "bytes=99999999-")]),
        with(ask, &[("Range", "bytes=0-4"), ("If-Range", "\"nothing\"")]),
    ]
}

fn methods(ask: &Ask) -> Vec<Ask> {
    let method = |m: &str| Ask { method: m.to_owned(), ..ask.clone() };
    ["HEAD", "OPTIONS", "DELETE", "TRACE", "PROPFIND", "BREW"].map(method).into()
}

fn versions(ask: &Ask) -> Vec<Ask> {
    let host = ask.host.clone().unwrap_or_else(|| "localhost".into());
    let absolute = |scheme: &str| format!("{scheme}://{host}{}", ask.target);
    let mut all = vec![
        Ask { version: Version::Http10, ..ask.clone() },
        Ask { version: Version::Http10, host: None, ..ask.clone() },
        with(&Ask { version: Version::Http10, ..ask.clone() }, &[("Connection", "keep-alive")]),
        with(ask, &[("Connection", "close")]),
        Ask { target: absolute("http"), ..ask.clone() },
        Ask { host: Some(host.to_ascii_uppercase()), ..ask.clone() },
        Ask { host: Some(format!("{host}.")), ..ask.clone() },
        Ask { host: Some(format!("{host}:81")), ..ask.clone() },
        Ask { host: None, ..ask.clone() },
    ];
    if ask.front.http2 {
        let two = Ask { version: Version::Http2, ..ask.clone() };
        all.push(Ask { method: "HEAD".into(), ..two.clone() });
        all.push(Ask {
            method: "POST".into(),
            content: Some(Content::Chunks(b"a=1&b=2".to_vec())),
            ..two.clone()
        });
        all.push(with(&two, &[("accept-encoding", "gzip"), ("cookie", "a=1"), ("cookie", "b=2")]));
        all.push(two);
    }
    all
}

fn bodies(ask: &Ask) -> Vec<Ask> {
    let post = |method: &str, content: Content| {
        let ask = Ask { method: method.to_owned(), content: Some(content), ..ask.clone() };
        with(&ask, &[("Content-Type", "application/x-www-form-urlencoded")])
    };
    vec![
        post("POST", Content::Length(b"a=1&b=2".to_vec())),
        post("POST", Content::Length(Vec::new())),
        post("PUT", Content::Chunks(b"a=1&b=2".to_vec())),
        post("PATCH", Content::Length(vec![b'x'; 20_000])),
        with(&post("POST", Content::Length(b"a=1".to_vec())), &[("Expect", "100-continue")]),
        post("GET", Content::Length(b"body of a GET".to_vec())),
    ]
}

fn escapes(ask: &Ask) -> Vec<Ask> {
    let (path, query) = ask.target.split_once('?').map_or((ask.target.as_str(), None), |(p, q)| (p, Some(q)));
    let with_query = |path: String| match query {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    let name = path.rsplit('/').next().unwrap_or_default();
    let head = path.strip_suffix(name).unwrap_or("/");
    let first = name.bytes().next().map_or("%61".to_owned(), |b| format!("%{b:02x}"));
    let escaped = format!("{head}{first}{}", name.get(1..).unwrap_or_default());
    [
        with_query(format!("/.{path}")),
        with_query(format!("/{path}")),
        with_query(format!("/x/..{path}")),
        with_query(escaped),
        with_query(format!("{path}%20b")),
        with_query(format!("{path}%3Fq")),
        with_query(format!("{path}%00")),
        with_query(format!("{path}%2F..%2Fx")),
        with_query(format!("{path}/%2e%2e/y")),
        with_query(format!("{path}%c3%a4;v=1")),
        format!("{path}?"),
        format!("{path}?a=b&a=%20+c&&=d?e"),
        format!("{path}#fragment"),
        with_query(path.to_ascii_uppercase()),
    ]
    .into_iter()
    .map(|target| Ask { target, ..ask.clone() })
    .collect()
}

fn unusual_fields(ask: &Ask) -> Vec<Ask> {
    vec![
        with(
            ask,
            &[
                ("X-Forwarded-For", "192.0.2.7, 10.0.0.1"),
                ("X-Forwarded-Proto", "https"),
                ("X-Real-IP", "192.0.2.8"),
            ],
        ),
        with(
            ask,
            &[("Referer", "https://elsewhere.example/page"), ("User-Agent", "Mozilla/5.0 (compatible)")],
        ),
        with(ask, &[("Referer", &format!("http://{}/", ask.host.as_deref().unwrap_or("localhost")))]),
        with(ask, &[("Cookie", "session=1; theme=dark"), ("Authorization", "Basic dXNlcjpwYXNz")]),
        with(
            ask,
            &[
                ("Upgrade", "websocket"),
                ("Connection", "Upgrade"),
                ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ],
        ),
        with(ask, &[("under_score", "1"), ("X-Empty", ""), ("X-Two", "1"), ("X-Two", "2")]),
        with(ask, &[("Origin", "https://elsewhere.example"), ("Access-Control-Request-Method", "PUT")]),
        with(ask, &[("Cache-Control", "no-cache"), ("Pragma", "no-cache")]),
        with(ask, &[("TE", "trailers"), ("Keep-Alive", "timeout=5"), ("Proxy-Connection", "keep-alive")]),
        with(ask, &[("X-Long", &"y".repeat(9000))]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variations_differ_from_the_request() {
        let ask = Ask {
            method: "GET".into(),
            target: "/a/b.html?x=1".into(),
            host: Some("a.example".into()),
            ..Ask::default()
        };
        let all = of(&ask, true);
        let same = all.iter().filter(|other| **other == ask).count();
        assert!(all.len() > 70 && same == 1, "{} {same}", all.len());
        assert!(of(&ask, false).len() + WISHES.len() <= all.len());
        assert!(all.iter().any(|a| a.target == "/a/%62.html?x=1"));
        assert!(all.iter().all(|a| a.version != Version::Http2), "the server does not speak it");
    }
}
