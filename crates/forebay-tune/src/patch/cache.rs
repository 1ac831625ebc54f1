//! A cache for answers of upstreams that are the same for everybody.

use crate::knobs::statements;
use forebay_copy::patch::{Edit, View};
use forebay_copy::scene::NEW_CACHE;

/// Settings of a cache whatever its level.
const OWN: &str = "proxy_cache_lock on; proxy_cache_use_stale updating";

/// Stores the answers of locations that pass requests on, one request at a time for each: of all of them, or of those whose
/// number is in `storable`.
pub(crate) fn store(view: &View<'_>, level: &str, storable: Option<&[usize]>) -> Vec<Edit> {
    let Some(http) = view.child(None, "http") else { return Vec::new() };
    let mut edits = Vec::new();
    for pass in view.all("proxy_pass").filter(|p| view.within(*p, http)) {
        let Some(location) = view.nodes.get(pass).and_then(|n| n.parent) else { continue };
        let wanted = storable.is_none_or(|numbers| numbers.contains(&location));
        let is_free = view.effective(Some(location), "proxy_cache").is_none()
            && view.effective(Some(location), "proxy_store").is_none();
        if !wanted || !is_free || view.name(location) != "location" {
            continue;
        }
        let missing = |(name, _): &(&str, &str)| view.effective(Some(location), name).is_none();
        let rest: Vec<String> = statements(OWN)
            .into_iter()
            .chain(statements(level))
            .filter(missing)
            .map(|(name, args)| format!(" {name} {args};"))
            .collect();
        edits.push(view.insert(Some(location), &format!("proxy_cache tuned;{}", rest.concat())));
    }
    if !edits.is_empty() {
        let zone = format!("proxy_cache_path {NEW_CACHE} keys_zone=tuned:10m max_size=256m inactive=10m;");
        edits.push(view.insert(Some(http), &zone));
    }
    edits
}

#[cfg(test)]
mod tests {
    use super::super::tests::{patched, source};
    use super::store;

    const CONF: &str = "events {}\nhttp {\n server {\n  location /a {\n   proxy_pass http://10.0.0.1;\n  }\n  location /b {\n   \
                        proxy_cache own;\n   proxy_pass http://10.0.0.1;\n  }\n  location /c {\n   proxy_pass http://10.0.0.1;\n  }\n }\n \
                        proxy_cache_path /c keys_zone=own:1m;\n}\n";

    #[test]
    fn locations_without_a_cache_get_one() {
        let new = patched(CONF, "proxy_cache", None);
        assert_eq!(new.matches("proxy_cache tuned; proxy_cache_lock on;").count(), 2, "{new}");
        assert_eq!(new.matches("proxy_cache_valid 200 1s;").count(), 2, "{new}");
        assert_eq!(new.matches("keys_zone=tuned:10m").count(), 1, "{new}");
    }

    #[test]
    fn only_answers_that_may_be_stored_are() {
        let (_dir, source) = source(CONF);
        let view = source.view();
        let stored = |numbers: &[usize]| store(&view, "proxy_cache_valid 200 1s;", Some(numbers));
        assert!(stored(&[]).is_empty());
        let locations: Vec<usize> = view.all("location").collect();
        // The location, and the zone.
        assert_eq!(stored(&locations[1..]).len(), 2);
    }

    #[test]
    fn settings_of_a_location_are_not_there_twice() {
        let conf = CONF.replace("/a {", "/a {\n   proxy_cache_lock off;\n   proxy_cache_use_stale error;");
        let new = patched(&conf, "proxy_cache", None);
        assert_eq!(new.matches("proxy_cache_lock ").count(), 2, "{new}");
        assert_eq!(new.matches("proxy_cache_use_stale ").count(), 2, "{new}");
        assert_eq!(new.matches("proxy_cache tuned;").count(), 2, "{new}");
    }
}
