//! The nginx that is installed: its program, the paths that it was built with, and what installed it.

use super::configuration::Configuration;
use super::running::Running;
use crate::paths::Paths;
use forebay_copy::record::{version_in, version_of};
use forebay_sys::printable::printable;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Places where nginx is installed, behind those of the path.
const PLACES: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/usr/local/nginx/sbin"];

/// Ending of the name that a program of nginx has while Forebay has its place, as the package forebay-nginx gives it.
pub(super) const ASIDE: &str = ".distrib";

/// A program of nginx.
#[derive(Clone, Debug)]
pub(super) struct Nginx {
    /// Its path. While Forebay is in its place, that of the file that was put aside.
    pub program: PathBuf,
    /// Its version: `1.22.1`.
    pub version: String,
    /// Paths that it was built with.
    pub paths: Paths,
    /// Forebay is in its place.
    pub is_aside: bool,
}

impl Nginx {
    /// Asks a program. Returns `None` if it is no nginx, or if it is Forebay.
    fn ask(program: &Path) -> Option<Nginx> {
        let output = Command::new(program).arg("-V").stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let version = version_in(&text).filter(|version| !version.contains("forebay"))?;
        Some(Nginx { program: program.to_owned(), version, paths: built_paths(&text), is_aside: false })
    }

    /// Returns the place of the program while Forebay is not there.
    pub(super) fn place(&self) -> PathBuf {
        let name = self.program.to_string_lossy().into_owned();
        if self.is_aside { name.trim_end_matches(ASIDE).into() } else { self.program.clone() }
    }
}

/// Finds nginx. One that Forebay has the place of is found beside it.
///
/// # Errors
/// The program that was asked for is no nginx.
pub(super) fn find(asked: Option<&Path>) -> Result<Option<Nginx>, String> {
    let Some(asked) = asked else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places = std::env::split_paths(&path).chain(PLACES.map(PathBuf::from));
        return Ok(places.map(|place| place.join("nginx")).filter(|p| p.is_absolute()).find_map(|p| at(&p)));
    };
    let program = std::path::absolute(asked).map_err(|e| format!("{}: {e}", asked.display()))?;
    std::fs::metadata(&program).map_err(|e| format!("{}: {e}", program.display()))?;
    let none = || format!("{} is no nginx: its -V names no version of nginx", program.display());
    at(&program).map(Some).ok_or_else(none)
}

fn at(program: &Path) -> Option<Nginx> {
    let aside = || {
        let mut name = program.as_os_str().to_owned();
        name.push(ASIDE);
        let nginx = Nginx::ask(Path::new(&name))?;
        version_of(program)?.contains("forebay").then_some(Nginx { is_aside: true, ..nginx })
    };
    if program.is_file() { Nginx::ask(program).or_else(aside) } else { None }
}

/// Returns the paths in the text of `-V`, with nginx's defaults for those that it does not name.
fn built_paths(text: &str) -> Paths {
    let value = |name: &str| {
        let word = text.split_whitespace().find_map(|word| word.strip_prefix("--")?.strip_prefix(name));
        word.and_then(|word| word.strip_prefix('=')).map(str::to_owned)
    };
    let usual = Paths::new(Some(&value("prefix").unwrap_or_else(|| "/usr/local/nginx".into())));
    let prefix = usual.prefix.clone();
    let below = |name: &str, usual: PathBuf| value(name).map_or(usual, |path| prefix.join(path));
    Paths {
        conf: below("conf-path", usual.conf),
        error_log: match value("error-log-path").as_deref() {
            Some("stderr") => "stderr".into(),
            _ => below("error-log-path", usual.error_log),
        },
        access_log: value("http-log-path").unwrap_or(usual.access_log),
        pid: below("pid-path", usual.pid),
        prefix: usual.prefix,
    }
}

/// Origin of the installed nginx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A package of Debian's kind.
    Debian(String),
    /// A package of RPM's kind.
    Rpm(String),
    /// An image whose first process is nginx.
    Image,
    /// The image of Nginx Proxy Manager.
    ProxyManager,
    /// No package owns it.
    ByHand,
}

impl Origin {
    pub(super) fn find(
        nginx: Option<&Nginx>,
        configuration: &Configuration,
        running: Option<&Running>,
    ) -> Origin {
        if configuration.is_of_proxy_manager {
            return Origin::ProxyManager;
        }
        if running.is_some_and(|running| running.pid == 1) {
            return Origin::Image;
        }
        let Some(place) = nginx.map(Nginx::place) else { return Origin::ByHand };
        let debian = || owner("dpkg-query", &["-S"], &place).map(Origin::Debian);
        let rpm = || owner("rpm", &["-q", "--queryformat", "%{NAME}: ", "-f"], &place).map(Origin::Rpm);
        debian().or_else(rpm).unwrap_or(Origin::ByHand)
    }
}

/// Asks a package manager for the package that owns a file.
fn owner(manager: &str, options: &[&str], path: &Path) -> Option<String> {
    let output = Command::new(manager).args(options).arg(path).stdin(Stdio::null()).output().ok()?;
    if !output.status.success() {
        return None;
    }
    owner_in(&String::from_utf8_lossy(&output.stdout))
}

/// Returns the package in `nginx, forebay-nginx: /usr/sbin/nginx`. Lines about a diversion name the package that diverts.
fn owner_in(text: &str) -> Option<String> {
    let lines = text.lines().filter(|line| !line.starts_with("diversion by "));
    let mut names = lines.filter_map(|line| line.split_once(':')).flat_map(|(names, _)| names.split(", "));
    names.find(|name| *name != "forebay-nginx").map(printable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_build() {
        let paths = built_paths(
            "nginx version: nginx/1.22.1\nconfigure arguments: --prefix=/usr/share/nginx \
             --conf-path=/etc/nginx/nginx.conf --error-log-path=stderr --pid-path=run/nginx.pid",
        );
        assert_eq!(paths.prefix, Path::new("/usr/share/nginx/"));
        assert_eq!(paths.conf, Path::new("/etc/nginx/nginx.conf"));
        assert_eq!(paths.error_log, Path::new("stderr"));
        assert_eq!(paths.pid, Path::new("/usr/share/nginx/run/nginx.pid"));
        let usual = built_paths("nginx version: nginx/1.22.1\nconfigure arguments:\n");
        assert_eq!(usual.conf, Path::new("/usr/local/nginx/conf/nginx.conf"));
        assert_eq!(usual.pid, Path::new("/usr/local/nginx/logs/nginx.pid"));
    }

    #[test]
    fn packages_that_own_a_program() {
        assert_eq!(owner_in("nginx: /usr/sbin/nginx\n").as_deref(), Some("nginx"));
        let diverted = "diversion by forebay-nginx from: /usr/sbin/nginx\n\
                        diversion by forebay-nginx to: /usr/sbin/nginx.distrib\n\
                        forebay-nginx, nginx-core: /usr/sbin/nginx\n";
        assert_eq!(owner_in(diverted).as_deref(), Some("nginx-core"));
        assert_eq!(owner_in(""), None);
    }

    #[test]
    fn a_program_that_is_no_nginx_is_told() {
        let why = |path: &str| find(Some(Path::new(path))).expect_err("no nginx");
        assert!(why("/nowhere/nginx").contains("/nowhere/nginx: No such file"));
        assert!(why("/bin/true").contains("/bin/true is no nginx"));
    }
}
