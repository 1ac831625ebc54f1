//! Judgement of values when they are read, each alone, before they join a configuration that others share.
//!
//! Only the server knows what it accepts. This crate does no I/O and has no server, so the caller gives a [`Build`], which makes a
//! configuration of files in memory exactly as the server does, and returns its errors. Without one nothing is judged.
//!
//! The program gives the builder (`forebay/src/ingress/build.rs`). `blame.rs` searches for what makes a configuration invalid. Its
//! callers are `translate/keys.rs` for keys of the ConfigMap, `translate/judged.rs` for hosts with snippets, `translate/guilty.rs` for
//! objects of the Gateway API, and `forebay-cluster/src/guilty.rs` for the files of a configuration that was refused. `taken.rs` keeps
//! generated names apart from the names in snippets.

mod certificates;
mod known;

pub use certificates::is_list_of_certificates;

use crate::blame::line_of;
use known::Known;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Files of a configuration by their paths, relative to one directory.
pub type Files = Vec<(Arc<Path>, Arc<[u8]>)>;

/// Error that makes a configuration invalid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// File that the error is in, relative to the directory of the files. `None`: the error names no place.
    pub path: Option<Arc<Path>>,
    /// Line in the file, from 1.
    pub line: usize,
    /// The line itself.
    pub text: String,
    /// The server's words, without the place.
    pub message: String,
}

impl Refusal {
    /// Makes an error without a place.
    pub fn plain(message: impl Into<String>) -> Refusal {
        Refusal { message: message.into(), ..Refusal::default() }
    }
}

/// Makes configurations as the server does.
pub trait Build: Send + Sync {
    /// Returns all errors of a configuration. The main file has the name [`crate::translate::MAIN`].
    fn errors(&self, files: &[(Arc<Path>, Arc<[u8]>)]) -> Vec<Refusal>;
}

/// Judge of values. Clones share what they have judged.
#[derive(Clone, Default)]
pub struct Judge(Option<Arc<Shared>>);

struct Shared {
    build: Box<dyn Build>,
    known: Mutex<Known>,
}

impl Judge {
    /// Makes a judge that asks `build`.
    pub fn new(build: impl Build + 'static) -> Judge {
        Judge(Some(Arc::new(Shared { build: Box::new(build), known: Mutex::default() })))
    }

    /// Returns `true` if there is a judge at all.
    pub fn judges(&self) -> bool {
        self.0.is_some()
    }

    /// Returns all errors of a configuration; none without a judge.
    pub fn errors(&self, files: &[(Arc<Path>, Arc<[u8]>)]) -> Vec<Refusal> {
        let mut errors = self.0.as_ref().map(|shared| shared.build.errors(files)).unwrap_or_default();
        for error in &mut errors {
            let file = files.iter().find(|(path, _)| Some(path) == error.path.as_ref());
            error.text = file.map(|(_, bytes)| line_of(bytes, error.line)).unwrap_or_default();
        }
        errors
    }

    /// Returns the judgement of a content that is known, or makes it. `kind` separates contents of different meanings.
    fn once(
        &self,
        kind: &'static str,
        parts: &[&[u8]],
        judge: impl FnOnce(&dyn Build) -> Option<String>,
    ) -> Option<Arc<str>> {
        let shared = self.0.as_ref()?;
        let lock = || shared.known.lock().unwrap_or_else(PoisonError::into_inner);
        let print = lock().fingerprint(kind, parts);
        if let Some(known) = lock().get(print) {
            return known;
        }
        let judged: Option<Arc<str>> = judge(&*shared.build).map(Into::into);
        lock().put(print, judged.clone());
        judged
    }

    /// Remembers that a content is fine, or why it is not.
    pub(crate) fn remember(&self, kind: &'static str, parts: &[&[u8]], judged: Option<Arc<str>>) {
        let Some(shared) = &self.0 else { return };
        let mut known = shared.known.lock().unwrap_or_else(PoisonError::into_inner);
        let print = known.fingerprint(kind, parts);
        known.put(print, judged);
    }

    /// Returns what is remembered of a content. The inner `None`: it is fine.
    pub(crate) fn remembered(&self, kind: &'static str, parts: &[&[u8]]) -> Option<Option<Arc<str>>> {
        let known = &self.0.as_ref()?.known;
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let print = known.fingerprint(kind, parts);
        known.get(print)
    }
}

/// Judges are the same if they share what they have judged.
impl PartialEq for Judge {
    fn eq(&self, other: &Judge) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }
}

impl Eq for Judge {}

impl fmt::Debug for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.judges() { "Judge" } else { "Judge(none)" })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Build that refuses lines with a word, with their places.
    pub(crate) struct Refusing {
        pub(crate) word: &'static str,
        pub(crate) placed: bool,
        pub(crate) builds: Arc<AtomicUsize>,
    }

    impl Build for Refusing {
        fn errors(&self, files: &[(Arc<Path>, Arc<[u8]>)]) -> Vec<Refusal> {
            self.builds.fetch_add(1, Ordering::Relaxed);
            let mut found = Vec::new();
            for (path, bytes) in files {
                for (i, line) in String::from_utf8_lossy(bytes).lines().enumerate() {
                    if line.contains(self.word) {
                        let path = self.placed.then(|| path.clone());
                        found.push(Refusal {
                            path,
                            line: i + 1,
                            message: "refused".into(),
                            ..Refusal::default()
                        });
                    }
                }
            }
            found
        }
    }

    #[test]
    fn a_content_is_judged_once() {
        let builds = Arc::new(AtomicUsize::new(0));
        let judge = Judge::new(Refusing { word: "bad", placed: true, builds: builds.clone() });
        for _ in 0..3 {
            assert_eq!(judge.certificate(b"good", b"key"), None);
            assert!(judge.certificate(b"bad", b"key").is_some());
            assert!(judge.authorities(b"bad").is_some());
        }
        assert_eq!(builds.load(Ordering::Relaxed), 3);
        assert_eq!(Judge::default().certificate(b"bad", b"bad"), None);
    }
}
