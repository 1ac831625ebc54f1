//! Places of settings in the configuration.

use forebay_conf::error::{Error, Level};
use forebay_conf::files::Files;
use forebay_conf::parse::parse;
use forebay_conf::tree::{Block, Directive, Tree};
use forebay_core::config::Environment;

/// Returns the configuration as a tree, for looking up places. `files` has everything that was read before.
pub(crate) fn tree(environment: &Environment, files: &mut Files) -> Tree {
    let directory = environment.conf_path.parent().unwrap_or(&environment.prefix).to_owned();
    parse(&environment.conf_path, &environment.globals, &directory, files).tree
}

/// Returns the last directive of a name at the top level or in `events`.
pub(crate) fn main_directive<'a>(tree: &'a Tree, name: &str) -> Option<&'a Directive> {
    fn last<'a>(block: &'a Block, name: &str) -> Option<&'a Directive> {
        block.iter().filter(|directive| directive.name.text == name.as_bytes()).last()
    }
    let events = || last(&tree.root, "events").and_then(|events| last(events.block.as_ref()?, name));
    last(&tree.root, name).or_else(events)
}

/// Formats the place of a directive: `/etc/nginx/nginx.conf:3`, or `command line`.
pub(crate) fn place(directive: &Directive, files: &Files) -> String {
    let line = files.render(&error_at(directive, String::new()));
    line.strip_prefix(" in ").unwrap_or(&line).to_owned()
}

/// Makes an error about a directive.
pub(crate) fn error_at(directive: &Directive, message: String) -> Error {
    Error {
        level: Level::Emerg,
        message,
        span: Some(directive.name.span),
        at: Some(directive.end),
        hint: None,
        ordinal: directive.ordinal,
    }
}
