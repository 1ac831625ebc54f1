//! `dav_methods` and related directives (nginx: ngx_http_dav_module): PUT, DELETE, MKCOL, COPY and MOVE on the files of a
//! location. This file checks requests; `files.rs` does the work on the blocking pool.

mod files;

use files::{FileError, Tree};
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_core::config::value::{Number, Setting, once};
use forebay_core::trace;
use forebay_core::vars::VarError;
use forebay_http::field::Name;
use forebay_http::request::{Framing, Method};
use forebay_http::uri;
use forebay_server::body;
use forebay_server::config::Scope;
use forebay_server::module::{Module, Phase, PhaseHook, Step, Verdict};
use forebay_server::modules::static_file;
use forebay_server::phases::Outcome;
use forebay_server::request::Request;
use forebay_server::way;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

forebay_server::module_settings! {
    /// `dav_methods`.
    "dav_methods" => methods: DavMethods = DavMethods::default();
    /// `create_full_put_path`.
    "create_full_put_path" => create_full_put_path: bool = false;
    /// `min_delete_depth`.
    "min_delete_depth" => min_delete_depth: Number = Number(0);
    /// `dav_access`: the mode of files.
    "dav_access" => access: DavAccess = DavAccess(0o600);
}

/// `dav`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    hooks: &[PhaseHook::new(Phase::Content, |s| SETTINGS.of(s).methods.0 != 0, answer)],
    ..Module::NONE
};

/// `dav_methods`: the set of allowed methods.
#[derive(Clone, Copy, Debug, Default)]
pub struct DavMethods(u8);

/// Methods with their names and bits.
const METHODS: &[(&[u8], Method, u8)] = &[
    (b"put", Method::Put, 1),
    (b"delete", Method::Delete, 2),
    (b"mkcol", Method::Mkcol, 4),
    (b"copy", Method::Copy, 8),
    (b"move", Method::Move, 16),
];

impl DavMethods {
    /// Returns `true` if a method is allowed.
    pub fn has(self, m: Method) -> bool {
        METHODS.iter().any(|(_, method, bit)| *method == m && self.0 & bit != 0)
    }
}

impl Setting<forebay_server::config::HttpContext> for DavMethods {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut all = previous.unwrap_or_default();
        for w in &d.args {
            let word = w.text.to_ascii_lowercase();
            match METHODS.iter().find(|(name, ..)| *name == word) {
                Some((.., bit)) => all.0 |= bit,
                None if word == b"off" => {}
                None => return Err(cx.error_at(d, w, format!("invalid value \"{}\"", w.as_str()))),
            }
        }
        Ok(all)
    }
}

/// `dav_access`, in the form of `proxy_store_access`.
#[derive(Clone, Copy, Debug)]
pub struct DavAccess(pub u32);

impl Setting<forebay_server::config::HttpContext> for DavAccess {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        forebay_proxy::modules::proxy::StoreAccess::take(None, d, cx).map(|a| DavAccess(a.0))
    }
}

impl DavAccess {
    /// Returns the mode for new directories.
    fn of_directories(self) -> u32 {
        forebay_sys::files::directory_mode(self.0)
    }
}

/// Refusal of a request: status, level and text for the log.
struct DavRefusal(u16, Level, String);

impl From<VarError> for DavRefusal {
    fn from(e: VarError) -> DavRefusal {
        DavRefusal(500, Level::Error, e.0)
    }
}

fn refuse<T>(status: u16, text: impl Into<String>) -> Result<T, DavRefusal> {
    Err(DavRefusal(status, Level::Error, text.into()))
}

/// Answers a request with one of the allowed methods.
fn answer(req: &mut Request) -> Step<'_> {
    let methods = SETTINGS.of(&req.own_location().settings).methods;
    if !methods.has(req.method) || req.is_subrequest() {
        return Verdict::Declined.into();
    }
    Step::later(async { run(req).await.into() })
}

/// Executes a request.
async fn run(req: &mut Request) -> Outcome {
    if trace::is_on() {
        // Nothing is changed where the way of a request is only recorded.
        way::note(req, || {
            trace::Step::new("file").fact("result", "changed by the method").about(&["dav_methods"])
        });
        return Outcome::Status(204);
    }
    if req.method == Method::Put && may_put(req).is_ok() {
        // The body goes into a file from the beginning, which is then moved to the target without a copy.
        req.body.in_file = true;
        if let Err(e) = body::read_all(req).await {
            return e.outcome(req);
        }
    }
    match execute(req).await {
        Ok(()) => Outcome::Done,
        Err(DavRefusal(status, level, text)) => {
            req.log(level, &text);
            Outcome::Status(status)
        }
    }
}

async fn execute(req: &mut Request) -> Result<(), DavRefusal> {
    match req.method {
        Method::Put => {
            may_put(req)?;
            store(req).await
        }
        Method::Delete => delete(req).await,
        Method::Mkcol => mkcol(req).await,
        _ => copy_or_move(req).await,
    }
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Makes an empty 201 response.
fn created(req: &mut Request, with_location: bool) {
    req.resp.status = 201;
    req.resp.content_length = Some(0);
    if with_location {
        let mut location = Vec::new();
        uri::escape(&req.uri.path, uri::Escape::Uri, &mut location);
        req.resp.location = location;
    }
}

/// Returns the file name of a path, without a slash at its end.
fn file_of(req: &mut Request, uri: &[u8]) -> Result<PathBuf, DavRefusal> {
    let mut path = Vec::new();
    static_file::map_uri(req, uri, &mut path)?;
    while path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    if path.contains(&0) {
        return refuse(400, format!("unsafe URI \"{}\" was detected", text(uri)));
    }
    Ok(PathBuf::from(std::ffi::OsString::from_vec(path)))
}

/// Does work on files on the blocking pool.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, DavRefusal> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(f)) => {
            // A status of 500 is a fault of the server or its disk, any other one a mistake of the client.
            let level = if f.status == 500 { Level::Crit } else { Level::Error };
            Err(DavRefusal(f.status, level, f.text))
        }
        Err(_) => refuse(500, "work on a file did not end"),
    }
}

fn without_body(req: &Request) -> Result<(), DavRefusal> {
    if matches!(req.head.framing, Framing::None | Framing::Length(0)) {
        return Ok(());
    }
    let method = text(req.head.method_text.of(&req.head.buf)).into_owned();
    refuse(415, format!("{method} with body is unsupported"))
}

/// Checks that `Depth` is `infinity`, which is its default, or 0 if `zero` allows it.
fn depth(req: &Request, zero: bool) -> Result<(), DavRefusal> {
    match req.head.get(Name::Depth) {
        None | Some(b"infinity") => return Ok(()),
        Some(b"0") if zero => return Ok(()),
        Some(b"0" | b"1") => {}
        Some(other) => {
            return refuse(400, format!("client sent invalid \"Depth\" header: \"{}\"", text(other)));
        }
    }
    refuse(
        400,
        if zero { "\"Depth\" header must be 0 or infinity" } else { "\"Depth\" header must be infinity" },
    )
}

/// Checks a PUT before its body is read.
fn may_put(req: &Request) -> Result<(), DavRefusal> {
    if req.uri.path.last() == Some(&b'/') {
        return refuse(409, "cannot PUT to a collection");
    }
    // A partial PUT (RFC 9110, section 14.5) would replace the whole file by the part.
    if req.head.fields.iter().any(|f| f.name.of(&req.head.buf).eq_ignore_ascii_case(b"Content-Range")) {
        return refuse(501, "PUT with range is unsupported");
    }
    if req.head.framing == Framing::None {
        return refuse(500, "PUT request body must be in a file");
    }
    Ok(())
}

/// Moves the body of a PUT to its target.
async fn store(req: &mut Request) -> Result<(), DavRefusal> {
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    let uri = req.uri.path.clone();
    let target = file_of(req, &uri)?;
    let Some(from) = req.body.stored.path.clone() else {
        return refuse(500, "PUT request body must be in a file");
    };
    let (mode, directories) = (s.access.0, s.create_full_put_path.then(|| s.access.of_directories()));
    let modified = req.head.get(Name::Date).and_then(forebay_http::date::parse);
    let existed = blocking(move || files::put(&from, &target, mode, modified, directories)).await?;
    // The file has been moved to its target: keep the request from deleting it.
    req.body.stored.path = None;
    if existed {
        req.resp.status = 204;
    } else {
        created(req, true);
    }
    Ok(())
}

async fn delete(req: &mut Request) -> Result<(), DavRefusal> {
    without_body(req)?;
    check_delete_depth(req)?;
    let uri = req.uri.path.clone();
    let collection = uri.last() == Some(&b'/');
    let tree = find_to_delete(req, &uri, collection).await?;
    depth(req, !collection)?;
    blocking(move || files::delete(&tree)).await?;
    req.resp.status = 204;
    Ok(())
}

/// Refuses paths with fewer segments than `min_delete_depth`.
fn check_delete_depth(req: &Request) -> Result<(), DavRefusal> {
    let least = SETTINGS.of(&req.own_location().settings).min_delete_depth.0;
    let segments = req.uri.path.split(|b| *b == b'/').filter(|s| !s.is_empty()).count() as u64;
    if segments < least {
        return refuse(409, format!("insufficient URI depth:{segments} to DELETE"));
    }
    Ok(())
}

/// Looks up the file or directory of a path. A path with a slash at the end has to be a directory, any other
/// path must not be one.
async fn find_to_delete(req: &mut Request, uri: &[u8], collection: bool) -> Result<Tree, DavRefusal> {
    let path = file_of(req, uri)?;
    let tree = blocking(move || files::find(&path, true)).await?;
    let why = match tree {
        Tree::Directory(_) if !collection => "21: Is a directory",
        Tree::File(_) if collection => "20: Not a directory",
        tree => return Ok(tree),
    };
    refuse(409, format!("DELETE \"{}\" failed ({why})", text(uri)))
}

async fn mkcol(req: &mut Request) -> Result<(), DavRefusal> {
    without_body(req)?;
    if req.uri.path.last() != Some(&b'/') {
        return refuse(409, "MKCOL can create a collection only");
    }
    let http = req.http();
    let mode = SETTINGS.of(&http.location(req).settings).access.of_directories();
    let uri = req.uri.path.clone();
    let path = file_of(req, &uri)?;
    blocking(move || files::make_directory(&path, mode)).await?;
    created(req, true);
    Ok(())
}

/// Returns the decoded path of `Destination`.
fn destination(req: &Request) -> Result<Vec<u8>, DavRefusal> {
    let Some(value) = req.head.get(Name::Destination) else {
        return refuse(400, "client sent no \"Destination\" header");
    };
    let invalid = || refuse(400, format!("client sent invalid \"Destination\" header: \"{}\"", text(value)));
    let path = if value.first() == Some(&b'/') {
        value
    } else {
        let scheme = [req.scheme(), b"://"].concat();
        let rest = value.strip_prefix(scheme.as_slice());
        let Some((host, rest)) = rest.and_then(|r| r.split_at_checked(req.head.host.len())) else {
            return invalid();
        };
        let slash = memchr::memchr(b'/', rest);
        let (port, path) = rest.split_at(slash.unwrap_or(rest.len()));
        if !is_this_host(req, host, port) {
            return elsewhere(value);
        }
        if slash.is_none() {
            return invalid();
        }
        path
    };
    // Files have no query, and one in `Destination` would otherwise end up in the file name.
    let path = path.split(|b| *b == b'?').next().unwrap_or_default();
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    uri::unescape(path, &mut plain);
    // `Destination` leads to a file like the path of a request, so it is checked in the same way.
    if uri::is_unsafe(&plain) || uri::normalise(path, true, &mut out).is_err() {
        return invalid();
    }
    Ok(out)
}

/// Returns `true` if a URL's host, alone or with a port, is that of the request.
fn is_this_host(req: &Request, host: &[u8], port: &[u8]) -> bool {
    let no_port = port.split_first().is_none_or(|(b, n)| *b == b':' && n.iter().all(u8::is_ascii_digit));
    !host.is_empty() && host.eq_ignore_ascii_case(&req.head.host) && no_port
}

fn elsewhere<T>(destination: &[u8]) -> Result<T, DavRefusal> {
    let what = "is handled by different repository than the source URI";
    refuse(400, format!("\"Destination\" URI \"{}\" {what}", text(destination)))
}

/// Names both URIs of a COPY or MOVE for the log.
fn both(uri: &[u8], to_uri: &[u8]) -> String {
    format!("both URI \"{}\" and \"Destination\" URI \"{}\"", text(uri), text(to_uri))
}

/// Returns the paths of source and target.
fn files_of(req: &mut Request, uri: &[u8], to_uri: &[u8]) -> Result<(PathBuf, PathBuf), DavRefusal> {
    check_alias(req, uri, to_uri)?;
    Ok((file_of(req, uri)?, file_of(req, to_uri)?))
}

/// Refuses a target outside the prefix that `alias` replaces.
///
/// Unlike nginx, which cuts off any prefix of that length.
fn check_alias(req: &Request, uri: &[u8], to_uri: &[u8]) -> Result<(), DavRefusal> {
    match req.own_location().settings.core.root.alias {
        Some(Some(n)) if !to_uri.starts_with(uri.get(..n).unwrap_or_default()) => elsewhere(to_uri),
        _ => Ok(()),
    }
}

/// Returns the value of `Overwrite`.
fn overwrite(req: &Request) -> Result<bool, DavRefusal> {
    match req.head.get(Name::Overwrite) {
        None | Some(b"T" | b"t") => Ok(true),
        Some(b"F" | b"f") => Ok(false),
        Some(other) => refuse(400, format!("client sent invalid \"Overwrite\" header: \"{}\"", text(other))),
    }
}

async fn copy_or_move(req: &mut Request) -> Result<(), DavRefusal> {
    without_body(req)?;
    let transfer = Transfer::of(req)?;
    let collection = transfer.collection;
    let directories = SETTINGS.of(&req.own_location().settings).access.of_directories();
    let (source, target) = transfer.find().await?;
    blocking(move || transfer.execute(&source, target.as_ref(), directories)).await?;
    if collection {
        created(req, false);
    } else {
        req.resp.status = 204;
    }
    Ok(())
}

/// A COPY or MOVE.
struct Transfer {
    moves: bool,
    /// `true` if both URIs are those of collections.
    collection: bool,
    overwrite: bool,
    uri: Vec<u8>,
    to_uri: Vec<u8>,
    from: PathBuf,
    to: PathBuf,
}

impl Transfer {
    /// Checks the fields and the URIs of a request.
    fn of(req: &mut Request) -> Result<Transfer, DavRefusal> {
        let moves = req.method == Method::Move;
        let to_uri = destination(req)?;
        let uri = req.uri.path.clone();
        let collection = uri.last() == Some(&b'/');
        // A slash at the end says that a path is a collection (RFC 4918, section 5.2), and one kind cannot
        // replace the other.
        if collection != (to_uri.last() == Some(&b'/')) {
            let both = both(&uri, &to_uri);
            return refuse(409, format!("{both} should be either collections or non-collections"));
        }
        depth(req, !moves)?;
        let overwrite = overwrite(req)?;
        let (from, to) = files_of(req, &uri, &to_uri)?;
        Transfer { moves, collection, overwrite, uri, to_uri, from, to }.apart()
    }

    /// Refuses a target that is the source, and a directory whose target is inside of it or above it: to replace a tree by
    /// its own part would first delete the source with it.
    fn apart(self) -> Result<Transfer, DavRefusal> {
        if self.from == self.to {
            return refuse(403, format!("{} point to the same location", both(&self.uri, &self.to_uri)));
        }
        let inside = self.to.starts_with(&self.from) || self.from.starts_with(&self.to);
        if self.collection && inside {
            return refuse(403, self.impossible());
        }
        Ok(self)
    }

    fn impossible(&self) -> String {
        let name = if self.moves { "MOVE" } else { "COPY" };
        let (uri, to_uri) = (text(&self.uri), text(&self.to_uri));
        format!("\"{uri}\" could not be {name}ed to collection \"{to_uri}\"")
    }

    /// Looks up the source and the entry at the target, and checks that the source may take its place.
    async fn find(&self) -> Result<(Tree, Option<Tree>), DavRefusal> {
        let (from, to) = (self.from.clone(), self.to.clone());
        let source = blocking(move || files::find(&from, false)).await?;
        let target = match blocking(move || files::find(&to, false)).await {
            Ok(tree) => Some(tree),
            // The target may be missing, together with directories above it.
            Err(DavRefusal(404 | 409, ..)) => None,
            Err(e) => return Err(e),
        };
        self.check(&source, target.as_ref())?;
        Ok((source, target))
    }

    /// Checks that the source may take the place of the target.
    fn check(&self, source: &Tree, target: Option<&Tree>) -> Result<(), DavRefusal> {
        match (source, target) {
            (_, Some(_)) if !self.overwrite => {
                refuse(412, format!("\"{}\" could not be created (17: File exists)", self.to.display()))
            }
            (Tree::File(_), Some(Tree::Directory(_))) => refuse(409, self.impossible()),
            (Tree::Directory(_), _) if !self.collection => {
                refuse(400, format!("\"{}\" is collection", text(&self.uri)))
            }
            (Tree::File(_), _) if self.collection => {
                refuse(409, format!("\"{}\" is no collection", text(&self.uri)))
            }
            _ => Ok(()),
        }
    }

    /// Moves or copies. `directories` is the mode for missing directories. Blocks.
    fn execute(&self, source: &Tree, target: Option<&Tree>, directories: u32) -> Result<(), FileError> {
        if let (Tree::Directory(_), Some(old)) = (source, target) {
            // RFC 4918, section 9.8.4: afterwards the target has the members of the source alone, so the old
            // tree goes first.
            files::delete(old)?;
        }
        match self.moves {
            true => files::rename(source, &self.to, directories),
            false => files::copy(source, &self.to),
        }
    }
}
