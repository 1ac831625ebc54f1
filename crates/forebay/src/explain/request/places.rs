//! Directives of a configuration by their places.

use crate::origin;
use forebay_conf::files::Files;
use forebay_conf::tree::{Block, Directive, Place};
use std::collections::VecDeque;
use std::path::Path;

/// A configuration with its files.
pub(super) struct Tree<'t> {
    /// The configuration.
    pub tree: &'t forebay_conf::tree::Tree,
    /// Its files.
    pub files: &'t Files,
    /// Its main file.
    pub conf: &'t Path,
}

impl<'t> Tree<'t> {
    /// Returns a place as text: `conf.d/a.conf:3`, relative to the folder of the main file.
    pub(super) fn text(&self, d: &Directive) -> String {
        let place = origin::place(d, self.files);
        let folder = self.conf.parent().map(|dir| format!("{}/", dir.display())).unwrap_or_default();
        let inner = place.strip_prefix(&folder).unwrap_or(&place);
        inner.strip_prefix("./").unwrap_or(inner).to_owned()
    }

    /// Returns the names of the server at a place; its own directive, if it has none.
    pub(super) fn server(&self, place: Place) -> Vec<&'t Directive> {
        let Some(server) = self.at(place, &["server"]) else { return Vec::new() };
        let names: Vec<_> = server.block.iter().flatten().filter(|d| d.name.text == b"server_name").collect();
        if names.is_empty() { vec![server] } else { names }
    }

    /// Finds the directive at a place. `name` decides between several on one line.
    pub(super) fn at(&self, place: Place, names: &[&str]) -> Option<&'t Directive> {
        let mut blocks = VecDeque::from([&self.tree.root]);
        let mut first = None;
        while let Some(block) = blocks.pop_front() {
            for d in block.iter() {
                let is_named = names.iter().any(|n| n.as_bytes() == d.name.text);
                if d.name.span.place() == place && is_named {
                    return Some(d);
                }
                if d.name.span.place() == place && first.is_none() {
                    first = Some(d);
                }
                blocks.extend(&d.block);
            }
        }
        first
    }

    /// Returns the directives of these names in effect at the level that a directive at a place begins.
    pub(super) fn in_effect(&self, level: Place, names: &[&str]) -> Vec<&'t Directive> {
        let http = self.tree.root.iter().find(|d| d.name.text == b"http").and_then(|d| d.block.as_ref());
        let mut around = Vec::from_iter(http);
        if !http.is_some_and(|http| descend(http, level, &mut around)) {
            return Vec::new();
        }
        let named = |block: &'t Block| -> Vec<&'t Directive> {
            block.iter().filter(|d| names.iter().any(|n| n.as_bytes() == d.name.text)).collect()
        };
        // The innermost block that has any of them decides, as levels inherit.
        around.into_iter().rev().map(named).find(|found| !found.is_empty()).unwrap_or_default()
    }
}

/// Adds the blocks on the way from a block to a level. Returns `false` if the level is not below it.
fn descend<'t>(block: &'t Block, level: Place, around: &mut Vec<&'t Block>) -> bool {
    let is_level =
        |d: &&Directive| matches!(d.name.text.as_slice(), b"server" | b"location" | b"if" | b"limit_except");
    for d in block.iter().filter(is_level) {
        let Some(inner) = &d.block else { continue };
        around.push(inner);
        if d.name.span.place() == level || descend(inner, level, around) {
            return true;
        }
        around.pop();
    }
    false
}

/// Returns the words of a directive as one would write them.
pub(super) fn words(d: &Directive) -> String {
    let mut text = d.name.as_str().into_owned();
    for word in &d.args {
        text.push(' ');
        text.push_str(&word.as_str().replace('\n', "\\n"));
    }
    text
}

/// Returns the locations beside a location: those of the block around it.
pub(super) fn siblings<'t>(tree: &Tree<'t>, location: Place) -> Vec<&'t Directive> {
    fn find(block: &Block, location: Place) -> Option<&Block> {
        let has = |d: &Directive| d.name.text == b"location" && d.name.span.place() == location;
        if block.iter().any(has) {
            return Some(block);
        }
        block.iter().filter_map(|d| d.block.as_ref()).find_map(|inner| find(inner, location))
    }
    let block = find(&tree.tree.root, location);
    let locations = block.into_iter().flat_map(Block::iter).filter(|d| d.name.text == b"location");
    locations.filter(|d| d.name.span.place() != location).collect()
}
