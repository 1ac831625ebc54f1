//! Puts proven lines into the user's files, and takes them out again.

use crate::patch::{self, Edit, Source};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

fn replace(path: &Path, bytes: &[u8]) -> Result<(), String> {
    use std::os::unix::fs::MetadataExt;
    let say = |e: std::io::Error| format!("{}: {e}", path.display());
    // A link goes on pointing to the file that is written.
    let path = std::fs::canonicalize(path).map_err(say)?;
    let meta = std::fs::metadata(&path).map_err(say)?;
    let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new("/"))).map_err(say)?;
    file.write_all(bytes).map_err(say)?;
    file.as_file().set_permissions(meta.permissions()).map_err(say)?;
    let _ = std::os::unix::fs::fchown(file.as_file(), Some(meta.uid()), Some(meta.gid()));
    file.as_file().sync_all().map_err(say)?;
    file.persist(&path).map_err(|e| say(e.error))?;
    Ok(())
}

fn server(program: &Path, prefix: Option<&Path>, conf: &Path, more: &[&str]) -> Result<(), String> {
    let mut c = Command::new(program);
    if let Some(p) = prefix {
        c.arg("-p").arg(p);
    }
    let out = c.arg("-c").arg(conf).args(more).output().map_err(|e| format!("{}: {e}", program.display()))?;
    if out.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&out.stderr).trim().to_owned()) }
}

/// Replaces the files that `edits` change, tests and reloads. What the test refuses is put back.
///
/// # Errors
/// The server's words, or what could not be written. A server that does not run is no error.
pub fn apply(
    source: &Source,
    edits: &[Edit],
    out: &Path,
    program: &Path,
    prefix: Option<&Path>,
) -> Result<(), String> {
    let backup = out.join("backup");
    let say = |e: std::io::Error| format!("{}: {e}", backup.display());
    std::fs::create_dir_all(&backup).map_err(say)?;
    let changed = patch::changed(source, edits);
    let mut list = Vec::new();
    for (i, (path, new)) in changed.iter().enumerate() {
        let old = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let id = source.files.iter().find(|(_, p, _)| p == path).map(|(_, _, b)| b.to_vec());
        if id.as_deref() != Some(old.as_slice()) {
            return Err(format!("{} has changed since it was read; nothing was applied", path.display()));
        }
        std::fs::write(backup.join(format!("{i}.old")), &old).map_err(say)?;
        std::fs::write(backup.join(format!("{i}.new")), new).map_err(say)?;
        list.push(path.display().to_string());
    }
    let note = json!({"files": list, "conf": source.path, "program": program, "prefix": prefix});
    let file = out.join("applied.json");
    std::fs::write(&file, format!("{note:#}\n")).map_err(say)?;
    for (path, new) in &changed {
        replace(path, new)?;
    }
    if let Err(text) = server(program, prefix, &source.path, &["-t"]) {
        rollback(out)?;
        return Err(format!("the tuned configuration is refused, the old one is back: {text}"));
    }
    if let Err(text) = server(program, prefix, &source.path, &["-s", "reload"]) {
        say!("Not reloaded (does the server run?): {text}");
    }
    Ok(())
}

/// Puts the files back that [`apply`] replaced, and reloads.
///
/// # Errors
/// There is nothing to undo, or a file was changed since.
pub fn rollback(out: &Path) -> Result<(), String> {
    let file = out.join("applied.json");
    let note: Value = std::fs::read(&file)
        .ok()
        .and_then(|b| serde_json::from_slice(&b).ok())
        .ok_or_else(|| format!("nothing to undo: there is no {}", file.display()))?;
    let files: Vec<PathBuf> = note["files"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|f| f.as_str().map(PathBuf::from))
        .collect();
    let read = |p: PathBuf| std::fs::read(&p).map_err(|e| format!("{}: {e}", p.display()));
    let mut todo = Vec::new();
    for (i, path) in files.iter().enumerate() {
        let now = read(path.clone())?;
        let old = read(out.join(format!("backup/{i}.old")))?;
        let new = read(out.join(format!("backup/{i}.new")))?;
        if now != new && now != old {
            return Err(format!(
                "{} was changed after --apply; the old one is {}",
                path.display(),
                out.join(format!("backup/{i}.old")).display()
            ));
        }
        todo.push((path, old));
    }
    for (path, old) in todo {
        replace(path, &old)?;
    }
    let _ = std::fs::remove_file(&file);
    let (Some(program), Some(conf)) = (note["program"].as_str(), note["conf"].as_str()) else {
        return Ok(());
    };
    if let Err(text) =
        server(Path::new(program), note["prefix"].as_str().map(Path::new), Path::new(conf), &["-s", "reload"])
    {
        say!("Not reloaded (does the server run?): {text}");
    }
    say!("The old configuration is back.");
    Ok(())
}
