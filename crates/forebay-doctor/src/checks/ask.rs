//! Questions that several rules ask.

use crate::scene::Scene;
use crate::variables::{named, values_of_tables, written_by_set};
use forebay_conf::units;
use std::borrow::Cow;

/// Families of protocols by which requests are passed on.
pub(crate) const FAMILIES: [&str; 4] = ["proxy", "fastcgi", "uwsgi", "scgi"];

/// Directives that let some clients in only.
const GUARDS: [&str; 6] = ["deny", "auth_basic", "auth_request", "auth_jwt", "auth_oidc", "internal"];

/// Returns `true` if not everybody gets into a block: by a guard of its own or of an outer block.
pub(crate) fn is_guarded(s: &Scene<'_>, block: Option<usize>) -> bool {
    let guards = GUARDS.iter().filter_map(|name| s.effective(block, name));
    let by_guard = guards.filter(|n| s.arg(*n, 0) != "off").count() > 0;
    by_guard || by_certificate(s, block) || by_condition(s, block) || has_limit_except(s, block)
}

fn by_certificate(s: &Scene<'_>, block: Option<usize>) -> bool {
    s.effective(block, "ssl_verify_client").is_some_and(|n| s.arg(n, 0) == "on")
}

/// Variables by which programs, methods or names are refused, and no person.
const NOBODY: [&str; 18] = [
    "http_user_agent",
    "request_method",
    "host",
    "http_host",
    "scheme",
    "https",
    "args",
    "query_string",
    "request_uri",
    "uri",
    "document_uri",
    "request_filename",
    "http_referer",
    "invalid_referer",
    "http_x_forwarded_proto",
    "server_protocol",
    "content_length",
    "http_content_type",
];

/// Returns `true` if a condition could be about who somebody is: one about programs and methods lets everybody in.
fn asks_for_somebody(s: &Scene<'_>, condition: usize) -> bool {
    let words = s.args(condition).join(" ");
    let is_table = |v: &str| crate::variables::is_of_table(s, v);
    let names = crate::variables::sources(s, Some(condition), &words);
    names.is_empty() || names.iter().any(|v| !NOBODY.contains(&v.as_str()) && !is_table(v))
}

/// Returns `true` if a condition of a block or of an outer one refuses some.
fn by_condition(s: &Scene<'_>, block: Option<usize>) -> bool {
    let mut at = block;
    while let Some(b) = at {
        let refuses = |n: usize| {
            let answers = s.child(Some(n), "return").is_some_and(|r| s.arg(r, 0).starts_with('4'));
            answers && asks_for_somebody(s, n)
        };
        if s.children(Some(b), "if").any(refuses) {
            return true;
        }
        at = s.parent(b);
    }
    false
}

fn has_limit_except(s: &Scene<'_>, block: Option<usize>) -> bool {
    s.children(block, "limit_except").any(|n| is_guarded_itself(s, n))
}

/// Returns `true` if a block has a guard of its own.
pub(crate) fn is_guarded_itself(s: &Scene<'_>, block: usize) -> bool {
    let own = GUARDS.iter().filter_map(|name| s.child(Some(block), name));
    own.filter(|n| s.arg(*n, 0) != "off").count() > 0
}

/// Returns `true` if a block answers nobody: `deny all`, or `return` with an error.
pub(crate) fn refuses_all(s: &Scene<'_>, block: usize) -> bool {
    let denies = s.children(Some(block), "deny").any(|n| s.arg(n, 0) == "all");
    let code = s.child(Some(block), "return").map(|n| s.arg(n, 0)).unwrap_or_default();
    denies || code.starts_with('4') || s.child(Some(block), "internal").is_some()
}

/// Returns the http server around a directive.
pub(crate) fn http_server(s: &Scene<'_>, n: usize) -> Option<usize> {
    let server = if s.is(n, "server") { Some(n) } else { s.around(n, "server") };
    server.filter(|b| s.around(*b, "http").is_some())
}

/// Returns the servers of the http block.
pub(crate) fn http_servers<'s>(s: &'s Scene<'_>) -> impl Iterator<Item = usize> + 's {
    s.all("server").filter(|n| s.parent(*n).is_some_and(|p| s.is(p, "http")))
}

/// Returns `true` if a server listens for this machine only.
pub(crate) fn is_local(s: &Scene<'_>, server: usize) -> bool {
    let mut listens = children(s, server, "listen").peekable();
    let local = |l: usize| ["127.", "[::1]", "unix:", "localhost"].iter().any(|p| s.arg(l, 0).starts_with(p));
    listens.peek().is_some() && listens.all(local)
}

/// Returns the directives of this name right in a block.
pub(crate) fn children<'s, 't>(
    s: &'s Scene<'t>,
    block: usize,
    name: &str,
) -> impl Iterator<Item = usize> + Clone + use<'s, 't> {
    s.children(Some(block), name)
}

/// Returns `true` if a directive has this word among its arguments.
pub(crate) fn has(s: &Scene<'_>, n: usize, word: &str) -> bool {
    s.has(n, word)
}

/// Returns the value of a parameter `NAME=VALUE`.
pub(crate) fn parameter<'s>(s: &'s Scene<'_>, n: usize, name: &str) -> Option<&'s str> {
    s.args(n).iter().find_map(|a| a.strip_prefix(name)?.strip_prefix('='))
}

/// Returns the seconds that an argument stands for.
pub(crate) fn seconds(s: &Scene<'_>, n: usize, arg: usize) -> Option<u64> {
    units::time_secs(s.arg(n, arg).as_bytes())
}

/// Returns the level at which a directive stands: that of all sites, a whole site, or a part of it.
pub(crate) fn is_wide(s: &Scene<'_>, n: usize) -> bool {
    let Some(parent) = s.parent(n) else { return true };
    let whole = || ["/", "^~ /", "~ /", "~ ^/", "~ .*", "~ ^"].contains(&&*s.text(parent));
    s.is(parent, "http") || s.is(parent, "server") || (s.is(parent, "location") && whole())
}

/// Returns the variables whose text is in a text: those that it names, and for tables and `set` those of their values. The variable
/// that a table only looks at is not among them.
pub(crate) fn carried(s: &Scene<'_>, block: Option<usize>, text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut texts: Vec<Cow<'_, str>> = vec![Cow::Borrowed(text)];
    while let Some(text) = texts.pop() {
        for (_, name) in named(&text) {
            if found.iter().any(|f| f == name) || found.len() > 100 {
                continue;
            }
            found.push(name.to_owned());
            texts.extend(written_by_set(s, block, name).map(Cow::Borrowed));
            texts.extend(values_of_tables(s, block, name).into_iter().map(Cow::Owned));
        }
    }
    found
}

/// Returns the variable by which a text carries something that the client wrote into a field, an argument or a cookie.
pub(crate) fn client_field(s: &Scene<'_>, block: Option<usize>, text: &str) -> Option<String> {
    let families = ["http_", "arg_", "cookie_"];
    carried(s, block, text).into_iter().find(|v| families.iter().any(|f| v.starts_with(f)))
}

/// Returns the directives `add_header` in effect in a block.
pub(crate) fn fields_of(s: &Scene<'_>, block: Option<usize>) -> Vec<usize> {
    s.all_effective(block, "add_header").collect()
}

/// Returns the upstream block that an address names.
pub(crate) fn group_of(s: &Scene<'_>, url: &str) -> Option<usize> {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    let name = host.split(['/', ':']).next().unwrap_or_default();
    s.group(name)
}

/// Returns the locations that `auth_request` asks; [`Scene::asked`] keeps them.
pub(crate) fn auth_locations(s: &Scene<'_>) -> Vec<usize> {
    let mut found: Vec<usize> = Vec::new();
    for n in s.all("auth_request").filter(|n| s.arg(*n, 0).starts_with('/')) {
        let servers: Vec<usize> = match http_server(s, n) {
            Some(server) => vec![server],
            None => http_servers(s).collect(),
        };
        let uri = s.arg(n, 0);
        let path = uri.split('?').next().unwrap_or_default();
        let asked = servers.into_iter().map(|server| crate::routes::chosen(s, server, path));
        found.extend(asked.filter(|l| s.is(*l, "location")));
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns the address that a block passes requests on to.
pub(crate) fn pass_of<'s>(s: &'s Scene<'_>, block: usize) -> Option<&'s str> {
    let names = ["proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass"];
    names.into_iter().find_map(|name| s.child(Some(block), name)).map(|n| s.arg(n, 0))
}

/// Words of the names of object stores.
const STORES: [&str; 6] = ["minio", "s3", "ceph", "radosgw", "garage", "seaweedfs"];

/// Returns `true` if requests go to an object store. Its documents ask for the client's own Host, which signatures cover, and for
/// bodies that are passed on as they come.
pub(crate) fn is_object_store(s: &Scene<'_>, n: usize) -> bool {
    let Some(block) = s.parent(n) else { return false };
    let is_store = |text: &str| {
        let lower = text.to_ascii_lowercase();
        lower.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| {
            STORES.iter().any(|store| word == *store || store.len() > 2 && word.starts_with(store))
        })
    };
    let names = s.around(n, "server").into_iter().chain([block]).flat_map(|b| children(s, b, "server_name"));
    let passes = s.named_inside(block, "proxy_pass").map(|p| s.arg(p, 0));
    let servers = passes.clone().filter_map(|url| group_of(s, url)).flat_map(|g| children(s, g, "server"));
    names.flat_map(|n| s.args(n)).map(|name| &**name).any(is_store)
        || passes.chain(servers.map(|n| s.arg(n, 0))).any(is_store)
}

/// Returns `true` if a block answers with something else than files.
fn answers_itself(s: &Scene<'_>, block: usize) -> bool {
    let other = ["return", "stub_status", "api", "alias", "empty_gif", "deny", "memcached_pass"];
    let denies =
        |n: usize| !s.is(n, "deny") || s.arg(n, 0) == "all" && s.child(Some(block), "allow").is_none();
    pass_of(s, block).is_some() || other.iter().filter_map(|d| s.child(Some(block), d)).any(denies)
}

/// Returns `true` if files of a `root` or `alias` are sent by some block: where all locations pass requests on, none are.
pub(crate) fn serves(s: &Scene<'_>, n: usize) -> bool {
    let Some(own) = s.parent(n).filter(|_| s.is(n, "root")) else { return true };
    let has_rest =
        |b: usize| children(s, b, "location").any(|l| crate::routes::prefix(s, l).is_some_and(|p| p == "/"));
    let blocks = std::iter::once(own).chain(s.inside(own));
    let mut blocks = blocks.filter(|b| {
        s.is(*b, "location") || s.is(*b, "server") && s.nodes.get(*b).is_some_and(|n| n.d.block.is_some())
    });
    let is_partial = s.is(own, "http") && s.is_partial();
    is_partial
        || blocks.any(|b| {
            let takes = !(s.is(b, "server") && has_rest(b));
            takes && s.effective(Some(b), "root") == Some(n) && !answers_itself(s, b)
        })
}
