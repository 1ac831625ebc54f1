//! Joins the directives that the controller makes for a block with those of a snippet.
//!
//! The author of a snippet has the last word: where nginx would refuse a second directive as a duplicate, the one of the snippet
//! stands alone. Of directives that make a list together, such as `proxy_set_header`, it replaces only the entry of the same
//! name. The rules are the same on each level: main, `http`, `server` and `location`.

use forebay_conf::Node;

/// How directives of one name stand together in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Together {
    /// One at most.
    Once,
    /// Any number, and each adds to the others.
    All,
    /// One for each field, the first word without regard to case.
    Field,
    /// One for each first word.
    Name,
    /// One for each variable, the last word: a later definition of a variable replaces the one before.
    Variable,
    /// One for each status.
    Status,
    /// Any number of files, or `off` alone.
    Log,
    /// One block, whose content is joined.
    Block,
}

/// Directives that may stand more than once. All others stand once.
#[rustfmt::skip]
const RULES: &[(Together, &[&str])] = &[
    (Together::All, &[
        "allow", "break", "debug_connection", "deny", "env", "error_log", "fastcgi_cache_valid", "fastcgi_hide_header",
        "fastcgi_pass_header", "goto", "grpc_hide_header", "grpc_pass_header", "if", "include", "limit_except", "listen",
        "load_module", "location", "match", "mirror", "more_clear_headers", "more_clear_input_headers", "more_set_headers",
        "more_set_input_headers", "proxy_cache_valid", "proxy_hide_header", "proxy_pass_header", "proxy_ssl_conf_command",
        "return", "rewrite", "scgi_hide_header", "scgi_pass_header", "server", "server_name", "set", "set_decode_base64",
        "set_encode_base64", "set_escape_uri", "set_if_empty", "set_real_ip_from", "set_unescape_uri", "ssl_certificate",
        "ssl_certificate_key", "ssl_conf_command", "ssl_session_ticket_key", "sub_filter", "types", "upstream",
        "uwsgi_hide_header", "uwsgi_pass_header", "valid_referers",
    ]),
    (Together::Field, &["add_header", "add_trailer", "grpc_set_header", "proxy_set_header"]),
    (Together::Name, &[
        "auth_request_set", "fastcgi_param", "json_set", "limit_conn", "limit_req", "log_format", "scgi_param",
        "thread_pool", "time_format", "uwsgi_param",
    ]),
    (Together::Variable, &["geo", "map", "num_map", "split_clients"]),
    (Together::Status, &["error_page"]),
    (Together::Log, &["access_log"]),
    (Together::Block, &["events", "http", "stream"]),
];

/// Directives of which a block has one at most, whichever it is: each answers the request by itself.
const HANDLERS: &[&str] =
    &["fastcgi_pass", "grpc_pass", "memcached_pass", "proxy_pass", "scgi_pass", "tunnel_pass", "uwsgi_pass"];

/// Fields of which an answer may have several.
const REPEATED: &[&str] = &["Link", "Set-Cookie", "Vary", "Via", "WWW-Authenticate"];

fn together(name: &[u8]) -> Together {
    let has = |names: &[&str]| names.iter().any(|n| n.as_bytes() == name);
    RULES.iter().find(|(_, names)| has(names)).map_or(Together::Once, |(rule, _)| *rule)
}

fn is_handler(node: &Node) -> bool {
    HANDLERS.iter().any(|n| n.as_bytes() == node.name)
}

/// Returns the generated directives that stay beside those of a snippet, and then those.
pub(crate) fn join(mut generated: Vec<Node>, own: &[Node]) -> Vec<Node> {
    for node in own {
        if together(&node.name) == Together::Block
            && let Some(same) = generated.iter_mut().find(|g| g.name == node.name)
        {
            let inner =
                join(same.block.take().unwrap_or_default(), node.block.as_deref().unwrap_or_default());
            same.block = Some(inner);
        }
    }
    let joined = |node: &Node, all: &[Node]| {
        together(&node.name) == Together::Block && all.iter().any(|g| g.name == node.name)
    };
    let more: Vec<Node> = own.iter().filter(|n| !joined(n, &generated)).cloned().collect();
    give_way(&mut generated, own);
    generated.extend(more);
    generated
}

/// Removes the generated directives that those of a snippet replace.
pub(crate) fn give_way(generated: &mut Vec<Node>, own: &[Node]) {
    for node in own {
        if together(&node.name) == Together::Status {
            generated.iter_mut().filter(|g| g.name == node.name).for_each(|g| remove_statuses(g, node));
        }
    }
    let empty = |g: &Node| together(&g.name) == Together::Status && statuses(g).is_empty();
    generated.retain(|g| !empty(g) && !own.iter().any(|node| replaces(node, g)));
}

/// Returns `true` if a directive of a snippet replaces a generated one.
fn replaces(own: &Node, generated: &Node) -> bool {
    if is_handler(own) && is_handler(generated) {
        return true;
    }
    if own.name != generated.name {
        return false;
    }
    match together(&own.name) {
        Together::Once => true,
        Together::All | Together::Status | Together::Block => false,
        Together::Field => same_field(own, generated),
        Together::Name => own.args.first() == generated.args.first(),
        Together::Variable => own.args.last() == generated.args.last(),
        Together::Log => [own, generated].iter().any(|n| n.args.first().is_some_and(|w| w == b"off")),
    }
}

fn same_field(own: &Node, generated: &Node) -> bool {
    let (Some(a), Some(b)) = (own.args.first(), generated.args.first()) else { return false };
    let of_answers = own.name.starts_with(b"add_");
    let repeated = of_answers && REPEATED.iter().any(|f| a.eq_ignore_ascii_case(f.as_bytes()));
    a.eq_ignore_ascii_case(b) && !repeated
}

/// Returns the statuses of `error_page 404 500 =200 /page`.
fn statuses(node: &Node) -> Vec<&Vec<u8>> {
    let number = |w: &&Vec<u8>| !w.is_empty() && w.iter().all(u8::is_ascii_digit);
    node.args.iter().take(node.args.len().saturating_sub(1)).filter(number).collect()
}

fn remove_statuses(generated: &mut Node, own: &Node) {
    let taken: Vec<Vec<u8>> = statuses(own).into_iter().cloned().collect();
    let last = generated.args.len().saturating_sub(1);
    let mut index = 0;
    generated.args.retain(|word| {
        index += 1;
        index > last || !taken.contains(word)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses directives. All contexts are one to the parser of a tree.
    fn nodes(text: &str) -> Vec<Node> {
        let contexts = forebay_conf::grammar::Contexts::LOCATION;
        forebay_conf::print::nodes(&forebay_conf::parse::body(text.as_bytes(), contexts).tree.root)
    }

    #[test]
    fn joined() {
        #[rustfmt::skip]
        let table: &[(&str, &str, &str)] = &[
            // One of a kind.
            ("proxy_read_timeout 60s; gzip on;", "proxy_read_timeout 9s;", "gzip on; proxy_read_timeout 9s;"),
            ("client_max_body_size 1m;", "client_max_body_size 100m;", "client_max_body_size 100m;"),
            ("proxy_redirect off;", "proxy_redirect / /x;", "proxy_redirect / /x;"),
            ("proxy_pass http://a;", "grpc_pass grpc://b;", "grpc_pass grpc://b;"),
            // Fields: letters in any case.
            ("proxy_set_header Host $host; proxy_set_header X-A 1;", "proxy_set_header HOST x;",
             "proxy_set_header X-A 1; proxy_set_header HOST x;"),
            ("proxy_set_header Host $host;", "proxy_set_header X-My 1; proxy_set_header X-My 2;",
             "proxy_set_header Host $host; proxy_set_header X-My 1; proxy_set_header X-My 2;"),
            ("grpc_set_header Host a;", "proxy_set_header Host b;", "grpc_set_header Host a; proxy_set_header Host b;"),
            ("add_header X-A 1;", "add_header x-a 2 always;", "add_header x-a 2 always;"),
            ("add_header Set-Cookie a;", "add_header Set-Cookie b;", "add_header Set-Cookie a; add_header Set-Cookie b;"),
            ("more_set_headers 'A: 1';", "more_set_headers -s 404 'A: 2';",
             "more_set_headers 'A: 1'; more_set_headers -s 404 'A: 2';"),
            // Names: letters as they are.
            ("fastcgi_param A 1; fastcgi_param a 2;", "fastcgi_param A 3;", "fastcgi_param a 2; fastcgi_param A 3;"),
            ("limit_conn a 1; limit_conn b 1;", "limit_conn a 2;", "limit_conn b 1; limit_conn a 2;"),
            // Lists.
            ("deny 10.0.0.1;", "allow all;", "deny 10.0.0.1; allow all;"),
            ("proxy_hide_header A;", "proxy_hide_header B;", "proxy_hide_header A; proxy_hide_header B;"),
            // Statuses.
            ("error_page 404 500 = @a;", "error_page 404 /x;", "error_page 500 = @a; error_page 404 /x;"),
            ("error_page 404 = @a;", "error_page 404 =200 /x;", "error_page 404 =200 /x;"),
            ("error_page 500 /404;", "error_page 404 /x;", "error_page 500 /404; error_page 404 /x;"),
            // Logs.
            ("access_log off;", "access_log /x;", "access_log /x;"),
            ("access_log /y;", "access_log /x;", "access_log /y; access_log /x;"),
            ("access_log /y;", "access_log off;", "access_log off;"),
        ];
        for (generated, own, all) in table {
            assert_eq!(join(nodes(generated), &nodes(own)), nodes(all), "{generated} with {own}");
        }
    }

    #[test]
    fn variables_and_blocks() {
        let map = |from: &str, to: &str| Node::new("map").args([from, to]).block(Vec::new());
        let generated = vec![map("$a", "$connection_upgrade"), map("$a", "$other")];
        let own = [map("$http_upgrade", "$connection_upgrade")];
        assert_eq!(join(generated, &own), [map("$a", "$other"), own[0].clone()]);
        let block = |name: &str, inner: &[(&str, &str)]| {
            Node::new(name).block(inner.iter().map(|(n, w)| Node::new(*n).arg(*w)).collect())
        };
        let generated = vec![block("events", &[("worker_connections", "1"), ("use", "epoll")])];
        let own = [block("events", &[("worker_connections", "2")])];
        let all = [block("events", &[("use", "epoll"), ("worker_connections", "2")])];
        assert_eq!(join(generated, &own), all);
        assert_eq!(join(Vec::new(), &own), own);
    }

    /// Each name exists, and has one rule.
    #[test]
    fn rules_are_of_directives() {
        let mut seen = std::collections::BTreeSet::new();
        for name in RULES.iter().flat_map(|(_, names)| *names).chain(HANDLERS) {
            assert!(seen.insert(*name), "{name}");
            assert!(!forebay_conf::grammar::rows(name.as_bytes()).is_empty(), "{name}");
        }
    }
}
