//! `access_log`, `log_format`, `open_log_file_cache` (nginx: ngx_http_log_module, ngx_stream_log_module).

use super::value::{Setting, once};
use super::{Build, Context, Scope};
use crate::log::access::{AccessLog, Escape, Target};
use crate::log::files::FileLimits;
use crate::log::syslog::Syslog;
use crate::vars::{Part, Template};
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use std::sync::Arc;
use std::time::Duration;

/// Access logs of a level.
#[derive(Clone, Debug, Default)]
pub struct AccessLogs(pub Arc<Vec<AccessLog>>);

/// Tables that have log formats.
pub trait Formats {
    /// Returns the index of the format of this name.
    fn format(&self, name: &[u8]) -> Option<usize>;
}

/// File for `access_log ""`.
const STDERR: &str = "/dev/stderr";

impl<C> Setting<C> for AccessLogs
where
    C: Context,
    C::Tables: Formats,
{
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        match d.args.as_slice() {
            [] => Ok(AccessLogs::default()),
            [off] if off.text == b"off" => Ok(AccessLogs::default()),
            [off, next, ..] if off.text == b"off" => {
                Err(cx.error_at(d, next, format!("invalid parameter \"{}\"", next.as_str())))
            }
            [first, rest @ ..] => {
                let log = log(d, first, rest, cx)?;
                let mut logs = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
                logs.push(log);
                Ok(AccessLogs(Arc::new(logs)))
            }
        }
    }
}

/// Reads the target `first`, and format and parameters behind it.
fn log<C>(d: &Directive, first: &Word, rest: &[Word], cx: &mut Scope<'_, C>) -> Result<AccessLog, Error>
where
    C: Context,
    C::Tables: Formats,
{
    let mut log = AccessLog::new(target(d, first, cx)?);
    let mut parameters = rest;
    if let Some((w, rest)) = rest.split_first()
        && !is_parameter(&w.text)
    {
        let format = cx.tables.format(&w.text);
        let unknown = || cx.error_at(d, w, format!("unknown log format \"{}\"", w.as_str()));
        log.format = format.ok_or_else(unknown)?;
        parameters = rest;
    }
    for w in parameters {
        parameter(&mut log, d, w, cx)?;
    }
    check_buffer(&log, &first.as_str()).map_err(|text| cx.error(d, text))?;
    if log.buffer != 0 {
        note_buffer(&log, first, cx).map_err(|text| cx.error(d, text))?;
    }
    Ok(log)
}

fn is_parameter(t: &[u8]) -> bool {
    t == b"gzip" || [b"buffer=".as_slice(), b"flush=", b"if=", b"gzip="].iter().any(|p| t.starts_with(p))
}

fn target<C: Context>(d: &Directive, w: &Word, cx: &mut Scope<'_, C>) -> Result<Target, Error> {
    if let Some(s) = w.text.strip_prefix(b"syslog:") {
        let target = Syslog::parse(&String::from_utf8_lossy(s)).map_err(|m| cx.error(d, m))?;
        return Ok(Target::Syslog(Arc::new(target)));
    }
    let t = cx.template(d, w)?;
    if t.as_const().is_none() {
        return Ok(Target::Path(t));
    }
    let path = if w.text.is_empty() { STDERR.into() } else { cx.full_path(&w.text) };
    Ok(Target::File(cx.log_file(path)))
}

/// Reads `buffer=`, `flush=`, `gzip` or `if=`.
fn parameter<C: Context>(
    log: &mut AccessLog,
    d: &Directive,
    w: &Word,
    cx: &mut Scope<'_, C>,
) -> Result<(), Error> {
    let text = w.as_str();
    let (name, value) = match text.split_once('=') {
        Some(parts) => parts,
        None if text == "gzip" => ("gzip", "1"),
        None => ("", ""),
    };
    // nginx prints only the value, except for an unknown parameter.
    let invalid = |what: &str| cx.error_at(d, w, format!("invalid {what} \"{value}\""));
    match (name, value.as_bytes()) {
        ("buffer", size) => {
            let size = units::size(size).filter(|n| *n > 0).ok_or_else(|| invalid("buffer size"))?;
            log.buffer = size as usize;
        }
        ("flush", time) => {
            let ms = units::time_ms(time).filter(|n| *n > 0).ok_or_else(|| invalid("flush time"))?;
            log.flush = Some(Duration::from_millis(ms));
        }
        ("gzip", level) => {
            let level = units::number(level)
                .filter(|n| (1..=9).contains(n))
                .ok_or_else(|| invalid("compression level"))?;
            log.gzip = Some(level as u32);
            log.buffer = if log.buffer == 0 { 64 * 1024 } else { log.buffer };
        }
        ("if", condition) => {
            let word = Word { text: condition.to_vec(), ..w.clone() };
            log.condition = Some(cx.template(d, &word)?);
        }
        _ => return Err(cx.error_at(d, w, format!("invalid parameter \"{text}\""))),
    }
    Ok(())
}

/// Checks that a log that is to be buffered can be.
fn check_buffer(log: &AccessLog, name: &str) -> Result<(), String> {
    match log.target {
        _ if log.buffer == 0 && log.flush.is_some() => {
            Err(format!("no buffer is defined for access_log \"{name}\""))
        }
        Target::Path(_) if log.buffer != 0 => Err("buffered logs cannot have variables in name".to_owned()),
        Target::Syslog(_) if log.buffer != 0 => Err("logs to syslog cannot be buffered".to_owned()),
        _ => Ok(()),
    }
}

/// Notes the buffer of a log file, which all directives that name the file must have in common.
fn note_buffer(log: &AccessLog, name: &Word, cx: &mut Build<'_>) -> Result<(), String> {
    // Like nginx: two spellings of one file name count as two logs.
    let file = cx.full_path(&name.text).into_os_string();
    let buffer = (log.buffer, log.flush, log.gzip);
    match cx.buffered_logs.get(&file) {
        Some(before) if *before != buffer => {
            let name = name.as_str();
            Err(format!("access_log \"{name}\" already defined with conflicting parameters"))
        }
        Some(_) => Ok(()),
        None => {
            cx.buffered_logs.insert(file, buffer);
            Ok(())
        }
    }
}

/// A `log_format` as it was read.
#[derive(Debug)]
pub struct LogFormat {
    /// Its name.
    pub name: Vec<u8>,
    /// Escaping of values.
    pub escape: Escape,
    /// Text with variables.
    pub template: Template,
    /// Error of the format.
    pub fault: Option<Error>,
}

/// Reads `log_format`.
///
/// # Errors
/// In nginx's words.
pub fn format<C>(d: &Directive, cx: &mut Scope<'_, C>) -> Result<LogFormat, Error>
where
    C: Context,
    C::Tables: Formats,
{
    let Some((name, rest)) = d.args.split_first() else { return Err(cx.error(d, "no name")) };
    if cx.tables.format(&name.text).is_some() {
        return Err(cx.error_at(d, name, format!("duplicate \"log_format\" name \"{}\"", name.as_str())));
    }
    let (escape, rest) = match rest.split_first() {
        Some((w, tail)) if w.text.starts_with(b"escape=") => (escape(d, w, cx)?, tail),
        _ => (Escape::Default, rest),
    };
    // Compile each word alone: a variable's name cannot extend into the next word.
    let mut template = Template::default();
    for w in rest {
        template.append(Template::compile_log(&w.text, &mut cx.vars).map_err(|m| cx.build.error(d, m))?);
    }
    // `$1` belongs to a match of a regular expression, and a log line has none.
    let capture =
        template.parts().iter().find_map(|p| if let Part::Capture(n) = p { Some(*n) } else { None });
    let fault = capture.map(|n| super::plain(&format!("unknown \"{n}\" variable")));
    Ok(LogFormat { name: name.text.clone(), escape, template, fault })
}

fn escape(d: &Directive, w: &Word, cx: &Build<'_>) -> Result<Escape, Error> {
    match w.text.strip_prefix(b"escape=").unwrap_or_default() {
        b"default" => Ok(Escape::Default),
        b"json" => Ok(Escape::Json),
        b"none" => Ok(Escape::None),
        v => {
            let text = format!("unknown log format escaping \"{}\"", String::from_utf8_lossy(v));
            Err(cx.error_at(d, w, text))
        }
    }
}

/// `open_log_file_cache`.
#[derive(Clone, Copy, Debug)]
pub struct LogFileCache(pub Option<FileLimits>);

impl<C: Context> Setting<C> for LogFileCache {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let mut policy = FileLimits {
            max: 0,
            inactive: Duration::from_secs(10),
            valid: Duration::from_secs(60),
            min_uses: 1,
        };
        for w in d.args.iter().filter(|w| w.text != b"off") {
            let text = w.as_str();
            let (name, value) = text.split_once('=').unwrap_or((&text, ""));
            let invalid =
                || cx.error_at(d, w, format!("invalid \"open_log_file_cache\" parameter \"{text}\""));
            let count = || units::number(value.as_bytes()).filter(|n| *n > 0).ok_or_else(invalid);
            let time = || units::time_secs(value.as_bytes()).map(Duration::from_secs).ok_or_else(invalid);
            match name {
                "max" => policy.max = count()?,
                "inactive" => policy.inactive = time()?,
                "valid" => policy.valid = time()?,
                "min_uses" => policy.min_uses = count()?,
                _ => return Err(invalid()),
            }
        }
        match policy.max {
            _ if d.args.iter().any(|w| w.text == b"off") => Ok(LogFileCache(None)),
            0 => Err(cx.error(d, "\"open_log_file_cache\" must have \"max\" parameter")),
            _ => Ok(LogFileCache(Some(policy))),
        }
    }
}
