//! `forebay acme`: certificates that are got by ACME. Reads the files of the configuration; a running server needs only be there
//! for `renew`.

use crate::cli::{Options, Signal};
use crate::front_ends::load_all;
use crate::server;
use forebay_acme::{Order, Stored, mark_for_renewal, stored};
use forebay_conf::files::Files;
use forebay_server::parts::acme_orders;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// Reads the orders of a configuration. Prints its errors.
fn orders(options: &Options) -> Option<Vec<Order>> {
    let (environment, _) = options.places();
    let mut files = Files::disk();
    let (config, errors) = load_all(&environment, &mut files);
    if let Some(error) = errors.iter().find(|e| e.level == forebay_conf::error::Level::Emerg) {
        eprintln!("forebay acme: {}", files.render(error));
        return None;
    }
    config.map(|config| acme_orders(&config))
}

/// Prints the certificates of a configuration. Returns the exit code: 1 if one is missing or has expired.
pub(crate) fn status(options: &Options) -> u8 {
    let Some(orders) = orders(options) else { return 1 };
    if orders.is_empty() {
        println!("The configuration gets no certificates by ACME.");
        return 0;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let (mut text, mut bad) = (String::new(), false);
    for order in &orders {
        let line = Line::of(order, now);
        bad |= line.is_bad;
        let _ = writeln!(text, "{} (issuer {}): {}", order.names(), order.issuer.name, line.text);
    }
    // A reader that has gone away, as `head` does, is no reason to complain.
    let _ = std::io::stdout().write_all(text.as_bytes());
    u8::from(bad)
}

/// What is said about a certificate.
struct Line {
    text: String,
    is_bad: bool,
}

impl Line {
    fn of(order: &Order, now: i64) -> Line {
        let text = match stored(order) {
            Stored::Nowhere => "kept in the memory of the server only".to_owned(),
            Stored::Missing(path) => format!("no certificate yet in {}", path.display()),
            Stored::Unusable(why) => why,
            Stored::Until(until, path) => return Line::expiring(until, now, &path.display().to_string()),
        };
        Line { is_bad: !text.starts_with("kept"), text }
    }

    fn expiring(until: i64, now: i64, path: &str) -> Line {
        let at = jiff::Timestamp::from_second(until).map(|t| t.to_string()).unwrap_or_default();
        let days = until.saturating_sub(now).div_euclid(24 * 3600);
        match until > now {
            true => Line { text: format!("valid until {at}, {days} days left, {path}"), is_bad: false },
            false => Line { text: format!("expired at {at}, {path}"), is_bad: true },
        }
    }
}

/// Has the running server renew the certificates with these names, or all, by a reload. Returns the exit code.
pub(crate) fn renew(options: &Options, names: &[String]) -> u8 {
    let Some(orders) = orders(options) else { return 1 };
    let wanted =
        |o: &&Order| names.is_empty() || o.identifiers.iter().any(|i| names.contains(&i.to_string()));
    let mut marked = 0;
    for order in orders.iter().filter(wanted) {
        let Some(directory) = &order.issuer.state_path else {
            eprintln!(
                "forebay acme: \"{}\" is kept in memory only, and cannot be renewed by hand",
                order.names()
            );
            continue;
        };
        match mark_for_renewal(directory, &order.file()) {
            Ok(()) => marked += 1,
            Err(e) => eprintln!("forebay acme: cannot write to {}: {e}", directory.display()),
        }
    }
    if marked == 0 {
        eprintln!("forebay acme: there is nothing to renew");
        return 1;
    }
    match server::Found::by(options).and_then(|master| master.signal(Signal::Reload)) {
        Ok(()) => {
            println!("The server renews {marked} of the certificates; the error log tells how it went.");
            0
        }
        Err(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_days_that_are_left_are_counted_down() {
        let line = Line::expiring(1_800_000_000, 1_800_000_000 - 86_400 * 3 + 1, "/a");
        assert!(line.text.contains("2 days left, /a") && !line.is_bad, "{}", line.text);
        let line = Line::expiring(1_800_000_000, 1_800_000_000, "/a");
        assert!(line.text.starts_with("expired at 2027-01-15T08:00:00Z") && line.is_bad, "{}", line.text);
    }
}
