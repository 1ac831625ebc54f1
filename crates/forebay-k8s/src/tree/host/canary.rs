//! The choice between the group of a route and that of its canary.

use super::super::node;
use super::Out;
use crate::groups::short_hash;
use crate::model::{Alternative, HeaderChoice, HeaderValue};
use forebay_conf::Node;

/// Returns a key of a `map` for a text in exactly these letters. Texts as keys have no regard to case.
fn exactly(text: &str) -> String {
    format!("~^{}$", regex::escape(text))
}

/// Returns the variable of a cookie. One whose name is not that of a variable is taken out of the field into `own`.
fn cookie_variable(out: &mut Out<'_>, name: &str, own: &str) -> String {
    if name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return format!("$cookie_{name}");
    }
    // The name of a capture has 32 letters at most.
    let capture = format!("c{}", short_hash(own));
    let pattern = format!("~(?:^|;)\\s*(?i:{})=(?<{capture}>[^;]*)", regex::escape(name));
    let entries = vec![node("default", [""]), node(&pattern, [format!("${capture}")])];
    out.http.push(node("map", ["$http_cookie".to_owned(), format!("${own}")]).block(entries));
    format!("${own}")
}

/// Makes the variable that chooses between a group and its alternative: the header decides before the cookie, and that before
/// the share.
pub(super) fn choose(out: &mut Out<'_>, id: &str, group: &str, alternative: &Alternative) {
    if !out.once(&format!("canary {id}")) {
        return;
    }
    let there = alternative.group.as_str();
    let mut choice = Choice { out, id, group, there, variable: String::new() };
    choice.by_share(alternative.share);
    if let Some(cookie) = &alternative.cookie {
        choice.by_cookie(cookie);
    }
    if let Some(header) = &alternative.header {
        choice.by_header(header);
    }
    choice.keep(alternative.sticky.as_ref());
    let named = vec![node("default", [""]), node(there, [alternative.name.as_str()])];
    choice.map(format!("$canary_{id}"), format!("$canary_name_{id}"), named);
}

/// Choice between two groups while it is made.
struct Choice<'o, 'a> {
    out: &'o mut Out<'a>,
    /// Text that no other choice has.
    id: &'o str,
    group: &'o str,
    /// The other group.
    there: &'o str,
    /// Variable with the choice, or the group that is always chosen.
    variable: String,
}

impl Choice<'_, '_> {
    fn map(&mut self, from: String, to: String, entries: Vec<Node>) {
        self.out.http.push(node("map", [from, to]).block(entries));
    }

    fn by_share(&mut self, share: u32) {
        self.variable = match share {
            0 => self.group.to_owned(),
            10_000.. => self.there.to_owned(),
            share => {
                let variable = format!("$canary_share_{}", self.id);
                let percent = format!("{}.{:02}%", share / 100, share % 100);
                let split = vec![node(&percent, [self.there]), node("*", [self.group])];
                let words = [format!("${{request_id}}{}", self.id), variable.clone()];
                self.out.http.push(node("split_clients", words).block(split));
                variable
            }
        };
    }

    /// Returns the entries for the words that choose a group.
    fn words(&self) -> [Node; 2] {
        [node(&exactly("always"), [self.there]), node(&exactly("never"), [self.group])]
    }

    fn by_cookie(&mut self, cookie: &str) {
        let name = format!("$canary_cookie_{}", self.id);
        let mut entries = vec![node("default", [self.variable.as_str()])];
        entries.extend(self.words());
        let source = cookie_variable(self.out, cookie, &format!("canary_value_{}", self.id));
        self.map(source, name.clone(), entries);
        self.variable = name;
    }

    fn by_header(&mut self, header: &HeaderChoice) {
        let name = format!("$canary_header_{}", self.id);
        let mut entries = vec![node("default", [self.variable.as_str()])];
        match &header.value {
            None => entries.extend(self.words()),
            Some(HeaderValue::Exact(text)) => entries.push(node(&exactly(text), [self.there])),
            // An asterisk at its beginning would take the regard to case away.
            Some(HeaderValue::Regex(regex)) => entries.push(node(&format!("~(?:{regex})"), [self.there])),
        }
        let field = header.name.to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        self.map(format!("$http_{field}"), name.clone(), entries);
        self.variable = name;
    }

    /// Makes the variable with the result. Whoever has a cookie of a group stays with it; one with another mark is of a canary that is
    /// gone.
    fn keep(&mut self, sticky: Option<&(String, String)>) {
        let (source, entries) = match sticky {
            Some((cookie, mark)) => {
                let entries = vec![
                    node("default", [self.group]),
                    node("", [self.variable.as_str()]),
                    node(&format!("~^{mark}\\."), [self.there]),
                    node("~\\.", [self.variable.as_str()]),
                ];
                (cookie_variable(self.out, cookie, &format!("sticky_value_{}", self.id)), entries)
            }
            None => ("$host".to_owned(), vec![node("default", [self.variable.as_str()])]),
        };
        self.map(source, format!("$canary_{}", self.id), entries);
    }
}
