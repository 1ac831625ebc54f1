//! Task that asks the store, on the process's tokio thread.

#![allow(clippy::disallowed_methods, reason = "not on a thread of connections: the tokio thread runs this")]

use super::calls::{Call, Zones};
use super::client::Connection;
use super::directive::Settings;
use super::messages::{self, Note};
use super::resp::Reply;
use super::retry::{Conversation, connect, repeat};
use super::seal::Sealer;
use super::{Ask, Link, Question, script};
use crate::tasks::Log;
use forebay_conf::error::Level;
use forebay_net::tls::sessions::{TicketKey, share_ticket_keys};
use forebay_sys::sync::lock;
use std::convert::Infallible;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};
use tokio::time::{timeout, timeout_at};

/// Time between two signs of life.
const BEAT: Duration = Duration::from_secs(1);
/// Time after which a replica without a sign of life is not counted any more, milliseconds.
const ALIVE: u64 = 2500;
/// Time between two looks at the keys for session tickets.
const TICKETS: Duration = Duration::from_secs(30);
/// Shortest time between two pipelines without urgent calls: those that come meanwhile go together.
const TURN: Duration = Duration::from_millis(1);
/// Most questions in a pipeline: as many as a store answers in about 10 ms.
const PIPELINE: usize = 1000;
/// Least time without an answer after which the store has failed.
const PATIENCE: Duration = Duration::from_millis(100);
/// Shortest time between two lines of the log about notes that the store refuses.
const REFUSALS: Duration = Duration::from_secs(60);

/// Returns the time without an answer after which the store has failed.
pub(super) fn patience(settings: &Settings) -> Duration {
    settings.timeout.saturating_mul(20).max(PATIENCE)
}

/// Asks the store until the future is dropped.
pub(super) async fn keep(settings: Arc<Settings>, zones: Zones, link: Arc<Link>, log: Log) {
    link.assume(settings.replicas);
    let patience = patience(&settings);
    let (refused, told) = (Mutex::default(), Mutex::default());
    repeat(Keeper { settings, zones, link, log, patience, failed: None, refused, told }).await;
}

/// The task's state.
struct Keeper {
    settings: Arc<Settings>,
    zones: Zones,
    link: Arc<Link>,
    log: Log,
    /// Time without an answer after which the store has failed.
    patience: Duration,
    /// Time at which the failure was logged that goes on.
    failed: Option<Instant>,
    /// Time of the last line about a note that the store has refused.
    refused: Mutex<Option<Instant>>,
    /// Set once it was logged that session tickets are not shared.
    told: Mutex<bool>,
}

impl Conversation for Keeper {
    async fn session(&mut self) -> Result<Infallible, String> {
        let mut connection = connect(&self.settings).await?;
        self.zones.renew();
        let calls = self.zones.take_calls();
        self.turn(&mut connection, calls, true).await?;
        self.tickets(&mut connection).await?;
        self.found();
        let mut next_beat = tokio::time::Instant::now() + BEAT;
        let mut next_tickets = tokio::time::Instant::now() + TICKETS;
        loop {
            let turned = tokio::time::Instant::now();
            let due = timeout_at(next_beat, self.link.wake.notified()).await.is_err();
            // Questions without a pause must not keep it from its signs of life.
            let beats = due || tokio::time::Instant::now() >= next_beat;
            let mut calls = self.zones.take_calls();
            if !calls.iter().any(Call::is_urgent) && !beats {
                tokio::time::sleep_until(turned + TURN).await;
                calls.extend(self.zones.take_calls());
            }
            if beats {
                next_beat = tokio::time::Instant::now() + BEAT;
            }
            self.turn(&mut connection, calls, beats).await?;
            if beats && tokio::time::Instant::now() >= next_tickets {
                next_tickets = tokio::time::Instant::now() + TICKETS;
                self.tickets(&mut connection).await?;
            }
        }
    }

    fn lost(&mut self, why: &str) {
        self.link.set_up(false);
        self.link.counts.errors.fetch_add(1, Relaxed);
        if self.failed.is_some() {
            return;
        }
        self.failed = Some(Instant::now());
        let replicas = self.link.replicas();
        let text = format!(
            "shared store {} cannot be used: {why}, each replica applies its share of the limits: 1/{replicas}",
            self.settings.place()
        );
        (self.log)(Level::Error, &text);
    }
}

impl Keeper {
    /// Takes over the keys for session tickets that are in the store.
    async fn tickets(&self, connection: &mut Connection) -> Result<(), String> {
        let Some(tickets) = &self.settings.tickets else { return Ok(()) };
        let sealer = Sealer::new(tickets.file.as_ref());
        if sealer.is_empty() {
            self.tell_once(
                "the keys of session tickets are not shared: no server has a key to seal them with, see \"session_tickets=file:\"",
            );
            return Ok(());
        }
        let own = script::new_secret().and_then(|secret| sealer.seal(&secret));
        let own = own.ok_or("no random numbers for session tickets")?;
        let mut out = Vec::with_capacity(8192);
        script::tickets(&mut out, true, &self.settings.prefix, &own);
        let replies = timeout(self.patience, connection.exchange(&out, 1)).await;
        let replies = replies.map_err(|_| format!("no answer in {} ms", self.patience.as_millis()))??;
        let reply = replies.first().unwrap_or(&Reply::Null);
        let secrets =
            script::secrets(reply, |sealed| sealer.open(sealed)).ok_or_else(|| unexpected(reply))?;
        if secrets.is_empty() {
            self.tell_once(
                "the keys of session tickets are not shared: those in the store are sealed with keys that no server here has",
            );
        }
        share_ticket_keys(secrets.iter().filter_map(|s| TicketKey::new(s)).collect());
        Ok(())
    }

    /// Logs a warning about session tickets, once for a task.
    fn tell_once(&self, text: &str) {
        if !std::mem::replace(&mut *lock(&self.told), true) {
            (self.log)(Level::Warn, text);
        }
    }

    /// Sends calls, with a sign of life if `beats` is set, and hands out the answers.
    async fn turn(
        &self,
        connection: &mut Connection,
        mut calls: Vec<Call>,
        mut beats: bool,
    ) -> Result<(), String> {
        while !calls.is_empty() || beats {
            let later = calls.split_off(calls.len().min(PIPELINE));
            let begun = Instant::now();
            let answered = timeout(self.patience, self.pipeline(connection, calls, beats)).await;
            answered.map_err(|_| format!("no answer in {} ms", self.patience.as_millis()))??;
            self.link.counts.count_time(begun.elapsed());
            self.link.set_up(true);
            (calls, beats) = (later, false);
        }
        Ok(())
    }

    async fn pipeline(
        &self,
        connection: &mut Connection,
        calls: Vec<Call>,
        beats: bool,
    ) -> Result<(), String> {
        // The store has the scripts, except after its start: then it gets them once more.
        let (calls, beats) = self.send(connection, calls, beats, false).await?;
        if calls.is_empty() && !beats {
            return Ok(());
        }
        match self.send(connection, calls, beats, true).await? {
            (rest, false) if rest.is_empty() => Ok(()),
            _ => Err("it does not know a script that it was sent".to_owned()),
        }
    }

    /// Sends calls and returns those whose scripts the store does not know.
    async fn send(
        &self,
        connection: &mut Connection,
        calls: Vec<Call>,
        beats: bool,
        whole: bool,
    ) -> Result<(Vec<Call>, bool), String> {
        let mut out = Vec::new();
        let prefix = &self.settings.prefix;
        if beats {
            script::beat(&mut out, whole, prefix, replica(), ALIVE);
        }
        for call in &calls {
            self.zones.write(&mut out, whole, prefix, replica(), call);
        }
        let replies = connection.exchange(&out, calls.len() + usize::from(beats)).await?;
        let mut replies = replies.into_iter();
        let mut beats_again = false;
        if beats {
            match replies.next().unwrap_or(Reply::Null) {
                reply if script::is_unknown_script(&reply) => beats_again = true,
                Reply::Number(replicas) => {
                    self.link.counted.store(u32::try_from(replicas).unwrap_or(1).max(1), Relaxed);
                }
                reply => return Err(unexpected(&reply)),
            }
        }
        let mut unknown = Vec::new();
        for (call, reply) in calls.into_iter().zip(replies) {
            match call {
                call if script::is_unknown_script(&reply) => unknown.push(call),
                Call::Ask(index, ask) => self.answer(index, ask, &reply)?,
                Call::Note(index, note) => self.note_answer(index, note, &reply)?,
            }
        }
        Ok((unknown, beats_again))
    }

    /// Hands the answer about a limit to its zone.
    fn answer(&self, index: usize, ask: Ask, reply: &Reply) -> Result<(), String> {
        let counts = &self.link.counts;
        let answer = script::answer(reply, &ask).ok_or_else(|| unexpected(reply))?;
        if let Question::Cells { debt, want, .. } = ask.question {
            counts.asked.fetch_add(u64::from(want), Relaxed);
            counts.granted.fetch_add(u64::from(answer.granted), Relaxed);
            let sum = if debt > 0 { &counts.reported } else { &counts.returned };
            sum.fetch_add(u64::from(debt.unsigned_abs()), Relaxed);
        }
        if let Some(zone) = self.zones.limits.get(index) {
            zone.answer(ask, answer);
        }
        Ok(())
    }

    /// Hands the answer to a note to its zone. A refusal that is about this note only leaves the limits as they are.
    fn note_answer(&self, index: usize, note: Note, reply: &Reply) -> Result<(), String> {
        let counts = &self.link.counts;
        match reply {
            Reply::Error(text) if ["NOPERM", "WRONGTYPE", "ERR"].iter().any(|e| text.starts_with(e)) => {
                self.refuse(text);
            }
            Reply::Error(text) => return Err(text.clone()),
            _ => {
                let count = match &note {
                    Note::Look { .. } => &counts.sessions_asked,
                    Note::Bind { .. } => &counts.sessions_told,
                    Note::Purge(_) => &counts.purges_told,
                };
                count.fetch_add(1, Relaxed);
            }
        }
        if let Some(zone) = self.zones.telling.get(index) {
            zone.answer(note, messages::server(reply));
        }
        Ok(())
    }

    /// Notes that the store has refused a note.
    fn refuse(&self, why: &str) {
        self.link.counts.errors.fetch_add(1, Relaxed);
        let mut logged = lock(&self.refused);
        if logged.is_none_or(|at| at.elapsed() >= REFUSALS) {
            *logged = Some(Instant::now());
            let text = format!(
                "shared store {} refuses a message to the other replicas: {why}",
                self.settings.place()
            );
            (self.log)(Level::Error, &text);
        }
    }

    /// Notes that the store answers.
    fn found(&mut self) {
        if let Some(since) = self.failed.take() {
            let seconds = since.elapsed().as_secs_f32();
            let text =
                format!("shared store {} can be used again after {seconds:.1} s", self.settings.place());
            (self.log)(Level::Notice, &text);
        }
    }
}

/// Returns the text for a reply that does not answer the question.
pub(super) fn unexpected(reply: &Reply) -> String {
    match reply {
        Reply::Error(text) => text.clone(),
        _ => "its reply is unexpected".to_owned(),
    }
}

/// Returns the name of this replica in the store.
pub(super) fn replica() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| format!("{:016x}", forebay_sys::random::random_u64()));
    &NAME
}
