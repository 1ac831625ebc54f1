//! Output of a run, for people and programs.

pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod live;
pub(crate) mod text;

/// Quantiles that are shown.
pub(crate) const QUANTILES: [f64; 7] = [0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999];

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
