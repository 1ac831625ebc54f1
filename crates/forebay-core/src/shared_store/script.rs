//! Scripts that run in the store, and their arguments and results.

use super::resp::{Reply, command};
use super::{Answer, Ask, Question};
use crate::digest::{sha1, sha256};
use std::sync::LazyLock;

/// A script with the name that the store gives it.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    sha1: String,
}

impl Script {
    fn new(text: &'static str) -> Script {
        Script { text, sha1: hex(&sha1(&[text.as_bytes()])) }
    }

    /// Appends a call. `whole`: with the text of the script, which the store does not have yet.
    fn call(&self, out: &mut Vec<u8>, whole: bool, key: &[u8], arguments: &[&str]) {
        let (name, script): (&[u8], &[u8]) =
            if whole { (b"EVAL", self.text.as_bytes()) } else { (b"EVALSHA", self.sha1.as_bytes()) };
        let mut words = vec![name, script, b"1", key];
        words.extend(arguments.iter().map(|a| a.as_bytes()));
        command(out, &words);
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

fn hex(bytes: &[u8]) -> String {
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
}
