//! Settings of every location (nginx: ngx_http_core_module).

use crate::config::Scope;
use crate::config::http::{Kind, LocationBuild};
use crate::module::Module;
use crate::modules::vars;
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_core::config::value::{Msec, Number, Offset, Sec, Setting, Size, first, once};
use forebay_core::keyword;
use forebay_core::vars::Template;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Methods that `limit_except` and `dav_methods` may name.
pub const KNOWN_METHODS: &[&[u8]] = &[
    b"GET",
    b"HEAD",
    b"POST",
    b"PUT",
    b"DELETE",
    b"MKCOL",
    b"COPY",
    b"MOVE",
    b"OPTIONS",
    b"PROPFIND",
    b"PROPPATCH",
    b"LOCK",
    b"UNLOCK",
    b"PATCH",
];

forebay_core::settings! {
    /// `root` or `alias`.
    "root" => root: Root = Root::default();
    /// `error_page`.
    "error_page" => error_page: ErrorPages = ErrorPages::default();
    /// `types`.
    "types" => types: Types = Types::default();
    /// `default_type`.
    "default_type" => default_type: Vec<u8> = b"text/plain".to_vec();
    /// `keepalive_timeout`: lifetime of an idle connection, and the value of the `Keep-Alive` field.
    "keepalive_timeout" => keepalive_timeout: KeepaliveTimeout = KeepaliveTimeout { timeout: Duration::from_secs(75), header: None };
    /// `keepalive_requests`.
    "keepalive_requests" => keepalive_requests: Number = Number(10_000);
    /// `keepalive_time`.
    "keepalive_time" => keepalive_time: Msec = Msec(Duration::from_secs(3600));
    /// `keepalive_disable`.
    "keepalive_disable" => keepalive_disable: KeepaliveDisable = KeepaliveDisable { msie6: true, safari: false };
    /// `lingering_close`.
    "lingering_close" => lingering_close: Lingering = Lingering::On;
    /// `lingering_time`.
    "lingering_time" => lingering_time: Msec = Msec(Duration::from_secs(30));
    /// `lingering_timeout`.
    "lingering_timeout" => lingering_timeout: Msec = Msec(Duration::from_secs(5));
    /// `reset_timedout_connection`.
    "reset_timedout_connection" => reset_timedout_connection: bool = false;
    /// `send_timeout`.
    "send_timeout" => send_timeout: Msec = Msec(Duration::from_secs(60));
    /// `client_body_timeout`.
    "client_body_timeout" => client_body_timeout: Msec = Msec(Duration::from_secs(60));
    /// `client_max_body_size`; 0 = no limit.
    "client_max_body_size" => client_max_body_size: Offset = Offset(1024 * 1024);
    /// `client_body_buffer_size`.
    "client_body_buffer_size" => client_body_buffer_size: Size = Size(16384);
    /// `client_body_temp_path`.
    "client_body_temp_path" => client_body_temp_path: TempPath = TempPath(None);
    /// `client_body_in_file_only`.
    "client_body_in_file_only" => client_body_in_file_only: BodyInFile = BodyInFile::Off;
    /// `tcp_nodelay`.
    "tcp_nodelay" => tcp_nodelay: bool = true;
    /// `limit_rate`, bytes/s.
    "limit_rate" => limit_rate: RateTemplate = RateTemplate(None);
    /// `limit_rate_after`, bytes.
    "limit_rate_after" => limit_rate_after: RateTemplate = RateTemplate(None);
    /// `satisfy`.
    "satisfy" => satisfy: Satisfy = Satisfy::All;
    /// `log_subrequest`.
    "log_subrequest" => log_subrequest: bool = false;
    /// `subrequest_output_buffer_size`, bytes.
    "subrequest_output_buffer_size" => subrequest_output_buffer_size: Size = Size(4096);
    /// `auth_delay`.
    "auth_delay" => auth_delay: Msec = Msec(Duration::ZERO);
    /// `recursive_error_pages`.
    "recursive_error_pages" => recursive_error_pages: bool = false;
    /// `absolute_redirect`.
    "absolute_redirect" => absolute_redirect: bool = true;
    /// `server_name_in_redirect`.
    "server_name_in_redirect" => server_name_in_redirect: bool = false;
    /// `port_in_redirect`.
    "port_in_redirect" => port_in_redirect: bool = true;
    /// `msie_refresh`.
    "msie_refresh" => msie_refresh: bool = false;
    /// `msie_padding`.
    "msie_padding" => msie_padding: bool = true;
    /// `log_not_found`.
    "log_not_found" => log_not_found: bool = true;
    /// `etag`.
    "etag" => etag: bool = true;
    /// `if_modified_since`.
    "if_modified_since" => if_modified_since: IfModifiedSince = IfModifiedSince::Exact;
    /// `max_ranges`; `None` = no limit.
    "max_ranges" => max_ranges: MaxRanges = MaxRanges(None);
    /// `chunked_transfer_encoding`.
    "chunked_transfer_encoding" => chunked_transfer_encoding: bool = true;
    /// `server_tokens`.
    "server_tokens" => server_tokens: ServerTokens = ServerTokens::On;
    /// `open_file_cache`.
    "open_file_cache" => open_file_cache: OpenFileCache = OpenFileCache(None);
    /// `open_file_cache_valid`.
    "open_file_cache_valid" => open_file_cache_valid: Sec = Sec(60);
    /// `open_file_cache_min_uses`.
    "open_file_cache_min_uses" => open_file_cache_min_uses: Number = Number(1);
    /// `open_file_cache_errors`.
    "open_file_cache_errors" => open_file_cache_errors: bool = false;
    /// `disable_symlinks`.
    "disable_symlinks" => disable_symlinks: DisableSymlinks = DisableSymlinks::default();
}

/// `core`.
pub static MODULE: Module = Module {
    location_directives: &[("root", root), ("alias", root), ("internal", internal)],
    variables: &[vars::PLAIN, vars::VARIABLES],
    ..Module::NONE
};

impl Settings {
    /// Returns `true` if the head of a plain answer for a file depends on the file alone.
    pub fn has_fixed_head(&self) -> bool {
        self.keepalive_timeout.header.is_none()
            // With `alias` in a regular expression, paths with different extensions, and so with different types, may share a file.
            && !matches!(self.root.alias, Some(None))
            && !matches!(self.server_tokens, ServerTokens::Value(_))
    }
}

/// Reads `internal`.
fn internal(d: &Directive, l: &mut LocationBuild, cx: &mut Scope<'_>) -> Result<(), Error> {
    if l.internal {
        return Err(cx.error(d, "\"internal\" directive is duplicate"));
    }
    l.internal = true;
    Ok(())
}

/// `root` or `alias`: the directory that paths are mapped to.
#[derive(Clone, Debug, Default)]
pub struct Root {
    /// Directory as configured, with its variables.
    pub path: Template,
    /// Absolute directory if it has no variables, without a final slash for `root`.
    pub fixed: Option<Vec<u8>>,
    /// `None` for `root`. For `alias`, the number of bytes of the path that it replaces (the location's name), or `None`
    /// in a location with a regular expression, where the alias is the whole file name.
    pub alias: Option<Option<usize>>,
}

impl Setting<crate::config::HttpContext> for Root {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        if let Some(earlier) = previous {
            return Err(cx.error(d, duplicate_root(false, earlier.alias.is_some())));
        }
        root_value(d, cx, None)
    }
}

/// Returns the number of bytes of the path that `alias` replaces, see [`Root::alias`].
fn replaced_by_alias(d: &Directive, l: &LocationBuild, cx: &Scope<'_>) -> Result<Option<usize>, Error> {
    match &l.kind {
        Kind::Named => Err(cx.error(d, "the \"alias\" directive cannot be used inside the named location")),
        Kind::Regex(_) | Kind::Predicate(_) => Ok(None),
        _ => Ok(Some(l.name.len())),
    }
}

/// Returns the error text for a second `root` or `alias` of a level.
fn duplicate_root(is_alias: bool, was_alias: bool) -> String {
    let (name, other) = if is_alias { ("alias", "root") } else { ("root", "alias") };
    let duplicate = format!("\"{name}\" directive is duplicate");
    if is_alias == was_alias {
        return duplicate;
    }
    format!("{duplicate}, \"{other}\" directive was specified earlier")
}

fn root_value(d: &Directive, cx: &mut Scope<'_>, alias: Option<Option<usize>>) -> Result<Root, Error> {
    let word = d.args.first().ok_or_else(|| cx.error(d, "no path"))?;
    refuse_own_root(d, word, cx)?;
    let path = cx.template(d, word)?;
    let fixed = path.as_const().map(|p| {
        let mut full = cx.full_path(p).as_os_str().as_bytes().to_vec();
        if alias.is_none() {
            // This is for `root` only, since the path of `alias` replaces a part of the request's path and keeps its slash.
            drop_final_slash(&mut full);
        }
        full
    });
    Ok(Root { path, fixed, alias })
}

/// Refuses a directory that contains the variables whose value it is.
fn refuse_own_root(d: &Directive, word: &Word, cx: &Scope<'_>) -> Result<(), Error> {
    let forbidden = ["$document_root", "${document_root}", "$realpath_root", "${realpath_root}"];
    let Some(variable) = forbidden.into_iter().find(|v| word.as_str().contains(v)) else { return Ok(()) };
    let name = variable.trim_matches(['$', '{', '}']);
    let message = format!("the ${name} variable cannot be used in the \"{}\" directive", d.name.as_str());
    Err(cx.error_at(d, word, message))
}

/// Removes a slash at the end, even from the root directory `/`, because the path that is appended begins with a slash.
fn drop_final_slash(path: &mut Vec<u8>) {
    if path.last() == Some(&b'/') {
        path.pop();
    }
    if path == b"/" {
        path.clear();
    }
}

/// Reads `root` or `alias` of a level. The value of `alias` depends on the kind of location.
///
/// # Errors
/// In nginx's words.
fn root(d: &Directive, l: &mut LocationBuild, cx: &mut Scope<'_>) -> Result<(), Error> {
    let is_alias = d.name.text == b"alias";
    if let Some(earlier) = &l.written.core.root {
        return Err(cx.error(d, duplicate_root(is_alias, earlier.alias.is_some())));
    }
    let alias = is_alias.then(|| replaced_by_alias(d, l, cx)).transpose()?;
    Arc::make_mut(&mut l.written.core).root = Some(root_value(d, cx, alias)?);
    Ok(())
}

/// One code of an `error_page` directive.
#[derive(Clone, Debug)]
pub struct ErrorPage {
    /// Status that the page replaces.
    pub status: u16,
    /// Status from `=code`; `Some(0)` for a bare `=`, which takes the status of the page.
    pub overwrite: Option<u16>,
    /// URI, `@name` or URL.
    pub target: Template,
}

/// All `error_page` directives of a level.
#[derive(Clone, Debug, Default)]
pub struct ErrorPages(pub Arc<Vec<ErrorPage>>);

impl Setting<crate::config::HttpContext> for ErrorPages {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut pages = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        let Some((uri, codes)) = d.args.split_last() else { return Ok(ErrorPages::default()) };
        let (codes, overwrite) = split_overwrite(d, codes, cx)?;
        let target = cx.template(d, uri)?;
        for w in codes {
            let status = status_with_page(d, w, cx)?;
            // 494 to 497 are internal (header too large, TLS errors): clients see 400 unless the directive changes it.
            let overwrite = overwrite.or(matches!(status, 494..=497).then_some(400));
            pages.push(ErrorPage { status, overwrite, target: target.clone() });
        }
        Ok(ErrorPages(Arc::new(pages)))
    }
}

fn invalid_value(d: &Directive, w: &Word, cx: &Scope<'_>) -> Error {
    cx.error_at(d, w, format!("invalid value \"{}\"", w.as_str()))
}

/// Splits the words before the page of `error_page` into codes and the `=code` after them.
fn split_overwrite<'d>(
    d: &Directive,
    words: &'d [Word],
    cx: &Scope<'_>,
) -> Result<(&'d [Word], Option<u16>), Error> {
    match words.split_last() {
        Some((last, codes)) if last.text.starts_with(b"=") => {
            // `error_page =200 /x` names no status for which the page would be.
            let code = overwrite(last).filter(|_| !codes.is_empty());
            Ok((codes, Some(code.ok_or_else(|| invalid_value(d, last, cx))?)))
        }
        _ => Ok((words, None)),
    }
}

/// Reads `=code`; 0 for a bare `=`.
fn overwrite(w: &Word) -> Option<u16> {
    match w.text.strip_prefix(b"=")? {
        b"" => Some(0),
        code => units::number(code).and_then(|n| u16::try_from(n).ok()),
    }
}

fn status_with_page(d: &Directive, w: &Word, cx: &Scope<'_>) -> Result<u16, Error> {
    match units::number(&w.text) {
        // nginx refuses 499 here, since it is its own status for a client that has closed the connection.
        None | Some(499) => Err(invalid_value(d, w, cx)),
        Some(status @ 300..=599) => Ok(status as u16),
        Some(_) => Err(cx.error_at(d, w, format!("value \"{}\" must be between 300 and 599", w.as_str()))),
    }
}

/// Extension to content type.
#[derive(Clone, Debug)]
pub struct Types(pub Arc<HashMap<Vec<u8>, Vec<u8>, foldhash::fast::RandomState>>);

impl Default for Types {
    fn default() -> Self {
        let mut m = HashMap::default();
        for (ext, t) in [("html", "text/html"), ("gif", "image/gif"), ("jpg", "image/jpeg")] {
            m.insert(ext.as_bytes().to_vec(), t.as_bytes().to_vec());
        }
        Types(Arc::new(m))
    }
}

impl Setting<crate::config::HttpContext> for Types {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut m = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        for entry in d.block.iter().flatten() {
            for ext in &entry.args {
                let ext_lower = ext.text.to_ascii_lowercase();
                // As in nginx, the last type of an extension counts, with a warning.
                if let Some(old) = m.insert(ext_lower, entry.name.text.clone()) {
                    let message = format!(
                        "duplicate extension \"{}\", content type: \"{}\", previous content type: \"{}\"",
                        ext.as_str(),
                        entry.name.as_str(),
                        String::from_utf8_lossy(&old)
                    );
                    cx.warn(entry, message);
                }
            }
        }
        Ok(Types(Arc::new(m)))
    }
}

/// `keepalive_timeout`.
#[derive(Clone, Copy, Debug)]
pub struct KeepaliveTimeout {
    /// Lifetime of an idle connection; zero disables keep-alive.
    pub timeout: Duration,
    /// Seconds in the `Keep-Alive` field.
    pub header: Option<u64>,
}

impl Setting<crate::config::HttpContext> for KeepaliveTimeout {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let invalid = || cx.directive_error(d, "invalid value");
        let timeout = units::duration_ms(first(d)).ok_or_else(invalid)?;
        let header = match d.args.get(1) {
            None => None,
            Some(w) => Some(units::time_secs(&w.text).ok_or_else(invalid)?),
        };
        Ok(KeepaliveTimeout { timeout, header })
    }
}

/// `keepalive_disable`.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepaliveDisable {
    /// Old versions of MSIE after a POST.
    pub msie6: bool,
    /// Safari.
    pub safari: bool,
}

impl Setting<crate::config::HttpContext> for KeepaliveDisable {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut k = previous.unwrap_or_default();
        for w in &d.args {
            match w.text.to_ascii_lowercase().as_slice() {
                b"none" => k = KeepaliveDisable::default(),
                b"msie6" => k.msie6 = true,
                b"safari" => k.safari = true,
                _ => return Err(cx.error_at(d, w, format!("invalid value \"{}\"", w.as_str()))),
            }
        }
        Ok(k)
    }
}

keyword! {
    /// `lingering_close`.
    pub enum Lingering { Off = "off", On = "on", Always = "always", }
}
keyword! {
    /// `satisfy`.
    pub enum Satisfy { All = "all", Any = "any", }
}
keyword! {
    /// `if_modified_since`.
    pub enum IfModifiedSince { Off = "off", Exact = "exact", Before = "before", }
}
keyword! {
    /// `client_body_in_file_only`.
    pub enum BodyInFile { Off = "off", On = "on", Clean = "clean", }
}

/// `server_tokens`.
#[derive(Clone, Debug)]
pub enum ServerTokens {
    /// Name and version.
    On,
    /// Name only.
    Off,
    /// With build name.
    Build,
    /// From a variable.
    Value(Template),
}

impl Setting<crate::config::HttpContext> for ServerTokens {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let w = d.args.first().ok_or_else(|| cx.error(d, "no value"))?;
        if let Some(tokens) = ServerTokens::named(&w.text) {
            return Ok(tokens);
        }
        // Only a value with variables may be anything else than the three words.
        if !w.text.contains(&b'$') {
            return Err(cx.error_at(d, w, format!("invalid value \"{}\"", w.as_str())));
        }
        Ok(ServerTokens::Value(cx.template(d, w)?))
    }
}

impl ServerTokens {
    fn named(word: &[u8]) -> Option<ServerTokens> {
        match word.to_ascii_lowercase().as_slice() {
            b"on" => Some(ServerTokens::On),
            b"off" => Some(ServerTokens::Off),
            b"build" => Some(ServerTokens::Build),
            _ => None,
        }
    }
}

/// A rate or size that may contain variables.
#[derive(Clone, Debug)]
pub struct RateTemplate(pub Option<Template>);

impl Setting<crate::config::HttpContext> for RateTemplate {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let w = d.args.first().ok_or_else(|| cx.error(d, "no value"))?;
        let t = cx.template(d, w)?;
        // A value without variables can be checked right away, while others are checked for each request.
        if let Some(c) = t.as_const()
            && units::size(c).is_none()
        {
            return Err(cx.error(d, format!("\"{}\" directive invalid value", d.name.as_str())));
        }
        Ok(RateTemplate(Some(t)))
    }
}

/// `max_ranges`.
#[derive(Clone, Copy, Debug)]
pub struct MaxRanges(pub Option<u64>);

impl Setting<crate::config::HttpContext> for MaxRanges {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        Ok(MaxRanges(Some(Number::take(previous.map(|_| Number(0)), d, cx)?.0)))
    }
}

/// `open_file_cache max=N [inactive=T]`.
#[derive(Clone, Copy, Debug)]
pub struct OpenFileCache(pub Option<(u64, Duration)>);

impl Setting<crate::config::HttpContext> for OpenFileCache {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let mut p = OpenFileCacheParameters { off: false, max: None, inactive: Duration::from_secs(60) };
        for w in &d.args {
            p.read(&w.text).ok_or_else(|| {
                cx.error_at(d, w, format!("invalid \"open_file_cache\" parameter \"{}\"", w.as_str()))
            })?;
        }
        if p.off {
            return Ok(OpenFileCache(None));
        }
        let missing = || cx.error(d, "\"open_file_cache\" must have the \"max\" parameter");
        Ok(OpenFileCache(Some((p.max.ok_or_else(missing)?, p.inactive))))
    }
}

/// Parameters of `open_file_cache`.
struct OpenFileCacheParameters {
    off: bool,
    max: Option<u64>,
    inactive: Duration,
}

impl OpenFileCacheParameters {
    /// Reads a parameter. Returns `None` if it is invalid.
    fn read(&mut self, text: &[u8]) -> Option<()> {
        if let Some(v) = text.strip_prefix(b"max=") {
            self.max = Some(units::number(v).filter(|n| *n > 0)?);
        } else if let Some(v) = text.strip_prefix(b"inactive=") {
            self.inactive = Duration::from_secs(units::time_secs(v)?);
        } else if text == b"off" {
            self.off = true;
        } else {
            return None;
        }
        Some(())
    }
}

/// `disable_symlinks`.
#[derive(Clone, Debug, Default)]
pub struct DisableSymlinks {
    /// Links that are refused.
    pub mode: SymlinkMode,
    /// `from=`: the leading part of the path in which links are allowed.
    pub from: Option<Template>,
}

/// Symbolic links that `disable_symlinks` refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SymlinkMode {
    /// No link.
    #[default]
    Off,
    /// All links in the path.
    On,
    /// Links whose target belongs to another user.
    IfNotOwner,
}

/// Words of `disable_symlinks`.
const SYMLINK_MODES: [(&[u8], SymlinkMode); 3] =
    [(b"off", SymlinkMode::Off), (b"on", SymlinkMode::On), (b"if_not_owner", SymlinkMode::IfNotOwner)];

impl Setting<crate::config::HttpContext> for DisableSymlinks {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let (mut mode, mut from) = (None, None);
        for w in &d.args {
            if let Some(path) = w.text.strip_prefix(b"from=") {
                from = Some(cx.template(d, &Word { text: path.to_vec(), ..w.clone() })?);
                continue;
            }
            let Some((_, named)) = SYMLINK_MODES.iter().find(|(word, _)| *word == w.text) else {
                return Err(cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str())));
            };
            if mode.replace(*named).is_some() {
                let words: Vec<_> = d.args.iter().map(|w| w.as_str()).collect();
                return Err(cx.error(d, format!("duplicate parameters \"{}\"", words.join(" "))));
            }
        }
        DisableSymlinks::new(mode, from).map_err(|text| cx.error(d, text))
    }
}

impl DisableSymlinks {
    /// Checks that the parameters fit together.
    fn new(mode: Option<SymlinkMode>, from: Option<Template>) -> Result<DisableSymlinks, &'static str> {
        match mode {
            None => Err("\"disable_symlinks\" must have \"off\", \"on\" or \"if_not_owner\" parameter"),
            Some(SymlinkMode::Off) if from.is_some() => {
                Err("\"from=\" cannot be used with \"off\" parameter")
            }
            Some(mode) => Ok(DisableSymlinks { mode, from }),
        }
    }
}

/// Directory for temporary files, with its levels of subdirectories.
#[derive(Clone, Debug, Default)]
pub struct TempDir {
    path: PathBuf,
    levels: Vec<usize>,
}

impl From<PathBuf> for TempDir {
    fn from(path: PathBuf) -> TempDir {
        TempDir { path, levels: Vec::new() }
    }
}

impl TempDir {
    /// Returns `true` if no directory is configured.
    pub fn is_none(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    /// Returns the name of a new file. It has ten digits; the last ones name the subdirectories, as in nginx.
    pub fn next_file(&self) -> PathBuf {
        self.file(forebay_sys::serial::next())
    }

    fn file(&self, serial: u64) -> PathBuf {
        path_in_levels(&self.path, &self.levels, &format!("{serial:010}"))
    }
}

/// Returns the path of a file whose last digits name its subdirectories. `levels` has the lengths of their names.
pub fn path_in_levels(dir: &std::path::Path, levels: &[usize], name: &str) -> PathBuf {
    let mut path = dir.to_path_buf();
    let mut end = name.len();
    for n in levels {
        let start = end.saturating_sub(*n);
        // The last digits of the serial number change fastest, so files spread evenly over the directories.
        path.push(name.get(start..end).unwrap_or_default());
        end = start;
    }
    path.push(name);
    path
}

/// `client_body_temp_path`, `proxy_temp_path` and similar directives.
#[derive(Clone, Debug)]
pub struct TempPath(pub Option<TempDir>);

/// Maximum number of digits of a file's name that may go into the names of its subdirectories.
const MOST_LEVELS: u64 = 10;

impl Setting<crate::config::HttpContext> for TempPath {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let path = cx.full_path(first(d));
        let level = |w: &Word| units::number(&w.text).filter(|n| *n > 0);
        let levels = d.args.iter().skip(1).map(level).collect::<Option<Vec<_>>>();
        let levels = levels
            .filter(|l| l.iter().fold(0, |sum: u64, n| sum.saturating_add(*n)) <= MOST_LEVELS)
            .ok_or_else(|| cx.directive_error(d, "invalid value"))?;
        let lengths = levels.iter().map(|n| *n as usize).collect();
        cx.directory(d, &path, Some(levels))?;
        Ok(TempPath(Some(TempDir { path, levels: lengths })))
    }
}
