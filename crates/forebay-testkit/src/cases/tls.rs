//! Connections over TLS of tables: `[@PORT ]ARGUMENT...[ | FIELD: VALUE]... => EXPECTED[ | EXPECTED]...`.
//!
//! `openssl s_client` runs with the arguments, `-` for none, and sends `GET /`. Expected are texts in all that it prints, see
//! [`text`](super::text).

use super::{row::split, text};
use crate::{Server, s_client};

/// Runs a row.
///
/// # Errors
/// The difference to what is expected.
pub(super) fn check(row: &str, server: &Server) -> Result<(), String> {
    let sides = split(row, " => ");
    let (port, client) = match sides[0].strip_prefix('@').and_then(|r| r.split_once(' ')) {
        Some((port, client)) => (port.parse().expect("a port"), client),
        None => (0, sides[0]),
    };
    let mut parts = client.split(" | ");
    let arguments = parts.next().filter(|arguments| *arguments != "-").unwrap_or_default();
    let mut fields: String = parts.map(|field| format!("{field}\r\n")).collect();
    if !fields.contains("Host: ") {
        fields.push_str("Host: h\r\n");
    }
    let request = format!("GET / HTTP/1.1\r\n{fields}Connection: close\r\n\r\n");
    let printed = s_client(server, port, arguments, &request);
    let expected = sides.get(1).unwrap_or_else(|| panic!("no => in {row}"));
    match split(expected, " | ").into_iter().find(|e| !text::holds(e.trim(), &printed)) {
        Some(failed) => Err(format!("{}: not {failed}: {printed}", sides[0])),
        None => Ok(()),
    }
}
