//! Counts of a thread, and the sum over threads. Hot path.

use crate::histogram::{Coarse, Histogram};

/// Kind of failure of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Failure {
    /// No connection.
    Connect,
    /// The handshake failed, or the certificate does not verify.
    Tls,
    /// Reset, or closed before the answer began.
    Read,
    /// Could not be sent.
    Write,
    /// No answer in time.
    Timeout,
    /// Another status than expected.
    Status,
    /// The content ended early or had another length than expected.
    Length,
    /// The content differs from the expected one.
    Body,
    /// The answer is not HTTP.
    Protocol,
    /// Sent, or due in an open loop, and neither answered nor failed at the end.
    Unanswered,
}

impl Failure {
    /// Returns `true` if nothing came that could end the request.
    pub(crate) fn is_silence(self) -> bool {
        matches!(self, Failure::Timeout | Failure::Unanswered)
    }

    /// Returns the meaning in words, for where nothing more is known.
    pub fn words(self) -> &'static str {
        match self {
            Failure::Connect => "no connection",
            Failure::Tls => "the TLS handshake failed",
            Failure::Read => "the server closed the connection instead of answering",
            Failure::Write => "the server took no request",
            Failure::Timeout | Failure::Unanswered => "no answer",
            Failure::Status => "another status than expected",
            Failure::Length => "an answer was cut short",
            Failure::Body => "other content than expected",
            Failure::Protocol => "what came is no answer in the HTTP that was asked for",
        }
    }
}

/// Names of the kinds, in order.
pub const FAILURES: [&str; 10] =
    ["connect", "tls", "read", "write", "timeout", "status", "length", "body", "protocol", "unanswered"];

/// Counts of one thread, or of several together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Requests answered as expected.
    pub ok: u64,
    /// Answers received whole, whatever their status.
    pub complete: u64,
    /// Answers received whole within the measured time, also to requests from before. The
    /// rate is made of these.
    pub in_time: u64,
    /// Requests that were due within the measured time. Open loop only.
    pub due: u64,
    /// Time from the moment a request was due, ns. In a closed loop it is due when it is sent.
    pub latency: Histogram,
    /// Time from the moment a request was sent, ns. Open loop only.
    pub uncorrected: Histogram,
    /// Lateness of requests that this machine could have sent earlier, ns. Open loop only.
    pub lateness: Histogram,
    /// Time until a connection was made, ns.
    pub connect: Histogram,
    /// TLS handshakes, ns.
    pub handshake: Histogram,
    /// Connect time per request, ns; 0 on a connection that was open already. This and the next two are
    /// filled with [`crate::load::Load::split`] only.
    pub dial: Histogram,
    /// Time from sending a request to the end of its answer, ns.
    pub processing: Histogram,
    /// Time from sending a request to the beginning of its answer, ns.
    pub waiting: Histogram,
    /// By [`Failure`].
    pub failures: [u64; FAILURES.len()],
    /// Answers by status, 0 to 999.
    pub statuses: Vec<u64>,
    /// Connections made.
    pub connections: u64,
    /// Handshakes that resumed a session.
    pub resumed: u64,
    /// Requests sent again because the server closed the connection without processing them.
    pub retried: u64,
    /// Bytes received, heads and frames included, TLS not.
    pub bytes_in: u64,
    /// Bytes of content received.
    pub body_in: u64,
    /// Bytes of requests sent.
    pub bytes_out: u64,
    /// Datagrams of QUIC that the kernel dropped, as this side read them too late.
    pub dropped: u64,
    /// Packets of QUIC sent.
    pub packets: u64,
    /// Packets of QUIC sent that were taken for lost.
    pub packets_lost: u64,
}

impl Default for Record {
    fn default() -> Self {
        Record {
            ok: 0,
            complete: 0,
            in_time: 0,
            due: 0,
            latency: Histogram::default(),
            uncorrected: Histogram::default(),
            lateness: Histogram::default(),
            connect: Histogram::default(),
            handshake: Histogram::default(),
            dial: Histogram::default(),
            processing: Histogram::default(),
            waiting: Histogram::default(),
            failures: [0; FAILURES.len()],
            statuses: vec![0; 1000],
            connections: 0,
            resumed: 0,
            retried: 0,
            bytes_in: 0,
            body_in: 0,
            bytes_out: 0,
            dropped: 0,
            packets: 0,
            packets_lost: 0,
        }
    }
}

impl Record {
    /// Counts a failure.
    #[inline]
    pub fn fail(&mut self, kind: Failure) {
        self.failures[kind as usize] += 1;
    }

    /// Returns the number of failures of a kind.
    pub fn failed(&self, kind: Failure) -> u64 {
        self.failures[kind as usize]
    }

    /// Returns the number of all failures.
    pub fn errors(&self) -> u64 {
        self.failures.iter().sum()
    }

    /// Answers of a class: 2 for 200 to 299.
    pub fn class(&self, class: usize) -> u64 {
        self.statuses.iter().skip(class * 100).take(100).sum()
    }

    /// Returns the statuses received with their counts.
    pub fn seen(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.statuses.iter().copied().enumerate().filter(|(_, n)| *n > 0)
    }

    /// Adds the counts of another record.
    pub fn merge(&mut self, other: &Record) {
        self.ok += other.ok;
        self.complete += other.complete;
        self.in_time += other.in_time;
        self.due += other.due;
        self.latency.merge(&other.latency);
        self.uncorrected.merge(&other.uncorrected);
        self.lateness.merge(&other.lateness);
        self.connect.merge(&other.connect);
        self.handshake.merge(&other.handshake);
        self.dial.merge(&other.dial);
        self.processing.merge(&other.processing);
        self.waiting.merge(&other.waiting);
        for (a, b) in self.failures.iter_mut().zip(&other.failures) {
            *a += b;
        }
        for (a, b) in self.statuses.iter_mut().zip(&other.statuses) {
            *a += b;
        }
        self.connections += other.connections;
        self.resumed += other.resumed;
        self.retried += other.retried;
        self.bytes_in += other.bytes_in;
        self.body_in += other.body_in;
        self.bytes_out += other.bytes_out;
        self.dropped += other.dropped;
        self.packets += other.packets;
        self.packets_lost += other.packets_lost;
    }
}

/// Report of a thread about every tenth of a second.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Index of the thread.
    pub thread: usize,
    /// ns since the start of the run.
    pub at: u64,
    /// The sample belongs to the warm-up.
    pub warmup: bool,
    /// Answers since the last sample.
    pub complete: u64,
    /// Failures since the last sample.
    pub errors: u64,
    /// Bytes received since the last sample.
    pub bytes: u64,
    /// CPU time of the thread since the last sample, ns.
    pub cpu: u64,
    /// Time that the sample covers, ns.
    pub span: u64,
    /// Latencies since the last sample.
    pub latency: Coarse,
}

/// CPU time and waiting time of a thread over the measured time.
#[derive(Clone, Debug, Default)]
pub struct ThreadUse {
    /// CPU it was pinned to.
    pub cpu: Option<usize>,
    /// ns of CPU time.
    pub cpu_time: u64,
    /// ns on the run queue, waiting for the CPU.
    pub run_delay: u64,
    /// ns measured.
    pub wall: u64,
    /// Context switches, of its own accord and not.
    pub switches: (u64, u64),
}
