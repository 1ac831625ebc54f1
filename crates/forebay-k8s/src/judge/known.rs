//! Judgements by content.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

/// Contents that are kept in each of two generations.
const MOST: usize = 50_000;

/// Mark of a content. Nobody outside the process can make two contents with the same one, since the keys of the hashes are random.
pub(super) type Fingerprint = (u64, u64);

/// Judgements of contents. When a generation is full, that before it is forgotten.
#[derive(Default)]
pub(super) struct Known {
    keys: (RandomState, RandomState),
    young: HashMap<Fingerprint, Option<Arc<str>>>,
    old: HashMap<Fingerprint, Option<Arc<str>>>,
}

impl Known {
    /// Returns the mark of a content.
    pub(super) fn fingerprint(&self, kind: &str, parts: &[&[u8]]) -> Fingerprint {
        let mut hashers = (self.keys.0.build_hasher(), self.keys.1.build_hasher());
        for part in std::iter::once(kind.as_bytes()).chain(parts.iter().copied()) {
            for hasher in [&mut hashers.0, &mut hashers.1] {
                hasher.write_usize(part.len());
                hasher.write(part);
            }
        }
        (hashers.0.finish(), hashers.1.finish())
    }

    /// Returns a judgement. The inner `None`: the content is fine.
    #[allow(clippy::option_option, reason = "the outer one is that nothing is known")]
    pub(super) fn get(&mut self, print: Fingerprint) -> Option<Option<Arc<str>>> {
        if let Some(found) = self.young.get(&print) {
            return Some(found.clone());
        }
        let found = self.old.remove(&print)?;
        self.put(print, found.clone());
        Some(found)
    }

    /// Keeps a judgement.
    pub(super) fn put(&mut self, print: Fingerprint, judged: Option<Arc<str>>) {
        if self.young.len() >= MOST {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(print, judged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_verdicts_stay_and_memory_is_bounded() {
        let mut known = Known::default();
        let kept = known.fingerprint("k", &[b"kept"]);
        known.put(kept, Some("why".into()));
        for i in 0..(3 * MOST) {
            known.put((i as u64, 0), None);
            if i % 1000 == 0 {
                assert_eq!(known.get(kept), Some(Some("why".into())));
            }
        }
        assert!(known.young.len() + known.old.len() <= 2 * MOST + 1);
        assert_ne!(known.fingerprint("k", &[b"ab", b"c"]), known.fingerprint("k", &[b"a", b"bc"]));
    }
}
