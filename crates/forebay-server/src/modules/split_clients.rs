//! `split_clients` (nginx: ngx_http_split_clients_module). Hot path.

use crate::config::Scope;
use crate::modules::map::variable_name;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::vars::{Computed, Names, Share, Split};
use std::sync::Arc;

/// Reads a `split_clients` block.
///
/// # Errors
/// In nginx's words.
pub fn block(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
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
    use crate::testing;

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

    #[test]
    fn parts() {
        let mut req = testing::request(
            "split_clients $arg_a $x { 30% one; 20.5% two; * rest; } split_clients $arg_a $y { 0.01% y; }",
            "",
        );
        let mut counts = std::collections::BTreeMap::new();
        for i in 0..10_000 {
            testing::again(&mut req, &format!("a={i}"));
            *counts.entry(testing::value(&mut req, "x").expect("always one")).or_insert(0) += 1;
        }
        let near = |name: &str, want: i32| (counts.get(name).copied().unwrap_or(0) - want).abs() < 300;
        assert!(near("one", 3000) && near("two", 2050) && near("rest", 4950), "{counts:?}");
        assert_eq!(testing::value(&mut req, "y"), None);
    }

    #[test]
    fn errors() {
        for (conf, want) in [
            ("split_clients $uri x { * 1; }", "invalid variable name \"x\""),
            ("split_clients $uri $x { 60% 1; 50% 2; }", "percent total is greater than 100%"),
            ("split_clients $uri $x { * 1; 50% 2; }", "percent total is greater than 100%"),
            ("split_clients $uri $x { 0% 1; }", "invalid percent value \"0%\""),
        ] {
            assert_eq!(testing::error(conf).as_deref(), Some(want), "{conf}");
        }
    }
}
