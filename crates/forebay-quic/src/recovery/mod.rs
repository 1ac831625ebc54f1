//! Loss detection: which packets arrived, which are lost and when others may leave (RFC 9002).
//!
//! The owner tells each packet that it sends ([`Recovery::on_sent`]) and each ACK frame that comes ([`Recovery::on_ack`]), and
//! calls [`Recovery::on_timeout`] at [`Recovery::deadline`]. It gets the fate of each packet back together with what it had
//! noted about the packet's content. Hot path.

use std::time::Duration;

use crate::congestion::Algorithm;
use crate::time::Time;

mod ack;
pub mod acks;
mod ecn;
mod loss;
mod pacer;
mod path;
mod rtt;
mod sent;
mod space;
#[cfg(test)]
mod tests;
mod timer;

pub use ack::{Ack, AckResult};
pub use acks::{Acks, EcnMark};
pub use ecn::EcnState;
pub use path::PathState;
pub use rtt::{GRANULARITY, Rtt};
pub use timer::Timeout;

use sent::{Flags, Record};
use space::{PacketSpace, Spaces};

/// Packet number space (RFC 9000, section 12.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Initial packets.
    Initial,
    /// Handshake packets.
    Handshake,
    /// 0-RTT and 1-RTT packets.
    Data,
}

/// Settings of recovery.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Congestion control.
    pub algorithm: Algorithm,
    /// Round-trip time until there is a sample (RFC 9002, section 6.2.2).
    pub initial_rtt: Duration,
    /// Size of datagrams at the beginning, bytes.
    pub datagram_size: u16,
    /// Mark packets with ECT(0) as long as the path supports it.
    pub ecn: bool,
    /// Smoothed round-trip time below which packets are not paced: timers are too coarse there.
    pub unpaced_below: Duration,
    /// Random number, for packet numbers that are skipped and for times between probes.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            algorithm: Algorithm::Cubic,
            initial_rtt: Duration::from_millis(333),
            datagram_size: 1200,
            ecn: true,
            unpaced_below: Duration::ZERO,
            seed: 0,
        }
    }
}

/// Packet that is sent.
#[derive(Clone, Copy, Debug)]
pub struct SentPacket<C> {
    /// Packet number, as [`Recovery::next_number`] returned it.
    pub number: u64,
    /// Bytes in the datagram.
    pub size: u16,
    /// It has frames other than ACK, PADDING and CONNECTION_CLOSE.
    pub ack_eliciting: bool,
    /// It counts for the congestion window: it is ack-eliciting or has PADDING, and leaves on the path in use.
    pub in_flight: bool,
    /// It tries a larger size of datagrams.
    pub mtu_probe: bool,
    /// It is marked with ECT(0).
    pub ect: bool,
    /// Record of its content. It comes back with its fate. If the packet is neither ack-eliciting nor in flight, nobody learns its
    /// fate, and the content is forgotten.
    pub content: C,
}

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrived.
    Acked,
    /// It is lost. Its content is to be sent again.
    Lost,
    /// It was lost as it seemed, but arrived later. Its content was handed back with [`Fate::Lost`] already.
    LateAcked,
}

/// Packet whose fate is known.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<C> {
    /// What became of it.
    pub fate: Fate,
    /// Record of its content.
    pub content: C,
    /// Packet number.
    pub number: u64,
    /// Bytes in the datagram.
    pub size: u16,
    /// It tried a larger size of datagrams.
    pub mtu_probe: bool,
}

impl<C: Copy> Outcome<C> {
    fn new(fate: Fate, number: u64, record: &Record<C>) -> Outcome<C> {
        let mtu_probe = record.flags.has(Flags::MTU_PROBE);
        Outcome { fate, content: record.content, number, size: record.size, mtu_probe }
    }
}

/// Counters of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets that were sent.
    pub sent: u64,
    /// Packets that were lost, probes of the datagram size not among them.
    pub lost: u64,
    /// Packets that were declared lost and arrived.
    pub late: u64,
    /// Bytes of lost packets.
    pub lost_bytes: u64,
    /// Probes of the datagram size that were lost.
    pub lost_mtu_probes: u64,
    /// Reports of packets with CE.
    pub congestion_marks: u64,
    /// Times at which the probe timeout was reached.
    pub probe_timeouts: u64,
    /// Times at which persistent congestion was found.
    pub persistent_congestion: u64,
}

/// What the handshake says about probes.
#[derive(Clone, Copy, Debug, Default)]
struct Handshake {
    /// The handshake is confirmed (RFC 9001, section 4.1.2).
    confirmed: bool,
    /// The peer has validated our address: always true for servers (RFC 9002, section 6.2.2.1).
    peer_validated: bool,
    has_keys: bool,
}

/// Recovery of a connection. `C` is the record of what a packet carried.
#[derive(Debug)]
pub struct Recovery<C> {
    spaces: Spaces<C>,
    path: PathState,
    handshake: Handshake,
    /// Time that the peer may wait with acknowledgments of 1-RTT packets.
    max_ack_delay: Duration,
    /// Probe timeouts in a row.
    pto_count: u32,
    /// Time of the first of these probe timeouts.
    probing_since: Time,
    /// Time at which the timers were set last, from which a client without anything in flight counts.
    timer_set: Time,
    packet_threshold: u64,
    /// Time threshold in eighths of the round-trip time.
    time_threshold: u32,
    unpaced_below: Duration,
    stats: Stats,
}

impl<C: Copy> Recovery<C> {
    /// Creates the state of a new connection. `is_server` says who validates whom.
    pub fn new(config: &Config, is_server: bool, now: Time) -> Recovery<C> {
        Recovery {
            spaces: Spaces::new(config.seed),
            path: PathState::new(config, now),
            handshake: Handshake { peer_validated: is_server, ..Handshake::default() },
            max_ack_delay: Duration::from_millis(25),
            pto_count: 0,
            probing_since: now,
            timer_set: now,
            packet_threshold: loss::PACKET_THRESHOLD,
            time_threshold: loss::TIME_THRESHOLD,
            unpaced_below: config.unpaced_below,
            stats: Stats::default(),
        }
    }

    /// Returns the number of the next packet. It stays the same until [`Recovery::on_sent`] takes it. Now and then a number is
    /// skipped, so that acknowledgments of packets that did not arrive are found out (RFC 9000, section 21.4).
    pub fn next_number(&mut self, space: Space) -> u64 {
        self.spaces.get_mut(space).map_or(0, PacketSpace::next_number)
    }

    /// Returns the largest packet number that the peer has acknowledged in a space.
    pub fn largest_acked(&self, space: Space) -> Option<u64> {
        self.spaces.get(space)?.largest_acked
    }

    /// Notes a packet that was sent.
    pub fn on_sent(&mut self, space: Space, now: Time, packet: SentPacket<C>) {
        let Some(state) = self.spaces.get_mut(space) else { return };
        state.next = packet.number + 1;
        self.stats.sent += 1;
        if packet.ect {
            state.sent_ect += 1;
            self.path.ecn.on_sent();
        }
        if !packet.ack_eliciting && !packet.in_flight {
            state.sent.push_gone(packet.number, packet.content);
            return;
        }
        let flags = Flags::default()
            .with_if(Flags::ACK_ELICITING, packet.ack_eliciting)
            .with(if packet.in_flight { Flags::IN_FLIGHT } else { Flags::OTHER_PATH })
            .with_if(Flags::MTU_PROBE, packet.mtu_probe)
            .with_if(Flags::ECT, packet.ect);
        state.sent.push(packet.number, Record::new(now, packet.content, packet.size, flags));
        if packet.ack_eliciting {
            state.last_eliciting = now;
            state.eliciting += 1;
        }
        if packet.in_flight {
            self.path.on_sent(now, packet.size.into());
            self.timer_set = now;
        }
    }

    /// Returns the bytes that the congestion window leaves. Probes and acknowledgments alone may leave nevertheless.
    pub fn room(&self) -> u64 {
        self.path.room()
    }

    /// Returns the bytes in flight.
    pub fn in_flight(&self) -> u64 {
        self.path.in_flight
    }

    /// Returns the congestion window, bytes.
    pub fn window(&self) -> u64 {
        self.path.controller.window()
    }

    #[cfg(test)]
    pub(crate) fn controller(&self) -> &crate::congestion::Controller {
        &self.path.controller
    }

    /// Returns when packets may leave if pacing holds them back now.
    pub fn blocked_until(&self, now: Time) -> Option<Time> {
        if self.path.rtt.smoothed() < self.unpaced_below {
            return None;
        }
        self.path.pacer.blocked_until(now)
    }

    /// Notes that there is nothing more to send, although the congestion window and pacing would allow it.
    pub fn on_app_limited(&mut self) {
        self.path.controller.on_app_limited(self.path.in_flight);
    }

    /// Returns the estimate of the round-trip time of the path.
    pub fn rtt(&self) -> &Rtt {
        &self.path.rtt
    }

    /// Returns the counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns the state of ECN on the path.
    pub fn ecn(&self) -> EcnState {
        self.path.ecn.state
    }

    /// Returns `true` if the next packets are to be marked with ECT(0).
    pub fn marks_packets(&self) -> bool {
        self.path.ecn.marks()
    }

    /// Iterates over the content of the packets of a space whose fate is open, the oldest first: a probe without new content
    /// carries it again. Packets that need no acknowledgment are left out.
    pub fn unacked(&self, space: Space) -> impl Iterator<Item = C> {
        let sent = self.spaces.get(space).into_iter().flat_map(|x| x.sent.live());
        sent.filter(|x| x.flags.has(Flags::ACK_ELICITING)).map(|x| x.content)
    }

    /// Returns `true` if ack-eliciting packets of a space have no acknowledgment yet.
    pub fn awaits_acks(&self, space: Space) -> bool {
        self.spaces.get(space).is_some_and(|x| x.eliciting != 0)
    }

    /// Ends a space whose keys are gone (RFC 9002, section 6.4). Gives the content of packets whose fate was open to `forgotten`.
    pub fn discard(&mut self, space: Space, now: Time, mut forgotten: impl FnMut(C)) {
        self.take_all(space, &mut forgotten);
        self.spaces.discard(space);
        self.pto_count = 0;
        self.timer_set = now;
    }

    /// Takes the 0-RTT packets out of flight that the server rejected. Their content goes to `resend`.
    pub fn reject_early(&mut self, now: Time, mut resend: impl FnMut(C)) {
        self.take_all(Space::Data, &mut resend);
        self.timer_set = now;
    }

    /// Begins anew after a Retry packet, from which `rtt` is a sample (RFC 9002, section 6.3). Packet numbers go on. The content
    /// of Initial and 0-RTT packets goes to `resend`.
    pub fn on_retry(
        &mut self,
        config: &Config,
        now: Time,
        rtt: Option<Duration>,
        mut resend: impl FnMut(Space, C),
    ) {
        for space in [Space::Initial, Space::Data] {
            self.take_all(space, &mut |content| resend(space, content));
        }
        let initial_rtt = rtt.unwrap_or(config.initial_rtt);
        self.path = PathState::new(&Config { initial_rtt, ..*config }, now);
        self.pto_count = 0;
        self.timer_set = now;
    }

    fn take_all(&mut self, space: Space, f: &mut impl FnMut(C)) {
        let Some(state) = self.spaces.get_mut(space) else { return };
        let in_flight = &mut self.path.in_flight;
        state.sent.clear(|_, record| {
            if record.flags.has(Flags::IN_FLIGHT) {
                *in_flight = in_flight.saturating_sub(record.size.into());
            }
            f(record.content);
        });
        state.eliciting = 0;
        state.loss_time = None;
    }

    /// Goes to another path: with `known`, the state it had when it was left, or a new one (RFC 9000, section 9.4). Packets in
    /// flight say nothing about it. Returns the state of the path that is left.
    pub fn change_path(&mut self, config: &Config, now: Time, known: Option<PathState>) -> PathState {
        if let Some(state) = self.spaces.get_mut(Space::Data) {
            for record in state.sent.live_mut() {
                record.flags = record.flags.without(Flags::IN_FLIGHT).with(Flags::OTHER_PATH);
            }
        }
        let mut path = known.unwrap_or_else(|| PathState::new(config, now));
        path.in_flight = 0;
        self.pto_count = 0;
        self.timer_set = now;
        std::mem::replace(&mut self.path, path)
    }

    /// Sets the size of datagrams on the path.
    pub fn set_datagram_size(&mut self, size: u16) {
        self.path.set_datagram_size(size);
    }

    /// Gives memory of an idle connection back. Marks of lost packets are kept as long as they may arrive.
    pub fn shrink(&mut self, now: Time) {
        let keep_from = self.keep_lost_from(now);
        self.spaces.each(|_, state| {
            state.sent.trim(keep_from);
            state.sent.shrink();
        });
        self.path.controller.shrink();
    }
}
