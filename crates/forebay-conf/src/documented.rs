//! Tests: every directive that nginx, NGINX Plus and Angie document is known, or refused with advice.
//!
//! `data/documented.tsv` has the names and the contexts. They were read from nginx.org's documents (July 2026), from the tables of
//! an nginx of August 2026, and from Angie's documents. `limit_zone` and others that nginx removed are in it.

use crate::grammar::{self, Contexts, Support};
use crate::third_party::{removed, third_party};

const TSV: &str = include_str!("../data/documented.tsv");

/// Quoted words in advice that are no directives, but words behind one.
const WORDS: [&str; 3] = ["api", "backup", "max_conns"];

/// Returns every name with one of its contexts.
fn documented() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = TSV.lines().skip(1).filter_map(|line| line.split_once('\t'));
    lines.flat_map(|(name, contexts)| contexts.split(',').map(move |context| (name, context)))
}

fn is_known(name: &str, context: Contexts) -> bool {
    let elsewhere = third_party(name.as_bytes()).is_some() || removed(name.as_bytes()).is_some();
    elsewhere || grammar::row(name.as_bytes(), context).is_some()
}

#[test]
fn every_documented_directive_is_known_in_its_contexts() {
    let unknown: Vec<_> = documented()
        .filter(|(name, context)| !is_known(name, Contexts::parse(context).expect(context)))
        .collect();
    assert_eq!(unknown, []);
    assert!(documented().count() > 1500, "the table of names is cut");
}

/// Advice and reasons of all refusals, with the names of what is refused.
fn reasons() -> impl Iterator<Item = (&'static str, &'static str)> {
    grammar::all().iter().filter_map(|row| match row.support {
        Support::Later(reason) | Support::Never(reason) => Some((row.name, reason)),
        _ => None,
    })
}

#[test]
fn every_refusal_says_why() {
    for (name, reason) in reasons() {
        assert!(!reason.is_empty(), "{name}");
    }
}

/// Advice to use `geoip2` is worth nothing while that is unknown.
#[test]
fn advice_names_directives_that_work() {
    let removed = documented().filter_map(|(name, _)| Some((name, removed(name.as_bytes())?)));
    let foreign = documented().filter_map(|(name, _)| Some((name, third_party(name.as_bytes())?.1)));
    for (name, reason) in reasons().chain(removed).chain(foreign) {
        // The first word between quotes; what follows it are words of the directive.
        for quoted in reason.split('"').skip(1).step_by(2) {
            let word = quoted.split(' ').next().unwrap_or_default();
            let works = grammar::rows(word.as_bytes()).iter().any(|row| row.support == Support::Yes);
            let is_other = quoted.starts_with("forebay ") || quoted.starts_with('$');
            assert!(works || is_other || WORDS.contains(&word), "{name}: \"{word}\" in: {reason}");
        }
    }
}

#[test]
fn the_mail_proxy_is_everywhere_not_there_yet() {
    for row in grammar::all().iter().filter(|row| row.module.starts_with("mail")) {
        assert!(matches!(row.support, Support::Later(_)), "{} of {}", row.name, row.module);
    }
}
