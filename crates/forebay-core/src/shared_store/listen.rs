//! Task that reads the messages of other replicas, on the process's tokio thread. It has a connection of its own, since the store
//! answers when there is a message.

#![allow(clippy::disallowed_methods, reason = "not on a thread of connections: the tokio thread runs this")]

use super::client::Connection;
use super::directive::Settings;
use super::messages::{self, Entry, Id, Received, Tells, Topic};
use super::resp::Reply;
use super::retry::{Conversation, connect, repeat};
use super::task::{patience, replica, unexpected};
use super::{Counts, Link};
use crate::tasks::Log;
use forebay_conf::error::Level;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Longest time that the store waits for a message before it says that there is none. An answer that is late by more is lost.
const WAIT: Duration = Duration::from_secs(1);
/// Time without messages after which that is logged, if the store answers otherwise.
const TROUBLE: Duration = Duration::from_secs(2);

/// Reads the messages of a topic until the future is dropped.
pub(super) async fn listen(
    settings: Arc<Settings>,
    topic: Topic,
    zones: Vec<Arc<dyn Tells>>,
    link: Arc<Link>,
    log: Log,
) {
    let patience = patience(&settings);
    repeat(Listener { settings, topic, zones, link, log, patience, failing: None, logged: false }).await;
}

/// The task's state.
struct Listener {
    settings: Arc<Settings>,
    topic: Topic,
    zones: Vec<Arc<dyn Tells>>,
    link: Arc<Link>,
    log: Log,
    /// Time without an answer after which the store has failed.
    patience: Duration,
    /// Time since which messages cannot be read, although the store answers otherwise.
    failing: Option<Instant>,
    /// Whether that has been logged.
    logged: bool,
}

impl Conversation for Listener {
    async fn session(&mut self) -> Result<Infallible, String> {
        let mut connection = connect(&self.settings).await?;
        let mut after = self.begin(&mut connection).await?;
        loop {
            let read = self.read(&mut connection, after).await;
            if read.is_err() && connection.garbled {
                // Someone else has written what this server cannot read. It must not stay in the way of what follows.
                self.link.set_cursor(self.topic, &self.place(), Id::UNREADABLE);
            }
            let all = read?;
            self.found();
            let Some(last) = all.last().map(|(id, _)| *id) else { continue };
            self.hand_out(all, last).await;
            self.link.set_cursor(self.topic, &self.place(), last);
            after = last;
        }
    }

    fn lost(&mut self, why: &str) {
        if !self.link.is_up() {
            // The store as a whole has failed, which is logged for the connection that asks.
            self.failing = None;
            return;
        }
        let since = *self.failing.get_or_insert_with(Instant::now);
        if since.elapsed() < TROUBLE || self.logged {
            return;
        }
        self.logged = true;
        self.link.counts.errors.fetch_add(1, Relaxed);
        let place = self.settings.place();
        let text = format!("messages of other replicas cannot be read from shared store {place}: {why}");
        (self.log)(Level::Error, &text);
    }
}

impl Listener {
    /// Finds the message to go on from.
    async fn begin(&self, connection: &mut Connection) -> Result<Id, String> {
        let mut known = self.link.cursor(self.topic, &self.place());
        if known.is_none() && self.topic == Topic::Purges {
            // Caches outlive processes. One that does not know what it has read reads all purges, since it may have entries from
            // before.
            let zones = self.zones.clone();
            let seen = move || zones.iter().map(|zone| zone.last_seen().unwrap_or(Id::START)).min();
            known = tokio::task::spawn_blocking(seen).await.map_err(|e| e.to_string())?;
        }
        let mut out = Vec::new();
        messages::position(
            &mut out,
            &self.settings.prefix,
            self.topic,
            replica(),
            known.unwrap_or(Id::START),
        );
        let reply = self.exchange(connection, &out, self.patience).await?;
        let (present, last) = messages::positioned(&reply).ok_or_else(|| unexpected(&reply))?;
        let after = match known {
            Some(known) if present || known == Id::START => known,
            Some(known) => self.miss(known, last),
            None => last,
        };
        self.link.set_cursor(self.topic, &self.place(), after);
        self.keep_seen(after).await;
        Ok(after)
    }

    /// Notes that messages may have been missed after one that is gone. Returns the message to go on from.
    fn miss(&self, known: Id, last: Id) -> Id {
        self.link.counts.missed.fetch_add(1, Relaxed);
        self.zones.iter().for_each(|zone| zone.missed());
        match self.topic {
            // Sessions are looked up again.
            Topic::Sessions => last,
            Topic::Purges => {
                let name = |zone: &Arc<dyn Tells>| String::from_utf8_lossy(zone.name()).into_owned();
                let names: Vec<_> = self.zones.iter().map(name).collect();
                let why = match known {
                    Id::UNREADABLE => "has messages that cannot be read",
                    _ => "no longer has the last message that was read here",
                };
                let text = format!(
                    "shared store {} {why}, purges by other replicas may be missing in: {}",
                    self.settings.place(),
                    names.join(", ")
                );
                (self.log)(Level::Warn, &text);
                if known == Id::UNREADABLE { last } else { Id::START }
            }
        }
    }

    async fn read(&self, connection: &mut Connection, after: Id) -> Result<Vec<(Id, Entry)>, String> {
        let mut out = Vec::new();
        messages::read(&mut out, &self.settings.prefix, self.topic, after, WAIT);
        let reply = self.exchange(connection, &out, WAIT + self.patience).await?;
        let all = messages::entries(&reply).ok_or_else(|| unexpected(&reply))?;
        let mut before = after;
        for (id, _) in &all {
            if *id <= before {
                return Err("its messages are out of order".to_owned());
            }
            before = *id;
        }
        Ok(all)
    }

    async fn exchange(
        &self,
        connection: &mut Connection,
        commands: &[u8],
        patience: Duration,
    ) -> Result<Reply, String> {
        let replies = timeout(patience, connection.exchange(commands, 1)).await;
        let replies = replies.map_err(|_| format!("no answer in {} ms", patience.as_millis()))??;
        match replies.into_iter().next() {
            Some(Reply::Error(text)) => Err(text),
            reply => Ok(reply.unwrap_or(Reply::Null)),
        }
    }

    /// Hands messages to their zones. `last` is the position of the last one.
    async fn hand_out(&self, all: Vec<(Id, Entry)>, last: Id) {
        let counts = &self.link.counts;
        let mut told: Vec<Vec<Received>> = self.zones.iter().map(|_| Vec::new()).collect();
        for entry in all.into_iter().map(|(_, entry)| entry) {
            let message = match entry {
                Entry::Message(message) => message,
                Entry::First => continue,
                Entry::Odd => {
                    counts.ignored.fetch_add(1, Relaxed);
                    continue;
                }
            };
            if self.topic == Topic::Purges && message.from == replica().as_bytes() {
                continue;
            }
            let fits = |told: &Received| match self.topic {
                Topic::Sessions => matches!(told, Received::Bound { .. }),
                Topic::Purges => matches!(told, Received::Purge(_)),
            };
            let zone = self.zones.iter().zip(&mut told).find(|(zone, _)| zone.name() == message.zone);
            match zone {
                Some((_, told)) if fits(&message.told) => {
                    count_heard(counts, self.topic);
                    told.push(message.told);
                }
                // Another configuration may have other zones.
                _ => drop(counts.ignored.fetch_add(1, Relaxed)),
            }
        }
        let zones = self.zones.clone();
        let hear = move || {
            for (zone, told) in zones.iter().zip(told).filter(|(_, told)| !told.is_empty()) {
                zone.hear(told);
            }
        };
        let _ = tokio::task::spawn_blocking(hear).await;
        self.keep_seen(last).await;
    }

    async fn keep_seen(&self, last: Id) {
        let zones = self.zones.clone();
        let keep = move || zones.iter().for_each(|zone| zone.keep_seen(last));
        let _ = tokio::task::spawn_blocking(keep).await;
    }

    /// Returns the name of the store and its part that the positions of messages are for.
    fn place(&self) -> Vec<u8> {
        let place = format!("{}/{}/", self.settings.place(), self.settings.database);
        [place.as_bytes(), &self.settings.prefix].concat()
    }

    /// Notes that messages can be read.
    fn found(&mut self) {
        self.failing = None;
        if std::mem::take(&mut self.logged) {
            let place = self.settings.place();
            let text = format!("messages of other replicas can be read again from shared store {place}");
            (self.log)(Level::Notice, &text);
        }
    }
}

fn count_heard(counts: &Counts, topic: Topic) {
    let count = match topic {
        Topic::Sessions => &counts.sessions_heard,
        Topic::Purges => &counts.purges_heard,
    };
    count.fetch_add(1, Relaxed);
}
