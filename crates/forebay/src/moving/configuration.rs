//! The configuration: whether Forebay takes it, and what it says about the server.

use super::nginx::Nginx;
use crate::check;
use crate::front_ends::load_all;
use crate::paths::Paths;
use forebay_conf::error::{Error, Level};
use forebay_conf::files::Files;
use forebay_conf::parse::parse;
use forebay_conf::tree::Block;
use forebay_copy::record::Digest;
use forebay_core::config::Environment;
use forebay_doctor::{self as doctor, Scene};
use forebay_sys::printable::printable;
use std::path::{Path, PathBuf};

/// Directory of the servers that Nginx Proxy Manager writes.
const PROXY_MANAGER: &[u8] = b"/data/nginx/proxy_host/";

/// A configuration that was read and checked.
#[derive(Debug)]
pub(super) struct Configuration {
    /// Absolute path.
    pub path: PathBuf,
    /// Its files.
    pub digest: Digest,
    /// Number of its files.
    pub files: usize,
    /// Mistakes with their places.
    pub errors: Vec<String>,
    /// Number of warnings.
    pub warnings: usize,
    /// Pid file of the server.
    pub pid: PathBuf,
    /// It names the pid file.
    pub names_pid: bool,
    /// It has `daemon off`.
    pub is_in_foreground: bool,
    /// Number of faults (CVE) that nginx has and this opens.
    pub faults: usize,
    /// Access log that is there.
    pub access_log: Option<PathBuf>,
    /// Nginx Proxy Manager writes it.
    pub is_of_proxy_manager: bool,
}

impl Configuration {
    /// Reads a configuration.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn read(
        environment: &Environment,
        paths: &Paths,
        nginx: Option<&Nginx>,
    ) -> Result<Configuration, String> {
        let mut files = Files::disk();
        let path = &environment.conf_path;
        let directory = path.parent().unwrap_or(&environment.prefix);
        let parsed = parse(path, "", directory, &mut files);
        if let Some(error) = parsed.errors.iter().find(|e| is_error(e) && e.span.is_none() && e.at.is_none())
        {
            return Err(error.message.clone());
        }
        let digest = Digest::of(&files);
        let faults = nginx.map_or(0, |nginx| doctor::faults(&parsed, &files, &nginx.version));
        let errors = errors(environment, paths, &mut files);
        let scene = Scene::new(&parsed.tree);
        let last = |name: &str| scene.all(name).last().map(|n| scene.arg(n, 0));
        Ok(Configuration {
            path: path.clone(),
            digest,
            files: files.iter().count(),
            errors: errors.iter().filter(|e| is_error(e)).map(|e| printable(files.render(e))).collect(),
            warnings: errors.iter().filter(|e| !is_error(e)).count(),
            pid: last("pid").map_or_else(|| paths.pid.clone(), |pid| environment.prefix.join(pid)),
            names_pid: last("pid").is_some(),
            is_in_foreground: last("daemon").is_some_and(|word| word == "off"),
            faults,
            access_log: access_log(&scene, environment),
            is_of_proxy_manager: is_of_proxy_manager(&parsed.tree.root),
        })
    }
}

fn is_error(error: &Error) -> bool {
    error.level < Level::Warn
}

/// Returns what `forebay check` says about a configuration.
fn errors(environment: &Environment, paths: &Paths, files: &mut Files) -> Vec<Error> {
    let (config, mut errors) = load_all(environment, files);
    if let Some(config) = &config {
        errors.extend(check::machine::errors(config, environment, paths, files));
    }
    errors.sort_by_key(|error| error.ordinal);
    errors
}

/// Returns the first access log that is a file with something in it.
fn access_log(scene: &Scene<'_>, environment: &Environment) -> Option<PathBuf> {
    let named = scene.all("access_log").map(|n| scene.arg(n, 0)).filter(|name| !name.contains('$'));
    let usual = environment.access_log.as_str();
    let has_lines =
        |path: &PathBuf| std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() > 0);
    named.chain([usual]).map(|name| environment.prefix.join(Path::new(name))).find(has_lines)
}

/// Returns `true` if a block includes the servers of Nginx Proxy Manager.
fn is_of_proxy_manager(block: &Block) -> bool {
    block.items.iter().any(|d| {
        let names = || d.args.iter().any(|word| word.text.starts_with(PROXY_MANAGER));
        (d.name.text == b"include" && names()) || d.block.as_ref().is_some_and(is_of_proxy_manager)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nginx_proxy_manager_is_known_by_its_includes() {
        let is_known = |conf: &str| {
            let mut files = Files::recorded([("/n.conf", conf)]);
            let parsed = parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
            is_of_proxy_manager(&parsed.tree.root)
        };
        assert!(is_known("events {} http { include /data/nginx/proxy_host/*.conf; }"));
        assert!(!is_known("events {} http { include /etc/nginx/conf.d/*.conf; }"));
    }
}
