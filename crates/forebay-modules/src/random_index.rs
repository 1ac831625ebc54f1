//! `random_index` (nginx: ngx_http_random_index_module).

use crate::autoindex;
use forebay_http::request::Method;
use forebay_server::module::{Module, Phase, PhaseHook, Step, Verdict};
use forebay_server::modules::static_file;
use forebay_server::phases::Outcome;
use forebay_server::request::Request;
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

forebay_server::module_settings! {
    /// `random_index`.
    "random_index" => enabled: bool = false;
}

/// `random_index`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    hooks: &[PhaseHook::new(Phase::Content, |s| SETTINGS.of(s).enabled, answer)],
    ..Module::NONE
};

/// Answers a path that ends in a slash.
fn answer(req: &mut Request) -> Step<'_> {
    let is_directory = req.uri.path.last() == Some(&b'/');
    if !is_directory || !matches!(req.method, Method::Get | Method::Head | Method::Post) {
        return Verdict::Declined.into();
    }
    Step::later(async { run(req).await.into() })
}

/// Redirects to a random file of the directory. Returns `None` if it has no files.
async fn run(req: &mut Request) -> Option<Outcome> {
    let mut names = match autoindex::read_directory(req, files).await {
        Ok(names) => names,
        Err(refused) => return Some(refused),
    };
    if names.is_empty() {
        return None;
    }
    let name = names.swap_remove(random_below(names.len()));
    req.uri.path.extend_from_slice(&name);
    // The redirect lets the location of the file decide about it, as for a request by its name.
    Some(static_file::internal_redirect(req))
}

/// Returns the names of the files in a directory, except hidden ones. Blocks.
fn files(path: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    autoindex::visit(path, |dir, name, kind| {
        if is_file(dir, name, kind) {
            names.push(name.to_bytes().to_vec());
        }
        Ok(())
    })?;
    Ok(names)
}

/// Returns `true` if a name is that of a regular file. Follows links. Some file systems return no type with the name.
fn is_file(dir: &impl std::os::fd::AsFd, name: &std::ffi::CStr, kind: FileType) -> bool {
    match kind {
        FileType::Symlink | FileType::Unknown => rustix::fs::statat(dir, name, AtFlags::empty())
            .is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile),
        kind => kind == FileType::RegularFile,
    }
}

/// Returns a random number below `n`, or 0 if the kernel has no randomness.
fn random_below(n: usize) -> usize {
    let mut bytes = [0u8; 8];
    // The choice needs no secrecy, so a kernel that is not ready gives the first file and does not block.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    (u64::from_ne_bytes(bytes) % n.max(1) as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_are_chosen() {
        let dir = std::env::temp_dir().join(format!("forebay-random-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("sub")).unwrap();
        std::fs::write(dir.join("a"), "a").unwrap();
        std::fs::write(dir.join(".b"), "b").unwrap();
        std::os::unix::fs::symlink("a", dir.join("link")).unwrap();
        std::os::unix::fs::symlink("sub", dir.join("dirlink")).unwrap();
        let mut names = files(dir.as_os_str().as_encoded_bytes()).unwrap();
        names.sort();
        assert_eq!(names, [b"a".to_vec(), b"link".to_vec()]);
        std::fs::remove_dir_all(&dir).unwrap();
        assert!((0..100).all(|_| random_below(3) < 3));
    }
}
