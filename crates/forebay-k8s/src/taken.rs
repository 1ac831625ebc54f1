//! Names of groups, zones and variables that directives of the operator define, so that no generated one is the same.
//!
//! A generated name that is taken gets a hash behind it. Names with such a hash are refused in snippets.

use crate::groups::{HASH_DIGITS, short_hash};
use crate::variables::INTERNAL;
use forebay_conf::Node;
use std::collections::BTreeSet;

/// Directives with the name of a zone among their words, and what is before the name.
const ZONES: &[(&str, &str)] = &[
    ("fastcgi_cache_path", "keys_zone="),
    ("limit_conn_zone", "zone="),
    ("limit_req_zone", "zone="),
    ("proxy_cache_path", "keys_zone="),
    ("scgi_cache_path", "keys_zone="),
    ("ssl_session_cache", "shared:"),
    ("uwsgi_cache_path", "keys_zone="),
    ("zone", ""),
];

/// Directives that define the variable of their last word.
const VARIABLES: &[&str] = &["geo", "map", "num_map", "split_clients"];

/// Beginnings of the names of groups in the stream block.
const STREAM_GROUPS: [&str; 5] = ["", "gateway_", "tcp_", "tls_", "udp_"];

/// Names of groups and zones, in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken(BTreeSet<String>);

impl Taken {
    /// Collects the names that directives define.
    pub(crate) fn of<'n>(trees: impl IntoIterator<Item = &'n [Node]>) -> Taken {
        let mut taken = Taken::default();
        trees.into_iter().for_each(|nodes| taken.add(nodes));
        taken
    }

    fn add(&mut self, nodes: &[Node]) {
        for node in nodes {
            let word = |word: &[u8]| String::from_utf8_lossy(word).to_ascii_lowercase();
            if node.name == b"upstream" {
                self.0.extend(node.args.first().map(|name| word(name)));
            }
            for (_, start) in ZONES.iter().filter(|(name, _)| name.as_bytes() == node.name) {
                let words =
                    node.args.iter().map(|w| word(w)).take(if start.is_empty() { 1 } else { usize::MAX });
                let names = words.filter_map(|w| w.strip_prefix(start).map(str::to_owned));
                self.0.extend(names.filter_map(|name| name.split(':').next().map(str::to_owned)));
            }
            self.add(node.block.as_deref().unwrap_or_default());
        }
    }

    /// Returns `true` if a group of this name, in whichever block, would have a name that is taken.
    pub(crate) fn has_group(&self, name: &str) -> bool {
        !self.0.is_empty() && STREAM_GROUPS.iter().any(|start| self.0.contains(&format!("{start}{name}")))
    }

    /// Returns a name for a zone that is not taken.
    pub(crate) fn free(&self, name: String) -> String {
        if self.0.contains(&name) { format!("{name}_{}", short_hash(&name)) } else { name }
    }
}

/// Returns the name that a directive of a snippet defines, if it looks like one that the controller makes.
pub(crate) fn reserved(name: &str, words: &[String]) -> Option<usize> {
    let last = words.len().checked_sub(1);
    let index = match name {
        "upstream" | "json_set" | "time_format" => Some(0),
        "keyval" => Some(1),
        _ if VARIABLES.contains(&name) => last,
        _ => None,
    };
    let zone = |(i, word): (usize, &String)| {
        let (_, start) = ZONES.iter().find(|(directive, _)| *directive == name)?;
        let zone = word.strip_prefix(start)?.split(':').next()?;
        is_generated(zone).then_some(i)
    };
    let internal = |word: &str| {
        let name = word.trim_start_matches('$').trim_matches(['{', '}']).to_ascii_lowercase();
        name != word && INTERNAL.contains(&name.as_str())
    };
    let defined = index.filter(|i| words.get(*i).is_some_and(|word| internal(word) || is_generated(word)));
    defined.or_else(|| words.iter().enumerate().find_map(zone))
}

/// Returns `true` for a name with a hash as one of its parts.
fn is_generated(name: &str) -> bool {
    let is_hash = |part: &str| part.len() == HASH_DIGITS && part.bytes().all(|b| b.is_ascii_hexdigit());
    name.split(|c: char| !c.is_ascii_alphanumeric()).any(is_hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_conf::grammar::Contexts;
    use forebay_conf::parse::body;

    fn nodes(text: &str) -> Vec<Node> {
        forebay_conf::print::nodes(&body(text.as_bytes(), Contexts::HTTP).tree.root)
    }

    #[test]
    fn definitions_take_their_names() {
        let all = nodes(
            "upstream Own { zone own_zone 64k; server 10.0.0.1; } limit_req_zone $a zone=shop_web_80:1m rate=1r/s;
             proxy_cache_path /x keys_zone=cached:1m; ssl_session_cache shared:tls:1m; server { location / { proxy_pass http://used; } }",
        );
        let taken = Taken::of([all.as_slice()]);
        let names: Vec<&str> = taken.0.iter().map(String::as_str).collect();
        assert_eq!(names, ["cached", "own", "own_zone", "shop_web_80", "tls"]);
        assert!(taken.has_group("shop_web_80") && !taken.has_group("used"));
        assert_eq!(taken.free("other".into()), "other");
        let free = taken.free("cached".into());
        assert!(free.starts_with("cached_") && is_generated(&free), "{free}");
        let stream = nodes("upstream tcp_shop_web_80 { server 10.0.0.1; }");
        assert!(Taken::of([stream.as_slice()]).has_group("shop_web_80"));
    }

    #[test]
    fn names_with_a_hash_are_reserved() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let hash = short_hash("x");
        for (name, text, at) in [
            ("map", format!("$host $canary_{hash}"), Some(1)),
            ("map", format!("$canary_{hash} $own"), None),
            ("geo", format!("${{cors_{hash}_origin}}"), Some(0)),
            ("upstream", format!("shop_web_80_{hash}"), Some(0)),
            ("limit_req_zone", format!("$host zone=a_{hash}:1m rate=1r/s"), Some(1)),
            ("limit_req", format!("zone=a_{hash}"), None),
            ("upstream", "shop_web_80".to_owned(), None),
            ("map", "$http_x $own_host".to_owned(), Some(1)),
            ("geo", "${Connection_Trusted}".to_owned(), Some(0)),
            ("map", "$own_host $mine".to_owned(), None),
            ("map", "$http_x $best_http_host".to_owned(), None),
            ("upstream", "own_host".to_owned(), None),
        ] {
            assert_eq!(reserved(name, &words(&text)), at, "{name} {text}");
        }
    }
}
