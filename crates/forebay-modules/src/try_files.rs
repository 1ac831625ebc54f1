//! `try_files` (nginx: ngx_http_try_files_module).

use forebay_conf::error::{Error, Level};
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_core::vars::Template;
use forebay_core::vars::VarError;
use forebay_server::config::Scope;
use forebay_server::file_cache::Found;
use forebay_server::module::{Directives, Module, Phase, PhaseHook, SettingsOf, Step, Verdict};
use forebay_server::modules::static_file;
use forebay_server::request::Request;
use rustix::io::Errno;
use std::sync::Arc;

/// `try_files`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    hooks: &[PhaseHook::new(Phase::PreContent, |s| SETTINGS.of(s).0.is_some(), run)],
    ..Module::NONE
};

/// The directive of a level.
#[derive(Clone, Debug, Default)]
pub struct Written(Option<Arc<TryFiles>>);

/// The directive in effect.
pub type Settings = Written;

/// Settings of this module.
pub static SETTINGS: SettingsOf<Written> = SettingsOf::new();

impl Directives for Written {
    type Settings = Settings;
    const DIRECTIVES: &'static [&'static str] = &["try_files"];
    const INHERITED: bool = false;

    fn set(&mut self, d: &Directive, cx: &mut Scope<'_>) -> Result<bool, Error> {
        self.0 = Some(Arc::new(parse(d, self.0.is_some(), cx)?));
        Ok(true)
    }

    fn inherit(&mut self, _: &Written) {}

    fn resolve(&self) -> Settings {
        self.clone()
    }
}

/// Last parameter, for the case that no file was found.
#[derive(Clone, Debug)]
enum Fallback {
    /// `=404`.
    Status(u16),
    /// A URI, with its query, or a named location.
    Uri(Template),
}

/// Parameters of `try_files`.
#[derive(Clone, Debug)]
struct TryFiles {
    /// Names to try in order; `true` for a directory (the name ends in a slash).
    names: Vec<(Template, bool)>,
    /// Next step if none of them exists.
    fallback: Fallback,
}

/// Reads the directive.
///
/// # Errors
/// In nginx's words.
fn parse(d: &Directive, duplicate: bool, cx: &mut Scope<'_>) -> Result<TryFiles, Error> {
    if duplicate {
        return Err(cx.error(d, "\"try_files\" directive is duplicate"));
    }
    let Some((last, names)) = d.args.split_last() else { return Err(cx.error(d, "no arguments")) };
    let mut tried = Vec::new();
    for w in names {
        // A slash at the end asks for a directory. The file system is asked without it.
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

/// Tries the names. Declines if one exists, which then is the path for the content handler.
fn run(req: &mut Request) -> Step<'_> {
    let http = req.http();
    let Some(t) = &SETTINGS.of(&http.location(req).settings).0 else { return Verdict::Declined.into() };
    for (at, (name, dir)) in t.names.iter().enumerate() {
        let candidate = match Candidate::of(req, name, *dir) {
            Ok(candidate) => candidate,
            Err(status) => return Verdict::Status(status).into(),
        };
        match static_file::open_without_wait(req, &candidate.path) {
            // A file that is found without a wait needs no future.
            Some(found) if candidate.is_hit(req, &found) => {
                candidate.accept(req);
                return Verdict::Declined.into();
            }
            Some(_) => candidate.give_back(req),
            None => return Step::later(wait_from(req, t.clone(), at, candidate)),
        }
    }
    fall_back(req, &t.fallback).into()
}

/// Tries the names from a number on. Opening the file of the first one takes a wait.
async fn wait_from(req: &mut Request, t: Arc<TryFiles>, at: usize, first: Candidate) -> Verdict {
    let mut next = Some(first);
    for (name, dir) in t.names.iter().skip(at) {
        let candidate = match next.take().map_or_else(|| Candidate::of(req, name, *dir), Ok) {
            Ok(candidate) => candidate,
            Err(status) => return Verdict::Status(status),
        };
        let found = static_file::open(req, &candidate.path).await;
        if candidate.is_hit(req, &found) {
            candidate.accept(req);
            return Verdict::Declined;
        }
        candidate.give_back(req);
    }
    fall_back(req, &t.fallback)
}

/// A name whose file is looked for.
struct Candidate {
    /// The name.
    text: Vec<u8>,
    /// File name for the name.
    path: Vec<u8>,
    /// The name has no variables.
    constant: bool,
    /// A directory is looked for.
    dir: bool,
}

impl Candidate {
    /// Evaluates a name.
    ///
    /// # Errors
    /// The status to answer with.
    fn of(req: &mut Request, name: &Template, dir: bool) -> Result<Candidate, u16> {
        let (text, path) = (req.take_buf(), req.take_buf());
        let mut candidate = Candidate { text, path, constant: name.as_const().is_some(), dir };
        let Candidate { text, path, constant, .. } = &mut candidate;
        if name.eval(req, text).is_err() || map(req, text, *constant, path).is_err() {
            return Err(500);
        }
        // The last variable of the name may end in a slash, and directories are looked up without one.
        if dir && path.len() > 1 && path.last() == Some(&b'/') {
            path.pop();
        }
        Ok(candidate)
    }

    /// Returns `true` if what was found is a file, or a directory if that is looked for.
    fn is_hit(&self, req: &mut Request, found: &Found) -> bool {
        match found {
            Found::Dir => self.dir,
            Found::File(_) | Found::Other => !self.dir,
            Found::Error(e) => {
                report(req, &self.path, *e);
                false
            }
        }
    }

    /// Makes the name the path of the request. An upstream still gets the path that the client sent, since nothing was redirected.
    fn accept(self, req: &mut Request) {
        req.give_buf(self.path);
        let (name, http) = (self.text, req.http());
        match http.location(req).settings.core.root.alias {
            None => req.uri.path = name,
            Some(None) if self.dir => {}
            Some(None) => {
                req.uri.path = name;
                req.uri.add_uri_to_alias = true;
            }
            Some(Some(taken)) => {
                let rest = below_alias(req, &name, self.constant, taken).to_vec();
                req.uri.path.truncate(taken);
                req.uri.path.extend_from_slice(&rest);
            }
        }
    }

    /// Gives the buffers back.
    fn give_back(self, req: &mut Request) {
        req.give_buf(self.path);
        req.give_buf(self.text);
    }
}

/// Goes on where no name exists.
fn fall_back(req: &mut Request, fallback: &Fallback) -> Verdict {
    let target = match fallback {
        Fallback::Status(s) => return Verdict::Status(*s),
        Fallback::Uri(target) => target.value(req),
    };
    let Ok(target) = target else { return Verdict::Status(500) };
    redirect(req, &target)
}

/// Redirects to a URI with its query, or to a named location.
pub(crate) fn redirect(req: &mut Request, target: &[u8]) -> Verdict {
    if target.first() == Some(&b'@') {
        // A response that was handed on may have set the type: keep it for the named location.
        let kind = std::mem::take(&mut req.resp.content_type);
        return match forebay_server::error_page::named(req, target) {
            Ok(()) => {
                req.resp.content_type = kind;
                Verdict::Named
            }
            Err(s) => Verdict::Status(s),
        };
    }
    req.uri.replace(target);
    static_file::internal_redirect(req).into()
}

/// Logs that a file cannot be opened. A file that is missing or not accessible is expected, and not logged.
fn report(req: &mut Request, path: &[u8], e: Errno) {
    if matches!(e, Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::NAMETOOLONG) {
        return;
    }
    let (call, text) = (static_file::open_call(req), String::from_utf8_lossy(path).into_owned());
    req.log(Level::Crit, &format!("{call} \"{text}\" failed {}", forebay_sys::errno::errno_text(e)));
}

/// Returns the part of a name after the name of a location with `alias`. As in nginx, a constant name is taken whole.
fn below_alias<'n>(req: &Request, name: &'n [u8], constant: bool, taken: usize) -> &'n [u8] {
    match (name.get(taken..), req.uri.path.get(..taken)) {
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
