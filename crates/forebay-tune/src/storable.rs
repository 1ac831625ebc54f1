//! Whether the answers of a location may be stored for everybody, as far as some requests tell.

use forebay_copy::patch::View;
use forebay_copy::scene::Target;
use std::io::{Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// An answer of a server.
struct Answer {
    status: String,
    /// Fields with their names in lower case.
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

/// Most bytes of an answer; a larger one is not stored.
const LARGEST: usize = 4 << 20;
/// Time for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Fields of some visitor.
const VISITOR: &str = "Cookie: session=forebay-tune\r\nAuthorization: Basic Zm9yZWJheTp0dW5l\r\n";

/// Returns the numbers of the locations that pass requests on and whose answers may be stored. Each target is asked for three times;
/// one that is refused speaks for its path in every server.
pub(crate) fn locations(view: &View<'_>, targets: &[Target]) -> Vec<usize> {
    let passed = targets.iter().filter(|t| t.proxied && t.location.is_some());
    let (good, bad): (Vec<&Target>, Vec<&Target>) = passed.partition(|t| refusal(t).is_none());
    let refused: Vec<&str> = bad.iter().map(|t| path(t)).collect();
    let good = good.into_iter().filter(|t| !refused.contains(&path(t)) && is_sure(view, t));
    good.filter_map(|t| t.location).collect()
}

fn path(target: &Target) -> &str {
    let rest = target.url.split_once("://").map_or("", |(_, rest)| rest);
    rest.find('/').and_then(|at| rest.get(at..)).unwrap_or_default()
}

/// Returns `true` if the location of a target, and no other one, has answered, and its settings are for no other one.
fn is_sure(view: &View<'_>, target: &Target) -> bool {
    let above = |n: &usize| view.nodes.get(*n).and_then(|n| n.parent);
    let Some(location) = target.location else { return false };
    let server = std::iter::successors(Some(location), above).find(|n| view.name(*n) == "server");
    let Some(server) = server else { return false };
    // A server without a name may have been asked in place of another one.
    let named =
        target.host.is_some() || view.all("server").filter(|s| above(s) == above(&server)).count() == 1;
    let by_expression = |n: usize| view.args(n).first().is_some_and(|a| a.starts_with('~'));
    let may_take = |n: usize| by_expression(n) || view.args(n).last().is_some_and(|a| a == path(target));
    let others = || view.all("location").filter(|n| *n != location);
    named
        && !others().any(|n| view.within(n, server) && may_take(n))
        && !others().any(|n| view.within(n, location))
}

/// Returns the reason for which the answers of a target must not be stored.
fn refusal(target: &Target) -> Option<&'static str> {
    let ask = |fields: &str| ask(target, fields, Instant::now() + PATIENCE);
    let all = ask("").and_then(|first| Ok((first, ask("")?, ask(VISITOR)?)));
    match all {
        Ok((first, again, known)) => must_not_store(&first).or_else(|| differ(&first, &again, &known)),
        Err(_) => Some("it does not answer"),
    }
}

/// Sends a request by HTTP/1.0, so that the answer is its body as it is.
fn ask(target: &Target, fields: &str, until: Instant) -> Result<Answer, Error> {
    let bad = |what: &str| Error::new(ErrorKind::InvalidData, what.to_owned());
    let rest = target.url.strip_prefix("http://").ok_or_else(|| bad("not plain HTTP"))?;
    let (address, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let address: SocketAddr = address.parse().map_err(|_| bad("no address"))?;
    let host = target.host.as_deref().unwrap_or("localhost");
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n{fields}\r\n").as_bytes())?;
    parse(&read(stream, until)?).ok_or_else(|| bad("no answer"))
}

/// Reads until the peer closes, which it has to do before a time.
fn read(mut stream: TcpStream, until: Instant) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => return Ok(bytes),
            n => bytes.extend(piece.get(..n).unwrap_or_default()),
        }
        if bytes.len() > LARGEST {
            return Err(Error::new(ErrorKind::InvalidData, "too large"));
        }
    }
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(bytes.get(..end)?);
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.to_owned();
    let field = |line: &str| {
        line.split_once(':').map(|(n, v)| (n.to_ascii_lowercase(), v.trim().to_ascii_lowercase()))
    };
    Some(Answer { status, fields: lines.filter_map(field).collect(), body: bytes.get(end + 4..)?.to_vec() })
}

/// Returns the reason for which an answer must not be stored, by its status and fields.
fn must_not_store(answer: &Answer) -> Option<&'static str> {
    let says = |name: &str, words: &[&str]| {
        let values = answer.fields.iter().filter(|(n, _)| n == name);
        // `private="x"` is taken as `private`.
        let is_one = |word: &str| {
            words.contains(&word.trim()) || word.split('=').next().is_some_and(|w| words.contains(&w.trim()))
        };
        values.flat_map(|(_, v)| v.split(',')).any(|w| words.is_empty() || is_one(w))
    };
    let never = ["private", "no-store", "no-cache", "max-age=0", "s-maxage=0", "must-revalidate"];
    match () {
        () if answer.status != "200" => Some("its status is not 200"),
        () if says("set-cookie", &[]) => Some("it sets a cookie"),
        () if says("cache-control", &never) || says("pragma", &["no-cache"]) => Some("it says so"),
        () if says("vary", &["*", "cookie", "authorization"]) => Some("it varies by visitor"),
        () => None,
    }
}

/// Returns how answers to the same request differ: at another time, or for another visitor.
fn differ(first: &Answer, again: &Answer, known: &Answer) -> Option<&'static str> {
    match () {
        () if must_not_store(again).or(must_not_store(known)).is_some() => {
            Some("not all of its answers may be stored")
        }
        () if first.body != again.body => Some("it differs from time to time"),
        () if first.body != known.body => Some("it differs by visitor"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn answer(text: &str) -> Answer {
        parse(text.as_bytes()).expect("an answer")
    }

    #[test]
    fn fields_forbid_to_store() {
        let with = |field: &str| must_not_store(&answer(&format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\nx")));
        for field in [
            "Set-Cookie: a=b",
            "Cache-Control: max-age=60, Private",
            "cache-control: no-store",
            "Pragma: no-cache",
            "Cache-Control: max-age=60, private=\"x\"",
            "Cache-Control: no-cache=\"Set-Cookie\"",
            "Vary: Accept-Encoding, Cookie",
            "Vary: *",
        ] {
            assert!(with(field).is_some(), "{field}");
        }
        for field in ["Vary: Accept-Encoding", "Cache-Control: max-age=60", "Content-Type: text/html"] {
            assert_eq!(with(field), None, "{field}");
        }
        assert!(must_not_store(&answer("HTTP/1.1 404 Not Found\r\n\r\n")).is_some());
    }

    /// Serves some requests, each with the answer of a function of its number and head.
    fn serving(count: usize, answers: fn(usize, &str) -> String) -> (String, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/a", listener.local_addr().expect("an address"));
        let serve = std::thread::spawn(move || {
            for (n, stream) in listener.incoming().take(count).enumerate() {
                let mut stream = stream.expect("a connection");
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).expect("a request") > 0 {
                    head.extend(byte);
                }
                let text = answers(n, &String::from_utf8_lossy(&head));
                stream.write_all(format!("HTTP/1.1 200 OK\r\n\r\n{text}").as_bytes()).expect("sent");
            }
        });
        (url, serve)
    }

    fn refused(count: usize, answers: fn(usize, &str) -> String) -> Option<&'static str> {
        let (url, serve) = serving(count, answers);
        let target = Target { url, host: None, location: None, proxied: true, size: 0 };
        let why = refusal(&target);
        serve.join().expect("served");
        assert_eq!(path(&target), "/a");
        why
    }

    #[test]
    fn a_location_is_asked_itself_or_not_at_all() {
        let dir = tempfile::tempdir().expect("dir");
        let conf = dir.path().join("n.conf");
        let text = "events {}\nhttp {\n server { server_name a; location / { proxy_pass http://u; } location = /s { proxy_pass \
                    http://u; } location /s { proxy_pass http://u; } location /n { proxy_pass http://u; location /n/in { } } }\n \
                    server { server_name b; location / { proxy_pass http://u; } location ~ x { } }\n}\n";
        std::fs::write(&conf, text).expect("written");
        let source = forebay_copy::patch::Source::read(&conf).expect("parses");
        let view = source.view();
        let target = |n: usize, host: Option<&str>| Target {
            url: format!("http://127.0.0.1:1{}", view.args(n).last().expect("a path")),
            host: host.map(str::to_owned),
            location: Some(n),
            proxied: true,
            size: 0,
        };
        let named =
            view.all("location").take(6).map(|n| is_sure(&view, &target(n, Some("a")))).collect::<Vec<_>>();
        // The fourth has another one in it, and the expression of the second server may take its requests.
        assert_eq!(named, [true, false, false, false, true, false]);
        let first = view.all("location").next().expect("a location");
        assert!(!is_sure(&view, &target(first, None)));
    }

    #[test]
    fn a_refusal_is_for_a_path_in_every_server_and_a_pass_for_one() {
        let dir = tempfile::tempdir().expect("dir");
        let conf = dir.path().join("n.conf");
        let text = "events {}\nhttp {\n server { server_name a; location /a { proxy_pass http://u; } }\n \
                    server { server_name b; location /a { proxy_pass http://u; } }\n}\n";
        std::fs::write(&conf, text).expect("written");
        let source = forebay_copy::patch::Source::read(&conf).expect("parses");
        let view = source.view();
        let numbers: Vec<usize> = view.all("location").collect();
        let (url, serve) = serving(3, |_, _| "same".into());
        let good = Target { url, host: Some("a".into()), location: Some(numbers[0]), proxied: true, size: 0 };
        assert_eq!(locations(&view, std::slice::from_ref(&good)), [numbers[0]]);
        serve.join().expect("served");
        let (url, serve) = serving(3, |_, _| "same".into());
        let encrypted =
            Target { url: "https://127.0.0.1:1/a".into(), location: Some(numbers[1]), ..good.clone() };
        assert!(locations(&view, &[Target { url, ..good }, encrypted]).is_empty());
        serve.join().expect("served");
    }

    #[test]
    fn an_answer_that_trickles_ends_at_its_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/a", listener.local_addr().expect("an address"));
        let trickle = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let target = Target { url, host: None, location: None, proxied: true, size: 0 };
        assert!(ask(&target, "", Instant::now() + Duration::from_millis(100)).is_err());
        trickle.join().expect("ended");
    }

    #[test]
    fn what_differs_is_not_stored() {
        assert_eq!(refused(3, |_, _| "same".into()), None);
        assert!(refused(3, |n, _| format!("{n}")).is_some());
        assert!(refused(3, |_, head| head.contains("Cookie").to_string()).is_some());
    }
}
