//! Heads of answers and requests where nginx goes by how a message came: with a reason phrase or without, with a length or without, in
//! one piece or in several. Compared with nginx over every upstream protocol.

use crate::http3::Client;
use forebay_http::h2::frame::{flag, kind};
use forebay_testkit::{
    Form, Oracle, Origin, P256, Server, Site, Talk, body_of, chunked, content_of, fastcgi, gateways, h2,
    is_before, normalise, oracle, page_files, raw, wait_until, wrap,
};
use serde_json::json;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};

forebay_testkit::cases!("cases/differential_answers.cases": pages_for_lines_that_are_refused);

/// nginx and the program with the same servers, which listen at `%PORT0%`, and at `%PORT1%` over HTTP/2.
struct Both {
    ours: Server,
    theirs: Oracle,
}

impl Both {
    fn start(nginx: &str, http: &str, server: &str) -> Both {
        let conf = wrap(&format!(
            "{http}\nserver {{ listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT1% http2; {server} }}"
        ));
        let (ours, theirs) = (Site::new(&conf), Site::new(&conf));
        [&ours, &theirs].into_iter().for_each(page_files);
        Both { ours: Server::start_on(ours), theirs: Oracle::start(nginx, theirs) }
    }

    /// Returns what both answer at a port. `ask` gets the address.
    fn ask(&self, port: usize, ask: impl Fn(SocketAddr) -> String) -> [String; 2] {
        [self.theirs.site(), &self.ours.site].map(|site| ask(site.addr(port)))
    }

    /// The same for HTTP/1, in a form that can be compared.
    fn ask_text(&self, port: usize, text: impl AsRef<[u8]>) -> [String; 2] {
        [self.theirs.site(), &self.ours.site].map(|site| {
            let answer = raw(site.addr(port), &text);
            let head = answer.len() - body_of(&answer).len();
            // The names of the products differ in length, and so would chunks.
            let whole = [&answer[..head], &content_of(&answer)].concat();
            Form::Sorted.of(&normalise(&whole, site))
        })
    }
}

/// Notes a difference.
fn note(differences: &mut String, what: &str, [theirs, ours]: [String; 2]) {
    if theirs != ours {
        differences.push_str(&format!("== {what}\n-- nginx\n{theirs}\n-- forebay\n{ours}\n"));
    }
}

/// Sends a request over HTTP/2, with content in the same write as its head, without a length. Returns fields and content.
fn over_h2(addr: SocketAddr, method: &str, path: &str, content: Option<&[u8]>) -> String {
    let mut client = h2::Client::on(TcpStream::connect(addr).expect("connect"));
    let fields = [(":method", method), (":scheme", "http"), (":authority", "localhost"), (":path", path)];
    let end = if content.is_none() { flag::END_STREAM } else { 0 };
    let mut bytes = h2::headers(1, &fields, flag::END_HEADERS | end);
    bytes.extend(content.map(|content| h2::data(1, content, flag::END_STREAM)).unwrap_or_default());
    client.send(&bytes);
    let answer = client.answer(1);
    let mut lines: Vec<String> = (answer.fields.iter())
        .filter(|(name, _)| name != "date" && name != "server")
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    lines.sort_unstable();
    format!("{}\n\n{}{:?}", lines.join("\n"), String::from_utf8_lossy(&answer.body), answer.reset)
}

/// Statuses of the upstreams, by the last digit of the path.
const STATUSES: [&str; 8] =
    ["200 OK", "203", "204", "204 No Content", "204  Two Blanks", "205 ", "304", "404 Not Found"];

/// Returns the status that a path asks for.
fn status_of(path: &str) -> &'static str {
    let digit = path.chars().rev().find_map(|c| c.to_digit(10)).expect("a digit");
    STATUSES[digit as usize]
}

/// Answer of a program, with a type.
fn of_program(path: &str) -> String {
    format!("Status: {}\r\nContent-Type: text/x\r\n\r\n", status_of(path))
}

/// Starts an upstream of HTTP/2. The letter before the digit says how an answer ends: `h` with its head, `d` with empty content, `c` with
/// content, `t` with trailers.
fn of_frames() -> SocketAddr {
    let serve = |peer: &mut h2::Peer, _| {
        while let Some(frame) = peer.next_of(kind::HEADERS) {
            let fields = h2::fields(&frame.payload);
            let path = fields.iter().find(|(name, _)| name == ":path").map_or("", |(_, path)| path);
            let code = &status_of(path)[..3];
            let way = path.chars().rev().nth(1).unwrap_or('h');
            let head = [(":status", code), ("content-type", "text/x")];
            let end = if way == 'h' { flag::END_STREAM } else { 0 };
            let mut answer = vec![h2::headers(frame.stream, &head, flag::END_HEADERS | end)];
            match way {
                'd' => answer.push(h2::data(frame.stream, b"", flag::END_STREAM)),
                'c' => answer.push(h2::data(frame.stream, b"xyz", flag::END_STREAM)),
                't' => {
                    let flags = flag::END_HEADERS | flag::END_STREAM;
                    answer.push(h2::headers(frame.stream, &[("grpc-status", "0")], flags));
                }
                _ => {}
            }
            peer.send(&answer);
        }
    };
    h2::upstream(&[], serve).0
}

/// Without a phrase of the upstream the server's own status line is sent, and a 204 then has no type. Over HTTP/2 it never has one. A gRPC
/// answer that ends with its head has a length.
#[test]
fn heads_without_phrases_and_lengths() {
    let Some(nginx) = oracle() else { return };
    let h1 = Origin::start(|asked| {
        let head = format!("HTTP/1.1 {}\r\nContent-Type: text/x\r\n\r\n", status_of(asked.target()));
        asked.close_with(head)
    });
    let program = |call: &gateways::Call| of_program(call.get("URI")).into_bytes();
    let scgi = gateways::start(gateways::scgi, program);
    let uwsgi = gateways::start(gateways::uwsgi, program);
    let fcgi = fastcgi::start(|asked| {
        let answer = fastcgi::answer(&of_program(asked.get("URI")));
        asked.write(&answer);
    });
    let frames = of_frames();
    // An older nginx does not speak HTTP/2 to upstreams, and sends the status of a program as it is.
    let is_old = is_before(&nginx, 31);
    let http2 = format!("location /h2/ {{ proxy_http_version 2; proxy_pass http://{frames}; }}");
    let server = format!(
        "location /h1/ {{ proxy_http_version 1.1; proxy_pass http://{h1}; }}\n\
         location /scgi/ {{ scgi_param URI $uri; scgi_pass {scgi}; }}\n\
         location /uwsgi/ {{ uwsgi_param URI $uri; uwsgi_pass {uwsgi}; uwsgi_hide_header Status; }}\n\
         location /fcgi/ {{ fastcgi_param URI $uri; fastcgi_pass {fcgi}; }}\n\
         location /grpc/ {{ grpc_pass {frames}; }}\n{}",
        if is_old { "" } else { &http2 }
    );
    let both = Both::start(&nginx, "", &server);
    let mut differences = String::new();
    for place in
        ["h1/", "scgi/", "uwsgi/", "fcgi/", "grpc/h", "grpc/d", "grpc/c", "grpc/t", "h2/h", "h2/d", "h2/c"]
    {
        for (digit, status) in STATUSES.iter().enumerate() {
            let (path, code) = (format!("/{place}{digit}"), &status[..3]);
            for method in ["GET", "HEAD"] {
                // Content that must not be there.
                let is_bare = method == "HEAD" || code == "204" || code == "304";
                if is_old && !place.starts_with("h1") && !place.starts_with("grpc")
                    || is_bare && place.ends_with('c')
                {
                    continue;
                }
                let text =
                    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
                note(&mut differences, &format!("{method} {path} over HTTP/1.1"), both.ask_text(0, text));
                let h2 = both.ask(1, |addr| over_h2(addr, method, &path, None));
                note(&mut differences, &format!("{method} {path} over HTTP/2"), h2);
            }
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

/// Content of HTTP/2 without a length keeps to be without one where it is passed on as it comes, also if all of it is there. HTTP/1.0
/// has no chunks, so that the whole content is read first.
#[test]
fn content_without_a_length_is_passed_on_without_one() {
    let Some(nginx) = oracle() else { return };
    let h1 = Origin::start(|asked| {
        let (length, coding) = (asked.field("Content-Length"), asked.field("Transfer-Encoding"));
        let text = format!("length {length:?}, coding {coding:?}");
        asked.answer("200 OK", "", text)
    });
    let told = |length: &str, content: usize| {
        format!("Content-Type: text/x\r\n\r\nlength {length:?}, {content} bytes")
    };
    let fcgi = fastcgi::start(move |asked| {
        let answer = fastcgi::answer(&told(asked.get("LENGTH"), asked.stdin.len()));
        asked.write(&answer);
    });
    let scgi = gateways::start(gateways::scgi, move |call| told(call.get("CONTENT_LENGTH"), 0).into_bytes());
    let uwsgi =
        gateways::start(gateways::uwsgi, move |call| told(call.get("CONTENT_LENGTH"), 0).into_bytes());
    let both = Both::start(
        &nginx,
        "",
        &format!(
            "client_body_buffer_size 16k; proxy_request_buffering off; fastcgi_request_buffering off;\n\
             scgi_request_buffering off; uwsgi_request_buffering off;\n\
             location /h1/ {{ proxy_http_version 1.1; proxy_pass http://{h1}; }}\n\
             location /h1.0/ {{ proxy_http_version 1.0; proxy_pass http://{h1}; }}\n\
             location /read/ {{ proxy_http_version 1.1; proxy_request_buffering on; proxy_pass http://{h1}; }}\n\
             location /fcgi/ {{ fastcgi_param LENGTH $content_length; fastcgi_pass {fcgi}; }}\n\
             location /scgi/ {{ scgi_param CONTENT_LENGTH $content_length; scgi_pass {scgi}; }}\n\
             location /uwsgi/ {{ uwsgi_param CONTENT_LENGTH $content_length; uwsgi_pass {uwsgi}; }}"
        ),
    );
    let mut differences = String::new();
    for path in ["/h1/", "/h1.0/", "/read/", "/fcgi/", "/scgi/", "/uwsgi/"] {
        for size in [0, 5, 1000, 14_000] {
            let content = vec![b'x'; size];
            let h2 = both.ask(1, |addr| over_h2(addr, "POST", path, Some(&content)));
            note(&mut differences, &format!("POST {path} of {size} bytes over HTTP/2"), h2);
            if size > 1000 {
                // Whether all of it comes with its head is chance.
                continue;
            }
            let length = format!("Content-Length: {size}");
            for (field, body) in
                [("Transfer-Encoding: chunked", &chunked(&content, 4000)), (&length, &content)]
            {
                let head = format!(
                    "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{field}\r\n\r\n"
                );
                let h1 = both.ask_text(0, [head.as_bytes(), body].concat());
                note(&mut differences, &format!("POST {path} of {size} bytes, {field}"), h1);
            }
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

/// Over HTTP/3 content that comes with its head gets a length.
#[test]
fn content_over_http3_that_comes_with_its_head_has_a_length() {
    let Some(nginx) = oracle().filter(|nginx| !is_before(nginx, 31)) else { return };
    let Some(mut client) = Client::start() else { return };
    let up = Origin::start(|asked| {
        let (length, coding) = (asked.field("Content-Length"), asked.field("Transfer-Encoding"));
        let text = format!("length {length:?}, coding {coding:?}");
        asked.answer("200 OK", "", text)
    });
    let conf = wrap(&format!(
        "ssl_certificate localhost.crt; ssl_certificate_key localhost.key;\n\
         server {{ listen 127.0.0.1:%PORT0% ssl; listen 127.0.0.1:%PORT0% quic;\n\
         location / {{ proxy_http_version 1.1; proxy_request_buffering off; proxy_pass http://{up}; }} }}"
    ));
    let (ours, theirs) = (Site::new(&conf), Site::new(&conf));
    for site in [&ours, &theirs] {
        site.certificate("localhost", P256, "localhost", "");
    }
    let (ours, theirs) = (Server::start_on(ours), Oracle::start(&nginx, theirs));
    let mut told = |name: &str, addr: SocketAddr| {
        let connected = client.call("connect", json!({"as": name, "port": addr.port()}));
        assert_eq!(connected["connected"], true, "{name}: {connected}");
        ["", "text", "0123456789"].map(|body| {
            client.request(name, "r", json!({"method": "POST", "path": "/", "body": body, "text": true}));
            client.answer("r")["text"].to_string()
        })
    };
    let theirs = told("theirs", theirs.addr());
    assert_eq!(told("ours", ours.addr(0)), theirs);
    assert!(theirs[1].contains("length \\\"4\\\""), "{theirs:?}");
}

/// The challenge of a 401 stays whatever takes the place of its page. `$sent_http_*` tell what was sent.
#[test]
fn challenges_and_lengths_are_those_that_are_sent() {
    const PLACES: [&str; 8] = [
        "error_page 401 /missing;",
        "error_page 401 = /missing;",
        "error_page 401 =403 /denied;",
        "error_page 401 @busy;",
        "error_page 401 @down;",
        "error_page 401 http://localhost/;",
        "error_page 401 /page.html;",
        "satisfy any; deny all; error_page 401 =204 /missing;",
    ];
    let Some(nginx) = oracle() else { return };
    let places: String = (PLACES.iter().enumerate())
        .map(|(n, place)| format!("location = /{n} {{ auth_basic x; auth_basic_user_file none; {place} }}\n"))
        .collect();
    let both = Both::start(
        &nginx,
        "log_format sent '$request_uri $status $sent_http_content_type $sent_http_content_length $sent_http_transfer_encoding';",
        &format!(
            "access_log logs/sent.log sent; {places} location /denied {{ deny all; }} location @busy {{ return 503; }}\n\
             location @down {{ proxy_pass http://127.0.0.1:1; }} location /empty {{ return 204; }} location /text {{ return 200 text; }}\n\
             location /trailer {{ add_trailer X-T v; return 200 text; }} location /digits.txt {{ }}"
        ),
    );
    let paths = (0..PLACES.len()).map(|n| format!("/{n}"));
    let others = ["/empty", "/text", "/trailer", "/digits.txt"].map(str::to_owned);
    let mut differences = String::new();
    let mut count = 0;
    for path in paths.chain(others) {
        for version in ["1.1", "1.0"] {
            let text = format!("GET {path} HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            note(&mut differences, &format!("{path} HTTP/{version}"), both.ask_text(0, text));
            count += 1;
        }
        note(&mut differences, &format!("{path} HTTP/2"), both.ask(1, |addr| fields_over_h2(addr, &path)));
        count += 1;
    }
    assert!(differences.is_empty(), "{differences}");
    // The lengths of pages have the names of the products in them.
    let lines = |site: &Site| {
        let of_page = |line: &&str| !line.contains("text/html");
        let text = site.read("logs/sent.log");
        (text.lines().filter(of_page).map(str::to_owned).collect::<Vec<_>>(), text.lines().count())
    };
    wait_until("the lines of both", || {
        lines(both.theirs.site()).1 == count && lines(&both.ours.site).1 == count
    });
    assert_eq!(lines(&both.ours.site).0, lines(both.theirs.site()).0);
}

/// Sends a `GET` over HTTP/2. Returns the fields without the length of the content, which differs with the names of the products.
fn fields_over_h2(addr: SocketAddr, path: &str) -> String {
    let text = over_h2(addr, "GET", path, None);
    let head = text.split_once("\n\n").map_or(text.as_str(), |(head, _)| head);
    head.lines().filter(|line| !line.starts_with("content-length")).collect::<Vec<_>>().join("\n")
}

/// `$pipe`: what has come with the request before, in its buffer or behind its last chunk.
#[test]
fn requests_are_pipelined_as_in_nginx() {
    let Some(nginx) = oracle() else { return };
    let both = Both::start(
        &nginx,
        "log_format pipe '$uri $status $pipe';",
        "access_log logs/pipe.log pipe; location /denied { deny all; } location / { return 200 x; }",
    );
    let get = |uri: &str| format!("GET {uri} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes();
    let last = b"GET /last HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_vec();
    let mut all: Vec<Vec<Vec<u8>>> = vec![
        vec![[get("/a"), last.clone()].concat()],
        vec![get("/a"), last.clone()],
        // A part of a head waits for the rest.
        vec![[get("/a"), b"GE".to_vec()].concat(), last[2..].to_vec()],
        vec![[get("/a"), get("/b"), b"GET /la".to_vec()].concat(), last[7..].to_vec()],
    ];
    for uri in ["/denied", "/open"] {
        for size in [5, 500, 1500, 20_000] {
            let body = vec![b'x'; size];
            let head =
                format!("POST {uri}/{size} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n");
            let plain = [head.as_bytes(), &body].concat();
            all.push(vec![[plain.clone(), last.clone()].concat()]);
            all.push(vec![plain, last.clone()]);
            let head = format!(
                "POST {uri}/chunks HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            );
            let chunks = [head.into_bytes(), chunked(&body, 3000)].concat();
            all.push(vec![[chunks.clone(), last.clone()].concat()]);
            all.push(vec![[chunks, b"GET /l".to_vec()].concat(), last[6..].to_vec()]);
        }
    }
    for pieces in &all {
        for addr in [both.theirs.addr(), both.ours.site.addr(0)] {
            let mut stream = TcpStream::connect(addr).expect("connect");
            stream.set_nodelay(true).expect("nodelay");
            let (end, first) = pieces.split_last().expect("a piece");
            for piece in first {
                stream.write_all(piece).expect("sent");
                stream.head();
            }
            stream.write_all(end).expect("sent");
            stream.rest();
        }
    }
    let lines = |site: &Site| site.read("logs/pipe.log");
    let ends = |site: &Site| lines(site).matches("/last 200").count() == all.len();
    wait_until("the lines of both", || ends(both.theirs.site()) && ends(&both.ours.site));
    let (theirs, ours) = (lines(both.theirs.site()), lines(&both.ours.site));
    assert_eq!(ours, theirs);
    assert!(theirs.contains("200 p\n") && theirs.contains("200 .\n"), "{theirs}");
}
