//! `keyval` and `keyval_zone` (nginx: ngx_http_keyval_module, ngx_stream_keyval_module).

use super::{Definition, Kind, Lookup, Zones, state};
use crate::blocks::map::variable_name;
use crate::config::{Context, Scope};
use crate::keyval::Store;
use crate::limit::zones::name_and_size;
use crate::vars::{Computed, Names};
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use std::sync::Arc;
use std::time::Duration;

/// Function that returns the zones among the tables of a context.
pub type Tables<C> = fn(&mut <C as Context>::Tables) -> &mut Zones;

/// Use of the zones' names. A zone of the http block and one of stream may have the same name.
const USE: (&str, &str) = ("", "keyval");

/// Reads `keyval KEY $VARIABLE zone=NAME`.
///
/// # Errors
/// In nginx's words.
pub fn variable<C: Context>(d: &Directive, cx: &mut Scope<'_, C>, tables: Tables<C>) -> Result<(), Error> {
    let [key, name, zone] = d.args.as_slice() else {
        return Err(cx.directive_error(d, "has an invalid number of arguments"));
    };
    let key = cx.template(d, key)?;
    let name = variable_name(d, name, cx)?;
    let zone = match zone.text.strip_prefix(b"zone=") {
        Some(zone) if !zone.is_empty() => zone,
        _ => return Err(cx.error_at(d, zone, format!("invalid parameter \"{}\"", zone.as_str()))),
    };
    cx.share_zone(d, zone, USE, None)?;
    // The zone may be defined further below.
    let zone = tables(&mut cx.tables).find_or_promise(zone, C::BLOCK);
    cx.vars.define_stored(name).map_err(|m| cx.error(d, m))?;
    let lookup = Computed::Keyval(Arc::new(Lookup { key, zone }));
    cx.vars.define_computed(name, lookup).map_err(|m| cx.error(d, m))?;
    Ok(())
}

/// Reads `keyval_zone zone=NAME:SIZE [state=FILE] [timeout=TIME] [type=string|ip|prefix]`.
///
/// # Errors
/// In nginx's words, and for a state file that cannot be read.
pub fn zone<C: Context>(d: &Directive, cx: &mut Scope<'_, C>, tables: Tables<C>) -> Result<(), Error> {
    let mut definition =
        Definition { name: Vec::new(), size: 0, kind: Kind::String, timeout: None, state: None };
    for w in &d.args {
        parameter(&mut definition, w, d, cx)?;
    }
    if definition.name.is_empty() {
        return Err(cx.error(d, "\"keyval_zone\" must have \"zone\" parameter"));
    }
    check_state(&definition, d, cx)?;
    cx.share_zone(d, &definition.name, USE, None)?;
    let zone = tables(&mut cx.tables).find_or_promise(&definition.name, C::BLOCK);
    if zone.definition.set(definition).is_err() {
        let name = String::from_utf8_lossy(&zone.name);
        return Err(cx.error(d, format!("duplicate zone \"{name}\"")));
    }
    Ok(())
}

fn parameter<C: Context>(
    definition: &mut Definition,
    w: &Word,
    d: &Directive,
    cx: &Scope<'_, C>,
) -> Result<(), Error> {
    if let Some(zone) = name_and_size(d, w, cx)? {
        (definition.name, definition.size) = zone;
        return Ok(());
    }
    let invalid = |what: &str| cx.error_at(d, w, format!("invalid {what} \"{}\"", w.as_str()));
    if w.text == b"sync" {
        let what = "\"sync\" of \"keyval_zone\" is not supported: change the zone of each machine by its API";
        return Err(cx.error_at(d, w, what));
    }
    let at = memchr::memchr(b'=', &w.text).ok_or_else(|| invalid("parameter"))?;
    let (name, value) = w.text.split_at(at);
    match (name, value.get(1..).unwrap_or_default()) {
        (_, b"") => return Err(invalid("parameter")),
        (b"state", path) => definition.state = Some(cx.full_path(path)),
        (b"timeout", time) => {
            let time = units::time_ms(time).filter(|ms| *ms > 0).ok_or_else(|| invalid("timeout"))?;
            definition.timeout = Some(Duration::from_millis(time));
        }
        (b"type", b"string") => definition.kind = Kind::String,
        (b"type", b"ip") => definition.kind = Kind::Ip,
        (b"type", b"prefix") => definition.kind = Kind::Prefix,
        (b"type", _) => return Err(invalid("type")),
        _ => return Err(invalid("parameter")),
    }
    Ok(())
}

/// Tries the state file, so that one that is broken refuses the configuration.
fn check_state<C: Context>(definition: &Definition, d: &Directive, cx: &Scope<'_, C>) -> Result<(), Error> {
    let Some(path) = &definition.state else { return Ok(()) };
    // A zone of this name goes on with its records, and its file is not read.
    let goes_on = |z: &Arc<super::Zone>| z.name == definition.name && z.store().is_some();
    if super::zones(C::BLOCK).iter().any(goes_on) {
        return Ok(());
    }
    let read = state::load(path, definition.timeout).and_then(|pairs| {
        let store = Store::new(definition.kind, definition.size);
        store.fill(&pairs).map_err(|refused| state::misfit(refused).to_owned())
    });
    read.map_err(|reason| cx.error(d, format!("cannot load state file \"{}\" ({reason})", path.display())))
}
