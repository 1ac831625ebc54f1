//! Rules of RFC 9000 for frames of clients that quinn-proto 0.11.19 does not check. Payloads of 0-RTT and 1-RTT packets pass here between
//! their opening and quinn-proto. Where a client has broken a rule, its frame is replaced by one that quinn-proto answers with the right
//! error.

use super::frames::{Frame, Frames, push_varint};
use super::path;
use bytes::BytesMut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Identifiers of a peer that quinn-proto keeps, with the one in use.
const MOST_IDS: u64 = 5;
/// Numbers of a client's identifiers that can be kept (RFC 9000, section 18.2: no fewer than two).
pub const IDS: std::ops::RangeInclusive<u64> = 2..=MOST_IDS;
/// Streams whose largest offset is kept. Of more, the oldest is forgotten, and a wrong final size of it is not found.
const MOST_STREAMS: usize = 64;

/// Type of MAX_STREAM_DATA.
const MAX_STREAM_DATA: u8 = 0x11;
/// Type of STREAM with a length, at offset 0.
const STREAM: u8 = 0x0a;
/// Type of RESET_STREAM.
const RESET_STREAM: u8 = 0x04;
/// Type of NEW_CONNECTION_ID.
const NEW_CONNECTION_ID: u8 = 0x18;

/// What the keys of a connection know of its client.
#[derive(Debug)]
pub(super) struct Rules(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Streams without final size, and the largest offset received of each.
    ends: Vec<(u64, u64)>,
    /// Sequence numbers of the client's connection identifiers that are not retired.
    ids: Vec<u64>,
    /// Smallest number that is not retired.
    least_id: u64,
    /// Value of active_connection_id_limit that the client has been told.
    most_ids: usize,
}

impl State {
    /// Notes a STREAM frame. Returns `true` if its final size is below what has been received.
    fn stream(&mut self, id: u64, end: u64, fin: bool) -> bool {
        let at = self.ends.iter().position(|(known, _)| *known == id);
        match at.and_then(|at| self.ends.get_mut(at)) {
            Some((_, known)) if fin => {
                let is_wrong = end < *known;
                if let Some(at) = at {
                    self.ends.swap_remove(at);
                }
                is_wrong
            }
            Some((_, known)) => {
                *known = end.max(*known);
                false
            }
            None => {
                if !fin {
                    if self.ends.len() >= MOST_STREAMS {
                        self.ends.remove(0);
                    }
                    self.ends.push((id, end));
                }
                false
            }
        }
    }

    fn reset(&mut self, id: u64) {
        self.ends.retain(|(known, _)| *known != id);
    }

    fn retire_below(&mut self, least: u64) {
        self.least_id = least.max(self.least_id);
        self.ids.retain(|id| *id >= self.least_id);
    }

    /// Notes a NEW_CONNECTION_ID frame. Returns `true` if it is one too many.
    fn new_id(&mut self, sequence: u64, retire_prior_to: u64) -> bool {
        // A frame that would retire itself is refused by quinn-proto.
        self.retire_below(retire_prior_to.min(sequence));
        if sequence < self.least_id || self.ids.contains(&sequence) {
            return false;
        }
        let has_room = self.ids.len() < self.most_ids;
        if has_room {
            self.ids.push(sequence);
        }
        !has_room
    }
}

/// Changes of a payload.
#[derive(Debug, Default)]
struct Changes {
    /// Padding that is left out begins there.
    end: Option<usize>,
    /// Place from which on another frame takes the place of the rest.
    wrong: Option<(usize, Vec<u8>)>,
    /// Frames that come before those at these places.
    before: Vec<(usize, Vec<u8>)>,
}

fn frame(kind: u8, fields: &[u64]) -> Vec<u8> {
    let mut out = vec![kind];
    fields.iter().for_each(|field| push_varint(&mut out, *field));
    out
}

impl Rules {
    /// Creates those for a client that has been told this active_connection_id_limit.
    pub(super) fn new(most_ids: u64) -> Rules {
        let most_ids = usize::try_from(most_ids.min(MOST_IDS)).unwrap_or(usize::MAX);
        Rules(Mutex::new(State { ends: Vec::new(), ids: vec![0], least_id: 0, most_ids }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Judges the frames of a 0-RTT or 1-RTT packet of the client, and leaves out the padding at its end, which quinn-proto handles byte
    /// by byte, but for one byte.
    pub(super) fn judge(&self, payload: &mut BytesMut) {
        let changes = self.find(payload);
        if !changes.before.is_empty() {
            apply_before(payload, &changes);
        } else if let Some(end) = changes.end {
            payload.truncate(end);
        }
        if let Some((at, frame)) = changes.wrong {
            let at = at + changes.before.iter().map(|(_, frame)| frame.len()).sum::<usize>();
            payload.truncate(at);
            payload.extend_from_slice(&frame);
        }
    }

    fn find(&self, payload: &[u8]) -> Changes {
        let mut changes = Changes::default();
        let mut frames = Frames::of(payload);
        loop {
            let at = payload.len() - frames.left();
            match frames.next() {
                None => return changes,
                Some(Frame::Padding { is_last }) => {
                    if is_last {
                        changes.end = Some(at + 1);
                    }
                }
                Some(Frame::Stream { id, end, fin }) => {
                    if self.state().stream(id, end, fin) {
                        // FINAL_SIZE_ERROR (section 4.5), which quinn-proto finds for this frame only.
                        changes.wrong = Some((at, frame(RESET_STREAM, &[id, 0, end])));
                        return changes;
                    }
                }
                Some(Frame::ResetStream { id }) => self.state().reset(id),
                // STREAM_LIMIT_ERROR (section 4.6). Those of the client's own unidirectional streams are another error.
                Some(Frame::StopSending { id }) if id & 0x03 == 0 => {
                    changes.before.push((at, frame(MAX_STREAM_DATA, &[id, 0])));
                }
                // The frame opens the stream (section 3.2), as one without content does.
                Some(Frame::StreamDataBlocked { id }) if id & 0x01 == 0 => {
                    changes.before.push((at, frame(STREAM, &[id, 0])));
                }
                Some(Frame::NewConnectionId { sequence, retire_prior_to }) => {
                    if self.state().new_id(sequence, retire_prior_to) {
                        // CONNECTION_ID_LIMIT_ERROR (section 5.1.1): a number that is too far ahead for quinn-proto as well.
                        let sequence = sequence.saturating_add(2 * MOST_IDS).min((1 << 62) - 1);
                        let mut wrong = frame(NEW_CONNECTION_ID, &[sequence, 0]);
                        wrong.push(1);
                        wrong.extend_from_slice(&[0; 1 + 16]);
                        changes.wrong = Some((at, wrong));
                        return changes;
                    }
                }
                Some(Frame::PathResponse { data }) => path::note_response(data),
                Some(_) => {}
            }
        }
    }

    /// Notes what is sent to the client. quinn-proto writes STREAM frames last.
    pub(super) fn note_sent(&self, payload: &[u8]) {
        let mut frames = Frames::of(payload);
        while let Some(frame) = frames.next() {
            match frame {
                Frame::PathChallenge { data } => path::note_challenge(data),
                Frame::RetireConnectionId { sequence } => {
                    self.state().retire_below(sequence.saturating_add(1))
                }
                Frame::Stream { .. } => return,
                _ => {}
            }
        }
    }
}

/// Rebuilds a payload with frames before others.
fn apply_before(payload: &mut BytesMut, changes: &Changes) {
    let mut out = BytesMut::with_capacity(payload.len() + 16 * changes.before.len());
    let mut done = 0;
    for (at, frame) in &changes.before {
        out.extend_from_slice(payload.get(done..*at).unwrap_or_default());
        out.extend_from_slice(frame);
        done = *at;
    }
    let end = changes.end.unwrap_or(payload.len());
    out.extend_from_slice(payload.get(done..end).unwrap_or_default());
    *payload = out;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(rules: &Rules, payload: &[u8]) -> Vec<u8> {
        let mut payload = BytesMut::from(payload);
        rules.judge(&mut payload);
        payload.to_vec()
    }

    #[test]
    fn good_frames_stay_as_they_are() {
        let rules = Rules::new(2);
        for payload in [
            &[0x02, 5, 0, 0, 0, 0x0b, 0, 2, 7, 7][..],
            &[0x0a, 4, 1, 7, 0x0f, 4, 1, 1, 7],
            // The same frames again, and in another order.
            &[0x0f, 4, 1, 1, 7, 0x0a, 4, 1, 7],
            &[0x08, 8, 7, 7, 7],
            &[0x0d, 8, 3, 7],
            &[0x21, 0, 0],
            &[0x0a, 0],
            &[],
        ] {
            assert_eq!(judged(&rules, payload), payload);
        }
        assert_eq!(judged(&rules, &[0x01, 0, 0, 0, 0]), [0x01, 0]);
    }

    #[test]
    fn a_final_size_below_what_was_received() {
        let rules = Rules::new(2);
        judged(&rules, &[0x0e, 0, 5, 1, 9]);
        assert_eq!(judged(&rules, &[0x01, 0x0f, 0, 2, 1, 9, 0x01]), [0x01, 0x04, 0, 0, 3]);
        // In one packet, and beside another stream.
        assert_eq!(judged(&rules, &[0x0a, 4, 2, 9, 9, 0x0b, 8, 1, 9, 0x0b, 4, 1, 9]), {
            [0x0a, 4, 2, 9, 9, 0x0b, 8, 1, 9, 0x04, 4, 0, 1]
        });
        // Equal is right, and a reset forgets.
        judged(&rules, &[0x0a, 12, 2, 9, 9]);
        assert_eq!(judged(&rules, &[0x0d, 12, 2]), [0x0d, 12, 2]);
        judged(&rules, &[0x0a, 16, 2, 9, 9, 0x04, 16, 0, 2]);
        assert!(rules.state().ends.is_empty());
        for id in 0..1000u64 {
            judged(&rules, &frame(0x0a, &[id, 0]));
        }
        assert_eq!(rules.state().ends.len(), MOST_STREAMS);
    }

    #[test]
    fn frames_that_show_the_limit_of_streams() {
        let rules = Rules::new(2);
        let both = [0x05, 8, 0, 0x15, 10, 7, 0, 0, 0];
        assert_eq!(judged(&rules, &both), [0x11, 8, 0, 0x05, 8, 0, 0x0a, 10, 0, 0x15, 10, 7, 0]);
        // Streams of the server have no limit of ours, and STOP_SENDING of a stream without answer is another error.
        for kept in [&[0x05, 1, 0][..], &[0x05, 3, 0], &[0x05, 2, 0], &[0x15, 1, 0], &[0x15, 3, 0]] {
            assert_eq!(judged(&rules, kept), kept);
        }
        // With a mistake behind it.
        let wrong = [0x05, 8, 0, 0x0a, 4, 2, 9, 9, 0x0b, 4, 0];
        assert_eq!(judged(&rules, &wrong), [0x11, 8, 0, 0x05, 8, 0, 0x0a, 4, 2, 9, 9, 0x04, 4, 0, 0]);
    }

    #[test]
    fn challenges_and_their_answers_are_noted() {
        let rules = Rules::new(2);
        rules.note_sent(&[&[0x02, 5, 0, 0, 0, 0x1a][..], &[0; 7], &[3]].concat());
        assert_eq!((path::take_challenge(), path::take_challenge()), (Some(3), None));
        let watched = |payload: &[u8]| path::watch(|| rules.judge(&mut BytesMut::from(payload))).0;
        assert_eq!(watched(&[&[0x01, 0x1b][..], &[0; 7], &[4]].concat()), Some(4));
        assert_eq!(watched(&[0x01]), None);
    }

    fn id(sequence: u8, retire: u8) -> Vec<u8> {
        [&[0x18, sequence, retire, 1, sequence][..], &[9; 16]].concat()
    }

    #[test]
    fn more_identifiers_than_were_allowed() {
        let rules = Rules::new(2);
        let is_good = |frame: Vec<u8>| judged(&rules, &frame) == frame;
        assert!(is_good(id(1, 0)) && is_good(id(1, 0)));
        assert!(!is_good(id(2, 0)));
        let refused = judged(&rules, &id(2, 0));
        assert_eq!(refused[..4], [0x18, 12, 0, 1]);
        assert_eq!(refused.len(), id(2, 0).len());
        // Retired by us, and by the client.
        rules.note_sent(&[0x02, 5, 0, 0, 0, 0x19, 0, 0x08, 0, 1]);
        assert!(is_good(id(2, 0)) && !is_good(id(3, 0)));
        assert!(is_good(id(3, 2)) && is_good(id(1, 0)) && !is_good(id(4, 2)));
        // quinn-proto keeps no more than five.
        let rules = Rules::new(100);
        let kept = (1..=9).filter(|n| judged(&rules, &id(*n, 0)) == id(*n, 0)).count();
        assert_eq!(kept, 4);
    }
}
