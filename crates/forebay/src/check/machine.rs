//! Errors that only show on the machine: users and directories that a configuration names and that do not exist.

use crate::master_log::failed;
use crate::origin;
use crate::paths::Paths;
use crate::state;
use forebay_conf::error::{Error, Level};
use forebay_conf::files::Files;
use forebay_conf::tree::{Block, Directive};
use forebay_core::config::{Config, Environment};
use std::path::{Path, PathBuf};

/// Finds files and directories that a start with this configuration would miss. Makes and changes nothing.
pub(crate) fn errors(
    config: &Config,
    environment: &Environment,
    paths: &Paths,
    files: &mut Files,
) -> Vec<Error> {
    let tree = origin::tree(environment, files);
    let mut found = Vec::new();
    if let Err(text) = state::who(config) {
        let place = origin::main_directive(&tree, "user");
        found.push(place.map_or_else(|| plain(&text), |d| origin::error_at(d, text.clone())));
    }
    let pid = state::pid_path(config, paths);
    let opened = config.log_files.iter().chain([&pid]).map(|path| ("open()", path));
    for (call, path) in opened.chain(config.temp_paths.iter().map(|path| ("mkdir()", path))) {
        let Some(Err(e)) = path.parent().map(|dir| std::fs::metadata(dir.join("."))) else { continue };
        let text = failed(call, path, &e);
        let place = mention(&tree.root, path, environment);
        found.push(place.map_or_else(|| plain(&text), |d| origin::error_at(d, text.clone())));
    }
    missing_folders(&tree.root, environment, &mut found);
    found
}

/// Warns of folders of `root` and `alias` that do not exist, once for each. nginx says nothing, and answers 404.
fn missing_folders(block: &Block, environment: &Environment, found: &mut Vec<Error>) {
    for d in block.iter() {
        if let Some(inner) = d.block.as_ref().filter(|_| d.name.text != b"include") {
            missing_folders(inner, environment, found);
        }
        let [word] = d.args.as_slice() else { continue };
        let path = word.as_str();
        let names_folder = matches!(d.name.text.as_slice(), b"root" | b"alias") && !path.contains('$');
        let folder = full(&path, environment);
        let text = format!("the folder \"{}\" of \"{}\" does not exist", folder.display(), d.name.as_str());
        if names_folder
            && folder.try_exists().is_ok_and(|there| !there)
            && found.iter().all(|e| e.message != text)
        {
            found.push(Error { level: Level::Warn, span: Some(word.span), ..origin::error_at(d, text) });
        }
    }
}

fn plain(text: &str) -> Error {
    Error {
        level: Level::Emerg,
        message: text.to_owned(),
        span: None,
        at: None,
        hint: None,
        ordinal: u32::MAX,
    }
}

/// Returns the directive that names a path.
fn mention<'t>(block: &'t Block, path: &Path, environment: &Environment) -> Option<&'t Directive> {
    block.iter().find_map(|d| {
        let named = d.args.iter().any(|w| full(&w.as_str(), environment) == path);
        let inner = || d.block.as_ref().filter(|_| d.name.text != b"include");
        if named { Some(d) } else { inner().and_then(|b| mention(b, path, environment)) }
    })
}

fn full(path: &str, environment: &Environment) -> PathBuf {
    environment.prefix.join(path)
}
