//! Output of a run, for people and programs.

pub(crate) mod colour;
pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod live;
pub(crate) mod text;

/// Quantiles that are shown.
pub(crate) const QUANTILES: [f64; 7] = [0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999];

/// Returns `true` if a quantile of so many values says something: with fewer than ten values above it, it is chance.
pub(crate) fn is_known(q: f64, values: f64) -> bool {
    q <= 0.5 || values * (1.0 - q) >= 9.999
}

/// Formats a quantile as a percentage: `50`, `99.9`.
pub(crate) fn percent(q: f64) -> String {
    let text = format!("{:.4}", q * 100.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats bytes for people: `1.23 MB`.
pub(crate) fn bytes_text(bytes: f64) -> String {
    match bytes {
        b if b < 1024.0 => format!("{b:.0} B"),
        b if b < 1048576.0 => format!("{:.2} KB", b / 1024.0),
        b if b < 1073741824.0 => format!("{:.2} MB", b / 1048576.0),
        b => format!("{:.2} GB", b / 1073741824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_need_values_above_them() {
        for (q, values, known) in [
            (0.5, 1.0, true),
            (0.9, 99.0, false),
            (0.9, 100.0, true),
            (0.99, 999.0, false),
            (0.999, 1e4, true),
        ] {
            assert_eq!(is_known(q, values), known, "{q} of {values}");
        }
    }
}
