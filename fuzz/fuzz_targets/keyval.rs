//! Any body for the API of a zone: a key that the zone takes is found by its own text, and by the text under which it is listed.
#![no_main]

use forebay_core::keyval::json::{Member, Members};
use forebay_core::keyval::{Kind, Lifetime, Pair, Store};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(Members(members)) = Members::parse(data) else { return };
    for kind in [Kind::String, Kind::Ip, Kind::Prefix] {
        let store = Store::new(kind, 1 << 20);
        for (key, member) in &members {
            let Member::Value(value) = member else { continue };
            let pair = Pair { key: key.clone(), value: value.clone(), lifetime: Lifetime::Endless };
            if store.add(&pair).is_ok() {
                let mut found = Vec::new();
                assert!(store.lookup(key.as_bytes(), &mut found));
                assert_eq!(found, value.as_bytes());
            }
        }
        for pair in store.pairs() {
            assert_eq!(store.value(&pair.key).as_deref(), Ok(&*pair.value));
            assert_eq!(store.remove(&pair.key), Ok(()));
        }
        assert_eq!((store.pairs().len(), store.used()), (0, 0));
    }
});
