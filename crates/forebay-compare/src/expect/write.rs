//! `forebay compare --write-tests`: a file of expectations from what both servers agree on.

use super::update::scalar;
use crate::client::{Client, Tls};
use crate::message::{Answer, Received, field};
use crate::pair::{self, Logs, Side};
use crate::requests::{Ask, Version};
use forebay_bench::ports::free_port;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;

/// Most tests of a file.
const MOST: usize = 300;

/// Fields of responses that tests expect: those that a configuration decides on.
const FIELDS: [&str; 8] = [
    "Location",
    "Content-Type",
    "Cache-Control",
    "Expires",
    "Strict-Transport-Security",
    "X-Frame-Options",
    "Access-Control-Allow-Origin",
    "WWW-Authenticate",
];

/// Longest target of a test.
const LONGEST: usize = 200;

/// Returns `true` if a URL can say where a request goes: to a host without a port, and a path of usual signs.
fn is_url(ask: &Ask) -> bool {
    let host = ask.host.as_deref().unwrap_or_default();
    let is_name = !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b));
    let is_path = ask.target.starts_with('/') && ask.target.len() <= LONGEST;
    is_name && is_path && ask.target.bytes().all(|b| b.is_ascii_graphic() && b != b'#')
}

/// Returns the requests that make tests: GET over HTTP/1.1 without anything else, each once, of those without a difference.
fn simple<'a>(asks: &'a [Ask], differing: &HashSet<usize>) -> Vec<&'a Ask> {
    let mut seen = HashSet::new();
    let is_simple = |ask: &Ask| {
        let plain = ask.method == "GET" && ask.version == Version::Http11 && ask.content.is_none();
        let own =
            ask.fields.is_empty() && ask.wish.is_empty() && !ask.front.stream && !ask.front.proxy_protocol;
        plain && own && is_url(ask)
    };
    let asks = asks.iter().enumerate().filter(|(at, ask)| !differing.contains(at) && is_simple(ask));
    let once = asks.filter(|(_, ask)| seen.insert((ask.host.clone(), ask.target.clone())));
    once.map(|(_, ask)| ask).take(MOST).collect()
}

/// Returns the text of a file: the requests without a difference, and what a server answers to them.
///
/// # Errors
/// The server does not start.
pub(crate) fn tests(
    side: &Side,
    dir: &Path,
    asks: &[Ask],
    differing: &HashSet<usize>,
) -> Result<(String, usize), String> {
    let port = free_port().map_err(|e| e.to_string())?;
    let mut running = pair::start(side, dir, (Ipv4Addr::LOCALHOST, port), BTreeMap::new(), Logs::Compared)?;
    let original = running.copy.ports.clone();
    let mut client = Client::new(Ipv4Addr::LOCALHOST, Tls::new()?);
    let conf = side.source.path.display();
    let mut out = format!(
        "# Made by forebay compare --write-tests. Edit it as you like; forebay test runs it.\nconfiguration: {}\n\ntests:\n",
        scalar(&conf.to_string())
    );
    // This copy has other ports than the copies of the comparison, whose ports the requests name.
    let ways = super::run::Ways::of(&side.source.view(), &running.copy);
    let mut count = 0;
    for (number, ask) in (1..).zip(simple(asks, differing)) {
        let Some(front) = ways.same(ask) else { continue };
        let ask = Ask { number, front, ..ask.clone() };
        client.send(&ask);
        let answer = client.receive(&ask);
        if answer.status == 0 {
            continue;
        }
        let received = running.recorder.take(number);
        count += 1;
        let url = original.iter().find(|(_, own)| **own == front.port).map(|(address, _)| url(&ask, address));
        push(&mut out, &ask, url.as_deref(), &answer, &received);
    }
    running.end();
    if count == 0 {
        out = out.replace("tests:\n", "tests: []\n");
    }
    Ok((out, count))
}

/// Returns the URL of a request at an original address.
fn url(ask: &Ask, address: &str) -> String {
    let port = address.rsplit(':').next().unwrap_or_default();
    let (scheme, usual) = if ask.front.tls { ("https", "443") } else { ("http", "80") };
    let host = ask.host.as_deref().filter(|host| !host.is_empty()).unwrap_or("localhost");
    let port = if port == usual { String::new() } else { format!(":{port}") };
    format!("{scheme}://{host}{port}{}", ask.target)
}

fn push(out: &mut String, ask: &Ask, url: Option<&str>, answer: &Answer, received: &[Received]) {
    let request = format!("GET {}", url.unwrap_or(&ask.target));
    let _ =
        writeln!(out, "  - request: {}\n    response:\n      status: {}", scalar(&request), answer.status);
    let shown = FIELDS.iter().filter_map(|name| Some((name, field(&answer.fields, name)?)));
    // A port of the copy is none of the configuration.
    let shown: Vec<_> = shown.filter(|(_, value)| !value.contains(&format!(":{}", ask.front.port))).collect();
    if !shown.is_empty() {
        out.push_str("      fields:\n");
    }
    for (name, value) in shown {
        let _ = writeln!(out, "        {name}: {}", scalar(value));
    }
    match received {
        [] => out.push_str("    upstream: none\n"),
        [only] => {
            let _ = writeln!(out, "    upstream:\n      request: {}", scalar(&only.line));
        }
        _ => {}
    }
}
