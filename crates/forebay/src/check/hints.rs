//! Hints for `forebay check`: the probable meaning of a wrong unit, parameter, variable or name.

use forebay_conf::error::{Error, Level};
use forebay_conf::grammar;
use forebay_conf::tree::{Block, Directive, Tree, Word};

/// Adds a hint to each error that has none, where one is known. Errors about a name that the tree contains get its place.
pub(crate) fn add(errors: &mut [Error], tree: &Tree) {
    let mut all = Vec::new();
    collect(&tree.root, &mut all);
    let mut stream = Vec::new();
    for d in all.iter().filter(|d| d.name.text == b"stream") {
        d.block.iter().for_each(|block| collect(block, &mut stream));
    }
    let is_in_stream = |error: &Error| {
        let span = error.span.or(error.at);
        span.is_some_and(|span| stream.iter().flat_map(|d| &d.args).any(|w| w.span == span))
    };
    for error in errors.iter_mut().filter(|e| e.level == Level::Emerg) {
        if let Some(name) = unknown_variable(&error.message) {
            let word = all.iter().flat_map(|d| &d.args).find(|w| mentions(w, &name));
            if let (None, Some(word)) = (error.span.or(error.at), word) {
                error.span = Some(word.span);
            }
        }
        if error.hint.is_none() {
            let at = error.at;
            let directive = all.iter().copied().find(|d| at.is_some_and(|at| d.end == at));
            if let Some(word) = directive.and_then(unterminated) {
                error.hint = Some(format!(
                    "a \";\" is missing after \"{}\" in line {}",
                    word.as_str(),
                    word.span.line
                ));
                continue;
            }
            error.hint = match unknown_variable(&error.message) {
                Some(name) if is_in_stream(error) => {
                    meant(&name, variables(forebay_stream::variable_names(), &stream))
                }
                Some(name) => meant(&name, variables(forebay_modules::parts::variable_names(), &all)),
                None => hint(&error.message, directive, &all),
            };
        }
    }
}

/// Returns the word of a directive behind which a semicolon is missing: the next word begins a line, and is a directive's name.
fn unterminated(d: &Directive) -> Option<&Word> {
    let words = std::iter::once(&d.name).chain(&d.args);
    words
        .zip(&d.args)
        .find(|(before, next)| {
            next.span.line > before.span.line
                && !before.text.is_empty()
                && !grammar::rows(&next.text).is_empty()
        })
        .map(|(before, _)| before)
}

fn collect<'t>(block: &'t Block, out: &mut Vec<&'t Directive>) {
    for d in block.iter() {
        out.push(d);
        if let Some(inner) = d.block.as_ref().filter(|_| d.name.text != b"include") {
            collect(inner, out);
        }
    }
}

/// Returns the name of the variable that an error is about, if that is not known.
fn unknown_variable(message: &str) -> Option<String> {
    quoted(message, "unknown \"").filter(|_| message.ends_with("\" variable"))
}

/// Returns the hint that a name is one of `known`, if one is near.
fn meant(name: &str, known: Vec<String>) -> Option<String> {
    grammar::nearest(name, known.iter().map(String::as_str)).map(|n| format!("did you mean \"{n}\"?"))
}

fn hint(message: &str, directive: Option<&Directive>, all: &[&Directive]) -> Option<String> {
    if let Some(name) = quoted(message, "zero size shared memory zone \"") {
        let zones = words(all, |w| w.strip_prefix("zone=").or(w.strip_prefix("keys_zone=")));
        let zones = zones.iter().filter_map(|z| z.split_once(':').map(|(name, _)| name.to_owned())).collect();
        return meant(&name, zones)
            .or_else(|| Some(format!("no directive defines it with \"zone={name}:SIZE\"")));
    }
    if let Some(name) = quoted(message, "host not found in upstream \"") {
        // A group that is there has a mistake of its own.
        return meant(&name, named(all, "upstream")).filter(|hint| !hint.contains(&format!("\"{name}\"")));
    }
    if let Some(name) = quoted(message, "unknown log format \"") {
        return meant(&name, named(all, "log_format"));
    }
    if let Some(address) = quoted(message, " port in upstream \"") {
        // An address of stream has no scheme, and a group no port.
        return match address.split_once("://") {
            Some((_, rest)) => {
                Some(format!("write \"{} {}\"", directive?.name.as_str(), rest.trim_end_matches('/')))
            }
            // A group of the name that could not be read has an error of its own.
            None => meant(&address, named(all, "upstream"))
                .filter(|hint| !hint.contains(&format!("\"{address}\""))),
        };
    }
    if message.starts_with("open() ") || message.starts_with("mkdir() ") {
        let path = std::path::PathBuf::from(quoted(message, "() \"")?);
        let is_missing = |folder: &&std::path::Path| folder.try_exists().is_ok_and(|there| !there);
        let folder = path.parent().filter(is_missing)?.display().to_string();
        return Some(format!("the folder does not exist: mkdir -p '{}'", folder.replace('\'', "'\\''")));
    }
    let d = directive?;
    if let Some(zone) =
        ["invalid zone size \"", "invalid keys zone size \""].iter().find_map(|start| quoted(message, start))
    {
        let name = zone.split(':').next().unwrap_or_default();
        return Some(format!("say how large it is: \"{name}:10m\""));
    }
    if let Some(known) = quoted(message, "invalid parameter \"").and_then(|p| gone(d, &p)) {
        return Some(known.to_owned());
    }
    if message.contains("invalid URL prefix") {
        let scheme = if d.name.text.starts_with(b"grpc") { "grpc" } else { "http" };
        return Some(format!("write \"{} {scheme}://{}\"", d.name.as_str(), d.args.last()?.as_str()));
    }
    if let Some(unit) = d.args.iter().find_map(|w| right_unit(&w.as_str())) {
        return Some(format!("write \"{unit}\""));
    }
    let starts = ["invalid parameter \"", "unknown parameter \"", "invalid value \""];
    let parameter = starts.into_iter().find_map(|start| quoted(message, start))?;
    let (name, value) = parameter.split_once('=').map_or((&*parameter, None), |(n, v)| (n, Some(v)));
    let known = PARAMETERS.iter().filter(|(n, _)| n.as_bytes() == d.name.text).flat_map(|(_, p)| p.iter());
    let near = grammar::nearest(name, known.copied().map(|p| p.trim_end_matches('=')))?;
    Some(format!("did you mean \"{}\"?", value.map_or_else(|| near.to_owned(), |v| format!("{near}={v}"))))
}

/// Returns what is written in place of a parameter that nginx had once.
fn gone(d: &Directive, parameter: &str) -> Option<&'static str> {
    match (d.name.text.as_slice(), parameter) {
        (b"listen", "spdy") => Some("SPDY is gone: write \"http2 on;\" beside \"listen ... ssl\""),
        (b"listen", "http3") => Some("write \"listen ... quic\" beside \"listen ... ssl\""),
        (b"listen", "default") => Some("write \"default_server\""),
        _ => None,
    }
}

/// Returns the text between `start` and the next quotation mark.
fn quoted(message: &str, start: &str) -> Option<String> {
    let (_, rest) = message.split_once(start)?;
    rest.split_once('"').map(|(name, _)| name.to_owned())
}

/// Returns `true` if a word has `$name` or `${name}` in it.
fn mentions(w: &Word, name: &str) -> bool {
    let text = w.as_str().to_ascii_lowercase();
    text.match_indices('$').any(|(at, _)| {
        let rest = text.get(at + 1..).unwrap_or_default().trim_start_matches('{');
        rest.strip_prefix(name)
            .is_some_and(|r| !r.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
    })
}

fn words(all: &[&Directive], pick: impl Fn(&str) -> Option<&str>) -> Vec<String> {
    all.iter().flat_map(|d| &d.args).filter_map(|w| pick(&w.as_str()).map(str::to_owned)).collect()
}

/// Returns the first arguments of the directives of a name.
fn named(all: &[&Directive], name: &str) -> Vec<String> {
    let of = all.iter().filter(|d| d.name.text == name.as_bytes());
    of.filter_map(|d| d.args.first().map(|w| w.as_str().into_owned())).collect()
}

/// Returns the names of the variables that are built in or that one of the directives defines.
fn variables(builtin: impl Iterator<Item = &'static str>, all: &[&Directive]) -> Vec<String> {
    let mut names: Vec<String> = builtin.map(|name| name.trim_end_matches('*').to_owned()).collect();
    for d in all {
        names.extend(
            forebay_conf::variables::defined(d).map(|w| w.as_str().trim_start_matches('$').to_owned()),
        );
    }
    names
}

/// Units that nginx does not know, and nginx's name for each.
const UNITS: [(&[&str], &str); 10] = [
    (&["b", "byte", "bytes"], ""),
    (&["kb", "kib"], "k"),
    (&["mb", "mib"], "m"),
    (&["gb", "gib"], "g"),
    (&["sec", "secs", "second", "seconds"], "s"),
    (&["min", "mins", "minute", "minutes"], "m"),
    (&["hr", "hrs", "hour", "hours"], "h"),
    (&["day", "days"], "d"),
    (&["week", "weeks"], "w"),
    (&["msec", "millis"], "ms"),
];

/// Returns the unit that nginx has for one that it does not know, with its number: `10mb` is `10m`, `5min` is `5m`.
fn right_unit(text: &str) -> Option<String> {
    let value = text.split_once('=').map_or(text, |(_, v)| v);
    let digits = value.len() - value.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = value.split_at(digits);
    if number.is_empty() {
        return None;
    }
    let unit = unit.to_ascii_lowercase();
    let (_, right) = UNITS.iter().find(|(wrong, _)| wrong.contains(&&*unit))?;
    let start = text.strip_suffix(value).unwrap_or_default();
    Some(format!("{start}{number}{right}"))
}

/// Parameters of directives that take them by name.
const PARAMETERS: &[(&str, &[&str])] = &[
    (
        "listen",
        &[
            "default_server",
            "ssl",
            "http2",
            "quic",
            "proxy_protocol",
            "udp",
            "setfib=",
            "fastopen=",
            "backlog=",
            "rcvbuf=",
            "sndbuf=",
            "deferred",
            "bind",
            "ipv6only=",
            "reuseport",
            "so_keepalive=",
            "multipath",
        ],
    ),
    (
        "server",
        &[
            "weight=",
            "max_conns=",
            "max_fails=",
            "fail_timeout=",
            "backup",
            "down",
            "resolve",
            "route=",
            "service=",
            "slow_start=",
            "drain",
        ],
    ),
    (
        "proxy_cache_path",
        &[
            "levels=",
            "use_temp_path=",
            "keys_zone=",
            "inactive=",
            "max_size=",
            "min_free=",
            "manager_files=",
            "manager_sleep=",
            "manager_threshold=",
            "loader_files=",
            "loader_sleep=",
            "loader_threshold=",
            "purger=",
            "purge_sync=",
        ],
    ),
    ("limit_req", &["zone=", "burst=", "nodelay", "delay="]),
    ("limit_conn_zone", &["zone=", "sync"]),
    ("limit_req_zone", &["zone=", "rate=", "sync", "exact"]),
    (
        "shared_store",
        &["user=", "password=file:", "tls", "ca=", "prefix=", "timeout=", "replicas=", "session_tickets"],
    ),
    ("access_log", &["buffer=", "gzip", "gzip=", "flush=", "if="]),
    ("resolver", &["valid=", "ipv4=", "ipv6=", "status_zone="]),
    (
        "sticky",
        &[
            "cookie",
            "route",
            "learn",
            "expires=",
            "domain=",
            "httponly",
            "samesite=",
            "secure",
            "path=",
            "create=",
            "lookup=",
            "zone=",
            "timeout=",
            "norefresh",
            "connect",
            "header",
            "sync",
        ],
    ),
    ("open_file_cache", &["max=", "inactive=", "off"]),
    (
        "proxy_cookie_flags",
        &[
            "secure",
            "httponly",
            "samesite=strict",
            "samesite=lax",
            "samesite=none",
            "nosecure",
            "nohttponly",
            "nosamesite",
        ],
    ),
    ("ssl_session_cache", &["off", "none", "builtin", "builtin:", "shared:"]),
    ("ssl_protocols", &["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"]),
    ("error_log", &["debug", "info", "notice", "warn", "error", "crit", "alert", "emerg"]),
    ("proxy_next_upstream", grammar::NEXT_UPSTREAM),
    (
        "proxy_cache_use_stale",
        &[
            "error",
            "timeout",
            "invalid_header",
            "updating",
            "http_500",
            "http_502",
            "http_503",
            "http_504",
            "http_403",
            "http_404",
            "http_429",
            "off",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_other_programs_are_known() {
        for (wrong, right) in
            [("10mb", "10m"), ("1GB", "1g"), ("valid=5min", "valid=5m"), ("30seconds", "30s"), ("2KiB", "2k")]
        {
            assert_eq!(right_unit(wrong).as_deref(), Some(right));
        }
        for fine in ["10m", "1h", "mb", "10x", ""] {
            assert_eq!(right_unit(fine), None, "{fine}");
        }
    }
}
