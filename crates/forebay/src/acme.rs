//! `forebay acme`: certificates that are got by ACME. Reads the files of the configuration; a running server needs only be there
//! for `renew` and `test`.

use crate::cli::{Options, Signal};
use crate::front_ends::load_all;
use crate::server;
use forebay_acme::{Mark, Order, Stored, stored, take_result};
use forebay_conf::files::Files;
use forebay_core::config::Config;
use forebay_modules::parts::acme_orders;
use forebay_terminal::print;
use nix::sys::signal::{SigSet, SigmaskHow};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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

/// First and longest time between two looks for a certificate that is on its way.
const LOOKS: [Duration; 2] = [Duration::from_millis(300), Duration::from_secs(5)];

/// Prints a line for each certificate that a server in the foreground waits for, when it has arrived. Failures, with their reasons and
/// the next attempts, are in the error log, which is the same terminal.
pub(crate) fn tell_of_arrivals(config: &Config) {
    let is_missing = |order: &Order| matches!(stored(order), Stored::Missing(_));
    let mut missing: Vec<Order> = acme_orders(config).into_iter().filter(is_missing).collect();
    if missing.is_empty() {
        return;
    }
    let tell = move || {
        let [mut pause, longest] = LOOKS;
        while !missing.is_empty() {
            std::thread::sleep(pause);
            pause = (pause * 2).min(longest);
            missing.retain(|order| {
                let until = match stored(order) {
                    Stored::Until(until, _) => jiff::Timestamp::from_second(until).unwrap_or_default(),
                    _ => return true,
                };
                print(format!("The certificate for {} has arrived, valid until {until}.\n", order.names()));
                false
            });
        }
    };
    // Signals are for the thread that serves, which the new one would take from it.
    let Ok(before) = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK) else { return };
    // Without the thread the line is missing, and nothing else.
    let _ = std::thread::Builder::new().name("certificates".into()).spawn(tell);
    let _ = before.thread_set_mask();
}

/// Prints the certificates of a configuration. Returns the exit code: 1 if one is missing or has expired.
pub(crate) fn status(options: &Options) -> u8 {
    let Some(orders) = orders(options) else { return 1 };
    if orders.is_empty() {
        print("The configuration gets no certificates by ACME.\n");
        return 0;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let (mut text, mut bad) = (String::new(), false);
    for order in &orders {
        let line = Line::of(order, now);
        bad |= line.is_bad;
        let _ = writeln!(text, "{} (issuer {}): {}", order.names(), order.issuer.name, line.text);
    }
    print(text);
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
    let Some(marked) = Marked::new(options, names, Mark::Renew) else { return 1 };
    if !marked.reload(options) {
        return 1;
    }
    let count = marked.orders.len();
    print(format!("The server renews {count} of the certificates; the error log tells how it went.\n"));
    0
}

/// Has the running server prove control of these names, or of all, to the authorities without asking for certificates, and
/// prints the results. Returns the exit code: 1 if a proof failed.
pub(crate) fn test(options: &Options, names: &[String], patience: Duration) -> u8 {
    let Some(marked) = Marked::new(options, names, Mark::Test) else { return 1 };
    if !marked.reload(options) {
        return 1;
    }
    let end = Instant::now() + patience;
    let mut failed = false;
    for (order, directory) in &marked.orders {
        let result = wait_for_result(directory, &order.file(), end);
        let Tested { text, is_bad } = Tested::of(order, result.as_deref());
        print(text);
        failed |= is_bad;
    }
    u8::from(failed)
}

/// Orders that the server is asked about, with their directories.
struct Marked {
    orders: Vec<(Order, PathBuf)>,
}

impl Marked {
    /// Leaves marks for the orders with these names, or for all. Prints errors. Returns `None` if there is no mark.
    fn new(options: &Options, names: &[String], mark: Mark) -> Option<Marked> {
        let is_wanted =
            |o: &Order| names.is_empty() || o.identifiers.iter().any(|i| names.contains(&i.to_string()));
        let mut marked = Vec::new();
        for order in orders(options)?.into_iter().filter(is_wanted) {
            let Some(directory) = order.issuer.state_path.clone() else {
                eprintln!(
                    "forebay acme: \"{}\" is kept in memory only, which no other program can ask for",
                    order.names()
                );
                continue;
            };
            // The result of an earlier test is not wanted.
            let _ = take_result(&directory, &order.file());
            match mark.set(&directory, &order.file()) {
                Ok(()) => marked.push((order, directory)),
                Err(e) => eprintln!("forebay acme: cannot write to {}: {e}", directory.display()),
            }
        }
        if marked.is_empty() {
            eprintln!("forebay acme: there is no certificate to ask for");
            return None;
        }
        Some(Marked { orders: marked })
    }

    /// Has the server look at the marks.
    fn reload(&self, options: &Options) -> bool {
        server::Found::by(options).and_then(|master| master.signal(Signal::Reload)).is_ok()
    }
}

/// Waits for the result of a test until `end`.
fn wait_for_result(directory: &Path, file: &str, end: Instant) -> Option<String> {
    loop {
        let result = take_result(directory, file);
        if result.is_some() || Instant::now() > end {
            return result;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Lines about a test.
struct Tested {
    text: String,
    is_bad: bool,
}

impl Tested {
    /// Reads the result of the test of an order, if there is one.
    fn of(order: &Order, result: Option<&str>) -> Tested {
        let json: Value = result.and_then(|r| serde_json::from_str(r).ok()).unwrap_or_default();
        let Some(directory) = json.get("directory").and_then(Value::as_str) else {
            let text = format!("{}: the server reports no result, see its error log\n", order.names());
            return Tested { text, is_bad: true };
        };
        let mut text = format!("{} (issuer {}, {directory}):\n", order.names(), order.issuer.name);
        let mut is_bad = false;
        if let Some(error) = json.get("error").and_then(Value::as_str) {
            let _ = writeln!(text, "  failed: {error}");
            is_bad = true;
        }
        for (name, failure) in json.get("names").and_then(Value::as_object).into_iter().flatten() {
            match failure.as_str() {
                Some(why) => {
                    let _ = writeln!(text, "  {name}: {why}");
                    is_bad = true;
                }
                None => {
                    let _ = writeln!(text, "  {name}: ok");
                }
            }
        }
        Tested { text, is_bad }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_acme::{Identifier, Issuer, KeyKind};
    use std::sync::Arc;

    #[test]
    fn a_test_says_what_failed_and_why() {
        let identifiers = vec![Identifier::Dns("a".to_owned()), Identifier::Dns("b".to_owned())];
        let issuer = Arc::new(Issuer::new("ca", "https://x/"));
        let order = Order { issuer, identifiers, key: KeyKind::P256 };
        let of = |json: &str| {
            let tested = Tested::of(&order, Some(json));
            (tested.text, tested.is_bad)
        };
        let (text, is_bad) = of(r#"{"directory":"https://y/","names":{"a":null,"b":"closed"},"error":null}"#);
        assert_eq!((text.as_str(), is_bad), ("a,b (issuer ca, https://y/):\n  a: ok\n  b: closed\n", true));
        assert!(!of(r#"{"directory":"https://y/","names":{"a":null}}"#).1);
        assert!(of(r#"{"directory":"https://y/","names":{},"error":"down"}"#).0.contains("failed: down"));
        assert!(Tested::of(&order, None).is_bad);
    }

    #[test]
    fn the_days_that_are_left_are_counted_down() {
        let line = Line::expiring(1_800_000_000, 1_800_000_000 - 86_400 * 3 + 1, "/a");
        assert!(line.text.contains("2 days left, /a") && !line.is_bad, "{}", line.text);
        let line = Line::expiring(1_800_000_000, 1_800_000_000, "/a");
        assert!(line.text.starts_with("expired at 2027-01-15T08:00:00Z") && line.is_bad, "{}", line.text);
    }
}
