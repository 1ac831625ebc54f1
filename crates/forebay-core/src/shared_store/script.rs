//! Scripts that run in the store, and their arguments and results.

use super::resp::{Reply, command};
use super::{Answer, Ask, Question};
use crate::digest::{sha1, sha256};
use std::sync::LazyLock;
use zeroize::Zeroizing;

/// A script with the name that the store gives it.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    sha1: String,
}

impl Script {
    pub(super) fn new(text: &'static str) -> Script {
        Script { text, sha1: hex(&sha1(&[text.as_bytes()])) }
    }

    /// Appends a call with one key. `whole`: see [`Script::call_with`].
    fn call(&self, out: &mut Vec<u8>, whole: bool, key: &[u8], arguments: &[&str]) {
        let arguments: Vec<&[u8]> = arguments.iter().map(|a| a.as_bytes()).collect();
        self.call_with(out, whole, &[key], &arguments);
    }

    /// Appends a call. `whole`: with the text of the script, which the store does not have yet.
    pub(super) fn call_with(&self, out: &mut Vec<u8>, whole: bool, keys: &[&[u8]], arguments: &[&[u8]]) {
        let (name, script): (&[u8], &[u8]) =
            if whole { (b"EVAL", self.text.as_bytes()) } else { (b"EVALSHA", self.sha1.as_bytes()) };
        let mut number = itoa::Buffer::new();
        let number = number.format(keys.len()).as_bytes();
        command(out, &[&[name, script, number], keys, arguments].concat());
    }
}

/// Grants cells of a key, after it has counted those that were spent in advance (GCRA). The store's clock is the only one.
///
/// The value of the key is the slot of its next cell, microseconds since 1970. It expires when that slot has passed. A slot
/// that is too far ahead comes from a clock that was set back.
static GRANT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local interval, tolerance = tonumber(ARGV[1]), tonumber(ARGV[2])
local debt, want = tonumber(ARGV[3]), tonumber(ARGV[4])
local due = tonumber(redis.call('GET', KEYS[1]) or now) or now
due = math.min(due, now + 100 * (tolerance + interval))
if debt > 0 then
  due = math.max(due, now) + debt * interval
else
  due = math.max(due + debt * interval, now)
end
local first = due
local free = math.floor((now + tolerance - due) / interval) + 1
local granted = math.max(0, math.min(want, free))
due = due + granted * interval
if granted > 0 or debt ~= 0 then
  local expires = math.min(math.ceil((due - now) / 1000) + 1, 100000000000)
  redis.call('SET', KEYS[1], string.format('%.3f', due), 'PX', string.format('%.0f', expires))
end
return {granted, first - now, due - now}",
    )
});

/// Counts a replica as alive and returns the number of those that are.
static BEAT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - tonumber(ARGV[2])))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', 2 * tonumber(ARGV[2])))
return redis.call('ZCARD', KEYS[1])",
    )
});

/// Returns the secrets for session tickets with their ages in seconds, newest first. If the newest is too old, the replica's own
/// new one is taken for all. The value of the key has a field for each secret: the time at which it was made.
static TICKETS: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local now = tonumber(redis.call('TIME')[1])
local life, kept = tonumber(ARGV[2]), tonumber(ARGV[3])
local made = {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local age = now - (tonumber(all[i + 1]) or 0)
  if age >= 0 and age < life * kept then
    table.insert(made, {all[i], age})
  else
    redis.call('HDEL', KEYS[1], all[i])
  end
end
table.sort(made, function(a, b) return a[2] < b[2] end)
if #made == 0 or made[1][2] >= life then
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now))
  redis.call('EXPIRE', KEYS[1], string.format('%.0f', life * kept))
  table.insert(made, 1, {ARGV[1], 0})
end
local result = {}
for i = 1, math.min(#made, kept + 1) do
  result[2 * i - 1] = made[i][1]
  result[2 * i] = made[i][2]
end
return result",
    )
});

/// Time for which a secret for session tickets seals, and number of such times for which it opens them, seconds.
const TICKETS_KEPT: (u64, u64) = (8 * 3600, 3);
/// Age from which a secret seals, seconds. All replicas have looked for it then.
const SEALS_FROM: i64 = 90;
/// Length of a secret, bytes.
pub(super) const SECRET: usize = 80;

/// Secret for session tickets.
pub(super) type Secret = Zeroizing<Vec<u8>>;

/// Appends the question for the secrets of session tickets. `own` is the sealed secret to take if a new one is due.
pub(super) fn tickets(out: &mut Vec<u8>, whole: bool, prefix: &[u8], own: &[u8]) {
    // Earlier versions have secrets that are not sealed below `tickets`.
    let name = [prefix, b"sealed-tickets".as_slice()].concat();
    let text = hex(own);
    TICKETS.call(out, whole, &name, &[&text, &TICKETS_KEPT.0.to_string(), &TICKETS_KEPT.1.to_string()]);
}

/// Reads the reply to [`tickets`]: the secrets that `open` opens, of which the first one seals tickets. Returns `None` if it is none.
pub(super) fn secrets(reply: &Reply, open: impl Fn(&[u8]) -> Option<Secret>) -> Option<Vec<Secret>> {
    let Reply::Array(parts) = reply else { return None };
    let mut all = Vec::new();
    for pair in parts.chunks(2) {
        let [Reply::Text(text), Reply::Number(age)] = pair else { return None };
        all.extend(open(&unhex(text)?).map(|secret| (secret, *age)));
    }
    // A new secret that other replicas may not know yet only opens.
    if let Some(seals) = all.iter().position(|(_, age)| *age >= SEALS_FROM) {
        all.swap(0, seals);
    }
    (!parts.is_empty()).then(|| all.into_iter().map(|(secret, _)| secret).collect())
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok().filter(|t| t.len().is_multiple_of(2))?;
    let byte = |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (0..text.len() / 2).map(|n| byte(2 * n)).collect()
}

/// Makes a secret for session tickets.
pub(super) fn new_secret() -> Option<Secret> {
    let mut secret = Zeroizing::new(vec![0; SECRET]);
    aws_lc_rs::rand::fill(&mut secret).ok()?;
    Some(secret)
}

/// Longest key that is part of a name in the store as it is. Of longer ones it is the hash.
const MAX_KEY: usize = 64;

/// Sets the number of places that a replica has, if all together then have no more than the second argument; 0 is no limit.
/// The value of the key has a field for each replica: the number, and the time until which it counts.
static TAKE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local count, most, ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4])
local others, all = 0, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if all[i] ~= ARGV[3] then
    local number, till = string.match(all[i + 1], '^(%d+):(%d+)$')
    if number and tonumber(till) > now then
      others = others + tonumber(number)
    else
      redis.call('HDEL', KEYS[1], all[i])
    end
  end
end
if most > 0 and others + count > most then
  return {0, 0, 0}
end
if count == 0 then
  redis.call('HDEL', KEYS[1], ARGV[3])
else
  redis.call('HSET', KEYS[1], ARGV[3], string.format('%.0f:%.0f', count, now + ttl))
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', 2 * ttl))
end
return {1, 0, 0}",
    )
});

/// Time in the store of places, after which they are free if their replica does not report them again, milliseconds.
const PLACES_KEPT: u64 = 5000;

/// Appends a question.
pub(super) fn ask(out: &mut Vec<u8>, whole: bool, prefix: &[u8], zone: &[u8], replica: &str, ask: &Ask) {
    let digest;
    let key = if ask.key.len() <= MAX_KEY {
        ask.key.as_ref()
    } else {
        digest = hex(&sha256(&ask.key));
        digest.as_bytes()
    };
    let name = |kind: &[u8]| [prefix, kind, b":", zone, b":", key].concat();
    match ask.question {
        Question::Cells { interval, tolerance, debt, want } => {
            let arguments = [micros(interval), micros(tolerance), debt.to_string(), want.to_string()];
            GRANT.call(out, whole, &name(b"rate"), &arguments.each_ref().map(String::as_str));
        }
        Question::Places { count, most } => {
            let numbers =
                [u64::from(count), u64::from(most.unwrap_or(0)), PLACES_KEPT].map(|n| n.to_string());
            let [count, most, kept] = numbers.each_ref().map(String::as_str);
            TAKE.call(out, whole, &name(b"conn"), &[count, most, replica, kept]);
        }
    }
}

/// Appends the sign of life of a replica. The store forgets it after this number of milliseconds.
pub(super) fn beat(out: &mut Vec<u8>, whole: bool, prefix: &[u8], replica: &str, ttl: u64) {
    let name = [prefix, b"replicas".as_slice()].concat();
    BEAT.call(out, whole, &name, &[replica, &ttl.to_string()]);
}

/// Reads the reply to [`ask`]. Returns `None` if it is none.
pub(super) fn answer(reply: &Reply, ask: &Ask) -> Option<Answer> {
    let Reply::Array(parts) = reply else { return None };
    let [Reply::Number(granted), Reply::Number(first), Reply::Number(due)] = parts.as_slice() else {
        return None;
    };
    let nanos = |micros: i64| micros.clamp(0, i64::MAX / 10_000).saturating_mul(1000);
    let most = match ask.question {
        Question::Cells { want, .. } => want,
        Question::Places { .. } => 1,
    };
    let granted = u32::try_from(*granted).ok().filter(|n| *n <= most)?;
    Some(Answer { granted, first: nanos(*first), due: nanos(*due) })
}

/// Returns whether the store does not have the script.
pub(super) fn is_unknown_script(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with("NOSCRIPT"))
}

/// Formats nanoseconds as microseconds.
fn micros(nanos: i64) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}

/// Returns lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_store::Client;

    #[test]
    fn answers_are_checked() {
        let question = Question::Cells { interval: 1, tolerance: 0, debt: 0, want: 3 };
        let ask = Ask { key: b"k"[..].into(), question, client: Client::Zone };
        let reply = |n: [i64; 3]| Reply::Array(n.map(Reply::Number).to_vec());
        assert_eq!(answer(&reply([3, 0, 7]), &ask), Some(Answer { granted: 3, first: 0, due: 7000 }));
        assert_eq!(answer(&reply([4, 0, 7]), &ask), None);
        assert_eq!(answer(&reply([-1, 0, 7]), &ask), None);
        assert_eq!(answer(&Reply::Null, &ask), None);
        let far = answer(&reply([0, i64::MIN, i64::MAX]), &ask).expect("an answer");
        assert!(far.first == 0 && far.due > 0);
    }

    #[test]
    fn long_keys_are_hashed() {
        let key = vec![b'k'; MAX_KEY + 1].into();
        let question = Question::Cells { interval: 1500, tolerance: 0, debt: -1, want: 3 };
        let mut out = Vec::new();
        ask(&mut out, false, b"p:", b"zone", "me", &Ask { key, question, client: Client::Zone });
        let text = String::from_utf8(out).expect("text");
        assert!(text.contains("$76\r\np:rate:zone:") && text.contains("\r\n1.500\r\n"), "{text}");
        assert!(
            text.starts_with("*8\r\n$7\r\nEVALSHA\r\n$40\r\n") && text.contains("$2\r\n-1\r\n"),
            "{text}"
        );
    }

    #[test]
    fn secrets_that_all_replicas_know_seal() {
        let reply = |ages: &[i64]| {
            let pair = |age: &i64| [Reply::Text(format!("{age:0160x}").into_bytes()), Reply::Number(*age)];
            Reply::Array(ages.iter().flat_map(pair).collect())
        };
        let first = |ages: &[i64]| {
            let all = secrets(&reply(ages), |text| Some(Zeroizing::new(text.to_vec()))).expect("secrets");
            assert!(all.len() == ages.len() && all.iter().all(|s| s.len() == SECRET));
            i64::from(*all[0].last().expect("a byte"))
        };
        assert_eq!((first(&[0]), first(&[1, 100]), first(&[90, 100]), first(&[2, 2])), (0, 100, 90, 2));
        let plain = |text: &[u8]| Some(Zeroizing::new(text.to_vec()));
        assert!(secrets(&reply(&[]), plain).is_none());
        // Secrets of replicas without a key in common.
        assert_eq!(secrets(&reply(&[1]), |_| None).map(|all| all.len()), Some(0));
        let odd = |text: &str| Reply::Array(vec![Reply::Text(text.into()), Reply::Number(1)]);
        assert!(
            secrets(&odd(&"0".repeat(159)), plain).is_none()
                && secrets(&odd(&"x".repeat(160)), plain).is_none()
        );
        assert!(secrets(&odd(&"é".repeat(80)), plain).is_none());
    }
}
