//! The same requests over HTTP/2 and HTTP/3 get the same answers.

use super::{Client, site};
use forebay_http::h2::frame::{flag, kind};
use forebay_testkit::{Origin, Server, cases, connect, expires_after, fastcgi, h2, wait_until};
use serde_json::{Value, json};

/// Request of a row of `parity.cases`.
#[derive(Default)]
struct Case {
    method: String,
    path: String,
    fields: Vec<(String, String)>,
    /// Length of the content.
    length: usize,
    trailers: bool,
}

impl Case {
    fn parse(row: &str) -> Case {
        let mut parts = row.split(" | ");
        let (method, path) = parts.next().and_then(|line| line.split_once(' ')).expect("a method and a path");
        let mut case = Case { method: method.to_owned(), path: path.to_owned(), ..Case::default() };
        for part in parts {
            match (part.strip_prefix("length "), part.split_once(": ")) {
                (Some(length), _) => case.length = length.parse().expect("a number"),
                (_, Some((name, value))) => case.fields.push((name.to_owned(), value.to_owned())),
                _ => case.trailers = part == "trailers",
            }
        }
        case
    }
}

/// Answer as both versions can have it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    fields: Vec<(String, String)>,
    interim: Vec<Vec<(String, String)>>,
    body: Vec<u8>,
    trailers: Vec<(String, String)>,
    ended: bool,
}

/// Sorts fields and leaves out those that differ.
fn sorted(mut fields: Vec<(String, String)>) -> Vec<(String, String)> {
    let date = fields.iter().find(|(name, _)| name == "date").map(|(_, value)| value.clone());
    for (_, value) in fields.iter_mut().filter(|(name, _)| name == "expires") {
        *value = expires_after(date.as_deref(), value);
    }
    let mut fields: Vec<_> =
        fields.into_iter().filter(|(name, _)| name != "date" && name != "alt-svc").collect();
    for (_, value) in fields.iter_mut().filter(|(name, _)| name == "content-type") {
        value.truncate(value.find("boundary=").unwrap_or(value.len()));
    }
    fields.sort();
    fields
}

/// Asks over HTTP/2.
fn old(client: &mut h2::Client, stream: u32, case: &Case) -> Told {
    let own = case.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let fields: Vec<(&str, &str)> = [(":method", case.method.as_str())].into_iter().chain(own).collect();
    let bodiless = case.length == 0 && !case.trailers;
    client.request(stream, &case.path, &fields, bodiless);
    let mut left = case.length;
    let mut window = 65_535;
    while left > 0 {
        let n = left.min(window).min(16_384);
        if n == 0 {
            match client.next() {
                Some(f) if f.kind == kind::WINDOW_UPDATE && f.stream == stream => {
                    window +=
                        u32::from_be_bytes(f.payload.as_slice().try_into().expect("four bytes")) as usize;
                }
                Some(f) if f.stream != stream => {}
                Some(answer) => {
                    client.put_back(&answer);
                    break;
                }
                None => panic!("{} {}: no window", case.method, case.path),
            }
            continue;
        }
        (left, window) = (left - n, window - n);
        let end = left == 0 && !case.trailers;
        client.frame(kind::DATA, if end { flag::END_STREAM } else { 0 }, stream, &vec![b'x'; n]);
    }
    if case.trailers {
        let block = [&[0, 5][..], b"x-sum", &[1], b"1"].concat();
        client.frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &block);
    }
    let a = client.answer(stream);
    Told {
        fields: sorted(a.fields),
        interim: a.interim.into_iter().map(sorted).collect(),
        body: a.body,
        trailers: sorted(a.trailers),
        ended: a.ended,
    }
}

/// Asks over HTTP/3.
fn new(client: &mut Client, case: &Case) -> Told {
    let mut request = json!({"method": case.method, "path": case.path, "fields": case.fields});
    if case.length > 0 {
        request["length"] = json!(case.length);
    }
    if case.trailers {
        request["trailers"] = json!([["x-sum", "1"]]);
    }
    request["text"] = json!(true);
    let told = client.ask("a", request);
    let pairs =
        |list: &Value| -> Vec<(String, String)> { serde_json::from_value(list.clone()).expect("pairs") };
    let interim = told["interim"].as_array().expect("heads").iter().map(|head| sorted(pairs(head)));
    Told {
        fields: sorted(pairs(&told["fields"])),
        interim: interim.collect(),
        body: told["whole"].as_str().expect("text").chars().map(|c| c as u8).collect(),
        trailers: sorted(pairs(&told["trailers"])),
        ended: told["ended"] == true,
    }
}

fn server() -> Server {
    let up = Origin::start(|asked| {
        let target = asked.target().to_owned();
        let length = asked.body().len();
        match target.as_str() {
            "/hints" => asked.write(
                b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n\
                  HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 6\r\n\r\n",
            ),
            "/slow" => {
                let head = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\nX-Up: a\r\nX-Up: b\r\nConnection: keep-alive\r\n\r\n";
                // Content behind the response to HEAD would be taken for the next response on the connection.
                asked.write(head) && (asked.text.starts_with("HEAD ") || (0..10).all(|_| asked.write([b'z'; 10_000])))
            }
            "/redirect" => asked.answer("302 Found", "Location: http://up/there\r\nSet-Cookie: a=b; path=/\r\n", ""),
            "/cut" => {
                asked.close_with(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
            }
            "/bad" => asked.close_with(b"nonsense\r\n\r\n"),
            "/cached" => asked.answer("200 OK", "Cache-Control: max-age=60\r\nETag: \"x\"\r\n", "cached content"),
            _ => {
                let text = format!("{} {}", asked.text.lines().next().unwrap_or_default(), length);
                asked.answer("200 OK", "Content-Type: text/plain\r\n", &text)
            }
        }
    });
    let program = fastcgi::start(|asked| {
        let (method, length) = (asked.get("REQUEST_METHOD").to_owned(), asked.stdin.len());
        let text = format!("Status: 201 Made\r\nX-Len: {length}\r\nContent-Type: text/x\r\n\r\n{method}");
        asked.write(&fastcgi::answer(&text));
    });
    let http = include_str!("parity.conf").replace("%CR%", "\r");
    let site = site(&http.replace("%up%", &up.to_string()).replace("%program%", &program.to_string()));
    site.write("html/ssi.html", "<!--# include virtual=\"/text?x=1\" --> <!--# echo var=\"uri\" -->");
    site.write("html/error.html", "an error");
    // A body without bytes is sent, too: nothing of it can be waited for.
    site.write("html/blank", "");
    Server::start_on(site)
}

#[test]
fn answers_are_those_of_http2() {
    let Some(mut client) = Client::start() else { return };
    let server = server();
    client.connect("a", &server);
    let mut h2 = h2::Client::on(connect(server.addr(1)));
    let mut failures = Vec::new();
    let mut stream = 1;
    let cases: Vec<Case> =
        cases::rows(include_str!("parity.cases")).iter().map(|row| Case::parse(row)).collect();
    for case in &cases {
        let mut told = (old(&mut h2, stream, case), new(&mut client, case));
        stream += 2;
        if case.path == "/up/cut" {
            // Of a stream that is reset, what has not been received is lost.
            told.0 = Told { ended: told.0.ended, ..Told::default() };
            told.1 = Told { ended: told.1.ended, ..Told::default() };
        }
        if case.fields.iter().any(|(_, value)| value == "bytes=0-1,5-6") {
            // Each boundary is another.
            for told in [&mut told.0, &mut told.1] {
                told.body = vec![b'-'; told.body.len()];
            }
        }
        let Case { method, path, fields, length, trailers } = case;
        let what = format!("{method} {path} {fields:?} {length} {trailers}");
        if told.0 != told.1 {
            let show = |t: &Told| {
                format!("{:?} {:?} {} {:?} {}", t.fields, t.interim, t.body.len(), t.trailers, t.ended)
            };
            failures.push(format!("{what}:\n  {}\n  {}", show(&told.0), show(&told.1)));
        }
        if told.0.fields.is_empty() {
            h2 = h2::Client::on(connect(server.addr(1)));
            stream = 1;
        }
    }
    assert!(failures.is_empty(), "{}\n{}", failures.join("\n"), server.error_log());
    let log = |name: &str| server.read(&format!("logs/{name}.log"));
    let lines = |name: &str| log(name).lines().count();
    wait_until("the access logs", || lines("h2") >= cases.len() && lines("h3") >= cases.len());
    assert_eq!(log("h2"), log("h3"));
}
