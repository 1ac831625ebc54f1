//! `json_set`: variables from a JSON document in a variable (nginx: ngx_http_json_module). All variables of one document are read
//! together, once for a request, when the first of them is used.

pub mod document;
pub mod path;
#[cfg(test)]
mod tests;

use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_core::blocks::map::variable_name;
use forebay_core::config::value;
use forebay_core::vars::{Computed, Extract, Names, VarId};
use forebay_server::config::Scope;
use forebay_server::module::Module;
use path::{Paths, Step};
use std::sync::Arc;

/// `json`.
pub static MODULE: Module =
    Module { http_directives: &[("json_set", set), ("json_max_depth", max_depth)], ..Module::NONE };

/// Default of `json_max_depth`.
const DEPTH: u16 = 32;
/// Largest `json_max_depth`.
const DEEPEST: u64 = 256;

/// Directives of this module so far.
#[derive(Debug, Default)]
struct Written {
    /// `json_max_depth`.
    depth: Option<u16>,
    sources: Vec<Source>,
}

/// Variable that has a document, with the `json_set` lines that read it.
#[derive(Debug)]
struct Source {
    id: VarId,
    /// Name and number of each variable, and its path.
    lines: Vec<(Box<[u8]>, VarId, Vec<Step>)>,
}

impl Source {
    /// Makes the variables of the lines so far. `json_max_depth` and further lines change them.
    fn define(&self, depth: u16, cx: &mut Scope<'_>) -> Result<(), String> {
        let mut paths = Paths::default();
        self.lines.iter().for_each(|(_, _, steps)| paths.add(steps));
        let variables = self.lines.iter().map(|(_, id, _)| *id).collect();
        let group: Arc<dyn Extract> = Arc::new(Group { source: self.id, depth, paths, variables });
        for (name, _, _) in &self.lines {
            cx.vars.define_computed(name, Computed::Extract(group.clone()))?;
        }
        Ok(())
    }
}

/// Reads `json_set`.
///
/// # Errors
/// In nginx's words where it has them.
fn set(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let [name, source, path] = d.args.as_slice() else {
        return Err(cx.error(d, "invalid number of arguments in \"json_set\" directive"));
    };
    let steps = path::parse(&path.text)
        .map_err(|why| cx.error_at(d, path, format!("invalid path \"{}\": {why}", path.as_str())))?;
    let name: Box<[u8]> = variable_name(d, name, cx)?.to_ascii_lowercase().into();
    let source = cx.vars.reference(variable_name(d, source, cx)?);
    let id = cx.vars.define_stored(&name).map_err(|m| cx.error(d, m))?;
    let mut written = std::mem::take(cx.tables.parts.get_mut::<Written>());
    // A later line for the same variable replaces an earlier one.
    written.sources.iter_mut().for_each(|s| s.lines.retain(|(own, _, _)| *own != name));
    let at = written.sources.iter().position(|s| s.id == source).unwrap_or_else(|| {
        written.sources.push(Source { id: source, lines: Vec::new() });
        written.sources.len() - 1
    });
    written.sources[at].lines.push((name, id, steps));
    let defined = written.sources[at].define(written.depth.unwrap_or(DEPTH), cx);
    *cx.tables.parts.get_mut::<Written>() = written;
    defined.map_err(|m| cx.error(d, m))
}

/// Reads `json_max_depth`.
///
/// # Errors
/// A number out of its range, or a second directive.
fn max_depth(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let mut written = std::mem::take(cx.tables.parts.get_mut::<Written>());
    value::once(&written.depth, d, cx)?;
    let number = units::number(value::first(d)).filter(|n| (1..=DEEPEST).contains(n));
    let depth = number.and_then(|n| u16::try_from(n).ok());
    let depth = depth.ok_or_else(|| cx.directive_error(d, "the value must be from 1 to 256"))?;
    written.depth = Some(depth);
    let defined = written.sources.iter().try_for_each(|s| s.define(depth, cx));
    *cx.tables.parts.get_mut::<Written>() = written;
    defined.map_err(|m| cx.error(d, m))
}

/// Variables that are read from one document.
#[derive(Debug)]
struct Group {
    source: VarId,
    depth: u16,
    paths: Paths,
    /// By the numbers of the paths.
    variables: Vec<VarId>,
}

impl Extract for Group {
    fn source(&self) -> VarId {
        self.source
    }

    fn read(&self, text: &[u8], found: &mut dyn FnMut(VarId, Option<&[u8]>)) {
        // An empty text is no document, and the most frequent one: requests without a body.
        let values =
            if text.is_empty() { Ok(Vec::new()) } else { document::read(text, &self.paths, self.depth) };
        let values = values.unwrap_or_default();
        let mut plain = Vec::new();
        for (at, variable) in self.variables.iter().enumerate() {
            match values.get(at) {
                Some(Some(value)) => {
                    plain.clear();
                    value.push(text, &mut plain);
                    found(*variable, Some(&plain));
                }
                _ => found(*variable, None),
            }
        }
    }
}
