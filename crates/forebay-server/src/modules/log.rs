//! `access_log`, `log_format`, `error_log`, `open_log_file_cache` (nginx: ngx_http_log_module).

use crate::access_log::Format;
use crate::config::Scope;
use crate::config::error_log::ErrorLogs;
use crate::config::value::{Setting, once};
use crate::request::Request;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_core::log::access::{AccessLog, Escape, Target};
use forebay_core::log::files::{self, Policy};
use forebay_core::vars::{Part, Template};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

crate::settings! {
    /// `access_log`, empty for `off`.
    "access_log" => access_log: AccessLogs = AccessLogs::default();
    /// `error_log` of this level; `None` for the log of the top level.
    "error_log" => error_log: Option<ErrorLogs> = None;
    /// `open_log_file_cache`.
    "open_log_file_cache" => open_log_file_cache: LogFileCache = LogFileCache(None);
}

/// Access logs of a level.
#[derive(Clone, Debug, Default)]
pub struct AccessLogs(pub Arc<Vec<AccessLog>>);

/// Text of the built-in format.
const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\"";

/// File for `access_log ""`.
const STDERR: &str = "/dev/stderr";

/// Returns the built-in format, `combined`.
pub fn combined(vars: &mut crate::variables::Registry) -> Format {
    let template = Template::compile(COMBINED.as_bytes(), vars).unwrap_or_default();
    Format::new(b"combined", Escape::Default, template, vars)
}

/// Returns the log for configurations without `access_log`.
pub fn default_log(cx: &mut Scope<'_>) -> AccessLogs {
    let path = cx.full_path(cx.env.access_log.as_bytes());
    let target = Target::File(cx.log_file(path));
    AccessLogs(Arc::new(vec![AccessLog {
        target,
        format: 0,
        buffer: 0,
        flush: None,
        gzip: None,
        condition: None,
    }]))
}

impl Setting<crate::HttpContext> for AccessLogs {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut logs = previous.map(|p| p.0.as_ref().clone()).unwrap_or_default();
        let Some(first) = d.args.first() else { return Ok(AccessLogs::default()) };
        if first.text == b"off" {
            if d.args.len() > 1 {
                return Err(cx.error_at(
                    d,
                    &d.args[1],
                    format!("invalid parameter \"{}\"", d.args[1].as_str()),
                ));
            }
            return Ok(AccessLogs::default());
        }
        let mut log = AccessLog {
            target: target(d, first, cx)?,
            format: 0,
            buffer: 0,
            flush: None,
            gzip: None,
            condition: None,
        };
        let mut params = d.args.iter().skip(1);
        let mut next = params.next();
        if let Some(w) = next
            && !is_parameter(&w.text)
        {
            log.format = cx
                .tables
                .log_formats
                .iter()
                .position(|f| f.name == w.text)
                .ok_or_else(|| cx.error_at(d, w, format!("unknown log format \"{}\"", w.as_str())))?;
            next = params.next();
        }
        while let Some(w) = next {
            parameter(&mut log, d, w, cx)?;
            next = params.next();
        }
        if log.flush.is_some() && log.buffer == 0 {
            return Err(
                cx.error(d, "no buffer is defined for access_log \"".to_string() + &first.as_str() + "\"")
            );
        }
        if log.buffer != 0 && !matches!(log.target, Target::File(_)) {
            let what = if matches!(log.target, Target::Path(_)) {
                "buffered logs cannot have variables in name"
            } else {
                "logs to syslog cannot be buffered"
            };
            return Err(cx.error(d, what));
        }
        if matches!(log.target, Target::File(_)) && log.buffer != 0 {
            // Like nginx: two spellings of one file name count as two logs.
            let file = cx.full_path(&first.text).into_os_string();
            let buffer = (log.buffer, log.flush, log.gzip);
            match cx.buffered_logs.iter().find(|(f, _)| *f == file) {
                Some((_, before)) if *before != buffer => {
                    let text = first.as_str();
                    let text = format!("access_log \"{text}\" already defined with conflicting parameters");
                    return Err(cx.error(d, text));
                }
                Some(_) => {}
                None => cx.buffered_logs.push((file, buffer)),
            }
        }
        logs.push(log);
        Ok(AccessLogs(Arc::new(logs)))
    }
}

fn is_parameter(t: &[u8]) -> bool {
    t.starts_with(b"buffer=")
        || t.starts_with(b"flush=")
        || t.starts_with(b"if=")
        || t == b"gzip"
        || t.starts_with(b"gzip=")
}

fn target(d: &Directive, w: &Word, cx: &mut Scope<'_>) -> Result<Target, Error> {
    if let Some(s) = w.text.strip_prefix(b"syslog:") {
        let text = String::from_utf8_lossy(s).into_owned();
        let target = forebay_core::log::syslog::Syslog::parse(&text).map_err(|m| cx.error(d, m))?;
        return Ok(Target::Syslog(Arc::new(target)));
    }
    let t = cx.template(d, w)?;
    if t.as_const().is_none() {
        return Ok(Target::Path(t));
    }
    if w.text.is_empty() {
        return Ok(Target::File(cx.log_file(STDERR.into())));
    }
    let path = cx.full_path(&w.text);
    Ok(Target::File(cx.log_file(path)))
}

fn parameter(log: &mut AccessLog, d: &Directive, w: &Word, cx: &mut Scope<'_>) -> Result<(), Error> {
    let invalid = |cx: &Scope<'_>, what: &str| {
        let text = w.as_str();
        // nginx prints only the value, except for an unknown parameter.
        let value = text.split_once('=').map_or(&*text, |(_, v)| v);
        cx.error_at(d, w, format!("invalid {what} \"{value}\""))
    };
    if let Some(v) = w.text.strip_prefix(b"buffer=") {
        log.buffer = units::size(v).filter(|n| *n > 0).ok_or_else(|| invalid(cx, "buffer size"))? as usize;
    } else if let Some(v) = w.text.strip_prefix(b"flush=") {
        let ms = units::time_ms(v).filter(|n| *n > 0).ok_or_else(|| invalid(cx, "flush time"))?;
        log.flush = Some(Duration::from_millis(ms));
    } else if w.text == b"gzip" || w.text.starts_with(b"gzip=") {
        let level = w.text.strip_prefix(b"gzip=").map_or(Some(1), units::number);
        log.gzip = Some(
            level.filter(|n| (1..=9).contains(n)).ok_or_else(|| invalid(cx, "compression level"))? as u32,
        );
        if log.buffer == 0 {
            log.buffer = 64 * 1024;
        }
    } else if let Some(v) = w.text.strip_prefix(b"if=") {
        let word = Word { text: v.to_vec(), ..w.clone() };
        log.condition = Some(cx.template(d, &word)?);
    } else {
        return Err(cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str())));
    }
    Ok(())
}

/// Reads `log_format`.
///
/// # Errors
/// In nginx's words.
pub fn format(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let Some((name, rest)) = d.args.split_first() else { return Ok(()) };
    if cx.tables.log_formats.iter().any(|f| f.name == name.text) {
        return Err(cx.error_at(d, name, format!("duplicate \"log_format\" name \"{}\"", name.as_str())));
    }
    let (escape, rest) = match rest.split_first() {
        Some((w, tail)) if w.text.starts_with(b"escape=") => match &w.text[7..] {
            b"default" => (Escape::Default, tail),
            b"json" => (Escape::Json, tail),
            b"none" => (Escape::None, tail),
            v => {
                return Err(cx.error_at(
                    d,
                    w,
                    format!("unknown log format escaping \"{}\"", String::from_utf8_lossy(v)),
                ));
            }
        },
        _ => (Escape::Default, rest),
    };
    // Compile each word alone: a variable's name cannot extend into the next word.
    let mut template = Template::default();
    for w in rest {
        template.append(Template::compile_log(&w.text, &mut cx.vars).map_err(|m| cx.error(d, m))?);
    }
    let capture =
        template.parts().iter().find_map(|p| if let Part::Capture(n) = p { Some(*n) } else { None });
    // Register the format even if it is invalid, so that directives that name it cause no second error.
    let format = Format::new(&name.text, escape, template, &cx.vars);
    cx.tables.log_formats.push(format);
    match capture {
        // `$1` belongs to a match of a regular expression, and a log line has none.
        Some(n) => Err(crate::config::plain(&format!("unknown \"{n}\" variable"))),
        None => Ok(()),
    }
}

/// `open_log_file_cache`.
#[derive(Clone, Copy, Debug)]
pub struct LogFileCache(pub Option<Policy>);

impl Setting<crate::HttpContext> for LogFileCache {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let (mut off, mut max, mut inactive, mut valid, mut uses) =
            (false, None, Duration::from_secs(10), Duration::from_secs(60), 1);
        for w in &d.args {
            let invalid =
                || cx.error_at(d, w, format!("invalid \"open_log_file_cache\" parameter \"{}\"", w.as_str()));
            if w.text == b"off" {
                off = true;
            } else if let Some(v) = w.text.strip_prefix(b"max=") {
                max = Some(units::number(v).filter(|n| *n > 0).ok_or_else(invalid)?);
            } else if let Some(v) = w.text.strip_prefix(b"inactive=") {
                inactive = Duration::from_secs(units::time_secs(v).ok_or_else(invalid)?);
            } else if let Some(v) = w.text.strip_prefix(b"valid=") {
                valid = Duration::from_secs(units::time_secs(v).ok_or_else(invalid)?);
            } else if let Some(v) = w.text.strip_prefix(b"min_uses=") {
                uses = units::number(v).filter(|n| *n > 0).ok_or_else(invalid)?;
            } else {
                return Err(invalid());
            }
        }
        match max {
            _ if off => Ok(LogFileCache(None)),
            Some(max) => Ok(LogFileCache(Some(Policy { max, inactive, valid, min_uses: uses }))),
            None => Err(cx.error(d, "\"open_log_file_cache\" must have \"max\" parameter")),
        }
    }
}

/// Writes a line to a log whose path has variables. The worker opens the file for each line unless
/// `open_log_file_cache` keeps it open. Does nothing if the root directory of the request is missing.
pub fn write_variable_path(req: &mut Request, path: &Template, line: &[u8]) {
    let Ok(text) = path.value(req) else { return };
    if text.is_empty() || text.contains(&0) {
        return;
    }
    let mut full = Vec::new();
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

/// Whether the root directory of a request exists. Clients that invent host names thus cannot create log files.
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
