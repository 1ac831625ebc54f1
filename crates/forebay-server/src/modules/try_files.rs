//! `try_files` (nginx: ngx_http_try_files_module).

use crate::config::scope::Scope;
use crate::config::template::Template;
use crate::file_cache::Found;
use crate::modules::static_file;
use crate::phases::Outcome;
use crate::request::Request;
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
            Fallback::Status(
                code.ok_or_else(|| cx.error_at(d, last, format!("invalid code \"{}\"", last.as_str())))?,
            )
        }
        None => Fallback::Uri(cx.template(d, last)?),
    };
    Ok(TryFiles { names: tried, fallback })
}

/// Runs it. `None`: the file is there, the content handler goes on with the path found.
pub async fn run(req: &mut Request, t: &TryFiles) -> Option<Outcome> {
    let http = req.http();
    let root = &http.location(req).settings.core.root;
    for (name, dir) in &t.names {
        let mut uri = req.take_buf();
        if name.eval(req, &mut uri).is_err() {
            return Some(Outcome::Status(500));
        }
        let mut path = req.take_buf();
        let mapped = match root.alias {
            // Below an alias the name is taken as it stands behind the location's own.
            Some(_) => static_file::document_root(req, &mut path).map(|()| {
                let n = root.alias.flatten().unwrap_or(0);
                let rest = if uri.starts_with(http.location(req).name.as_slice()) {
                    uri.get(n..)
                } else {
                    Some(uri.as_slice())
                };
                path.extend_from_slice(rest.unwrap_or_default());
            }),
            None => static_file::map_uri(req, &uri, &mut path),
        };
        if mapped.is_err() {
            return Some(Outcome::Status(500));
        }
        if *dir && path.last() == Some(&b'/') {
            path.pop();
        }
        let found = static_file::open(req, &path).await;
        let hit = match found {
            Found::Dir => *dir,
            Found::File(_) | Found::Other => !*dir,
            Found::Error(_) => false,
        };
        req.give_buf(path);
        if hit {
            if *dir && uri.last() != Some(&b'/') {
                uri.push(b'/');
            }
            req.uri = uri;
            req.rewritten = true;
            return None;
        }
        req.give_buf(uri);
    }
    match &t.fallback {
        Fallback::Status(s) => Some(Outcome::Status(*s)),
        Fallback::Uri(target) => {
            let Ok(target) = target.value(req) else { return Some(Outcome::Status(500)) };
            if target.first() == Some(&b'@') {
                return Some(match crate::error_page::named(req, &target) {
                    Ok(()) => Outcome::Named,
                    Err(s) => Outcome::Status(s),
                });
            }
            let mut split = target.splitn(2, |b| *b == b'?');
            req.uri = split.next().unwrap_or_default().to_vec();
            if let Some(args) = split.next() {
                req.args = args.to_vec();
            }
            req.rewritten = true;
            Some(static_file::internal_redirect(req))
        }
    }
}
