//! `time_format` (Angie): a variable with the time in a format of one's own.

use super::map::variable_name;
use crate::config::{Context, Scope};
use crate::vars::{Computed, Names, TimeFormat};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use std::sync::Arc;

/// Reads `time_format $name "format";`.
///
/// # Errors
/// If the name is no variable's or is taken, or a conversion is not known.
pub fn directive<C: Context>(d: &Directive, cx: &mut Scope<'_, C>) -> Result<(), Error> {
    let [name, format] = d.args.as_slice() else {
        return Err(cx.error(d, "invalid number of arguments in \"time_format\" directive"));
    };
    let name = variable_name(d, name, cx)?;
    let format = TimeFormat::new(&format.text).map_err(|unknown| {
        let letter = unknown.0.map(|b| char::from(b).to_string()).unwrap_or_default();
        cx.error_at(d, format, format!("unknown conversion \"%{letter}\" in \"time_format\""))
    })?;
    cx.vars.define_stored(name).map_err(|m| cx.error(d, m))?;
    cx.vars.define_computed(name, Computed::Time(Arc::new(format))).map_err(|m| cx.error(d, m))?;
    Ok(())
}
