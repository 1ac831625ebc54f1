//! Futures of a thread, by number. A task is polled when it is woken. Hot path.

use super::poller::Poller;
use std::cell::{OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Future of a task. It never ends by itself.
pub type Body = Pin<Box<dyn Future<Output = ()>>>;

/// Condition of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// It has work and is polled when it is woken.
    Busy,
    /// It has no work. A late wake-up does not poll it.
    Idle,
    /// It has no work, and is dropped at the end of its poll.
    Surplus,
}

struct Task {
    /// Its future, unless it is being polled or the place is free.
    body: Option<Body>,
    /// Its waker, unless it is being polled.
    waker: Option<Waker>,
    condition: Condition,
}

/// All tasks of a thread.
#[derive(Default)]
pub(super) struct Tasks {
    all: RefCell<Vec<Task>>,
    /// Places in `all` without a future.
    free: RefCell<Vec<u32>>,
    /// Front ends whose runners have queued work.
    queue: RefCell<VecDeque<u8>>,
    /// Tasks that go on when the queue is empty.
    after_queue: RefCell<Vec<u32>>,
    /// Called after a task has panicked. The drop of its future has closed its connection.
    pub(super) on_panic: OnceCell<Box<dyn Fn()>>,
}

impl Tasks {
    /// Adds an idle task and returns its number.
    pub(super) fn add(&self, poller: &Poller, body: Body) -> u32 {
        let mut all = self.all.borrow_mut();
        let id = self.free.borrow_mut().pop().unwrap_or(all.len() as u32);
        poller.add_task(id);
        let waker = Some(poller.wakes.waker(id));
        let task = Task { body: Some(body), waker, condition: Condition::Idle };
        match all.get_mut(id as usize) {
            Some(t) => *t = task,
            None => all.push(task),
        }
        id
    }

    /// Notes that a task has work, and polls it.
    #[inline]
    pub(super) fn begin(&self, poller: &Poller, id: u32) {
        self.set(id, Condition::Busy);
        self.poll(poller, id);
    }

    /// Notes that the task that is being polled has no more work. It is dropped after the poll unless `keep`.
    pub(super) fn finish(&self, id: u32, keep: bool) {
        self.set(id, if keep { Condition::Idle } else { Condition::Surplus });
    }

    fn set(&self, id: u32, condition: Condition) {
        if let Some(t) = self.all.borrow_mut().get_mut(id as usize) {
            t.condition = condition;
        }
    }

    fn poll(&self, poller: &Poller, id: u32) {
        // A task without a body is being polled further up the stack, or its place is free.
        let taken = match self.all.borrow_mut().get_mut(id as usize) {
            Some(t) => t.body.take().zip(t.waker.take()),
            None => None,
        };
        let Some((mut body, waker)) = taken else { return };
        // A task may start another one inside its own poll: the outer numbers come back afterwards.
        let outer = poller.current.get();
        poller.enter(id);
        let outer_budget = poller.budget.begin();
        let outer_waker = poller.current_waker.replace(waker.data() as usize);
        // A panic ends this task only. It is safe to go on, since the future is never polled again.
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            body.as_mut().poll(&mut Context::from_waker(&waker))
        }));
        poller.current_waker.set(outer_waker);
        poller.budget.end(outer_budget);
        if matches!(polled, Ok(Poll::Pending)) {
            poller.enter(outer);
            // A surplus future is dropped here, when nothing is borrowed.
            let _surplus = self.put_back(id, waker, body);
            return;
        }
        // The drop of the future closes the connection that it held.
        // A destructor may panic, too, and must not end the thread.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(body)));
        if polled.is_err() {
            self.report_panic();
        }
        poller.enter(outer);
        self.set(id, Condition::Idle);
        self.free.borrow_mut().push(id);
    }

    /// Reports a panic that has been caught.
    pub(super) fn report_panic(&self) {
        if let Some(report) = self.on_panic.get() {
            report();
        }
    }

    /// Puts a task back after a poll. Returns the future of a surplus one, whose place is free then.
    fn put_back(&self, id: u32, waker: Waker, body: Body) -> Option<Body> {
        let mut all = self.all.borrow_mut();
        let t = all.get_mut(id as usize)?;
        t.waker = Some(waker);
        if t.condition != Condition::Surplus {
            t.body = Some(body);
            return None;
        }
        // The caller drops the future after this borrow has ended: its destructors may start tasks.
        t.condition = Condition::Idle;
        self.free.borrow_mut().push(id);
        Some(body)
    }

    /// Ends an idle task. Returns its future, which the caller drops when it has borrowed nothing: its destructors may start
    /// tasks.
    pub(super) fn end_idle(&self, id: u32) -> Option<Body> {
        let mut all = self.all.borrow_mut();
        let t = all.get_mut(id as usize).filter(|t| t.condition == Condition::Idle)?;
        let body = t.body.take()?;
        t.waker = None;
        self.free.borrow_mut().push(id);
        Some(body)
    }

    /// Takes the futures of all tasks, which the caller drops. No task is polled any more.
    pub(super) fn end_all(&self) -> Vec<Body> {
        self.all.borrow_mut().iter_mut().filter_map(|t| t.body.take()).collect()
    }

    /// Polls a task if it has work, and returns whether it has. A wake-up may come late, after the task has finished:
    /// polling it then would list it as idle twice.
    pub(super) fn poll_busy(&self, poller: &Poller, id: u32) -> bool {
        // This is a statement of its own, so that the borrow has ended when the poll adds tasks.
        let busy = self.all.borrow().get(id as usize).is_some_and(|t| t.condition == Condition::Busy);
        if busy {
            self.poll(poller, id);
        }
        busy
    }

    /// Notes that a front end has queued work.
    pub(super) fn queue(&self, front: u8) {
        self.queue.borrow_mut().push_back(front);
    }

    /// Has `start` begin the queued work of each front end, then polls the tasks that waited for that.
    pub(super) fn start_queued(&self, poller: &Poller, start: impl Fn(u8)) {
        loop {
            // This is a statement of its own. In the `if let` the borrow would last while `start` queues more
            // work.
            let front = self.queue.borrow_mut().pop_front();
            if let Some(front) = front {
                start(front);
                continue;
            }
            let Some(id) = self.after_queue.borrow_mut().pop() else { return };
            self.poll_busy(poller, id);
        }
    }

    /// Has a task polled once the queue is empty.
    pub(super) fn resume_after_queue(&self, id: u32) {
        self.after_queue.borrow_mut().push(id);
    }

    /// Returns the numbers of the tasks that have work.
    pub(super) fn busy(&self) -> Vec<u32> {
        let all = self.all.borrow();
        all.iter()
            .enumerate()
            .filter(|(_, t)| t.condition == Condition::Busy)
            .map(|(i, _)| i as u32)
            .collect()
    }

    /// Returns the number of places for tasks.
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.all.borrow().len()
    }
}
