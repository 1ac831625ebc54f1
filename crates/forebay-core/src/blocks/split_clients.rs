//! `split_clients` (nginx: ngx_http_split_clients_module). Hot path.

use super::map::variable_name;
use crate::config::{Context, Scope};
use crate::vars::{Computed, Names, Share, Split};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use std::sync::Arc;

/// Reads a `split_clients` block.
///
/// # Errors
/// In nginx's words.
pub fn block<C: Context>(d: &Directive, cx: &mut Scope<'_, C>) -> Result<(), Error> {
    let [source, name] = d.args.as_slice() else {
        return Err(cx.error(d, "invalid number of arguments in \"split_clients\" directive"));
    };
    let source = cx.template(d, source)?;
    let name = variable_name(d, name, cx)?;
    cx.vars.define_stored(name).map_err(|m| cx.error(d, m))?;
    let mut parts = Vec::new();
    // In hundredths of a percent. `*` counts as all of the rest, so nothing may follow it.
    let mut total = 0u32;
    let mut rest = false;
    for entry in d.block.iter().flatten() {
        let value: Box<[u8]> = entry.args.first().map_or(b"".as_slice(), |w| &w.text).into();
        if entry.name.text == b"*" {
            rest = true;
            parts.push(Share { below: None, value });
            continue;
        }
        let Some(share) = percent(&entry.name.text).filter(|n| *n > 0) else {
            let message = format!("invalid percent value \"{}\"", entry.name.as_str());
            return Err(cx.error(entry, message));
        };
        total = total.saturating_add(share);
        if rest || total > 10_000 {
            return Err(cx.error(entry, "percent total is greater than 100%"));
        }
        let below = u64::from(total) * u64::from(u32::MAX) / 10_000;
        parts.push(Share { below: Some(u32::try_from(below).unwrap_or(u32::MAX)), value });
    }
    cx.vars
        .define_computed(name, Computed::Split(Arc::new(Split { source, parts })))
        .map_err(|m| cx.error(d, m))?;
    Ok(())
}

/// Reads a percentage such as `12.5%`. Returns it in hundredths of a percent.
fn percent(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text.strip_suffix(b"%")?).ok()?;
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    if (whole.is_empty() && part.is_empty()) || part.len() > 2 || !digits(whole) || !digits(part) {
        return None;
    }
    let whole: u32 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let part: u32 = format!("{part:0<2}").parse().ok()?;
    whole.checked_mul(100)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents() {
        for (text, want) in [
            ("50%", Some(5000)),
            ("0.5%", Some(50)),
            (".5%", Some(50)),
            ("33.33%", Some(3333)),
            ("60.123%", None),
            ("60", None),
            ("%", None),
            (".%", None),
            ("a%", None),
            ("99999999999%", None),
        ] {
            assert_eq!(percent(text.as_bytes()), want, "{text}");
        }
    }
}
