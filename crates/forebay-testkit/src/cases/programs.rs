//! FastCGI programs of tables: `VALUE => PART[ | PART]...`, where the first rule that fits answers, as the parameter `T` says; see
//! [`rules`](super::rules) for the patterns of values.
//!
//! Parts are: `"TEXT"`: a whole answer; `out "TEXT"`, `err "TEXT"`: a piece of output; `record KIND "TEXT"`; `raw "BYTES"`; `padded KIND
//! LENGTH "TEXT"`; `end`;
//! `bytewise`: all is sent in single bytes; `reset`: ends the connection so. Texts may have `{body}`, `{n}` (the number of the request),
//! `{connection}` and `{request}` (its numbers),
//! `{keep}`, `{NAME}` (a parameter) and `{params}` (a line for each but those of the server, and the length of the body).

use super::row::{split, string};
use super::rules::matches;
use crate::fastcgi::{self, Asked, answer, end, record};
use crate::gateways::{self, Call};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Starts one with rules; counts its requests.
pub(super) fn start(rules: &[String]) -> (SocketAddr, Arc<AtomicUsize>) {
    let (answer, count) = answering(rules);
    (fastcgi::start(answer), count)
}

/// The same on a unix socket.
pub(super) fn start_unix(path: &Path, rules: &[String]) -> Arc<AtomicUsize> {
    let (answer, count) = answering(rules);
    fastcgi::start_unix(path, answer);
    count
}

/// Returns what answers by rules, and the number of requests.
fn answering(rules: &[String]) -> (impl Fn(&mut Asked) + Send + Sync + 'static, Arc<AtomicUsize>) {
    let rule = |rule: &String| {
        let (value, parts) = rule.split_once(" => ").unwrap_or_else(|| panic!("no => in {rule}"));
        (value.to_owned(), parts.to_owned())
    };
    let rules: Vec<(String, String)> = rules.iter().map(rule).collect();
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    let answer = move |asked: &mut Asked| {
        let n = counter.fetch_add(1, SeqCst) + 1;
        let fits = rules.iter().find(|(value, _)| matches(value, asked.get("T")));
        let (_, parts) = fits.unwrap_or_else(|| panic!("no rule for {:?}", asked.params));
        reply(asked, n, parts);
    };
    (answer, count)
}

/// Starts a server of SCGI or uwsgi, whose parts are strings only, and whose `{params}` are all lines.
pub(super) fn start_gateway(read: fn(&mut TcpStream) -> Option<Call>, rules: &[String]) -> SocketAddr {
    let rules: Vec<(String, String)> = rules
        .iter()
        .map(|rule| rule.split_once(" => ").unwrap_or_else(|| panic!("no => in {rule}")))
        .map(|(value, text)| (value.to_owned(), text.to_owned()))
        .collect();
    gateways::start(read, move |call| {
        let fits = rules.iter().find(|(value, _)| matches(value, call.get("T")));
        let (_, text) = fits.unwrap_or_else(|| panic!("no rule for {}", call.params));
        let text = string(text).expect("a string");
        let Ok(text) = String::from_utf8(text) else { panic!("not UTF-8") };
        let text =
            text.replace("{params}", &call.params).replace("{length}", &call.content.len().to_string());
        text.replace("{body}", &String::from_utf8_lossy(&call.content)).into_bytes()
    })
}

/// Replaces what stands for parts of the request.
fn filled(text: &[u8], asked: &Asked, n: usize) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(text) else { return text.to_owned() };
    let (connection, request) = asked.connection;
    let mut text = text
        .replace("{n}", &n.to_string())
        .replace("{connection}", &connection.to_string())
        .replace("{request}", &request.to_string())
        .replace("{keep}", &asked.keep.to_string())
        .replace("{body}", &String::from_utf8_lossy(&asked.stdin));
    if text.contains("{params}") {
        let own = asked.params.iter().filter(|(name, _)| !name.starts_with("SERVER_"));
        let lines: String = own.map(|(name, value)| format!("{name}={value}\n")).collect();
        text = text.replace("{params}", &format!("{lines}length={}\n", asked.stdin.len()));
    }
    for (name, value) in &asked.params {
        text = text.replace(&format!("{{{name}}}"), value);
    }
    text.into_bytes()
}

fn reply(asked: &mut Asked, n: usize, parts: &str) {
    let (mut bytes, mut bytewise, mut reset) = (Vec::new(), false, false);
    for part in split(parts, " | ") {
        let (words, text) = part.split_once('"').unwrap_or((part, ""));
        let text = if text.is_empty() { Vec::new() } else { string(&format!("\"{text}")).expect("a string") };
        let text = filled(&text, asked, n);
        match words.split_whitespace().collect::<Vec<_>>()[..] {
            [] => bytes.extend(answer(&String::from_utf8_lossy(&text))),
            ["out"] => bytes.extend(record(6, &text, 0)),
            ["err"] => bytes.extend(record(7, &text, 0)),
            ["record", kind] => bytes.extend(record(kind.parse().expect("a kind"), &text, 0)),
            ["padded", kind, padding] => {
                bytes.extend(record(
                    kind.parse().expect("a kind"),
                    &text,
                    padding.parse().expect("a length"),
                ));
            }
            ["raw"] => bytes.extend(text),
            ["end"] => bytes.extend(end()),
            ["bytewise"] => bytewise = true,
            ["reset"] => reset = true,
            _ => panic!("no part {part}"),
        }
    }
    match bytewise {
        true => bytes.iter().for_each(|byte| asked.write(&[*byte])),
        false => asked.write(&bytes),
    }
    if reset {
        asked.stream.reset();
    }
}
