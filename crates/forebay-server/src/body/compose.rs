//! Responses that consist of their own body and the bodies of subrequests (nginx: the postpone filter). The request that is
//! sending has the client's connection. Later ones may have been started, but wait before they send.
//! A header filter puts a `Join` into the response (`ssi`, `add_before_body`). All includes of a page are started together, and the page
//! polls them. When the turn of a subrequest comes, it gets the client's connection, sends its body, and gives the connection back with
//! the variables. A fragment that is at hand at once is sent at once.

use super::outlet::{Follows, Outlet, PIECE, filter, limit_rate, most_at_once};
use super::pace::Pace;
use super::pump::Pump;
use super::write::{Broken, Done, after_last, client_gone_within};
use crate::access_log;
use crate::module;
use crate::request::rare::Unused;
use crate::request::states::Slot;
use crate::request::{Origin, Request, SubBody};
use crate::response::head::BodyFraming;
use crate::response::{BodyFilter, Part, Response, Window};
use crate::subrequest::{Headed, Walk};
use bytes::Bytes;
use forebay_conf::error::Level;
use forebay_core::vars::VarStore;
use forebay_sys::pooled::Pooled;
use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Parts of a response in addition to its own content.
pub struct Join {
    /// The filters before this index work on the response's own content, the filters after it on the whole.
    pub own_filters: usize,
    /// Commands in the content.
    pub page: Option<Box<dyn Page>>,
    /// Paths of subrequests whose bodies come before and after the content (nginx: add_before_body, add_after_body).
    pub around: [Option<std::sync::Arc<[u8]>>; 2],
}

/// Content with commands, which are run as it is sent (nginx: ssi). A command may include the bodies of subrequests.
pub trait Page {
    /// Sends text of the content, and runs the commands in it.
    ///
    /// # Errors
    /// The connection cannot be used for another response.
    fn run<'a>(&'a mut self, out: &'a mut Outlet, req: &'a mut Request, text: &'a [u8]) -> Pooled<'a, Done>;

    /// Sends what is left when the content is over.
    ///
    /// # Errors
    /// As [`Page::run`].
    fn end<'a>(&'a mut self, out: &'a mut Outlet, req: &'a mut Request) -> Pooled<'a, Done>;

    /// Returns `true` if the commands of all of this content are known.
    fn has_script(&self, content: &Bytes) -> bool;

    /// Sends all of the content, and runs the commands that are known.
    ///
    /// # Errors
    /// As [`Page::run`].
    fn run_script<'a>(&'a mut self, out: &'a mut Outlet, req: &'a mut Request) -> Pooled<'a, Done>;
}

/// Deepest nesting of subrequests (nginx: 50 inside the first).
const MAX_DEPTH: u8 = 51;

/// Maximum number of subrequests for one request (nginx: 65535 less a reserve).
const MAX_SUBREQUESTS: u32 = 64535;

/// Memory of variables from which on replaced values are dropped, bytes.
const ARENA: usize = 64 * 1024;

/// Sends a response with the content of several requests, its head first.
pub(super) async fn send(req: &mut Request, head: &[u8], framing: BodyFraming, mut join: Box<Join>) -> Done {
    let pace = Pace::new(limit_rate(req));
    let own = join.own_filters.min(req.resp.filters.body.len());
    // The filters from here on (gzip, for example) belong to the outlet, because they work on the bytes of all requests together.
    let filters = req.resp.filters.body.split_off(own);
    let (pending, gathered) = (req.take_buf(), req.take_buf());
    let mut out = Outlet::client(filters, framing, pace, pending);
    out.gathered = gathered;
    let mut done = out.put_head(req, head).await;
    if done.is_ok() {
        done = match page_at_hand(req, &mut join) {
            Some(page) => page.run_script(&mut out, req).await,
            None => emit(&mut out, req, &mut join).await,
        };
    }
    if done.is_ok() {
        done = out.drain(req, Follows::End, None).await;
    }
    if done.is_ok() {
        let then = after_last(req);
        done = out.finish(req, then, None).await;
    }
    let (pending, gathered) = out.end(req);
    req.give_buf(pending);
    req.give_buf(gathered);
    done
}

/// Filters and SSI commands of one response, which its content passes before it becomes part of the whole.
pub(super) struct Stage<'p> {
    filters: Vec<Box<dyn BodyFilter>>,
    page: Option<&'p mut (dyn Page + 'static)>,
}

impl Stage<'_> {
    /// Filters bytes, runs their SSI commands, and pushes the result into the outlet.
    pub(super) async fn put(
        &mut self,
        out: &mut Outlet,
        req: &mut Request,
        bytes: &[u8],
        follows: Follows,
    ) -> Done {
        let most = most_at_once(&self.filters);
        let mut text = Vec::new();
        let mut rest = bytes;
        // Decompression may multiply its input, so it is fed in small portions that bound what one step makes.
        loop {
            let (now, later) = rest.split_at(rest.len().min(most));
            rest = later;
            let then = if rest.is_empty() { follows } else { Follows::More };
            text.clear();
            filter(req, &mut self.filters, now, then, &mut text)?;
            match &mut self.page {
                Some(page) => page.run(out, req, &text).await?,
                None => out.push(req, &text).await?,
            }
            if rest.is_empty() {
                break;
            }
        }
        match (follows, &mut self.page) {
            (Follows::End, Some(page)) => page.end(out, req).await,
            (Follows::Pause, _) => out.drain(req, Follows::Pause, None).await,
            _ => Ok(()),
        }
    }

    /// Gives the filters back to the response.
    pub(super) fn end(self, req: &mut Request) {
        req.resp.filters.body = self.filters;
    }
}

type Emitting<'a> = Pin<Box<dyn Future<Output = Done> + 'a>>;

/// Returns the page of a response that consists of nothing else, and whose commands are known.
fn page_at_hand<'j>(req: &Request, join: &'j mut Join) -> Option<&'j mut Box<dyn Page>> {
    let alone = join.around == [None, None] && req.resp.filters.body.is_empty();
    let content = content(&req.resp).filter(|_| alone)?;
    join.page.as_mut().filter(|page| page.has_script(&content))
}

/// Sends the body of a request, with the subrequests before and after it.
fn emit<'a>(out: &'a mut Outlet, req: &'a mut Request, join: &'a mut Join) -> Emitting<'a> {
    Box::pin(async move {
        if let Some(page) = page_at_hand(req, join) {
            // The whole page is known and in memory, so the pump and its buffers are not needed.
            return page.run_script(out, req).await;
        }
        if let Some(path) = join.around[0].clone() {
            add(out, req, &path).await?;
        }
        let filters = std::mem::take(&mut req.resp.filters.body);
        let stage = Stage { filters, page: join.page.as_deref_mut() };
        let mut pump = Pump::staged(req, out, Some(stage));
        let done = pump.run(req).await;
        // The pump is ended even after a failure, since it holds buffers of the thread and the filters of the response.
        pump.end(req).await;
        done?;
        match join.around[1].clone() {
            Some(path) => add(out, req, &path).await,
            None => Ok(()),
        }
    })
}

/// Sends the body of a subrequest of `add_before_body` or `add_after_body`.
async fn add(out: &mut Outlet, req: &mut Request, path: &[u8]) -> Done {
    let mut uri = req.take_buf();
    uri.extend_from_slice(path);
    match include(out, req, Include { uri, ..Include::default() }).await {
        Included::Refused | Included::Done(_) => Ok(()),
        Included::Broken => Err(Broken::Connection),
    }
}

/// Subrequest whose body becomes part of the response.
#[derive(Default)]
pub struct Include {
    /// Decoded path.
    pub uri: Vec<u8>,
    /// Query.
    pub args: Vec<u8>,
    /// Content that is sent instead if the body is empty or there is an error.
    pub stub: Option<Rc<[u8]>>,
    /// The body is not sent but returned.
    pub keep: bool,
}

/// Result of an [`Include`].
pub enum Included {
    /// The subrequest ran. The body, if it was to be kept and there was no error.
    Done(Option<Vec<u8>>),
    /// There are too many subrequests, which is logged.
    Refused,
    /// The connection cannot be used any more.
    Broken,
}

/// Number of subrequests of a request and of its subrequests. Without the counter there are none.
#[derive(Default)]
struct Subrequests(Option<Rc<Cell<u32>>>);

impl fmt::Debug for Subrequests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subrequests({})", self.0.as_ref().map_or(0, |count| count.get()))
    }
}

static SUBREQUESTS: Slot<Subrequests> = Slot::new();

impl Unused for Subrequests {
    const UNUSED: &'static Subrequests = &Subrequests(None);

    fn clear(&mut self) {
        // The counter belongs to the main request and its subrequests together, so it may be reset only when no subrequest holds it any
        // more.
        match self.0.as_mut().and_then(Rc::get_mut) {
            // The request that has made the counter uses its memory again.
            Some(count) => count.set(0),
            None => self.0 = None,
        }
    }
}

/// Counts a subrequest. Returns `false` if the request has made the maximum number of subrequests already.
pub(crate) fn count(req: &mut Request) -> bool {
    let count = SUBREQUESTS.of_mut(req).0.get_or_insert_default();
    count.set(count.get() + 1);
    count.get() <= MAX_SUBREQUESTS
}

/// Returns the content of a response if it is one part that is in memory, short, and sent as a whole.
pub fn content(r: &Response) -> Option<Bytes> {
    let [part] = r.body.as_slice() else { return None };
    // A window cuts bytes off, and a source brings bytes that are not here yet; both need the pump.
    if r.source.is_some() || r.window != Window::default() || part.len() > PIECE as u64 {
        return None;
    }
    match part {
        Part::Static(b) => Some(Bytes::from_static(b)),
        Part::Bytes(b) => Some(b.clone()),
        Part::Text { .. } => None,
        Part::File { file, start: 0, end } => file.bytes().filter(|b| b.len() as u64 == *end).cloned(),
        Part::File { .. } => None,
    }
}

/// Makes a subrequest, and gives its path and query back to the spare buffers. Returns `None` if there are too many, which is logged.
fn make(req: &mut Request, what: &mut Include) -> Option<Box<Request>> {
    let too_deep = matches!(req.origin, Origin::Sub { depth, .. } if depth >= MAX_DEPTH);
    if too_deep || !count(req) {
        let uri = String::from_utf8_lossy(&what.uri).into_owned();
        req.log(Level::Error, &format!("subrequests cycle while processing \"{uri}\""));
        return None;
    }
    let body = if req.body.stored.complete { SubBody::Shared } else { SubBody::None };
    let mut sub = Request::subrequest(req, &what.uri, &what.args, body);
    SUBREQUESTS.of_mut(&mut sub).0.clone_from(&SUBREQUESTS.of(req).0);
    module::share(req, &mut sub);
    for text in [&mut what.uri, &mut what.args] {
        if text.capacity() > 0 {
            req.give_buf(std::mem::take(text));
        }
    }
    Some(sub)
}

/// Moves the client's connection to the request that sends, or back. The request that has it also stops waiting for an upstream
/// when the client leaves.
fn hand_over(from: &mut Request, to: &mut Request) {
    // The wire moves as a whole, because only the request that sends may write to it or wait for it.
    std::mem::swap(&mut from.conn, &mut to.conn);
    (to.tally.sent, to.tally.sent_head) = (from.tally.sent, from.tally.sent_head);
    to.timed_out |= from.timed_out;
}

/// Runs a subrequest and sends its body.
pub async fn include(out: &mut Outlet, req: &mut Request, mut what: Include) -> Included {
    let Some(mut sub) = make(req, &mut what) else { return Included::Refused };
    hand_over(req, &mut sub);
    let thread = req.thread.clone();
    let mut walk = thread.spare_walks.take().unwrap_or_else(Walk::new);
    walk.begin(sub, what.stub.is_some());
    let (mut sub, bare) = poll_fn(|cx| walk.poll(cx)).await;
    thread.spare_walks.give(walk);
    let result = serve(out, &mut sub, &what, bare).await;
    hand_over(&mut sub, req);
    // All subrequests share the variables of the request.
    std::mem::swap(&mut req.vars, &mut sub.vars);
    // Replaced values stay in the memory of the variables. A page with thousands of includes would let it grow without end.
    req.vars.compact(ARENA);
    sub.recycle();
    result
}

/// Subrequest that runs up to its head while the bytes before its body are sent.
pub struct Started {
    what: Include,
    /// Runs it until it has its head.
    walk: Option<Walk>,
    headed: Option<Headed>,
    /// The variables as they were at its start, if other requests may set variables before it has ended.
    vars: Option<VarStore>,
}

impl Started {
    /// Creates a subrequest, which runs when it is polled. Returns `None` if there are too many, which is logged.
    pub fn new(req: &mut Request, mut what: Include) -> Option<Started> {
        let sub = make(req, &mut what)?;
        let walk = req.thread.spare_walks.take().unwrap_or_else(Walk::new);
        walk.begin(sub, what.stub.is_some());
        Some(Started { what, walk: Some(walk), headed: None, vars: None })
    }

    /// Runs the subrequest. Ready when its body can be sent.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(walk) = &mut self.walk else { return Poll::Ready(()) };
        let Poll::Ready(headed) = walk.poll(cx) else { return Poll::Pending };
        if let Some(walk) = self.walk.take() {
            headed.0.thread.spare_walks.give(walk);
        }
        self.headed = Some(headed);
        Poll::Ready(())
    }

    /// Notes that others will run before its body is sent. Nothing has changed variables of the request since it was created.
    pub fn wait(&mut self, req: &Request) {
        self.vars = Some(req.vars.clone());
    }

    /// Sends the body.
    ///
    /// # Errors
    /// [`Broken`].
    pub async fn send(mut self, out: &mut Outlet, req: &mut Request) -> Done {
        poll_fn(|cx| self.poll(cx)).await;
        let Some((mut sub, bare)) = self.headed.take() else { return Ok(()) };
        hand_over(req, &mut sub);
        let result = serve(out, &mut sub, &self.what, bare).await;
        hand_over(&mut sub, req);
        match &self.vars {
            None => std::mem::swap(&mut req.vars, &mut sub.vars),
            // Other subrequests may have set variables in the meantime, so only the variables that this one has set are taken over.
            Some(before) => req.vars.take_changes(before, &sub.vars),
        }
        req.vars.compact(ARENA);
        sub.recycle();
        if matches!(result, Included::Broken) { Err(Broken::Connection) } else { Ok(()) }
    }

    /// Ends it without sending anything.
    pub async fn abandon(mut self) {
        poll_fn(|cx| self.poll(cx)).await;
        if let Some((mut sub, _)) = self.headed.take() {
            if let Some(mut source) = sub.resp.source.take() {
                source.drain(&mut sub).await;
                source.abandon(&mut sub);
            }
            sub.body.end();
            sub.modules.states.end();
            sub.recycle();
        }
    }
}

/// Sends the body of a subrequest that has its head, and ends it.
async fn serve(out: &mut Outlet, sub: &mut Request, what: &Include, bare: Option<u16>) -> Included {
    let result = answer(out, sub, what, bare).await;
    let http = sub.http();
    // nginx logs subrequests only with log_subrequest, since the access log has one line for each request of a client.
    if http.location(sub).settings.core.log_subrequest {
        access_log::log_request(sub);
    }
    sub.body.end();
    sub.modules.states.end();
    result.map_or(Included::Broken, Included::Done)
}

/// Sends the body of a subrequest, or its stub. With `keep`, returns the body instead.
async fn answer(
    out: &mut Outlet,
    sub: &mut Request,
    what: &Include,
    bare: Option<u16>,
) -> Result<Option<Vec<u8>>, Broken> {
    let before = out.pushed();
    let refused = sub.ending.is_dropped() || sub.resp.status == 101;
    // A subrequest that closes the connection without a response (`return 444`) or switches protocols has no body to include.
    if refused && what.stub.is_none() {
        return Err(Broken::Connection);
    }
    let mut kept = None;
    // Where there is a stub, it takes the place of an error page.
    if refused || bare.is_some() {
        abandon_body(sub);
    } else {
        kept = send_body(out, sub, what.keep).await?;
    }
    if let Some(stub) = &what.stub
        && out.pushed() == before
    {
        // Boxed, because the stub may have commands, which include requests, which may have stubs.
        Box::pin(send_stub(out, sub, stub)).await?;
    }
    Ok(kept)
}

fn abandon_body(sub: &mut Request) {
    if let Some(mut source) = sub.resp.source.take() {
        source.abandon(sub);
    }
}

/// Sends the body of a subrequest, or returns it (`keep`) if there was no error.
async fn send_body(out: &mut Outlet, sub: &mut Request, keep: bool) -> Result<Option<Vec<u8>>, Broken> {
    // The status line has been sent by the main request, so a filter that fails can only show an error page in the place of the fragment.
    if module::filter_included(sub).is_err() {
        crate::error_page::built_in(sub, 500);
    }
    if !keep
        && sub.resp.join.is_none()
        && sub.resp.filters.body.is_empty()
        && let Some(content) = content(&sub.resp)
    {
        out.push(sub, &content).await?;
        return Ok(None);
    }
    let own_filters = sub.resp.filters.body.len();
    let mut join = (sub.resp.join.take())
        .unwrap_or_else(|| Box::new(Join { own_filters, page: None, around: [None, None] }));
    let good = sub.status() < 300;
    if !keep {
        let done = emit(out, sub, &mut join).await;
        go_on(sub, done).await?;
        return Ok(None);
    }
    let http = sub.http();
    let limit = http.location(sub).settings.core.subrequest_output_buffer_size.0;
    let mut memory = Outlet::memory(usize::try_from(limit).unwrap_or(usize::MAX));
    let done = emit(&mut memory, sub, &mut join).await;
    go_on(sub, done).await?;
    Ok(Some(memory.into_memory()).filter(|_| good))
}

/// Goes on with the rest of a page where the content of a fragment breaks off, as nginx does. Otherwise one upstream that dies would end
/// the whole page.
async fn go_on(sub: &Request, done: Done) -> Done {
    match done {
        Err(Broken::Content) if !Box::pin(client_gone_within(&sub.thread, sub, Duration::ZERO)).await => {
            Ok(())
        }
        done => done,
    }
}

/// Sends the text that takes the place of an empty body. It may have SSI commands itself.
async fn send_stub(out: &mut Outlet, sub: &mut Request, stub: &[u8]) -> Done {
    match module::page(sub) {
        Some(mut page) => {
            page.run(out, sub, stub).await?;
            page.end(out, sub).await
        }
        None => out.push(sub, stub).await,
    }
}
