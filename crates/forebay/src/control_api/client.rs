//! A reload by way of the control API, for `-s reload -l ADDRESS` and `forebay reload -l ADDRESS`.

use super::Address;
use forebay_core::control::blocking::{self, Connection, Limits, NoResponse, Patience};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Longest parts of a response, bytes.
const LIMITS: Limits = Limits { head: 8 << 10, body: 1 << 20 };
const REQUEST: &[u8] =
    b"PATCH /1/control/config HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// Failure of a reload.
#[derive(Debug)]
pub(crate) enum Failed {
    /// Nobody has been asked.
    Unreachable(String),
    /// Lines that say why the configuration is not in effect.
    Refused(Vec<String>),
}

impl Failed {
    /// Returns the lines for people.
    pub(crate) fn lines(self) -> Vec<String> {
        match self {
            Failed::Unreachable(line) => vec![line],
            Failed::Refused(lines) => lines,
        }
    }
}

/// Reloads, and waits for the result. Returns the warnings.
///
/// # Errors
/// There is no server, or it has refused the configuration.
pub(crate) fn reload(address: &Address, patience: Duration) -> Result<Vec<String>, Failed> {
    let end = Patience::Until(Instant::now() + patience);
    let line = |what: &str| format!("{what} of the control API at {address}");
    let failed = |what: &str| Failed::Refused(vec![line(what)]);
    let target = match address {
        Address::Unix(path) => blocking::Address::Unix(path.clone()),
        Address::Tcp(address) => blocking::Address::Inet(*address),
    };
    let connect = Connection::open(&target, end);
    let mut connection = connect.map_err(|e| Failed::Unreachable(line(&format!("no connection ({e})"))))?;
    connection.request(REQUEST).map_err(|e| failed(&format!("no request ({e:?})")))?;
    let response = connection.response(LIMITS).map_err(|e| {
        failed(&match e {
            NoResponse::LongHead => "too long a response".to_owned(),
            NoResponse::Failed(failure) => format!("no response ({failure:?})"),
        })
    })?;
    let document: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let lines = document.get("logs").and_then(Value::as_array);
    let lines: Vec<String> =
        lines.into_iter().flatten().filter_map(|l| Some(l.as_str()?.to_owned())).collect();
    match (response.status, lines.is_empty()) {
        (200, _) => Ok(lines),
        (_, false) => Err(Failed::Refused(lines)),
        (status, true) => Err(failed(&format!("status {status}"))),
    }
}
