//! A body that is put together: what the response has itself, and in their places the bodies of subrequests (nginx:
//! the postpone filter). Whichever sends has the client's connection; those that follow may be on their way already.

use super::files::load;
use super::pace::{Pace, limit_rate};
use super::send::{Follows, client_gone_within, end_chunks, flush, frame};
use crate::access_log;
use crate::modules::{self, slice, ssi};
use crate::phases;
use crate::request::{Origin, Request, SubBody};
use crate::response::{BodyFilter, Part};
use crate::upstream::stream::{Body, Pulled};
use forebay_conf::error::Level;
use forebay_core::vars::VarStore;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// What belongs to a response beside its own content.
pub struct Join {
    /// Filters before this place work on the response's own content, those behind it on the whole.
    pub own_filters: usize,
    /// The content has SSI commands.
    pub page: Option<Box<ssi::Page>>,
    /// Paths of subrequests whose bodies stand before and behind it (nginx: add_before_body, add_after_body).
    pub around: [Option<std::sync::Arc<[u8]>>; 2],
}

/// Deepest nesting of subrequests (nginx: 50 inside the first).
const MAX_DEPTH: u8 = 51;

/// Most subrequests for one request (nginx: 65535 less a reserve).
const MAX_SUBREQUESTS: u32 = 64535;

/// Most bytes that gather before they are sent.
const GATHER: usize = 16 * 1024;

/// Most of a body that is taken at once, bytes.
const PIECE: usize = 32 * 1024;

/// Memory of variables from which on values that were replaced are forgotten, bytes.
const ARENA: usize = 64 * 1024;

/// Why a body ended early: the connection is of no more use.
#[derive(Debug)]
pub struct Broken;

type Done = Result<(), Broken>;

/// Where bytes go.
enum Sink {
    Client,
    /// Into memory, up to a limit in bytes (nginx: subrequest_output_buffer_size).
    Memory(Vec<u8>, usize),
}

/// Where the bodies of a request and of its subrequests leave, one behind the other.
pub struct Outlet {
    sink: Sink,
    /// Filters of the whole.
    filters: Vec<Box<dyn BodyFilter>>,
    chunked: bool,
    pace: Pace,
    /// Not filtered yet: small pieces make small chunks.
    gathered: Vec<u8>,
    /// Filtered and framed, not sent yet.
    pending: Vec<u8>,
    /// Bytes that came in.
    taken: u64,
    /// Content broke off, which is not the client's fault.
    cut: bool,
}

impl Outlet {
    fn memory(limit: usize) -> Outlet {
        let pace = Pace::new(None);
        let sink = Sink::Memory(Vec::new(), limit);
        Outlet {
            sink,
            filters: Vec::new(),
            chunked: false,
            pace,
            gathered: Vec::new(),
            pending: Vec::new(),
            taken: 0,
            cut: false,
        }
    }

    /// Takes bytes.
    ///
    /// # Errors
    /// [`Broken`].
    pub async fn push(&mut self, req: &mut Request, bytes: &[u8]) -> Done {
        if bytes.is_empty() { Ok(()) } else { self.put(req, bytes, Follows::More).await }
    }

    async fn put(&mut self, req: &mut Request, bytes: &[u8], follows: Follows) -> Done {
        self.taken += bytes.len() as u64;
        if let Sink::Memory(all, limit) = &mut self.sink {
            if all.len() + bytes.len() > *limit {
                let n = all.len() + bytes.len();
                req.log(Level::Error, &format!("too big subrequest response: {n}"));
                return Err(Broken);
            }
            all.extend_from_slice(bytes);
            return Ok(());
        }
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() < GATHER && follows == Follows::More {
            return Ok(());
        }
        self.drain(req, follows).await
    }

    /// Puts what has gathered through the filters and frames it, no faster than the rate allows.
    async fn drain(&mut self, req: &mut Request, follows: Follows) -> Done {
        let thread = req.thread.clone();
        let gathered = std::mem::take(&mut self.gathered);
        let mut rest = gathered.as_slice();
        loop {
            let n = match self.pace.allowance(rest.len() as u64) {
                Ok(n) => n as usize,
                Err(_) if rest.is_empty() => 0,
                Err(wait) => {
                    self.send(req, None).await?;
                    if client_gone_within(&thread, req, wait).await {
                        return Err(Broken);
                    }
                    continue;
                }
            };
            let (now, later) = rest.split_at(n.min(rest.len()));
            rest = later;
            let then = if rest.is_empty() { follows } else { Follows::More };
            if self.filters.is_empty() {
                frame(now, self.chunked, &mut self.pending);
            } else {
                let mut out = req.take_buf();
                filter(req, &mut self.filters, now, then, &mut out)?;
                frame(&out, self.chunked, &mut self.pending);
                req.give_buf(out);
            }
            self.pace.sent += now.len() as u64;
            if self.pending.len() >= GATHER {
                self.send(req, None).await?;
            }
            if rest.is_empty() {
                break;
            }
        }
        self.gathered = gathered;
        self.gathered.clear();
        Ok(())
    }

    /// Sends what has gathered; meanwhile a source is read ahead.
    async fn flush(&mut self, req: &mut Request, source: Option<&mut Body>) -> Done {
        if !self.gathered.is_empty() {
            self.drain(req, Follows::More).await?;
        }
        self.send(req, source).await
    }

    async fn send(&mut self, req: &mut Request, source: Option<&mut Body>) -> Done {
        if self.pending.is_empty() {
            return Ok(());
        }
        let thread = req.thread.clone();
        let ok = match source {
            Some(source) => flush(&thread, req, &mut self.pending, source).await,
            None => flush(&thread, req, &mut self.pending, &mut Body::empty()).await,
        };
        if ok { Ok(()) } else { Err(Broken) }
    }
}

/// Puts bytes through filters.
fn filter(
    req: &mut Request,
    filters: &mut [Box<dyn BodyFilter>],
    bytes: &[u8],
    follows: Follows,
    out: &mut Vec<u8>,
) -> Done {
    let Some((first, others)) = filters.split_first_mut() else {
        out.extend_from_slice(bytes);
        return Ok(());
    };
    let mut fed = first.feed(bytes, follows == Follows::End, out);
    if fed.is_ok() && follows == Follows::Pause {
        fed = first.flush(out);
    }
    for f in others {
        if fed.is_err() {
            break;
        }
        let input = std::mem::take(out);
        fed = f.feed(&input, follows == Follows::End, out);
        if fed.is_ok() && follows == Follows::Pause {
            fed = f.flush(out);
        }
    }
    fed.map_err(|crate::response::Broken(what)| {
        req.log(Level::Error, &format!("{what} while sending response to client"));
        Broken
    })
}

/// Sends a response that is put together, its head first. `false`: the connection is of no more use.
pub async fn send(req: &mut Request, head: &[u8], chunked: bool, mut join: Box<Join>) -> bool {
    let rate = limit_rate(req);
    let filters = req.resp.filters.split_off(join.own_filters.min(req.resp.filters.len()));
    let pace = Pace::new(rate);
    let (gathered, pending) = (req.take_buf(), req.take_buf());
    let mut out =
        Outlet { sink: Sink::Client, filters, chunked, pace, gathered, pending, taken: 0, cut: false };
    out.pending.extend_from_slice(head);
    let mut done = emit(&mut out, req, &mut join).await;
    if done.is_ok() {
        done = out.put(req, b"", Follows::End).await;
    }
    if done.is_ok() {
        if chunked {
            end_chunks(req, &mut out.pending);
        }
        done = out.flush(req, None).await;
    }
    if out.cut {
        // What there was still goes to the client.
        let _ = out.flush(req, None).await;
    }
    // `$gzip_ratio` asks them.
    req.resp.filters.append(&mut out.filters);
    req.give_buf(out.pending);
    req.give_buf(out.gathered);
    done.is_ok()
}

/// The content of a response, piece by piece.
struct Feed {
    parts: std::vec::IntoIter<Part>,
    part: Option<Part>,
    at: u64,
    text: Vec<u8>,
    source: Option<Box<Body>>,
}

/// What [`Feed::next`] gave.
#[derive(PartialEq, Eq)]
enum Got {
    /// Bytes.
    Piece,
    /// Bytes, and for a while none.
    Pause,
    /// The last bytes.
    End,
}

impl Feed {
    fn new(req: &mut Request) -> Feed {
        let parts = std::mem::take(&mut req.resp.body).into_iter();
        let text = std::mem::take(&mut req.resp.text);
        Feed { parts, part: None, at: 0, text, source: req.resp.source.take() }
    }

    /// Appends the next piece.
    async fn next(
        &mut self,
        out: &mut Outlet,
        req: &mut Request,
        piece: &mut Vec<u8>,
    ) -> Result<Got, Broken> {
        loop {
            let Some(part) = self.part.take().or_else(|| self.parts.next()) else { break };
            let n = (part.len() - self.at).min(PIECE as u64);
            if n == 0 {
                self.at = 0;
                continue;
            }
            if !load(&self.text, &part, self.at, n, piece).await {
                return Err(Broken);
            }
            self.at += n;
            if self.at < part.len() {
                self.part = Some(part);
            } else {
                self.at = 0;
            }
            return Ok(Got::Piece);
        }
        let Some(source) = &mut self.source else { return Ok(Got::End) };
        loop {
            let mut pulled = source.pull(req, piece);
            if source.unsettled() {
                source.settle(req).await;
            }
            if pulled == Pulled::Stored {
                pulled = source.load(req, piece).await;
            }
            match pulled {
                Pulled::End if slice::wants_more(req) => {
                    let Some(next) = Box::pin(slice::next(req)).await else { return Err(Broken) };
                    source.abandon(req);
                    **source = next;
                    return Ok(Got::Piece);
                }
                Pulled::End => return Ok(Got::End),
                Pulled::Failed => {
                    out.cut = true;
                    return Err(Broken);
                }
                Pulled::Blocked if piece.is_empty() => {
                    out.flush(req, Some(source)).await?;
                    if !source.wait(req).await {
                        return Err(Broken);
                    }
                }
                Pulled::Blocked if source.unbuffered() => return Ok(Got::Pause),
                _ => return Ok(Got::Piece),
            }
        }
    }

    /// What is to be stored is read to its end for the next client.
    async fn end(mut self, req: &mut Request) {
        if let Some(source) = &mut self.source {
            source.drain(req).await;
            source.abandon(req);
        }
        self.text.clear();
        req.resp.text = self.text;
    }
}

type Emitting<'a> = Pin<Box<dyn Future<Output = Done> + 'a>>;

/// Sends the body of a request with all that belongs to it.
fn emit<'a>(out: &'a mut Outlet, req: &'a mut Request, join: &'a mut Join) -> Emitting<'a> {
    Box::pin(async move {
        if let Some(path) = join.around[0].clone() {
            add(out, req, &path).await?;
        }
        let mut feed = Feed::new(req);
        let mut filters = std::mem::take(&mut req.resp.filters);
        let done = content(out, req, &mut feed, &mut filters, join.page.as_deref_mut()).await;
        feed.end(req).await;
        let mut later = std::mem::replace(&mut req.resp.filters, filters);
        req.resp.filters.append(&mut later);
        done?;
        match join.around[1].clone() {
            Some(path) => add(out, req, &path).await,
            None => Ok(()),
        }
    })
}

async fn content(
    out: &mut Outlet,
    req: &mut Request,
    feed: &mut Feed,
    filters: &mut [Box<dyn BodyFilter>],
    mut page: Option<&mut ssi::Page>,
) -> Done {
    let thread = req.thread.clone();
    let limit = if filters.iter().any(|f| f.expands()) { 2 * 1024 } else { PIECE };
    let mut piece = Vec::new();
    let mut text = Vec::new();
    loop {
        piece.clear();
        let got = feed.next(out, req, &mut piece).await?;
        let mut rest = piece.as_slice();
        loop {
            let (now, later) = rest.split_at(rest.len().min(limit));
            rest = later;
            let follows = match got {
                Got::End if rest.is_empty() => Follows::End,
                Got::Pause if rest.is_empty() => Follows::Pause,
                _ => Follows::More,
            };
            text.clear();
            filter(req, filters, now, follows, &mut text)?;
            match page.as_deref_mut() {
                Some(page) => page.run(out, req, &text).await?,
                None => out.push(req, &text).await?,
            }
            if rest.is_empty() {
                break;
            }
        }
        match got {
            Got::End => break,
            Got::Pause => {
                out.put(req, b"", Follows::Pause).await?;
                out.flush(req, feed.source.as_deref_mut()).await?;
            }
            // Pages compute: others of the thread have their turn, too.
            Got::Piece => thread.io.poller.yield_now().await,
        }
    }
    match page {
        Some(page) => page.end(out, req).await,
        None => Ok(()),
    }
}

/// A subrequest of `add_before_body` or `add_after_body`.
async fn add(out: &mut Outlet, req: &mut Request, path: &[u8]) -> Done {
    match include(out, req, Include { uri: path.to_vec(), ..Include::default() }).await {
        Included::Refused => Ok(()),
        Included::Done(_) => Ok(()),
        Included::Broken => Err(Broken),
    }
}

/// A subrequest whose body is wanted.
#[derive(Default)]
pub struct Include {
    /// Decoded path.
    pub uri: Vec<u8>,
    /// Query.
    pub args: Vec<u8>,
    /// What is sent instead if the body is empty or there is an error.
    pub stub: Option<Rc<[u8]>>,
    /// The body is not sent but given back.
    pub keep: bool,
}

/// What became of an [`Include`].
pub enum Included {
    /// It ran; with the body if that was to be kept and there was no error.
    Done(Option<Vec<u8>>),
    /// There are too many; the log says so.
    Refused,
    /// The connection is of no more use.
    Broken,
}

/// Makes a subrequest. `None`: there are too many; the log says so.
fn make(req: &mut Request, what: &Include) -> Option<Box<Request>> {
    let too_deep = matches!(req.origin, Origin::Sub { depth, .. } if depth >= MAX_DEPTH);
    if too_deep || !ssi::count(req, MAX_SUBREQUESTS) {
        let uri = String::from_utf8_lossy(&what.uri).into_owned();
        req.log(Level::Error, &format!("subrequests cycle while processing \"{uri}\""));
        return None;
    }
    let body = if req.body.stored.complete { SubBody::Shared } else { SubBody::None };
    let mut sub = Request::subrequest(req, &what.uri, &what.args, body);
    ssi::share(req, &mut sub);
    Some(sub)
}

/// Gives the client's connection to whoever sends, or back: a wait for an upstream then ends when the client leaves.
fn hand_over(from: &mut Request, to: &mut Request) {
    std::mem::swap(&mut from.conn, &mut to.conn);
    (to.sent, to.sent_head) = (from.sent, from.sent_head);
    to.timed_out |= from.timed_out;
}

/// Runs a subrequest and sends its body.
pub async fn include(out: &mut Outlet, req: &mut Request, what: Include) -> Included {
    let Some(mut sub) = make(req, &what) else { return Included::Refused };
    hand_over(req, &mut sub);
    let bare = Box::pin(phases::included(&mut sub, what.stub.is_some())).await;
    let result = serve(out, &mut sub, &what, bare).await;
    hand_over(&mut sub, req);
    // Variables are those of the request, whoever sets them.
    std::mem::swap(&mut req.vars, &mut sub.vars);
    req.vars.compact(ARENA);
    result
}

/// A subrequest and, if it is to be given back instead of answered, its error.
type Headed = (Box<Request>, Option<u16>);

/// A subrequest that is on its way to its head while what stands before its body is sent.
pub struct Started {
    what: Include,
    running: Pin<Box<dyn Future<Output = Headed>>>,
    headed: Option<Headed>,
    /// Variables as it got them.
    vars: VarStore,
}

impl Started {
    /// Begins; it gets on when it is polled. `None`: there are too many; the log says so.
    pub fn new(req: &mut Request, what: Include) -> Option<Started> {
        let mut sub = make(req, &what)?;
        let stub = what.stub.is_some();
        let vars = sub.vars.clone();
        let running = Box::pin(async move {
            let bare = phases::included(&mut sub, stub).await;
            (sub, bare)
        });
        Some(Started { what, running, headed: None, vars })
    }

    /// Ready when its body can be sent.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.headed.is_none() {
            match self.running.as_mut().poll(cx) {
                Poll::Ready(headed) => self.headed = Some(headed),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    /// Sends the body.
    ///
    /// # Errors
    /// [`Broken`].
    pub async fn send(mut self, out: &mut Outlet, req: &mut Request) -> Done {
        std::future::poll_fn(|cx| self.poll(cx)).await;
        let Some((mut sub, bare)) = self.headed.take() else { return Ok(()) };
        hand_over(req, &mut sub);
        let result = serve(out, &mut sub, &self.what, bare).await;
        hand_over(&mut sub, req);
        // Others may have set variables meanwhile: only those that this one has set count.
        req.vars.take_changes(&self.vars, &sub.vars);
        req.vars.compact(ARENA);
        if matches!(result, Included::Broken) { Err(Broken) } else { Ok(()) }
    }

    /// Ends it without sending anything.
    pub async fn abandon(mut self) {
        std::future::poll_fn(|cx| self.poll(cx)).await;
        if let Some((mut sub, _)) = self.headed.take() {
            if let Some(mut source) = sub.resp.source.take() {
                source.drain(&mut sub).await;
                source.abandon(&mut sub);
            }
            sub.body.end();
            sub.modules.limit_conn.clear();
        }
    }
}

async fn serve(out: &mut Outlet, sub: &mut Request, what: &Include, bare: Option<u16>) -> Included {
    let result = answer(out, sub, what, bare).await;
    let http = sub.http();
    if http.location(sub).settings.core.log_subrequest {
        access_log::log_request(sub);
    }
    sub.body.end();
    sub.modules.limit_conn.clear();
    result
}

async fn answer(out: &mut Outlet, sub: &mut Request, what: &Include, bare: Option<u16>) -> Included {
    let before = out.taken;
    let mut failed = bare.is_some();
    if sub.drop_connection || sub.resp.status == 101 {
        if what.stub.is_none() {
            return Included::Broken;
        }
        failed = true;
    }
    let mut kept = None;
    if failed {
        if let Some(mut source) = sub.resp.source.take() {
            source.abandon(sub);
        }
    } else {
        if modules::run_subrequest_filters(sub).is_err() {
            crate::error_page::built_in(sub, 500);
        }
        let own_filters = sub.resp.filters.len();
        let mut join = (sub.resp.join.take())
            .unwrap_or_else(|| Box::new(Join { own_filters, page: None, around: [None, None] }));
        let good = sub.resp.status < 300;
        let done = if what.keep {
            let http = sub.http();
            let limit = http.location(sub).settings.core.subrequest_output_buffer_size.0;
            let mut memory = Outlet::memory(usize::try_from(limit).unwrap_or(usize::MAX));
            let done = emit(&mut memory, sub, &mut join).await;
            if let Sink::Memory(bytes, _) = memory.sink
                && good
            {
                kept = Some(bytes);
            }
            done
        } else {
            emit(out, sub, &mut join).await
        };
        if done.is_err() {
            return Included::Broken;
        }
    }
    if let Some(stub) = &what.stub
        && out.taken == before
    {
        let done = match ssi::page_of_stub(sub) {
            Some(mut page) => match Box::pin(page.run(out, sub, stub)).await {
                Ok(()) => page.end(out, sub).await,
                broken => broken,
            },
            None => out.push(sub, stub).await,
        };
        if done.is_err() {
            return Included::Broken;
        }
    }
    Included::Done(kept)
}
