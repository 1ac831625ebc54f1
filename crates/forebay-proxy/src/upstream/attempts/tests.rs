use super::*;
use std::task::{Context, Poll, Waker};

const SECOND: Duration = Duration::from_secs(1);

fn rules() -> Rules {
    Rules {
        next: NextMask::DEFAULT,
        tries: usize::MAX,
        timeout: Duration::ZERO,
        again: false,
        delay: Duration::ZERO,
    }
}

#[test]
fn only_what_the_location_names_is_sent_again() {
    let (error, status) = (Fault::new(NextUpstream::Error, 502), Fault::new(NextUpstream::Http404, 404));
    assert!(rules().allow(&error, Repeat::Always, SECOND));
    assert!(!rules().allow(&status, Repeat::Always, SECOND));
}

#[test]
fn a_request_that_changes_something_is_sent_again_only_if_it_was_not_sent() {
    let sent = Fault::new(NextUpstream::Error, 502);
    let unsent = Fault { unsent: true, ..sent };
    let of = |repeat| [&sent, &unsent].map(|f| rules().allow(f, repeat, SECOND));
    assert_eq!(of(Repeat::Always), [true, true]);
    assert_eq!(of(Repeat::Unsent), [false, true]);
    assert_eq!(of(Repeat::Never), [false, false]);
}

#[test]
fn the_time_for_all_attempts_ends() {
    let rules = Rules { timeout: 5 * SECOND, ..rules() };
    let fault = Fault::new(NextUpstream::Timeout, 504);
    assert!(rules.allow(&fault, Repeat::Always, 4 * SECOND));
    assert!(!rules.allow(&fault, Repeat::Always, 5 * SECOND));
}

/// Runs what has nothing to wait for.
fn at_once<T>(f: impl Future<Output = Result<T, u16>>) -> T {
    match std::pin::pin!(f).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done.unwrap(),
        Poll::Pending => panic!("it waits"),
    }
}

/// Begins an attempt where no server has to be waited for.
fn begin(attempts: &mut Attempts<'_>, req: &mut Request) -> Contact {
    at_once(attempts.begin(req))
}

fn direct(ports: &[u16]) -> Target {
    let addr = |port: &u16| PeerAddr::Inet(([127, 0, 0, 1], *port).into());
    Target::Direct(ports.iter().map(addr).collect())
}

/// Every server of a list is asked once; the last failure is the answer.
#[test]
fn servers_are_tried_in_turn() {
    let mut req = crate::testing::request("", "");
    let target = direct(&[1, 2]);
    let mut attempts = at_once(Attempts::new(&mut req, &target, rules(), Kept::No));
    let refused = Fault::unsent(NextUpstream::Error, 502, "while connecting to upstream");
    for (port, then) in [(1, Decision::Again), (2, Decision::Stop(502))] {
        let mut place = Some(begin(&mut attempts, &mut req));
        let Some(PeerAddr::Inet(addr)) = attempts.address() else { panic!("no address") };
        assert_eq!(addr.port(), port);
        assert_eq!(attempts.failed(&mut req, &mut place, &refused, Repeat::Unsent), then);
        assert!(place.is_none());
    }
    let statuses: Vec<u16> = req.modules.upstream.attempts.iter().map(|a| a.status).collect();
    assert_eq!(statuses, [502, 502]);
}

/// A server that is gone without a word may leave a connection that looks usable: HTTP/3 over one is the case.
#[test]
fn closed_connections_are_followed_by_new_ones_in_the_end() {
    let mut req = crate::testing::request("", "");
    let target = direct(&[1]);
    let mut attempts = at_once(Attempts::new(&mut req, &target, rules(), Kept::Group));
    for n in 0..MOST_CLOSED {
        assert!(attempts.may_reuse(), "{n}");
        assert_eq!(attempts.closed(&mut req, 502, true), Decision::Again);
    }
    assert!(!attempts.may_reuse());
}

#[test]
fn tries_are_limited() {
    let mut req = crate::testing::request("", "");
    let target = direct(&[1, 2]);
    let rules = Rules { tries: 1, ..rules() };
    let mut attempts = at_once(Attempts::new(&mut req, &target, rules, Kept::No));
    let mut place = Some(begin(&mut attempts, &mut req));
    let refused = Fault::unsent(NextUpstream::Error, 502, "while connecting to upstream");
    let verdict = attempts.failed(&mut req, &mut place, &refused, Repeat::Always);
    assert_eq!(verdict, Decision::Stop(502));
}

/// The client or this server is to blame: no other server is asked, and the attempt has no status.
#[test]
fn a_fault_of_our_own_is_the_last() {
    let mut req = crate::testing::request("", "");
    let target = direct(&[1, 2]);
    let mut attempts = at_once(Attempts::new(&mut req, &target, rules(), Kept::No));
    let mut place = Some(begin(&mut attempts, &mut req));
    let verdict = attempts.failed(&mut req, &mut place, &Fault::own(499), Repeat::Always);
    assert_eq!(verdict, Decision::Stop(499));
    assert_eq!(req.modules.upstream.current().map(|a| a.status), Some(0));
}
