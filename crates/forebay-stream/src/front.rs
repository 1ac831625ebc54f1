//! Stream as a front end: its block, its threads, its background work.

use crate::config::{Builder, Scope, Stream, StreamContext};
use crate::modules::health_check;
use crate::session::Session;
use crate::thread::{FLOW, PAIR, Thread};
use forebay_conf::error::Level;
use forebay_conf::tree::{Block, Directive};
use forebay_core::client::Client;
use forebay_core::config::{Build, Config, Context, plain};
use forebay_core::front::{Accepted, Front, FrontConfig, FrontEnd, Idle, IdlePlace, Passed};
use forebay_core::idle_memory::Ended;
use forebay_core::log::error;
use forebay_core::outside::Outside;
use forebay_core::tasks::Tasks;
use forebay_core::thread::{ActiveConfig, Thread as WorkerThread};
use forebay_core::tls::ocsp::staple;
use forebay_core::upstream::resolve;
use forebay_net::reactor::{Direct, Token};
use forebay_net::wire::Wire;
use forebay_sys::errno::errno;
use forebay_sys::sockets;
use std::any::Any;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// The stream front end.
#[derive(Debug)]
pub struct StreamFrontEnd;

impl FrontEnd for StreamFrontEnd {
    fn block(&self) -> &'static str {
        StreamContext::BLOCK
    }

    fn announce(&self, block: &Directive, build: &mut Build<'_>) {
        crate::config::announce(block, build);
    }

    fn read<'a>(&self, number: u8, block: Option<&Block>, build: Build<'a>) -> (FrontConfig, Build<'a>) {
        let mut cx = Scope::new(build, crate::variables::builtin);
        let (mut stream, listeners) = match block {
            Some(block) => {
                let mut builder = Builder::new(&mut cx);
                builder.block(block);
                builder.finish(number)
            }
            None => (Stream::default(), Vec::new()),
        };
        let Scope { build, vars, .. } = cx;
        let unknown;
        (stream.vars, unknown) = vars.finish();
        build.warnings.extend(unknown.iter().map(|m| plain(m)));
        let read = FrontConfig {
            listeners,
            default_temp_paths: Vec::new(),
            certificate_files: std::mem::take(&mut stream.certificate_files),
            levels: stream.servers.len(),
            groups: stream.upstreams.iter().map(|u| u.group.clone()).collect(),
            config: Arc::new(stream),
        };
        (read, build)
    }

    fn prepare(&self, number: u8, config: &Config) {
        config.front::<Stream>(number).unwrap_or_default().keyvals.prepare(StreamContext::BLOCK);
    }

    fn ended(&self, number: u8, config: &Config, log: &dyn Fn(Level, &str)) {
        config.front::<Stream>(number).unwrap_or_default().keyvals.tend(log);
    }

    fn begin(
        &self,
        number: u8,
        config: &Config,
        former: Option<&Config>,
        outside: &Outside,
    ) -> Box<dyn Any + Send> {
        let stream = config.front::<Stream>(number).unwrap_or_default();
        let former = former.and_then(|f| f.front::<Stream>(number));
        let log = {
            let outside = outside.clone();
            Arc::new(move |level, line: &str| outside.log(level, line)) as forebay_core::tasks::Log
        };
        let mut tasks = Tasks::default();
        for upstream in &stream.upstreams {
            let group = &upstream.group;
            if let Some(old) = former.as_ref().and_then(|f| f.upstreams.with_name(&group.name).next()) {
                group.adopt(&old.group);
                upstream.extras.sticky.adopt(&old.extras.sticky);
            }
            resolve::start(group, &mut tasks, &outside.tokio, &log);
            health_check::start(&stream, upstream, &mut tasks, &outside.tokio, &log);
        }
        stream.keyvals.start(&mut tasks, &outside.tokio, &log);
        for stapling in &stream.staplings {
            tasks.spawn(&outside.tokio, "asking responders", staple::start(stapling, &log));
        }
        Box::new(tasks)
    }

    fn start(&self, number: u8, thread: &Rc<WorkerThread>) -> Rc<dyn Front> {
        Rc::new(StreamThread(Thread::new(thread.clone(), number)))
    }
}

/// The stream front end of a thread.
struct StreamThread(Rc<Thread>);

impl Front for StreamThread {
    fn accept(&self, a: Accepted) {
        let client = Client {
            number: a.number,
            peer: a.peer,
            local: a.local,
            listener: a.listener,
            ..Client::none(self.0.clock.now())
        };
        let session = Session::new(self.0.clone(), Wire::Plain(a.token), client);
        self.0.start(a.token, Box::new(session));
    }

    fn listens(&self, _listener: u32, socket: &Arc<OwnedFd>) {
        // QUIC may have had it before the reload.
        let local = rustix::net::getsockname(socket).ok().and_then(|a| SocketAddr::try_from(a).ok());
        if let Some(local) = local
            && let Err(e) = sockets::reset_quic_options(socket, local.is_ipv6())
        {
            error::log(
                &self.0,
                Level::Alert,
                &format!("options of a UDP socket cannot be reset ({})", errno(&e)),
            );
        }
    }

    fn datagrams(&self, listener: u32, socket: &Arc<OwnedFd>) {
        self.0.udp.receive(&self.0, listener, socket);
    }

    fn take_over(&self, passed: Passed) {
        let token = passed.wire.token();
        let mut session = Session::new(self.0.clone(), passed.wire, passed.client);
        session.early = passed.early;
        self.0.start(token, Box::new(session));
    }

    fn resume(&self, token: Token) {
        if let Some(session) = self.0.runners.take_parked(token) {
            self.0.start(token, session);
        }
    }

    fn expired(&self, token: Token) {
        self.resume(token);
    }

    fn start_queued(&self) {
        self.0.start_queued();
    }

    fn step(&self, direct: Direct) {
        match direct.kind {
            PAIR => self.0.passing.step(direct),
            FLOW => self.0.udp.step(&self.0, direct),
            _ => {}
        }
    }

    fn set_aside_ended(&self, _token: Token, _owner: u32) {}

    fn idle(&self, now: Instant, out: &mut Vec<Idle>) {
        self.0.udp.idle(&self.0, now, out);
    }

    fn give_way(&self) -> bool {
        self.0.udp.give_way(&self.0)
    }

    fn close_idle(&self, place: IdlePlace) {
        if let IdlePlace::Socket(token) = place {
            self.0.udp.close_idle(&self.0, token);
        }
    }

    fn apply(&self, active: &Rc<ActiveConfig>) {
        self.0.apply(active);
    }

    fn quit(&self) {
        self.0.udp.quit();
    }

    fn end(&self) {
        // A fast shutdown leaves no line, as in nginx.
        if !self.0.stopping.get() {
            self.0.udp.cut_off();
            self.0.passing.cut_off();
        }
    }

    fn has_background(&self) -> bool {
        false
    }

    fn shed(&self) -> bool {
        false
    }

    fn end_unneeded(&self) -> Ended {
        Ended { some: self.0.runners.end_unneeded() > 0, left: self.0.runners.has_idle() }
    }

    fn noticed(&self, _number: u32) {}

    fn message(&self, _message: Box<dyn Any + Send>) {}
}
