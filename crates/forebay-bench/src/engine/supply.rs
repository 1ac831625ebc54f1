//! Supply of requests: how many may still be sent, and at which times. Hot path.

use super::flight::{Flight, UNASSIGNED};
use super::timing::Times;
use crate::load::{Load, Stop};
use crate::schedule::Schedule;

/// The requests that a thread has yet to send.
pub(super) struct Supply {
    /// Set when the run has to end: nothing is sent any more.
    closed: bool,
    /// Requests that may still be sent; `None`: no limit.
    budget: Option<u64>,
    /// Open loop; `None`: a connection may send as soon as it has room.
    schedule: Option<Schedule>,
    /// Time at which the next request of the open loop is due, ns.
    next_due: u64,
    /// Requests that a server did not process, to be sent again.
    again: Vec<Flight>,
    in_flight: usize,
    due_in_window: u64,
}

impl Supply {
    /// Returns the share of thread `index` of `threads`.
    pub(super) fn new(load: &Load, index: usize, threads: usize) -> Supply {
        let share = |n: u64| n / threads as u64 + u64::from((index as u64) < n % threads as u64);
        let span = match load.stop {
            Stop::After(time) | Stop::Count(_, Some(time)) => (time + load.warmup).as_nanos() as u64,
            Stop::Count(_, None) => 1,
        };
        let budget = match load.stop {
            Stop::Count(n, _) => Some(share(n)),
            Stop::After(_) => None,
        };
        Supply {
            closed: false,
            budget,
            schedule: load.rate.map(|rate| Schedule::new(rate, span, index, threads, load.seed)),
            next_due: 0,
            again: Vec::new(),
            in_flight: 0,
            due_in_window: 0,
        }
    }

    /// Sets when the first request of an open loop is due.
    pub(super) fn begin(&mut self, start: u64) {
        if let Some(schedule) = &mut self.schedule {
            self.next_due = start + schedule.following();
        }
    }

    /// Returns the next request, if one is due, and counts it as under way.
    #[inline]
    pub(super) fn next(&mut self, now: u64, times: &Times) -> Option<Flight> {
        if self.closed {
            return None;
        }
        let flight = match self.again.pop() {
            Some(flight) => flight,
            None => self.new_flight(now, times)?,
        };
        self.in_flight += 1;
        Some(flight)
    }

    #[inline]
    fn new_flight(&mut self, now: u64, times: &Times) -> Option<Flight> {
        let due = match &mut self.schedule {
            None => now,
            Some(schedule) => {
                let due = self.next_due;
                if due > now || due >= times.end {
                    return None;
                }
                self.next_due = times.start + schedule.following();
                due
            }
        };
        if due >= times.from {
            self.spend()?;
            self.due_in_window += u64::from(self.schedule.is_some());
        }
        Some(Flight { due, start: now, request: UNASSIGNED })
    }

    /// Takes one request from the budget; `None` when it is spent.
    #[inline]
    fn spend(&mut self) -> Option<()> {
        if let Some(left) = &mut self.budget {
            *left = left.checked_sub(1)?;
        }
        Some(())
    }

    /// Returns a request of the open loop that was due before `end` and never left, counted as due; `None` when there
    /// are no more.
    pub(super) fn next_unsent(&mut self, now: u64, end: u64, times: &Times) -> Option<Flight> {
        if self.next_due >= end || self.is_budget_spent() {
            return None;
        }
        let schedule = self.schedule.as_mut()?;
        let flight = Flight { due: self.next_due, start: now, request: 0 };
        self.next_due = times.start + schedule.following();
        self.due_in_window += u64::from(flight.due >= times.from);
        if let Some(left) = &mut self.budget {
            *left -= 1;
        }
        Some(flight)
    }

    /// Counts a request as no longer under way.
    #[inline]
    pub(super) fn landed(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Takes back a request that the server did not process.
    pub(super) fn send_again(&mut self, flight: Flight) {
        self.landed();
        self.again.push(flight);
    }

    /// Ends sending.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Returns `true` if requests may be sent now or later.
    pub(super) fn is_open(&self) -> bool {
        !self.closed
    }

    /// Returns `true` if requests are due by a schedule, whatever the server does.
    #[inline]
    pub(super) fn is_open_loop(&self) -> bool {
        self.schedule.is_some()
    }

    /// Returns `true` if the run ends with a number of requests.
    pub(super) fn is_counted(&self) -> bool {
        self.budget.is_some()
    }

    fn is_budget_spent(&self) -> bool {
        self.budget == Some(0)
    }

    /// Returns `true` if all requests have been sent.
    pub(super) fn is_spent(&self) -> bool {
        self.is_budget_spent() && self.again.is_empty()
    }

    /// Returns `true` if a connection that is made now would have something to send.
    pub(super) fn is_worth_connecting(&self) -> bool {
        !self.closed && !self.is_budget_spent()
    }

    /// Returns `true` if a request of an open loop should have left by `now`.
    pub(super) fn is_due(&self, now: u64, end: u64) -> bool {
        !self.closed && self.has_scheduled_before(end) && self.next_due <= now && !self.is_budget_spent()
    }

    /// Returns `true` if the schedule has a request before `end`.
    pub(super) fn has_scheduled_before(&self, end: u64) -> bool {
        self.schedule.is_some() && self.next_due < end
    }

    /// Returns when the next request of the open loop is due, ns.
    pub(super) fn next_due(&self) -> u64 {
        self.next_due
    }

    /// Returns how many requests are under way.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns how many requests of an open loop were due within the measured time.
    pub(super) fn due_in_window(&self) -> u64 {
        self.due_in_window
    }
}
