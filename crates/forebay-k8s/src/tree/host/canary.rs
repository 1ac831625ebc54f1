//! The choice between the group of a route and that of its canary.

use super::super::node;
use super::Out;
use crate::groups::short_hash;
use crate::model::{Alternative, HeaderValue};

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
    let mut variable = match alternative.share {
        0 => group.to_owned(),
        10_000.. => there.to_owned(),
        share => {
            let percent = format!("{}.{:02}%", share / 100, share % 100);
            let split = vec![node(&percent, [there]), node("*", [group])];
            out.http.push(
                node("split_clients", [format!("${{request_id}}{id}"), format!("$canary_share_{id}")])
                    .block(split),
            );
            format!("$canary_share_{id}")
        }
    };
    if let Some(cookie) = &alternative.cookie {
        let name = format!("$canary_cookie_{id}");
        let mut entries = vec![node("default", [variable.as_str()])];
        entries.extend([node(&exactly("always"), [there]), node(&exactly("never"), [group])]);
        let source = cookie_variable(out, cookie, &format!("canary_value_{id}"));
        out.http.push(node("map", [source, name.clone()]).block(entries));
        variable = name;
    }
    if let Some(header) = &alternative.header {
        let name = format!("$canary_header_{id}");
        let mut entries = vec![node("default", [variable.as_str()])];
        match &header.value {
            None => entries.extend([node(&exactly("always"), [there]), node(&exactly("never"), [group])]),
            Some(HeaderValue::Exact(text)) => entries.push(node(&exactly(text), [there])),
            // An asterisk at its beginning would take the regard to case away.
            Some(HeaderValue::Regex(regex)) => entries.push(node(&format!("~(?:{regex})"), [there])),
        }
        let source = format!(
            "$http_{}",
            header.name.to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_")
        );
        out.http.push(node("map", [source, name.clone()]).block(entries));
        variable = name;
    }
    // Whoever has a cookie of a group stays with it. One with another mark is of a canary that is gone.
    if let Some((cookie, mark)) = &alternative.sticky {
        let source = cookie_variable(out, cookie, &format!("sticky_value_{id}"));
        let entries = vec![
            node("default", [group]),
            node("", [variable.as_str()]),
            node(&format!("~^{mark}\\."), [there]),
            node("~\\.", [variable.as_str()]),
        ];
        out.http.push(node("map", [source, format!("$canary_{id}")]).block(entries));
    } else {
        let entries = vec![node("default", [variable])];
        out.http.push(node("map", ["$host".to_owned(), format!("$canary_{id}")]).block(entries));
    }
    let named = vec![node("default", [""]), node(there, [alternative.name.as_str()])];
    out.http.push(node("map", [format!("$canary_{id}"), format!("$canary_name_{id}")]).block(named));
}
