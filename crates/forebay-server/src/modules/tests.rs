//! The table of directives tells the truth about what is bound here.

use super::{
    BOUND, HTTP_DIRECTIVES, LOCATION_DIRECTIVES, family, proxy, proxy_bind, proxy_cache, proxy_ssl, server,
};
use crate::config::{self, http};
use crate::upstream;
use forebay_conf::grammar::{self, Contexts, Row, Support};

/// What the parser of forebay-conf does itself, in every context.
const PARSER: &[&str] = &["include", "load_module"];

/// A level of the file: its contexts, and the names that code takes there.
struct Level {
    contexts: &'static [Contexts],
    names: Vec<&'static str>,
}

fn levels() -> Vec<Level> {
    let mut http: Vec<&str> = BOUND.concat();
    http.extend(
        server::Written::DIRECTIVES
            .iter()
            .chain(HTTP_DIRECTIVES.iter().map(|(name, _)| name))
            .chain(LOCATION_DIRECTIVES),
    );
    http.extend(http::DIRECTIVES);
    let shared = [
        proxy::Written::DIRECTIVES,
        proxy_cache::Written::DIRECTIVES,
        proxy_bind::Written::DIRECTIVES,
        proxy_ssl::Written::DIRECTIVES,
    ];
    for (prefix, name) in
        family::PREFIXES.iter().flat_map(|p| shared.iter().copied().flatten().map(move |n| (p, n)))
    {
        let name = name.replacen("proxy_", prefix, 1);
        // Not every family has every directive.
        http.extend(grammar::rows(name.as_bytes()).first().map(|row| row.name));
    }
    vec![
        Level { contexts: &[Contexts::MAIN], names: config::MAIN_DIRECTIVES.to_vec() },
        Level { contexts: &[Contexts::EVENTS], names: config::EVENTS_DIRECTIVES.to_vec() },
        Level {
            contexts: &[
                Contexts::HTTP,
                Contexts::SERVER,
                Contexts::LOCATION,
                Contexts::IF_IN_SERVER,
                Contexts::IF_IN_LOCATION,
                Contexts::LIMIT_EXCEPT,
            ],
            names: http,
        },
        Level { contexts: &[Contexts::UPSTREAM], names: upstream::config::DIRECTIVES.to_vec() },
    ]
}

impl Level {
    fn has(&self, row: &Row) -> bool {
        self.contexts.iter().any(|c| row.contexts.meets(*c))
    }
}

#[test]
fn what_works_is_bound() {
    let levels = levels();
    let unbound: Vec<&str> = (grammar::all().iter())
        .filter(|row| row.support == Support::Yes && !PARSER.contains(&row.name))
        .filter(|row| !levels.iter().any(|level| level.has(row) && level.names.contains(&row.name)))
        .map(|row| row.name)
        .collect();
    assert_eq!(unbound, [""; 0]);
}

#[test]
fn what_is_bound_works() {
    for level in levels() {
        for name in &level.names {
            let works = (grammar::rows(name.as_bytes()).iter())
                .any(|row| level.has(row) && row.support == Support::Yes);
            assert!(works, "{name}");
        }
    }
}
