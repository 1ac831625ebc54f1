//! Logs of the secrets of TLS connections, in the format SSLKEYLOGFILE (nginx: ssl_key_log, proxy_ssl_key_log; Angie: ssl_keylog_file).
//!
//! Whoever has such a file can read the connections. The master opens it like other logs, but with mode 0600, and refuses one that other
//! users may read. Handshakes have no thread at hand, so that the open files are known to the process by their paths.

use crate::config::value::{Setting, first, once};
use crate::config::{Context, Scope};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_sys::sync::lock;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};

/// Paths of key logs that a configuration of this process has named. None is taken away: a file with secrets stays private.
static PATHS: LazyLock<Mutex<HashSet<PathBuf>>> = LazyLock::new(Mutex::default);
/// Open files.
static FILES: LazyLock<Mutex<HashMap<PathBuf, Arc<OwnedFd>>>> = LazyLock::new(Mutex::default);

/// Returns `true` if a log file is one of secrets.
pub fn is_key_log(path: &Path) -> bool {
    lock(&PATHS).contains(path)
}

/// Takes over open log files, as far as they are key logs.
pub(crate) fn provide<'f>(logs: impl Iterator<Item = (&'f PathBuf, &'f Arc<OwnedFd>)>) {
    for (path, file) in logs.filter(|(path, _)| is_key_log(path)) {
        lock(&FILES).insert(path.clone(), file.clone());
    }
}

/// A key log as a setting.
#[derive(Clone, Debug, Default)]
pub struct KeyLog(Option<Arc<KeyLogFile>>);

impl KeyLog {
    /// Returns the log for connections, if there is one.
    pub(super) fn for_connections(&self) -> Option<Arc<dyn rustls::KeyLog>> {
        self.0.clone().map(|file| file as Arc<dyn rustls::KeyLog>)
    }
}

impl<C: Context> Setting<C> for KeyLog {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        if first(d).is_empty() {
            return Err(cx.error(d, "no path of a file"));
        }
        let path = cx.full_path(first(d));
        lock(&PATHS).insert(path.clone());
        cx.log_file(path.clone());
        let text = format!(
            "secrets of TLS connections are written to \"{}\": whoever has that file can read them",
            path.display()
        );
        cx.warn(d, text);
        Ok(KeyLog(Some(Arc::new(KeyLogFile(path)))))
    }
}

/// A file that takes secrets.
#[derive(Debug)]
struct KeyLogFile(PathBuf);

impl rustls::KeyLog for KeyLogFile {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let Some(file) = lock(&FILES).get(&self.0).cloned() else { return };
        let line = format!("{label} {} {}\n", Hex(client_random), Hex(secret));
        // One write, since threads share the file. A line that cannot be written is lost.
        let _ = rustix::io::write(&file, line.as_bytes());
    }
}

struct Hex<'b>(&'b [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::KeyLog as _;

    #[test]
    fn lines_go_to_the_file_of_the_path() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("keys");
        let log = KeyLogFile(path.clone());
        log.log("LOST", &[1], &[2]);
        let file = forebay_sys::files::create(&path, 0o600).expect("a file");
        let file = Arc::new(OwnedFd::from(file));
        provide([(&path, &file)].into_iter());
        log.log("LOST", &[1], &[2]);
        assert!(!is_key_log(&path));
        lock(&PATHS).insert(path.clone());
        provide([(&path, &file)].into_iter());
        log.log("CLIENT_RANDOM", &[1, 0xab], &[0, 0xff]);
        assert_eq!(std::fs::read_to_string(&path).expect("text"), "CLIENT_RANDOM 01ab 00ff\n");
    }
}
