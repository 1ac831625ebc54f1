//! Access log: compiled formats, and the lines of a session (nginx: ngx_stream_log_module).

use crate::session::Session;
use forebay_conf::error::Level;
use forebay_core::log::access::{AccessLog, Escape, Target, write_line};
use forebay_core::log::{buffers, files, syslog};
use forebay_core::vars::Template;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;

/// A compiled `log_format`.
#[derive(Clone, Debug)]
pub(crate) struct Format {
    /// Name.
    pub name: Vec<u8>,
    /// Escaping.
    pub escape: Escape,
    /// Text with variables.
    pub template: Template,
}

/// Writes the lines of a session that has ended.
pub(crate) fn log_session(s: &mut Session) {
    let stream = s.stream();
    let Some(server) = stream.servers.get(s.server) else { return };
    let logs = server.settings.log.access_log.clone();
    for l in logs.0.iter() {
        let mut line = Vec::new();
        if let Some(c) = &l.condition {
            let ok = c.eval(s, &mut line).is_ok();
            if !ok || line.is_empty() || line == b"0" {
                continue;
            }
            line.clear();
        }
        if let Some(f) = stream.log_formats.get(l.format)
            && write_line(&f.template, f.escape, s, &mut line).is_ok()
        {
            deliver(s, l, &mut line);
        }
    }
}

fn deliver(s: &mut Session, l: &AccessLog, line: &mut Vec<u8>) {
    let thread = s.thread.clone();
    match &l.target {
        Target::File(n) => {
            line.push(b'\n');
            if Rc::ptr_eq(&s.conf, &thread.conf.borrow()) {
                buffers::append(&thread, *n, l, line);
            } else {
                buffers::write_late(&thread, &s.conf, *n, l, line);
            }
        }
        Target::Path(path) => {
            line.push(b'\n');
            write_variable_path(s, path, line);
        }
        Target::Syslog(target) => syslog::send_access(&thread, target, line),
    }
}

/// Writes a line to a log whose path has variables. The file is opened for each line unless `open_log_file_cache` keeps it.
fn write_variable_path(s: &mut Session, path: &Template, line: &[u8]) {
    let Ok(text) = path.value(s) else { return };
    if text.is_empty() || text.contains(&0) {
        return;
    }
    let mut full = Vec::new();
    if text.first() != Some(&b'/') {
        full.extend_from_slice(&s.conf.config.prefix);
    }
    full.extend_from_slice(&text);
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(&full));
    let stream = s.stream();
    let Some(server) = stream.servers.get(s.server) else { return };
    let policy = server.settings.log.open_log_file_cache.0;
    if let Err(e) = files::append(&path, line, policy) {
        let text = forebay_sys::errno::errno_text(e);
        s.log(Level::Crit, &format!("open() \"{}\" failed {text} while logging session", path.display()));
    }
}
