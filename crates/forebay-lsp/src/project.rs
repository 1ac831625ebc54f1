//! A configuration as the editor has it: the texts of open documents in place of the files on disk.

use crate::text;
use forebay_conf::error::Error;
use forebay_conf::files::{Files, default_configuration};
use forebay_conf::grammar::Contexts;
use forebay_conf::parse::{self, inside};
use forebay_conf::tree::{Block, Directive, FileId, Span, Tree};
use forebay_core::config::Environment;
use lsp_types::{Location, Range};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Texts of open documents by path.
pub(crate) type Documents = BTreeMap<PathBuf, Arc<[u8]>>;

/// Finds all mistakes of a configuration.
pub type Check = fn(&Environment, &mut Files) -> Vec<Error>;

/// Name of main files, which are looked for in the folder of a document and in those above it.
const MAIN: &str = "nginx.conf";
/// Folders above a document in which a main file is looked for.
const LEVELS: usize = 3;

/// A configuration that was read.
pub(crate) struct Project {
    /// The main file.
    pub main: PathBuf,
    pub files: Files,
    pub tree: Tree,
}

impl Project {
    /// Reads the configuration of a main file.
    pub(crate) fn read(main: &Path, documents: &Documents) -> Project {
        let mut files = with(documents);
        let parsed = parse::parse(main, "", folder(main), &mut files);
        Project { main: main.to_owned(), files, tree: parsed.tree }
    }

    /// Reads the configuration to which a document belongs: `configured`, the document itself, or a main file near it that includes
    /// it. `None` if there is none.
    pub(crate) fn of(document: &Path, configured: Option<&Path>, documents: &Documents) -> Option<Project> {
        let includes = |main: &Path| {
            let project = Project::read(main, documents);
            project.file(document).is_some().then_some(project)
        };
        if let Some(project) = configured.and_then(includes) {
            return Some(project);
        }
        if documents.get(document).is_some_and(|text| is_main(text)) {
            return Some(Project::read(document, documents));
        }
        let near = document.ancestors().skip(1).take(LEVELS).map(|folder| folder.join(MAIN));
        let installed = std::iter::once(default_configuration());
        near.chain(installed)
            .filter(|main| main != document && main.is_file())
            .find_map(|main| includes(&main))
    }

    /// Returns the number of a file of the configuration.
    pub(crate) fn file(&self, path: &Path) -> Option<FileId> {
        self.files.iter().find(|(_, known, _)| *known == path).map(|(id, _, _)| id)
    }

    /// Returns the environment for checks.
    pub(crate) fn environment(&self) -> Environment {
        Environment {
            prefix: "/usr/share/nginx/".into(),
            conf_path: self.main.clone(),
            globals: String::new(),
            error_log: None,
            access_log: "/var/log/nginx/access.log".into(),
        }
    }

    /// Returns the context of the directives of a file: that of the `include` that names it.
    pub(crate) fn context(&self, file: FileId) -> Contexts {
        let found = |block: &Block| block.items.iter().any(|d| d.name.span.file == file);
        fn search(block: &Block, here: Contexts, found: &dyn Fn(&Block) -> bool) -> Option<Contexts> {
            block.items.iter().find_map(|d| {
                let inner = d.block.as_ref()?;
                if d.name.text == b"include" {
                    return if found(inner) { Some(here) } else { search(inner, here, found) };
                }
                search(inner, inside(d.row?, here)?, found)
            })
        }
        search(&self.tree.root, Contexts::MAIN, &found).unwrap_or(Contexts::MAIN)
    }

    /// Returns the range of a span.
    pub(crate) fn range(&self, span: Span) -> Range {
        text::range_of(self.files.bytes(span.file), span)
    }

    /// Returns the place of a span. `None` for a file without a URI.
    pub(crate) fn location(&self, span: Span) -> Option<Location> {
        Some(Location::new(text::uri(self.files.path(span.file))?, self.range(span)))
    }

    /// Calls `look` for each directive with the blocks around it, outermost first, those of included files too.
    pub(crate) fn walk<'t>(&'t self, look: &mut dyn FnMut(&'t Directive, &[&'t Directive])) {
        fn go<'t>(
            block: &'t Block,
            around: &mut Vec<&'t Directive>,
            look: &mut dyn FnMut(&'t Directive, &[&'t Directive]),
        ) {
            for d in &block.items {
                look(d, around);
                let Some(inner) = &d.block else { continue };
                // An included file is in the block of its `include`.
                let opens = d.name.text != b"include";
                if opens {
                    around.push(d);
                }
                go(inner, around, look);
                if opens {
                    around.pop();
                }
            }
        }
        go(&self.tree.root, &mut Vec::new(), look);
    }
}

/// Returns files of the disk with the documents in place of theirs.
pub(crate) fn with(documents: &Documents) -> Files {
    let mut files = Files::disk();
    for (path, text) in documents {
        files.put(path, text.clone());
    }
    files
}

/// Returns the folder of a main file, where relative includes begin.
pub(crate) fn folder(main: &Path) -> &Path {
    main.parent().unwrap_or(Path::new("/"))
}

/// Returns `true` if a text has a block that only a main file has.
fn is_main(text: &[u8]) -> bool {
    let parsed = parse::body(text, Contexts::MAIN);
    let blocks = [&b"http"[..], b"events", b"stream", b"mail"];
    parsed.tree.root.items.iter().any(|d| blocks.contains(&d.name.text.as_slice()))
}

/// Returns the context that the directives of a text without a configuration have: the first in which most of them may stand.
pub(crate) fn guessed(text: &[u8]) -> Contexts {
    let candidates = [
        Contexts::MAIN,
        Contexts::HTTP,
        Contexts::SERVER,
        Contexts::LOCATION,
        Contexts::UPSTREAM,
        Contexts::STREAM,
        Contexts::STREAM_SERVER,
    ];
    let known = |context: Contexts| {
        parse::body(text, context).tree.root.items.iter().filter(|d| d.row.is_some()).count()
    };
    let best = candidates.map(known).into_iter().max().unwrap_or_default();
    candidates.into_iter().find(|context| known(*context) == best).unwrap_or(Contexts::HTTP)
}
