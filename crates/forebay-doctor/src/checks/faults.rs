//! Faults of nginx with a CVE number that a configuration opens to strangers: data/nginx-cves.tsv, with a source for each row.
//!
//! The rule speaks when doctor knows the version of nginx (`--for nginx`). Each row is replayed against Forebay by
//! the test that it names.

use super::Check;
use super::checks;
use crate::Finding;
use crate::rule::rule;
use crate::scene::Scene;
use forebay_conf::error::Error;
use forebay_conf::files::Files;
use forebay_conf::tree::Span;
use forebay_conf::version::NginxVersion;

/// The table: a line of names, then a fault a line.
const TABLE: &str = include_str!("../../data/nginx-cves.tsv");

/// A fault of nginx.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub cve: &'static str,
    pub published: &'static str,
    pub severity: &'static str,
    /// Ranges `FIRST-LAST` of versions that have it.
    affected: &'static str,
    /// First versions without it.
    fixed: &'static str,
    /// What opens it; see [`openings`].
    opened: &'static str,
    pub what: &'static str,
    instead: &'static str,
    pub source: &'static str,
    pub replay: &'static str,
}

impl Fault {
    fn of(row: &'static str) -> Option<Fault> {
        let mut columns = row.split('\t');
        let mut next = || columns.next();
        Some(Fault {
            cve: next()?,
            published: next()?,
            severity: next()?,
            affected: next()?,
            fixed: next()?,
            opened: next()?,
            what: next()?,
            instead: next()?,
            source: next()?,
            replay: next()?,
        })
    }

    /// Returns the message for a configuration that opens the fault, at `more` lines besides the one that it names.
    fn text(&self, version: NginxVersion, more: usize) -> String {
        let Fault { cve, severity, what, instead, source, .. } = self;
        let others = if more == 0 { String::new() } else { format!(", and {more} more such lines") };
        let fixed = self.fixed.replace(' ', ", ");
        format!(
            "{cve} ({severity}): {what}. nginx {version} has it{others}; without it: {fixed}. {instead} ({source})"
        )
    }

    /// Returns `true` if a version has the fault.
    fn affects(&self, version: NginxVersion) -> bool {
        let range = |text: &str| {
            let (first, last) = text.split_once('-')?;
            Some(NginxVersion::parse(first)?..=NginxVersion::parse(last)?)
        };
        self.affected.split(' ').filter_map(range).any(|range| range.contains(&version))
    }
}

/// Returns all faults.
pub(crate) fn faults() -> impl Iterator<Item = Fault> {
    TABLE.lines().skip(1).filter_map(Fault::of)
}

/// Returns `true` if HTTP/2 itself has a fault in a version of nginx.
pub(crate) fn http2_is_faulty(version: NginxVersion) -> bool {
    faults().any(|fault| fault.opened == "http2" && fault.affects(version))
}

/// Returns the directives of a configuration that open a fault.
fn openings(opened: &str, s: &Scene<'_>) -> Vec<usize> {
    let has = |n: usize, word: &str| s.args(n).iter().any(|a| a == word);
    let value = |n: usize, word: &str| s.arg(n, 0) == word;
    let within = |n: usize, block: &str| s.is(s.outermost(n), block);
    let all = |name: &'static str, fits: &dyn Fn(usize) -> bool| -> Vec<usize> {
        s.all(name).filter(|n| fits(*n)).collect()
    };
    match opened {
        "http2" => [all("http2", &|n| value(n, "on")), all("listen", &|n| has(n, "http2"))].concat(),
        "quic" => all("listen", &|n| has(n, "quic")),
        "client certificates" => all("ssl_verify_client", &|n| !value(n, "off") && within(n, "http")),
        "stream client certificates" => {
            all("ssl_verify_client", &|n| !value(n, "off") && within(n, "stream"))
        }
        "ocsp" => all("ssl_ocsp", &|n| !value(n, "off") && within(n, "http")),
        "stream ocsp" => all("ssl_ocsp", &|n| !value(n, "off") && within(n, "stream")),
        "tls upstreams" => tls_upstreams(s),
        "dav alias" => all("dav_methods", &|n| {
            (has(n, "COPY") || has(n, "MOVE")) && s.effective(s.parent(n), "alias").is_some()
        }),
        "alias rewrite" => all("alias", &|n| s.child(s.parent(n), "rewrite").is_some()),
        "proxied http2 body" => all("proxy_set_body", &|n| is_http2(s, s.parent(n))),
        "proxied http2" => {
            [all("grpc_pass", &|_| true), all("proxy_pass", &|n| is_http2(s, s.parent(n)))].concat()
        }
        "scgi or uwsgi" => [all("scgi_pass", &|_| true), all("uwsgi_pass", &|_| true)].concat(),
        "charset" => [all("source_charset", &|_| true), all("charset_map", &|_| true)].concat(),
        "slice" => all("slice", &|n| !value(n, "0")),
        "ssi" => all("ssi", &|n| value(n, "on")),
        "ssi aio" => all("ssi", &|n| {
            value(n, "on") && s.effective(s.parent(n), "aio").is_some_and(|aio| !value(aio, "off"))
        }),
        "resolver" => all("resolver", &|_| true),
        "tickets" => [
            all("ssl_session_ticket_key", &|n| s.child(s.parent(n), "ssl_session_ticket_key") != Some(n)),
            all("ssl_session_cache", &|n| s.args(n).iter().any(|a| a.starts_with("shared:"))),
        ]
        .concat(),
        "tls 1.3" => all("listen", &|n| has(n, "ssl") && within(n, "http") && speaks_tls13(s, n)),
        "map captures" => all("map", &|n| has_captures(s, n)),
        "rewrite then captures" => all("rewrite", &|n| is_followed_by_captures(s, n)),
        "rewrite overlapping" => all("rewrite", &|n| nests_captures(s.arg(n, 0), s.arg(n, 1))),
        _ => Vec::new(),
    }
}

fn is_http2(s: &Scene<'_>, block: Option<usize>) -> bool {
    s.effective(block, "proxy_http_version").is_some_and(|n| s.arg(n, 0) == "2")
}

/// Returns the directives that pass requests or sessions on over TLS.
fn tls_upstreams(s: &Scene<'_>) -> Vec<usize> {
    let schemes = [("proxy_pass", "https://"), ("grpc_pass", "grpcs://"), ("uwsgi_pass", "suwsgi://")];
    let passing = schemes
        .into_iter()
        .flat_map(|(name, scheme)| s.all(name).filter(move |n| s.arg(*n, 0).starts_with(scheme)));
    passing.chain(s.all("proxy_ssl").filter(|n| s.arg(*n, 0) == "on")).collect()
}

/// Returns `true` if the server of a `listen` directive speaks TLS 1.3, as it does by default.
fn speaks_tls13(s: &Scene<'_>, listen: usize) -> bool {
    let protocols = s.effective(s.parent(listen), "ssl_protocols");
    protocols.is_none_or(|n| s.has(n, "TLSv1.3"))
}

/// Returns `true` if a `map` has a regular expression with a capture.
fn has_captures(s: &Scene<'_>, map: usize) -> bool {
    let block = s.nodes.get(map).and_then(|n| n.d.block.as_ref());
    block.into_iter().flatten().any(|d| d.name.text.starts_with(b"~") && d.name.text.contains(&b'('))
}

/// Returns `true` if the replacement of a `rewrite` has a question mark, and a later directive of the level uses `$1` or the like.
fn is_followed_by_captures(s: &Scene<'_>, rewrite: usize) -> bool {
    let level = s.level(s.parent(rewrite));
    let later = level.iter().skip_while(|n| **n != rewrite).skip(1);
    let mut later = later.filter(|n| ["rewrite", "if", "set"].iter().any(|name| s.is(**n, name)));
    s.arg(rewrite, 1).trim_end_matches('?').contains('?')
        && later.any(|n| s.is(*n, "if") || s.args(*n).iter().any(|a| !numbered(a).is_empty()))
}

/// Returns the numbers of the captures in a text.
fn numbered(text: &str) -> Vec<char> {
    let after = text.split('$').skip(1).filter_map(|rest| rest.chars().next());
    after.filter(char::is_ascii_digit).collect()
}

/// Returns `true` if a pattern has a capture inside of another one, and the replacement uses several.
fn nests_captures(pattern: &str, replacement: &str) -> bool {
    let mut depth = 0;
    let mut nested = false;
    let mut escaped = false;
    for c in pattern.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '(' => {
                depth += 1;
                nested |= depth > 1;
            }
            ')' => depth -= 1,
            _ => {}
        }
    }
    nested && numbered(replacement).len() > 1
}

checks! { Check;
    "nginx-cve" |s, host, found| {
        let Some(version) = host.target.nginx() else { return };
        for fault in faults().filter(|fault| fault.affects(version)) {
            let mut at = openings(fault.opened, s).into_iter();
            if let Some(first) = at.next() {
                found(s.span(first), fault.text(version, at.count()));
            }
        }
    },
}

/// Returns the faults that directives open which Forebay refuses, so that they are in no tree: `mail` and `mp4`.
pub fn of_refused(errors: &[Error], files: &Files, version: NginxVersion) -> Vec<Finding> {
    let Some(rule) = rule("nginx-cve") else { return Vec::new() };
    let refused = |word: &str| {
        let is_word = |span: &Span| {
            let text = files.bytes(span.file).get(span.start as usize..span.end as usize);
            text.is_some_and(|text| text == word.as_bytes())
        };
        errors.iter().filter_map(|e| e.span).find(is_word)
    };
    let speaks_smtp = |span: &Span| memchr::memmem::find(files.bytes(span.file), b"smtp").is_some();
    let opening = |opened: &str| match opened {
        "mp4" | "mail" => refused(opened),
        "mail smtp" => refused("mail").filter(speaks_smtp),
        _ => None,
    };
    let affecting = faults().filter(|fault| fault.affects(version));
    let found = affecting.filter_map(|fault| Some((opening(fault.opened)?, fault)));
    found
        .map(|(span, fault)| Finding { rule, message: fault.text(version, 0), span: Some(span), fix: None })
        .collect()
}

/// Makes docs/security.md.
pub(crate) fn manual() -> String {
    let mut out = include_str!("../../data/security.head.md").to_owned();
    for fault in faults() {
        let Fault { cve, published, severity, affected, fixed, what, source, replay, .. } = fault;
        let (affected, fixed) = (affected.replace(' ', ", "), fixed.replace(' ', ", "));
        out.push_str(&format!(
            "| [{cve}]({source}) | {published} | {severity} | {affected} | {fixed} | {what} | `{replay}` |\n"
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared() {
        let version = |text| NginxVersion::parse(text);
        assert_eq!(version("nginx/1.22.1"), version("1.22.1 (Debian)"));
        assert!(version("1.9.15") < version("1.10.0"));
        for wrong in ["", "1.2", "1.2.3.4", "nginx", "1.x.3", "-1.2.3"] {
            assert_eq!(version(wrong), None, "{wrong}");
        }
        assert_eq!(version("nginx/1.22.1").expect("a version").to_string(), "1.22.1");
    }

    #[test]
    fn the_table_is_complete() {
        let rows = TABLE.lines().count() - 1;
        assert_eq!(faults().count(), rows);
        let old = NginxVersion([1, 22, 1]);
        for fault in faults() {
            for range in fault.affected.split(' ') {
                let (first, last) = range.split_once('-').expect("a range");
                assert!(NginxVersion::parse(first) <= NginxVersion::parse(last), "{}: {range}", fault.cve);
                assert!(fault.affects(NginxVersion::parse(last).expect("a version")), "{}", fault.cve);
            }
            for fixed in fault.fixed.split(' ') {
                assert!(
                    !fault.affects(NginxVersion::parse(fixed).expect("a version")),
                    "{}: {fixed}",
                    fault.cve
                );
            }
            assert!(fault.source.starts_with("https://"), "{}", fault.cve);
        }
        assert!(faults().filter(|fault| fault.affects(old)).count() > 15);
        assert_eq!(faults().filter(|fault| fault.affects(NginxVersion([1, 31, 9]))).count(), 0);
    }

    /// For each condition of the table a configuration that opens the fault and one that does not.
    #[test]
    fn each_fault_is_found_where_it_is_opened() {
        let cases: &[(&str, &str, &str)] = &[
            (
                "http2",
                "http { server { listen 443 ssl http2; } }",
                "http { server { listen 443 ssl; http2 off; } }",
            ),
            ("quic", "http { server { listen 443 quic; } }", "http { server { listen 443 ssl; } }"),
            ("client certificates", "http { ssl_verify_client on; }", "http { ssl_verify_client off; }"),
            (
                "stream client certificates",
                "stream { ssl_verify_client on; }",
                "http { ssl_verify_client on; }",
            ),
            ("ocsp", "http { ssl_ocsp leaf; }", "http { ssl_ocsp off; }"),
            ("stream ocsp", "stream { ssl_ocsp on; }", "http { ssl_ocsp on; }"),
            (
                "tls upstreams",
                "http { server { location / { proxy_pass https://a; } } }",
                "http { server { location / { proxy_pass http://a; } } }",
            ),
            ("tls upstreams", "stream { server { proxy_ssl on; } }", "stream { server { proxy_ssl off; } }"),
            (
                "dav alias",
                "http { server { location /a/ { alias /b/; dav_methods COPY; } } }",
                "http { server { location /a/ { root /b/; dav_methods COPY; } } }",
            ),
            (
                "alias rewrite",
                "http { server { location /a/ { alias /b/; rewrite a b; } } }",
                "http { server { location /a/ { alias /b/; } } }",
            ),
            (
                "proxied http2 body",
                "http { proxy_http_version 2; server { proxy_set_body x; } }",
                "http { server { proxy_set_body x; } }",
            ),
            (
                "proxied http2",
                "http { server { location / { grpc_pass a; } } }",
                "http { server { location / { proxy_pass http://a; } } }",
            ),
            (
                "scgi or uwsgi",
                "http { server { location / { uwsgi_pass a; } } }",
                "http { server { location / { fastcgi_pass a; } } }",
            ),
            ("charset", "http { source_charset koi8-r; }", "http { charset utf-8; }"),
            ("slice", "http { slice 1m; }", "http { slice 0; }"),
            ("ssi", "http { ssi on; }", "http { ssi off; }"),
            ("ssi aio", "http { aio threads; ssi on; }", "http { aio off; ssi on; }"),
            ("resolver", "http { resolver 127.0.0.1; }", "http {}"),
            (
                "tickets",
                "http { ssl_session_ticket_key a; ssl_session_ticket_key b; }",
                "http { ssl_session_ticket_key a; }",
            ),
            (
                "tls 1.3",
                "http { server { listen 443 ssl; } }",
                "http { ssl_protocols TLSv1.2; server { listen 443 ssl; } }",
            ),
            ("map captures", "http { map $uri $a { ~^/(.*)$ $1; } }", "http { map $uri $a { ~^/ x; } }"),
            (
                "rewrite then captures",
                "http { server { rewrite ^/(.*)$ /x?y=$1; set $a $1; } }",
                "http { server { rewrite ^/(.*)$ /x/$1; set $a $1; } }",
            ),
            (
                "rewrite overlapping",
                "http { server { rewrite ^/((.*))$ /$1$2; } }",
                "http { server { rewrite ^/(.*)/(.*)$ /$1$2; } }",
            ),
        ];
        let found = |opened: &str, conf: &str| {
            let path = std::path::Path::new("/n.conf");
            let mut files = Files::recorded([("/n.conf", conf)]);
            let parsed = forebay_conf::parse::parse(path, "", path, &mut files);
            openings(opened, &Scene::new(&parsed.tree)).len()
        };
        for (opened, with, without) in cases {
            assert!(found(opened, with) > 0, "{opened}: {with}");
            assert_eq!(found(opened, without), 0, "{opened}: {without}");
        }
        for fault in faults() {
            let is_refused = ["mp4", "mail", "mail smtp"].contains(&fault.opened);
            assert!(
                is_refused || cases.iter().any(|(opened, ..)| *opened == fault.opened),
                "{}: {}",
                fault.cve,
                fault.opened
            );
        }
    }

    #[test]
    fn faults_of_refused_blocks_are_found() {
        let found = |conf: &str| {
            let path = std::path::Path::new("/n.conf");
            let mut files = Files::recorded([("/n.conf", conf)]);
            let parsed = forebay_conf::parse::parse(path, "", path, &mut files);
            let findings = of_refused(&parsed.errors, &files, NginxVersion([1, 24, 0]));
            findings
                .into_iter()
                .map(|f| f.message.split(' ').next().unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            found("events {} mail { server { listen 25; protocol smtp; } }"),
            ["CVE-2025-53859", "CVE-2026-27651", "CVE-2026-28753", "CVE-2026-113425"]
        );
        assert_eq!(
            found("events {} mail { server { listen 143; protocol imap; } }"),
            ["CVE-2026-27651", "CVE-2026-113425"]
        );
        assert_eq!(
            found("events {} http { server { location / { mp4; } } }"),
            ["CVE-2024-7347", "CVE-2026-27784", "CVE-2026-32647"]
        );
        assert_eq!(found("events {} http {}"), [""; 0]);
    }

    #[test]
    fn docs_security_md_is_the_table() {
        let page = include_str!("../../../../docs/security.md");
        assert_eq!(page, manual(), "run: forebay doctor --explain nginx-cves > docs/security.md");
    }
}
