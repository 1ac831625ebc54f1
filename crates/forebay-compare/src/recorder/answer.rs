//! The answers of the recorder: each is a function of the request that it received.

use crate::message::{Field, Received, field};
use std::io::Write;

/// Field that tells the recorder which of its answers a request wants.
pub const WISH: &str = "Forebay-Answer";

/// Field with the number of a request.
pub const NUMBER: &str = "Forebay-Compare";

/// Answers that can be wished for, besides the plain one.
pub const WISHES: [&str; 15] = [
    "cookie",
    "cache",
    "private",
    "gzip",
    "chunked",
    "redirect",
    "elsewhere",
    "accel",
    "404",
    "500",
    "503",
    "401",
    "204",
    "json",
    "fields",
];

/// An answer before a protocol has given it its form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) fields: Vec<Field>,
    pub(super) body: Vec<u8>,
    /// Over HTTP/1, the body has chunks in place of a length.
    pub(super) chunked: bool,
}

impl Reply {
    fn add(&mut self, name: &str, value: &str) {
        self.fields.push((name.to_owned(), value.to_owned()));
    }

    /// Adds what two answers differ by.
    fn wish(&mut self, wish: &str, host: &str) {
        match wish {
            "cookie" => {
                self.add("Set-Cookie", "a=1; Path=/app; HttpOnly");
                self.add("Set-Cookie", &format!("b=2; Domain={host}; Path=/"));
            }
            "cache" => {
                self.add("Cache-Control", "public, max-age=600");
                self.add("ETag", "\"v1\"");
                self.add("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT");
            }
            "private" => {
                self.add("Cache-Control", "private, no-store");
                self.add("Expires", "Thu, 01 Jan 1970 00:00:01 GMT");
                self.add("Vary", "Cookie, Accept-Language");
            }
            "gzip" => self.compress(),
            "chunked" => self.chunked = true,
            "redirect" => self.redirect(302, &format!("http://{host}/moved/here?x=1")),
            "elsewhere" => self.redirect(301, "/elsewhere"),
            "accel" => self.add("X-Accel-Redirect", "/accel/file.txt?y=2"),
            "401" => {
                self.status = 401;
                self.add("WWW-Authenticate", "Basic realm=\"up\"");
            }
            "204" => {
                self.status = 204;
                self.body.clear();
            }
            "json" => self.set_type("application/json"),
            "fields" => self.unusual(),
            status => self.status = status.parse().unwrap_or(200),
        }
    }

    fn redirect(&mut self, status: u16, to: &str) {
        self.status = status;
        self.add("Location", to);
    }

    fn set_type(&mut self, value: &str) {
        self.fields.retain(|(name, _)| name != "Content-Type");
        self.add("Content-Type", value);
    }

    fn compress(&mut self) {
        let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
        if coder.write_all(&self.body).is_ok()
            && let Ok(coded) = coder.finish()
        {
            self.body = coded;
            self.add("Content-Encoding", "gzip");
        }
    }

    /// Adds fields that servers treat in their own way.
    fn unusual(&mut self) {
        for (name, value) in [
            ("Server", "recorder"),
            ("Date", "Wed, 21 Oct 2015 07:28:00 GMT"),
            ("X-Powered-By", "recorder"),
            ("X-Accel-Buffering", "no"),
            ("X-Accel-Charset", "utf-8"),
            ("X-Two", "1"),
            ("X-Two", "2"),
            ("x-lower", "a,  b"),
            ("Accept-Ranges", "bytes"),
            ("Link", "</a.css>; rel=preload"),
        ] {
            self.add(name, value);
        }
    }
}

/// Returns the answer to a request, and the number in it.
pub(super) fn answer(received: &Received) -> (Option<u32>, Reply) {
    let told = |name: &str| {
        let variable = format!("HTTP_{}", name.to_ascii_uppercase().replace('-', "_"));
        field(&received.fields, name).or_else(|| field(&received.fields, &variable))
    };
    let number = told(NUMBER).and_then(|n| n.parse().ok());
    let host = told("Host").unwrap_or("upstream.example").to_owned();
    // The same at every address, also where the content is compressed.
    let shown = host.replace("127.0.0.2:", "127.0.0.1:");
    let target = received.line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let body = format!(
        "<html><head><title>{target}</title></head>\n<body>{} bytes for http://{shown}/ &amp; more: {}</body></html>\n",
        received.body.len(),
        "the quick brown fox ".repeat(60),
    );
    let mut reply = Reply { status: 200, fields: Vec::new(), body: body.into(), chunked: false };
    reply.add("Content-Type", "text/html");
    if let Some(wish) = told(WISH) {
        reply.wish(wish, &host);
    }
    if received.line.starts_with("HEAD ") && !received.protocol.starts_with("HTTP") {
        reply.body.clear();
    }
    (number, reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_follow_the_request_alone() {
        let asked = |wish: &str| Received {
            protocol: "HTTP/1",
            line: "GET /a?b HTTP/1.0".into(),
            fields: vec![
                ("host".into(), "app".into()),
                (NUMBER.into(), "7".into()),
                (WISH.into(), wish.into()),
            ],
            body: b"xy".to_vec(),
        };
        for wish in WISHES {
            let (number, reply) = answer(&asked(wish));
            assert_eq!((number, &reply), (Some(7), &answer(&asked(wish)).1));
            assert_ne!(reply, answer(&asked("")).1, "{wish}");
        }
        assert!(answer(&asked("redirect")).1.fields.iter().any(|(_, v)| v == "http://app/moved/here?x=1"));
        assert_eq!(answer(&asked("503")).1.status, 503);
    }

    #[test]
    fn parameters_of_gateways_count_as_fields() {
        let fields = vec![("HTTP_FOREBAY_COMPARE".to_owned(), "9".to_owned())];
        let received = Received { protocol: "FastCGI", line: "GET /".into(), fields, body: Vec::new() };
        assert_eq!(answer(&received).0, Some(9));
    }
}
