//! HTTP as a front end: its block, its threads, its background work.

use crate::config::http::{Builder, Http, Memory};
use crate::config::{HttpContext, Scope};
use crate::connection::idle::{close_idle, idle};
use crate::connection::unread::{self, HeadFailure};
use crate::connection::{Connection, Partial, Work};
use crate::file_cache::{FileCache, SHED};
use crate::file_watch::Watches;
use crate::module::list::{self, List};
use crate::module::thread::FIRST_KIND;
use crate::module::{message, process};
use crate::request::tally::Arrival;
use crate::thread::{QUIC, Thread, ThreadConfig};
use forebay_conf::error::Level;
use forebay_conf::tree::Block;
use forebay_core::client::Client;
use forebay_core::config::Config;
use forebay_core::config::{Build, Context};
use forebay_core::front::{Accepted, Front, FrontConfig, FrontEnd, Idle, IdlePlace, PARTING, Passed};
use forebay_core::idle_memory::Ended;
use forebay_core::outside::Outside;
use forebay_core::thread::{ActiveConfig, Thread as WorkerThread};
use forebay_core::upstream::config::Numbers;
use forebay_net::reactor::{Direct, Job, NOTICE_CACHES, NOTICE_MOUNTS, Token};
use forebay_net::wire::Wire;
use std::any::Any;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// The HTTP front end.
pub struct HttpFrontEnd {
    modules: List,
}

impl HttpFrontEnd {
    /// Makes a front end with these modules. A process has one list of modules, from the first front end that reads a configuration.
    pub const fn new(modules: List) -> HttpFrontEnd {
        HttpFrontEnd { modules }
    }
}

impl std::fmt::Debug for HttpFrontEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HTTP with {} modules", self.modules.len())
    }
}

impl FrontEnd for HttpFrontEnd {
    fn block(&self) -> &'static str {
        HttpContext::BLOCK
    }

    fn read<'a>(&self, number: u8, block: Option<&Block>, build: Build<'a>) -> (FrontConfig, Build<'a>) {
        list::begin(self.modules);
        let mut cx = Scope::new(build, crate::variables::builtin);
        let former = cx.again.as_ref().and_then(|again| again.former.clone()?.downcast::<Memory>().ok());
        if let Some(former) = &former {
            // Units that are taken over refer to variables by number, so the numbers have to stay the same.
            cx.vars = crate::variables::Registry::after(crate::variables::builtin, &former.names);
        }
        let numbers = former.as_ref().map(|former| former.numbers.clone()).unwrap_or_default();
        // Groups keep their numbers for the same reason as variables.
        cx.tables.upstreams.all.number_by(numbers.clone());
        let combined = crate::modules::log::combined(&mut cx.vars);
        cx.tables.log_formats.push(combined);
        let (mut http, listeners, memory) = match block {
            Some(block) => {
                let mut builder = Builder::new(&mut cx, former);
                builder.http_block(block);
                builder.finish(number)
            }
            None => Default::default(),
        };
        remember(memory, numbers, &http, &mut cx);
        http.set_default_paths(cx.env);
        http.logs_sent_fields = [b"sent_http_".as_slice(), b"upstream_http_", b"upstream_cookie_"]
            .iter()
            .any(|prefix| cx.vars.uses_prefix(prefix));
        let forebay_core::config::Scope { build, vars, .. } = cx;
        let unknown;
        (http.vars, unknown) = vars.finish();
        build.warnings.extend(unknown.iter().map(|m| forebay_core::config::plain(m)));
        let read = FrontConfig {
            listeners,
            default_temp_paths: http.default_temp_paths(),
            certificate_files: std::mem::take(&mut http.certificate_files),
            levels: http.new_levels,
            groups: http.upstreams.iter().map(|u| u.group.clone()).collect(),
            config: Arc::new(http),
        };
        (read, build)
    }

    fn prepare(&self, number: u8, config: &Config) {
        if let Some(http) = config.front::<Http>(number) {
            for prepare in list::all().iter().filter_map(|module| module.prepare) {
                prepare(&http);
            }
        }
    }

    fn ended(&self, number: u8, config: &Config, log: &dyn Fn(Level, &str)) {
        if let Some(http) = config.front::<Http>(number) {
            for ended in list::all().iter().filter_map(|module| module.ended) {
                ended(&http, log);
            }
        }
    }

    fn begin(
        &self,
        number: u8,
        config: &Config,
        former: Option<&Config>,
        outside: &Outside,
    ) -> Box<dyn Any + Send> {
        if former.is_some() {
            crate::counting::reloaded();
        }
        let http = config.front::<Http>(number).unwrap_or_default();
        let former = former.and_then(|f| f.front::<Http>(number));
        Box::new(process::begin(&http, former.as_deref(), config, outside, number))
    }

    fn start(&self, number: u8, thread: &Rc<WorkerThread>) -> Rc<dyn Front> {
        // All threads share the limit of watches that the kernel has for a user.
        let watches = Watches::new(thread.io.poller.epoll().clone(), thread.all_counters.len());
        Rc::new(HttpThread(Thread::new(thread.clone(), number, FileCache::watching(watches))))
    }
}

/// Hands everything that the next configuration may take over to the build.
fn remember(memory: Memory, numbers: Numbers, http: &Http, cx: &mut Scope<'_>) {
    let (names, used) = cx.vars.names();
    let groups = numbers.count();
    let Some(again) = &mut cx.build.again else { return };
    // Reading everything is the only way to give back numbers that are no longer used.
    if names.len() > 2 * used + MOST_UNUSED || groups > 4 * http.upstreams.iter().len() + MOST_UNUSED {
        return;
    }
    again.kept = memory.units.iter().map(|(path, unit)| (path.clone(), unit.reads.clone())).collect();
    again.next = Some(Arc::new(Memory { names, numbers, ..memory }));
}

/// Maximum number of unused variables or groups, in addition to a share of the used ones.
const MOST_UNUSED: usize = 1000;

/// The HTTP front end of a thread.
struct HttpThread(Rc<Thread>);

impl HttpThread {
    /// Gives the idle connections that `f` selects a last time to send a request, which is answered with `Connection: close`. A request
    /// that was on its way when the connection closed would be lost for its client.
    fn part_from_idle(&self, f: impl Fn(&Connection) -> bool) {
        let deadline = self.0.io.poller.after(PARTING);
        for job in self.0.runners.take_idle(f) {
            let Job { token, work: Work::Connection(conn) } = job else { continue };
            if let Err(conn) = self.0.runners.park(token, conn, deadline) {
                // Data has come in the meantime, so the connection is served at once.
                self.0.start(token, conn);
            }
        }
    }

    /// Logs requests that a shutdown cuts off and that no runner serves. Runners log their own requests when they end.
    fn log_unfinished(&self) {
        self.0.relays.cut_off();
        self.close_all_idle(|c| c.partial.is_some());
        self.0.quic.cut_off(&self.0);
        for job in self.0.runners.take_queued() {
            match job.work {
                Work::Stream(stream) => unread::log_unserved(&self.0, &*stream),
                Work::Http3(stream) => unread::log_unserved(&self.0, &*stream),
                Work::Connection(_) | Work::Task(_) | Work::Relayed(_) => {}
            }
        }
    }

    /// Wakes idle HTTP/2 connections, which send GOAWAY.
    fn wake_sessions(&self) {
        for job in self.0.runners.take_idle(|c| c.session.is_some()) {
            self.0.runners.queue(job);
        }
    }

    /// Closes the idle connections for which `f` returns `true`.
    fn close_all_idle(&self, mut f: impl FnMut(&Connection) -> bool) {
        let mut chosen = Vec::new();
        self.0.runners.each_idle(|token, c, _, _| {
            if f(c) {
                chosen.push(token);
            }
        });
        chosen
            .into_iter()
            .for_each(|token| close_idle(&self.0, IdlePlace::Socket(token), HeadFailure::Ended));
    }
}

impl Front for HttpThread {
    fn accept(&self, a: Accepted) {
        let client = Client {
            number: a.number,
            peer: a.peer,
            local: a.local,
            listener: a.listener,
            ..Client::none(self.0.clock.now())
        };
        self.0.start(a.token, Connection::new(Wire::Plain(a.token), Rc::new(client)));
    }

    fn take_over(&self, passed: Passed) {
        let token = passed.wire.token();
        let mut conn = Connection::new(passed.wire, Rc::new(passed.client));
        if !passed.early.is_empty() {
            let started = self.0.clock.now();
            conn.partial =
                Some(Box::new(Partial { buf: passed.early.into(), started, arrival: Arrival::Unknown }));
            // The head stays counted until a runner has read the rest.
            self.0.counters.reading.add(1);
        }
        self.0.start(token, conn);
    }

    fn resume(&self, token: Token) {
        if let Some(conn) = self.0.runners.take_parked(token) {
            self.0.start(token, conn);
        }
    }

    fn expired(&self, token: Token) {
        let Some(mut conn) = self.0.runners.take_parked(token) else { return };
        // An HTTP/2 connection goes to a runner instead, which sends GOAWAY.
        let between_requests = conn.requests > 0 && conn.partial.is_none() && conn.session.is_none();
        if between_requests {
            conn.wire.close(&self.0.io);
            self.0.close(token);
            return;
        }
        conn.expired = true;
        self.0.start(token, conn);
    }

    fn start_queued(&self) {
        self.0.start_queued();
    }

    fn step(&self, direct: Direct) {
        match direct.kind {
            QUIC => self.0.quic.step(&self.0),
            kind @ FIRST_KIND.. => self.0.states.step(&self.0, kind, direct.number),
            _ => self.0.relays.step(direct),
        }
    }

    fn needs_socket(&self, listener: u32) -> bool {
        self.0.quic.open(listener) > 0
    }

    fn listens(&self, listener: u32, socket: &Arc<OwnedFd>) {
        self.0.quic.listens(listener, socket);
    }

    fn datagrams(&self, listener: u32, socket: &Arc<OwnedFd>) {
        let _ = socket;
        self.0.quic.receive(&self.0, listener);
    }

    fn set_aside_ended(&self, token: Token, owner: u32) {
        self.0.conf.borrow().groups.set_aside_ended(token, owner);
    }

    fn idle(&self, now: Instant, out: &mut Vec<Idle>) {
        idle(&self.0, now, out);
    }

    fn close_idle(&self, place: IdlePlace) {
        close_idle(&self.0, place, HeadFailure::Displaced);
    }

    fn apply(&self, active: &Rc<ActiveConfig>) {
        let old =
            self.0.conf.replace(Rc::new(ThreadConfig::new(&self.0.worker, active.clone(), self.0.front)));
        // Idle upstream connections belong to the groups of their configuration.
        old.groups.close(&self.0.io);
        self.0.states.each(|state| state.applied());
        // Idle runners keep the configuration of their last request. Busy runners drop it when they have finished.
        self.0.runners.end_idle();
        // Spare requests would keep the old configuration alive as well.
        self.0.spare_requests.clear();
        // The new configuration has no servers for idle connections of removed listeners.
        let exists = |c: &Connection| active.listeners.get(c.client.listener as usize).copied().flatten();
        self.close_all_idle(|c| exists(c).is_none());
        self.0.quic.apply(&self.0);
    }

    fn quit(&self) {
        forebay_acme::quit();
        self.0.quic.quit(&self.0);
        // Connections of HTTP/2 send GOAWAY instead.
        self.part_from_idle(|c| c.partial.is_none() && c.requests > 0 && c.session.is_none());
        self.wake_sessions();
    }

    fn part(&self) {
        self.0.quic.part(&self.0);
        self.wake_sessions();
    }

    fn end(&self) {
        self.0.quic.end(&self.0);
        if !self.0.stopping.get() {
            self.log_unfinished();
        }
        // Idle upstream connections of this thread have no event loop from here on. Other threads may run on, and would take the
        // connections from the shared group.
        self.0.config().groups.close(&self.0.io);
        self.0.states.each(|state| state.end());
        // Spare requests refer to the thread and would keep it alive.
        self.0.spare_requests.clear();
    }

    fn has_background(&self) -> bool {
        self.0.background.subs() > 0
    }

    fn shed(&self) -> bool {
        self.0.states.any(|state| state.shed_files()) || self.0.files.borrow_mut().shed(SHED) == SHED
    }

    fn end_unneeded(&self) -> Ended {
        let runners = self.0.runners.end_unneeded() > 0;
        let now = self.0.io.poller.now();
        let files = self.0.files.borrow_mut().end_unneeded(now);
        let states = self.0.states.end_unneeded(now);
        let spare = self.0.spare_requests.end_unneeded()
            | self.0.spare_walks.end_unneeded()
            | self.0.buffers.end_unneeded();
        let left = self.0.runners.has_idle()
            || !self.0.files.borrow().is_empty()
            || states.left
            || !self.0.spare_requests.is_empty()
            || !self.0.spare_walks.is_empty()
            || !self.0.buffers.is_empty();
        Ended { some: runners || files || states.some || spare, left }
    }

    fn give_descriptors(&self) -> bool {
        let files = self.0.files.borrow_mut().shed(SHED);
        if files > 0 {
            return true;
        }
        let entries = self.0.states.any(|state| state.shed_files());
        self.0.config().groups.shed(&self.0.io) | self.0.states.any(|state| state.shed_connections())
            || entries
    }

    fn noticed(&self, number: u32) {
        if number == NOTICE_CACHES {
            return self.0.states.each(|state| state.noticed(number));
        }
        self.0.files.borrow_mut().handle_events(number == NOTICE_MOUNTS, self.0.io.poller.now());
    }

    fn message(&self, message: Box<dyn Any + Send>) {
        message::deliver(message, &self.0);
        // The message may have begun a request.
        self.start_queued();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{self, Partial};
    use std::time::Duration;

    fn conn(requests: u32, accepted: Instant, partial: Option<Instant>) -> Connection {
        let partial =
            partial.map(|started| Box::new(Partial { buf: [].into(), started, arrival: Arrival::Unknown }));
        Connection { partial, ..Connection::closed(Rc::new(Client::none(accepted)), requests) }
    }

    #[test]
    fn the_slowest_leave_first() {
        let start = Instant::now();
        let now = start + Duration::from_secs(60);
        let ago = |ms| now - Duration::from_millis(ms);
        let later = now + Duration::from_secs(60);
        let order = [
            connection::rank(&conn(0, ago(9000), None), later, now),
            connection::rank(&conn(7, start, Some(ago(3000))), later, now),
            connection::rank(&conn(1, start, None), now, now),
            connection::rank(&conn(1, start, None), later, now),
            connection::rank(&conn(0, ago(1000), None), later, now),
            connection::rank(&conn(5, start, Some(ago(300))), later, now),
        ];
        assert!(order.is_sorted() && order.iter().all(Option::is_some), "{order:?}");
        assert_eq!(connection::rank(&conn(0, ago(100), None), later, now), None);
        assert_eq!(connection::rank(&conn(3, start, Some(ago(100))), later, now), None);
    }
}
