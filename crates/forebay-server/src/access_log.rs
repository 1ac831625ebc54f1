//! Access log: compiled formats, and the lines of a request (nginx: access_log, log_format). Hot path.

use crate::config::template::{Part, Template};
use crate::log_buffers;
use crate::modules::vars::push_field;
use crate::request::{Request, Slot, VarError};
use crate::thread::Thread;
use crate::variables::{Registry, VarId};
use forebay_http::field::Name;
use forebay_http::h1::response;
use std::rc::Rc;
use std::time::Duration;

/// How variable text is made safe (nginx: log_format, escape=).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Escape {
    /// `"`, `\`, and bytes below 32 or above 126 as `\xXX`; no value as `-`.
    #[default]
    Default,
    /// As JSON strings ask for.
    Json,
    /// As they are.
    None,
}

/// A compiled `log_format`.
#[derive(Clone, Debug)]
pub struct Format {
    /// Name.
    pub name: Vec<u8>,
    /// Escaping.
    pub escape: Escape,
    /// Text with variables.
    pub template: Template,
    /// The same, with shortcuts for what nearly every format has.
    ops: Vec<Op>,
}

/// Texts between variables are a few bytes as a rule: written as one register, whatever their length.
const SHORT: usize = 16;

/// Appends a value that needs no table of variables; `false`: there is none.
type Shortcut = fn(&Request, &mut Vec<u8>) -> bool;

#[derive(Clone, Debug)]
enum Op {
    Text(Box<[u8]>),
    /// A text of at most sixteen bytes, and its length.
    Short([u8; SHORT], usize),
    Capture(u8),
    Var(VarId),
    /// A field of the request, unless the variable has been set.
    Field(VarId, Name),
    /// A shortcut whose value never needs escaping.
    Plain(Shortcut),
    /// A shortcut for text that the client chose.
    Client(Shortcut),
    /// The request line.
    Line,
}

/// Shortcuts by the variable's name.
fn shortcut(name: &[u8]) -> Option<Op> {
    Some(match name {
        b"remote_addr" => Op::Plain(|r, o| {
            o.extend_from_slice(&r.remote);
            true
        }),
        b"time_local" => Op::Plain(|r, o| {
            o.extend_from_slice(&r.thread.clock.log_time());
            true
        }),
        b"status" => Op::Plain(|r, o| {
            o.extend_from_slice(&response::three_digits(r.logged_status()));
            true
        }),
        b"body_bytes_sent" => Op::Plain(|r, o| {
            response::number(o, r.sent.saturating_sub(r.sent_head));
            true
        }),
        b"request" => Op::Line,
        b"remote_user" => Op::Client(|r, o| {
            if r.head.get(Name::Authorization).is_none() {
                return false;
            }
            crate::modules::vars::push_remote_user(r, o)
        }),
        _ => return None,
    })
}

/// Fields of the request by the variable's name.
fn field(name: &[u8]) -> Option<Name> {
    Some(match name {
        b"http_referer" => Name::Referer,
        b"http_user_agent" => Name::UserAgent,
        b"http_host" => Name::Host,
        b"http_x_forwarded_for" => Name::XForwardedFor,
        _ => return None,
    })
}

impl Format {
    /// A format from its text.
    pub fn new(name: &[u8], escape: Escape, template: Template, vars: &Registry) -> Format {
        let ops = template.parts().iter().map(|p| match p {
            Part::Text(t) if t.len() <= SHORT => {
                let mut bytes = [0; SHORT];
                bytes.iter_mut().zip(t.iter()).for_each(|(b, t)| *b = *t);
                Op::Short(bytes, t.len())
            }
            Part::Text(t) => Op::Text(t.clone()),
            Part::Capture(n) => Op::Capture(*n),
            Part::Var(v) => vars.name(*v).and_then(shortcut).unwrap_or(Op::Var(*v)),
        });
        Format { name: name.to_vec(), escape, ops: ops.collect(), template }
    }

    /// Puts shortcuts in for fields of the request, when all that may define a variable has been read.
    pub fn settle(&mut self, vars: &Registry) {
        for op in &mut self.ops {
            if let Op::Var(v) = *op
                && let Some(name) = vars.member(v).and_then(field)
            {
                *op = Op::Field(v, name);
            }
        }
    }

    /// Appends a line for a request, its newline not included.
    ///
    /// # Errors
    /// As [`Request::var`].
    pub fn write(&self, req: &mut Request, out: &mut Vec<u8>) -> Result<(), VarError> {
        for op in &self.ops {
            let start = out.len();
            let (found, plain) = match op {
                Op::Short(bytes, len) => {
                    out.extend_from_slice(bytes);
                    out.truncate(start + len);
                    continue;
                }
                Op::Text(t) => {
                    out.extend_from_slice(t);
                    continue;
                }
                Op::Capture(n) => {
                    req.capture(*n, out);
                    (true, false)
                }
                Op::Var(v) => (req.var(*v, out)?, false),
                Op::Line => {
                    let line = req.head.request_line.of(&req.head.buf);
                    self.put(Some(line).filter(|l| !l.is_empty()), out);
                    continue;
                }
                Op::Field(v, name) => match req.slots.get(usize::from(v.0)) {
                    Some(Slot::Empty) | None => {
                        if let Some(text) = req.head.only(*name) {
                            self.put(text, out);
                            continue;
                        }
                        (push_field(req, *name, out), false)
                    }
                    _ => (req.var(*v, out)?, false),
                },
                Op::Plain(get) => (get(req, out), true),
                Op::Client(get) => (get(req, out), false),
            };
            match self.escape {
                Escape::Default if !found => out.push(b'-'),
                _ if plain => {}
                escape => escape.apply(out, start),
            }
        }
        Ok(())
    }

    /// Appends text that the client chose. It is looked at where it lies: what has just been written cannot be read at once.
    #[inline]
    fn put(&self, text: Option<&[u8]>, out: &mut Vec<u8>) {
        let start = out.len();
        match (text, self.escape) {
            (None, Escape::Default) => out.push(b'-'),
            (None, _) => {}
            (Some(text), escape) => {
                out.extend_from_slice(text);
                if escape != Escape::Default || is_dirty(text) {
                    escape.apply(out, start);
                }
            }
        }
    }
}

/// Whether text needs escaping in the default format.
fn is_unsafe(b: u8) -> bool {
    b.wrapping_sub(32) > 94 || b == b'"' || b == b'\\'
}

/// Whether any of the bytes does. The test runs over whole registers: nearly all text is clean.
#[inline]
fn is_dirty(text: &[u8]) -> bool {
    text.iter().fold(false, |any, b| any | is_unsafe(*b))
}

impl Escape {
    /// Escapes the bytes of `out` from `start`.
    fn apply(self, out: &mut Vec<u8>, start: usize) {
        match self {
            Escape::Default if is_dirty(out.get(start..).unwrap_or_default()) => {
                escape_from(out, start, is_unsafe, push_hex);
            }
            Escape::Json => escape_from(out, start, |b| b < 32 || b == b'"' || b == b'\\', push_json),
            Escape::Default | Escape::None => {}
        }
    }
}

/// Escapes the bytes of `out` from `start`, where there is anything to escape.
fn escape_from(out: &mut Vec<u8>, start: usize, unsafe_byte: fn(u8) -> bool, push: fn(&mut Vec<u8>, u8)) {
    let Some(first) = out[start..].iter().position(|b| unsafe_byte(*b)) else { return };
    let tail = out.split_off(start + first);
    for b in tail {
        if unsafe_byte(b) { push(out, b) } else { out.push(b) }
    }
}

fn push_hex(out: &mut Vec<u8>, b: u8) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(&[b'\\', b'x', HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]]);
}

fn push_json(out: &mut Vec<u8>, b: u8) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    match b {
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', b]),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        0x08 => out.extend_from_slice(b"\\b"),
        0x0c => out.extend_from_slice(b"\\f"),
        _ => out.extend_from_slice(&[
            b'\\',
            b'u',
            b'0',
            b'0',
            HEX[usize::from(b >> 4)],
            HEX[usize::from(b & 15)],
        ]),
    }
}

/// Where lines of an `access_log` go.
#[derive(Clone, Debug)]
pub enum Target {
    /// Log file by its number in `Config::log_files`.
    File(usize),
    /// A path with variables, opened by the worker.
    Path(Template),
    /// `syslog:...`.
    Syslog(std::sync::Arc<crate::syslog::Syslog>),
}

/// One `access_log`.
#[derive(Clone, Debug)]
pub struct AccessLog {
    /// Target.
    pub target: Target,
    /// Index of the format.
    pub format: usize,
    /// `buffer=`, bytes; 0 = lines are written at the end of the turn of the loop.
    pub buffer: usize,
    /// `flush=`.
    pub flush: Option<Duration>,
    /// `gzip=` level.
    pub gzip: Option<u32>,
    /// `if=`.
    pub condition: Option<Template>,
}

/// Writes the lines of a finished request.
pub fn log_request(req: &mut Request) {
    let http = req.http();
    let Some(location) = http.locations.get(req.location) else { return };
    let logs = &location.settings.log.access_log;
    if logs.0.is_empty() {
        return;
    }
    let thread = req.thread.clone();
    let mut line = std::mem::take(&mut thread.log_buffers.borrow_mut().scratch);
    for l in logs.0.iter() {
        line.clear();
        if let Some(c) = &l.condition {
            let ok = c.eval(req, &mut line).is_ok();
            if !ok || line.is_empty() || line == b"0" {
                continue;
            }
            line.clear();
        }
        if let Some(f) = http.log_formats.get(l.format)
            && f.write(req, &mut line).is_ok()
        {
            deliver(req, &thread, l, &mut line);
        }
    }
    thread.log_buffers.borrow_mut().scratch = line;
}

#[inline]
fn deliver(req: &mut Request, thread: &Thread, l: &AccessLog, line: &mut Vec<u8>) {
    match &l.target {
        Target::File(n) => {
            line.push(b'\n');
            if Rc::ptr_eq(&req.conf, &thread.conf.borrow()) {
                log_buffers::append(thread, *n, l, line);
            } else {
                log_buffers::write_late(thread, req, *n, l, line);
            }
        }
        Target::Path(t) => {
            line.push(b'\n');
            crate::modules::log::write_variable_path(req, t, line);
        }
        Target::Syslog(target) => crate::syslog::send_access(thread, target, line),
    }
}
