//! `forebay watch`: checks a configuration again whenever a file of it changes.

use crate::cli::Options;
use crate::reload;
use crate::subcommands::{Format, check};
use forebay_terminal::print;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Pause between two looks at the files.
const LOOK: Duration = Duration::from_millis(300);

/// Runs `watch` until it is ended. `reloads`: the longest wait for a reload of the running server, after each change that the check
/// accepts; `None`: no reload.
pub(crate) fn main(options: &Options, reloads: Option<Duration>) -> u8 {
    let mut seen = Stamps::new();
    let first = turn(options, None);
    take(&mut seen, &first, Stamps::new());
    loop {
        std::thread::sleep(LOOK);
        let now = stamps(seen.keys());
        if now == seen {
            continue;
        }
        // Editors write a file in several steps, so a change counts when nothing moves any more.
        std::thread::sleep(LOOK / 3);
        if stamps(seen.keys()) == now {
            let paths = turn(options, reloads);
            // What has changed since the turn began has to be looked at again.
            take(&mut seen, &paths, now);
        }
    }
}

/// Times of change by path; `None` for what does not exist.
type Stamps = BTreeMap<PathBuf, Option<SystemTime>>;

/// Sets the stamps to those from before a turn. Files that are new have none from before.
fn take(seen: &mut Stamps, paths: &BTreeSet<PathBuf>, before: Stamps) {
    let fresh = stamps(paths.iter().filter(|path| !before.contains_key(*path)));
    *seen = before.into_iter().filter(|(path, _)| paths.contains(path)).chain(fresh).collect();
}

/// Checks once, and reloads. Returns the files and folders to look at.
fn turn(options: &Options, reloads: Option<Duration>) -> BTreeSet<PathBuf> {
    print(format!(
        "{} {}\n",
        jiff::Zoned::now().strftime("%H:%M:%S"),
        options.places().0.conf_path.display()
    ));
    let (code, files) = check(options, Format::Text);
    if let Some(patience) = reloads.filter(|_| code == 0) {
        reload::main(options, patience);
    }
    files.paths().chain(files.folders()).map(Path::to_owned).collect()
}

/// Returns the stamp of each path.
fn stamps<'p>(paths: impl Iterator<Item = &'p PathBuf>) -> Stamps {
    paths.map(|path| (path.clone(), std::fs::metadata(path).and_then(|m| m.modified()).ok())).collect()
}
