//! `try_files` (nginx: ngx_http_try_files_module).

use crate::config::Scope;
use crate::file_cache::Found;
use crate::modules::static_file;
use crate::phases::Outcome;
use crate::request::Request;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_core::vars::Template;
use forebay_core::vars::VarError;
use rustix::io::Errno;

/// Last parameter, for the case that no file was found.
#[derive(Clone, Debug)]
pub(crate) enum Fallback {
    /// `=404`.
    Status(u16),
    /// A URI, with its query, or a named location.
    Uri(Template),
}

/// `try_files`.
#[derive(Clone, Debug)]
pub(crate) struct TryFiles {
    /// Names to try in order; `true` for a directory (the name ends in a slash).
    pub names: Vec<(Template, bool)>,
    /// Next step if none of them exists.
    pub fallback: Fallback,
}

/// Reads the directive.
///
/// # Errors
/// In nginx's words.
pub(crate) fn parse(d: &Directive, duplicate: bool, cx: &mut Scope<'_>) -> Result<TryFiles, Error> {
    if duplicate {
        return Err(cx.error(d, "\"try_files\" directive is duplicate"));
    }
    let Some((last, names)) = d.args.split_last() else { return Err(cx.error(d, "no arguments")) };
    let mut tried = Vec::new();
    for w in names {
        let path = w.text.strip_suffix(b"/");
        let word = Word { text: path.unwrap_or(&w.text).to_vec(), ..w.clone() };
        tried.push((cx.template(d, &word)?, path.is_some()));
    }
    Ok(TryFiles { names: tried, fallback: fallback(d, last, cx)? })
}

/// Reads the last parameter.
fn fallback(d: &Directive, w: &Word, cx: &mut Scope<'_>) -> Result<Fallback, Error> {
    let Some(code) = w.text.strip_prefix(b"=") else { return cx.template(d, w).map(Fallback::Uri) };
    match units::number(code).and_then(|n| u16::try_from(n).ok()) {
        Some(code @ ..=999) => Ok(Fallback::Status(code)),
        _ => Err(cx.error_at(d, w, format!("invalid code \"{}\"", w.as_str()))),
    }
}

/// Tries the names. Returns `None` if one exists, which then is the path for the content handler.
pub(crate) async fn run(req: &mut Request, t: &TryFiles) -> Option<Outcome> {
    for (name, dir) in &t.names {
        match try_name(req, name, *dir).await {
            Ok(true) => return None,
            Ok(false) => {}
            Err(status) => return Some(Outcome::Status(status)),
        }
    }
    Some(fall_back(req, &t.fallback))
}

/// Looks for a file, or for a directory if `dir` is set.
async fn exists(req: &mut Request, path: &[u8], dir: bool) -> bool {
    match static_file::open(req, path).await {
        Found::Dir => dir,
        Found::File(_) | Found::Other => !dir,
        Found::Error(e) => {
            report(req, path, e);
            false
        }
    }
}

/// Takes a name if it exists. Returns `false` if it does not; the error is the status to answer with.
async fn try_name(req: &mut Request, name: &Template, dir: bool) -> Result<bool, u16> {
    let mut text = req.take_buf();
    let mut path = req.take_buf();
    let constant = name.as_const().is_some();
    if name.eval(req, &mut text).is_err() || map(req, &text, constant, &mut path).is_err() {
        return Err(500);
    }
    if dir && path.len() > 1 && path.last() == Some(&b'/') {
        path.pop();
    }
    let hit = exists(req, &path, dir).await;
    req.give_buf(path);
    if hit {
        accept(req, text, constant, dir);
    } else {
        req.give_buf(text);
    }
    Ok(hit)
}

/// Goes on where no name exists.
fn fall_back(req: &mut Request, fallback: &Fallback) -> Outcome {
    let target = match fallback {
        Fallback::Status(s) => return Outcome::Status(*s),
        Fallback::Uri(target) => target.value(req),
    };
    let Ok(target) = target else { return Outcome::Status(500) };
    if target.first() == Some(&b'@') {
        // A response that was handed on may have set the type: keep it for the named location.
        let kind = std::mem::take(&mut req.resp.content_type);
        return match crate::error_page::named(req, &target) {
            Ok(()) => {
                req.resp.content_type = kind;
                Outcome::Named
            }
            Err(s) => Outcome::Status(s),
        };
    }
    let mut split = target.splitn(2, |b| *b == b'?');
    req.uri = split.next().unwrap_or_default().to_vec();
    req.args = split.next().unwrap_or_default().to_vec();
    req.rewritten = true;
    static_file::internal_redirect(req)
}

/// Logs that a file cannot be opened, unless it is missing or not accessible.
fn report(req: &mut Request, path: &[u8], e: Errno) {
    if matches!(e, Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::NAMETOOLONG) {
        return;
    }
    let (call, text) = (static_file::open_call(req), String::from_utf8_lossy(path).into_owned());
    req.log(Level::Crit, &format!("{call} \"{text}\" failed {}", forebay_sys::errno::errno_text(e)));
}

/// Returns the part of a name after the name of a location with `alias`. As in nginx, a constant name is taken whole.
fn below_alias<'n>(req: &Request, name: &'n [u8], constant: bool, taken: usize) -> &'n [u8] {
    match (name.get(taken..), req.uri.get(..taken)) {
        (Some(rest), Some(location)) if !constant && name.starts_with(location) => rest,
        _ => name,
    }
}

/// Appends the file name for a name. With `alias`, the location's name is removed first.
fn map(req: &mut Request, name: &[u8], constant: bool, out: &mut Vec<u8>) -> Result<(), VarError> {
    let http = req.http();
    match http.location(req).settings.core.root.alias {
        None => static_file::map_uri(req, name, out),
        Some(taken) => {
            static_file::alias_applies(req)?;
            static_file::document_root(req, out)?;
            out.extend_from_slice(below_alias(req, name, constant, taken.unwrap_or(0)));
            Ok(())
        }
    }
}

/// Makes the name that was found the path of the request. An upstream still gets the path that the client sent, since nothing was
/// redirected.
fn accept(req: &mut Request, name: Vec<u8>, constant: bool, dir: bool) {
    let http = req.http();
    match http.location(req).settings.core.root.alias {
        None => req.uri = name,
        Some(None) if dir => {}
        Some(None) => {
            req.uri = name;
            req.add_uri_to_alias = true;
        }
        Some(Some(taken)) => {
            let rest = below_alias(req, &name, constant, taken).to_vec();
            req.uri.truncate(taken);
            req.uri.extend_from_slice(&rest);
        }
    }
}
