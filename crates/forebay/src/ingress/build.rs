//! Configurations of files in memory, made as the server makes them, to find what is wrong with them.

use crate::front_ends::load_all;
use forebay_conf::error::Level;
use forebay_conf::files::Files;
use forebay_core::config::Environment;
use forebay_k8s::judge::{Build, Refusal};
use forebay_k8s::translate::MAIN;
use forebay_sys::files;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory that the files are said to be in. It does not have to exist.
const PREFIX: &str = "/forebay";

/// Maker of configurations.
pub(crate) struct Builder {
    /// Files of this machine that the configuration names, by the paths that it has for them.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// Any other file of this machine may be missing: the configuration is for another one.
    pub elsewhere: bool,
}

impl Build for Builder {
    fn errors(&self, given: &[(Arc<Path>, Arc<[u8]>)]) -> Vec<Refusal> {
        let prefix = Path::new(PREFIX);
        let own = self.files.iter().map(|(path, from)| {
            let bytes = files::read_file(from, files::MAX_WHOLE).unwrap_or_default();
            (prefix.join(path), Arc::<[u8]>::from(bytes))
        });
        let given = given.iter().map(|(path, bytes)| (prefix.join(path), bytes.clone()));
        let mut files = Files::shared(given.chain(own));
        let (_, errors) = load_all(&environment(prefix), &mut files);
        let mut errors: Vec<_> = errors.into_iter().filter(|e| e.level <= Level::Emerg).collect();
        errors.sort_by_key(|e| e.ordinal);
        let elsewhere = |message: &str| {
            let message = message.to_ascii_lowercase();
            self.elsewhere && message.contains("no such file") && !message.contains(PREFIX)
        };
        let errors = errors.iter().filter(|e| !elsewhere(&e.message));
        errors
            .map(|error| {
                let at = error.at.or(error.span);
                let path = at.map(|at| files.path(at.file)).and_then(|path| path.strip_prefix(prefix).ok());
                let hint = error.hint.as_deref().map(|hint| format!(" ({hint})")).unwrap_or_default();
                Refusal {
                    path: path.map(Arc::from),
                    line: at.map_or(0, |at| at.line as usize),
                    message: error.message.replace(&format!("{PREFIX}/"), "") + &hint,
                    ..Refusal::default()
                }
            })
            .collect()
    }
}

fn environment(prefix: &Path) -> Environment {
    Environment {
        prefix: prefix.join(""),
        conf_path: prefix.join(MAIN),
        globals: String::new(),
        error_log: Some("stderr".into()),
        access_log: "access.log".into(),
    }
}
