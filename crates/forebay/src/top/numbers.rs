//! Numbers with units as text.

use serde_json::Value;

/// Shown where a number is unknown.
pub(super) const NONE: &str = "-";

/// Divides by `by` until the number is below it, and adds the unit of that step.
fn scaled(value: f64, units: &[&str], by: f64) -> String {
    let (mut value, mut at) = (value, 0);
    while value.abs() >= by && at + 1 < units.len() {
        (value, at) = (value / by, at + 1);
    }
    let unit = units.get(at).copied().unwrap_or_default();
    match value {
        v if v >= 100.0 || v.fract() == 0.0 => format!("{v:.0}{unit}"),
        v if v >= 10.0 => format!("{v:.1}{unit}"),
        v => format!("{v:.2}{unit}"),
    }
}

/// Returns a count, such as `12345` or `1.23M`.
pub(super) fn count(value: f64) -> String {
    if value.is_nan() {
        return NONE.to_owned();
    }
    if value.abs() < 1e5 { format!("{value:.0}") } else { scaled(value, &["", "k", "M", "G"], 1000.0) }
}

/// Returns a number for each second.
pub(super) fn rate(value: f64) -> String {
    match value {
        v if v.is_nan() => NONE.to_owned(),
        0.0 => "0".to_owned(),
        v if v < 10.0 => format!("{v:.1}"),
        v => count(v),
    }
}

/// Returns a number of bytes.
pub(super) fn bytes(value: f64) -> String {
    if value.is_nan() { NONE.to_owned() } else { scaled(value, &["B", "kB", "MB", "GB", "TB"], 1000.0) }
}

/// Returns a time given in milliseconds.
pub(super) fn ms(value: f64) -> String {
    match value {
        v if v.is_nan() => NONE.to_owned(),
        v if v < 1.0 => format!("{:.0}µs", v * 1000.0),
        v if v < 1000.0 => scaled(v, &["ms"], f64::INFINITY),
        v => scaled(v / 1000.0, &["s"], f64::INFINITY),
    }
}

/// Returns a share of 0 to 100.
pub(super) fn percent(value: f64) -> String {
    match value {
        v if v.is_nan() => NONE.to_owned(),
        v if v == 0.0 || v >= 99.95 => format!("{v:.0}%"),
        v => format!("{v:.1}%"),
    }
}

/// Returns a number of a value; NaN if it is none.
pub(super) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

/// Returns the numbers of a list; 0 for what is none.
pub(super) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().map(|all| all.iter().map(|v| v.as_f64().unwrap_or(0.0)).collect()).unwrap_or_default()
}

/// Returns text without what would control a terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if forebay_sys::printable::is_hidden(c) { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!([count(99_999.0), count(1_234_567.0)], ["99999", "1.23M"]);
        assert_eq!([rate(0.0), rate(0.5), rate(12.0), rate(f64::NAN)], ["0", "0.5", "12", "-"]);
        assert_eq!([bytes(999.0), bytes(1500.0), bytes(2e13)], ["999B", "1.50kB", "20TB"]);
        assert_eq!([ms(0.12), ms(3.456), ms(12_300.0)], ["120µs", "3.46ms", "12.3s"]);
        assert_eq!([percent(0.0), percent(1.25), percent(100.0)], ["0%", "1.2%", "100%"]);
    }

    #[test]
    fn text_controls_no_terminal() {
        assert_eq!(printable("a\x1b[31m\n"), "a?[31m?");
    }
}
