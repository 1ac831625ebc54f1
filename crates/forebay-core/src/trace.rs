//! Record of the way of one request, for `forebay explain URL`. A server records nothing: [`is_on`] is one load there.
//!
//! The thread that records acts on nothing outside of the process: connections to upstreams lead to a stand-in, and what would
//! change a file says so with [`is_on`] and leaves it. Hot path.

use forebay_conf::tree::Place;
use forebay_net::addr::{Peer, PeerAddr};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Largest number of steps of a record. A loop of includes or redirects ends long before.
const MOST_STEPS: usize = 10_000;

static ON: AtomicBool = AtomicBool::new(false);

thread_local! {
    static RECORD: RefCell<Option<Record>> = const { RefCell::new(None) };
}

/// A step of a request: what was decided, with the facts that decided it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Kind: `location`, `rewrite`, `upstream`.
    pub kind: &'static str,
    /// Facts by name, in the order in which they are shown.
    pub facts: Vec<(&'static str, String)>,
    /// Place of the directive.
    pub place: Option<Place>,
    /// Names of the directives that the step is about, where it does not know the place of the one in effect.
    pub directives: Vec<&'static str>,
    /// Place of the location, or of the server, whose settings are in effect.
    pub level: Option<Place>,
}

impl Step {
    /// Makes a step without facts.
    pub fn new(kind: &'static str) -> Step {
        Step { kind, facts: Vec::new(), place: None, directives: Vec::new(), level: None }
    }

    /// Adds a fact. A value that is no text is shown with escapes.
    #[must_use]
    pub fn fact(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Step {
        let value = value.as_ref();
        let text = match std::str::from_utf8(value) {
            Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
            _ => value.escape_ascii().to_string(),
        };
        self.facts.push((name, text));
        self
    }

    /// Sets the place of the directive.
    #[must_use]
    pub fn at(mut self, place: Option<Place>) -> Step {
        self.place = place;
        self
    }

    /// Sets the names of the directives that the step is about.
    #[must_use]
    pub fn about(mut self, directives: &[&'static str]) -> Step {
        self.directives = directives.to_vec();
        self
    }

    /// Sets the level whose settings are in effect.
    #[must_use]
    pub fn level(mut self, level: Place) -> Step {
        self.level = Some(level);
        self
    }

    /// Returns a fact.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.facts.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }
}

/// What a recorded request takes the world to be.
#[derive(Clone, Debug)]
pub struct World {
    /// Stand-in for all upstreams.
    pub upstream: PeerAddr,
    /// Client of all connections.
    pub client: Peer,
    /// Address that the client has connected to.
    pub local: Option<SocketAddr>,
}

struct Record {
    world: World,
    steps: Vec<Step>,
}

/// Begins to record in this thread.
pub fn begin(world: World) {
    RECORD.set(Some(Record { world, steps: Vec::new() }));
    ON.store(true, Relaxed);
}

/// Ends the record and returns its steps.
pub fn end() -> Vec<Step> {
    ON.store(false, Relaxed);
    RECORD.take().map(|record| record.steps).unwrap_or_default()
}

/// Returns `true` if this process records the way of a request, and so must change nothing outside.
#[inline]
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Adds a step to the record, if there is one.
#[inline]
pub fn note(step: impl FnOnce() -> Step) {
    if is_on() {
        add(step());
    }
}

#[cold]
fn add(step: Step) {
    RECORD.with_borrow_mut(|record| {
        let Some(record) = record else { return };
        if record.steps.len() < MOST_STEPS {
            record.steps.push(step);
        }
    });
}

/// Returns the address that connections to upstreams lead to while the way of a request is recorded.
#[inline]
pub fn stand_in() -> Option<PeerAddr> {
    world().map(|world| world.upstream)
}

/// Returns what the recorded request takes the world to be.
#[inline]
pub fn world() -> Option<World> {
    if is_on() { RECORD.with_borrow(|record| record.as_ref().map(|r| r.world.clone())) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_recorded_between_begin_and_end() {
        note(|| unreachable!("nothing is recorded yet"));
        let upstream = PeerAddr::Inet(SocketAddr::from(([127, 0, 0, 1], 1)));
        begin(World { upstream: upstream.clone(), client: Peer::Unix, local: None });
        assert_eq!(stand_in(), Some(upstream));
        note(|| Step::new("server").fact("name", "a"));
        note(|| Step::new("location").level(Place::default()).fact("name", b"\xff").about(&["root"]));
        let steps = end();
        assert!(!is_on());
        assert_eq!(stand_in(), None);
        assert_eq!(steps.iter().map(|s| s.kind).collect::<Vec<_>>(), ["server", "location"]);
        assert_eq!(steps[0].level, None);
        assert_eq!(steps[1].level, Some(Place::default()));
        assert_eq!(steps[1].get("name"), Some("\\xff"));
        assert_eq!(end(), []);
    }
}
