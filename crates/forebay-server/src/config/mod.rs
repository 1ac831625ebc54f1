//! The http block, from the tree to immutable settings. What all front ends share is in [`forebay_core::config`].

pub mod http;
pub mod issued;
pub mod mime_types;
pub mod parts;
pub mod upstreams;

use crate::request::Request;
use forebay_conf::error::Error;
use forebay_conf::tree::Span;
use forebay_core::shared_store::{SharedStore, Stores};
use forebay_core::upstream::balance::Timed;

/// Context of the http block, for its settings and variables.
#[derive(Debug)]
pub struct HttpContext;

impl forebay_core::config::Context for HttpContext {
    const BLOCK: &'static str = "http";
    const TIMES: &'static [(&'static str, Timed)] =
        &[("header", Timed::Header), ("last_byte", Timed::LastByte)];
    type Eval = Request;
    type Tables = HttpTables;
}

/// State that the setters of the http block share.
pub type Scope<'a> = forebay_core::config::Scope<'a, HttpContext>;

/// Tables that directives of the http level fill and others refer to by name.
#[derive(Default)]
pub struct HttpTables {
    /// Log formats by name, in order of definition; index 0 is `combined`.
    pub log_formats: Vec<crate::access_log::Format>,
    /// Upstream groups, named and implied.
    pub upstreams: upstreams::Groups,
    /// Zones of `limit_conn`.
    pub conn_zones: forebay_core::limit::concurrency::ConnZones,
    /// `shared_store`, with the zones that use it.
    pub shared_store: SharedStore,
    /// Tables of modules.
    pub parts: parts::Parts,
    /// Number of effects of reading that cannot be repeated.
    pub unrepeatable: usize,
}

impl AsMut<forebay_core::limit::concurrency::ConnZones> for HttpTables {
    fn as_mut(&mut self) -> &mut forebay_core::limit::concurrency::ConnZones {
        &mut self.conn_zones
    }
}

impl Stores for HttpTables {
    fn shared_store(&mut self) -> Option<&mut SharedStore> {
        Some(&mut self.shared_store)
    }
}

impl HttpTables {
    /// Returns errors for names that something refers to and nothing defines. Errors about caches are placed at `end`, the end of the
    /// block, as in nginx.
    pub fn undefined(&mut self, end: Option<Span>) -> Vec<Error> {
        let checks = crate::module::list::all().iter().filter_map(|module| module.config.undefined);
        let mut errors: Vec<Error> = checks.flat_map(|undefined| undefined(self, end)).collect();
        errors.extend(self.shared_store.missing());
        errors
    }
}
