//! One thread's loop: it waits for events and deadlines, and hands them to its connections. Hot path.

use super::pool::Pool;
use super::timing::{Lap, Times, Timing};
use crate::load::Load;
use crate::record::{Record, Sample, ThreadUse};
use crate::{Error, clock};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

/// Events of one turn.
const EVENTS: usize = 512;
/// Delay up to which requests wait for others, so that they leave together, ns. Waking for each one would cost more than sending
/// it.
const GRAIN: u64 = 50_000;

/// Result of a thread.
pub(super) struct ThreadResult {
    pub(super) record: Record,
    pub(super) used: ThreadUse,
    /// Length of the measured time, ns.
    pub(super) measured: u64,
    pub(super) first_error: Option<String>,
    /// Last head of a response to the first request.
    pub(super) head: Vec<u8>,
}

/// One thread.
pub(super) struct Worker<'a> {
    pool: Pool<'a>,
    index: usize,
    sender: Sender<Sample>,
}

impl<'a> Worker<'a> {
    /// Prepares thread `index` of `threads`.
    pub(super) fn new(
        load: &'a Load,
        index: usize,
        threads: usize,
        sender: Sender<Sample>,
    ) -> Result<Worker<'a>, Error> {
        Ok(Worker { pool: Pool::new(load, index, threads)?, index, sender })
    }

    /// Runs until the end of the run, or until `stop` is set.
    pub(super) fn run(mut self, times: Times, stop: &AtomicBool) -> Result<ThreadResult, Error> {
        // Sleeps end when they should, not up to 50 us later.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        self.pool.ctx.begin(times);
        self.pool.start_all();
        let mut timing = Timing::new(self.pool.ctx.load, times);
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        loop {
            self.pool.ctx.now = clock();
            self.heed_end(&mut timing, stop.load(Ordering::Relaxed));
            if self.is_done(&timing) {
                break;
            }
            self.pool.send_due();
            self.pool.start_paused();
            self.pool.connect_queued();
            self.look_after(&mut timing);
            self.pool.run_quic();
            self.wait(&mut events, self.next_deadline(&timing))?;
            for event in &events {
                self.pool.event(event);
            }
            // All responses of a turn are read before the next requests leave, as wrk does it. In answer to each at
            // once, the server would find fewer together, wake more often for the same work and so do less of it.
            self.pool.refill_answered();
            if self.pool.ctx.distrusts {
                stop.store(true, Ordering::Relaxed);
            }
        }
        Ok(self.finish(timing, stop.load(Ordering::Relaxed)))
    }

    /// Stops sending at the end of the measured time, or when the user has stopped the run.
    fn heed_end(&mut self, timing: &mut Timing, halt: bool) {
        let ctx = &mut self.pool.ctx;
        if timing.stops(ctx.now, halt) {
            ctx.times.end = ctx.times.end.min(ctx.now);
        }
        // In an open loop requests that were due before the end are still sent.
        let sending = !halt && ctx.supply.has_scheduled_before(ctx.times.end);
        if ctx.supply.is_open() && timing.is_stopped() && !sending {
            ctx.supply.close();
            self.pool.close_idle();
        }
    }

    /// Returns `true` if nothing is left to send and to wait for.
    fn is_done(&self, timing: &Timing) -> bool {
        let supply = &self.pool.ctx.supply;
        let is_last = || !supply.is_open() || supply.is_spent() || self.pool.is_hopeless(timing.timeout());
        timing.is_over(self.pool.ctx.now) || supply.in_flight() == 0 && is_last()
    }

    /// Looks for timeouts and reports, when it is time.
    fn look_after(&mut self, timing: &mut Timing) {
        let now = self.pool.ctx.now;
        if timing.scan_is_due(now) {
            self.pool.end_silent(timing.timeout());
        }
        if let Some(lap) = timing.tick(now) {
            self.report(&lap);
        }
    }

    /// Returns until when the thread may sleep.
    fn next_deadline(&self, timing: &Timing) -> u64 {
        let mut until = timing.next_deadline();
        let ctx = &self.pool.ctx;
        if self.pool.waits_for_schedule() {
            until = until.min(ctx.supply.next_due().max(ctx.now + GRAIN));
        }
        match self.pool.next_timer() {
            Some(at) => until.min(at),
            None => until,
        }
    }

    /// Sleeps until there are events, at most until a time.
    fn wait(&self, events: &mut Vec<epoll::Event>, until: u64) -> Result<(), Error> {
        let epoll = self.pool.epoll();
        let left = until.saturating_sub(clock());
        let time = Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as _ };
        events.clear();
        // epoll_wait(2) rounds up to milliseconds, too coarse for a schedule, and epoll_pwait2(2) needs Linux 5.11:
        // ppoll(2) sleeps, where there is nothing to do at once.
        let precise = left > 0 && (self.pool.ctx.supply.is_open_loop() || self.pool.has_timers());
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timeout = if precise { &at_once } else { &time };
        let mut result = epoll::wait(epoll, spare_capacity(events), Some(timeout));
        if precise && result == Ok(0) {
            let mut ready = [PollFd::new(epoll, PollFlags::IN)];
            result = match rustix::event::poll(&mut ready, Some(&time)) {
                Ok(n) if n > 0 => epoll::wait(epoll, spare_capacity(events), Some(&at_once)),
                other => other,
            };
        }
        match result {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(Error::Io("epoll".into(), e.into())),
        }
    }

    fn report(&mut self, lap: &Lap) {
        // The receiver is gone when the run failed in another thread.
        let _ = self.sender.send(self.pool.ctx.sample(self.index, lap));
    }

    fn finish(mut self, mut timing: Timing, halted: bool) -> ThreadResult {
        self.pool.ctx.now = clock();
        let (measured, used) = timing.measured(self.pool.ctx.last_moment());
        // A user who stops a closed loop has not waited for the responses under way: they are no failures.
        if !halted || self.pool.ctx.supply.is_open_loop() {
            self.pool.fail_unanswered();
        }
        self.pool.ctx.fail_unsent();
        self.pool.close_all();
        let lap = timing.lap(self.pool.ctx.now);
        self.report(&lap);
        let (record, first_error, head) = self.pool.ctx.finish();
        ThreadResult { record, used, measured, first_error, head }
    }
}
