//! `forebay fmt`: the layout of configuration files.

use crate::check;
use crate::subcommands::FmtArgs;
use forebay_conf::files::Files;
use forebay_conf::fmt;
use forebay_sys::files;
use forebay_terminal::print;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

/// Formats the files; the exit code is 1 when one could not be formatted or, with `--check`, is not.
pub(crate) fn main(args: &FmtArgs) -> u8 {
    let mut failed = false;
    for path in args.files.iter().chain(&args.conf) {
        match one(path, args) {
            Ok(clean) => failed |= args.check && !clean,
            Err(text) => {
                eprint!("{text}");
                failed = true;
            }
        }
    }
    u8::from(failed)
}

/// Reads a file, or standard input for `-`.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    if path.as_os_str() != "-" {
        return files::read_file(path, files::MAX_WHOLE);
    }
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    Ok(text)
}

/// Formats a file. Returns `true` if it was formatted already.
fn one(path: &Path, args: &FmtArgs) -> Result<bool, String> {
    let stdin = path.as_os_str() == "-";
    let io = |what: &str, e: &std::io::Error| format!("forebay fmt: cannot {what} {}: {e}\n", path.display());
    let text = read(path).map_err(|e| io("read", &e))?;
    let shown = if stdin { PathBuf::from("standard input") } else { path.to_owned() };
    let mut files = Files::recorded([(shown.clone(), text.clone())]);
    let (id, _) = files.read(&shown).map_err(|e| io("read", &e))?;
    let new = fmt::format(&text, id)
        .map_err(|errors| check::render_text(&errors, &files, std::io::stderr().is_terminal()))?;
    let clean = new == text;
    if args.diff {
        print(diff(&shown, &text, &new));
    } else if args.check {
        if !clean {
            print(format!("{}\n", shown.display()));
        }
    } else if stdin {
        print(&new);
    } else if !clean {
        replace(path, &new).map_err(|e| io("write", &e))?;
    }
    Ok(clean)
}

/// Returns the changes in the form of `diff -u`; empty if there are none.
pub(crate) fn diff(path: &Path, old: &[u8], new: &[u8]) -> String {
    let (old, new) = (String::from_utf8_lossy(old), String::from_utf8_lossy(new));
    let name = path.display().to_string();
    similar::TextDiff::from_lines(&*old, &*new).unified_diff().header(&name, &name).to_string()
}

/// Puts new content in the place of a file at once; mode and owner stay.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    // A link continues to point to the file that is written.
    let path = std::fs::canonicalize(path)?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    let meta = std::fs::metadata(&path)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(bytes)?;
    {
        use std::os::unix::fs::MetadataExt;
        let made = file.as_file().metadata()?;
        if (made.uid(), made.gid()) != (meta.uid(), meta.gid()) {
            // Another owner or group could not read it any more, or should not.
            std::os::unix::fs::fchown(file.as_file(), Some(meta.uid()), Some(meta.gid()))?;
        }
    }
    file.as_file().set_permissions(meta.permissions())?;
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|e| e.error)?;
    Ok(())
}
