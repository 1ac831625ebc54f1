//! A request of a rate that replicas share allocates nothing once its key is known.
#![allow(missing_docs)]

use forebay_core::limit::shared_rate::{Definition, SharedRate};
use forebay_core::shared_store::{Answer, Link, Question, Shares};
use forebay_sys::alloc::CountingAllocator;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn warm_requests_allocate_nothing() {
    let link = Arc::new(Link::default());
    let d = Definition { name: b"z", key: b"k", size: 1 << 20, rate: 100_000, exact: false };
    let zone = SharedRate::new(&d, link.clone());
    let begun = Instant::now();
    for (up, from) in [(true, 0), (false, 20_000)] {
        link.set_up(up);
        let (mut allocated, mut passed, mut asked) = (0, 0, 0);
        for request in 0..20_000u32 {
            // 1,000 requests a second. The first second of them is to warm up.
            let now = begun + Duration::from_millis(u64::from(from + request));
            let before = CountingAllocator::counts().allocations;
            passed += u32::from(zone.account(b"client", 20_000, now, true).is_ok());
            if request > 1000 {
                allocated += CountingAllocator::counts().allocations - before;
            }
            // The task runs the rest, on another thread.
            let mut asks = Vec::new();
            zone.take_asks(&mut asks);
            for ask in asks {
                let Question::Cells { want, .. } = ask.question else { panic!("{ask:?}") };
                asked += 1;
                zone.answer(ask, Answer { granted: want, first: 0, due: 100_000_000 });
            }
        }
        assert_eq!(allocated, 0);
        assert!(passed > 1000 && (asked > 10) == up, "{passed} {asked}");
    }
}
