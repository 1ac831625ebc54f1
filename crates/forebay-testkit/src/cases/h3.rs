//! Commands of a client of HTTP/3 of tables, [`Client`], which stays from one section to the next: `COMMAND[ JSON][ => EXPECTED[ |
//! EXPECTED]...]`.
//!
//! Commands are `connect NAME[ JSON]`, `get CONNECTION TARGET`, `ask CONNECTION JSON`, `request CONNECTION NAME JSON`, `answer NAME`, and
//! `WORD JSON` for any other that the script has. Expected are `json ...` and `!json ...` of what it tells, see [`row`](super::row), and
//! `field NAME VALUE`. `attacker` behind the kind is another script.

use super::row::{json_holds, unescape};
use crate::Server;
use crate::h3::{Client, field};
use serde_json::{Value, json};

/// Carries out a row.
///
/// # Errors
/// The difference to what is expected.
pub(super) fn check(row: &str, client: &mut Client, server: &Server) -> Result<(), String> {
    let (command, expected) = row.split_once(" => ").unwrap_or((row, ""));
    let words: Vec<&str> = command.splitn(3, ' ').collect();
    let parsed = |text: &str| -> Value {
        serde_json::from_str(&repeated(text)).unwrap_or_else(|e| panic!("{text}: {e}"))
    };
    let told = match words[..] {
        ["connect", name] => client.connect(name, server),
        ["connect", name, options] => client.connect_with(name, server, parsed(options)),
        ["get", on, target] => client.get(on, target),
        ["ask", on, request] if !on.starts_with('{') => client.ask(on, parsed(request)),
        ["request", on, rest] => {
            let (name, request) = rest.split_once(' ').unwrap_or((rest, "{}"));
            client.request(on, name, parsed(request));
            json!(null)
        }
        ["answer", name] if !name.starts_with('{') => client.answer(name),
        [word, ..] => {
            let text = command.strip_prefix(word).unwrap_or_default().trim();
            client.call(word, if text.is_empty() { json!({}) } else { parsed(text) })
        }
        [] => panic!("no command"),
    };
    let holds = |expected: &str| {
        if let Some(rest) = expected.strip_prefix("!json ") {
            return !json_holds(rest, told.to_string().as_bytes());
        }
        match (expected.strip_prefix("json "), expected.strip_prefix("field ")) {
            (Some(rest), _) => json_holds(&repeated(rest), told.to_string().as_bytes()),
            (None, Some(rest)) => {
                let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
                field(&told, name) == value
            }
            _ => panic!("expected is {expected}"),
        }
    };
    match expected.split(" | ").find(|expected| !expected.is_empty() && !holds(expected)) {
        Some(failed) => Err(format!("{row}: not {failed}: {told}\n")),
        None => Ok(()),
    }
}

/// Replaces `\\{TEXT*COUNT}`, and leaves other escapes to JSON.
fn repeated(text: &str) -> String {
    match text.find("\\{") {
        None => text.to_owned(),
        Some(at) => {
            let end = at + text[at..].find('}').expect("the end of a repetition") + 1;
            format!("{}{}{}", &text[..at], unescape(&text[at..end]), repeated(&text[end..]))
        }
    }
}
