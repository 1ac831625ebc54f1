//! `map` (nginx: ngx_http_map_module). Hot path: a constant key is one hash lookup.

use crate::config::{Build, Context, Scope};
use crate::vars::{Computed, Map, Names};
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use std::sync::Arc;

/// Returns the name of the variable that a block defines, without its `$`.
///
/// # Errors
/// `invalid variable name "x"`.
pub fn variable_name<'w>(d: &Directive, w: &'w Word, cx: &Build<'_>) -> Result<&'w [u8], Error> {
    match w.text.as_slice() {
        [b'$', name @ ..] if !name.is_empty() => Ok(name),
        _ => Err(cx.error_at(d, w, format!("invalid variable name \"{}\"", w.as_str()))),
    }
}

/// Reads a `map` block.
///
/// # Errors
/// In nginx's words.
pub fn block<C: Context>(d: &Directive, cx: &mut Scope<'_, C>) -> Result<(), Error> {
    let [source, name] = d.args.as_slice() else {
        return Err(cx.error(d, "invalid number of arguments in \"map\" directive"));
    };
    let mut map = Map::new(cx.template(d, source)?);
    let name = variable_name(d, name, cx)?;
    cx.vars.define_stored(name).map_err(|m| cx.error(d, m))?;
    for line in d.block.iter().flatten() {
        entry(&mut map, line, cx)?;
    }
    map.prepare();
    cx.vars.define_computed(name, Computed::Map(Arc::new(map))).map_err(|m| cx.error(d, m))?;
    Ok(())
}

fn entry<C: Context>(map: &mut Map, d: &Directive, cx: &mut Scope<'_, C>) -> Result<(), Error> {
    let value = match (d.name.text.as_slice(), d.args.as_slice()) {
        (b"hostnames", []) => {
            map.hostnames = true;
            return Ok(());
        }
        (b"volatile", []) => {
            map.volatile = true;
            return Ok(());
        }
        (_, [value]) => cx.template(d, value)?,
        _ => return Err(cx.error(d, "invalid number of the map parameters")),
    };
    let index = map.value(value);
    match d.name.text.as_slice() {
        b"default" if map.default.is_some() => Err(cx.error(d, "duplicate default map parameter")),
        b"default" => {
            map.default = Some(index);
            Ok(())
        }
        [b'~', re @ ..] => {
            let (caseless, re) = re.strip_prefix(b"*").map_or((false, re), |re| (true, re));
            map.add_pattern(cx.pattern(d, re, caseless)?, index);
            Ok(())
        }
        key => {
            let key = key.strip_prefix(b"\\").unwrap_or(key).to_ascii_lowercase();
            let added =
                if map.hostnames { map.table.add_host(&key, index) } else { map.table.add(&key, index) };
            added.map_err(|refused| cx.error(d, refused.message(&key)))
        }
    }
}
