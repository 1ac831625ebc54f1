//! A configuration as the editor has it: the texts of open documents in place of the files on disk.

use crate::symbols::{self, Occurrence};
use crate::text;
use forebay_conf::error::Error;
use forebay_conf::files::{Files, default_configuration};
use forebay_conf::grammar::Contexts;
use forebay_conf::parse::{self, inside};
use forebay_conf::tree::{Block, Directive, FileId, Span, Tree};
use forebay_core::config::Environment;
use forebay_doctor::{Finding, Host, Scene, Target};
use lsp_types::{Location, Range};
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
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
    /// Mistakes that the parser found.
    pub errors: Vec<Error>,
    names: OnceCell<Vec<Occurrence>>,
    findings: OnceCell<Vec<Finding>>,
}

impl Project {
    /// Reads the configuration of a main file.
    pub(crate) fn read(main: &Path, documents: &Documents) -> Project {
        let mut files = with(documents);
        let parsed = parse::parse(main, "", folder(main), &mut files);
        Project {
            main: main.to_owned(),
            files,
            tree: parsed.tree,
            errors: parsed.errors,
            names: OnceCell::new(),
            findings: OnceCell::new(),
        }
    }

    /// Returns the names in it.
    pub(crate) fn names(&self) -> &[Occurrence] {
        self.names.get_or_init(|| symbols::all(self))
    }

    /// Returns what doctor finds for Forebay, without the machine.
    pub(crate) fn findings(&self) -> &[Finding] {
        let examine = || forebay_doctor::examine(&Scene::new(&self.tree), &Host::default(), Target::Forebay);
        self.findings.get_or_init(examine)
    }

    /// Returns `true` if it has a block that only a main file has.
    fn is_main(&self) -> bool {
        let blocks = [&b"http"[..], b"events", b"stream", b"mail"];
        self.tree.root.items.iter().any(|d| blocks.contains(&d.name.text.as_slice()))
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

/// Configurations that were read since the last change of a text, so that the answers about one text read it once.
#[derive(Default)]
pub(crate) struct Projects {
    by_main: RefCell<BTreeMap<PathBuf, Rc<Project>>>,
    by_document: RefCell<BTreeMap<PathBuf, Option<Rc<Project>>>>,
}

impl Projects {
    /// Forgets all of them: a text has changed.
    pub(crate) fn clear(&mut self) {
        *self = Projects::default();
    }

    /// Reads the configuration to which a document belongs: `configured`, the document itself, or a main file near it that includes
    /// it. `None` if there is none.
    pub(crate) fn of(
        &self,
        document: &Path,
        configured: Option<&Path>,
        documents: &Documents,
    ) -> Option<Rc<Project>> {
        if let Some(known) = self.by_document.borrow().get(document) {
            return known.clone();
        }
        let project = self.find(document, configured, documents);
        self.by_document.borrow_mut().insert(document.to_owned(), project.clone());
        project
    }

    fn find(&self, document: &Path, configured: Option<&Path>, documents: &Documents) -> Option<Rc<Project>> {
        let includes =
            |main: &Path| Some(self.read(main, documents)).filter(|project| project.file(document).is_some());
        if let Some(project) = configured.and_then(includes) {
            return Some(project);
        }
        let own = documents.contains_key(document).then(|| self.read(document, documents));
        if let Some(own) = own.filter(|own| own.is_main()) {
            return Some(own);
        }
        let near = document.ancestors().skip(1).take(LEVELS).map(|folder| folder.join(MAIN));
        let installed = std::iter::once(default_configuration());
        near.chain(installed)
            .filter(|main| main != document && main.is_file())
            .find_map(|main| includes(&main))
    }

    fn read(&self, main: &Path, documents: &Documents) -> Rc<Project> {
        if let Some(known) = self.by_main.borrow().get(main) {
            return known.clone();
        }
        let project = Rc::new(Project::read(main, documents));
        self.by_main.borrow_mut().insert(main.to_owned(), project.clone());
        project
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
    let mut best = (Contexts::HTTP, 0);
    for (i, context) in candidates.into_iter().enumerate() {
        let parsed = parse::body(text, context);
        let known = parsed.tree.root.items.iter().filter(|d| d.row.is_some()).count();
        if i == 0 || known > best.1 {
            best = (context, known);
        }
        // All of them may stand here.
        if parsed.errors.is_empty() {
            break;
        }
    }
    best.0
}
