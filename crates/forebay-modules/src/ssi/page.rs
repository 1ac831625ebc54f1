//! Sending of an SSI page: text is passed on, commands are run.

use super::parser::{Command, Event, Parser};
use super::script::{self, Piece, Script};
use super::value::{self, Problem};
use super::{SETTINGS, STATE};
use super::{Settings, shared};
use bytes::Bytes;
use forebay_conf::error::Level;
use forebay_core::pattern::fleeting::Matched;
use forebay_http::uri::escape_html;
use forebay_server::body::compose::{self, Include, Included, Started, include};
use forebay_server::body::{Broken, Done, Outlet};
use forebay_server::request::Request;
use forebay_sys::pooled::Pooled;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;

/// Default text in place of a command that fails.
const ERROR: &[u8] = b"[an error occurred while processing the directive]";

/// Deepest nesting of `if`.
const MAX_IFS: usize = 32;

/// A page being sent.
pub(super) struct Page {
    parser: Parser,
    /// The content, if it is in memory, and the page taken apart.
    script: Option<(Rc<Script>, Bytes)>,
    /// `encoding` of the last `echo` that named one.
    encoding: Encoding,
    /// `config errmsg`.
    error: Cow<'static, [u8]>,
    silent: bool,
    matched: Matched,
    /// Open `if` commands, the innermost last.
    ifs: Vec<If>,
    /// Name and text so far of the open `block`.
    block: Option<(Vec<u8>, Vec<u8>)>,
    /// Includes that have been started, and the text between and after them. Empty between pieces.
    queue: VecDeque<Item>,
    /// `true` if the rest of the page neither reads nor sets variables, so that an include may run before it.
    settled: bool,
}

/// Entry of the queue: text or the response of an include.
enum Item {
    Text(Vec<u8>),
    Part(Box<Started>),
}

/// Largest number of includes of a page that run at the same time.
const AHEAD: usize = 16;

/// Runs a future and meanwhile polls the includes in the queue, so that they make progress.
async fn beside<T>(queue: &mut VecDeque<Item>, work: impl Future<Output = T>) -> T {
    let mut work = Box::pin(work);
    poll_fn(|cx| {
        for item in queue.iter_mut() {
            if let Item::Part(p) = item {
                let _ = p.poll(cx);
            }
        }
        work.as_mut().poll(cx)
    })
    .await
}

/// Encoding of `echo`ed values.
#[derive(Clone, Copy, Debug)]
enum Encoding {
    None,
    Url,
    Entity,
}

/// An open `if`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct If {
    /// `true` if the current branch is sent.
    active: bool,
    /// `true` if the current branch or one before it was sent.
    taken: bool,
    /// `true` if `else` has been reached.
    last: bool,
}

/// Parameters of a command, and whether they are mandatory.
type ParameterList = &'static [(&'static str, bool)];

/// Commands and their parameters.
const COMMANDS: &[(&[u8], ParameterList)] = &[
    (b"include", &[("virtual", false), ("file", false), ("wait", false), ("set", false), ("stub", false)]),
    (b"echo", &[("var", true), ("default", false), ("encoding", false)]),
    (b"config", &[("errmsg", false), ("timefmt", false)]),
    (b"set", &[("var", true), ("value", true)]),
    (b"if", &[("expr", true)]),
    (b"elif", &[("expr", true)]),
    (b"else", &[]),
    (b"endif", &[]),
    (b"block", &[("name", true)]),
    (b"endblock", &[]),
];

/// Returns the parameters that a command may have.
fn known(name: &[u8]) -> Option<ParameterList> {
    COMMANDS.iter().find(|(n, _)| *n == name).map(|(_, parameters)| *parameters)
}

/// Reason for which a command could not be run to its end.
enum CommandFailure {
    /// The page goes on with an error message.
    Command(Problem),
    /// The page cannot go on.
    Page(Broken),
}

impl From<Problem> for CommandFailure {
    fn from(p: Problem) -> CommandFailure {
        CommandFailure::Command(p)
    }
}

impl From<Broken> for CommandFailure {
    fn from(broken: Broken) -> CommandFailure {
        CommandFailure::Page(broken)
    }
}

fn problem<T, E: From<Problem>>(text: impl Into<String>) -> Result<T, E> {
    Err(Problem(text.into()).into())
}

fn longest_value(s: &Settings) -> usize {
    usize::try_from(s.value_length.0).unwrap_or(usize::MAX)
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

impl compose::Page for Page {
    fn run<'a>(&'a mut self, out: &'a mut Outlet, req: &'a mut Request, text: &'a [u8]) -> Pooled<'a, Done> {
        Pooled::new(Page::run(self, out, req, text))
    }

    fn end<'a>(&'a mut self, out: &'a mut Outlet, req: &'a mut Request) -> Pooled<'a, Done> {
        Pooled::new(Page::end(self, out, req))
    }

    fn has_script(&self, content: &Bytes) -> bool {
        Page::has_script(self, content)
    }

    fn run_script<'a>(&'a mut self, out: &'a mut Outlet, req: &'a mut Request) -> Pooled<'a, Done> {
        Pooled::new(Page::run_script(self, out, req))
    }
}

impl Page {
    /// Creates the page for a response.
    pub(super) fn new(req: &Request) -> Page {
        let http = req.http();
        let s: &Settings = SETTINGS.of(&http.location(req).settings);
        Page {
            parser: Parser::new(longest_value(s)),
            script: None,
            encoding: Encoding::Entity,
            error: Cow::Borrowed(ERROR),
            silent: s.silent_errors,
            matched: Matched::default(),
            ifs: Vec::new(),
            block: None,
            queue: VecDeque::new(),
            settled: false,
        }
    }

    /// Looks for what was made of the content earlier. Returns `true` if the content has no commands.
    pub(super) fn find_script(&mut self, req: &Request) -> bool {
        let http = req.http();
        self.script = script::find(req, longest_value(SETTINGS.of(&http.location(req).settings)));
        self.script.as_ref().is_some_and(|(script, content)| script.is_plain(content))
    }

    /// Returns `true` if the page can be sent by [`Page::run_script`]: its content is still the one for which the script was made.
    fn has_script(&self, content: &Bytes) -> bool {
        let same = |own: &Bytes| own.as_ptr() == content.as_ptr() && own.len() == content.len();
        self.script.as_ref().is_some_and(|(_, own)| same(own))
    }

    /// Sends a page whose commands are known, from its beginning to its end.
    ///
    /// # Errors
    /// [`Broken`].
    async fn run_script(&mut self, out: &mut Outlet, req: &mut Request) -> Result<(), Broken> {
        let Some((script, content)) = self.script.take() else { return Ok(()) };
        let mut done = self.run_pieces(out, req, &script, &content).await;
        if done.is_ok() && !self.queue.is_empty() {
            // Rare work is boxed here, so that the futures of ordinary pages keep no room for it.
            done = Box::pin(self.send_queue(out, req, 0)).await;
        }
        self.abandon_unless(done).await
    }

    async fn run_pieces(
        &mut self,
        out: &mut Outlet,
        req: &mut Request,
        script: &Script,
        content: &[u8],
    ) -> Result<(), Broken> {
        for (i, piece) in script.pieces.iter().enumerate() {
            self.settled = i + 1 >= script.settled;
            match piece {
                Piece::Text(range) => {
                    self.text(out, req, content.get(range.clone()).unwrap_or_default()).await
                }
                Piece::Command(command) => self.run_command(out, req, command).await,
                Piece::Broken(why) => Box::pin(self.fail(out, req, Problem(why.clone()))).await,
            }?;
        }
        Ok(())
    }

    /// Ends the includes that have begun, each in an orderly way, if the page has failed.
    async fn abandon_unless(&mut self, done: Result<(), Broken>) -> Result<(), Broken> {
        if done.is_err() {
            for item in std::mem::take(&mut self.queue) {
                if let Item::Part(p) = item {
                    Box::pin(p.abandon()).await;
                }
            }
        }
        done
    }

    /// Takes a piece of the page.
    ///
    /// # Errors
    /// [`Broken`].
    async fn run(&mut self, out: &mut Outlet, req: &mut Request, piece: &[u8]) -> Result<(), Broken> {
        let mut done = self.run_piece(out, req, piece).await;
        if done.is_ok() {
            // The bytes before the end of this piece are sent with it, as the next piece may take long.
            done = self.send_queue(out, req, 0).await;
        }
        self.abandon_unless(done).await
    }

    async fn run_piece(&mut self, out: &mut Outlet, req: &mut Request, piece: &[u8]) -> Result<(), Broken> {
        let mut rest = piece;
        while let Some(event) = self.parser.next(&mut rest) {
            let done = match event {
                Event::Text(t) => self.text(out, req, t).await,
                Event::Broken(why) => self.fail(out, req, Problem(why)).await,
                Event::Command(c) => self.run_command(out, req, &c).await,
            };
            done?;
        }
        Ok(())
    }

    /// Runs a command. If it fails, the page goes on with an error message.
    async fn run_command(&mut self, out: &mut Outlet, req: &mut Request, c: &Command) -> Result<(), Broken> {
        match self.command(out, req, c).await {
            Ok(()) => Ok(()),
            Err(CommandFailure::Command(p)) => Box::pin(self.fail(out, req, p)).await,
            Err(CommandFailure::Page(broken)) => Err(broken),
        }
    }

    /// Sends the queue until at most `left` includes are in it.
    async fn send_queue(&mut self, out: &mut Outlet, req: &mut Request, left: usize) -> Result<(), Broken> {
        let parts = |queue: &VecDeque<Item>| queue.iter().filter(|i| matches!(i, Item::Part(_))).count();
        // With nothing left to wait for, the text after the last include has to leave, too.
        while left == 0 && !self.queue.is_empty() || parts(&self.queue) > left {
            match self.queue.pop_front() {
                Some(Item::Text(t)) => beside(&mut self.queue, out.push(req, &t)).await?,
                Some(Item::Part(p)) => beside(&mut self.queue, p.send(out, req)).await?,
                None => {}
            }
        }
        Ok(())
    }

    /// Sends bytes. If includes before them are unfinished, appends the bytes to the queue.
    async fn put(&mut self, out: &mut Outlet, req: &mut Request, bytes: &[u8]) -> Result<(), Broken> {
        match self.queue.back_mut() {
            None => return out.push(req, bytes).await,
            Some(Item::Text(t)) => t.extend_from_slice(bytes),
            Some(Item::Part(_)) => self.queue.push_back(Item::Text(bytes.to_vec())),
        }
        Ok(())
    }

    /// Sends the rest of the page at its end.
    ///
    /// # Errors
    /// [`Broken`].
    async fn end(&mut self, out: &mut Outlet, req: &mut Request) -> Result<(), Broken> {
        let held = self.parser.end();
        self.text(out, req, held).await
    }

    fn active(&self) -> bool {
        self.ifs.iter().all(|i| i.active)
    }

    async fn text(&mut self, out: &mut Outlet, req: &mut Request, text: &[u8]) -> Result<(), Broken> {
        if !self.active() {
            return Ok(());
        }
        let Some((_, block)) = &mut self.block else { return self.put(out, req, text).await };
        if shared(req).borrow_mut().spend(text.len()) {
            block.extend_from_slice(text);
            return Ok(());
        }
        self.block = None;
        self.fail(out, req, Problem("too much in SSI blocks".into())).await
    }

    async fn fail(&mut self, out: &mut Outlet, req: &mut Request, p: Problem) -> Result<(), Broken> {
        req.log(Level::Error, &format!("{} while sending response to client", p.0));
        self.put_error(out, req).await
    }

    /// Sends the error message of the page, unless `ssi_silent_errors` is on.
    async fn put_error(&mut self, out: &mut Outlet, req: &mut Request) -> Result<(), Broken> {
        let error = if self.silent { Cow::default() } else { self.error.clone() };
        self.put(out, req, &error).await
    }

    /// Runs a command, unless it is in a branch that is not sent. Commands inside a block become its text.
    async fn command(
        &mut self,
        out: &mut Outlet,
        req: &mut Request,
        c: &Command,
    ) -> Result<(), CommandFailure> {
        // Conditions are followed in branches that are not sent, too. Otherwise an inner `endif` would end
        // the outer `if`.
        let structure = matches!(c.name.as_slice(), b"if" | b"elif" | b"else" | b"endif");
        if !structure && !self.active() {
            return Ok(());
        }
        let Some(known) = known(&c.name) else {
            return problem(format!("invalid SSI command: \"{}\"", text(&c.name)));
        };
        if self.block.is_some() && !matches!(c.name.as_slice(), b"block" | b"endblock") {
            let mut text = Vec::new();
            c.write(&mut text);
            return self.text(out, req, &text).await.map_err(CommandFailure::from);
        }
        if structure && self.skips(c)? {
            return Ok(());
        }
        check(c, known)?;
        self.execute(out, req, c).await
    }

    /// Runs a command that has been checked.
    async fn execute(
        &mut self,
        out: &mut Outlet,
        req: &mut Request,
        c: &Command,
    ) -> Result<(), CommandFailure> {
        match c.name.as_slice() {
            b"echo" => {
                let value = self.echo(req, c)?;
                self.put(out, req, &value).await.map_err(CommandFailure::from)
            }
            b"include" => self.include(out, req, c).await,
            b"if" | b"elif" | b"else" | b"endif" => self.branch(req, c).map_err(CommandFailure::from),
            _ => self.change(req, c).map_err(CommandFailure::from),
        }
    }

    /// Runs an `if`, `elif`, `else` or `endif`.
    fn branch(&mut self, req: &mut Request, c: &Command) -> Result<(), Problem> {
        match c.name.as_slice() {
            b"if" => return self.open(req, c.required("expr")),
            b"elif" => return self.elif(req, c.required("expr")),
            b"else" => self.otherwise(),
            _ => drop(self.ifs.pop()),
        }
        Ok(())
    }

    /// Runs a `block`, `endblock`, `config` or `set`, which send nothing.
    fn change(&mut self, req: &mut Request, c: &Command) -> Result<(), Problem> {
        match c.name.as_slice() {
            b"block" => {
                self.end_block(req);
                self.block = Some((c.required("name").to_vec(), Vec::new()));
            }
            b"endblock" => self.end_block(req),
            b"config" => self.configure(req, c),
            _ => {
                let value = value::evaluate(req, &self.matched, c.required("value"))?;
                return set(req, c.required("var"), &value);
            }
        }
        Ok(())
    }

    fn configure(&mut self, req: &mut Request, c: &Command) {
        if let Some(format) = c.get("timefmt") {
            STATE.of_mut(req).time_format = Some(format.to_vec());
        }
        if let Some(error) = c.get("errmsg") {
            self.error = error.to_vec().into();
        }
    }

    /// Returns `true` if an `if`, `elif`, `else` or `endif` is inside a branch that is not sent. Only the nesting is
    /// tracked then.
    fn skips(&mut self, c: &Command) -> Result<bool, Problem> {
        if c.name == b"if" {
            return self.skips_if();
        }
        let Some((open, around)) = self.ifs.split_last() else {
            return problem(format!("invalid context of SSI command: \"{}\"", text(&c.name)));
        };
        let active = around.iter().all(|i| i.active);
        if active && open.last && c.name != b"endif" {
            return problem(format!("invalid context of SSI command: \"{}\"", text(&c.name)));
        }
        if !active && c.name == b"endif" {
            self.ifs.pop();
        }
        Ok(!active)
    }

    /// Returns `true` if an `if` is inside a branch that is not sent, and tracks it.
    fn skips_if(&mut self) -> Result<bool, Problem> {
        if self.ifs.len() >= MAX_IFS {
            return problem("too many \"if\" commands inside each other");
        }
        let active = self.active();
        if !active {
            self.ifs.push(If { active: false, taken: true, last: false });
        }
        Ok(!active)
    }

    fn open(&mut self, req: &mut Request, expr: &[u8]) -> Result<(), Problem> {
        let holds = value::holds(req, &mut self.matched, expr)?;
        self.ifs.push(If { active: holds, taken: holds, last: false });
        Ok(())
    }

    fn elif(&mut self, req: &mut Request, expr: &[u8]) -> Result<(), Problem> {
        let Some(mut open) = self.ifs.last().copied() else { return Ok(()) };
        open.active = !open.taken && value::holds(req, &mut self.matched, expr)?;
        open.taken |= open.active;
        if let Some(last) = self.ifs.last_mut() {
            *last = open;
        }
        Ok(())
    }

    fn otherwise(&mut self) {
        if let Some(open) = self.ifs.last_mut() {
            *open = If { active: !open.taken, taken: true, last: true };
        }
    }

    fn end_block(&mut self, req: &mut Request) {
        if let Some((name, text)) = self.block.take() {
            let shared = shared(req);
            let mut shared = shared.borrow_mut();
            // A block takes memory even without a text, so each counts more than its bytes.
            if shared.spend(name.len() + 64) {
                shared.blocks.push((name, text.into()));
            }
        }
    }

    /// Returns the text that an `echo` sends.
    fn echo(&mut self, req: &mut Request, c: &Command) -> Result<Vec<u8>, Problem> {
        let value = value::variable(req, &self.matched, c.required("var"))?;
        let value = value.unwrap_or_else(|| c.get("default").unwrap_or(b"(none)").to_vec());
        if let Some(name) = c.get("encoding") {
            self.set_encoding(req, name);
        }
        let mut out = Vec::new();
        match self.encoding {
            Encoding::None => return Ok(value),
            Encoding::Url => escape_url(&value, &mut out),
            Encoding::Entity => escape_html(&value, &mut out),
        }
        Ok(out)
    }

    fn set_encoding(&mut self, req: &mut Request, name: &[u8]) {
        match name {
            b"none" => self.encoding = Encoding::None,
            b"url" => self.encoding = Encoding::Url,
            b"entity" => self.encoding = Encoding::Entity,
            other => {
                let what = format!("unknown encoding \"{}\" in the \"echo\" command", text(other));
                req.log(Level::Error, &format!("{what} while sending response to client"));
            }
        }
    }

    /// Runs an `include`, or starts it if the page need not wait for it.
    async fn include(
        &mut self,
        out: &mut Outlet,
        req: &mut Request,
        c: &Command,
    ) -> Result<(), CommandFailure> {
        let variable = c.get("set");
        let what = self.subrequest_of(req, c)?;
        if let Some(name) = variable {
            // The variable is set in any case, so that an include that fails leaves it empty and not
            // undefined.
            set(req, name, b"")?;
        }
        // The response goes into a variable only with `set`, which later commands may read, so the page waits
        // then.
        if variable.is_none() && c.get("virtual").is_some() && c.get("wait") != Some(b"yes") {
            return self.start(out, req, what).await.map_err(CommandFailure::from);
        }
        // All that stands before this include has to be sent first, since the page waits for it.
        Box::pin(self.send_queue(out, req, 0)).await?;
        let included = Box::pin(include(out, req, what)).await;
        self.conclude(out, req, included, variable).await
    }

    /// Handles the result of a subrequest.
    async fn conclude(
        &mut self,
        out: &mut Outlet,
        req: &mut Request,
        included: Included,
        variable: Option<&[u8]>,
    ) -> Result<(), CommandFailure> {
        match included {
            Included::Broken => Err(CommandFailure::Page(Broken::Connection)),
            // The reason has been logged already.
            Included::Refused => self.put_error(out, req).await.map_err(CommandFailure::from),
            Included::Done(None) => Ok(()),
            Included::Done(Some(value)) => {
                set(req, variable.unwrap_or_default(), &value).map_err(CommandFailure::from)
            }
        }
    }

    /// Returns the subrequest of an `include`.
    fn subrequest_of(&mut self, req: &mut Request, c: &Command) -> Result<Include, Problem> {
        let target = value::evaluate(req, &self.matched, target_of(c)?)?;
        let (uri, args) = value::target(req, &target)?;
        let stub = c.get("stub").map(|name| block(req, name)).transpose()?;
        Ok(Include { uri, args, stub, keep: c.get("set").is_some() })
    }

    /// Starts an include and puts it into the queue, once there is room.
    async fn start(&mut self, out: &mut Outlet, req: &mut Request, what: Include) -> Result<(), Broken> {
        if !self.queue.is_empty() {
            Box::pin(self.send_queue(out, req, AHEAD - 1)).await?;
        }
        let Some(mut part) = Started::new(req, what) else { return self.put_error(out, req).await };
        // As in nginx, includes run in their order, and see the variables that commands after them set.
        if self.settled && self.queue.is_empty() {
            // Most fragments are in memory or in a cache, and are sent at once without a place in the queue.
            let ready = poll_fn(|cx| Poll::Ready(part.poll(cx).is_ready())).await;
            if ready {
                return part.send(out, req).await;
            }
        }
        part.wait(req);
        self.queue.push_back(Item::Part(Box::new(part)));
        Ok(())
    }
}

/// Checks the parameters of an `include`. Returns its target.
fn target_of(c: &Command) -> Result<&[u8], Problem> {
    let target = virtual_or_file(c)?;
    if c.get("set").is_some() && c.get("stub").is_some() {
        return problem("\"set\" and \"stub\" cannot be used together in \"include\" SSI command");
    }
    match c.get("wait") {
        None | Some(b"yes" | b"no") => Ok(target),
        Some(other) => problem(format!("invalid value \"{}\" in the \"wait\" parameter", text(other))),
    }
}

fn virtual_or_file(c: &Command) -> Result<&[u8], Problem> {
    match (c.get("virtual"), c.get("file")) {
        (Some(v), Some(f)) => {
            let what = "inclusion may be either virtual=";
            problem(format!("{what}\"{}\" or file=\"{}\"", text(v), text(f)))
        }
        (None, None) => problem("no parameter in \"include\" SSI command"),
        (Some(v), None) => Ok(v),
        (None, Some(f)) if c.get("wait").is_some() => {
            problem(format!("\"wait\" cannot be used with file=\"{}\"", text(f)))
        }
        (None, Some(f)) => Ok(f),
    }
}

/// Appends a text, with bytes that are not allowed in a URI inside HTML as `%XX`.
fn escape_url(text: &[u8], out: &mut Vec<u8>) {
    for b in text {
        let special = b"\"#%'<>\\^`{|}".contains(b);
        if special || *b <= b' ' || *b >= 0x7f {
            out.extend_from_slice(format!("%{b:02X}").as_bytes());
        } else {
            out.push(*b);
        }
    }
}

/// Returns the text of a block.
fn block(req: &mut Request, name: &[u8]) -> Result<Rc<[u8]>, Problem> {
    let shared = shared(req);
    let shared = shared.borrow();
    match shared.blocks.iter().find(|(n, _)| n == name) {
        Some((_, text)) => Ok(text.clone()),
        None => problem(format!("\"stub\"=\"{}\" for \"include\" not found", text(name))),
    }
}

fn set(req: &mut Request, name: &[u8], value: &[u8]) -> Result<(), Problem> {
    if shared(req).borrow_mut().set(&name.to_ascii_lowercase(), value) {
        return Ok(());
    }
    problem(format!("no room for the \"{}\" variable of an SSI page", text(name)))
}

/// Checks the parameters of a command.
fn check(c: &Command, known: ParameterList) -> Result<(), Problem> {
    let name = text(&c.name);
    for (i, (parameter, _)) in c.parameters.iter().enumerate() {
        if !known.iter().any(|(k, _)| k.as_bytes() == parameter) {
            return problem(format!(
                "invalid parameter name: \"{}\" in \"{name}\" SSI command",
                text(parameter)
            ));
        }
        if c.parameters.iter().take(i).any(|(n, _)| n == parameter) {
            return problem(format!("duplicate \"{}\" parameter in \"{name}\" SSI command", text(parameter)));
        }
    }
    for (k, _) in known.iter().filter(|(_, needed)| *needed) {
        if !c.parameters.iter().any(|(n, _)| n == k.as_bytes()) {
            return problem(format!("mandatory \"{k}\" parameter is absent in \"{name}\" SSI command"));
        }
    }
    Ok(())
}
