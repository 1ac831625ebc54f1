//! `forebay doctor --fix` and `--diff`.

use crate::fmt::{diff, replace};
use crate::front_ends::load_all;
use forebay_conf::error::{Error, Level};
use forebay_conf::files::Files;
use forebay_doctor::{Operation, Surgery};
use forebay_terminal::print;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Fixes that are wanted.
pub(super) struct Plan<'a> {
    pub surgery: Surgery<'a>,
    /// The files are written.
    pub writes: bool,
    /// What changes is shown.
    pub shows: bool,
}

impl Plan<'_> {
    /// Shows or writes what fixes change.
    ///
    /// # Errors
    /// The result is not accepted, or a file cannot be written.
    pub(super) fn carry_out(&self) -> Result<u8, String> {
        let outcome = self.surgery.perform(&Files::disk);
        self.verify(&outcome.operations)?;
        if self.shows {
            let diffs = outcome.operations.iter().map(|o| diff(&o.path, &o.old, &o.new));
            print(diffs.collect::<String>());
        }
        if self.writes {
            write(&outcome.operations)?;
            print(summary(&outcome.applied, outcome.operations.len()));
        }
        Ok(0)
    }

    /// Returns an error if the new files are refused where the old ones are not.
    fn verify(&self, operations: &[Operation]) -> Result<(), String> {
        let before = self.errors(&[]);
        let fresh = self.errors(operations).into_iter().find(|e| !before.contains(e));
        match fresh {
            Some(e) => Err(format!("nothing is written: with the fixes the configuration is refused: {e}")),
            None => Ok(()),
        }
    }

    /// Returns the errors of `-t`, without the places, which move.
    fn errors(&self, operations: &[Operation]) -> Vec<String> {
        let mut files = Files::disk();
        for o in operations {
            files.put(&o.path, o.new.as_slice().into());
        }
        let is_error = |e: &Error| e.level == Level::Emerg;
        let (_, errors) = load_all(self.surgery.environment, &mut files);
        errors.into_iter().filter(is_error).map(|e| e.message).collect()
    }
}

/// Writes the files, each at once. Puts those back that are written if one cannot be.
fn write(operations: &[Operation]) -> Result<(), String> {
    for (n, o) in operations.iter().enumerate() {
        let Err(e) = replace(&o.path, &o.new) else { continue };
        let path: &PathBuf = &o.path;
        let back = |done: &&Operation| replace(&done.path, &done.old).is_err();
        let left: Vec<String> =
            operations.iter().take(n).filter(back).map(|done| done.path.display().to_string()).collect();
        let state = if left.is_empty() {
            "no file is changed".to_owned()
        } else {
            format!("changed are {}", left.join(", "))
        };
        return Err(format!("cannot write {}: {e}; {state}", path.display()));
    }
    Ok(())
}

fn summary(applied: &[&'static str], files: usize) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for rule in applied {
        *counts.entry(rule).or_default() += 1;
    }
    let rules: Vec<String> = counts
        .iter()
        .map(|(rule, n)| if *n == 1 { (*rule).to_owned() } else { format!("{rule} ({n} times)") })
        .collect();
    match applied.len() {
        0 => "nothing to mend\n".to_owned(),
        1 => format!("1 fix in {files} file: {}\n", rules.join(", ")),
        n => {
            let file = if files == 1 { "file" } else { "files" };
            format!("{n} fixes in {files} {file}: {}\n", rules.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixes_are_counted() {
        assert_eq!(summary(&[], 0), "nothing to mend\n");
        assert_eq!(summary(&["a"], 1), "1 fix in 1 file: a\n");
        assert_eq!(summary(&["a", "b", "a"], 2), "3 fixes in 2 files: a (2 times), b\n");
    }

    #[test]
    fn all_files_are_written_or_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a");
        forebay_sys::files::write(&path, b"old", 0o644).expect("written");
        let operation = |path: PathBuf| Operation { path, old: b"old".to_vec(), new: b"new".to_vec() };
        let missing = dir.path().join("none/b");
        let failed = write(&[operation(path.clone()), operation(missing)]).expect_err("no such folder");
        assert!(failed.contains("none/b") && failed.contains("no file is changed"), "{failed}");
        assert_eq!(std::fs::read(&path).expect("read"), b"old");
        write(&[operation(path.clone())]).expect("written");
        assert_eq!(std::fs::read(&path).expect("read"), b"new");
    }
}
