//! `index` (nginx: ngx_http_index_module).

use crate::config::Scope;
use crate::module::Module;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::Setting;
use forebay_core::vars::Template;
use std::sync::Arc;

crate::module_settings! {
    /// `index`: names tried for a path that ends in a slash.
    "index" => names: IndexNames = IndexNames::default();
}

/// `index`.
pub static MODULE: Module = Module { settings: &[&SETTINGS], ..Module::NONE };

/// Index names in order.
#[derive(Clone, Debug)]
pub struct IndexNames(pub Arc<Vec<Template>>);

impl Default for IndexNames {
    fn default() -> Self {
        IndexNames(Arc::new(vec![Template::constant(b"index.html")]))
    }
}

impl Setting<crate::config::HttpContext> for IndexNames {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut names = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        for (i, w) in d.args.iter().enumerate() {
            if w.text.is_empty() {
                return Err(cx.error_at(d, w, "index \"\" in \"index\" directive is invalid"));
            }
            // nginx warns in the same words: names after an absolute one are never tried, since it is a redirect.
            if w.text.starts_with(b"/") && i + 1 != d.args.len() {
                cx.warn(d, "only the last index in \"index\" directive should be absolute");
            }
            names.push(cx.template(d, w)?);
        }
        Ok(IndexNames(Arc::new(names)))
    }
}
