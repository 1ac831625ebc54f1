//! Resumption: a bounded store of sessions shared by all threads (nginx: ssl_session_cache), and tickets
//! (ssl_session_tickets, ssl_session_ticket_key). Both live as long as the process, so that sessions outlive a reload. A session
//! is valid only for servers of the same [`Context`]: same certificates, same requirements for clients.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{digest, hkdf, rand};
use forebay_sys::sync::{lock, read, write};
use rustls::server::{ProducesTickets, StoresServerSessions};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use zeroize::{Zeroize, Zeroizing};

/// Parts of a store, each with a lock of its own.
const SHARDS: usize = 16;
/// Memory that a session takes in addition to its bytes, about.
const OVERHEAD: usize = 160;

/// Time until which a session is valid, and its bytes.
type Kept = (Instant, Zeroizing<Vec<u8>>);

#[derive(Default)]
struct Shard {
    map: HashMap<Box<[u8]>, Kept>,
    /// Keys by age. The key of a session that was taken stays until it is the oldest.
    order: VecDeque<Box<[u8]>>,
    bytes: usize,
}

/// A bounded store of sessions.
pub struct Sessions {
    shards: [Mutex<Shard>; SHARDS],
    max: usize,
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").field("max", &self.max).finish_non_exhaustive()
    }
}

impl Sessions {
    /// Creates an empty store.
    pub fn new(bytes: usize) -> Sessions {
        Sessions { shards: Default::default(), max: bytes / SHARDS }
    }

    fn shard(&self, key: &[u8]) -> std::sync::MutexGuard<'_, Shard> {
        // Identifiers are random, and so is the last byte of each.
        let i = key.last().map_or(0, |b| usize::from(*b) % SHARDS);
        lock(&self.shards[i])
    }

    /// Keeps a value for a time. Returns `false` if it is too large.
    pub fn put(&self, key: Vec<u8>, value: Vec<u8>, life: Duration) -> bool {
        let mut shard = self.shard(&key);
        let size = key.len() * 2 + value.len() + OVERHEAD;
        if size > self.max {
            return false;
        }
        while shard.bytes + size > self.max {
            // The key may belong to a session that was taken. Its place in `order` is counted until here.
            let Some(oldest) = shard.order.pop_front() else { break };
            shard.bytes = shard.bytes.saturating_sub(oldest.len() * 2 + OVERHEAD);
            if let Some((_, old)) = shard.map.remove(&oldest) {
                shard.bytes = shard.bytes.saturating_sub(old.len());
            }
        }
        let key: Box<[u8]> = key.into();
        if let Some((_, old)) = shard.map.insert(key.clone(), (Instant::now() + life, Zeroizing::new(value)))
        {
            shard.bytes = shard.bytes.saturating_sub(old.len() + key.len() * 2 + OVERHEAD);
            shard.bytes += size;
            return true;
        }
        shard.order.push_back(key);
        shard.bytes += size;
        true
    }

    /// Returns the session of a key if it is still valid. `take`: also removes it.
    pub fn get(&self, key: &[u8], take: bool) -> Option<Vec<u8>> {
        let mut shard = self.shard(key);
        let (until, value) = shard.map.get(key)?;
        let found = (Instant::now() < *until).then(|| value.to_vec());
        if (take || found.is_none())
            && let Some((_, old)) = shard.map.remove(key)
        {
            shard.bytes = shard.bytes.saturating_sub(old.len());
        }
        found
    }
}

type Zones = Mutex<HashMap<(Vec<u8>, usize), Arc<Sessions>>>;
static ZONES: OnceLock<Zones> = OnceLock::new();

/// Fill level of a zone.
#[derive(Debug)]
pub struct Usage {
    /// Name.
    pub name: Vec<u8>,
    /// Bytes in use, about.
    pub used: usize,
    /// All bytes.
    pub size: usize,
}

/// Returns the fill levels of the stores.
pub fn usage() -> Vec<Usage> {
    let zones = lock(ZONES.get_or_init(Mutex::default));
    let used = |z: &Sessions| z.shards.iter().map(|s| lock(s).bytes).sum();
    // The list itself holds one reference, so only a store with more of them belongs to a configuration.
    let in_use = zones.iter().filter(|(_, z)| Arc::strong_count(z) > 1);
    in_use.map(|((name, size), z)| Usage { name: name.clone(), used: used(z), size: *size }).collect()
}

/// Returns the store of a name and a size (nginx: shared:NAME:SIZE), the same for every configuration of the process.
pub fn zone(name: &[u8], size: usize) -> Arc<Sessions> {
    let mut zones = lock(ZONES.get_or_init(Mutex::default));
    // Drop stores that no configuration uses any more.
    zones.retain(|(n, s), z| Arc::strong_count(z) > 1 || (n == name && *s == size));
    // A store with another size is another store, so a reload that changes the size begins with an empty one.
    zones.entry((name.to_vec(), size)).or_insert_with(|| Arc::new(Sessions::new(size))).clone()
}

/// Handshake over QUIC, which rustls does not report to stores and tickets.
#[derive(Clone, Copy, Debug, Default)]
pub struct OverQuic {
    /// The client has begun with version 2, so that only sessions of that are found (RFC 9369, section 5).
    pub begun_by_v2: bool,
    /// Version 2 is in use, so that new sessions belong to it.
    pub is_v2: bool,
    /// Address of the client.
    pub address: Option<IpAddr>,
    /// Requests come with the handshake (0-RTT), before the client has proved its address. Only sessions that were stored for a client of
    /// this address are found then: anybody can write the address of another into a datagram, and access may depend on it.
    pub has_early_data: bool,
}

thread_local! {
    static QUIC: Cell<Option<OverQuic>> = const { Cell::new(None) };
}

/// Resets [`QUIC`] when it is dropped, by a panic as well: the thread goes on with other handshakes.
struct Reset;

impl Drop for Reset {
    fn drop(&mut self) {
        QUIC.set(None);
    }
}

/// Calls a function that handles a part of a handshake over QUIC.
pub fn over_quic<R>(handshake: OverQuic, handle: impl FnOnce() -> R) -> R {
    let _reset = Reset;
    QUIC.set(Some(handshake));
    handle()
}

/// Returns whether the handshake opens, and seals, sessions of QUIC version 2.
fn is_v2() -> (bool, bool) {
    QUIC.get().map_or((false, false), |quic| (quic.begun_by_v2, quic.is_v2))
}

/// Length of the address after a stored session, bytes: whether it is known, and the address as one of IPv6.
const ADDRESS: usize = 1 + 16;

fn address_of(client: Option<IpAddr>) -> [u8; ADDRESS] {
    let mut out = [0; ADDRESS];
    if let Some(address) = client {
        let bytes = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        out = std::array::from_fn(|at| if at == 0 { 1 } else { bytes.get(at - 1).copied().unwrap_or(0) });
    }
    out
}

/// Returns the context of sessions of QUIC version 2, or the context of all other sessions.
fn of_version(context: Context, is_v2: bool) -> Context {
    if is_v2 { context.map(|byte| !byte) } else { context }
}

/// Hash of the settings that servers must share to resume each other's sessions.
pub type Context = [u8; 32];

/// Makes a context of the settings that must be the same.
pub fn context<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Context {
    let mut hash = digest::Context::new(&digest::SHA256);
    for p in parts {
        // With the lengths, no two lists of parts give the same bytes.
        hash.update(&(p.len() as u64).to_le_bytes());
        hash.update(p);
    }
    let mut out = [0; 32];
    out.copy_from_slice(hash.finish().as_ref());
    out
}

thread_local! {
    static STORED: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Returns the identifier of the session that this thread has stored since the last call, empty if none. rustls does not report
/// it otherwise (nginx: $ssl_session_id).
pub fn take_stored() -> Vec<u8> {
    STORED.take()
}

/// A store as one server sees it.
#[derive(Debug)]
pub struct Stored {
    /// The store.
    pub sessions: Arc<Sessions>,
    /// Context in which its sessions are valid.
    pub context: Context,
    /// `ssl_session_timeout`.
    pub timeout: Duration,
}

impl Stored {
    fn key(&self, id: &[u8], is_v2: bool) -> Vec<u8> {
        let context = of_version(self.context, is_v2);
        [context.get(..16).unwrap_or_default(), id].concat()
    }

    fn find(&self, id: &[u8], take: bool) -> Option<Vec<u8>> {
        let mut value = self.sessions.get(&self.key(id, is_v2().0), take)?;
        let address = value.split_off(value.len().checked_sub(ADDRESS)?);
        let early = QUIC.get().filter(|quic| quic.has_early_data);
        let may_use = early.is_none_or(|quic| quic.address.is_some() && address == address_of(quic.address));
        may_use.then_some(value)
    }
}

impl StoresServerSessions for Stored {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        // rustls calls this on the thread that makes the handshake, which takes the identifier right
        // afterwards.
        STORED.replace(key.clone());
        let address = address_of(QUIC.get().and_then(|quic| quic.address));
        self.sessions.put(self.key(&key, is_v2().1), [&value[..], &address].concat(), self.timeout)
    }
    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.find(key, false)
    }
    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.find(key, true)
    }
    fn can_cache(&self) -> bool {
        true
    }
}

/// Key that encrypts tickets. Its name is sent in them.
pub struct TicketKey {
    name: [u8; 16],
    key: LessSafeKey,
}

impl std::fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TicketKey")
    }
}

impl TicketKey {
    /// Makes a key from a file of 48 or 80 bytes, which has a name and secrets (nginx: ssl_session_ticket_key).
    pub fn new(file: &[u8]) -> Option<TicketKey> {
        if !matches!(file.len(), 48 | 80) {
            return None;
        }
        let (name, secret) = file.split_at_checked(16)?;
        let mut key = [0; 32];
        hkdf::Salt::new(hkdf::HKDF_SHA256, b"forebay session tickets")
            .extract(secret)
            .expand(&[name], hkdf::HKDF_SHA256)
            .and_then(|okm| okm.fill(&mut key))
            .ok()?;
        let sealing = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).ok()?);
        key.zeroize();
        Some(TicketKey { name: name.try_into().ok()?, key: sealing })
    }

    fn random() -> Option<TicketKey> {
        let mut secret = Zeroizing::new([0; 80]);
        rand::fill(secret.as_mut()).ok()?;
        TicketKey::new(secret.as_ref())
    }
}

/// Number of own keys that are kept. The older ones still open the tickets that they have sealed.
const KEPT: usize = 3;

type Own = Vec<(Instant, Arc<TicketKey>)>;

/// The process's own keys by the time after which they are replaced, newest first.
static OWN: RwLock<Vec<(Duration, Own)>> = RwLock::new(Vec::new());

/// Keys that other servers have, too, in place of the process's own. The first one seals.
static SHARED: RwLock<Vec<Arc<TicketKey>>> = RwLock::new(Vec::new());

/// Sets the keys that servers without keys from files use from now on, in place of the process's own. The first one seals. The
/// process's own keys still open the tickets that they have sealed.
pub fn share_ticket_keys(keys: Vec<TicketKey>) {
    *write(&SHARED) = keys.into_iter().map(Arc::new).collect();
}

/// Returns the key that seals tickets where there is none from a file.
fn sealing_key(life: Duration) -> Option<Arc<TicketKey>> {
    let shared = read(&SHARED).first().cloned();
    shared.or_else(|| own_key(life))
}

fn own_key(life: Duration) -> Option<Arc<TicketKey>> {
    let fresh = |all: &[(Duration, Own)]| {
        let keys = all.iter().find(|(l, _)| *l == life).map(|(_, keys)| keys)?;
        keys.first().filter(|(made, _)| made.elapsed() < life).map(|(_, key)| key.clone())
    };
    if let Some(key) = fresh(&read(&OWN)) {
        return Some(key);
    }
    let mut all = write(&OWN);
    // Another thread may have made the key between the two locks.
    if let Some(key) = fresh(&all) {
        return Some(key);
    }
    let key = Arc::new(TicketKey::random()?);
    let at = all.iter().position(|(l, _)| *l == life).unwrap_or(all.len());
    if at == all.len() {
        all.push((life, Own::new()));
    }
    if let Some((_, keys)) = all.get_mut(at) {
        keys.insert(0, (Instant::now(), key.clone()));
        keys.truncate(KEPT);
    }
    Some(key)
}

/// Tickets are filled up to a multiple of this, bytes, so that their length tells little about the session.
const PADDING: usize = 64;

/// Tickets of one server.
#[derive(Debug)]
pub struct Tickets {
    /// Keys from files, of which the first one seals. Empty: shared keys, or the process's own.
    pub keys: Vec<TicketKey>,
    /// Context in which they are valid.
    pub context: Context,
    /// `ssl_session_timeout`.
    pub timeout: Duration,
}

fn unix() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Tickets {
    fn seal(&self, key: &TicketKey, plain: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; 12];
        rand::fill(&mut nonce).ok()?;
        let mut body = Vec::with_capacity(8 + 2 + plain.len() + PADDING + 16);
        body.extend_from_slice(&unix().to_be_bytes());
        body.extend_from_slice(&u16::try_from(plain.len()).ok()?.to_be_bytes());
        body.extend_from_slice(plain);
        body.resize(body.len().next_multiple_of(PADDING), 0);
        // The context is authenticated: a ticket of a server with other requirements does not open here.
        let aad = Aad::from(of_version(self.context, is_v2().1));
        key.key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut body).ok()?;
        Some([key.name.as_slice(), &nonce, &body].concat())
    }

    fn open(&self, key: &TicketKey, ticket: &[u8]) -> Option<Vec<u8>> {
        let (nonce, body) = ticket.get(16..)?.split_at_checked(12)?;
        let mut body = body.to_vec();
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let aad = Aad::from(of_version(self.context, is_v2().0));
        let plain = key.key.open_in_place(nonce, aad, &mut body).ok()?;
        self.valid(plain)
    }

    /// Returns the session in the contents of a ticket, `None` if it is too old.
    fn valid(&self, contents: &[u8]) -> Option<Vec<u8>> {
        let (made, rest) = contents.split_first_chunk::<8>()?;
        let (len, rest) = rest.split_first_chunk::<2>()?;
        let session = rest.get(..usize::from(u16::from_be_bytes(*len)))?;
        // A clock that was set back makes tickets younger, not invalid.
        let age = unix().saturating_sub(u64::from_be_bytes(*made));
        (age <= self.timeout.as_secs()).then(|| session.to_vec())
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }
    fn lifetime(&self) -> u32 {
        // RFC 8446, section 4.6.1: at most a week.
        self.timeout.as_secs().min(604_800) as u32
    }
    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        match self.keys.first() {
            Some(key) => self.seal(key, plain),
            None => self.seal(&*sealing_key(self.timeout)?, plain),
        }
    }
    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let name = ticket.get(..16)?;
        if !self.keys.is_empty() {
            return self.keys.iter().find(|k| k.name == name).and_then(|k| self.open(k, ticket));
        }
        let shared = read(&SHARED).iter().find(|k| k.name == name).cloned();
        let found = shared.or_else(|| {
            let keys = read(&OWN);
            keys.iter().flat_map(|(_, own)| own).find(|(_, k)| k.name == name).map(|(_, k)| k.clone())
        });
        found.and_then(|k| self.open(&k, ticket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_bounded_and_forgets_the_oldest() {
        let store = Sessions::new(SHARDS * 1000);
        for i in 0..1000u32 {
            let key = [i.to_be_bytes().as_slice(), &[0]].concat();
            assert!(store.put(key, vec![1; 100], Duration::from_secs(9)));
        }
        assert!(lock(&store.shards[0]).bytes <= 1000);
        assert!(lock(&store.shards[0]).order.len() < 5);
        let key = |i: u32| [i.to_be_bytes().as_slice(), &[0]].concat();
        assert_eq!(store.get(&key(0), false), None);
        assert_eq!(store.get(&key(999), true), Some(vec![1; 100]));
        assert_eq!(store.get(&key(999), true), None, "taken");
        assert!(!store.put(key(1), vec![0; 5000], Duration::from_secs(9)), "too large");
        assert!(store.put(key(2), vec![0; 5], Duration::ZERO));
        assert_eq!(store.get(&key(2), false), None, "too old");
    }

    #[test]
    fn tickets_open_where_key_and_context_are_the_same() {
        let make = |seed: u8, context: u8| Tickets {
            keys: vec![TicketKey::new(&[seed; 80]).unwrap()],
            context: [context; 32],
            timeout: Duration::from_secs(60),
        };
        let ticket = make(1, 1).encrypt(b"session").unwrap();
        assert_eq!(make(1, 1).decrypt(&ticket).as_deref(), Some(b"session".as_slice()));
        assert_eq!(make(1, 2).decrypt(&ticket), None);
        assert_eq!(make(2, 1).decrypt(&ticket), None);
        let mut rotated = make(2, 1);
        rotated.keys.push(TicketKey::new(&[1; 80]).unwrap());
        assert_eq!(rotated.decrypt(&ticket).as_deref(), Some(b"session".as_slice()));
        let own = Tickets { keys: Vec::new(), ..make(1, 1) };
        let ticket = own.encrypt(b"x").unwrap();
        assert_eq!(own.decrypt(&ticket).as_deref(), Some(b"x".as_slice()));
        for n in 0..ticket.len() {
            assert_eq!(own.decrypt(&ticket[..n]), None);
        }
        assert!(TicketKey::new(&[0; 47]).is_none());
    }

    #[test]
    fn sessions_are_of_one_version_of_quic() {
        let tickets = Tickets { keys: Vec::new(), context: [1; 32], timeout: Duration::from_secs(60) };
        let (sessions, context) = (Arc::new(Sessions::new(SHARDS * 1000)), [1; 32]);
        let stored = Stored { sessions, context, timeout: Duration::from_secs(60) };
        // The client may begin with version 1 and go on with version 2.
        for (begun, version) in [(false, false), (false, true), (true, true)] {
            let made = OverQuic { begun_by_v2: begun, is_v2: version, ..OverQuic::default() };
            let ticket = over_quic(made, || {
                assert!(stored.put(vec![7], vec![9]));
                tickets.encrypt(b"x").unwrap()
            });
            for later in [false, true] {
                let used = OverQuic { begun_by_v2: later, is_v2: later, ..OverQuic::default() };
                let found = over_quic(used, || (tickets.decrypt(&ticket), stored.take(&[7])));
                assert_eq!(
                    found,
                    if later == version { (Some(vec![b'x']), Some(vec![9])) } else { (None, None) }
                );
            }
            assert_eq!(tickets.decrypt(&ticket).is_some(), !version);
        }
    }

    #[test]
    fn early_data_comes_from_the_address_of_the_session() {
        let sessions = Arc::new(Sessions::new(SHARDS * 1000));
        let stored = Stored { sessions, context: [1; 32], timeout: Duration::from_secs(60) };
        let quic = |address: &str, has_early_data| OverQuic {
            address: address.parse().ok(),
            has_early_data,
            ..OverQuic::default()
        };
        for (first, then, has_early_data, found) in [
            ("10.0.0.1", "10.0.0.1", true, true),
            ("10.0.0.1", "10.0.0.2", true, false),
            ("10.0.0.1", "10.0.0.2", false, true),
            ("2001:db8::1", "2001:db8::1", true, true),
            ("2001:db8::1", "2001:db8::2", true, false),
            ("", "10.0.0.1", true, false),
            ("", "", true, false),
        ] {
            over_quic(quic(first, false), || stored.put(vec![7], vec![9]));
            let taken = over_quic(quic(then, has_early_data), || stored.take(&[7]));
            assert_eq!(taken, found.then(|| vec![9]), "{first} {then} {has_early_data}");
        }
        // Over TCP the address is proved.
        over_quic(quic("10.0.0.1", false), || stored.put(vec![7], vec![9]));
        assert_eq!(stored.take(&[7]), Some(vec![9]));
    }
}
