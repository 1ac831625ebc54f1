//! `keyval` and `keyval_zone`: variables by keys in a database that the API changes (nginx: ngx_stream_keyval_module).

use crate::config::{Scope, Tables};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::keyval::{Zones, directives};

/// Reads `keyval`.
///
/// # Errors
/// In nginx's words.
pub(crate) fn variable(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    directives::variable(d, cx, tables)
}

/// Reads `keyval_zone`.
///
/// # Errors
/// In nginx's words, and for a state file that cannot be read.
pub(crate) fn zone(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    directives::zone(d, cx, tables)
}

fn tables(tables: &mut Tables) -> &mut Zones {
    &mut tables.keyvals
}
