//! `keyval` and `keyval_zone`: variables by keys in a database that the API changes (nginx: ngx_http_keyval_module). The database is
//! in `forebay_core::keyval`, the API in `metrics/keyvals.rs`.

use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::{Context, plain};
use forebay_core::keyval::{Zones, directives};
use forebay_server::config::http::Http;
use forebay_server::config::{HttpContext, HttpTables, Scope};
use forebay_server::module::{ConfigHooks, Module};

/// `keyval`.
pub static MODULE: Module = Module {
    http_directives: &[("keyval", variable), ("keyval_zone", zone)],
    config: ConfigHooks {
        undefined: Some(|tables, _| {
            let zones = tables.parts.get::<Zones>();
            zones.and_then(Zones::undefined).map(|message| plain(&message)).into_iter().collect()
        }),
        finish: Some(|tables, parts| {
            if let Some(zones) = tables.parts.get::<Zones>() {
                *parts.get_mut() = zones.clone();
            }
        }),
        ..ConfigHooks::NONE
    },
    prepare: Some(|http| of_http(http).prepare(HttpContext::BLOCK)),
    begin: Some(|b| of_http(b.http).start(&mut b.tasks, &b.outside.tokio, b.log)),
    ended: Some(|http, log| of_http(http).tend(log)),
    ..Module::NONE
};

/// Returns the zones of an http block.
fn of_http(http: &Http) -> Zones {
    http.parts.get::<Zones>().cloned().unwrap_or_default()
}

fn tables(tables: &mut HttpTables) -> &mut Zones {
    tables.parts.get_mut()
}

fn variable(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    directives::variable(d, cx, tables)
}

fn zone(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    directives::zone(d, cx, tables)
}
