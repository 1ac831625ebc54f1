//! `error_log_tag` (NGINX Plus 37): further facts in lines about requests.

use crate::config::{HttpContext, Scope};
use crate::request::Request;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::Setting;
use forebay_core::log::json::is_tag_name;
use forebay_core::vars::Template;
use std::cell::Cell;
use std::sync::Arc;

/// Longest value of a tag, bytes. A longer one is cut.
const LONGEST: usize = 512;

/// Tags of a level.
#[derive(Clone, Debug, Default)]
pub struct ErrorLogTags(Arc<Vec<(String, Template)>>);

/// Names and values of the tags of a line.
pub(super) type Tags = Vec<(String, Vec<u8>)>;

impl Setting<HttpContext> for ErrorLogTags {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut tags = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        let [name, value] = d.args.as_slice() else {
            return Err(cx.error(d, "invalid number of arguments in \"error_log_tag\" directive"));
        };
        let text = name.as_str().into_owned();
        if !is_tag_name(&name.text) {
            return Err(cx.error_at(d, name, format!("invalid name of a tag \"{text}\"")));
        }
        if tags.iter().any(|(other, _)| *other == text) {
            return Err(cx.error_at(d, name, format!("duplicate tag \"{text}\"")));
        }
        let value = Template::compile(&value.text, &mut cx.vars).map_err(|m| cx.error_at(d, value, m))?;
        tags.push((text, value));
        Ok(ErrorLogTags(Arc::new(tags)))
    }
}

thread_local! {
    /// The values of tags are being found out. A variable may write a line of its own meanwhile.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Returns the tags of a request with their values. One whose value cannot be found out is empty.
pub(super) fn of(req: &mut Request) -> Tags {
    let location = req.conf.http.level(req.server, req.location);
    let Some(tags) = location.map(|l| l.settings.log.error_log_tag.0.clone()).filter(|tags| !tags.is_empty())
    else {
        return Tags::new();
    };
    if BUSY.replace(true) {
        return Tags::new();
    }
    let mut value = |(name, template): &(String, Template)| {
        let mut value = Vec::new();
        if template.eval(req, &mut value).is_err() {
            value.clear();
        }
        value.truncate(LONGEST);
        (name.clone(), value)
    };
    let values = tags.iter().map(&mut value).collect();
    BUSY.set(false);
    values
}
