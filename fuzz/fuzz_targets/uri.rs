//! Any path: what comes out has no dot segments, and escaped it comes out the same once more.
#![no_main]

use forebay_http::uri::{Escape, escape, normalise, split, unescape};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&options, target)) = data.split_first() else { return };
    let parts = split(target);
    assert!(parts.path <= target.len());
    if let Some((start, end)) = parts.args {
        assert!(parts.path < start && start <= end && end <= target.len());
    }
    let merge = options & 1 == 0;
    let mut path = Vec::new();
    unescape(target, &mut path);
    if normalise(&target[..parts.path], merge, &mut path).is_err() {
        return;
    }
    assert_eq!(path.first(), Some(&b'/'));
    assert!(!path.contains(&0));
    assert!(!path.split(|&b| b == b'/').any(|s| s == b".." || s == b"."));
    assert!(!merge || !path.windows(2).any(|w| w == b"//"));
    for class in [Escape::Redirect, Escape::Uri, Escape::Args] {
        let (mut escaped, mut again) = (Vec::new(), Vec::new());
        escape(&path, class, &mut escaped);
        normalise(&escaped, merge, &mut again).expect("a normal path");
        assert_eq!(again, path);
    }
});
