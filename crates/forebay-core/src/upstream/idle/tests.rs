use super::*;
use rustix::event::epoll::{self, EventData, EventFlags};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

struct Test {
    lists: Lists,
    epoll: Arc<OwnedFd>,
    now: Instant,
}

const BOTH: Place = Place { thread: 0, threads: 2 };

fn test() -> Test {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    Test { lists: Lists::default(), epoll: Arc::new(epoll), now: Instant::now() }
}

impl Test {
    /// A connection in the list of thread 0, for a peer, and its other end.
    fn put(&self, peer: u64, most: usize) -> (Leavings, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        epoll::add(&self.epoll, &ours, EventData::new_u64(peer), EventFlags::IN).expect("added");
        let idle = IdleConn {
            fd: ours.into(),
            tls: None,
            prompt: false,
            made_for: 0,
            token: Token::numbered(peer as u32),
            peer,
            opener: 0,
            requests: 1,
            opened: self.now,
            deadline: self.now + Duration::from_secs(60),
        };
        (self.lists.put(BOTH, idle, most, &self.epoll), theirs)
    }

    fn events(&self) -> usize {
        let mut events = Vec::with_capacity(8);
        let none = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&none)).expect("waited")
    }
}

fn peer(n: u64) -> impl Fn(&IdleConn) -> bool {
    move |i| i.peer == n
}

#[test]
fn the_owner_takes_the_latest_and_others_the_oldest() {
    let t = test();
    let ends: Vec<_> = [1, 2, 3].map(|n| t.put(n, 3)).into();
    assert!(ends.iter().all(|(left, _)| left.oldest.is_none() && left.taken.is_empty()));
    // There is room for three.
    let (left, _end) = t.put(4, 3);
    assert_eq!(left.oldest.map(|i| i.peer), Some(1));
    assert_eq!(t.lists.steal(1, t.now, |_| true).map(|i| i.peer), Some(2));
    let (idle, taken) = t.lists.take(0, |_| true);
    assert_eq!((idle.map(|i| i.peer), taken), (Some(4), vec![Token::numbered(2)]));
    assert!(t.lists.steal(1, t.now, peer(9)).is_none());
    // Nobody takes from itself like that.
    assert!(t.lists.steal(0, t.now, peer(3)).is_none());
    assert_eq!(t.lists.take(0, peer(3)).0.map(|i| i.peer), Some(3));
    assert!(t.lists.take(0, |_| true).0.is_none() && t.lists.steal(1, t.now, |_| true).is_none());
}

#[test]
fn a_taken_connection_is_not_watched_by_its_owner() {
    let t = test();
    let (_, mut end) = t.put(1, 3);
    let idle = t.lists.steal(1, t.now, peer(1)).expect("sound");
    end.write_all(b"x").expect("open");
    assert_eq!(t.events(), 0);
    // An event from before finds nothing; the slot is given back once.
    assert!(t.lists.withdraw(0, idle.token).is_none());
    let (_, taken) = t.lists.clear(0);
    assert_eq!(taken, [idle.token]);
    assert!(t.lists.clear(0).1.is_empty());
}

#[test]
fn only_sound_connections_change_hands() {
    let t = test();
    let (_, mut talks) = t.put(1, 4);
    let (_, closed) = t.put(1, 4);
    let (_, _sound) = t.put(1, 4);
    talks.write_all(b"x").expect("open");
    drop(closed);
    assert!(t.lists.steal(1, t.now, peer(1)).is_some());
    assert!(t.lists.steal(1, t.now, peer(1)).is_none());
    // Those that were no good are closed, and out of the set.
    assert_eq!(t.lists.clear(0).1.len(), 3);
    assert_eq!(t.events(), 0);
}

#[test]
fn one_that_is_over_is_left_to_its_owner() {
    let t = test();
    let (_, _end) = t.put(1, 4);
    let late = t.now + Duration::from_secs(60);
    assert!(t.lists.steal(1, late, peer(1)).is_none());
    assert!(t.lists.withdraw(0, Token::numbered(1)).is_some());
}

#[test]
fn a_list_that_is_being_looked_into_is_passed_over() {
    let t = test();
    let (_, _end) = t.put(1, 4);
    let list = t.lists.list(0).expect("a list");
    let held = list.inner.lock().expect("lock");
    assert!(t.lists.steal(1, t.now, peer(1)).is_none());
    drop(held);
    assert!(t.lists.steal(1, t.now, peer(1)).is_some());
}
