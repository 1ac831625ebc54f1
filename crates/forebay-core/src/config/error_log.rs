//! `error_log` (nginx: ngx_core_module).

use super::main_settings::{ErrorLog, ErrorLogTarget, Form};
use super::value::{OptionalSetting, first};
use super::{Build, Context, Scope};
use crate::log::syslog::Syslog;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use std::sync::Arc;

/// Error logs of a level.
#[derive(Clone, Debug, Default)]
pub struct ErrorLogs(pub Arc<Vec<ErrorLog>>);

impl<C: Context> OptionalSetting<C> for ErrorLogs {
    fn read(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        let mut logs = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        logs.push(parse(d, cx)?);
        Ok(ErrorLogs(Arc::new(logs)))
    }
}

/// Reads one `error_log`.
///
/// # Errors
/// In nginx's words.
pub fn parse(d: &Directive, cx: &mut Build<'_>) -> Result<ErrorLog, Error> {
    let word = first(d);
    // Like nginx: an empty name means standard error.
    let target = if word == b"stderr" || word.is_empty() {
        ErrorLogTarget::Stderr
    } else if let Some(s) = word.strip_prefix(b"syslog:") {
        let text = String::from_utf8_lossy(s).into_owned();
        let target = Syslog::parse(&text).map_err(|m| cx.error(d, m))?;
        ErrorLogTarget::Syslog(Arc::new(target))
    } else if word.starts_with(b"memory:") {
        return Err(cx.error(d, "nginx was built without debug support"));
    } else {
        let path = cx.full_path(word);
        cx.log_file(path.clone());
        ErrorLogTarget::File(path)
    };
    let form = form(d, cx)?;
    Ok(ErrorLog { target, level: error_level(d, cx)?, form })
}

/// Words for the form of the lines.
const FORMS: [(&[u8], Form); 3] =
    [(b"json", Form::Json), (b"format=json", Form::Json), (b"format=text", Form::Text)];

fn form_of(word: &[u8]) -> Option<Form> {
    FORMS.iter().find(|(name, _)| *name == word).map(|(_, form)| *form)
}

/// Reads the form of the lines.
fn form(d: &Directive, cx: &Build<'_>) -> Result<Form, Error> {
    let mut form = None;
    for w in d.args.iter().skip(1) {
        let Some(named) = form_of(&w.text) else { continue };
        if form.replace(named).is_some() {
            return Err(cx.error_at(d, w, format!("duplicate parameter \"{}\"", w.as_str())));
        }
    }
    Ok(form.unwrap_or_default())
}

/// Levels by name.
const LEVELS: [Level; 8] = [
    Level::Emerg,
    Level::Alert,
    Level::Crit,
    Level::Error,
    Level::Warn,
    Level::Notice,
    Level::Info,
    Level::Debug,
];

/// Parts of the server whose lines of level `debug` nginx can log alone.
const DEBUG_PARTS: &[&str] =
    &["debug_core", "debug_alloc", "debug_mutex", "debug_event", "debug_http", "debug_mail", "debug_stream"];

/// Reads the level. Several `debug_...` levels may be given.
fn error_level(d: &Directive, cx: &Build<'_>) -> Result<Level, Error> {
    let mut level = None;
    let mut parts = false;
    for w in d.args.iter().skip(1).filter(|w| form_of(&w.text).is_none()) {
        let text = w.as_str();
        if DEBUG_PARTS.contains(&&*text) && (level.is_none() || parts) {
            level = Some(Level::Debug);
            parts = true;
            continue;
        }
        let Some(named) = LEVELS.into_iter().find(|l| l.as_str() == text) else {
            return Err(cx.error_at(d, w, format!("invalid log level \"{text}\"")));
        };
        if level.replace(named).is_some() {
            return Err(cx.error_at(d, w, format!("duplicate log level \"{text}\"")));
        }
    }
    Ok(level.unwrap_or(Level::Error))
}
