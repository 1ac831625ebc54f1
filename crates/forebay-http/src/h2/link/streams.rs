//! The streams of a connection to an upstream, by their identifiers.

use super::super::connection::FlowControlError;
use super::stream::Stream;

/// Buffers of a stream that has ended are kept up to this size, bytes.
const KEPT: usize = 4096;

/// Streams. A place of one that has ended is used again, with its buffers.
#[derive(Debug)]
pub(super) struct Streams<W> {
    /// Identifiers with the places of their streams, in order. Short entries, since ends come in any order.
    order: Vec<(u32, u32)>,
    places: Vec<Stream<W>>,
    free: Vec<u32>,
}

impl<W> Default for Streams<W> {
    fn default() -> Self {
        Streams { order: Vec::new(), places: Vec::new(), free: Vec::new() }
    }
}

impl<W: Default> Streams<W> {
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns the place of a stream.
    pub(super) fn place(&self, id: u32) -> Option<usize> {
        let at = self.order.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.order.get(at).map(|(_, place)| *place as usize)
    }

    pub(super) fn get(&self, place: usize) -> Option<&Stream<W>> {
        self.places.get(place)
    }

    pub(super) fn get_mut(&mut self, place: usize) -> Option<&mut Stream<W>> {
        self.places.get_mut(place)
    }

    /// Returns the places of all streams, in the order of identifiers.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        self.order.iter().map(|(_, place)| *place as usize)
    }

    /// Iterates over all streams.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Stream<W>> {
        self.places().filter_map(|place| self.places.get(place))
    }

    /// Adds a stream, whose identifier is the highest.
    pub(super) fn add(&mut self, mut stream: Stream<W>) {
        let id = stream.id;
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.places.push(Stream::new(0, stream.send_window));
                self.places.len() as u32 - 1
            }
        };
        if let Some(old) = self.places.get_mut(place as usize) {
            stream.heads = std::mem::take(&mut old.heads);
            stream.content = std::mem::take(&mut old.content);
            *old = stream;
        }
        self.order.push((id, place));
    }

    /// Removes a stream. The places are given back once there is none.
    pub(super) fn remove(&mut self, id: u32) {
        let Ok(at) = self.order.binary_search_by_key(&id, |(id, _)| *id) else { return };
        let (_, place) = self.order.remove(at);
        if let Some(old) = self.places.get_mut(place as usize) {
            let mut ended = Stream::new(0, old.send_window);
            for (kept, buffer) in [(&mut ended.heads, &mut old.heads), (&mut ended.content, &mut old.content)]
            {
                if buffer.capacity() <= KEPT {
                    buffer.clear();
                    *kept = std::mem::take(buffer);
                }
            }
            *old = ended;
        }
        self.free.push(place);
    }

    /// Changes the windows for what is sent on streams.
    ///
    /// # Errors
    /// One would be too large.
    pub(super) fn widen(&mut self, change: i64) -> Result<(), FlowControlError> {
        let Streams { order, places, .. } = self;
        order.iter().try_for_each(|(_, place)| match places.get_mut(*place as usize) {
            Some(s) => s.send_window.widen(change),
            None => Ok(()),
        })
    }

    /// Gives memory back, if there is no stream.
    pub(super) fn shrink(&mut self) {
        if self.order.is_empty() {
            *self = Streams::default();
        }
    }
}
