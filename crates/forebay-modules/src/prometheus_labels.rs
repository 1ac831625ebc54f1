//! `prometheus_labels`: the labels by which requests are counted for `prometheus`.

use crate::metrics::labelled;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::{Setting, once};
use forebay_core::vars::Template;
use forebay_server::config::Scope;
use forebay_server::module::{LogHook, Module};
use forebay_server::request::Request;
use std::sync::Arc;

forebay_server::module_settings! {
    /// `prometheus_labels`: empty if requests are not counted by labels.
    "prometheus_labels" => labels: Labels = Labels::default();
}

/// `prometheus_labels`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    log: Some(LogHook {
        enabled: |s| !SETTINGS.of(s).labels.is_empty(),
        concerns: |_| true,
        hook: labelled::count,
    }),
    ..Module::NONE
};

/// Labels that every series has, and that the directive therefore cannot set.
const BUILT_IN: [&str; 3] = ["le", "method", "status"];
/// Longest value of a label, bytes. A longer one is cut.
const LONGEST: usize = 200;

/// Names and values of `prometheus_labels`.
#[derive(Clone, Debug, Default)]
pub struct Labels(Arc<Vec<(String, Template)>>);

impl Labels {
    /// Returns `true` if requests are not counted by labels.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends the labels of a request, each as `name=value` and a NUL. A value that cannot be found out is empty.
    pub fn append(&self, req: &mut Request, out: &mut Vec<u8>) {
        let mut value = req.take_buf();
        for (name, template) in self.0.iter() {
            value.clear();
            if template.eval(req, &mut value).is_err() {
                value.clear();
            }
            // Values may come from clients, and the table keeps each different one.
            value.truncate(LONGEST);
            // A NUL ends a label in the key of a series, so no value may have one.
            value.retain(|b| *b != 0);
            out.extend_from_slice(name.as_bytes());
            out.push(b'=');
            out.extend_from_slice(&value);
            out.push(0);
        }
        req.give_buf(value);
    }
}

/// Returns the name of a label if it is one (Prometheus: letters, digits and underscores, no digit at first, not two underscores).
pub fn label_name(text: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(text).ok()?;
    let is_letter = |b: u8| b.is_ascii_alphabetic() || b == b'_';
    let is_name = name.bytes().next().is_some_and(is_letter)
        && name.bytes().all(|b| is_letter(b) || b.is_ascii_digit())
        && !name.starts_with("__");
    is_name.then_some(name)
}

impl Setting<forebay_server::config::HttpContext> for Labels {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        if let [only] = d.args.as_slice()
            && only.text == b"off"
        {
            return Ok(Labels::default());
        }
        let mut labels: Vec<(String, Template)> = Vec::new();
        for w in &d.args {
            let invalid = || cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str()));
            let at = w.text.iter().position(|b| *b == b'=').ok_or_else(invalid)?;
            let (name, value) = w.text.split_at(at);
            let name =
                label_name(name).filter(|name| !BUILT_IN.contains(name)).ok_or_else(invalid)?.to_owned();
            if labels.iter().any(|(known, _)| *known == name) {
                return Err(cx.error_at(d, w, format!("duplicate label \"{name}\"")));
            }
            let value = value.get(1..).unwrap_or_default();
            let value = Template::compile(value, &mut cx.vars).map_err(|m| cx.error_at(d, w, m))?;
            labels.push((name, value));
        }
        Ok(Labels(Arc::new(labels)))
    }
}
