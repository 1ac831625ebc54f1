//! State file of a zone: an object of its pairs in JSON. It is read at the start and written next to itself, then moved, so that it is
//! whole at any time.

use super::json::{Fault, Member, Members, Object};
use super::store::{Lifetime, Pair, Refused};
use forebay_sys::files;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Largest file, bytes.
const LARGEST: u64 = 1 << 30;

/// Reads the pairs of a file. A file that does not exist has none. `timeout` is the one of the zone.
///
/// # Errors
/// The reason, with its place in the file.
pub(super) fn load(path: &Path, timeout: Option<Duration>) -> Result<Vec<Pair>, String> {
    let text = match files::read_file(path, LARGEST) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(forebay_sys::errno::errno(&e).to_string()),
    };
    if text.is_empty() {
        // As `touch` makes it for a start with other rights.
        return Ok(Vec::new());
    }
    let members = match Members::parse(&text) {
        Ok(Members(members)) => members,
        Err(Fault::Syntax(reason) | Fault::Form(reason)) => return Err(reason),
    };
    let now = unix_ms();
    let read = members.into_iter().filter_map(|(key, member)| pair(key, member, timeout, now).transpose());
    read.collect()
}

/// Makes a pair of a member; `None` if it has expired.
fn pair(key: String, member: Member, timeout: Option<Duration>, now: u64) -> Result<Option<Pair>, String> {
    let whole = timeout.map_or(Lifetime::Endless, Lifetime::For);
    let (value, lifetime) = match member {
        Member::Value(value) => (value, whole),
        Member::Object(Object { value: Some(value), until, expire: None }) => {
            // Without a timeout in the zone, nothing in it expires.
            match until.filter(|_| timeout.is_some()) {
                None => (value, whole),
                Some(until) if until <= now => return Ok(None),
                Some(until) => (value, Lifetime::For(Duration::from_millis(until - now))),
            }
        }
        _ => return Err(format!("the key {key:?} has no value")),
    };
    Ok(Some(Pair { key, value, lifetime }))
}

/// Writes pairs to a file.
///
/// # Errors
/// If the file cannot be written, with the path.
pub(super) fn save(path: &Path, pairs: &[Pair]) -> Result<(), String> {
    let text = to_json(pairs, unix_ms());
    let beside = beside(path);
    let written = write(&beside, &text).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|e| {
        // A part of a file is of no use. Nothing more can be done if it stays.
        let _ = std::fs::remove_file(&beside);
        format!("\"{}\": {}", path.display(), forebay_sys::errno::errno(&e))
    })
}

/// Returns the path of the file before it is moved.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    // An old worker process may write at the same time.
    name.push(format!(".{}.tmp", std::process::id()));
    name.into()
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = files::create(path, 0o600)?;
    file.set_len(0)?;
    file.write_all(text)?;
    // Or a crash of the machine could leave an empty file under the name.
    file.sync_data()
}

fn to_json(pairs: &[Pair], now: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for pair in pairs {
        out.extend_from_slice(if out.is_empty() { b"{\n" } else { b",\n" });
        push_text(&mut out, &pair.key);
        out.push(b':');
        match pair.lifetime {
            Lifetime::Endless => push_text(&mut out, &pair.value),
            Lifetime::For(left) => {
                let until = now.saturating_add(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
                out.extend_from_slice(b"{\"value\":");
                push_text(&mut out, &pair.value);
                out.extend_from_slice(format!(",\"until\":{until}}}").as_bytes());
            }
        }
    }
    out.extend_from_slice(if out.is_empty() { b"{}\n" } else { b"\n}\n" });
    out
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a text can be written to memory");
}

/// Returns the Unix time in milliseconds.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns why a file's pairs do not fit into a zone.
pub(super) fn misfit(refused: Refused) -> &'static str {
    match refused {
        Refused::Key(bad) => bad.text(),
        Refused::Twice => "two keys are the same address",
        Refused::Full => "the zone is too small for it",
        Refused::Exists | Refused::Missing | Refused::NotEmpty => "the zone is in use",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair_of(key: &str, value: &str, lifetime: Lifetime) -> Pair {
        Pair { key: key.into(), value: value.into(), lifetime }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("zone.json");
        assert_eq!(load(&path, None), Ok(Vec::new()), "there is none yet");
        let all = [pair_of("a", "1", Lifetime::Endless), pair_of("\"\n\u{e4}", "", Lifetime::Endless)];
        assert_eq!(save(&path, &all), Ok(()));
        assert_eq!(load(&path, None).as_deref(), Ok(&all[..]));
        assert_eq!(save(&path, &[]), Ok(()));
        assert_eq!(load(&path, None), Ok(Vec::new()));
        assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 1, "nothing is beside it");
    }

    #[test]
    fn times_go_on() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("zone.json");
        let hour = Duration::from_secs(3600);
        assert_eq!(save(&path, &[pair_of("a", "1", Lifetime::For(hour))]), Ok(()));
        let read = load(&path, Some(hour * 2)).expect("pairs");
        let [Pair { lifetime: Lifetime::For(left), .. }] = read.as_slice() else { panic!("{read:?}") };
        assert!(*left <= hour && *left > hour / 2, "{left:?}");
        assert_eq!(
            load(&path, None).expect("pairs")[0].lifetime,
            Lifetime::Endless,
            "nothing expires in the zone"
        );
        std::fs::write(&path, br#"{"a":{"value":"1","until":5},"b":"2"}"#).expect("a file");
        assert_eq!(load(&path, Some(hour)), Ok(vec![pair_of("b", "2", Lifetime::For(hour))]));
    }

    #[test]
    fn a_broken_file_has_a_reason() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("zone.json");
        for (text, reason) in [
            ("{\"a\":\"1\",\n\"b\" \"2\"}", "expected `:` at line 2 column 5"),
            (r#"{"a":"1","a":"1"}"#, "the key \"a\" is there twice at line 1 column 12"),
            (r#"{"a":null}"#, "the key \"a\" has no value"),
            (r#"{"a":{"value":"1","expire":1}}"#, "the key \"a\" has no value"),
        ] {
            std::fs::write(&path, text).expect("a file");
            assert_eq!(load(&path, None), Err(reason.to_owned()), "{text}");
        }
        assert!(save(Path::new("/nowhere/zone.json"), &[]).is_err_and(|e| e.contains("/nowhere/zone.json")));
    }
}
