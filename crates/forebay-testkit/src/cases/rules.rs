//! Origins of tables: `[COUNTx ][METHOD ]TARGET[ | FIELD: VALUE]... => ANSWER`, where the first rule that fits answers, so many times.
//!
//! A target is exact, or has `*` for what comes before and after (`/a/*`, `*/b`, `*`). An answer is a status with its reason, fields and a
//! string as the content, each after ` | `; or a string of raw bytes. `206` alone as the status answers with the part of the content that
//! `Range` asks for, or 200. `resets` alone breaks it off; `close` behind it ends the connection, `closed` alone ends it without an answer.
//! Texts may have
//! `{target}`, `{method}`, `{body}`, `{conn}` (the number of the connection), `{peer}` (the address of the other end), `{field NAME}`,
//! `{lines BEGIN}` (the lines of the head that begin so) and `{head}` (all lines but `Connection`) of the request.

use super::row::{split, string};
use crate::{Asked, Origin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Function of an origin that answers.
type Answer = dyn Fn(&mut Asked) -> bool + Send + Sync;

/// A rule.
struct Rule {
    method: Option<String>,
    target: String,
    /// Fields that the request has.
    fields: Vec<(String, String)>,
    answer: String,
    /// Times that it still answers.
    left: AtomicUsize,
}

/// Rules of an origin, which can be changed.
pub(super) struct Rules(Arc<Mutex<Arc<Vec<Rule>>>>);

impl Rules {
    /// Replaces the rules.
    pub fn change(&self, rules: &[String]) {
        let rules = Arc::new(rules.iter().map(|rule| Rule::parse(rule)).collect());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = rules;
    }
}

/// Starts an origin with rules, by one of its functions.
pub(super) fn start(rules: &[String], begin: fn(Box<Answer>) -> Origin) -> (Origin, Rules) {
    let all: Arc<Mutex<Arc<Vec<Rule>>>> = Arc::default();
    let own = Rules(all.clone());
    own.change(rules);
    let origin = begin(Box::new(move |asked| {
        let rules = all.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let rule = rules.iter().find(|rule| rule.fits(asked) && rule.takes());
        reply(asked, &rule.unwrap_or_else(|| panic!("no rule for {}", asked.text)).answer)
    }));
    (origin, own)
}

impl Rule {
    fn parse(text: &str) -> Rule {
        let (request, answer) = text.split_once("=> ").unwrap_or_else(|| panic!("no => in {text}"));
        let mut parts = request.split(" | ").map(str::trim);
        let mut line = parts.next().unwrap_or_default();
        let mut left = usize::MAX;
        if let Some((count, rest)) = line.split_once("x ")
            && let Ok(count) = count.parse()
        {
            (left, line) = (count, rest);
        }
        let (method, target) = line.split_once(' ').map_or((None, line), |(m, t)| (Some(m.to_owned()), t));
        let field = |part: &str| {
            let (name, value) = part.split_once(':').unwrap_or_else(|| panic!("no field: {part}"));
            (name.to_owned(), value.trim().to_owned())
        };
        let (target, fields) = (target.to_owned(), parts.map(field).collect());
        Rule { method, target, fields, answer: answer.to_owned(), left: AtomicUsize::new(left) }
    }

    fn fits(&self, asked: &Asked) -> bool {
        self.method.as_deref().is_none_or(|method| method == asked.method())
            && matches(&self.target, asked.target())
            && self.fields.iter().all(|(name, value)| asked.field(name) == value)
    }

    /// Takes one of the times that it answers.
    fn takes(&self) -> bool {
        let less = |left: usize| if left == usize::MAX { Some(left) } else { left.checked_sub(1) };
        self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
    }
}

/// Returns `true` if a target is one that a pattern names.
pub(super) fn matches(pattern: &str, target: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(""), _) => true,
        (Some(end), None) => target.ends_with(end),
        (None, Some(begin)) => target.starts_with(begin),
        (Some(rest), Some(_)) => target.contains(rest.trim_end_matches('*')),
        (None, None) => target == pattern,
    }
}

/// Replaces what stands for parts of the request.
fn filled(text: &str, asked: &Asked) -> String {
    let mut text = text
        .replace("{target}", asked.target())
        .replace("{method}", asked.method())
        .replace("{body}", asked.body())
        .replace("{peer}", &asked.peer.ip().to_string())
        .replace("{conn}", &asked.conn.to_string());
    if text.contains("{head}") {
        let head: Vec<&str> = asked.head().lines().filter(|line| !line.starts_with("Connection: ")).collect();
        text = text.replace("{head}", &head.join("\n"));
    }
    while let Some((before, rest)) = text.split_once("{field ") {
        let (name, after) = rest.split_once('}').expect("the end of a name");
        text = format!("{before}{}{after}", asked.field(name));
    }
    while let Some((before, rest)) = text.split_once("{lines ") {
        let (begin, after) = rest.split_once('}').expect("the end of a name");
        let lines = asked.head().split("\r\n").filter(|line| line.starts_with(begin));
        text = format!("{before}{}{after}", lines.map(|line| format!("{line}\n")).collect::<String>());
    }
    text
}

fn reply(asked: &mut Asked, answer: &str) -> bool {
    let mut parts: Vec<&str> = split(answer, " | ").into_iter().map(str::trim).collect();
    match parts[..] {
        ["closed"] => return false,
        ["resets"] => {
            asked.reset();
            return false;
        }
        _ => {}
    }
    let goes_on = parts.pop_if(|last| *last == "close").is_none();
    if let Some(bytes) = string(parts[0]) {
        let text = filled(&String::from_utf8_lossy(&bytes), asked);
        return asked.write(text) && goes_on;
    }
    let content = parts.pop_if(|last| last.starts_with('"')).and_then(string).unwrap_or_default();
    let content = filled(&String::from_utf8_lossy(&content), asked);
    let fields: String = parts[1..].iter().map(|field| format!("{}\r\n", filled(field, asked))).collect();
    match parts[0] {
        "206" if asked.range(content.len()).is_some() => asked.part(&fields, content.as_bytes()) && goes_on,
        "206" => asked.answer("200 OK", &fields, content) && goes_on,
        status => asked.answer(status, &fields, content) && goes_on,
    }
}

#[cfg(test)]
mod tests {
    use super::{Rule, matches};

    #[test]
    fn targets_are_exact_or_have_open_ends() {
        for pattern in ["/a/b", "/a/*", "*/b", "*a*", "*"] {
            assert!(matches(pattern, "/a/b"), "{pattern}");
        }
        for pattern in ["/a", "/b/*", "*/a", "*c*"] {
            assert!(!matches(pattern, "/a/b"), "{pattern}");
        }
    }

    #[test]
    fn a_rule_answers_so_many_times() {
        let rule = Rule::parse("2x GET /a | X-B: c => 200 OK");
        assert_eq!((rule.method.as_deref(), rule.target.as_str()), (Some("GET"), "/a"));
        assert_eq!(rule.fields, [("X-B".to_owned(), "c".to_owned())]);
        assert_eq!([rule.takes(), rule.takes(), rule.takes()], [true, true, false]);
        assert!(Rule::parse("* => closed").takes());
    }
}
