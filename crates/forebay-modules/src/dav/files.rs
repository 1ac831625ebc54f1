//! Blocking work on files, for the blocking pool. A new file appears complete or not at all.

use forebay_sys::files;
use rustix::io::Errno;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// Failure of a call: the status of the response, and a line for the log.
#[derive(Debug)]
pub(super) struct FileError {
    pub status: u16,
    pub text: String,
}

/// Kind of entry at a path.
#[derive(Debug)]
pub(super) enum Tree {
    /// A file or anything else that is not a directory.
    File(PathBuf),
    /// A directory.
    Directory(PathBuf),
}

impl Tree {
    fn path(&self) -> &Path {
        let (Tree::File(p) | Tree::Directory(p)) = self;
        p
    }
}

fn explain(e: &io::Error) -> String {
    format!("({})", forebay_sys::errno::errno(e))
}

/// Makes the failure for a system call. `missing` is the status if a part of the path does not exist.
fn failed(call: &str, path: &Path, e: &io::Error, missing: u16) -> FileError {
    let status = match e.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::NAMETOOLONG) => missing,
        // RFC 4918: a request whose parent collection is missing gets a 409.
        Some(Errno::NOTDIR) if missing != 500 => 409,
        Some(Errno::EXIST) => 405,
        Some(Errno::ACCESS | Errno::PERM) => 403,
        Some(Errno::NOSPC | Errno::DQUOT) => 507,
        _ => 500,
    };
    FileError { status, text: format!("{call} \"{}\" failed {}", path.display(), explain(e)) }
}

/// Returns an unused name in the directory of a file.
fn beside(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let (pid, n) = (std::process::id(), forebay_sys::serial::next());
    // Cut the name, or the suffix could make it too long.
    let short: String = name.chars().take(40).collect();
    // The file is in the directory of the target, since a rename is atomic only within a file system.
    target.with_file_name(format!(".{short}.{pid}.{n}"))
}

/// Looks up a path. With `itself` a link counts as a file; otherwise it is followed.
///
/// # Errors
/// 404 if nothing is there, 409 if a part of the path is not a directory.
pub(super) fn find(path: &Path, itself: bool) -> Result<Tree, FileError> {
    let found = if itself { fs::symlink_metadata(path) } else { fs::metadata(path) };
    let found = found.map_err(|e| failed(if itself { "lstat()" } else { "stat()" }, path, &e, 404))?;
    Ok(if found.is_dir() { Tree::Directory(path.into()) } else { Tree::File(path.into()) })
}

/// Moves a file that has been written to its target. `directories` is the mode for missing directories. Returns `true` if
/// it replaced another file.
///
/// # Errors
/// 409 if the target is a directory; otherwise the status for the failed system call.
pub(super) fn put(
    from: &Path,
    target: &Path,
    mode: u32,
    modified: Option<i64>,
    directories: Option<u32>,
) -> Result<bool, FileError> {
    // The status depends on it: 204 for a file that was replaced, 201 for a new one (RFC 9110, section
    // 9.3.4).
    let existed = match fs::metadata(target) {
        Ok(m) if m.is_dir() => {
            let text = format!("\"{}\" could not be created (21: Is a directory)", target.display());
            return Err(FileError { status: 409, text });
        }
        found => found.is_ok(),
    };
    // Mode and time are set before the file gets its name, so nobody sees it without them.
    prepare(from, mode, modified).map_err(|e| failed("chmod()", from, &e, 500))?;
    relocate(from, target, directories)?;
    Ok(existed)
}

fn prepare(file: &Path, mode: u32, modified: Option<i64>) -> io::Result<()> {
    fs::set_permissions(file, Permissions::from_mode(mode))?;
    match modified.and_then(|t| u64::try_from(t).ok()) {
        Some(t) => files::open_to_write(file)?.set_modified(UNIX_EPOCH + Duration::from_secs(t)),
        None => Ok(()),
    }
}

/// Moves a file, also to another file system.
fn relocate(from: &Path, target: &Path, directories: Option<u32>) -> Result<(), FileError> {
    let fail = |e: &io::Error| {
        let mut f = failed("rename()", from, e, 500);
        f.status = if f.status == 507 { 507 } else { 500 };
        f.text = format!("rename() \"{}\" to \"{}\" failed {}", from.display(), target.display(), explain(e));
        f
    };
    match rename_into(from, target, directories)? {
        // Bodies of requests may be kept on another file system than the files of the location.
        Err(e) if e.kind() == io::ErrorKind::CrossesDevices => {
            copy_file(from, target).map_err(|e| fail(&e))?;
            fs::remove_file(from).map_err(|e| failed("unlink()", from, &e, 500))
        }
        other => other.map_err(|e| fail(&e)),
    }
}

/// Renames a file or directory. Makes missing directories above the target if there is a mode for them.
///
/// # Errors
/// The directories cannot be made. The failure to rename is in the result.
fn rename_into(from: &Path, target: &Path, directories: Option<u32>) -> Result<io::Result<()>, FileError> {
    let renamed = fs::rename(from, target);
    let (Err(e), Some(mode), Some(parent)) = (&renamed, directories, target.parent()) else {
        return Ok(renamed);
    };
    // A source that is gone is no reason to make directories.
    if e.kind() != io::ErrorKind::NotFound || !from.exists() {
        return Ok(renamed);
    }
    make_directories(parent, mode).map_err(|e| failed("mkdir()", parent, &e, 500))?;
    Ok(fs::rename(from, target))
}

fn make_directories(path: &Path, mode: u32) -> io::Result<()> {
    let mut missing: Vec<&Path> = path.ancestors().take_while(|p| !p.exists()).collect();
    while let Some(p) = missing.pop() {
        match create_directory(p, mode) {
            // Another request may have made the directory at the same time.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
    }
    Ok(())
}

/// Makes a directory with exactly this mode, regardless of the umask.
fn create_directory(path: &Path, mode: u32) -> io::Result<()> {
    // Until the mode is set, the directory is open to nobody else.
    files::create_directory(path, 0o700 & mode)?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Makes a directory.
///
/// # Errors
/// 405 if the path exists, 409 if its parent does not.
pub(super) fn make_directory(path: &Path, mode: u32) -> Result<(), FileError> {
    create_directory(path, mode).map_err(|e| failed("mkdir()", path, &e, 409))
}

/// Removes a file, or a directory with its contents. Links are removed, not followed.
///
/// # Errors
/// The failure of the system call.
pub(super) fn delete(tree: &Tree) -> Result<(), FileError> {
    match tree {
        Tree::File(p) => fs::remove_file(p).map_err(|e| failed("unlink()", p, &e, 404)),
        // A link to a directory is not the directory: deleting the contents would reach outside of the
        // location.
        Tree::Directory(p) if fs::symlink_metadata(p).is_ok_and(|m| m.is_symlink()) => {
            fs::remove_file(p).map_err(|e| failed("unlink()", p, &e, 404))
        }
        Tree::Directory(p) => fs::remove_dir_all(p).map_err(|e| failed("rmdir()", p, &e, 404)),
    }
}

/// Copies a file with its mode and modification time, replacing the target.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let temporary = beside(to);
    let done = fs::copy(from, &temporary).and_then(|_| {
        let modified = fs::metadata(from)?.modified()?;
        fs::File::open(&temporary)?.set_modified(modified)?;
        fs::rename(&temporary, to)
    });
    // A copy that failed leaves no part of itself in a directory that is served.
    if done.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    done
}

/// Makes the failure for a copy. The status is 500 or 507: the client does not learn the state of other files.
fn not_copied(call: &str, path: &Path, e: &io::Error) -> FileError {
    let f = failed(call, path, e, 500);
    FileError { status: if f.status == 507 { 507 } else { 500 }, ..f }
}

/// Copies a file, or a directory with its contents.
///
/// # Errors
/// The failure of the system call.
pub(super) fn copy(tree: &Tree, to: &Path) -> Result<(), FileError> {
    match tree {
        Tree::File(from) => copy_file(from, to).map_err(|e| not_copied("open()", to, &e)),
        Tree::Directory(from) => copy_directory(from, to),
    }
}

fn copy_directory(from: &Path, to: &Path) -> Result<(), FileError> {
    // A stack of its own instead of recursion: the depth of the tree is not limited.
    let mut rest = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = rest.pop() {
        create_like(&from, &to)?;
        for entry in fs::read_dir(&from).map_err(|e| failed("opendir()", &from, &e, 500))? {
            let entry = entry.map_err(|e| failed("readdir()", &from, &e, 500))?;
            rest.extend(copy_entry(&entry, &to)?);
        }
    }
    Ok(())
}

/// Makes a directory with the mode of another one.
fn create_like(model: &Path, path: &Path) -> Result<(), FileError> {
    let found = fs::metadata(model).map_err(|e| failed("stat()", model, &e, 404))?;
    let mode = found.permissions().mode() & 0o7777;
    // The server has to write into the copy, even if it could only read the original.
    create_directory(path, mode | 0o700).map_err(|e| failed("mkdir()", path, &e, 409))
}

/// Copies a file or link into a directory. Copies no directory, but returns its source and target.
fn copy_entry(entry: &fs::DirEntry, to: &Path) -> Result<Option<(PathBuf, PathBuf)>, FileError> {
    let (path, target) = (entry.path(), to.join(entry.file_name()));
    let kind = entry.file_type().map_err(|e| failed("stat()", &path, &e, 500))?;
    if kind.is_dir() {
        return Ok(Some((path, target)));
    }
    if kind.is_file() {
        copy_file(&path, &target).map_err(|e| not_copied("open()", &target, &e))?;
    } else if kind.is_symlink() {
        copy_link(&path, &target)?;
    }
    Ok(None)
}

fn copy_link(from: &Path, to: &Path) -> Result<(), FileError> {
    let link = fs::read_link(from).map_err(|e| failed("readlink()", from, &e, 500))?;
    std::os::unix::fs::symlink(link, to).map_err(|e| failed("symlink()", to, &e, 500))
}

/// Moves a file or a directory. Makes missing directories above the target.
///
/// # Errors
/// The failure of the system call.
pub(super) fn rename(tree: &Tree, to: &Path, directories: u32) -> Result<(), FileError> {
    let from = tree.path();
    match rename_into(from, to, Some(directories))? {
        Err(e) if e.kind() == io::ErrorKind::CrossesDevices => {
            copy(tree, to)?;
            delete(tree)
        }
        other => other.map_err(|e| not_copied("rename()", from, &e)),
    }
}
