//! Values of annotations and keys: valid ones, and hostile ones made of them.

#![allow(dead_code, reason = "each program of tests uses a part")]

use forebay_k8s::value::Value;
use std::collections::BTreeMap;

/// Annotations that others need to have an effect.
const COMPANIONS: &[(&str, &[(&str, &str)])] = &[
    (
        "auth-",
        &[
            ("auth-url", "http://10.0.0.1/x"),
            ("auth-type", "basic"),
            ("auth-secret", "pw"),
            ("auth-cache-key", "$remote_user"),
            ("auth-signin", "https://l.example.com/"),
        ],
    ),
    ("auth-tls-", &[("auth-tls-secret", "tls")]),
    ("cors-", &[("enable-cors", "true")]),
    ("canary-", &[("canary", "true")]),
    ("session-cookie-", &[("affinity", "cookie")]),
    ("limit-", &[("limit-rps", "5"), ("limit-rpm", "5"), ("limit-connections", "5")]),
    ("mirror-", &[("mirror-target", "http://10.0.0.2/")]),
    ("proxy-redirect-", &[("proxy-redirect-from", "http://a/"), ("proxy-redirect-to", "http://b/")]),
    ("proxy-ssl-", &[("backend-protocol", "HTTPS"), ("proxy-ssl-secret", "tls")]),
    ("permanent-redirect-code", &[("permanent-redirect", "https://x.example.com/")]),
    ("temporal-redirect-code", &[("temporal-redirect", "https://x.example.com/")]),
    ("custom-http-errors", &[("default-backend", "web")]),
    ("fastcgi-", &[("backend-protocol", "FCGI")]),
    ("x-forwarded-prefix", &[("rewrite-target", "/$1")]),
];

/// Valid values of annotations and keys whose rows do not spell one.
const SAMPLES: &[(&str, &[&str])] = &[
    ("auth-secret", &["pw", "ns/pw"]),
    ("auth-tls-secret", &["tls"]),
    ("proxy-ssl-secret", &["tls"]),
    ("custom-headers", &["fields"]),
    ("auth-proxy-set-headers", &["fields"]),
    ("fastcgi-params-configmap", &["fields"]),
    ("default-backend", &["web"]),
    ("custom-http-errors", &["404", "404,503", "401,404"]),
    ("proxy-next-upstream", &["error http_502"]),
    ("proxy-cookie-domain", &["off", "a b"]),
    ("proxy-cookie-path", &["off", "/a /b"]),
    ("proxy-redirect-from", &["off", "default", "http://x/"]),
    ("proxy-redirect-to", &["off", "http://y/"]),
    ("proxy-ssl-protocols", &["TLSv1.2 TLSv1.3"]),
    ("cors-allow-origin", &["*", "https://a.example.com", "https://*.example.com,http://b"]),
    ("server-alias", &["b.example.com", "b.example.com,c.example.com"]),
    ("auth-cache-duration", &["200 5m, 401 1m"]),
    ("auth-tls-match-cn", &["CN=x"]),
    ("auth-tls-error-page", &["/x", "https://x.example.com/"]),
    ("no-tls-redirect-locations", &["/", "/p", "/p,/"]),
    ("no-auth-locations", &["/", "/p", "/p,/"]),
    ("auth-signin", &["https://l.example.com/?a=b", "/x"]),
    ("add-headers", &["ns/fields"]),
    ("proxy-set-headers", &["ns/fields"]),
    ("large-client-header-buffers", &["4 8k"]),
    ("bind-address", &["127.0.0.1", "::1"]),
    ("block-user-agents", &["x", "~*x"]),
    ("block-referers", &["x", "~*x"]),
    ("skip-access-log-urls", &["/x"]),
    ("custom-http-errors", &["404"]),
    (
        "ssl-session-ticket-key",
        &["AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"],
    ),
    ("syslog-host", &["10.0.0.1"]),
    ("affinity", &["cookie"]),
    ("temporal-redirect", &["https://x.example.com/", "/x"]),
    ("permanent-redirect", &["https://x.example.com/", "/x"]),
    ("mirror-target", &["http://10.0.0.1/$request_uri", "https://m.example.com/"]),
    ("auth-url", &["http://10.0.0.1/x", "http://a.example.com/", "https://$host/x"]),
    ("upstream-hash-by", &["$request_uri"]),
    ("global-auth-url", &["http://10.0.0.1/"]),
    ("auth-keepalive", &["5"]),
];

/// Numbers that look random.
pub struct Random(pub u64);

impl Random {
    /// Returns a number below another.
    pub fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }

    /// Returns one of some.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

const ALPHABET: &[&str] = &[
    "\"",
    "'",
    "{",
    "}",
    ";",
    "\n",
    "\r",
    "\t",
    " ",
    "$",
    "${",
    "#",
    "\\",
    "\0",
    "\u{feff}",
    "é",
    "漢",
    "😀",
    "\u{202e}",
    "`",
    "|",
    "&",
    "(",
    ")",
    "[",
    "]",
    "*",
    "~",
    "^",
    "=",
    "@",
    ",",
    ":",
    "/",
    "..",
    "%0a",
    "\\n",
    "a",
    "1",
    "-",
    "_",
    ".",
    "?",
    "on",
    "off",
    "default",
    "include",
    "hostnames",
    "volatile",
    "load_module /x.so;",
    "root /;",
    "alias /etc/;",
    "}\nlocation / {",
    "proxy_pass http://127.0.0.1;",
    "lua",
    "access_log /x",
    "$host",
    "$1",
    "$nonesuch",
    "http://",
    "https://",
    "127.0.0.1",
    "10.0.0.0/8",
    "CN=",
    "true",
    "200",
    "5m",
    "!",
    "ssl_engine ../x;",
    "' \"",
    "--",
    "/*",
    "X-Y",
    "unix:/x",
];

/// Makes a value: sometimes random, sometimes a valid one with something in it.
pub fn hostile(random: &mut Random, valid: &[String]) -> String {
    let mut text = String::new();
    if random.below(3) == 0 || valid.is_empty() {
        for _ in 0..random.below(12) {
            text.push_str(random.pick(ALPHABET));
        }
        return text;
    }
    let base = &valid[random.below(valid.len())];
    let at = random.below(base.chars().count() + 1);
    text.extend(base.chars().take(at));
    for _ in 0..=random.below(3) {
        text.push_str(random.pick(ALPHABET));
    }
    text.extend(base.chars().skip(at));
    text
}

/// Returns valid values.
pub fn samples(name: &str, value: Value, default: &str) -> Vec<String> {
    let mut all: Vec<String> = SAMPLES
        .iter()
        .filter(|(n, _)| *n == name || name == format!("global-{n}"))
        .flat_map(|(_, v)| v.iter().map(|s| (*s).to_owned()))
        .collect();
    let more: &[&str] = match value {
        Value::Bool => &["true", "false"],
        Value::Number(..) => &["0", "1", "3", "300", "404", "8000"],
        Value::Size => &["8k", "0", "1m", "64k"],
        Value::Time => &["5s"],
        Value::OneOf(words) | Value::AnyCase(words) => words,
        Value::Cidrs => &["", "10.0.0.0/8", "10.0.0.0/8,::1"],
        Value::Token | Value::Name | Value::Reference => &["abc"],
        Value::Tokens => &["X-A", "X-A, X-B"],
        Value::Path | Value::Captures => &["/x", "/$1"],
        Value::Names => &["b.example.com", "b.example.com, ~^c\\d+\\.example\\.com$"],
        Value::Regex => &["^(a|b)$"],
        Value::Variables => &["$host", "${host}-x"],
        Value::Template | Value::Text => &["text $host", "x"],
        Value::Line => &["text"],
        Value::StreamText => &["$status $protocol"],
        Value::Snippet => &[],
    };
    all.extend(more.iter().map(|s| (*s).to_owned()));
    if !default.is_empty() {
        all.push(default.to_owned());
    }
    all
}

/// Returns the annotations that one needs to have an effect, with their prefix.
pub fn companions(name: &str) -> BTreeMap<String, String> {
    let list =
        COMPANIONS.iter().filter(|(prefix, _)| name.starts_with(prefix)).flat_map(|(_, list)| list.iter());
    list.map(|(n, v)| (format!("nginx.ingress.kubernetes.io/{n}"), (*v).to_owned())).collect()
}
