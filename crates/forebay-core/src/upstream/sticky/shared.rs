//! Sessions that all replicas of the server know (`sticky learn ... sync`).
//!
//! A replica that learns the server of a session tells the shared store, which keeps it for the time of the session, and all replicas
//! hear of it within milliseconds. So a request whose session another replica has learnt finds it here without waiting. A request whose
//! session is not known here waits for the store to look it up, since another server would cost the session. If the store does not know
//! it either, that holds for some seconds.
//!
//! A session that is used again and again is prolonged in the store four times in its life at most. The store keeps it for that much
//! longer. If the store is away, each replica goes on with what it knows, and what it has learnt goes to the store afterwards.
//!
//! Sessions are known by the SHA-256 of their keys, which are secrets of clients. Servers are known by their names in sticky sessions: the MD5
//! of their address, or that of `route=`. A name that no server of the group has is ignored, whoever wrote it to the store.

use super::Learn;
use super::sessions::Sessions;
use super::unknown::Unknown;
use crate::config::{Context, Scope};
use crate::digest::sha256;
use crate::shared_store::{
    Link, MAX_SERVER, Note, Received, ServerSender, SessionKey, Stores, Tells, Topic, zone_name,
};
use crate::upstream::group::Group;
use crate::upstream::peer::{clock, ms};
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_sys::sync::lock;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Part of its life after which a session is prolonged in the store.
const PART: u32 = 4;
/// Most sessions that wait to be told, and that wait to be looked up. Others are told with their next request, or not looked up.
const MAX_WAITING: usize = 10_000;

/// `sync` of `sticky learn`.
#[derive(Debug)]
pub(super) struct Sharing {
    /// Name of the zone.
    pub(super) zone: Vec<u8>,
    link: Arc<Link>,
}

impl Sharing {
    pub(super) fn new(zone: Vec<u8>) -> Sharing {
        Sharing { zone, link: Link::of_process() }
    }
}

/// Messages and questions about the sessions of a zone that wait for the shared store.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    told: VecDeque<Binding>,
    /// Sessions that were sent to the store and that it has not confirmed.
    sent: VecDeque<Binding>,
    asked: Vec<(SessionKey, ServerSender)>,
    /// Sessions that the store does not know.
    unknown: Unknown,
    /// Time since which the store has to be told everything again.
    forgotten: u64,
    /// Time since which the store has to be asked again, since messages of other replicas were missed.
    missed: u64,
}

/// Server of a session.
#[derive(Clone, Debug)]
struct Binding {
    key: SessionKey,
    sid: Box<[u8]>,
    moves: bool,
}

/// Result of looking for the server of a session.
#[derive(Debug)]
pub enum Look {
    /// Name of the server, as far as it is known here.
    Known(Option<Vec<u8>>),
    /// The store has been asked.
    Asked(oneshot::Receiver<Option<Box<[u8]>>>),
}

/// Reads the word `sync`: it needs a store.
pub(super) fn need_store<C>(d: &Directive, w: &Word, cx: &mut Scope<'_, C>) -> Result<(), Error>
where
    C: Context,
    C::Tables: Stores,
{
    let missing = cx.error_at(d, w, "\"sync\" needs a \"shared_store\" in the http block");
    match cx.tables.shared_store() {
        Some(store) => {
            store.need(missing);
            Ok(())
        }
        None => Err(cx.error_at(d, w, "\"sync\" of \"sticky learn\" works in the http block only")),
    }
}

impl Learn {
    /// Looks for the server of a session. With `sync`, the store is asked for a session that is not known here.
    pub fn look(&self, key: &[u8], now: Instant) -> Look {
        let Some(sync) = &self.sync else { return Look::Known(self.find(key, now)) };
        let (key, now) = (sha256(key), clock(now));
        let sessions = self.sessions();
        let mut table = lock(&sessions);
        let known = table.find(&key, now);
        let outdated = known.is_some() && table.told(&key) <= table.outbox.missed;
        let is_settled = if known.is_some() { !outdated } else { table.outbox.unknown.has(&key, now) };
        if is_settled || !sync.link.is_up() || table.outbox.asked.len() >= MAX_WAITING {
            return Look::Known(known.map(<[u8]>::to_vec));
        }
        let (sender, receiver) = oneshot::channel();
        table.outbox.asked.push((key, sender));
        drop(table);
        sync.link.wake();
        Look::Asked(receiver)
    }

    /// Returns the server of a session after the store was asked. Without an answer, or if the store does not know it, this is what is known
    /// here.
    pub fn found(&self, key: &[u8], answer: Option<Box<[u8]>>, now: Instant) -> Option<Vec<u8>> {
        let known = || lock(&self.sessions()).find(&sha256(key), clock(now)).map(<[u8]>::to_vec);
        answer.map(<[u8]>::into_vec).or_else(known)
    }

    pub(super) fn set_shared(&self, sync: &Sharing, key: &[u8], sid: &[u8], now: Instant) {
        let (key, end, now) = (sha256(key), self.end(now), clock(now));
        let sessions = self.sessions();
        let mut table = lock(&sessions);
        table.set(&key, sid, end, now);
        self.tell(sync, &mut table, Binding { key, sid: sid.into(), moves: true }, now);
    }

    pub(super) fn prolong_shared(&self, sync: &Sharing, key: &[u8], sid: &[u8], now: Instant) {
        let (key, end, now) = (sha256(key), self.end(now), clock(now));
        let sessions = self.sessions();
        let mut table = lock(&sessions);
        if table.find(&key, now).is_some_and(|present| present == sid) {
            table.prolong(&key, sid, end, now);
            self.tell(sync, &mut table, Binding { key, sid: sid.into(), moves: false }, now);
        }
    }

    /// Has the store told of a session of the table, unless it has been told lately.
    fn tell(&self, sync: &Sharing, table: &mut Sessions, binding: Binding, now: u64) {
        let told = table.told(&binding.key);
        let lately = told > table.outbox.forgotten && now.saturating_sub(told) < ms(self.timeout / PART);
        let waiting = table.outbox.told.len() + table.outbox.sent.len();
        if lately || binding.sid.len() > MAX_SERVER || waiting >= MAX_WAITING {
            return;
        }
        table.set_told(&binding.key, now);
        table.outbox.told.push_back(binding);
        sync.link.wake();
    }

    /// Returns the time for which the store keeps a session: longer than its life by the pause between two prolongations.
    fn life(&self) -> Duration {
        self.timeout + self.timeout / PART
    }

    /// Takes over the server of a session from the store.
    fn learn_shared(&self, key: &SessionKey, sid: &[u8], now: Instant) {
        let (end, now) = (self.end(now), clock(now));
        let sessions = self.sessions();
        let mut table = lock(&sessions);
        table.set(key, sid, end, now);
        table.set_told(key, now);
    }
}

/// Sessions of a group that all replicas know, as the task of the store sees them.
#[derive(Debug)]
pub struct SharedSessions {
    name: Vec<u8>,
    learn: Arc<Learn>,
    group: Arc<Group>,
}

impl SharedSessions {
    /// Returns the sessions that a group shares with its other replicas. `None` without `sync`.
    pub fn of(learn: &Arc<Learn>, group: &Arc<Group>) -> Option<SharedSessions> {
        let sync = learn.sync.as_ref()?;
        // Zones of several groups may have the same name.
        let name = zone_name([&sync.zone, b"/".as_slice(), &group.name].concat());
        Some(SharedSessions { name, learn: learn.clone(), group: group.clone() })
    }

    /// Notes that the store has been told.
    fn confirm(&self, key: &SessionKey, sid: &[u8]) {
        let sessions = self.learn.sessions();
        let sent = &mut lock(&sessions).outbox.sent;
        // Answers come in order, so it is the first one.
        if let Some(at) = sent.iter().position(|b| b.key == *key && *b.sid == *sid) {
            sent.remove(at);
        }
    }

    /// Returns whether a server of the group has this name.
    fn has(&self, sid: &[u8]) -> bool {
        self.group.set().peers.iter().any(|peer| peer.sid == sid)
    }
}

impl Tells for SharedSessions {
    fn name(&self) -> &[u8] {
        &self.name
    }

    fn topic(&self) -> Topic {
        Topic::Sessions
    }

    fn renew(&self) {
        let now = clock(Instant::now());
        let sessions = self.learn.sessions();
        let outbox = &mut lock(&sessions).outbox;
        outbox.forgotten = now;
        outbox.unknown.clear();
        // Sessions that were not confirmed are sent first, then those that have waited since.
        outbox.sent.append(&mut outbox.told);
        std::mem::swap(&mut outbox.sent, &mut outbox.told);
    }

    fn take_notes(&self, notes: &mut Vec<Note>) {
        let life = self.learn.life();
        let sessions = self.learn.sessions();
        let mut table = lock(&sessions);
        let told = std::mem::take(&mut table.outbox.told);
        table.outbox.sent.extend(told.iter().cloned());
        let asked = std::mem::take(&mut table.outbox.asked);
        drop(table);
        notes.extend(told.into_iter().map(|Binding { key, sid, moves }| Note::Bind {
            key,
            server: sid,
            life,
            moves,
        }));
        // A request that waits no more needs no answer.
        let waiting = asked.into_iter().filter(|(_, sender)| !sender.is_closed());
        notes.extend(waiting.map(|(key, sender)| Note::Look { key, life, sender }));
    }

    fn answer(&self, note: Note, server: Option<&[u8]>) {
        let server = server.filter(|sid| self.has(sid));
        match note {
            Note::Look { key, sender, .. } => {
                let now = Instant::now();
                match server {
                    Some(sid) => self.learn.learn_shared(&key, sid, now),
                    None => lock(&self.learn.sessions()).outbox.unknown.note(key, clock(now)),
                }
                let _ = sender.send(server.map(Into::into));
            }
            Note::Bind { key, server: own, .. } => {
                self.confirm(&key, &own);
                // The session has moved to another server meanwhile.
                if let Some(sid) = server.filter(|sid| **sid != *own) {
                    self.learn.learn_shared(&key, sid, Instant::now());
                }
            }
            Note::Purge(_) => {}
        }
    }

    fn hear(&self, told: Vec<Received>) {
        let now = Instant::now();
        let set = self.group.set();
        for told in told {
            if let Received::Bound { key, server } = told
                && set.peers.iter().any(|peer| *peer.sid == *server)
            {
                self.learn.learn_shared(&key, &server, now);
            }
        }
    }

    fn missed(&self) {
        let now = clock(Instant::now());
        let sessions = self.learn.sessions();
        let outbox = &mut lock(&sessions).outbox;
        outbox.missed = now;
        outbox.unknown.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::unknown::LIFE;
    use super::*;
    use crate::upstream::group::Keepalive;
    use crate::upstream::peer::Peer;
    use crate::upstream::servers::{Discovery, Found, Server};
    use forebay_net::addr::{PeerAddr, Place};
    use std::net::SocketAddr;
    use std::sync::Mutex;

    /// Makes the sessions of a group with the servers `one` and `two`.
    fn sessions(room: usize, up: bool) -> SharedSessions {
        let link = Arc::new(Link::default());
        link.set_up(up);
        let group = Group::new(b"u".to_vec(), true, Keepalive::default());
        let server = |(port, sid): (u16, &[u8])| {
            let addr = PeerAddr::Inet(SocketAddr::from(([127, 0, 0, 1], port)));
            let mut template = Peer::new(addr.clone());
            (template.sid, template.routed) = (sid.to_vec(), true);
            let place = Place::Host(b"127.0.0.1".to_vec(), Some(port));
            Server {
                place,
                default_port: 80,
                source: Discovery::Fixed,
                found: vec![Found::plain(addr)],
                template,
            }
        };
        group.set_servers([(8001, &b"one"[..]), (8002, b"two")].map(server).into());
        let learn = Learn {
            create: Vec::new(),
            lookup: Vec::new(),
            timeout: Duration::from_secs(40),
            sessions: Mutex::new(Arc::new(Mutex::new(Sessions::new(room)))),
            sync: Some(Sharing { zone: b"z".to_vec(), link }),
        };
        SharedSessions::of(&Arc::new(learn), &Arc::new(group)).expect("sync")
    }

    /// Returns what is told and asked, and confirms it. In short: `one+` for a session that moves, `one` for one that stays, `?` for a question.
    fn notes(s: &SharedSessions) -> Vec<String> {
        let mut notes = Vec::new();
        s.take_notes(&mut notes);
        let short = |note: Note| match &note {
            Note::Bind { server, moves, life, .. } => {
                assert_eq!(*life, Duration::from_secs(50));
                let text = format!("{}{}", String::from_utf8_lossy(server), if *moves { "+" } else { "" });
                s.answer(note, None);
                text
            }
            Note::Look { .. } => "?".to_owned(),
            Note::Purge(_) => panic!("not of this zone"),
        };
        notes.into_iter().map(short).collect()
    }

    fn known(s: &SharedSessions, key: &[u8], now: Instant) -> Option<String> {
        match s.learn.look(key, now) {
            Look::Known(sid) => sid.map(|sid| String::from_utf8_lossy(&sid).into_owned()),
            Look::Asked(_) => Some("?".to_owned()),
        }
    }

    fn told(key: &[u8], sid: &[u8]) -> Received {
        Received::Bound { key: sha256(key), server: sid.into() }
    }

    #[test]
    fn the_store_is_told_of_news_and_now_and_then() {
        let (s, now) = (sessions(1 << 16, true), Instant::now());
        assert_eq!(s.name(), b"z/u");
        let after = |seconds| now + Duration::from_secs(seconds);
        s.learn.set(b"a", b"one", now);
        s.learn.set(b"a", b"one", after(1));
        s.learn.prolong(b"a", b"one", after(2));
        assert_eq!(notes(&s), ["one+"]);
        s.learn.prolong(b"a", b"one", after(9));
        assert_eq!(notes(&s), [""; 0]);
        s.learn.prolong(b"a", b"one", after(11));
        s.learn.prolong(b"a", b"two", after(11));
        s.learn.prolong(b"b", b"one", after(11));
        assert_eq!(notes(&s), ["one"]);
        s.learn.set(b"a", b"two", after(12));
        assert_eq!(notes(&s), ["two+"]);
        // Another replica prolongs it without telling, so it ends here, and the store is asked.
        assert_eq!(known(&s, b"a", after(51)).as_deref(), Some("two"));
        assert_eq!(known(&s, b"a", after(53)).as_deref(), Some("?"));
        assert_eq!(known(&s, b"b", now).as_deref(), Some("?"));
        // The requests that asked for these sessions have ended.
        assert_eq!(notes(&s), [""; 0]);
        // A name that is too long for messages stays here.
        s.learn.set(b"c", &[b'x'; MAX_SERVER + 1], now);
        assert_eq!(notes(&s), [""; 0]);
    }

    #[test]
    fn replicas_agree() {
        let (s, now) = (sessions(1 << 16, true), Instant::now());
        s.hear(vec![told(b"a", b"one"), told(b"b", b"three"), told(b"c", b"")]);
        assert_eq!(known(&s, b"a", now).as_deref(), Some("one"));
        assert_eq!(
            (known(&s, b"b", now).as_deref(), known(&s, b"c", now).as_deref()),
            (Some("?"), Some("?"))
        );
        // A session that another replica has announced is not sent again.
        s.learn.prolong(b"a", b"one", now);
        assert_eq!(notes(&s), [""; 0]);
        // Its own message comes back after that of another one.
        s.learn.set(b"a", b"two", now);
        s.hear(vec![told(b"a", b"one"), told(b"a", b"two")]);
        assert_eq!(known(&s, b"a", now).as_deref(), Some("two"));
        // The session has moved meanwhile.
        let bind = |server: &[u8]| Note::Bind {
            key: sha256(b"a"),
            server: server.into(),
            life: Duration::ZERO,
            moves: false,
        };
        s.answer(bind(b"two"), Some(b"three"));
        assert_eq!(known(&s, b"a", now).as_deref(), Some("two"));
        s.answer(bind(b"two"), Some(b"one"));
        assert_eq!(known(&s, b"a", now).as_deref(), Some("one"));
    }

    #[test]
    fn answers_are_checked_and_kept() {
        let (s, now) = (sessions(1 << 16, true), Instant::now());
        let ask = |answer: Option<&[u8]>| {
            let Look::Asked(mut receiver) = s.learn.look(b"a", now) else { panic!("known") };
            let mut notes = Vec::new();
            s.take_notes(&mut notes);
            s.answer(notes.pop().expect("a question"), answer);
            s.learn.found(b"a", receiver.try_recv().expect("an answer"), now)
        };
        assert_eq!(ask(Some(b"127.0.0.1:80")), None);
        // The store is not asked again for a while, unless messages may be missing.
        assert_eq!(known(&s, b"a", now), None);
        assert_eq!(known(&s, b"b", now).as_deref(), Some("?"));
        assert_eq!(known(&s, b"a", now + Duration::from_millis(2 * LIFE)).as_deref(), Some("?"));
        s.renew();
        assert_eq!(ask(Some(b"one")).as_deref(), Some(b"one".as_slice()));
        assert_eq!(known(&s, b"a", now).as_deref(), Some("one"));
        // Another replica learns it meanwhile.
        let unknown = |key: &[u8]| {
            let sender = oneshot::channel().0;
            s.answer(Note::Look { key: sha256(key), life: Duration::ZERO, sender }, None);
            assert_eq!(known(&s, key, now), None);
        };
        unknown(b"c");
        s.hear(vec![told(b"c", b"two")]);
        assert_eq!(known(&s, b"c", now).as_deref(), Some("two"));
        unknown(b"d");
        s.missed();
        assert_eq!(known(&s, b"d", now).as_deref(), Some("?"));
    }

    #[test]
    fn after_a_gap_everything_is_asked_and_told_again() {
        let (s, now) = (sessions(1 << 16, true), Instant::now());
        s.learn.set(b"a", b"one", now);
        assert_eq!(notes(&s), ["one+"]);
        s.renew();
        // Later than the moment of the gap, which has no finer unit than a millisecond.
        let later = now + Duration::from_secs(1);
        s.learn.prolong(b"a", b"one", later);
        s.learn.prolong(b"a", b"one", later);
        assert_eq!(notes(&s), ["one"]);
        // Sessions that were not confirmed are sent again, before those that have waited since.
        let s = sessions(1 << 16, true);
        s.learn.set(b"a", b"one", now);
        s.take_notes(&mut Vec::new());
        s.learn.set(b"b", b"two", now);
        s.renew();
        assert_eq!(notes(&s), ["one+", "two+"]);
        s.renew();
        assert_eq!(notes(&s), [""; 0]);
        let s = sessions(1 << 16, true);
        s.learn.set(b"a", b"one", now);
        s.missed();
        assert_eq!(known(&s, b"a", now).as_deref(), Some("?"));
        // The store does not know it: this replica does.
        assert_eq!(s.learn.found(b"a", None, now).as_deref(), Some(b"one".as_slice()));
        s.hear(vec![told(b"a", b"two")]);
        let heard = known(&s, b"a", now);
        assert!(heard.as_deref() == Some("two") || heard.as_deref() == Some("?"), "{heard:?}");
    }

    #[test]
    fn without_the_store_each_replica_goes_on() {
        let (s, now) = (sessions(1 << 24, false), Instant::now());
        s.learn.set(b"a", b"one", now);
        assert_eq!((known(&s, b"a", now).as_deref(), known(&s, b"b", now)), (Some("one"), None));
        s.missed();
        assert_eq!(known(&s, b"a", now).as_deref(), Some("one"));
        // The number of waiting sessions is bounded.
        (0..MAX_WAITING + 100).for_each(|n| s.learn.set(n.to_string().as_bytes(), b"two", now));
        assert_eq!(notes(&s).len(), MAX_WAITING);
        s.learn.set((MAX_WAITING + 1).to_string().as_bytes(), b"two", now);
        assert_eq!(notes(&s), ["two+"]);
    }
}
