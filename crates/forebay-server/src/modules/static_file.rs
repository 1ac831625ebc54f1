//! Files of a location: index and static content (nginx: ngx_http_static_module, ngx_http_index_module). Hot path.

use crate::file_cache::{self, Cached, Found, Opened, Policy};
use crate::memory_fs;
use crate::module::levels::LocationSettings;
use crate::modules::core::{Root, Settings as Core, SymlinkMode};
use crate::modules::index;
use crate::phases::{Outcome, spend_uri_change};
use crate::request::Request;
use crate::response::Part;
use crate::response::origin::AllowedRanges;
use crate::response::sent;
use crate::thread::Thread;
use crate::way;
use forebay_conf::error::Level;
use forebay_core::vars::{Template, VarError};
use forebay_http::request::Method;
use forebay_sys::errno::errno_text;
use rustix::io::Errno;
use std::rc::Rc;
use std::time::Duration;

impl Core {
    /// Returns the caching rules for files in this location.
    #[inline]
    pub fn policy(&self) -> Policy {
        Policy {
            cache: self.open_file_cache.0,
            valid: Duration::from_secs(self.open_file_cache_valid.0),
            min_uses: self.open_file_cache_min_uses.0,
            errors: self.open_file_cache_errors,
        }
    }
}

/// Appends the file name of the request's path (nginx: root, alias).
///
/// # Errors
/// If a variable in `root` cannot be evaluated, or `alias` does not apply, see [`alias_applies`].
pub fn map_path(req: &mut Request, out: &mut Vec<u8>) -> Result<(), VarError> {
    let uri = std::mem::take(&mut req.uri.path);
    let done = map_uri(req, &uri, out);
    req.uri.path = uri;
    done
}

/// Appends the file name of any path, otherwise like [`map_path`].
///
/// # Errors
/// As [`map_path`].
pub fn map_uri(req: &mut Request, uri: &[u8], out: &mut Vec<u8>) -> Result<(), VarError> {
    let http = req.http();
    let root = &http.location(req).settings.core.root;
    if root.alias.is_some() {
        alias_applies(req)?;
    }
    push_root(root, req, out)?;
    match root.alias {
        None => out.extend_from_slice(uri),
        // In a location with a regular expression the alias is the whole file name.
        Some(None) if !req.uri.add_uri_to_alias => {}
        Some(None) => out.extend_from_slice(uri),
        Some(Some(n)) => out.extend_from_slice(uri.get(n..).unwrap_or_default()),
    }
    Ok(())
}

/// Checks that the path still begins with the location's name, which `alias` replaces. After `rewrite ... break` it
/// need not.
///
/// # Errors
/// If the path was rewritten: the rest after the name's length could lead out of the directory.
pub fn alias_applies(req: &mut Request) -> Result<(), VarError> {
    if req.uri.valid_location {
        return Ok(());
    }
    let http = req.http();
    let name = String::from_utf8_lossy(&http.location(req).name).into_owned();
    let text = format!("\"alias\" cannot be used in location \"{name}\" where URI was rewritten");
    req.log(Level::Alert, &text);
    Err(VarError(text))
}

/// Appends `$document_root`.
///
/// # Errors
/// As [`map_path`].
pub fn document_root(req: &mut Request, out: &mut Vec<u8>) -> Result<(), VarError> {
    let http = req.http();
    push_root(&http.location(req).settings.core.root, req, out)
}

/// Appends the directory of a `root` or `alias`.
fn push_root(root: &Root, req: &mut Request, out: &mut Vec<u8>) -> Result<(), VarError> {
    // A directory without variables was made absolute when the configuration was read.
    if let Some(fixed) = &root.fixed {
        out.extend_from_slice(fixed);
        return Ok(());
    }
    if root.path.parts().is_empty() {
        out.extend_from_slice(&req.conf.http.default_root);
        return Ok(());
    }
    let start = out.len();
    root.path.eval(req, out)?;
    if out.get(start) != Some(&b'/') {
        let prefix = req.conf.config.prefix.clone();
        out.splice(start..start, prefix);
    }
    // The path that follows begins with a slash of its own.
    if root.alias.is_none() && out.len() > start && out.last() == Some(&b'/') {
        out.pop();
    }
    Ok(())
}

/// Returns the file name of the request, for messages.
pub fn path_text(req: &mut Request) -> String {
    let mut out = Vec::new();
    let _ = map_path(req, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Looks up a path and opens its file, by the settings of the request's location. Tries the cache first, then a lookup that does not wait
/// for the disk, then the blocking pool.
pub async fn open(req: &mut Request, path: &[u8]) -> Found {
    let http = req.http();
    let core = &http.location(req).settings.core;
    let found = match cached(core, req, path) {
        Cached::Hit(found) => found,
        Cached::Miss => open_anew(core, req, path).await,
    };
    way::file(req, path, &found);
    found
}

/// Looks up a path in the cache.
#[inline]
fn cached(core: &Core, req: &Request, path: &[u8]) -> Cached {
    // The cache does not know which links a path has passed.
    if core.disable_symlinks.mode != SymlinkMode::Off {
        return Cached::Miss;
    }
    let thread = &req.thread;
    thread.files.borrow_mut().get(path, &core.policy(), thread.clock.now(), req.tally.is_before_turn())
}

/// Looks up a path and opens its file, if that takes no wait.
pub fn open_without_wait(req: &mut Request, path: &[u8]) -> Option<Found> {
    let http = req.http();
    let core = &http.location(req).settings.core;
    if let Cached::Hit(found) = cached(core, req, path) {
        return Some(found);
    }
    if core.disable_symlinks.mode != SymlinkMode::Off || path.contains(&0) {
        return None;
    }
    let thread = req.thread.clone();
    let Opened::Found(found) = open_now(&thread, path) else { return None };
    let found = found.into();
    thread.files.borrow_mut().put(path, &found, &core.policy(), thread.clock.now());
    Some(found)
}

/// Opens a file that is not in the cache.
async fn open_anew(core: &Core, req: &mut Request, path: &[u8]) -> Found {
    if core.disable_symlinks.mode != SymlinkMode::Off {
        return crate::symlinks::open(req, path).await;
    }
    let policy = core.policy();
    let thread = req.thread.clone();
    let now = thread.clock.now();
    // The kernel would read the path only up to the NUL, and open another file.
    if path.contains(&0) {
        return Found::Error(Errno::NOENT);
    }
    let found = match open_now(&thread, path) {
        Opened::Found(f) => f.into(),
        Opened::WouldBlock => {
            let owned = path.to_vec();
            match tokio::task::spawn_blocking(move || file_cache::open(&owned)).await {
                Ok(f) => f.into(),
                Err(_) => Found::Error(Errno::IO),
            }
        }
    };
    thread.files.borrow_mut().put(path, &found, &policy, now);
    found
}

/// Opens a file without waiting for the disk. If descriptors have run out, the thread gives some up, and the pool tries again.
#[inline]
fn open_now(thread: &Thread, path: &[u8]) -> Opened {
    match file_cache::open_cached(path) {
        Opened::Found(file_cache::Inspected::Error(Errno::MFILE | Errno::NFILE)) if thread.shed() => {
            Opened::WouldBlock
        }
        Opened::WouldBlock if memory_fs::is_missing(path, thread.clock.now()) => {
            Opened::Found(file_cache::Inspected::Error(Errno::NOENT))
        }
        opened => opened,
    }
}

/// Tries the names of `index` in turn. Returns `None` if none of the files exists.
pub async fn index(req: &mut Request) -> Option<Outcome> {
    let http = req.http();
    let names = &index::SETTINGS.of(&http.location(req).settings).names;
    for (i, name) in names.0.iter().enumerate() {
        if let Some(out) = try_index(req, name, i == 0).await {
            return Some(out);
        }
    }
    None
}

/// Tries a name of `index`. Returns `None` if there is no such file.
async fn try_index(req: &mut Request, name: &Template, first: bool) -> Option<Outcome> {
    let mut text = req.take_buf();
    if name.eval(req, &mut text).is_err() {
        return Some(Outcome::Status(500));
    }
    // As in nginx, an absolute name in `index` is a path within the server, and no file name.
    if text.first() == Some(&b'/') {
        req.uri.path = text;
        return Some(internal_redirect(req));
    }
    let mut path = req.take_buf();
    if map_path(req, &mut path).is_err() {
        return Some(Outcome::Status(500));
    }
    let dir_len = path.len();
    path.extend_from_slice(&text);
    let out = match open(req, &path).await {
        // Any kind of entry ends the search: the content handler of the new path answers or refuses.
        Found::File(_) | Found::Dir | Found::Other => {
            req.uri.path.extend_from_slice(&text);
            Some(internal_redirect(req))
        }
        Found::Error(Errno::NOENT) if first => missing_dir(req, &path, dir_len).await,
        Found::Error(Errno::NOENT) => None,
        Found::Error(e) => Some(index_error(req, &path, e)),
    };
    req.give_buf(path);
    req.give_buf(text);
    out
}

/// Checks whether the directory exists. A missing one is 404 at once, not 403 after all names were tried.
async fn missing_dir(req: &mut Request, path: &[u8], dir_len: usize) -> Option<Outcome> {
    let dir = path.get(..dir_len).unwrap_or(path);
    let dir = dir.strip_suffix(b"/").filter(|d| !d.is_empty()).unwrap_or(dir);
    match open(req, dir).await {
        Found::Error(Errno::NOENT) => Some(index_error(req, path, Errno::NOENT)),
        Found::Error(Errno::ACCESS) => Some(index_error(req, path, Errno::ACCESS)),
        Found::Error(e) => Some(failed(req, dir, e, "stat()")),
        Found::File(_) | Found::Other => {
            let text = String::from_utf8_lossy(path).into_owned();
            req.log(Level::Alert, &format!("\"{text}\" is not a directory"));
            Some(Outcome::Status(500))
        }
        Found::Dir => None,
    }
}

/// Logs that an index file cannot be opened and returns the status.
fn index_error(req: &mut Request, path: &[u8], e: Errno) -> Outcome {
    let text = String::from_utf8_lossy(path).into_owned();
    match e {
        Errno::ACCESS => {
            req.log(Level::Error, &format!("\"{text}\" is forbidden {}", errno_text(e)));
            Outcome::Status(403)
        }
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => {
            log_missing(req, &format!("\"{text}\" is not found {}", errno_text(e)));
            Outcome::Status(404)
        }
        // `disable_symlinks` refused a link.
        Errno::LOOP => Outcome::Status(403),
        _ => failed(req, path, e, "open()"),
    }
}

fn log_missing(req: &mut Request, message: &str) {
    let http = req.http();
    if http.location(req).settings.core.log_not_found {
        req.log(Level::Error, message);
    }
}

/// Starts location lookup over with the path in `Request::uri`.
pub fn internal_redirect(req: &mut Request) -> Outcome {
    match spend_uri_change(req, "rewrite or internal redirection cycle while internally redirecting to") {
        Ok(()) => {
            req.uri.internal = true;
            Outcome::Redirect
        }
        Err(status) => Outcome::Status(status),
    }
}

/// Logs that a file cannot be opened and returns the status.
fn failed(req: &mut Request, path: &[u8], e: Errno, call: &str) -> Outcome {
    let (status, level) = match e {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => (404, Level::Error),
        Errno::ACCESS | Errno::LOOP | Errno::XDEV => (403, Level::Error),
        _ => (500, Level::Crit),
    };
    let http = req.http();
    if status == 404 && !http.location(req).settings.core.log_not_found {
        return Outcome::Status(status);
    }
    let call = if call == "open()" { open_call(req) } else { call };
    req.log_with(level, |out| push_failure(call, path, e, out));
    Outcome::Status(status)
}

/// Appends the line about a call that failed.
fn push_failure(call: &str, path: &[u8], e: Errno, out: &mut Vec<u8>) {
    for piece in [call.as_bytes(), b" \"", path, b"\" failed "] {
        out.extend_from_slice(piece);
    }
    match e {
        // Nearly all of these lines have this error, so its text is not formatted each time.
        Errno::NOENT => out.extend_from_slice(b"(2: No such file or directory)"),
        e => out.extend_from_slice(errno_text(e).as_bytes()),
    }
}

/// Returns the name of the call that opens files in this location, for messages.
pub fn open_call(req: &Request) -> &'static str {
    match req.own_location().settings.core.disable_symlinks.mode {
        SymlinkMode::Off => "open()",
        _ => "openat()",
    }
}

/// Answers with the file of the request's path (the static content handler), by the settings of its location.
pub async fn run(settings: &LocationSettings, req: &mut Request) -> Outcome {
    let mut path = req.take_buf();
    if map_path(req, &mut path).is_err() {
        return Outcome::Status(500);
    }
    // Most files are in the cache, where there is nothing to wait for.
    let found = match cached(&settings.core, req, &path) {
        Cached::Hit(found) => found,
        Cached::Miss => open_anew(&settings.core, req, &path).await,
    };
    let out = match found {
        // Static files take no POST, which nginx answers with 405 as well.
        Found::File(f) if req.method == Method::Post => {
            drop(f);
            Outcome::Status(405)
        }
        Found::File(f) => {
            match sent::ready(req, &f.made.heads) {
                Some(ready) => {
                    let end = f.size;
                    req.resp.status = 200;
                    sent::take_ready(req, ready, end, Part::File { file: f, start: 0, end });
                }
                None => serve(req, f),
            }
            Outcome::Done
        }
        Found::Dir => {
            redirect_to_dir(req);
            Outcome::Status(301)
        }
        Found::Other => {
            let text = String::from_utf8_lossy(&path).into_owned();
            req.log(Level::Crit, &format!("\"{text}\" is not a regular file"));
            Outcome::Status(404)
        }
        Found::Error(e) => failed(req, &path, e, "open()"),
    };
    req.give_buf(path);
    out
}

/// Sets `Location` to the path of a directory with its final slash.
fn redirect_to_dir(req: &mut Request) {
    let mut location = std::mem::take(&mut req.resp.location);
    location.clear();
    // The path is decoded, and `Location` needs it encoded.
    forebay_http::uri::escape(&req.uri.path, forebay_http::uri::Escape::Uri, &mut location);
    location.push(b'/');
    if !req.uri.args.is_empty() {
        location.push(b'?');
        location.extend_from_slice(&req.uri.args);
    }
    req.resp.location = location;
}

/// Makes the response for a file.
pub fn serve(req: &mut Request, file: Rc<file_cache::OpenFile>) {
    let http = req.http();
    let core = &http.location(req).settings.core;
    let r = &mut req.resp;
    r.status = 200;
    r.content_length = Some(file.size);
    r.validators.last_modified = Some(file.mtime);
    if core.etag {
        r.validators.etag.clear();
        r.validators.etag.extend_from_slice(&file.etag);
    }
    // All of the content is at hand, so several ranges can be answered in any order.
    r.allowed_ranges = AllowedRanges::Any;
    content_type(req);
    let end = file.size;
    // An empty file needs a part as well, since the finished head is remembered in the file.
    req.resp.body.push(Part::File { file, start: 0, end });
}

/// Sets the content type by the extension of the path.
pub fn content_type(req: &mut Request) {
    let http = req.http();
    let core = &http.location(req).settings.core;
    let known = extension(&req.uri.path).and_then(|e| match core.types.0.get(e) {
        // Extensions have no case in nginx. Almost all are in lower case already, so the first search makes no copy.
        None if e.iter().any(u8::is_ascii_uppercase) => core.types.0.get(&e.to_ascii_lowercase()),
        known => known,
    });
    // The upstream whose `X-Accel-Redirect` led here may have set a type.
    let r = &mut req.resp.content_type;
    if r.is_empty() {
        r.extend_from_slice(known.unwrap_or(&core.default_type));
    }
}

/// Returns the extension: the text after the last dot of the last segment.
fn extension(uri: &[u8]) -> Option<&[u8]> {
    let last = uri.rsplit(|b| *b == b'/').next()?;
    let dot = memchr::memrchr(b'.', last)?;
    // As in nginx, a dot at the beginning of a name begins no extension.
    (dot > 0).then(|| &last[dot + 1..])
}
