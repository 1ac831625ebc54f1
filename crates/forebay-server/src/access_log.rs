//! Access log: compiled formats, and the lines of a request (nginx: access_log, log_format). Hot path.

use crate::modules::vars::push_field;
use crate::request::Request;
use crate::thread::Thread;
use crate::variables::Registry;
use crate::way;
use forebay_core::log::access::{AccessLog, Escape, Target, is_dirty, write_line};
use forebay_core::log::buffers;
use forebay_core::trace::{self, Step};
use forebay_core::vars::VarId;
use forebay_core::vars::{Part, Template};
use forebay_core::vars::{Stored, VarError};
use forebay_http::field::Name;
use forebay_http::h1::response;
use std::rc::Rc;

/// A compiled `log_format`.
#[derive(Clone, Debug)]
pub struct Format {
    /// Name.
    pub name: Vec<u8>,
    /// Escaping.
    pub escape: Escape,
    /// Text with variables.
    pub template: Template,
    /// `template` with shortcuts for the usual variables.
    ops: Vec<FormatPart>,
}

/// Size of a short text. Texts between variables are usually a few bytes, so they are copied as one register, whatever
/// their length.
const SHORT: usize = 16;

/// Function that appends a value without the table of variables. Returns `false` if there is no value.
type Shortcut = fn(&Request, &mut Vec<u8>) -> bool;

#[derive(Clone, Debug)]
enum FormatPart {
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
    /// All parts of [`LEAD`], with the numbers of the variables for its two fields.
    Lead(VarId, VarId),
}

/// Beginning of nearly every format, handled as one operation: dispatching each part costs more than appending it.
const LEAD: [&[u8]; 15] = [
    b"$remote_addr",
    b" - ",
    b"$remote_user",
    b" [",
    b"$time_local",
    b"] \"",
    b"$request",
    b"\" ",
    b"$status",
    b" ",
    b"$body_bytes_sent",
    b" \"",
    b"$http_referer",
    b"\" \"",
    b"$http_user_agent",
];

/// Shortcuts by the names of variables.
const SHORTCUTS: &[(&[u8], FormatPart)] = &[
    (b"remote_addr", FormatPart::Plain(remote_addr)),
    (b"time_local", FormatPart::Plain(time_local)),
    (b"status", FormatPart::Plain(status)),
    (b"body_bytes_sent", FormatPart::Plain(body_bytes_sent)),
    (b"request", FormatPart::Line),
    (b"remote_user", FormatPart::Client(remote_user)),
];

/// Returns the shortcut for a variable.
fn shortcut(name: &[u8]) -> Option<FormatPart> {
    SHORTCUTS.iter().find(|(n, _)| *n == name).map(|(_, op)| op.clone())
}

fn remote_addr(r: &Request, o: &mut Vec<u8>) -> bool {
    o.extend_from_slice(&r.remote);
    true
}

fn time_local(r: &Request, o: &mut Vec<u8>) -> bool {
    o.extend_from_slice(&r.thread.clock.log_time());
    true
}

fn status(r: &Request, o: &mut Vec<u8>) -> bool {
    o.extend_from_slice(&response::three_digits(r.logged_status()));
    true
}

fn body_bytes_sent(r: &Request, o: &mut Vec<u8>) -> bool {
    response::number(o, r.tally.sent_body());
    true
}

fn remote_user(r: &Request, o: &mut Vec<u8>) -> bool {
    // Few requests have credentials, and the others need no decoding.
    r.head.get(Name::Authorization).is_some() && crate::modules::vars::push_remote_user(r, o)
}

/// Returns the request field of a variable.
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
    /// Creates a format.
    pub fn new(name: &[u8], escape: Escape, template: Template, vars: &Registry) -> Format {
        let ops = template.parts().iter().map(|p| match p {
            Part::Text(t) if t.len() <= SHORT => {
                let mut bytes = [0; SHORT];
                bytes.iter_mut().zip(t.iter()).for_each(|(b, t)| *b = *t);
                FormatPart::Short(bytes, t.len())
            }
            Part::Text(t) => FormatPart::Text(t.clone()),
            Part::Capture(n) => FormatPart::Capture(*n),
            Part::Var(v) => vars.name(*v).and_then(shortcut).unwrap_or(FormatPart::Var(*v)),
        });
        Format { name: name.to_vec(), escape, ops: ops.collect(), template }
    }

    /// Replaces variables by shortcuts to request fields. Call it after all directives that may define variables.
    pub fn plan(&mut self, vars: &Registry) {
        for op in &mut self.ops {
            if let FormatPart::Var(v) = *op
                && let Some(name) = vars.member(v).and_then(field)
            {
                *op = FormatPart::Field(v, name);
            }
        }
        // The fields have been found above, so their places in the list are known.
        if self.begins_as_usual(vars)
            && let (Some(FormatPart::Field(referer, _)), Some(FormatPart::Field(agent, _))) =
                (self.ops.get(12), self.ops.get(14))
        {
            let lead = FormatPart::Lead(*referer, *agent);
            self.ops.splice(..LEAD.len(), [lead]);
        }
    }

    /// Returns `true` if the format begins with the parts of [`LEAD`], with the default escaping.
    fn begins_as_usual(&self, vars: &Registry) -> bool {
        let parts = self.template.parts();
        let name = |v: &VarId| vars.name(*v).or_else(|| vars.member(*v));
        let is_part = |(part, lead): (&Part, &[u8])| match (part, lead.strip_prefix(b"$")) {
            (Part::Text(t), None) => **t == *lead,
            (Part::Var(v), Some(var)) => name(v) == Some(var),
            _ => false,
        };
        self.escape == Escape::Default && parts.len() >= LEAD.len() && parts.iter().zip(LEAD).all(is_part)
    }

    /// Appends a line for a request, without a newline.
    ///
    /// # Errors
    /// As [`Request::var`].
    pub fn write(&self, req: &mut Request, out: &mut Vec<u8>) -> Result<(), VarError> {
        if req.without_head {
            // The shortcuts read the head, which is gone.
            return write_line(&self.template, self.escape, req, out);
        }
        for op in &self.ops {
            let start = out.len();
            let (found, plain) = match op {
                FormatPart::Short(bytes, len) => {
                    // The array is copied whole, as one register, and cut to the length of the text after that.
                    out.extend_from_slice(bytes);
                    out.truncate(start + len);
                    continue;
                }
                FormatPart::Text(t) => {
                    out.extend_from_slice(t);
                    continue;
                }
                FormatPart::Capture(n) => {
                    req.captures.push(*n, out);
                    (true, false)
                }
                FormatPart::Var(v) => (req.var(*v, out)?, false),
                FormatPart::Line => {
                    self.line(req, out);
                    continue;
                }
                FormatPart::Field(v, name) => {
                    self.field(req, *v, *name, out)?;
                    continue;
                }
                FormatPart::Lead(referer, agent) => {
                    self.lead(req, *referer, *agent, out)?;
                    continue;
                }
                FormatPart::Plain(get) => (get(req, out), true),
                FormatPart::Client(get) => (get(req, out), false),
            };
            self.end_value(out, start, found, plain);
        }
        Ok(())
    }

    /// Escapes the value that `out` holds from `start` on.
    #[inline]
    fn end_value(&self, out: &mut Vec<u8>, start: usize, found: bool, plain: bool) {
        match self.escape {
            // As in nginx, only the default escaping shows a missing value as a hyphen.
            Escape::Default if !found => out.push(b'-'),
            // Numbers, dates and addresses have no characters that need escaping.
            _ if plain => {}
            escape => escape.apply(out, start),
        }
    }

    /// Appends the request line.
    #[inline]
    fn line(&self, req: &Request, out: &mut Vec<u8>) {
        let line = req.head.request_line.of(&req.head.buf);
        self.put(Some(line).filter(|l| !l.is_empty()), out);
    }

    /// Appends a field of the request, or the value that the variable has been set to.
    #[inline]
    fn field(&self, req: &mut Request, v: VarId, name: Name, out: &mut Vec<u8>) -> Result<(), VarError> {
        let start = out.len();
        let found = match req.vars.get(v) {
            Stored::Empty => {
                if let Some(text) = req.head.only(name) {
                    self.put(text, out);
                    return Ok(());
                }
                push_field(req, name, out)
            }
            _ => req.var(v, out)?,
        };
        self.end_value(out, start, found, false);
        Ok(())
    }

    /// Appends the variables and texts of [`LEAD`].
    fn lead(
        &self,
        req: &mut Request,
        referer: VarId,
        agent: VarId,
        out: &mut Vec<u8>,
    ) -> Result<(), VarError> {
        out.extend_from_slice(&req.remote);
        out.extend_from_slice(b" - ");
        let start = out.len();
        let found = remote_user(req, out);
        self.end_value(out, start, found, false);
        out.extend_from_slice(b" [");
        out.extend_from_slice(&req.thread.clock.log_time());
        out.extend_from_slice(b"] \"");
        self.line(req, out);
        let [a, b, c] = response::three_digits(req.logged_status());
        out.extend_from_slice(&[b'"', b' ', a, b, c, b' ']);
        body_bytes_sent(req, out);
        out.extend_from_slice(b" \"");
        self.field(req, referer, Name::Referer, out)?;
        out.extend_from_slice(b"\" \"");
        self.field(req, agent, Name::UserAgent, out)
    }

    /// Appends text that the client chose. Checks the source rather than the copy: loading bytes right after storing
    /// them would stall.
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

/// Writes the lines of a finished request.
pub fn log_request(req: &mut Request) {
    let http = req.http();
    let Some(location) = http.level(req.server, req.location) else { return };
    let logs = &location.settings.log.access_log;
    if logs.0.is_empty() {
        return;
    }
    let thread = req.thread.clone();
    let mut line = std::mem::take(&mut thread.log_buffers.borrow_mut().scratch);
    for l in logs.0.iter() {
        line.clear();
        if let Some(c) = &l.condition {
            // As in nginx, the line is left out if the value is empty or `0`.
            let ok = c.eval(req, &mut line).is_ok();
            if !ok || line.is_empty() || line == b"0" {
                continue;
            }
            line.clear();
        }
        if let Some(f) = http.log_formats.get(l.format)
            && f.write(req, &mut line).is_ok()
        {
            way::note(req, || Step::new("log").fact("line", &line).about(&["access_log"]));
            if !trace::is_on() {
                deliver(req, &thread, l, &mut line);
            }
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
                buffers::append(thread, *n, l, line);
            } else {
                buffers::write_late(thread, &req.conf, *n, l, line);
            }
        }
        Target::Path(t) => {
            line.push(b'\n');
            crate::modules::log::write_variable_path(req, t, line);
        }
        Target::Syslog(target) => forebay_core::log::syslog::send_access(thread, target, line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_beginning_is_one_operation() {
        let req = crate::testing::request(
            "log_format main '$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
             \"$http_referer\" \"$http_user_agent\" \"$http_x_forwarded_for\"'; \
             log_format other '$remote_addr - $remote_user [$time_local]';",
            "",
        );
        let http = req.http();
        let ops: Vec<_> = http.log_formats.iter().map(|f| f.ops.as_slice()).collect();
        assert!(matches!(ops[0], [FormatPart::Lead(..), FormatPart::Short(..)]), "combined: {:?}", ops[0]);
        assert!(
            matches!(
                ops[1],
                [FormatPart::Lead(..), FormatPart::Short(..), FormatPart::Field(..), FormatPart::Short(..)]
            ),
            "{:?}",
            ops[1]
        );
        assert!(!ops[2].iter().any(|op| matches!(op, FormatPart::Lead(..))), "{:?}", ops[2]);
    }
}
