//! `num_map` (nginx: ngx_http_num_map_module): a variable by the number that another one has.

use super::map::variable_name;
use crate::config::{Context, Scope};
use crate::vars::{Computed, Names, NumMap};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Reads a `num_map` block.
///
/// # Errors
/// In nginx's words where it has them.
pub fn block<C: Context>(d: &Directive, cx: &mut Scope<'_, C>) -> Result<(), Error> {
    // nginx takes the variable alone, too, but says nowhere which number counts then.
    let [source, name] = d.args.as_slice() else {
        return Err(cx.error(d, "invalid number of arguments in \"num_map\" directive"));
    };
    let source = cx.vars.reference(variable_name(d, source, cx)?);
    let name = variable_name(d, name, cx)?;
    cx.vars.define_stored(name).map_err(|m| cx.error(d, m))?;
    let mut map = NumMap::new(source);
    for line in d.block.iter().flatten() {
        entry(&mut map, line, cx)?;
    }
    cx.vars.define_computed(name, Computed::Number(Arc::new(map))).map_err(|m| cx.error(d, m))?;
    Ok(())
}

fn entry<C: Context>(map: &mut NumMap, d: &Directive, cx: &mut Scope<'_, C>) -> Result<(), Error> {
    let value = match (d.name.text.as_slice(), d.args.as_slice()) {
        (b"volatile", []) => {
            map.volatile = true;
            return Ok(());
        }
        (_, [value]) => cx.template(d, value)?,
        _ => return Err(cx.error(d, "invalid number of the num_map parameters")),
    };
    if d.name.text == b"default" {
        if map.default.replace(value).is_some() {
            return Err(cx.error(d, "duplicate default num_map parameter"));
        }
        return Ok(());
    }
    let Some(numbers) = range(&d.name.text) else {
        return Err(cx.error(d, format!("invalid number or range \"{}\"", d.name.as_str())));
    };
    map.add(numbers, value).map_err(|_| cx.error(d, format!("conflicting parameter \"{}\"", d.name.as_str())))
}

/// Reads a number (`80`), a range of two (`8080-8090`), or a bound (`<=1023`, `>1023`).
pub fn range(text: &[u8]) -> Option<RangeInclusive<u64>> {
    match text {
        [b'<', b'=', rest @ ..] => Some(0..=number(rest)?),
        [b'>', b'=', rest @ ..] => Some(number(rest)?..=u64::MAX),
        [b'<', rest @ ..] => Some(0..=number(rest)?.checked_sub(1)?),
        [b'>', rest @ ..] => Some(number(rest)?.checked_add(1)?..=u64::MAX),
        _ => {
            let mut ends = text.splitn(2, |b| *b == b'-');
            let first = number(ends.next()?)?;
            let last = ends.next().map_or(Some(first), number)?;
            (first <= last).then_some(first..=last)
        }
    }
}

/// Reads a number of digits alone.
pub fn number(text: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(text).ok()?;
    if digits.starts_with('+') { None } else { digits.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        for (text, want) in [
            ("80", Some(80..=80)),
            ("0-0", Some(0..=0)),
            ("8080-8090", Some(8080..=8090)),
            ("<=1023", Some(0..=1023)),
            ("<1", Some(0..=0)),
            ("<0", None),
            (">=5", Some(5..=u64::MAX)),
            (">5", Some(6..=u64::MAX)),
            (">18446744073709551615", None),
            ("9-8", None),
            ("1-2-3", None),
            ("-1", None),
            ("+1", None),
            ("1-", None),
            ("", None),
            ("<", None),
            ("1x", None),
            ("18446744073709551616", None),
        ] {
            assert_eq!(range(text.as_bytes()), want, "{text}");
        }
    }
}
