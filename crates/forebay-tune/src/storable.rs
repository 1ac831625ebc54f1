//! Whether the answers of a location may be stored for everybody, as far as some requests tell.

use forebay_copy::scene::Target;
use std::io::{Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// An answer of a server.
struct Answer {
    status: String,
    /// Fields with their names in lower case.
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

/// Most bytes of an answer; a larger one is not stored.
const LARGEST: u64 = 4 << 20;
/// Time for a read or a write.
const PATIENCE: Duration = Duration::from_secs(10);
/// Fields of some visitor.
const VISITOR: &str = "Cookie: session=forebay-tune\r\nAuthorization: Basic Zm9yZWJheTp0dW5l\r\n";

/// Returns the paths of the targets that are passed on and whose answers may be stored. Each is asked for three times.
pub(crate) fn paths(targets: &[Target]) -> Vec<String> {
    let passed = targets.iter().filter(|t| t.proxied);
    passed.filter_map(|t| path(t).filter(|_| refusal(t).is_none())).map(str::to_owned).collect()
}

fn path(target: &Target) -> Option<&str> {
    let rest = target.url.strip_prefix("http://")?;
    rest.find('/').and_then(|at| rest.get(at..))
}

/// Returns the reason for which the answers of a target must not be stored.
fn refusal(target: &Target) -> Option<&'static str> {
    let ask = |fields: &str| ask(target, fields);
    match (ask(""), ask(""), ask(VISITOR)) {
        (Ok(first), Ok(again), Ok(known)) => {
            must_not_store(&first).or_else(|| differ(&first, &again, &known))
        }
        _ => Some("it does not answer"),
    }
}

/// Sends a request by HTTP/1.0, so that the answer is its body as it is.
fn ask(target: &Target, fields: &str) -> Result<Answer, Error> {
    let bad = |what: &str| Error::new(ErrorKind::InvalidData, what.to_owned());
    let rest = target.url.strip_prefix("http://").ok_or_else(|| bad("not plain HTTP"))?;
    let (address, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let address: SocketAddr = address.parse().map_err(|_| bad("no address"))?;
    let host = target.host.as_deref().unwrap_or("localhost");
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n{fields}\r\n").as_bytes())?;
    let mut bytes = Vec::new();
    stream.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(bad("too large"));
    }
    parse(&bytes).ok_or_else(|| bad("no answer"))
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
        values.flat_map(|(_, v)| v.split(',')).any(|w| words.is_empty() || words.contains(&w.trim()))
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

    /// Serves three requests, each with the answer of a function of its number and head.
    fn refused(answers: fn(usize, &str) -> String) -> Option<&'static str> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/a", listener.local_addr().expect("an address"));
        let serve = std::thread::spawn(move || {
            for (n, stream) in listener.incoming().take(3).enumerate() {
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
        let target = Target { url, host: None, proxied: true, size: 0 };
        let why = refusal(&target);
        serve.join().expect("served");
        assert_eq!(path(&target), Some("/a"));
        why
    }

    #[test]
    fn what_differs_is_not_stored() {
        assert_eq!(refused(|_, _| "same".into()), None);
        assert!(refused(|n, _| format!("{n}")).is_some());
        assert!(refused(|_, head| head.contains("Cookie").to_string()).is_some());
    }
}
