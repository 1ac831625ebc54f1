//! The followed version of nginx stands in one place of the code, and the documents name that one.

use forebay_conf::NGINX_VERSION;
use std::path::{Path, PathBuf};

/// Documents that name the followed version. Others name the version that something was measured or tried with.
const DOCUMENTS: [&str; 4] = ["README.md", "CHANGELOG.md", "docs/differences.md", "docs/directives.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the versions that follow "nginx " and "nginx/" in a text: three numbers with dots between them.
fn versions(text: &str) -> Vec<&str> {
    let after = ["nginx ", "nginx/"].iter().flat_map(|name| text.split(name).skip(1));
    let version = |rest: &'_ str| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest[..end].trim_end_matches('.').len()
    };
    after.map(|rest| &rest[..version(rest)]).filter(|v| v.split('.').count() == 3).collect()
}

/// Adds the paths of the sources below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn documents_name_the_followed_version() {
    for document in DOCUMENTS {
        // A line of a document may end between the two words.
        let text = std::fs::read_to_string(root().join(document)).expect(document).replace('\n', " ");
        let found = versions(&text);
        assert!(!found.is_empty(), "{document} names no version");
        assert!(found.iter().all(|v| *v == NGINX_VERSION), "{document}: {found:?}");
    }
}

#[test]
fn one_source_has_the_followed_version() {
    let mut all = vec![];
    sources(&root().join("crates"), &mut all);
    let quoted = format!("\"{NGINX_VERSION}\"");
    let with: Vec<_> = (all.iter())
        .filter(|path| std::fs::read_to_string(path).is_ok_and(|text| text.contains(&quoted)))
        .collect();
    assert_eq!(with.len(), 1, "{with:?}");
    assert!(with.iter().all(|path| path.ends_with("forebay-conf/src/lib.rs")), "{with:?}");
}
