//! Lists of content types, as `charset_types` and similar directives have them.

use super::Scope;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::Setting;
use std::sync::Arc;

/// Content types that a filter works on.
#[derive(Clone, Debug)]
pub enum MimeTypes {
    /// `*`.
    All,
    /// Types in lower case; `text/html` is always among them.
    These(Arc<Vec<Vec<u8>>>),
}

impl MimeTypes {
    /// Makes the list for levels without the directive.
    pub fn of(types: &[&str]) -> MimeTypes {
        MimeTypes::These(Arc::new(types.iter().map(|t| t.as_bytes().to_vec()).collect()))
    }

    /// Returns `true` if a content type, without its parameters, is in the list. Case does not count.
    pub fn contains(&self, content_type: &[u8]) -> bool {
        match self {
            MimeTypes::All => true,
            MimeTypes::These(list) => list.iter().any(|t| t.eq_ignore_ascii_case(content_type)),
        }
    }
}

impl Setting<crate::config::HttpContext> for MimeTypes {
    fn take(previous: Option<Self>, d: &Directive, _: &mut Scope<'_>) -> Result<Self, Error> {
        let mut list = match previous {
            Some(MimeTypes::All) => return Ok(MimeTypes::All),
            Some(MimeTypes::These(list)) => list.as_ref().clone(),
            // nginx adds this type to every list, whatever the directive says.
            None => vec![b"text/html".to_vec()],
        };
        for w in &d.args {
            if w.text == b"*" {
                return Ok(MimeTypes::All);
            }
            let text = w.text.to_ascii_lowercase();
            // Duplicates have been warned about when the file was checked.
            if !list.contains(&text) {
                list.push(text);
            }
        }
        Ok(MimeTypes::These(Arc::new(list)))
    }
}
