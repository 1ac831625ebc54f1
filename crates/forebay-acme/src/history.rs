//! Requests to an authority in the past, to stay below its limits. The file is kept with the account.

use crate::schedule::{DAY, HOUR};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Most orders of an account in three hours (Let's Encrypt: 300).
const ORDERS: usize = 290;
/// Most certificates for the same names in a week (Let's Encrypt: 5).
const SAME_NAMES: usize = 5;
/// Most failed proofs of a name in an hour (Let's Encrypt: 5).
const UNPROVEN: usize = 4;

/// Member of the file that has the requests by the URLs of the authorities' directories.
const DIRECTORIES: &str = "directories";

/// Times of requests, seconds since 1970, oldest first.
type Times = Vec<i64>;

/// Requests in the past.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    orders: Times,
    /// Certificates by their names.
    issued: BTreeMap<String, Times>,
    /// Failed proofs by name.
    unproven: BTreeMap<String, Times>,
}

/// Limit that forbids a request for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Barred {
    /// Time at which the request is allowed.
    pub(crate) until: i64,
    /// The limit, for messages.
    pub(crate) limit: &'static str,
}

/// Request that may be barred.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// Names of the certificate, with commas between them.
    pub(crate) names: &'a str,
    /// The limits of Let's Encrypt hold.
    pub(crate) limited: bool,
    /// It replaces a certificate at the time that the authority suggested, which no limit counts.
    pub(crate) exempt: bool,
}

/// Returns the time at which another request is below a limit.
fn barred(times: &[i64], most: usize, period: i64, now: i64, limit: &'static str) -> Option<Barred> {
    let recent: Vec<i64> = times.iter().copied().filter(|t| now - period < *t && *t <= now).collect();
    let first = recent.len().checked_sub(most).and_then(|at| recent.get(at))?;
    Some(Barred { until: first + period, limit })
}

impl History {
    /// Returns the limit that forbids a request now, if one does.
    pub(crate) fn barred(&self, asked: Asked<'_>, now: i64) -> Option<Barred> {
        let unproven = (asked.names.split(',').filter_map(|name| self.unproven.get(name)))
            .find_map(|times| barred(times, UNPROVEN, HOUR, now, "4 failed proofs of a name in an hour"));
        if unproven.is_some() || asked.exempt || !asked.limited {
            return unproven;
        }
        let same = self.issued.get(asked.names);
        let same = same
            .and_then(|t| barred(t, SAME_NAMES, 7 * DAY, now, "5 certificates for the same names in a week"));
        same.or_else(|| barred(&self.orders, ORDERS, 3 * HOUR, now, "290 orders in 3 hours"))
    }

    /// Counts an order.
    pub(crate) fn ordered(&mut self, now: i64) {
        self.orders.push(now);
    }

    /// Counts a certificate.
    pub(crate) fn issued(&mut self, names: &str, now: i64) {
        self.issued.entry(names.to_owned()).or_default().push(now);
    }

    /// Counts a failed proof for each name.
    pub(crate) fn unproven(&mut self, names: &str, now: i64) {
        for name in names.split(',') {
            self.unproven.entry(name.to_owned()).or_default().push(now);
        }
    }

    /// Forgets what no limit counts any more.
    fn prune(&mut self, now: i64) {
        let keep = |times: &mut Times, period: i64| times.retain(|t| now - period < *t && *t <= now);
        keep(&mut self.orders, 3 * HOUR);
        self.issued.values_mut().for_each(|t| keep(t, 7 * DAY));
        self.unproven.values_mut().for_each(|t| keep(t, HOUR));
        self.issued.retain(|_, t| !t.is_empty());
        self.unproven.retain(|_, t| !t.is_empty());
    }

    /// Returns the text of the file: the requests to the authority with this directory, and what `former` has of others.
    pub(crate) fn into_text(mut self, former: &[u8], directory: &str, now: i64) -> String {
        self.prune(now);
        let former: Value = serde_json::from_slice(former).unwrap_or_default();
        let mut all = former.get(DIRECTORIES).and_then(Value::as_object).cloned().unwrap_or_default();
        let own = json!({"orders": self.orders, "issued": self.issued, "unproven": self.unproven});
        all.insert(directory.to_owned(), own);
        json!({DIRECTORIES: all}).to_string()
    }

    /// Reads the requests to the authority with a directory. What cannot be read counts as nothing. A file of an earlier version has
    /// those of one authority, which may be this one.
    pub(crate) fn from_text(text: &[u8], directory: &str) -> History {
        let json: Value = serde_json::from_slice(text).unwrap_or_default();
        match json.get(DIRECTORIES) {
            Some(all) => all.get(directory).map(History::from_json).unwrap_or_default(),
            None => History::from_json(&json),
        }
    }

    fn from_json(json: &Value) -> History {
        let times =
            |v: &Value| v.as_array().into_iter().flatten().filter_map(Value::as_i64).collect::<Times>();
        let map = |name: &str| {
            let members = json.get(name).and_then(Value::as_object);
            members.into_iter().flatten().map(|(key, v)| (key.clone(), times(v))).collect()
        };
        let orders = json.get("orders").map(times).unwrap_or_default();
        History { orders, issued: map("issued"), unproven: map("unproven") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn asked(names: &str) -> Asked<'_> {
        Asked { names, limited: true, exempt: false }
    }

    #[test]
    fn a_name_that_was_not_proven_four_times_waits() {
        let mut h = History::default();
        for n in 0..4 {
            assert_eq!(h.barred(asked("a,b"), NOW), None);
            h.unproven("a,c", NOW - HOUR + 10 + n);
        }
        assert_eq!(h.barred(asked("a,b"), NOW).map(|b| b.until), Some(NOW + 10));
        assert_eq!(
            h.barred(Asked { exempt: true, limited: false, ..asked("a") }, NOW).map(|b| b.until),
            Some(NOW + 10)
        );
        assert_eq!(h.barred(asked("b"), NOW), None);
        assert_eq!(h.barred(asked("a,b"), NOW + 10), None);
    }

    #[test]
    fn the_same_names_get_five_certificates_a_week() {
        let mut h = History::default();
        for day in 1..=5 {
            h.issued("a,b", NOW - day * DAY);
        }
        h.issued.values_mut().for_each(|t| t.sort());
        assert_eq!(h.barred(asked("a,b"), NOW).map(|b| b.until), Some(NOW + 2 * DAY));
        assert_eq!(h.barred(asked("a"), NOW), None);
        for free in [Asked { exempt: true, ..asked("a,b") }, Asked { limited: false, ..asked("a,b") }] {
            assert_eq!(h.barred(free, NOW), None);
        }
    }

    #[test]
    fn an_account_has_so_many_orders() {
        let mut h = History::default();
        (0..290).for_each(|n| h.ordered(NOW - 290 + n));
        assert_eq!(h.barred(asked("a"), NOW).map(|b| b.until), Some(NOW - 290 + 3 * HOUR));
    }

    /// A clock that was ahead must not bar requests for years.
    #[test]
    fn times_of_the_future_do_not_count() {
        let mut h = History::default();
        (0..9).for_each(|n| h.unproven("a", NOW + DAY + n));
        assert_eq!(h.barred(asked("a"), NOW), None);
    }

    #[test]
    fn the_file_keeps_what_counts() {
        let mut h = History::default();
        h.ordered(NOW - DAY);
        h.ordered(NOW);
        h.issued("a,b", NOW - DAY);
        h.unproven("a", NOW - DAY);
        h.unproven("b", NOW);
        let text = h.clone().into_text(b"", "a", NOW);
        let again = History::from_text(text.as_bytes(), "a");
        h.prune(NOW);
        assert_eq!(again, h);
        assert_eq!((h.orders.len(), h.issued.len(), h.unproven.len()), (1, 1, 1));
        assert_eq!(History::from_text(b"no json", "a"), History::default());
        // Requests to one authority count at that one only.
        assert_eq!(History::from_text(text.as_bytes(), "b"), History::default());
        let both = History::default().into_text(text.as_bytes(), "b", NOW);
        assert_eq!(History::from_text(both.as_bytes(), "a"), h);
        // As an earlier version has written it.
        let former = json!({"orders": [NOW], "issued": {"a,b": [NOW]}, "unproven": {}}).to_string();
        let read = History::from_text(former.as_bytes(), "b");
        assert_eq!((read.orders.as_slice(), read.issued.len()), ([NOW].as_slice(), 1));
    }
}
