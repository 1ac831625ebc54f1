//! The rules of an Ingress: its hosts and paths.

use super::{Globals, HostPath, HostRules, Parsed};
use crate::annotations::Annotations;
use crate::model::PathMatch;
use crate::objects::{HttpPath, Ingress, IngressBackend, PortRef};
use crate::value::Invalid;

/// Longest list of hosts and paths of one Ingress.
const MAX_PATHS: usize = 5000;

/// Reads the rules of an Ingress, those of one host together.
pub(super) fn rules(parsed: &mut Parsed, globals: &Globals) -> Vec<HostRules> {
    let ingress = parsed.ingress.clone();
    let mut found: Vec<HostRules> = Vec::new();
    let mut reader = PathReader {
        strict: globals.settings.flag("strict-validate-path-type"),
        regex: uses_regex(&parsed.annotations),
        left: MAX_PATHS,
    };
    for (i, rule) in ingress.spec.rules.iter().enumerate() {
        let Some(host) = host(parsed, i, &rule.host) else { continue };
        let mut paths = Vec::new();
        for (j, path) in rule.http.iter().flat_map(|http| &http.paths).enumerate() {
            if reader.left == 0 {
                let text = format!("an Ingress has at most {MAX_PATHS} paths, the rest is not served");
                parsed.problems.push(parsed.problem("spec.rules", text).reason("TooManyPaths"));
                return found;
            }
            paths.extend(reader.read(parsed, path, format!("spec.rules[{i}].http.paths[{j}]")));
        }
        match found.iter_mut().find(|r| r.host == host) {
            Some(rules) => rules.paths.extend(paths),
            None => found.push(HostRules { host, paths }),
        }
    }
    default_backend(&ingress, &mut found);
    if globals.options.disable_catch_all {
        catch_all(parsed, &mut found);
    }
    found
}

/// Reader of the paths of an Ingress.
struct PathReader {
    /// Paths have the characters that ingress-nginx allows only.
    strict: bool,
    /// Paths are regular expressions.
    regex: bool,
    /// Number of paths that the Ingress may still have.
    left: usize,
}

impl PathReader {
    /// Reads a path. `None`: it is not valid, and has been reported.
    fn read(&mut self, parsed: &mut Parsed, path: &HttpPath, field: String) -> Option<HostPath> {
        self.left = self.left.saturating_sub(1);
        let kind = path.path_type.as_deref().unwrap_or("ImplementationSpecific");
        match path_match(&path.path, kind, self.strict, self.regex) {
            Ok(condition) => {
                let slash = path.path.len() > 1 && path.path.ends_with('/');
                Some(HostPath { path: condition, slash, backend: backend(&path.backend), field })
            }
            Err(invalid) => {
                let problem = parsed.problem(format!("{field}.path"), "the path is not served");
                parsed.problems.push(problem.invalid(&path.path, &invalid).reason("InvalidPath"));
                None
            }
        }
    }
}

/// Removes what is for all hosts: rules without a host and, as in ingress-nginx, an Ingress with a default backend as a whole.
fn catch_all(parsed: &mut Parsed, found: &mut Vec<HostRules>) {
    let before = found.len();
    let text = if parsed.ingress.spec.default_backend.is_some() {
        found.clear();
        "the Ingress is not served: it has a default backend (--disable-catch-all)"
    } else {
        found.retain(|rules| rules.host.is_some());
        "nothing is served for all hosts (--disable-catch-all)"
    };
    if found.len() < before {
        parsed.problems.push(parsed.problem("spec", text).reason("CatchAllDisabled"));
    }
}

/// Adds `spec.defaultBackend` as `/` of each host of the Ingress, or of all hosts if it has none.
fn default_backend(ingress: &Ingress, found: &mut Vec<HostRules>) {
    let Some(default) = &ingress.spec.default_backend else { return };
    if found.is_empty() {
        found.push(HostRules::default());
    }
    let root = PathMatch::Prefix("/".into());
    for rules in found {
        if !rules.paths.iter().any(|p| p.path == root) {
            let field = "spec.defaultBackend".to_owned();
            rules.paths.push(HostPath { path: root.clone(), slash: false, backend: backend(default), field });
        }
    }
}

fn backend(backend: &IngressBackend) -> Option<(String, PortRef)> {
    backend.service.as_ref().map(|s| (s.name.clone(), s.port.clone()))
}

/// Reads a host. `Some(None)`: all hosts.
#[allow(clippy::option_option, reason = "the outer one is an error that has been reported")]
fn host(parsed: &mut Parsed, index: usize, text: &str) -> Option<Option<String>> {
    let host = text.trim_end_matches('.').to_ascii_lowercase();
    if host.is_empty() && text.is_empty() {
        return Some(None);
    }
    if is_host(&host) {
        return Some(Some(host));
    }
    let problem = parsed
        .problem(format!("spec.rules[{index}].host"), "the host is not a DNS name, the rule is not served");
    let at = text
        .char_indices()
        .find(|(_, c)| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '.')))
        .map_or(0, |(at, _)| at);
    parsed.problems.push(problem.reason("InvalidHost").at(text, at));
    None
}

/// Returns `true` for a DNS name, also with `*.` before it.
pub fn is_host(host: &str) -> bool {
    let name = host.strip_prefix("*.").unwrap_or(host);
    let label = |l: &str| {
        let inner = l.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        !l.is_empty() && l.len() <= 63 && inner && !l.starts_with('-') && !l.ends_with('-')
    };
    name.len() <= 253 && !name.is_empty() && name.split('.').all(label)
}

/// Returns `true` if an Ingress makes the paths of its hosts regular expressions.
pub fn uses_regex(annotations: &Annotations) -> bool {
    annotations.flag("use-regex") || annotations.get("rewrite-target").is_some()
}

/// Reads a path.
pub(super) fn path_match(path: &str, kind: &str, strict: bool, regex: bool) -> Result<PathMatch, Invalid> {
    let path = if path.is_empty() { "/" } else { path };
    check_path(path, regex)?;
    let exact = match kind {
        "Exact" => true,
        "Prefix" => false,
        "ImplementationSpecific" => {
            // The two are the same, so that they are found to be taken.
            let root = path == "/";
            return Ok(if root { PathMatch::Prefix("/".into()) } else { PathMatch::Start(path.into()) });
        }
        _ => return Err(Invalid::new(0, "its pathType is none of Exact, Prefix and ImplementationSpecific")),
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_/.~".contains(c);
    let foreign = path.char_indices().find(|(_, c)| !allowed(*c)).filter(|_| strict && !regex);
    if let Some((at, c)) = foreign {
        let c = c.escape_debug();
        let text = format!("'{c}' is not allowed in a path of this pathType (strict-validate-path-type)");
        return Err(Invalid::new(at, text));
    }
    if exact {
        return Ok(PathMatch::Exact(path.into()));
    }
    let trimmed = path.trim_end_matches('/');
    Ok(PathMatch::Prefix(if trimmed.is_empty() { "/".into() } else { trimmed.into() }))
}

/// Checks what holds for paths of all types.
fn check_path(path: &str, regex: bool) -> Result<(), Invalid> {
    if !path.starts_with('/') {
        return Err(Invalid::new(0, "a path begins with \"/\""));
    }
    if path.len() > 1500 {
        return Err(Invalid::new(0, "the path is longer than 1500 bytes"));
    }
    if let Some((at, c)) = path.char_indices().find(|(_, c)| c.is_control() || *c == ' ') {
        let text = format!("the character U+{:04X} is not allowed in a path", u32::from(c));
        return Err(Invalid::new(at, text));
    }
    if regex && let Some(reason) = crate::value::regex_lint(path) {
        return Err(Invalid::new(0, reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `strict-validate-path-type`: ingress-nginx's letters for Exact and Prefix.
    #[test]
    fn strict_paths() {
        for (path, kind, fine) in [
            ("/a-b_c.d~/e", "Prefix", true),
            ("/a,b", "Prefix", false),
            ("/a(b)", "Exact", false),
            ("/a(b)", "ImplementationSpecific", true),
        ] {
            assert_eq!(path_match(path, kind, true, false).is_ok(), fine, "{path}");
            assert!(path_match(path, kind, false, false).is_ok(), "{path}");
        }
    }
}
