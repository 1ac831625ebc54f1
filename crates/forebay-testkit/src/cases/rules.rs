//! Origins of tables: `[METHOD ]TARGET => ANSWER`, where the first rule that fits answers.
//!
//! A target is exact, begins so (`/a/*`), or any (`*`). An answer is a status with its reason, fields and a string as the content, each
//! after ` | `; or a string of raw bytes. `close` behind it ends the connection, `closed` alone ends it without an answer. Texts may have
//! `{target}`, `{method}`, `{body}`, `{conn}` (the number of the connection) and `{field NAME}` of the request.

use super::row::{split, string};
use crate::{Asked, Origin};

/// Starts an origin with rules.
pub(super) fn start(rules: &[String]) -> Origin {
    let rules: Vec<(String, String)> = rules
        .iter()
        .map(|rule| rule.split_once("=> ").unwrap_or_else(|| panic!("no => in {rule}")))
        .map(|(target, answer)| (target.trim().to_owned(), answer.to_owned()))
        .collect();
    Origin::start(move |asked| {
        let rule = rules.iter().find(|(pattern, _)| fits(pattern, asked.method(), asked.target()));
        let (_, answer) = rule.unwrap_or_else(|| panic!("no rule for {}", asked.text));
        reply(asked, answer)
    })
}

fn fits(pattern: &str, method: &str, target: &str) -> bool {
    let (own, pattern) = pattern.split_once(' ').unwrap_or((method, pattern));
    own == method
        && match pattern.strip_suffix('*') {
            Some(begin) => target.starts_with(begin),
            None => target == pattern,
        }
}

/// Replaces what stands for parts of the request.
fn filled(text: &str, asked: &Asked) -> String {
    let mut text = text
        .replace("{target}", asked.target())
        .replace("{method}", asked.method())
        .replace("{body}", asked.body())
        .replace("{conn}", &asked.conn.to_string());
    while let Some((before, rest)) = text.split_once("{field ") {
        let (name, after) = rest.split_once('}').expect("the end of a name");
        text = format!("{before}{}{after}", asked.field(name));
    }
    text
}

fn reply(asked: &mut Asked, answer: &str) -> bool {
    let mut parts: Vec<&str> = split(answer, " | ").into_iter().map(str::trim).collect();
    if parts == ["closed"] {
        return false;
    }
    let goes_on = parts.pop_if(|last| *last == "close").is_none();
    if let Some(bytes) = string(parts[0]) {
        let text = filled(&String::from_utf8_lossy(&bytes), asked);
        return asked.write(text) && goes_on;
    }
    let content = parts.pop_if(|last| last.starts_with('"')).and_then(string).unwrap_or_default();
    let content = filled(&String::from_utf8_lossy(&content), asked);
    let fields: String = parts[1..].iter().map(|field| format!("{}\r\n", filled(field, asked))).collect();
    asked.answer(parts[0], &fields, content) && goes_on
}
