//! The thread that looks for what the parser alone does not see: mistakes of all stages, and the findings of doctor.

use crate::diagnostics::{self, ByFile};
use crate::project::{Check, Documents, Project, with};
use forebay_conf::error::Error;
use forebay_conf::tree::Span;
use lsp_types::{Diagnostic, Position};
use std::collections::{BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Time without a change after which a check begins.
const QUIET: Duration = Duration::from_millis(100);

/// Texts that are to be checked.
struct Job {
    version: u64,
    mains: BTreeSet<PathBuf>,
    documents: Documents,
}

/// Diagnostics of all stages.
pub(crate) struct Checked {
    /// Number of the change whose texts were checked.
    pub(crate) version: u64,
    /// All diagnostics.
    pub(crate) found: ByFile,
    /// Those that the parser finds as well.
    parsers: ByFile,
}

impl Checked {
    /// Returns the diagnostics that the parser does not find.
    pub(crate) fn kept(&self) -> ByFile {
        let of_file = |(path, list): (&PathBuf, &Vec<Diagnostic>)| {
            let known: HashSet<_> = self.parsers.get(path).into_iter().flatten().map(identity).collect();
            let rest = list.iter().filter(|d| !known.contains(&identity(d))).cloned().collect();
            (path.clone(), rest)
        };
        self.found.iter().map(of_file).collect()
    }
}

/// Returns the identity of a diagnostic: its place and the first line of its text. Later stages add advice behind that line.
fn identity(diagnostic: &Diagnostic) -> (u32, u32, &str) {
    let Position { line, character } = diagnostic.range.start;
    (line, character, diagnostic.message.lines().next().unwrap_or_default())
}

/// Thread that checks the newest texts.
pub(crate) struct Checker {
    jobs: Sender<Job>,
}

impl Checker {
    /// Starts the thread. `report` takes results, and returns `false` if nobody wants any more.
    pub(crate) fn start(check: Check, report: impl Fn(Checked) -> bool + Send + 'static) -> Checker {
        let (jobs, receiver) = channel();
        std::thread::spawn(move || {
            while let Some(job) = newest(&receiver) {
                // A text on which a check fails is told of by the hook of panics. The next text is checked as ever.
                let checked = catch_unwind(AssertUnwindSafe(|| job.run(check)));
                if checked.is_ok_and(|checked| !report(checked)) {
                    break;
                }
            }
        });
        Checker { jobs }
    }

    /// Has texts checked, in place of those before them that have not been begun.
    pub(crate) fn check(&self, version: u64, mains: BTreeSet<PathBuf>, documents: Documents) {
        // Without the thread there is nothing to be told.
        drop(self.jobs.send(Job { version, mains, documents }));
    }
}

/// Waits for texts that have not changed for a while. Returns `None` at the end of the session.
fn newest(jobs: &Receiver<Job>) -> Option<Job> {
    let mut job = jobs.recv().ok()?;
    loop {
        match jobs.recv_timeout(QUIET) {
            Ok(newer) => job = newer,
            Err(RecvTimeoutError::Timeout) => return Some(job),
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

impl Job {
    fn run(self, check: Check) -> Checked {
        let mut checked = Checked { version: self.version, found: ByFile::new(), parsers: ByFile::new() };
        for main in &self.mains {
            let project = Project::read(main, &self.documents);
            let errors = self.errors(&project, check);
            checked.found.extend(diagnostics::of(&project, &errors, project.findings()));
            checked.parsers.extend(diagnostics::of(&project, &project.errors, &[]));
        }
        checked
    }

    /// Returns the mistakes of all stages.
    fn errors(&self, project: &Project, check: Check) -> Vec<Error> {
        let mut files = with(&self.documents);
        let errors = check(&project.environment(), &mut files);
        // The check numbers files by itself; places are told by the paths.
        let own = |path: &Path| project.file(path);
        let moved = |span: Span| Some(Span { file: own(files.path(span.file))?, ..span });
        let in_project = |mut error: Error| {
            error.span = error.span.and_then(moved);
            error.at = error.at.and_then(moved);
            error
        };
        errors.into_iter().map(in_project).collect()
    }
}
