//! Runners: futures that serve one connection after another. Hot path.

use super::{Handler, Poller, Token};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Work for a runner.
#[derive(Debug)]
pub struct Job<W> {
    /// Slot of its connection; [`Token::NONE`] if it has none.
    pub token: Token,
    /// The work.
    pub work: W,
}

struct Runner<W> {
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// Its waker, unless it is being polled.
    waker: Option<Waker>,
    /// Work handed over, taken by [`super::Reactor::next_job`].
    job: Option<Job<W>>,
    busy: bool,
}

/// All runners of a reactor and the work that waits for one.
pub(super) struct Runners<W> {
    all: RefCell<Vec<Runner<W>>>,
    /// Runners without work.
    idle: RefCell<Vec<u32>>,
    /// Places in `all` without a future.
    free: RefCell<Vec<u32>>,
    /// Work for runners that other runners have found.
    queue: RefCell<VecDeque<Job<W>>>,
    /// Runners that go on when the queue is empty.
    after_queue: RefCell<Vec<u32>>,
}

/// Most idle runners that are kept for the next burst.
pub(super) const SPARE_RUNNERS: usize = 64;

impl<W> Default for Runners<W> {
    fn default() -> Self {
        Runners {
            all: RefCell::default(),
            idle: RefCell::default(),
            free: RefCell::default(),
            queue: RefCell::default(),
            after_queue: RefCell::default(),
        }
    }
}

impl<W: 'static> Runners<W> {
    /// Hands a connection to an idle runner, or to a new one, and polls it.
    pub(super) fn start<H: Handler<Work = W>>(&self, poller: &Poller, handler: &Rc<H>, job: Job<W>) {
        let idle = self.idle.borrow_mut().pop();
        let id = idle.unwrap_or_else(|| self.add(poller, handler));
        if let Some(r) = self.all.borrow_mut().get_mut(id as usize) {
            r.job = Some(job);
            r.busy = true;
        }
        self.poll(poller, handler, id);
    }

    fn add<H: Handler<Work = W>>(&self, poller: &Poller, handler: &Rc<H>) -> u32 {
        let mut all = self.all.borrow_mut();
        let id = self.free.borrow_mut().pop().unwrap_or(all.len() as u32);
        poller.add_runner(id);
        let waker = Some(poller.wakes.waker(id));
        let future = Some(handler.clone().runner(id));
        let runner = Runner { future, waker, job: None, busy: false };
        match all.get_mut(id as usize) {
            Some(r) => *r = runner,
            None => all.push(runner),
        }
        id
    }

    fn poll<H: Handler<Work = W>>(&self, poller: &Poller, handler: &Rc<H>, id: u32) {
        let taken = match self.all.borrow_mut().get_mut(id as usize) {
            Some(r) => r.future.take().zip(r.waker.take()),
            None => None,
        };
        let Some((mut future, waker)) = taken else { return };
        let outer = poller.current.replace(id);
        let outer_waker = poller.current_waker.replace(waker.data() as usize);
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            future.as_mut().poll(&mut Context::from_waker(&waker))
        }));
        poller.current_waker.set(outer_waker);
        if matches!(polled, Ok(Poll::Pending)) {
            poller.current.set(outer);
            // A surplus future is dropped here, when nothing is borrowed.
            let _surplus = self.keep(id, waker, future);
            return;
        }
        // The drop of the future closes the connection that it held.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(future)));
        if polled.is_err() {
            handler.panicked();
        }
        poller.current.set(outer);
        if let Some(r) = self.all.borrow_mut().get_mut(id as usize) {
            r.busy = false;
            r.job = None;
            r.waker = Some(waker);
            self.free.borrow_mut().push(id);
        }
    }

    /// Puts a runner back after a poll. Returns its future if enough runners are idle.
    fn keep(
        &self,
        id: u32,
        waker: Waker,
        future: Pin<Box<dyn Future<Output = ()>>>,
    ) -> Option<Pin<Box<dyn Future<Output = ()>>>> {
        let mut all = self.all.borrow_mut();
        let r = all.get_mut(id as usize)?;
        r.waker = Some(waker);
        if r.busy {
            r.future = Some(future);
            return None;
        }
        let mut idle = self.idle.borrow_mut();
        if idle.len() < SPARE_RUNNERS {
            r.future = Some(future);
            idle.push(id);
            None
        } else {
            self.free.borrow_mut().push(id);
            Some(future)
        }
    }

    /// Polls a runner if it has work, and returns whether it has. A wake-up may come late, after the runner has finished:
    /// polling an idle runner would list it as idle twice.
    pub(super) fn poll_busy<H: Handler<Work = W>>(&self, poller: &Poller, handler: &Rc<H>, id: u32) -> bool {
        let busy = self.all.borrow().get(id as usize).is_some_and(|r| r.busy);
        if busy {
            self.poll(poller, handler, id);
        }
        busy
    }

    /// Adds work for another runner.
    pub(super) fn queue(&self, job: Job<W>) {
        self.queue.borrow_mut().push_back(job);
    }

    /// Starts the queued work, then polls the runners that waited for that.
    pub(super) fn start_queued<H: Handler<Work = W>>(&self, poller: &Poller, handler: &Rc<H>) {
        loop {
            let job = self.queue.borrow_mut().pop_front();
            if let Some(job) = job {
                self.start(poller, handler, job);
                continue;
            }
            let Some(id) = self.after_queue.borrow_mut().pop() else { return };
            self.poll_busy(poller, handler, id);
        }
    }

    /// Has a runner polled once the queue is empty.
    pub(super) fn resume_after_queue(&self, id: u32) {
        self.after_queue.borrow_mut().push(id);
    }

    /// Takes the work of a runner. Without any the runner counts as idle from now on.
    pub(super) fn take_job(&self, id: u32) -> Poll<Job<W>> {
        let mut all = self.all.borrow_mut();
        let Some(r) = all.get_mut(id as usize) else { return Poll::Pending };
        match r.job.take() {
            Some(job) => Poll::Ready(job),
            None => {
                r.busy = false;
                Poll::Pending
            }
        }
    }

    /// Numbers of the runners that have work.
    pub(super) fn busy(&self) -> Vec<u32> {
        let all = self.all.borrow();
        all.iter().enumerate().filter(|(_, r)| r.busy).map(|(i, _)| i as u32).collect()
    }

    /// Numbers of the idle runners.
    #[cfg(test)]
    pub(super) fn idle(&self) -> Vec<u32> {
        self.idle.borrow().clone()
    }

    /// Number of places for runners.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.all.borrow().len()
    }
}
