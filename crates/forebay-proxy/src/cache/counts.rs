//! Responses of caches by the way in which the cache took part, with their bytes.

use crate::modules::proxy_cache;
use forebay_core::status_zone::{StatusZone, ZoneKind, add, with_cells};
use forebay_server::request::Request;

/// Responses of a cache.
pub const CACHE: ZoneKind = ZoneKind { name: "caches", cells: 2 * CACHE_STATUSES.len() };

/// Ways in which a cache takes part, in the order of [`crate::modules::proxy_cache::CacheStatus`].
pub const CACHE_STATUSES: [&str; 7] =
    ["miss", "bypass", "expired", "stale", "updating", "revalidated", "hit"];

/// Returns the responses of a cache and their bytes, by [`CACHE_STATUSES`].
pub fn cache_totals(zone: &StatusZone) -> [(u64, u64); 7] {
    let sum = zone.sum();
    std::array::from_fn(|n| (sum(2 * n), sum(2 * n + 1)))
}

/// Counts a response that a cache had a part in.
pub fn count(req: &mut Request) {
    let cached = proxy_cache::STATE.of(req);
    if let (Some(status), Some(id)) = (cached.status, cached.zone) {
        with_cells(id, |c| {
            add(c, 2 * status as usize, 1);
            add(c, 2 * status as usize + 1, req.tally.sent.saturating_sub(req.tally.sent_head));
        });
    }
}
