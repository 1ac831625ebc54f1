//! Versions of nginx.

use std::fmt;
use std::path::Path;
use std::process::Command;

/// A version of nginx: `1.31.9`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NginxVersion(pub [u32; 3]);

impl NginxVersion {
    /// Reads a version, `1.31.9` or `nginx/1.31.9`, and nothing behind it but a word after a blank.
    pub fn parse(text: &str) -> Option<NginxVersion> {
        let text = text.trim().strip_prefix("nginx/").unwrap_or(text.trim());
        let mut numbers = text.split(' ').next()?.split('.').map(str::parse);
        let version = NginxVersion([numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?]);
        numbers.next().is_none().then_some(version)
    }

    /// Reads what nginx prints with `-v` or `-V`. Returns `None` for another program.
    pub fn printed(text: &str) -> Option<NginxVersion> {
        NginxVersion::parse(printed(text)?)
    }

    /// Asks a program for its version.
    ///
    /// # Errors
    /// There is no such program, or it is no nginx.
    pub fn of_program(program: &Path) -> Result<NginxVersion, String> {
        let out = Command::new(program).arg("-v").output();
        let out = out.map_err(|e| format!("{}: {e}", program.display()))?;
        NginxVersion::printed(&String::from_utf8_lossy(&out.stderr))
            .ok_or_else(|| format!("{} -v names no version of nginx", program.display()))
    }
}

/// Returns the version in the text that nginx, or a program with its command line, prints with `-v` or `-V`: `nginx/1.31.9 (forebay 0.2.0)`.
pub fn printed(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("nginx version: ")).map(str::trim)
}

impl fmt::Display for NginxVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c] = self.0;
        write!(f, "{a}.{b}.{c}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_whole() {
        let nine = NginxVersion([1, 9, 0]);
        assert_eq!(NginxVersion::parse(" nginx/1.9.0 (Ubuntu)"), Some(nine));
        assert_eq!(NginxVersion::printed("built by x\nnginx version: nginx/1.9.0\n"), Some(nine));
        assert_eq!(NginxVersion::printed("nginx version: openresty/1.9.0.1\n"), None);
        for wrong in ["", "1.9", "1.9.0.1", "1.9.x", "one"] {
            assert_eq!(NginxVersion::parse(wrong), None, "{wrong}");
        }
        assert!(NginxVersion::of_program(Path::new("/bin/true")).is_err_and(|e| e.contains("no version")));
        assert!(nine < NginxVersion([1, 31, 9]), "by number");
        assert_eq!(nine.to_string(), "1.9.0");
    }
}
