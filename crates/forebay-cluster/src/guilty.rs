//! The search for the files that make the server refuse a configuration.

use forebay_k8s::blame::{self, Bounds, Verdict};
use forebay_k8s::judge::Judge;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Files of hosts that are built together: with many more, the controller would need as much memory as the server.
const TOGETHER: usize = 2000;
/// Time of a search.
const LIMIT: Duration = Duration::from_secs(20);

/// File with its content.
type File = (Arc<Path>, Arc<[u8]>);

/// Finds the files of hosts and Gateways that make a configuration invalid, with the reasons. `applied`: files that have worked.
pub(crate) fn find<'f>(
    judge: &Judge,
    files: impl Iterator<Item = (&'f Arc<Path>, &'f Arc<[u8]>)>,
    applied: impl Fn(&Path) -> Option<&'f Arc<[u8]>>,
) -> Vec<(Arc<Path>, String)> {
    if !judge.judges() {
        return Vec::new();
    }
    let owned = files.map(|(path, bytes)| (path.clone(), bytes.clone()));
    let (mut units, base): (Vec<File>, Vec<File>) = owned.partition(|(path, _)| is_unit(path));
    // Those that have not changed have worked.
    units.retain(|(path, bytes)| applied(path) != Some(bytes));
    units.sort();
    let until = Instant::now() + LIMIT;
    let mut guilty = Vec::new();
    for chunk in units.chunks(TOGETHER) {
        let bounds = Bounds { time: until.saturating_duration_since(Instant::now()), ..Bounds::default() };
        let found = blame::find(chunk.len(), bounds, |some| verdict(judge, &base, chunk, some));
        let named = |unit: usize, why: String| chunk.get(unit).map(|(path, _)| (path.clone(), why));
        guilty.extend(found.guilty.into_iter().filter_map(|(unit, refusal)| named(unit, refusal.message)));
        if found.base.is_none() {
            let late = || "too many others are refused to judge it in time".to_owned();
            guilty.extend(found.undecided.into_iter().filter_map(|unit| named(unit, late())));
        }
    }
    guilty
}

/// Judges a configuration with some of the units.
fn verdict(judge: &Judge, base: &[File], units: &[File], some: &[usize]) -> Verdict {
    let mut all = base.to_vec();
    all.extend(some.iter().filter_map(|i| units.get(*i).cloned()));
    let mut verdict = Verdict::default();
    for refusal in judge.errors(&all) {
        let of = |(path, _): &File| refusal.path.as_ref() == Some(path);
        match units.iter().position(of) {
            Some(unit) => verdict.placed.push((unit, refusal)),
            None => verdict.other = verdict.other.or(Some(refusal)),
        }
    }
    verdict
}

/// Returns `true` for a file that can be left out. That of all other hosts has variables that the main file refers to.
fn is_unit(path: &Path) -> bool {
    path.starts_with("hosts") && !path.ends_with("_.conf")
        || path.starts_with("gateways") && path.extension().is_some_and(|e| e == "conf")
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_k8s::judge::{Build, Refusal};

    /// Refuses a configuration with a word, and names no place.
    struct Nowhere;

    impl Build for Nowhere {
        fn errors(&self, files: &[File]) -> Vec<Refusal> {
            let bad = files.iter().any(|(_, bytes)| bytes.starts_with(b"bad"));
            bad.then(|| Refusal::plain("somewhere")).into_iter().collect()
        }
    }

    #[test]
    fn a_refusal_without_a_place_is_found_among_all_hosts() {
        let file = |i: usize| {
            let text = if i == 4321 || i == 17 { "bad" } else { "good" };
            (Arc::from(Path::new(&format!("hosts/{i}.conf"))), Arc::from(text.as_bytes()))
        };
        let mut all: Vec<File> = (0..5000).map(file).collect();
        all.push((Path::new("forebay.conf").into(), Arc::from(&b"main"[..])));
        let judge = Judge::new(Nowhere);
        let found = find(&judge, all.iter().map(|(p, b)| (p, b)), |_| None);
        let paths: Vec<_> = found.iter().map(|(path, _)| path.to_str().unwrap_or_default()).collect();
        assert_eq!(paths, ["hosts/17.conf", "hosts/4321.conf"]);
        // Files that the server has accepted before are not searched.
        let worked = |path: &Path| all.iter().find(|(p, _)| **p == *path).map(|(_, bytes)| bytes);
        assert!(find(&judge, all.iter().map(|(p, b)| (p, b)), worked).is_empty());
    }
}
