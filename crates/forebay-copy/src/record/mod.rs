//! Records of the last comparison and of the last tests of a configuration. `forebay compare` and `forebay test` write them,
//! `forebay move` reads them. This is the only place that knows their format.
//!
//! A record is a file of JSON below `$XDG_STATE_HOME/forebay/move/`. Its name is the hash of the configuration's path. A record that
//! cannot be read or written counts as none: no command fails because of it.

mod digest;

pub use digest::Digest;

use forebay_core::digest::sha256;
use forebay_sys::{files, printable::printable};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// Version of the format. A record of another one counts as none.
const FORMAT: u32 = 1;

/// Longest record in bytes.
const LONGEST: usize = 256 << 10;

/// Result of a command, with what it was found for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record<T> {
    format: u32,
    /// The configuration, an absolute path.
    pub configuration: PathBuf,
    /// Its files.
    pub digest: Digest,
    /// Version of Forebay, as [`version_of`] returns it.
    pub forebay: String,
    /// Version of nginx. `None` if the command does not run it.
    pub nginx: Option<String>,
    /// Seconds since 1970.
    pub time: i64,
    /// The result.
    pub result: T,
}

/// A result that is recorded.
pub trait Recorded: Serialize + DeserializeOwned {
    /// Name of the command.
    const COMMAND: &'static str;
}

/// Result of `forebay compare`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// Requests that were sent to both servers.
    pub requests: u64,
    /// Differences that no paragraph explains.
    pub unknown: u64,
    /// Differences that one explains.
    pub known: u64,
    /// Lines of the configuration with a directive.
    pub lines: u64,
    /// Those that were reached.
    pub reached: u64,
    /// File of tests that was written, by this comparison or by one before it.
    pub tests: Option<PathBuf>,
}

impl Recorded for Compared {
    const COMMAND: &'static str = "compare";
}

/// Result of `forebay test`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tested {
    /// Files of tests.
    pub files: Digest,
    /// Tests that ran.
    pub tests: u64,
    /// Those that failed.
    pub failed: u64,
}

impl Recorded for Tested {
    const COMMAND: &'static str = "test";
}

/// Versions of the programs that a record is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// Version of Forebay.
    pub forebay: String,
    /// Version of nginx.
    pub nginx: Option<String>,
}

impl<T: Recorded> Record<T> {
    /// Makes a record of what has just been found.
    pub fn new(configuration: &Path, digest: Digest, versions: Versions, result: T) -> Record<T> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let time = i64::try_from(time).unwrap_or(0);
        let Versions { forebay, nginx } = versions;
        Record {
            format: FORMAT,
            configuration: configuration.to_owned(),
            digest,
            forebay,
            nginx,
            time,
            result,
        }
    }

    /// Reads the record of a configuration. Returns `None` if there is none that can be read.
    pub fn read(configuration: &Path) -> Option<Record<T>> {
        let bytes = files::read_file(&place::<T>(configuration)?, LONGEST as u64).ok()?;
        let record: Record<T> = serde_json::from_slice(&bytes).ok()?;
        (record.format == FORMAT && record.configuration == configuration).then_some(record)
    }

    /// Writes the record in the place of the one before. Without a home, or where it cannot be written, nothing happens.
    pub fn write(mut self) {
        let Some(path) = place::<T>(&self.configuration) else { return };
        let mut text = self.text();
        if text.len() > LONGEST {
            self.digest.forget_files();
            text = self.text();
        }
        if text.len() <= LONGEST {
            let _ = replace(&path, text.as_bytes());
        }
    }

    fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns why the record is not about this configuration and these programs; `None` if it is.
    pub fn staleness(&self, digest: &Digest, versions: &Versions) -> Option<String> {
        let was = |name: &str, before: &str, now: &str| {
            (before != now).then(|| format!("{name} was {}", printable(before)))
        };
        let nginx = || match (&self.nginx, &versions.nginx) {
            (Some(before), Some(now)) => was("nginx", before, now),
            _ => None,
        };
        self.digest.change(digest).or_else(nginx).or_else(|| was("Forebay", &self.forebay, &versions.forebay))
    }
}

/// Asks a program with nginx's command line for its version: `1.22.1`, `1.31.9 (forebay 0.2.0)`.
pub fn version_of(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("-v").stdin(Stdio::null()).output().ok()?;
    version_in(&String::from_utf8_lossy(&output.stderr))
}

/// Returns the version in the text that `-v` prints.
pub fn version_in(text: &str) -> Option<String> {
    let version = forebay_conf::version::printed(text)?;
    let version = version.strip_prefix("nginx/").unwrap_or(version);
    Some(printable(version).chars().take(100).collect())
}

/// Returns the directory of the records; `None` for a user without a home.
fn directory() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    Some(state?.join("forebay/move"))
}

fn place<T: Recorded>(configuration: &Path) -> Option<PathBuf> {
    let name = digest::hex(&sha256(configuration.as_os_str().as_encoded_bytes()));
    Some(directory()?.join(format!("{name}-{}.json", T::COMMAND)))
}

/// Puts a file in the place of another one. A reader sees the one or the other.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::NotFound)?;
    files::create_directories(directory, 0o700)?;
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let written = files::create(&new, 0o600)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests;
