use super::*;
use std::time::Instant;

fn pair(key: &str, value: &str) -> Pair {
    Pair { key: key.into(), value: value.into(), lifetime: Lifetime::Endless }
}

fn expiring(key: &str, ms: u64) -> Pair {
    Pair { lifetime: Lifetime::For(Duration::from_millis(ms)), ..pair(key, "1") }
}

fn store(kind: Kind, pairs: &[(&str, &str)]) -> Store {
    let store = Store::new(kind, 1 << 20);
    let pairs: Vec<Pair> = pairs.iter().map(|(key, value)| pair(key, value)).collect();
    assert_eq!(store.fill(&pairs), Ok(()));
    store
}

/// Looks a text up.
fn value(store: &Store, text: &str) -> Option<String> {
    let mut out = b"before ".to_vec();
    let found = store.lookup(text.as_bytes(), &mut out);
    let value =
        String::from_utf8(out).expect("text").strip_prefix("before ").expect("it is appended").to_owned();
    assert!(found || value.is_empty());
    found.then_some(value)
}

/// Waits until a condition holds.
fn until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "it takes too long");
        std::thread::yield_now();
    }
}

#[test]
fn strings_match_themselves() {
    let store = store(Kind::String, &[("a", "1"), ("ab", ""), ("\u{e4}", "3")]);
    for (text, found) in
        [("a", Some("1")), ("ab", Some("")), ("\u{e4}", Some("3")), ("A", None), ("abc", None), ("", None)]
    {
        assert_eq!(value(&store, text).as_deref(), found, "{text}");
    }
}

#[test]
fn the_smallest_network_matches() {
    let store = store(
        Kind::Ip,
        &[
            ("10.0.0.0/8", "8"),
            ("10.1.0.0/16", "16"),
            ("10.1.2.3", "host"),
            ("2001:db8::/32", "six"),
            ("2001:db8::1", "one"),
            ("2001:db8:0:1::/64", "64"),
        ],
    );
    for (text, found) in [
        ("10.1.2.3", Some("host")),
        ("::ffff:10.1.2.3", Some("host")),
        ("::ffff:a01:203", Some("host")),
        ("10.1.2.4", Some("16")),
        ("10.2.0.1", Some("8")),
        ("11.0.0.0", None),
        // A network matches those around it.
        ("10.1.2.0/24", Some("16")),
        ("10.0.0.0/9", Some("8")),
        ("10.0.0.0/7", None),
        ("2001:db8::1", Some("one")),
        ("2001:0DB8:0000::0001", Some("one")),
        ("2001:db8::2", Some("six")),
        ("2001:db8:0:1::9", Some("64")),
        ("2001:db9::", None),
        ("unix:", None),
        ("", None),
    ] {
        assert_eq!(value(&store, text).as_deref(), found, "{text}");
    }
    assert_eq!(store.remove("10.1.2.3/32"), Ok(()));
    assert_eq!(value(&store, "10.1.2.3").as_deref(), Some("16"));
    assert_eq!(store.add(&pair("::ffff:10.0.0.0/104", "")), Err(Refused::Exists));
    assert_eq!(store.add(&pair("0.0.0.0/0", "all")), Ok(()));
    assert_eq!(value(&store, "255.255.255.255").as_deref(), Some("all"));
    assert_eq!(value(&store, "::1"), None, "IPv6 is another family");
}

#[test]
fn the_longest_prefix_matches() {
    let store = store(Kind::Prefix, &[("/a", "short"), ("/a/b", "middle"), ("/a/b/c", "long")]);
    for (text, found) in [
        ("/a/b/c/d", Some("long")),
        ("/a/b/c", Some("long")),
        ("/a/b/", Some("middle")),
        ("/ab", Some("short")),
        ("/", None),
        ("", None),
    ] {
        assert_eq!(value(&store, text).as_deref(), found, "{text}");
    }
    assert_eq!(store.remove("/a/b"), Ok(()));
    assert_eq!(value(&store, "/a/b/").as_deref(), Some("short"));
    let longest = "/a".repeat(MAX_KEY / 2);
    assert_eq!(store.add(&pair(&longest, "longest")), Ok(()));
    assert_eq!(value(&store, &(longest + "/a")).as_deref(), Some("longest"));
}

#[test]
fn records_are_changed_by_their_keys() {
    let store = store(Kind::String, &[("a", "1")]);
    let to = |value| Change { value: Some(value), lifetime: None };
    assert_eq!(store.add(&pair("a", "2")), Err(Refused::Exists));
    assert_eq!(store.add(&pair("b", "2")), Ok(()));
    assert_eq!(store.change("a", to("3")), Ok(()));
    assert_eq!(store.change("c", to("3")), Err(Refused::Missing));
    assert_eq!((store.value("a"), store.value("c")), (Ok("3".into()), Err(Refused::Missing)));
    assert_eq!(store.pairs(), [pair("a", "3"), pair("b", "2")]);
    assert_eq!(store.remove("a"), Ok(()));
    assert_eq!(store.remove("a"), Err(Refused::Missing));
    assert_eq!(store.fill(&[pair("x", ""), pair("y", "")]), Err(Refused::NotEmpty));
    assert_eq!(store.add(&pair("", "")), Err(Refused::Key(BadKey::Empty)));
    store.clear();
    assert_eq!((store.pairs(), store.used()), (Vec::new(), 0));
    assert_eq!(store.fill(&[pair("x", ""), pair("x", "")]), Err(Refused::Twice));
    assert_eq!(store.fill(&[pair("x", ""), pair("y", "")]), Ok(()));
}

#[test]
fn a_full_store_refuses() {
    let store = Store::new(Kind::String, 3 * (RECORD_COST + 2));
    assert_eq!(store.fill(&["a", "b", "c", "d"].map(|key| pair(key, "1"))), Err(Refused::Full));
    assert_eq!(store.pairs(), [], "all or none");
    assert_eq!(store.fill(&["a", "b", "c"].map(|key| pair(key, "1"))), Ok(()));
    let change = |value| store.change("a", Change { value: Some(value), lifetime: None });
    assert_eq!(store.add(&pair("d", "1")), Err(Refused::Full));
    assert_eq!((change("12"), change("2"), change("")), (Err(Refused::Full), Ok(()), Ok(())));
    assert_eq!(store.pairs(), [pair("a", ""), pair("b", "1"), pair("c", "1")]);
    assert_eq!(store.remove("b"), Ok(()));
    assert_eq!(store.add(&pair("d", "1")), Ok(()));
    store.set_limit(0);
    assert_eq!(store.add(&pair("e", "1")), Err(Refused::Full));
    assert_eq!((change(""), value(&store, "d").as_deref()), (Ok(()), Some("1")), "what is there stays");
}

#[test]
fn what_has_expired_is_not_there() {
    let one = RECORD_COST + 2;
    let store = Store::new(Kind::String, 2 * one);
    assert_eq!(store.fill(&[expiring("a", 0), expiring("b", 3_600_000)]), Ok(()));
    assert_eq!(value(&store, "a"), None);
    assert_eq!(value(&store, "b").as_deref(), Some("1"));
    let change = |key, ms| {
        let lifetime = Some(Lifetime::For(Duration::from_millis(ms)));
        store.change(key, Change { value: None, lifetime })
    };
    assert_eq!(change("a", 10), Err(Refused::Missing));
    assert_eq!((store.value("a"), store.remove("a")), (Err(Refused::Missing), Err(Refused::Missing)));
    // Room that an expired record takes is given to another one at once.
    assert_eq!(store.add(&expiring("a", 0)), Ok(()));
    assert_eq!(store.add(&expiring("a", 0)), Ok(()), "it is not there");
    assert_eq!(store.add(&expiring("c", 1)), Ok(()));
    assert_eq!(store.used(), 2 * one);
    until(|| {
        store.sweep();
        store.used() == one
    });
    assert_eq!(value(&store, "c"), None);
    assert_eq!(change("b", 0), Ok(()));
    assert_eq!((value(&store, "b"), store.pairs()), (None, Vec::new()));
    assert_eq!(store.fill(&[pair("x", "1"), pair("y", "1")]), Ok(()), "it is empty");
}

#[test]
fn threads_see_changes_at_once() {
    let store = store(Kind::Ip, &[("10.0.0.0/8", "0")]);
    let turn = AtomicU64::new(0);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                for n in 1..=1000 {
                    until(|| turn.load(Ordering::Acquire) >= n);
                    let seen: u64 = value(&store, "10.0.0.1").expect("a value").parse().expect("a number");
                    assert!(seen >= n, "{seen} {n}");
                }
            });
        }
        for n in 1..=1000 {
            let text = n.to_string();
            let change = Change { value: Some(&text), lifetime: None };
            assert_eq!(store.change("10.0.0.0/8", change), Ok(()));
            turn.store(n, Ordering::Release);
        }
    });
}

fn defined(block: &'static str, definition: &Definition) -> Zones {
    let mut zones = Zones::default();
    let zone = zones.find_or_promise(&definition.name, block);
    zone.definition.set(definition.clone()).expect("it is new");
    zones
}

#[test]
fn zones_are_kept_over_reloads() {
    let mut d =
        Definition { name: b"z".to_vec(), size: 1 << 15, kind: Kind::String, timeout: None, state: None };
    let (block, other) = ("kept", "another block");
    defined(other, &d).prepare(other);
    defined(block, &d).prepare(block);
    let zone = zones(block).pop().expect("a zone");
    assert_eq!(zone.store().expect("records").add(&pair("a", "1")), Ok(()));
    assert_eq!(zones(other).pop().expect("a zone").store().expect("records").pairs(), []);
    // The size may change.
    d.size = 0;
    defined(block, &d).prepare(block);
    let next = zones(block).pop().expect("a zone");
    let store = next.store().expect("records").clone();
    assert_eq!((store.pairs(), store.add(&pair("b", "1"))), (vec![pair("a", "1")], Err(Refused::Full)));
    assert!(!Arc::ptr_eq(&zone, &next) && zone.lookup(b"a", &mut Vec::new()));
    // Another type begins anew.
    d.kind = Kind::Prefix;
    let changed = defined(block, &d);
    changed.prepare(block);
    let lines = Mutex::new(Vec::new());
    changed.tend(&|_, line| lock(&lines).push(line.to_owned()));
    assert_eq!(*lock(&lines), ["keyval zone \"z\" begins anew, because its type has changed"]);
    assert_eq!(zones(block).pop().expect("a zone").store().expect("records").pairs(), []);
    Zones::default().prepare(block);
    assert_eq!((zones(block).len(), zones(other).len()), (0, 1));
}

#[test]
fn records_outlive_the_process_in_a_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("z.json");
    let state = Some(path.clone());
    let d = Definition { name: b"z".to_vec(), size: 1 << 15, kind: Kind::String, timeout: None, state };
    let silent = |_: Level, line: &str| panic!("{line}");
    let (first, second, third) = ("first process", "second process", "third process");
    let zones_of = |block| {
        let zones = defined(block, &d);
        zones.prepare(block);
        zones
    };
    let before = zones_of(first);
    before.tend(&silent);
    assert!(!path.exists(), "nothing has changed");
    assert_eq!(zones(first)[0].store().expect("records").add(&pair("a", "1")), Ok(()));
    before.tend(&silent);
    zones_of(second).tend(&silent);
    assert_eq!(zones(second)[0].store().expect("records").pairs(), [pair("a", "1")]);
    // A file that is broken by now is not overwritten.
    std::fs::write(&path, "{").expect("a file");
    let broken = zones_of(third);
    let lines = Mutex::new(Vec::new());
    broken.tend(&|_, line| lock(&lines).push(line.to_owned()));
    assert!(lock(&lines)[0].contains("EOF while parsing an object at line 1 column 1"), "{lines:?}");
    assert_eq!(zones(third)[0].store().expect("records").add(&pair("b", "1")), Ok(()));
    broken.tend(&silent);
    assert_eq!(std::fs::read(&path).expect("a file"), b"{");
}
