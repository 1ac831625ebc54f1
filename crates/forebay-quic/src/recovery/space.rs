//! State of a packet number space.

use super::Space;
use super::ecn::Counts;
use super::sent::Sent;
use crate::time::Time;

/// First distance between numbers that are skipped. It doubles each time.
const FIRST_SKIP: u64 = 128;

/// Longest distance between numbers that are skipped.
const LAST_SKIP: u64 = 16 * 1024;

/// Sent packets of a packet number space.
#[derive(Debug)]
pub(super) struct PacketSpace<C> {
    pub(super) sent: Sent<C>,
    /// Number of the next packet.
    pub(super) next: u64,
    pub(super) largest_acked: Option<u64>,
    /// Time at which the next packet is lost, unless its acknowledgment comes.
    pub(super) loss_time: Option<Time>,
    /// Time at which the last ack-eliciting packet was sent.
    pub(super) last_eliciting: Time,
    /// Ack-eliciting packets whose fate is open.
    pub(super) eliciting: u32,
    /// Time of the first packet in a row of lost ones, for persistent congestion.
    pub(super) lost_since: Option<Time>,
    /// Counts of ECN that the peer reported.
    pub(super) ecn: Counts,
    /// Packets that were sent with ECT(0).
    pub(super) sent_ect: u64,
    skip: Skip,
}

/// Numbers that are skipped.
#[derive(Debug)]
struct Skip {
    /// The last one; `u64::MAX` before the first.
    last: u64,
    /// The next one; `u64::MAX` if none is skipped.
    next: u64,
    distance: u64,
    /// State of the random numbers.
    random: u64,
}

impl<C: Copy> PacketSpace<C> {
    fn new(skip: Skip) -> PacketSpace<C> {
        PacketSpace {
            sent: Sent::new(),
            next: 0,
            largest_acked: None,
            loss_time: None,
            last_eliciting: Time::default(),
            eliciting: 0,
            lost_since: None,
            ecn: [0; 3],
            sent_ect: 0,
            skip,
        }
    }

    pub(super) fn next_number(&mut self) -> u64 {
        if self.next >= self.skip.next {
            self.skip.take(self.next);
            self.next += 1;
        }
        self.next
    }

    /// Returns the number that was skipped last.
    pub(super) fn skipped(&self) -> u64 {
        self.skip.last
    }
}

impl Skip {
    const NEVER: Skip = Skip { last: u64::MAX, next: u64::MAX, distance: 0, random: 0 };

    fn new(seed: u64) -> Skip {
        let mut skip = Skip { random: seed, distance: FIRST_SKIP, ..Skip::NEVER };
        skip.choose(0);
        skip
    }

    /// Skips a number.
    fn take(&mut self, number: u64) {
        self.last = number;
        self.distance = (self.distance * 2).min(LAST_SKIP);
        self.choose(number + 2);
    }

    fn choose(&mut self, from: u64) {
        self.random = crate::congestion::mix(self.random);
        self.next = from + self.distance / 2 + self.random % self.distance;
    }
}

/// The packet number spaces of a connection. Those of the handshake lie elsewhere, as they live for a short time.
#[derive(Debug)]
pub(super) struct Spaces<C> {
    handshake: Option<Box<[Option<PacketSpace<C>>; 2]>>,
    pub(super) data: PacketSpace<C>,
}

impl<C: Copy> Spaces<C> {
    pub(super) const ALL: [Space; 3] = [Space::Initial, Space::Handshake, Space::Data];

    pub(super) fn new(seed: u64) -> Spaces<C> {
        let [initial, handshake] = [Skip::NEVER, Skip::NEVER].map(|skip| Some(PacketSpace::new(skip)));
        Spaces { handshake: Some(Box::new([initial, handshake])), data: PacketSpace::new(Skip::new(seed)) }
    }

    pub(super) fn get(&self, space: Space) -> Option<&PacketSpace<C>> {
        match (space, self.handshake.as_deref()) {
            (Space::Data, _) => Some(&self.data),
            (Space::Initial, Some([state, _])) | (Space::Handshake, Some([_, state])) => state.as_ref(),
            (_, None) => None,
        }
    }

    pub(super) fn get_mut(&mut self, space: Space) -> Option<&mut PacketSpace<C>> {
        match (space, self.handshake.as_deref_mut()) {
            (Space::Data, _) => Some(&mut self.data),
            (Space::Initial, Some([state, _])) | (Space::Handshake, Some([_, state])) => state.as_mut(),
            (_, None) => None,
        }
    }

    /// Calls `f` for each space that is in use.
    pub(super) fn each(&mut self, mut f: impl FnMut(Space, &mut PacketSpace<C>)) {
        for space in Spaces::<C>::ALL {
            if let Some(state) = self.get_mut(space) {
                f(space, state);
            }
        }
    }

    /// Ends a space. The one of 1-RTT packets stays.
    pub(super) fn discard(&mut self, space: Space) {
        let Some(states) = self.handshake.as_deref_mut() else { return };
        match (space, states) {
            (Space::Initial, [state, _]) | (Space::Handshake, [_, state]) => *state = None,
            (Space::Data, _) => {}
        }
        if self.handshake.as_deref().is_some_and(|x| x.iter().all(Option::is_none)) {
            self.handshake = None;
        }
    }
}
