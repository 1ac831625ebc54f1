//! The body of an upstream's response, pulled while it is sent to the client. A client that keeps up gets the bytes as they
//! come. For a slower client they are read ahead into a [`Spool`], so that the upstream is free early (nginx:
//! proxy_buffering). Hot path.

mod rate;
mod streamed;
mod uploading;

use super::codec::Codec;
use super::codec::decoder::{Announced, Behind, Decoded, Decoder, End};
use super::codec::muxed;
use super::contact::{Contact, attempt_over};
use super::exchange::READ;
use super::spool::{AheadLimits, Keep, NextBytes, Spool};
use super::switched::{self, Switched};
use crate::modules::proxy;
use forebay_conf::error::Level;
use forebay_core::upstream::conn::Conn;
use forebay_net::pipe::Pipe;
use forebay_net::relay::Timeouts;
use forebay_net::wait::{For, Waited};
use forebay_net::wire::Watch;
use forebay_server::body::{Broken, Done};
use forebay_server::modules::core::TempDir;
use forebay_server::request::{Request, waiting};
use forebay_server::response::streamed::{Awaited, Pulled, RelayContact};
use forebay_sys::errno::errno_text;
use rate::ReadRate;
use rustix::io::Errno;
use std::task::Poll;
use std::time::{Duration, Instant};

/// The rest of a response.
#[derive(Debug)]
pub struct Body {
    contact: Option<Contact>,
    decoder: Decoder,
    read_timeout: Duration,
    ignore_abort: bool,
    /// State of a connection that has switched to another protocol.
    switched: Option<Switched>,
    /// Bytes read ahead of the client, if there are any.
    spool: Option<Box<Spool>>,
    /// Limits for reading ahead; `None`: nothing is read ahead (nginx: proxy_buffering off).
    ahead: Option<AheadLimits>,
    /// End of the upstream's response, once it has come. There is a contact until then.
    ended: Option<Ending>,
    /// Bytes that have been read, and the limit for them (nginx: proxy_limit_rate).
    rate: ReadRate,
    /// Bytes read before the last wait; `None` before the first one.
    read_before: Option<u64>,
}

/// End of an upstream's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// All of it has come.
    Whole,
    /// It breaks off.
    Broken,
}

impl From<Ending> for Pulled {
    fn from(ending: Ending) -> Pulled {
        match ending {
            Ending::Whole => Pulled::End,
            Ending::Broken => Pulled::Failed,
        }
    }
}

/// Side that became ready while the client takes nothing.
enum Ready {
    /// The client takes more.
    Client,
    /// The upstream has sent more.
    Upstream,
    /// The request's body goes on.
    Request,
}

/// Longest time for which a client may take nothing before full memory goes to a file. Most pauses are shorter.
const PATIENCE: Duration = Duration::from_millis(20);

/// Pause of an upstream within a body after which the bytes that have come are acknowledged explicitly. A server that
/// fills its segments (nginx: tcp_nopush) may wait for the acknowledgement, which the kernel would delay by 40 ms.
const NUDGE: Duration = Duration::from_millis(2);

/// Least number of bytes since the previous wait that make an acknowledgement worth a call. Fewer bytes, such as one
/// event of an event stream, fill no segment.
const MUCH: u64 = 1024;

/// Shortest rest of a response, bytes, that is passed on inside the kernel where possible. For less, the call that looks
/// whether more has come than announced costs more than the copies.
const LONG: u64 = 32 * 1024;

impl Body {
    /// Creates a body of which nothing has been decoded.
    pub fn new(contact: Contact, decoder: Decoder, read_timeout: Duration) -> Body {
        Body { contact: Some(contact), decoder, read_timeout, ended: None, ..Body::ended() }
    }

    /// Puts content that has been decoded already before the content to come.
    pub fn put_before(&mut self, content: Vec<u8>, limits: AheadLimits) {
        if self.spool.is_none() {
            let mut s = Spool::new(limits, None, TempDir::default());
            s.appended(content);
            self.spool = Some(Box::new(s));
        }
    }

    fn ended() -> Body {
        Body {
            contact: None,
            decoder: Decoder::new(Codec::HTTP1, Announced::NOTHING),
            read_timeout: Duration::ZERO,
            ignore_abort: false,
            switched: None,
            spool: None,
            ahead: None,
            ended: Some(Ending::Whole),
            rate: ReadRate::NONE,
            read_before: None,
        }
    }

    /// Sets limits for reading ahead of the client, and for the rate. `read`: bytes that have been read.
    pub fn buffer(&mut self, ahead: Option<AheadLimits>, rate: u64, read: u64) {
        self.ahead = ahead;
        self.rate = ReadRate::new(rate, read);
    }

    /// Keeps the response. All of it is read then, even if the client goes away.
    pub fn keep(&mut self, keep: Keep, limits: AheadLimits, dir: TempDir) {
        self.spool = Some(Box::new(Spool::new(limits, Some(keep), dir)));
    }

    /// Returns `true` if the response is kept.
    pub fn keeps(&self) -> bool {
        self.spool.as_ref().is_some_and(|s| s.keeps())
    }

    /// Sets `proxy_ignore_client_abort` and `proxy_pass_trailers`.
    pub fn set(&mut self, ignore_abort: bool, pass_trailers: bool) {
        self.ignore_abort = ignore_abort;
        self.decoder.content.pass_trailers = pass_trailers;
    }

    /// Creates the body for a connection that has switched to another protocol.
    pub fn switched(contact: Contact, early: Vec<u8>, timeouts: Timeouts) -> Body {
        let switched = Some(Switched { early, timeouts });
        let decoder = Decoder::new(Codec::HTTP1, Announced::REST);
        Body { switched, ..Body::new(contact, decoder, timeouts.read) }
    }

    /// Passes bytes both ways where the protocol was switched. Returns `false` if it was not.
    pub async fn relay(&mut self, req: &mut Request) -> bool {
        let Some(switched) = self.switched.take() else { return false };
        if let Some(contact) = &mut self.contact
            && let Some(mut conn) = contact.lease.conn.take()
        {
            switched.relay(req, &mut conn, &contact.lease).await;
            contact.lease.conn = Some(conn);
        }
        req.modules.upstream.log_name.clear();
        true
    }

    /// Decodes bytes that have been received. Appends their content, or puts it into the spool if there is one.
    pub fn feed(&mut self, req: &mut Request, input: &[u8], out: &mut Vec<u8>) -> Pulled {
        match &mut self.spool {
            None => self.decode(req, input, out),
            Some(s) => {
                let mut mem = s.buffer();
                let pulled = self.decode(req, input, &mut mem);
                if let Some(s) = &mut self.spool {
                    s.appended(mem);
                }
                pulled
            }
        }
    }

    fn decode(&mut self, req: &mut Request, input: &[u8], out: &mut Vec<u8>) -> Pulled {
        let conn = conn_of(&self.contact);
        let decoded = self.decoder.decode(req, conn, input, out);
        self.decoded(req, decoded)
    }

    /// Counts content, and ends the response where it ends.
    fn decoded(&mut self, req: &mut Request, d: Decoded) -> Pulled {
        if let Some(a) = req.modules.upstream.current() {
            a.length += d.length;
        }
        let more = if d.got > 0 { Pulled::Data } else { Pulled::Blocked };
        match d.end {
            End::NotYet => more,
            End::Whole => self.end(req, Ending::Whole),
            End::Broken => self.break_off(req),
            End::Failed(text) => self.fail(req, Level::Error, &text),
            End::FailedAfter(text) => {
                self.fail(req, Level::Error, text);
                more
            }
        }
    }

    /// Appends content that has come, without waiting.
    pub fn pull(&mut self, req: &mut Request, out: &mut Vec<u8>) -> Pulled {
        self.end_idle_spool();
        if self.spool.is_none() {
            return self.receive(req, out);
        }
        if let Some(pulled) = self.spooled(out) {
            return pulled;
        }
        // While there is a spool, received bytes go into it even if the client is ready, so that their order is kept.
        if self.ended.is_none() {
            self.receive(req, out);
        }
        self.spooled(out).unwrap_or(Pulled::Blocked)
    }

    /// Ends the spool once the client has caught up: later bytes are read to where they are sent from.
    fn end_idle_spool(&mut self) {
        if let Some(s) = self.spool.take_if(|s| s.is_idle())
            && let Some(ahead) = &mut self.ahead
        {
            // A failure to write the file has set its limit to 0. Later spools of the response must not try the disk
            // again.
            *ahead = s.limits();
        }
    }

    /// Moves the bytes of a pipe to memory while the client takes nothing. Returns `None` if nothing may be read ahead.
    pub fn hold_back(&mut self, req: &Request, pipe: &mut Pipe) -> Option<Result<(), Errno>> {
        let limits = self.ahead?;
        let s = self.spool.get_or_insert_with(|| Box::new(Spool::new(limits, None, temporary(req))));
        let mut mem = s.buffer();
        let taken = pipe.take(&mut mem);
        s.appended(mem);
        Some(taken)
    }

    /// Appends content that has been read ahead. Returns `None` if there is none and more will follow.
    fn spooled(&mut self, out: &mut Vec<u8>) -> Option<Pulled> {
        let s = self.spool.as_mut()?;
        match s.next() {
            NextBytes::Memory => {
                s.take(out);
                Some(if self.ended == Some(Ending::Whole) { Pulled::End } else { Pulled::Data })
            }
            NextBytes::File => Some(Pulled::Stored),
            NextBytes::Nothing => self.ended.map(Pulled::from),
        }
    }

    /// Appends content from the file.
    pub async fn load(&mut self, req: &mut Request, out: &mut Vec<u8>) -> Pulled {
        let Some(s) = self.spool.as_mut() else { return Pulled::Failed };
        if !s.load(out).await {
            req.log(Level::Crit, "pread() of a temporary file failed while sending to client");
            return Pulled::Failed;
        }
        match (s.next(), self.ended) {
            (NextBytes::Nothing, Some(ended)) => ended.into(),
            _ => Pulled::Data,
        }
    }

    /// Returns `true` if [`Body::save`] has something to do.
    pub fn wants_save(&self) -> bool {
        match &self.spool {
            Some(s) => s.wants_save() || (self.ended.is_some() && s.keeps()),
            None => false,
        }
    }

    /// Moves content from full memory to a file, and gives the file of a kept response its name at the end. Logs a failure,
    /// which does not affect the client.
    pub async fn save(&mut self, req: &mut Request) {
        let ended = self.ended;
        let thread = req.thread.clone();
        let Some(s) = self.spool.as_mut() else { return };
        let done = match ended {
            Some(Ending::Whole) if s.keeps() => s.complete(&thread.disk).await,
            // A response that breaks off must not be stored: the cache would serve a part as the whole.
            Some(_) if s.keeps() => {
                s.discard();
                Ok(())
            }
            _ if s.wants_save() => s.save(&thread.disk).await,
            _ => Ok(()),
        };
        if let Err((path, e)) = done {
            let why = forebay_sys::errno::errno(&e);
            let text = format!("pwrite() \"{}\" failed ({why}) while reading upstream", path.display());
            req.log(Level::Crit, &text);
        }
    }

    /// Ends the response if its server has been removed (Angie: proxy_connection_drop).
    fn end_revoked(&mut self, req: &mut Request) -> Option<Pulled> {
        if !self.contact.as_ref().is_some_and(|contact| contact.lease.is_revoked()) {
            return None;
        }
        let text = "upstream server was removed from its group while reading upstream";
        Some(self.fail(req, Level::Error, text))
    }

    /// Reads and decodes bytes that have come.
    fn receive(&mut self, req: &mut Request, out: &mut Vec<u8>) -> Pulled {
        if let Some(ended) = self.ended {
            return ended.into();
        }
        if let Some(pulled) = self.end_revoked(req) {
            return pulled;
        }
        if self.rate.delay().is_some() {
            return Pulled::Blocked;
        }
        if self.decoder.is_plain() && self.spool.is_none() && !self.rate.is_limited() {
            // The bytes are content: read them to their final place.
            let before = out.len();
            let got = self.read_into(out, READ);
            return self.took(req, got, |body, req| {
                let arrived = body.decoder.content.arrived(req, out, before);
                body.decoded(req, arrived)
            });
        }
        let room = self.rate.room();
        // Bytes beyond the rate stay in the connection.
        let mut raw =
            if self.rate.is_limited() { Vec::with_capacity(room) } else { req.thread.io.large.take() };
        let got = self.read_into(&mut raw, room);
        let pulled = self.took(req, got, |body, req| body.feed(req, &raw, out));
        req.thread.give_buffer(raw);
        pulled
    }

    fn read_into(&self, buf: &mut Vec<u8>, room: usize) -> Result<usize, Errno> {
        match conn_of(&self.contact) {
            // Without an event since the last read, another read would be a system call for nothing.
            Some(c) if c.readable() => c.read(buf, room),
            Some(_) => Err(Errno::AGAIN),
            None => Err(Errno::BADF),
        }
    }

    /// Counts the bytes of a read, which `then` decodes.
    fn took(
        &mut self,
        req: &mut Request,
        got: Result<usize, Errno>,
        then: impl FnOnce(&mut Body, &mut Request) -> Pulled,
    ) -> Pulled {
        match got {
            // The end of a stream is not simply the end of the content: the codec compares it with the announced length
            // first.
            Ok(0) if self.decoder.judges_end() => then(self, req),
            Ok(0) => self.at_end(req),
            Ok(n) => {
                if let Some(a) = req.modules.upstream.current() {
                    a.received += n as u64;
                }
                self.rate.read += n as u64;
                then(self, req)
            }
            Err(Errno::AGAIN) => Pulled::Blocked,
            Err(e) => {
                let problem = conn_of(&self.contact).and_then(muxed::problem);
                let text = match problem {
                    Some(problem) => format!("upstream {} while reading upstream", problem.text),
                    None => format!("recv() failed {} while reading upstream", errno_text(e)),
                };
                self.fail(req, Level::Error, &text)
            }
        }
    }

    fn at_end(&mut self, req: &mut Request) -> Pulled {
        if self.decoder.ends_with_connection() {
            let cut = conn_of(&self.contact).is_some_and(|c| c.wire().is_cut());
            // Unlike nginx: without a close_notify of TLS, somebody may have cut the response off. This client gets the
            // bytes that have come, but the response is not stored for other clients (RFC 9112, section 8).
            if let Some(s) = self.spool.as_mut().filter(|s| cut && s.keeps()) {
                s.discard();
                let text = "upstream closed connection without close_notify, response is not kept while reading upstream";
                req.log(Level::Warn, text);
            }
            self.decoder.content.reusable = false;
            return self.end(req, Ending::Whole);
        }
        self.fail(req, Level::Error, "upstream prematurely closed connection while reading upstream")
    }

    fn fail(&mut self, req: &mut Request, level: Level, text: &str) -> Pulled {
        req.log(level, text);
        self.break_off(req)
    }

    /// Ends a response of which nothing more is read.
    fn break_off(&mut self, req: &mut Request) -> Pulled {
        self.decoder.content.reusable = false;
        self.end(req, Ending::Broken)
    }

    /// Ends the response, if it has not ended yet: takes its times, and keeps or closes the connection.
    fn end(&mut self, req: &mut Request, ending: Ending) -> Pulled {
        if self.ended.is_none() {
            self.ended = Some(ending);
            self.decoder.note_trailers(req, conn_of(&self.contact));
            over(req, &mut self.contact, self.decoder.content.reusable);
        }
        self.ended.unwrap_or(ending).into()
    }

    /// Returns `true` if enough content follows that may go to the client inside the kernel.
    pub fn can_pass(&mut self) -> bool {
        self.end_idle_spool();
        self.decoder.left() >= LONG
            && self.spool.is_none()
            && !self.rate.is_limited()
            && conn_of(&self.contact).is_some_and(|c| c.wire().has_sendfile())
    }

    /// Fills a pipe with content that has come. Returns `None` if that is impossible now, so that [`Body::pull`] is needed.
    pub fn pass(&mut self, req: &mut Request, pipe: &mut Pipe) -> Option<Pulled> {
        if let Some(pulled) = self.end_revoked(req) {
            return Some(pulled);
        }
        // Bytes that the client does not take will be moved to memory.
        let memory = self.ahead.as_ref().map_or(0, |a| a.memory).max(READ);
        let want = usize::try_from(self.decoder.left()).unwrap_or(usize::MAX).min(memory);
        let got = match conn_of(&self.contact) {
            Some(c) if c.readable() => c.fill(pipe, want),
            Some(_) => Err(Errno::AGAIN),
            None => Err(Errno::BADF),
        };
        // No descriptors are left, or the kernel has no such calls.
        if let Err(
            Errno::MFILE
            | Errno::NFILE
            | Errno::NOMEM
            | Errno::INVAL
            | Errno::PERM
            | Errno::ACCESS
            | Errno::NOSYS
            | Errno::OPNOTSUPP,
        ) = got
        {
            return None;
        }
        let n = got.unwrap_or(0);
        Some(self.took(req, got, |body, req| {
            // Bytes that follow the announced content forbid another request on the connection. Spliced bytes are not
            // seen here, so a peek asks the kernel.
            let behind = || match conn_of(&body.contact).map(Conn::peek) {
                Some(Err(Errno::AGAIN)) => Behind::Nothing,
                Some(Ok(1..)) => Behind::Bytes,
                _ => Behind::End,
            };
            let passed = body.decoder.content.passed(req, n, behind);
            body.decoded(req, passed)
        }))
    }

    /// Waits until there may be more. Fails if the response breaks off: it took too long, or the client is gone.
    pub async fn wait(&mut self, req: &mut Request) -> Done {
        if self.spool.as_ref().is_some_and(|s| s.next() != NextBytes::Nothing) {
            // The bytes came while the client took nothing, so there is something to send without a wait.
            return Ok(());
        }
        if let Some(wait) = self.rate.delay() {
            let thread = req.thread.clone();
            thread.io.poller.sleep(wait).await;
            return Ok(());
        }
        // As in nginx, a response that is stored is read to its end even if the client leaves.
        let watched = !self.ignore_abort && !self.keeps() && !req.is_background();
        let mut watch = if watched { req.conn.wire.watch() } else { Watch::Nothing };
        if self.uploads()
            && let Some(done) = Box::pin(self.wait_beside(req, &mut watch)).await
        {
            return done;
        }
        match self.wait_for_upstream(req, &mut watch).await {
            Waited::Ready => Ok(()),
            Waited::Timeout => Err(self.timed_out(req, "reading upstream")),
            Waited::ClientGone => Err(self.client_gone(req)),
        }
    }

    /// Waits until the upstream has sent more. If much has come since the last wait, acknowledges it after a short while, and gives
    /// memory back after a long one: between the events of a stream, both would cost more than they save.
    async fn wait_for_upstream(&mut self, req: &mut Request, watch: &mut Watch) -> Waited {
        // Thousands of requests may wait here, so the buffer of the head goes back to the thread meanwhile.
        req.lend_head();
        let before = self.read_before.replace(self.rate.read);
        let much = before.is_none_or(|before| self.rate.read - before >= MUCH);
        let Some(c) = conn_of(&self.contact) else { return Waited::Ready };
        let deadline = req.thread.io.poller.after(self.read_timeout);
        let mut steps = [NUDGE, waiting::LONG].into_iter().filter(|_| much);
        loop {
            let step = steps.next();
            let until = step.map_or(deadline, |step| deadline.min(req.thread.io.poller.after(step)));
            match c.wait(For::Read, until, watch).await {
                Waited::Timeout if until >= deadline => return Waited::Timeout,
                Waited::Timeout if step == Some(NUDGE) => {
                    // A unix socket has nothing to acknowledge.
                    let _ = c.with_fd(|fd| rustix::net::sockopt::set_tcp_quickack(fd, true));
                }
                Waited::Timeout => req.shrink(),
                waited => return waited,
            }
        }
    }

    fn timed_out(&mut self, req: &mut Request, doing: &str) -> Broken {
        let text = format!("upstream timed out (110: Connection timed out) while {doing}");
        if let Some(stream) = conn_of(&self.contact).and_then(muxed::stream) {
            stream.timed_out();
        }
        self.fail(req, Level::Error, &text);
        Broken::Content
    }

    fn client_gone(&mut self, req: &mut Request) -> Broken {
        let text = "epoll_wait() reported that client prematurely closed connection, so upstream connection is closed too \
                    while reading upstream";
        self.fail(req, Level::Info, text);
        Broken::Content
    }

    /// Waits until the client takes more, or until a time, and meanwhile reads ahead.
    pub async fn read_ahead(&mut self, req: &mut Request, client: bool, until: Instant) -> Awaited {
        self.begin_ahead(req);
        let patience = Instant::now() + PATIENCE;
        loop {
            // Boxed, like the other rare calls below, so that requests that do not make them keep no room for them.
            if self.uploads() {
                Box::pin(self.pass_upload(req)).await;
            }
            let full = self.is_full(req, patience).await;
            // Without an event, the wait ends when the rate allows more, or when full memory may go to the file.
            let delay = self.rate.delay().map(|d| Instant::now() + d);
            let wake = [delay, full.then_some(patience)].into_iter().flatten().fold(until, Instant::min);
            match self.ready(req, client, delay.is_some(), wake).await {
                Some(Ready::Client) => return Awaited::Writable,
                Some(Ready::Request) => {}
                None if Instant::now() >= until => return Awaited::TimeOver,
                None if full => {}
                Some(Ready::Upstream) | None => self.read_more(req).await,
            }
        }
    }

    /// Creates the spool if reading ahead is allowed.
    fn begin_ahead(&mut self, req: &Request) {
        if self.spool.is_none()
            && let Some(limits) = self.ahead.filter(|_| self.contact.is_some())
        {
            self.spool = Some(Box::new(Spool::new(limits, None, temporary(req))));
        }
    }

    /// Returns `true` if memory is full and stays so. Moves it to a file if the response is kept, or once `patience` is over. A kept
    /// response that has ended is published at once: others may wait for it.
    async fn is_full(&mut self, req: &mut Request, patience: Instant) -> bool {
        if self.wants_save() && (self.keeps() || Instant::now() >= patience) {
            Box::pin(self.save(req)).await;
        }
        self.wants_save()
    }

    /// Waits until a side is ready, or until `wake`. `client`: whether the client is one of them. `delayed`: the upstream is not
    /// read for now.
    async fn ready(&self, req: &Request, client: bool, delayed: bool, wake: Instant) -> Option<Ready> {
        let io = &req.thread.io;
        let wanted = !delayed && self.ended.is_none() && self.spool.as_ref().is_some_and(|s| s.has_room());
        let upstream = conn_of(&self.contact).filter(|_| wanted);
        let upload = self.contact.as_ref().and_then(|c| c.conn().zip(c.upload.as_ref()));
        std::future::poll_fn(|cx| {
            if client && req.conn.wire.poll_writable(io, cx).is_ready() {
                return Poll::Ready(Some(Ready::Client));
            }
            if upstream.is_some_and(|u| u.wire().poll_readable(io, cx).is_ready()) {
                return Poll::Ready(Some(Ready::Upstream));
            }
            if upload.is_some_and(|(conn, upload)| upload.poll(req, conn, cx).is_ready()) {
                return Poll::Ready(Some(Ready::Request));
            }
            io.poller.poll_deadline(wake).map(|()| None)
        })
        .await
    }

    /// Reads content while the client takes nothing.
    async fn read_more(&mut self, req: &mut Request) {
        let mut nowhere = Vec::new();
        self.receive(req, &mut nowhere);
        if self.keeps() && self.wants_save() {
            Box::pin(self.save(req)).await;
        }
    }

    /// Reads the rest of a response that is kept, for a client that is gone or does not want it.
    pub async fn drain(&mut self, req: &mut Request) {
        let thread = req.thread.clone();
        let mut nowhere = Vec::new();
        // Each turn saves bytes, reads some, waits, or ends the response. A kept response that has ended is saved or
        // given up.
        while self.keeps() {
            if let Some(s) = &mut self.spool {
                s.skip();
            }
            if self.wants_save() {
                self.save(req).await;
            } else if self.receive(req, &mut nowhere) == Pulled::Blocked {
                // A response that breaks off during this wait is no longer kept, which ends the loop.
                let _ = self.wait(req).await;
            } else {
                // An upstream that always has more must not keep the thread from its other requests.
                thread.io.poller.yield_now().await;
            }
        }
    }

    /// Ends a response whose rest is not read.
    pub fn abandon(&mut self, req: &mut Request) {
        self.break_off(req);
    }
}

fn conn_of(contact: &Option<Contact>) -> Option<&Conn> {
    contact.as_ref()?.conn()
}

/// Ends a response: takes its time, and keeps (`reusable`) or closes the connection.
pub fn over(req: &mut Request, contact: &mut Option<Contact>, reusable: bool) {
    match contact.take() {
        Some(mut ended) => {
            ended.over(req);
            if reusable {
                ended.keep();
            }
        }
        None => attempt_over(req),
    }
}

/// Returns the directory for temporary files of upstream responses (nginx: proxy_temp_path).
fn temporary(req: &Request) -> TempDir {
    let http = req.http();
    let given = proxy::SETTINGS.of(&http.location(req).settings).temp_path.0.clone();
    given.unwrap_or_else(|| req.conf.http.proxy_temp.clone().into())
}

impl RelayContact for Contact {
    fn over(self: Box<Self>, req: &mut Request, from_client: u64, from_server: u64) {
        switched::count(req, from_client, from_server);
        Contact::over(&self, req);
    }

    fn is_revoked(&self) -> bool {
        self.lease.is_revoked()
    }
}
