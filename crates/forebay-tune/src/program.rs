//! The kind of server that is measured, and its executable.

use clap::ValueEnum;
use std::path::{Path, PathBuf};

/// Kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Which {
    /// This program
    Forebay,
    /// nginx, in a process of its own
    Nginx,
}

/// Returns the executable to measure.
///
/// # Errors
/// There is none.
pub(crate) fn executable(which: Which, path: Option<&Path>) -> Result<PathBuf, String> {
    match (path, which) {
        (Some(p), _) => std::path::absolute(p).map_err(|e| e.to_string()),
        (None, Which::Forebay) => std::env::current_exe().map_err(|e| e.to_string()),
        (None, Which::Nginx) => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path)
                .chain([PathBuf::from("/usr/sbin")])
                .map(|d| d.join("nginx"))
                .find(|p| p.exists())
                .ok_or_else(|| "there is no nginx; name it with --program".into())
        }
    }
}
