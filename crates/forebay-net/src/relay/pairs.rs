//! Relays of a front end that no task serves. A relay that waits is an entry here and its two slots. Hot path.

use super::{Ended, Pair, Rules, Step, Wait};
use crate::io::Io;
use crate::reactor::{Direct, Token};
use crate::wire::Wire;
use std::cell::RefCell;
use std::rc::Rc;

/// Owner of the two connections of a relay.
pub trait Owner {
    /// Returns the wires of the client and of the server. They are sockets, and the same in each call.
    fn wires(&mut self) -> (&mut Wire, &mut Wire);

    /// Notes that the first bytes of the server have come.
    fn answered(&mut self) {}

    /// Returns `true` if the relay has to end, whatever its sides do. It is asked at each event.
    fn is_revoked(&self) -> bool {
        false
    }

    /// Handles the end of the relay. Dropping the owner closes the connections.
    fn over(self, pair: Pair, ended: Ended);
}

/// A relay and its owner.
struct Relay<O> {
    pair: Pair,
    rules: Rules,
    owner: O,
}

/// Relays with owners of one type.
pub struct Pairs<O> {
    io: Rc<Io>,
    /// Number of the front end.
    front: u8,
    /// [`Direct::kind`] of these relays.
    kind: u8,
    places: RefCell<Places<O>>,
}

/// Relays by their numbers.
struct Places<O> {
    relays: Vec<Option<Box<Relay<O>>>>,
    free: Vec<u32>,
}

impl<O: Owner> Pairs<O> {
    /// Creates an empty table. `kind` is the [`Direct::kind`] of the steps that the front end passes to [`Pairs::step`].
    pub fn new(io: Rc<Io>, front: u8, kind: u8) -> Pairs<O> {
        let places = RefCell::new(Places { relays: Vec::new(), free: Vec::new() });
        Pairs { io, front, kind, places }
    }

    /// Adds a relay and does its first step. `pair` holds the bytes that have been received before.
    pub fn add(&self, pair: Pair, rules: Rules, mut owner: O) {
        let (client, server) = tokens(&mut owner);
        let number = {
            let mut places = self.places.borrow_mut();
            // Places of ended relays are used again, so that the table does not grow with their number.
            places.free.pop().unwrap_or_else(|| {
                places.relays.push(None);
                places.relays.len() as u32 - 1
            })
        };
        let direct = Direct { front: self.front, kind: self.kind, number };
        self.io.poller.serve_directly(client, direct);
        self.io.poller.serve_directly(server, direct);
        self.go_on(Box::new(Relay { pair, rules, owner }), direct);
    }

    /// Goes on with a relay after an event.
    pub fn step(&self, direct: Direct) {
        // The relay is taken out for the step, so that a panic closes its connections. Its place is lost then.
        let relay = self.places.borrow_mut().relays.get_mut(direct.number as usize).and_then(Option::take);
        if let Some(relay) = relay {
            self.go_on(relay, direct);
        }
    }

    fn go_on(&self, mut relay: Box<Relay<O>>, direct: Direct) {
        match relay.advance(&self.io, direct) {
            None => {
                if let Some(place) = self.places.borrow_mut().relays.get_mut(direct.number as usize) {
                    *place = Some(relay);
                }
            }
            Some(ended) => {
                // The place is given back first, since the end of this relay may add another one.
                self.places.borrow_mut().free.push(direct.number);
                let relay = *relay;
                relay.owner.over(relay.pair, ended);
            }
        }
    }

    /// Ends all relays.
    pub fn cut_off(&self) {
        let numbers = 0..self.places.borrow().relays.len();
        for number in numbers {
            // This is a statement of its own, because the end of a relay may use the table.
            let relay = self.places.borrow_mut().relays.get_mut(number).and_then(Option::take);
            if let Some(relay) = relay {
                self.places.borrow_mut().free.push(number as u32);
                relay.owner.over(relay.pair, Ended::CutOff);
            }
        }
    }

    /// Returns the number of relays.
    pub fn len(&self) -> usize {
        let places = self.places.borrow();
        places.relays.len() - places.free.len()
    }

    /// Returns `true` if there are no relays.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn tokens(owner: &mut impl Owner) -> (Token, Token) {
    let (client, server) = owner.wires();
    (client.token(), server.token())
}

impl<O: Owner> Relay<O> {
    /// Moves what can be moved, and registers the slots for what has to happen before the next step. Returns the end.
    fn advance(&mut self, io: &Io, direct: Direct) -> Option<Ended> {
        if self.owner.is_revoked() {
            return Some(Ended::Revoked);
        }
        let silent = self.pair.time_to_answer().is_none();
        let (client, server) = self.owner.wires();
        let step = self.pair.step(io, client, server, &self.rules);
        if silent && self.pair.time_to_answer().is_some() {
            self.owner.answered();
        }
        let (up, down) = match step {
            Step::Over(ended) => return Some(ended),
            Step::Again => {
                io.poller.step_again(direct);
                return None;
            }
            Step::Wait { up, down } => (up, down),
        };
        let (client, server) = self.owner.wires();
        if up == Wait::Readable && down == Wait::Readable {
            // The pause may be long.
            client.shrink();
            server.shrink();
        }
        let ready = watch(io, up, client, server) | watch(io, down, server, client);
        let (deadline, cause) = self.pair.deadline(&self.rules, up, down);
        if io.poller.is_over(deadline) && cause.is_some() && !ready {
            return cause;
        }
        if ready {
            io.poller.step_again(direct);
        } else {
            io.poller.step_at(client.token(), deadline);
        }
        None
    }
}

/// Has the poller report the event that a direction waits for. Returns `true` if it has happened already, so that no event will
/// report it.
fn watch(io: &Io, wait: Wait, from: &Wire, to: &Wire) -> bool {
    match wait {
        Wait::Readable => {
            io.poller.watch_readable(from.token());
            from.is_readable(io)
        }
        Wait::Writable => {
            io.poller.watch_writable(to.token());
            to.is_writable(io)
        }
        Wait::Until(_) | Wait::Nothing => false,
    }
}
