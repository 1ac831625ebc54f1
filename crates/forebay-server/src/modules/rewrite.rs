//! `rewrite`, `return`, `set`, `if`, `break` (nginx: ngx_http_rewrite_module).

use crate::config::Scope;
use crate::config::http::{LocationBuild, LocationId};
use crate::module::Module;
use crate::request::Request;
use crate::way;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::{Directive, Place, Word};
use forebay_conf::units;
use forebay_core::pattern::{LimitExceeded, Pattern};
use forebay_core::vars::Names;
use forebay_core::vars::VarError;
use forebay_core::vars::VarId;
use forebay_core::vars::{Part, Template};
use forebay_http::uri::{self, Escape};
use std::sync::Arc;

forebay_core::settings! {
    /// `rewrite_log`.
    "rewrite_log" => rewrite_log: bool = false;
    /// `uninitialized_variable_warn`.
    "uninitialized_variable_warn" => uninitialized_variable_warn: bool = true;
}

/// Next step after a `rewrite` that matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// Goes on with the next directive.
    Continue,
    /// `last`: looks up the location again.
    Last,
    /// `break`: stays in this location.
    Break,
    /// `redirect`, `permanent`, or a replacement that is a URL.
    Redirect(u16),
}

/// A directive of another module that runs in order with the rewrite directives of its level.
pub trait Operation: std::fmt::Debug + Send + Sync {
    /// Runs the directive.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    fn run(&self, req: &mut Request) -> Result<(), VarError>;
}

/// A compiled directive with its place.
#[derive(Clone, Debug)]
pub struct Statement {
    /// The directive.
    pub op: Op,
    /// Its place.
    pub at: Place,
}

/// One compiled directive.
#[derive(Clone, Debug)]
pub enum Op {
    /// `set`.
    Set(VarId, Template),
    /// A directive of another module that runs in order with these.
    Run(Arc<dyn Operation>),
    /// `if` with its block. Directives of other modules in the block form a level of their own.
    If {
        /// Condition of the block.
        cond: Condition,
        /// Level to switch to if the condition holds.
        location: Option<LocationId>,
        /// Rewrite directives of the block.
        ops: Vec<Statement>,
    },
    /// `rewrite`.
    Rewrite {
        /// Pattern for the path.
        pattern: Pattern,
        /// New path or URL.
        replacement: Template,
        /// `true` if the query of the request is appended.
        keep_args: bool,
        /// Next step after a match.
        flag: Flag,
    },
    /// `return`.
    Return {
        /// Status; 302 for `return URL`.
        status: u16,
        /// Text or URL.
        text: Option<Template>,
    },
    /// `break`.
    Break,
    /// `goto`: a named location.
    Goto(Arc<Target>),
}

/// Named location of a `goto`.
#[derive(Debug)]
pub struct Target {
    /// Its name with the `@`.
    pub name: Vec<u8>,
    /// An error at the directive, with an empty text.
    at: Error,
}

/// Checks that a server has the named locations of the `goto` directives among these and in their blocks.
///
/// # Errors
/// The first that it does not have.
pub fn check_targets(ops: &[Statement], is_known: &impl Fn(&[u8]) -> bool) -> Result<(), Error> {
    ops.iter().try_for_each(|statement| match &statement.op {
        Op::If { ops, .. } => check_targets(ops, is_known),
        Op::Goto(target) if !is_known(&target.name) => {
            let name = String::from_utf8_lossy(&target.name);
            let message = format!("could not find named location \"{name}\"");
            Err(Error { message, ..target.at.clone() })
        }
        _ => Ok(()),
    })
}

/// Test of an `if`. The last field of the variants negates it.
#[derive(Clone, Debug)]
pub enum Condition {
    /// A variable that is neither empty nor `0`.
    Var(VarId),
    /// `=` or `!=`.
    Equal(VarId, Template, bool),
    /// `~`, `~*`, `!~` or `!~*`.
    Match(VarId, Pattern, bool),
    /// `-f`, `-d`, `-e`, `-x` or one of them with `!`. The first field is the letter.
    File(u8, Template, bool),
}

/// `rewrite`.
pub static MODULE: Module = Module {
    location_directives: &[
        ("rewrite", directive),
        ("return", directive),
        ("set", directive),
        ("break", directive),
        ("goto", directive),
    ],
    ..Module::NONE
};

/// Compiles `rewrite`, `return`, `set`, `break` or `goto` into a level.
///
/// # Errors
/// In nginx's words.
fn directive(d: &Directive, l: &mut LocationBuild, cx: &mut Scope<'_>) -> Result<(), Error> {
    let op = match d.name.text.as_slice() {
        b"break" => Ok(Op::Break),
        b"goto" => goto(d, cx),
        b"set" => set(d, cx),
        b"return" => ret(d, cx),
        _ => rewrite(d, cx),
    };
    l.add_op(d, op?);
    Ok(())
}

fn goto(d: &Directive, cx: &mut Scope<'_>) -> Result<Op, Error> {
    match d.args.as_slice() {
        [name] if name.text.starts_with(b"@") => {
            Ok(Op::Goto(Arc::new(Target { name: name.text.clone(), at: cx.error(d, "") })))
        }
        [name, ..] => Err(cx.error_at(d, name, format!("\"{}\" is not a named location", name.as_str()))),
        [] => Err(cx.error(d, "no value")),
    }
}

fn set(d: &Directive, cx: &mut Scope<'_>) -> Result<Op, Error> {
    let [name, value] = d.args.as_slice() else { return Err(cx.error(d, "invalid number of arguments")) };
    let var = variable(d, name, cx)?;
    let id = cx.vars.define_stored(var).map_err(|m| cx.error_at(d, name, m))?;
    cx.vars.note_set(id);
    Ok(Op::Set(id, cx.template(d, value)?))
}

/// Returns the variable that a directive sets. Defines it if necessary.
///
/// # Errors
/// `invalid variable name`, or a variable that cannot be set.
pub fn variable_to_set(d: &Directive, name: &Word, cx: &mut Scope<'_>) -> Result<VarId, Error> {
    let var = variable(d, name, cx)?;
    let id = cx.vars.define_stored(var).map_err(|m| cx.error_at(d, name, m))?;
    Ok(id)
}

fn variable<'w>(d: &Directive, w: &'w Word, cx: &Scope<'_>) -> Result<&'w [u8], Error> {
    match w.text.strip_prefix(b"$") {
        Some(n) if !n.is_empty() => Ok(n),
        _ => Err(cx.error_at(d, w, format!("invalid variable name \"{}\"", w.as_str()))),
    }
}

fn is_url(t: &[u8]) -> bool {
    // nginx recognizes a URL by the same three beginnings.
    [b"http://".as_slice(), b"https://", b"$scheme"].iter().any(|p| t.starts_with(p))
}

fn ret(d: &Directive, cx: &mut Scope<'_>) -> Result<Op, Error> {
    let Some(first) = d.args.first() else { return Err(cx.error(d, "no value")) };
    let number = units::number(&first.text);
    if number.is_none() && d.args.len() == 1 && is_url(&first.text) {
        return Ok(Op::Return { status: 302, text: Some(cx.template(d, first)?) });
    }
    let Some(n) = number.filter(|n| *n <= 999) else {
        return Err(cx.error_at(d, first, format!("invalid return code \"{}\"", first.as_str())));
    };
    let text = d.args.get(1).map(|w| cx.template(d, w)).transpose()?;
    Ok(Op::Return { status: n as u16, text })
}

/// Returns the flag of a `rewrite`, or the one that its replacement implies.
fn flag(d: &Directive, replacement: &Word, cx: &Scope<'_>) -> Result<Flag, Error> {
    let named = d.args.get(2).map(|w| named_flag(d, w, cx)).transpose()?;
    Ok(match named {
        Some(Flag::Redirect(status)) => Flag::Redirect(status),
        // A URL is a redirect in spite of `last` and `break`.
        _ if is_url(&replacement.text) => Flag::Redirect(302),
        named => named.unwrap_or(Flag::Continue),
    })
}

fn rewrite(d: &Directive, cx: &mut Scope<'_>) -> Result<Op, Error> {
    let (Some(re), Some(to)) = (d.args.first(), d.args.get(1)) else { return Err(cx.error(d, "no value")) };
    let pattern = cx.pattern(d, &re.text, false)?;
    let flag = flag(d, to, cx)?;
    if to.text.is_empty() {
        return Err(cx.error_at(d, to, "empty replacement"));
    }
    // A question mark at the end means that the query of the request is not appended.
    let path = to.text.strip_suffix(b"?");
    let keep_args = path.is_none();
    let word = Word { text: path.unwrap_or(&to.text).to_vec(), ..to.clone() };
    Ok(Op::Rewrite { pattern, replacement: cx.template(d, &word)?, keep_args, flag })
}

fn named_flag(d: &Directive, w: &Word, cx: &Scope<'_>) -> Result<Flag, Error> {
    Ok(match w.text.as_slice() {
        b"last" => Flag::Last,
        b"break" => Flag::Break,
        b"redirect" => Flag::Redirect(302),
        b"permanent" => Flag::Redirect(301),
        _ => return Err(cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str()))),
    })
}

/// Reads the condition of an `if`.
///
/// # Errors
/// In nginx's words.
pub fn condition(d: &Directive, cx: &mut Scope<'_>) -> Result<Condition, Error> {
    let words = without_parentheses(d, cx)?;
    let Some((first, others)) = words.split_first() else { return Err(cx.error(d, "invalid condition")) };
    if let [b'$', _, ..] = first.text.as_slice() {
        return comparison(d, first, others, cx);
    }
    match (negation(&first.text), others) {
        (([b'-', test @ (b'f' | b'd' | b'e' | b'x')], negated), [arg]) => {
            Ok(Condition::File(*test, cx.template(d, arg)?, negated))
        }
        _ => Err(invalid_condition(d, first, cx)),
    }
}

fn invalid_condition(d: &Directive, w: &Word, cx: &Scope<'_>) -> Error {
    cx.error_at(d, w, format!("invalid condition \"{}\"", w.as_str()))
}

/// Returns the words between the parentheses of an `if`.
fn without_parentheses(d: &Directive, cx: &Scope<'_>) -> Result<Vec<Word>, Error> {
    let mut words: Vec<Word> = d.args.clone();
    let Some(first) = words.first_mut() else { return Err(cx.error(d, "invalid condition")) };
    if first.text.first() != Some(&b'(') {
        return Err(invalid_condition(d, first, cx));
    }
    first.text.remove(0);
    if first.text.is_empty() && words.len() > 1 {
        words.remove(0);
    }
    let alone = words.len() == 1;
    let Some(last) = words.last_mut() else { return Err(cx.error(d, "invalid condition")) };
    // nginx reports an empty condition, `if ()`, in the same way.
    if last.text.last() != Some(&b')') || last.text.len() == 1 && alone {
        return Err(invalid_condition(d, last, cx));
    }
    last.text.pop();
    if last.text.is_empty() && words.len() > 1 {
        words.pop();
    }
    Ok(words)
}

/// Reads a condition that begins with a variable: the variable alone, or the variable with an operator and a value after it.
fn comparison(d: &Directive, first: &Word, others: &[Word], cx: &mut Scope<'_>) -> Result<Condition, Error> {
    let id = cx.vars.reference(first.text.get(1..).unwrap_or_default());
    match others {
        [] => Ok(Condition::Var(id)),
        [op, arg] => operation(d, id, op, arg, cx),
        _ => Err(invalid_condition(d, first, cx)),
    }
}

/// Reads the comparison of a variable with a value or pattern.
fn operation(
    d: &Directive,
    id: VarId,
    op: &Word,
    arg: &Word,
    cx: &mut Scope<'_>,
) -> Result<Condition, Error> {
    match negation(&op.text) {
        (b"=", negated) => Ok(Condition::Equal(id, cx.template(d, arg)?, negated)),
        (o @ (b"~" | b"~*"), negated) => {
            Ok(Condition::Match(id, cx.pattern(d, &arg.text, o == b"~*")?, negated))
        }
        _ => Err(cx.error_at(d, op, format!("unexpected \"{}\" in condition", op.as_str()))),
    }
}

/// Splits off the exclamation mark that negates a test. Returns the test, and whether it is negated.
fn negation(text: &[u8]) -> (&[u8], bool) {
    match text.strip_prefix(b"!") {
        Some(test) => (test, true),
        None => (text, false),
    }
}

/// Result of running the directives of a level.
pub enum Ran {
    /// The request stays in this location: the path is unchanged, or `break` ended the directives.
    Through,
    /// The path changed, so the location has to be looked up again.
    UriChanged,
    /// The request is answered with this status.
    Status(u16),
    /// The response is complete.
    Done,
    /// The request goes on in the named location that `Request::location` has been set to.
    Named,
}

enum Step {
    Next,
    Stop(Ran),
}

/// Runs the directives of a level.
pub fn run(req: &mut Request, ops: &[Statement]) -> Ran {
    let mut walk = RunState { changed: false, quote: true };
    match steps(req, ops, &mut walk) {
        Ok(Step::Stop(ran)) => ran,
        Ok(Step::Next) if walk.changed => Ran::UriChanged,
        Ok(Step::Next) => Ran::Through,
        Err(why) => {
            req.log_var_error(&why);
            Ran::Status(500)
        }
    }
}

/// State of one walk through the directives.
struct RunState {
    /// `true` if a `rewrite` changed the path.
    changed: bool,
    /// `true` if `set` encodes captures, which it does until the first `rewrite` has matched.
    quote: bool,
}

/// Returns `true` if the path of the request's target contains encoded bytes (`%` or `+`).
fn encoded(req: &Request) -> bool {
    let target = req.head.target.of(&req.head.buf);
    let path = memchr::memchr(b'?', target).map_or(target, |at| &target[..at]);
    memchr::memchr2(b'%', b'+', path).is_some()
}

/// Appends a capture, encoded as in a query.
fn push_escaped(req: &mut Request, n: u8, out: &mut Vec<u8>) {
    let mut raw = req.take_buf();
    req.captures.push(n, &mut raw);
    uri::escape(&raw, Escape::Args, out);
    req.give_buf(raw);
}

/// Appends the value of a `set`.
fn set_value(req: &mut Request, t: &Template, quote: bool, out: &mut Vec<u8>) -> Result<(), VarError> {
    if !quote || !encoded(req) {
        return t.eval(req, out);
    }
    for part in t.parts() {
        match part {
            Part::Text(text) => out.extend_from_slice(text),
            Part::Var(v) => drop(req.var(*v, out)?),
            Part::Capture(n) => push_escaped(req, *n, out),
        }
    }
    Ok(())
}

fn steps(req: &mut Request, ops: &[Statement], walk: &mut RunState) -> Result<Step, VarError> {
    for statement in ops {
        let step = step(req, statement, walk)?;
        if let Step::Stop(_) = step {
            return Ok(step);
        }
    }
    Ok(Step::Next)
}

fn step(req: &mut Request, statement: &Statement, walk: &mut RunState) -> Result<Step, VarError> {
    let step = match &statement.op {
        Op::If { cond, location, ops } => {
            let holds = holds(req, cond)?;
            way::condition(statement.at, holds);
            if !holds {
                return Ok(Step::Next);
            }
            // From here on the settings of the block are in effect, as in nginx.
            req.location = location.unwrap_or(req.location);
            return steps(req, ops, walk);
        }
        Op::Break => {
            // As in nginx, a path that was rewritten no longer belongs to the location in which `break` stays.
            req.uri.valid_location &= !walk.changed;
            Ok(Step::Stop(Ran::Through))
        }
        Op::Goto(target) => Ok(Step::Stop(match crate::error_page::named(req, &target.name) {
            Ok(()) => Ran::Named,
            Err(status) => Ran::Status(status),
        })),
        Op::Set(var, t) => assign(req, *var, t, walk.quote),
        Op::Run(operation) => operation.run(req).map(|()| Step::Next),
        Op::Return { status, text } => answer(req, *status, text.as_ref()).map(Step::Stop),
        Op::Rewrite { pattern, replacement, keep_args, flag } => {
            let rewrite = Rewrite { to: replacement, keep_args: *keep_args, flag: *flag };
            rewrite.run(req, pattern, walk)
        }
    };
    way::rewritten(req, statement);
    step
}

/// Runs a `set`.
fn assign(req: &mut Request, var: VarId, t: &Template, quote: bool) -> Result<Step, VarError> {
    let mut v = req.take_buf();
    set_value(req, t, quote, &mut v)?;
    // A variable that is a property of the request, such as `$args`, is not stored.
    if !req.set_special(var, &v) {
        req.store(var, Some(&v));
    }
    req.give_buf(v);
    Ok(Step::Next)
}

/// Runs a pattern and logs the result (nginx: rewrite_log). Without a match, `$1` and the other numbered captures of an
/// earlier match are cleared, as in nginx. Named captures keep their values.
fn matches(req: &mut Request, pattern: &Pattern, text: &[u8]) -> Result<bool, LimitExceeded> {
    let hit = pattern.exec(req, text)?;
    if !hit {
        req.captures.clear();
    }
    let verb = if hit { "matches" } else { "does not match" };
    note(req, &[b"\"", pattern.text(), b"\" ", verb.as_bytes(), b" \"", text, b"\""]);
    Ok(hit)
}

/// Writes a line at level notice where `rewrite_log` is on.
fn note(req: &mut Request, parts: &[&[u8]]) {
    if req.own_location().settings.rewrite.rewrite_log {
        req.log_with(Level::Notice, |out| parts.iter().for_each(|part| out.extend_from_slice(part)));
    }
}

/// Evaluates the condition of an `if`.
fn holds(req: &mut Request, c: &Condition) -> Result<bool, VarError> {
    let mut v = req.take_buf();
    let result = match c {
        Condition::Var(id) => req.is_true(*id)?,
        Condition::Equal(id, t, negated) => {
            req.var(*id, &mut v)?;
            equals(req, &v, t)? != *negated
        }
        Condition::Match(id, p, negated) => {
            req.var(*id, &mut v)?;
            matches(req, p, &v)? != *negated
        }
        Condition::File(test, t, negated) => {
            t.eval(req, &mut v)?;
            // As in nginx, a relative path begins at the prefix.
            if v.first() != Some(&b'/') {
                let prefix = req.conf.config.prefix.clone();
                v.splice(0..0, prefix);
            }
            file_test(*test, &v) != *negated
        }
    };
    req.give_buf(v);
    Ok(result)
}

fn equals(req: &mut Request, value: &[u8], t: &Template) -> Result<bool, VarError> {
    let mut other = req.take_buf();
    t.eval(req, &mut other)?;
    let equal = value == other;
    req.give_buf(other);
    Ok(equal)
}

fn file_test(test: u8, path: &[u8]) -> bool {
    use rustix::fs::FileType;
    let Ok(s) = crate::file_cache::kind(path) else { return false };
    let kind = FileType::from_raw_mode(s.st_mode);
    match test {
        b'f' => kind == FileType::RegularFile,
        b'd' => kind == FileType::Directory,
        // nginx looks at the bit of the owner only.
        b'x' => s.st_mode & 0o100 != 0,
        // With `-e`, sockets, devices and other special files do not count as existing.
        _ => matches!(kind, FileType::RegularFile | FileType::Directory),
    }
}

fn answer(req: &mut Request, status: u16, text: Option<&Template>) -> Result<Ran, VarError> {
    let redirect = matches!(status, 301 | 302 | 303 | 307 | 308);
    let Some(t) = text else {
        // As in nginx, a status that is no error has an empty body, and no built-in page.
        if status < 400 && !redirect {
            req.send_text(status, b"");
            return Ok(Ran::Done);
        }
        return Ok(Ran::Status(status));
    };
    // The text may contain `$status`.
    req.resp.status = status;
    let mut value = req.take_buf();
    t.eval(req, &mut value)?;
    if redirect {
        req.resp.location.clear();
        req.resp.location.extend_from_slice(&value);
        req.give_buf(value);
        return Ok(Ran::Status(status));
    }
    req.send_text(status, &value);
    req.give_buf(value);
    Ok(Ran::Done)
}

/// Decodes printable bytes of a redirect URL up to its query, because a URL taken from an argument is encoded there.
/// Control characters and spaces stay encoded, so a client cannot inject a header field.
fn unescape_redirect(url: &mut Vec<u8>) {
    if !url.contains(&b'%') {
        return;
    }
    let mut out = Vec::with_capacity(url.len());
    let mut rest = url.as_slice();
    while let Some((b, after)) = rest.split_first() {
        let decoded = escaped_byte(rest);
        // The query stays as it is, since a decoded `&` or `=` would change its meaning.
        if *b == b'?' {
            break;
        }
        rest = after;
        match decoded {
            // nginx decodes the same range: characters above `%`, without DEL.
            Some(d @ (b'&'..0x7f)) => {
                out.push(d);
                rest = after.get(2..).unwrap_or_default();
                if d == b'?' {
                    break;
                }
            }
            _ => out.push(*b),
        }
    }
    out.extend_from_slice(rest);
    *url = out;
}

/// Returns the byte that a text begins with in the form `%XX`.
fn escaped_byte(text: &[u8]) -> Option<u8> {
    let hex = |b: &u8| char::from(*b).to_digit(16);
    match text {
        [b'%', high, low, ..] => Some((hex(high)? * 16 + hex(low)?) as u8),
        _ => None,
    }
}

/// A `rewrite` that matched.
struct Rewrite<'r> {
    to: &'r Template,
    /// `true` if the query of the request is appended.
    keep_args: bool,
    flag: Flag,
}

impl Rewrite<'_> {
    /// Applies the rule to a path that matches its pattern.
    fn run(&self, req: &mut Request, pattern: &Pattern, walk: &mut RunState) -> Result<Step, VarError> {
        let uri = std::mem::take(&mut req.uri.path);
        let hit = matches(req, pattern, &uri);
        req.uri.path = uri;
        if !hit? {
            return Ok(Step::Next);
        }
        walk.quote = false;
        self.apply(req, &mut walk.changed)
    }

    /// Replaces the path or makes a redirect.
    fn apply(&self, req: &mut Request, changed: &mut bool) -> Result<Step, VarError> {
        let mut out = req.take_buf();
        let query = self.expand(req, &mut out)?;
        if let Flag::Redirect(status) = self.flag {
            return Ok(self.redirect(req, status, query, out));
        }
        self.replace_args(req, query, &mut out);
        let args = std::mem::take(&mut req.uri.args);
        note(req, &[b"rewritten data: \"", &out, b"\", args: \"", &args, b"\""]);
        req.uri.args = args;
        if out.is_empty() {
            // nginx answers an empty path with the same message and status.
            req.log(Level::Error, "the rewritten URI has a zero length");
            return Ok(Step::Stop(Ran::Status(500)));
        }
        std::mem::swap(&mut req.uri.path, &mut out);
        req.give_buf(out);
        req.uri.rewritten = true;
        // nginx opens `internal` locations to rewritten requests, too.
        req.uri.internal = true;
        *changed = self.flag != Flag::Break;
        Ok(self.next_step(req))
    }

    fn next_step(&self, req: &mut Request) -> Step {
        match self.flag {
            Flag::Last => Step::Stop(Ran::UriChanged),
            Flag::Break => {
                req.uri.valid_location = false;
                Step::Stop(Ran::Through)
            }
            _ => Step::Next,
        }
    }

    /// Appends the replacement with its variables and captures. Returns the place of the question mark that begins a query.
    fn expand(&self, req: &mut Request, out: &mut Vec<u8>) -> Result<Option<usize>, VarError> {
        let redirect = matches!(self.flag, Flag::Redirect(_));
        // Captures hold decoded bytes: if the client encoded some, encode them again in a query or URL.
        let encoded = encoded(req);
        let mut query = None;
        for part in self.to.parts() {
            match part {
                Part::Text(t) => {
                    // Only a question mark in the configuration begins the query, not one in a capture.
                    query = query.or_else(|| memchr::memchr(b'?', t).map(|i| out.len() + i));
                    out.extend_from_slice(t);
                }
                Part::Var(v) => drop(req.var(*v, out)?),
                Part::Capture(n) if encoded && (query.is_some() || redirect) => push_escaped(req, *n, out),
                Part::Capture(n) => req.captures.push(*n, out),
            }
        }
        Ok(query)
    }

    fn redirect(&self, req: &mut Request, status: u16, query: Option<usize>, mut out: Vec<u8>) -> Step {
        if self.keep_args && !req.uri.args.is_empty() {
            out.push(if query.is_some() { b'&' } else { b'?' });
            out.extend_from_slice(&req.uri.args);
        }
        unescape_redirect(&mut out);
        note(req, &[b"rewritten redirect: \"", &out, b"\""]);
        req.resp.location = out;
        Step::Stop(Ran::Status(status))
    }

    /// Moves a query from the replacement to the request.
    fn replace_args(&self, req: &mut Request, query: Option<usize>, out: &mut Vec<u8>) {
        let Some(at) = query else {
            if !self.keep_args {
                req.uri.args.clear();
            }
            return;
        };
        let mut args = out.get(at + 1..).unwrap_or_default().to_vec();
        if self.keep_args && !req.uri.args.is_empty() {
            args.push(b'&');
            args.extend_from_slice(&req.uri.args);
        }
        req.uri.args = args;
        out.truncate(at);
    }
}
