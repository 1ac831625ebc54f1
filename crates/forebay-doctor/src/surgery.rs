//! Applies fixes in rounds: those of a round do not overlap, and after each the configuration is examined anew, since a fix may
//! open the way for another.

use crate::facts::{Host, directory_of};
use crate::fix::{Change, Fix, Safety, laid_out};
use crate::scene::Scene;
use crate::target::Target;
use crate::{Finding, examine};
use forebay_conf::files::Files;
use forebay_conf::tree::FileId;
use forebay_core::config::Environment;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Most rounds. Fixes that wait for another one are few; more rounds would mean that two rules contradict.
const ROUNDS: usize = 8;

/// What is mended, and how far.
pub struct Surgery<'a> {
    /// Places of the configuration.
    pub environment: &'a Environment,
    /// The machine.
    pub host: &'a Host,
    /// The server that is advised.
    pub target: Target,
    /// Fixes that somebody could rely on not happening, too.
    pub with_unsafe: bool,
    /// Fixes of optional rules are wanted, too.
    pub with_optional: bool,
}

/// A file that fixes change.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Path.
    pub path: PathBuf,
    /// Content before.
    pub old: Vec<u8>,
    /// Content after.
    pub new: Vec<u8>,
}

/// Result of all rounds.
#[derive(Default)]
pub struct Outcome {
    /// Files that change.
    pub operations: Vec<Operation>,
    /// Rules of the fixes that were applied, once for each.
    pub applied: Vec<&'static str>,
}

impl Surgery<'_> {
    /// Applies all fixes to files in memory. `open` makes the files as they are on the disk.
    pub fn perform(&self, open: &dyn Fn() -> Files) -> Outcome {
        // Facts by numbers of directives are void once a line has moved.
        let host = self.host.without_places();
        let mut now: BTreeMap<PathBuf, Arc<[u8]>> = BTreeMap::new();
        let mut outcome = Outcome::default();
        for _ in 0..ROUNDS {
            let mut files = with(open(), &now);
            let changes = self.round(&host, &mut files, &mut outcome.applied);
            if changes.is_empty() {
                break;
            }
            for (file, changes) in changes {
                now.insert(files.path(file).to_owned(), applied(files.bytes(file), changes).into());
            }
        }
        let mut before = open();
        outcome.operations = now
            .into_iter()
            .filter_map(|(path, new)| {
                let old = before.read(&path).ok()?.1.to_vec();
                (old != *new).then(|| Operation { path, old, new: new.to_vec() })
            })
            .collect();
        outcome
    }

    /// Returns the changes of one round, by file.
    fn round(
        &self,
        host: &Host,
        files: &mut Files,
        applied: &mut Vec<&'static str>,
    ) -> BTreeMap<FileId, Vec<Change>> {
        let environment = self.environment;
        let dir = directory_of(environment);
        let parsed = forebay_conf::parse::parse(&environment.conf_path, &environment.globals, &dir, files);
        let findings = examine(&Scene::new(&parsed.tree), host, self.target);
        let mut taken: BTreeMap<FileId, Vec<Change>> = BTreeMap::new();
        for (finding, fix) in findings.iter().filter_map(|f| Some((f, f.fix.as_ref()?))) {
            if self.is_wanted(finding, fix) && take(fix, files, &mut taken) {
                applied.push(rule_of(finding));
            }
        }
        taken
    }

    fn is_wanted(&self, finding: &Finding, fix: &Fix) -> bool {
        (self.with_unsafe || fix.safety == Safety::Safe) && (self.with_optional || !finding.rule.is_optional)
    }
}

fn rule_of(finding: &Finding) -> &'static str {
    &finding.rule.id
}

/// Returns files with these contents in place of those on the disk.
fn with(mut files: Files, contents: &BTreeMap<PathBuf, Arc<[u8]>>) -> Files {
    for (path, bytes) in contents {
        files.put(path, bytes.clone());
    }
    files
}

/// Adds the changes of a fix if none of them meets one that is there already.
fn take(fix: &Fix, files: &Files, taken: &mut BTreeMap<FileId, Vec<Change>>) -> bool {
    let changes: Vec<(FileId, Change)> =
        fix.edits.iter().map(|e| (e.span.file, laid_out(e, files.bytes(e.span.file)))).collect();
    let is_free = |(file, change): &(FileId, Change)| {
        let others = taken.get(file).map(Vec::as_slice).unwrap_or_default();
        others.iter().all(|o| !meets(o, change))
    };
    if !changes.iter().all(is_free) {
        return false;
    }
    for (file, change) in changes {
        taken.entry(file).or_default().push(change);
    }
    true
}

/// Returns `true` if two changes overlap or touch.
fn meets(a: &Change, b: &Change) -> bool {
    a.range.start <= b.range.end && b.range.start <= a.range.end
}

/// Applies changes that do not overlap.
fn applied(source: &[u8], mut changes: Vec<Change>) -> Vec<u8> {
    changes.sort_by_key(|c| std::cmp::Reverse(c.range.start));
    let mut out = source.to_vec();
    for change in changes {
        let end = change.range.end.min(out.len());
        let start = change.range.start.min(end);
        out.splice(start..end, change.text.into_bytes());
    }
    out
}
