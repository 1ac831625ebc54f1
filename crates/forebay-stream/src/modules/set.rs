//! `set` (nginx: ngx_stream_set_module).

use crate::config::Scope;
use crate::session::Session;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::blocks::map::variable_name;
use forebay_core::vars::{Evaluate, Names, Template, VarError, VarId};

/// One `set`.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    variable: VarId,
    value: Template,
}

/// Reads `set $VARIABLE VALUE`.
///
/// # Errors
/// In nginx's words.
pub(crate) fn parse(d: &Directive, cx: &mut Scope<'_>) -> Result<Assignment, Error> {
    let [name, value] = d.args.as_slice() else {
        return Err(cx.directive_error(d, "has an invalid number of arguments"));
    };
    let name = variable_name(d, name, cx)?;
    let variable = cx.vars.define_stored(name).map_err(|m| cx.error(d, m))?;
    Ok(Assignment { variable, value: cx.template(d, value)? })
}

/// Gives the variables their values, in order.
///
/// # Errors
/// If a value cannot be evaluated.
pub(crate) fn assign(s: &mut Session, assignments: &[Assignment]) -> Result<(), VarError> {
    for a in assignments {
        let value = a.value.value(s)?;
        s.store(a.variable, Some(&value));
    }
    Ok(())
}
