//! Paths, hosts and sizes that words of a configuration stand for, and files below a root.

use super::sample::{is_anchored, samples};
use std::path::{Path, PathBuf};

/// Most files below a root that are asked for.
pub(super) const MOST_FILES: usize = 12;

/// Finds files, and directories with a slash.
pub(super) fn walk(dir: &Path, at: &str, depth: u32, found: &mut Vec<(String, u64)>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).take(2000).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-~".contains(&b));
        let Ok(meta) = path.metadata() else { continue };
        if !plain || found.len() >= MOST_FILES {
            continue;
        }
        let place = format!("{}/{name}", at.trim_end_matches('/'));
        if meta.is_dir() {
            found.push((format!("{place}/"), 0));
            if depth < 2 {
                walk(&path, &place, depth + 1, found);
            }
        } else if meta.is_file() && meta.len() <= 1 << 20 {
            found.push((place, meta.len()));
        }
    }
}

/// Returns hosts that a server name takes.
pub(super) fn instances(name: &str) -> Vec<String> {
    let hosts = match name {
        "_" | "" => vec![],
        name if name.starts_with('~') => {
            let pattern = name.trim_start_matches('~');
            let whole = |t: String| if is_anchored(pattern) { t } else { format!("a{t}") };
            samples(pattern, true).into_iter().map(whole).collect()
        }
        name if name.contains('$') => vec![],
        name if name.starts_with("*.") || name.starts_with("+.") => {
            vec![format!("a{}", name.get(1..).unwrap_or_default())]
        }
        name if name.starts_with('.') => {
            vec![name.get(1..).unwrap_or_default().to_owned(), format!("a{name}")]
        }
        name if name.ends_with(".*") => vec![name.replace(".*", ".example")],
        name => vec![name.to_owned()],
    };
    hosts.into_iter().filter(|h| h.bytes().all(|b| b.is_ascii_graphic() && b != b'/')).collect()
}

/// Returns paths that a location takes. `around`: paths of the location around it.
pub(super) fn location_paths(args: &[String], around: &[String]) -> Vec<String> {
    match args {
        [path] if path.starts_with('@') => Vec::new(),
        [path] => prefix_paths(path),
        [modifier, path] => match modifier.as_str() {
            "=" => vec![escaped(path)],
            "~" => pattern_paths(path, false, around),
            "~*" => pattern_paths(path, true, around),
            _ => prefix_paths(path),
        },
        _ => Vec::new(),
    }
}

fn prefix_paths(path: &str) -> Vec<String> {
    let path = escaped(path);
    let file = format!("{}/fb.html", path.trim_end_matches('/'));
    let mut paths = vec![path.clone(), file, format!("{path}x/y.php?z=1")];
    if let Some(bare) = path.strip_suffix('/').filter(|p| !p.is_empty()) {
        paths.push(bare.to_owned());
    }
    paths
}

/// Returns paths that match a pattern, for one without a beginning below the paths around it.
pub(super) fn pattern_paths(pattern: &str, insensitive: bool, around: &[String]) -> Vec<String> {
    let anchored = is_anchored(pattern);
    let base = around.first().map_or("/", String::as_str).split('?').next().unwrap_or("/");
    let base = base.trim_end_matches('/');
    samples(pattern, insensitive)
        .into_iter()
        .map(|text| encoded(&text))
        .map(|text| match text.strip_prefix('/') {
            Some(_) if anchored || base.is_empty() => text,
            Some(_) => format!("{base}{text}"),
            None if anchored => format!("/{text}"),
            None => format!("{base}/f{text}"),
        })
        .collect()
}

/// Returns a path as a request has it.
pub(super) fn escaped(path: &str) -> String {
    let out = encoded(path);
    if out.starts_with('/') { out } else { format!("/{out}") }
}

fn encoded(path: &str) -> String {
    let mut out = String::new();
    for b in path.bytes() {
        match b {
            b'%' | b'?' | b'#' | 0..=b' ' | 0x7f.. => out.push_str(&format!("%{b:02X}")),
            _ => out.push(char::from(b)),
        }
    }
    out
}

/// Returns the words of a condition without its brackets.
pub(super) fn without_brackets(args: &[String]) -> Vec<String> {
    let joined = args.to_vec();
    let last = joined.len().saturating_sub(1);
    let trim = |(i, word): (usize, String)| {
        let word = if i == 0 { word.strip_prefix('(').unwrap_or(&word).to_owned() } else { word };
        if i == last { word.strip_suffix(')').unwrap_or(&word).to_owned() } else { word }
    };
    joined.into_iter().enumerate().map(trim).filter(|w| !w.is_empty()).collect()
}

/// Reads a size such as `8k`.
pub(super) fn size(text: &str) -> Option<usize> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1usize << 10),
        None => text.strip_suffix(['m', 'M']).map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn paths_of_locations() {
        assert_eq!(location_paths(&words("= /a b"), &[]), Vec::<String>::new());
        assert_eq!(location_paths(&words("= /a"), &[]), ["/a"]);
        assert_eq!(location_paths(&words("/api/"), &[])[..2], ["/api/", "/api/fb.html"]);
        assert_eq!(location_paths(&words(r"~ \.(gif|jpg)$"), &words("/img/")), ["/img/f.gif", "/img/f.jpg"]);
        assert_eq!(location_paths(&words("~ ^/x/"), &words("/y/")), ["/x/"]);
        assert!(location_paths(&words("@named"), &[]).is_empty());
    }

    #[test]
    fn hosts_of_names() {
        assert_eq!(instances("*.example.org"), ["a.example.org"]);
        assert_eq!(instances(".example.org"), ["example.org", "a.example.org"]);
        assert_eq!(instances(r"~^(www|api)\.x\.org$"), ["www.x.org", "api.x.org"]);
        assert!(instances("_").is_empty());
    }

    #[test]
    fn words_of_conditions() {
        assert_eq!(without_brackets(&words("($a = b)")), ["$a", "=", "b"]);
        assert_eq!(without_brackets(&words("( $a )")), ["$a"]);
    }
}
