//! States of the halves of a stream (RFC 9000, sections 3.1 and 3.2): each state with each event.

use super::*;
use crate::stream::recv::Phase;
use crate::stream::send::{Fin, Reset};
use crate::stream::table::Half;

/// State of a sending half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Ready,
    Send,
    DataSent,
    ResetSent,
    /// "Data Recvd" or "Reset Recvd".
    Over,
}

/// What happens to a sending half. What is due then is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Write,
    Finish,
    Reset,
    /// STOP_SENDING comes.
    Stop,
    /// Everything on its way is acknowledged.
    Ack,
    /// Everything on its way is lost.
    Lose,
}

/// A stream that this side sends, and what is on its way.
struct Sender {
    streams: Streams,
    id: StreamId,
    flights: Vec<Item>,
}

impl Sender {
    /// Creates one in a state.
    fn new(state: Sending) -> Sender {
        let mut streams = Pair::new(LIMITS).client;
        let id = streams.open(Dir::Uni).expect("a stream");
        let mut sender = Sender { streams, id, flights: Vec::new() };
        let acts: &[Act] = match state {
            Sending::Ready => &[],
            Sending::Send => &[Act::Write],
            Sending::DataSent => &[Act::Write, Act::Finish],
            Sending::ResetSent => &[Act::Write, Act::Reset],
            Sending::Over => &[Act::Write, Act::Finish, Act::Ack],
        };
        acts.iter().for_each(|act| sender.act(*act));
        assert_eq!(sender.state(), state);
        sender
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Write => drop(self.streams.write_slice(self.id, b"content")),
            Act::Finish => drop(self.streams.finish(self.id)),
            Act::Reset => drop(self.streams.reset(self.id, 1)),
            Act::Stop => self.streams.on_stop_sending(self.id, 1).expect("right"),
            Act::Ack => self.flights.drain(..).for_each(|item| self.streams.acked(item)),
            Act::Lose => self.flights.drain(..).for_each(|item| self.streams.lost(item)),
        }
        while self.streams.wants_to_send() {
            self.flights.extend(packet(&mut self.streams, 1200).1);
        }
    }

    fn state(&self) -> Sending {
        let half = self.streams.index.get(self.id).map_or(Half::OVER, |entry| entry.send);
        let Some(send) = half.slot().and_then(|slot| self.streams.sends.get(slot)) else {
            return if half.is_over() { Sending::Over } else { Sending::Ready };
        };
        match (send.reset, send.fin, send.sent()) {
            (Reset::Sent(_), _, _) => Sending::ResetSent,
            (Reset::No, Fin::Sent, _) => Sending::DataSent,
            (Reset::No, Fin::Open, 0) => Sending::Ready,
            (Reset::No, Fin::Open, _) => Sending::Send,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn sending_halves() {
    use Act::{Ack, Finish, Lose, Reset, Stop, Write};
    use Sending::{DataSent, Over, Ready, ResetSent, Send};
    let acts = [Write, Finish, Reset, Stop, Ack, Lose];
    let table = [
        (Ready, [Send, DataSent, ResetSent, ResetSent, Ready, Ready]),
        (Send, [Send, DataSent, ResetSent, ResetSent, Send, Send]),
        (DataSent, [DataSent, DataSent, ResetSent, DataSent, Over, DataSent]),
        (ResetSent, [ResetSent, ResetSent, ResetSent, ResetSent, Over, ResetSent]),
        (Over, [Over; 6]),
    ];
    for (state, after) in table {
        for (act, after) in acts.into_iter().zip(after) {
            let mut sender = Sender::new(state);
            sender.act(act);
            assert_eq!(sender.state(), after, "{act:?} in {state:?}");
            // It comes to its end from everywhere.
            sender.act(Finish);
            sender.act(Lose);
            sender.act(Ack);
            assert_eq!(sender.state(), Over, "{act:?} in {state:?}");
            assert_eq!((sender.streams.kept(), sender.streams.send_streams()), (0, 0));
        }
    }
}

/// State of a receiving half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    Recv,
    SizeKnown,
    DataRecvd,
    ResetRecvd,
    /// "Recv", and the application reads no more.
    Stopped,
    /// "Data Read" or "Reset Read".
    Over,
}

/// What happens to a receiving half of ten bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The first half of the content comes.
    First,
    /// The second half of the content comes, and the end.
    Last,
    /// RESET_STREAM comes.
    Reset,
    /// The application reads all that is there.
    Read,
    /// The application stops the stream.
    Stop,
}

/// A stream that this side receives.
struct Receiver {
    streams: Streams,
    id: StreamId,
}

impl Receiver {
    /// Creates one in a state.
    fn new(state: Receiving) -> Receiver {
        let (mut streams, id) = (Pair::new(LIMITS).server, uni(Side::Client, 0));
        streams.on_stream(id, 5, Bytes::from_static(b"5"), false).expect("right");
        streams.accept(Dir::Uni).expect("a stream");
        let mut receiver = Receiver { streams, id };
        let events: &[Event] = match state {
            Receiving::Recv => &[],
            Receiving::SizeKnown => &[Event::Last],
            Receiving::DataRecvd => &[Event::Last, Event::First],
            Receiving::ResetRecvd => &[Event::Reset],
            Receiving::Stopped => &[Event::Stop],
            Receiving::Over => &[Event::Last, Event::First, Event::Read],
        };
        events.iter().for_each(|event| receiver.happen(*event));
        assert_eq!(receiver.state(), state);
        receiver
    }

    fn happen(&mut self, event: Event) {
        let Receiver { streams, id } = self;
        match event {
            Event::First => streams.on_stream(*id, 0, Bytes::from_static(b"01234"), false).expect("right"),
            Event::Last => streams.on_stream(*id, 5, Bytes::from_static(b"56789"), true).expect("right"),
            Event::Reset => streams.on_reset_stream(*id, 1, 10).expect("right"),
            Event::Read => while streams.read(*id, 100).is_ok_and(|chunk| chunk.is_some()) {},
            Event::Stop => drop(streams.stop(*id, 1)),
        }
    }

    fn state(&self) -> Receiving {
        let half = self.streams.index.get(self.id).map_or(Half::OVER, |entry| entry.recv);
        let Some(recv) = half.slot().and_then(|slot| self.streams.recvs.get(slot)) else {
            return Receiving::Over;
        };
        match (recv.phase, recv.is_complete(), recv.has_end()) {
            (Phase::Reset(_), ..) => Receiving::ResetRecvd,
            (Phase::Stopped(_), ..) => Receiving::Stopped,
            (Phase::Open, true, _) => Receiving::DataRecvd,
            (Phase::Open, false, true) => Receiving::SizeKnown,
            (Phase::Open, false, false) => Receiving::Recv,
        }
    }
}

#[test]
fn receiving_halves() {
    use Event::{First, Last, Read, Reset, Stop};
    use Receiving::{DataRecvd, Over, Recv, ResetRecvd, SizeKnown, Stopped};
    let events = [First, Last, Reset, Read, Stop];
    let table = [
        (Recv, [Recv, SizeKnown, ResetRecvd, Recv, Stopped]),
        (SizeKnown, [DataRecvd, SizeKnown, ResetRecvd, SizeKnown, Over]),
        (DataRecvd, [DataRecvd, DataRecvd, DataRecvd, Over, Over]),
        (ResetRecvd, [ResetRecvd, ResetRecvd, ResetRecvd, Over, Over]),
        (Stopped, [Stopped, Over, Over, Stopped, Stopped]),
        (Over, [Over; 5]),
    ];
    for (state, after) in table {
        for (event, after) in events.into_iter().zip(after) {
            let mut receiver = Receiver::new(state);
            receiver.happen(event);
            assert_eq!(receiver.state(), after, "{event:?} in {state:?}");
            // It comes to its end from everywhere, and all of its content counts as read.
            [First, Last, Read].into_iter().for_each(|event| receiver.happen(event));
            assert_eq!(receiver.state(), Over, "{event:?} in {state:?}");
            assert!(!receiver.streams.is_open(receiver.id));
            receiver.streams.set_receive_window(30_000);
            let (_, items) = packet(&mut receiver.streams, 1200);
            assert!(items.contains(&Item::MaxData(30_010)), "{event:?} in {state:?}: {items:?}");
        }
    }
}
