//! Requests that an origin of a table has received: `EXPECTED[ | EXPECTED]...` for each, in their order, see [`text`](super::text).

use super::{row::split, text};
use crate::{Origin, wait_until};

/// Compares the requests that have come, for which it waits, to rows, and has the origin forget them.
pub(super) fn check(rows: &[String], name: &str, origin: &Origin) {
    wait_until(&format!("requests to {name}"), || origin.asked() >= rows.len());
    let requests = origin.requests();
    assert_eq!(requests.len(), rows.len(), "requests to {name}: {requests:#?}");
    for (row, request) in rows.iter().zip(&requests) {
        for expected in split(row, " | ") {
            assert!(text::holds(expected.trim(), request), "{name}: not {expected}: {request}");
        }
    }
    origin.forget();
}
