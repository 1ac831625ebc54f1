//! `try_files` (nginx: ngx_http_try_files_module).

use crate::config::scope::Scope;
use crate::config::template::Template;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;

/// What follows when no file was found.
#[derive(Clone, Debug)]
pub enum Fallback {
    /// `=404`.
    Status(u16),
    /// A URI, with its query, or a named location.
    Uri(Template),
}

/// `try_files`.
#[derive(Clone, Debug)]
pub struct TryFiles {
    /// Names tried in order; `true`: a directory (ends in a slash).
    pub names: Vec<(Template, bool)>,
    /// Otherwise.
    pub fallback: Fallback,
}

/// Reads the directive.
///
/// # Errors
/// In nginx's words.
pub fn parse(d: &Directive, duplicate: bool, cx: &mut Scope<'_>) -> Result<TryFiles, Error> {
    if duplicate {
        return Err(cx.error(d, "\"try_files\" directive is duplicate"));
    }
    let Some((last, names)) = d.args.split_last() else { return Err(cx.error(d, "no arguments")) };
    let mut tried = Vec::new();
    for w in names {
        let (text, dir) = match w.text.split_last() {
            Some((b'/', rest)) if !rest.is_empty() => (rest.to_vec(), true),
            _ => (w.text.clone(), false),
        };
        let word = forebay_conf::tree::Word { text, ..w.clone() };
        tried.push((cx.template(d, &word)?, dir));
    }
    let fallback = match last.text.strip_prefix(b"=") {
        Some(code) => {
            let code = units::number(code).and_then(|n| u16::try_from(n).ok()).filter(|n| *n <= 999);
            Fallback::Status(code.ok_or_else(|| cx.error_at(d, last, format!("invalid code \"{}\"", last.as_str())))?)
        }
        None => Fallback::Uri(cx.template(d, last)?),
    };
    Ok(TryFiles { names: tried, fallback })
}
