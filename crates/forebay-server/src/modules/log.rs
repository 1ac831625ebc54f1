//! `access_log`, `log_format`, `error_log`, `open_log_file_cache` (nginx: ngx_http_log_module).

use crate::access_log::Format;
use crate::config::{HttpTables, Scope};
use crate::error_log::ErrorLogTags;
use crate::module::Module;
use crate::request::Request;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_core::config::access_log::{self, AccessLogs, LogFileCache};
use forebay_core::config::error_log::ErrorLogs;
use forebay_core::log::access::{AccessLog, Escape, Target};
use forebay_core::log::files;
use forebay_core::vars::Template;
use std::path::PathBuf;
use std::sync::Arc;

forebay_core::settings! {
    /// `access_log`, empty for `off`.
    "access_log" => access_log: AccessLogs = AccessLogs::default();
    /// `error_log` of this level; `None` for the log of the top level.
    "error_log" => error_log: Option<ErrorLogs> = None;
    /// `error_log_tag`.
    "error_log_tag" => error_log_tag: ErrorLogTags = ErrorLogTags::default();
    /// `open_log_file_cache`.
    "open_log_file_cache" => open_log_file_cache: LogFileCache = LogFileCache(None);
}

/// `log`.
pub static MODULE: Module = Module { http_directives: &[("log_format", format)], ..Module::NONE };

/// Text of the built-in format.
const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\"";

/// Returns the built-in format, `combined`.
pub fn combined(vars: &mut crate::variables::Registry) -> Format {
    let template = Template::compile(COMBINED.as_bytes(), vars).unwrap_or_default();
    Format::new(b"combined", Escape::Default, template, vars)
}

/// Returns the log for configurations without `access_log`.
pub fn default_log(cx: &mut Scope<'_>) -> AccessLogs {
    let path = cx.full_path(cx.env.access_log.as_bytes());
    let target = Target::File(cx.log_file(path));
    AccessLogs(Arc::new(vec![AccessLog::new(target)]))
}

/// Reads `log_format`.
///
/// # Errors
/// In nginx's words.
fn format(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let log = access_log::format(d, cx)?;
    // An invalid format is registered as well, so that directives that name it cause no second error.
    let format = Format::new(&log.name, log.escape, log.template, &cx.vars);
    cx.tables.log_formats.push(format);
    log.fault.map_or(Ok(()), Err)
}

impl access_log::Formats for HttpTables {
    fn format(&self, name: &[u8]) -> Option<usize> {
        self.log_formats.iter().position(|f| f.name == name)
    }
}

/// Writes a line to a log whose path has variables. The worker opens the file for each line unless
/// `open_log_file_cache` keeps it open. Does nothing if the root directory of the request is missing.
pub fn write_variable_path(req: &mut Request, path: &Template, line: &[u8]) {
    let Ok(text) = path.value(req) else { return };
    // A path with NUL, which may come from the client, would name another file to the kernel.
    if text.is_empty() || text.contains(&0) {
        return;
    }
    let mut full = Vec::new();
    // As in nginx, a relative path begins at the prefix.
    if text.first() != Some(&b'/') {
        full.extend_from_slice(&req.conf.config.prefix);
    }
    full.extend_from_slice(&text);
    if !root_exists(req) {
        return;
    }
    use std::os::unix::ffi::OsStrExt;
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(&full));
    let http = req.http();
    let policy = http.location(req).settings.log.open_log_file_cache.0;
    if let Err(e) = files::append(&path, line, policy) {
        let text = forebay_sys::errno::errno_text(e);
        req.log(Level::Crit, &format!("open() \"{}\" failed {text} while logging request", path.display()));
    }
}

/// Returns `true` if the root directory of a request exists. Clients that invent host names thus cannot create log
/// files.
fn root_exists(req: &mut Request) -> bool {
    let mut root = Vec::new();
    if super::static_file::document_root(req, &mut root).is_err() {
        return false;
    }
    let Err(e) = rustix::fs::stat(root.as_slice()) else { return true };
    let text = forebay_sys::errno::errno_text(e);
    let root = String::from_utf8_lossy(&root);
    req.log(Level::Error, &format!("testing \"{root}\" existence failed {text} while logging request"));
    false
}
