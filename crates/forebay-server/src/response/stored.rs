//! Stored content that answers requests again and again. Hot path.

use super::made::Made;
use crate::file_cache::OpenFile;
use crate::thread::Thread;
use bytes::Bytes;
use std::fmt::Debug;
use std::rc::Rc;

/// A stored response: an entry of a cache.
pub trait Stored: Debug {
    /// Returns its status.
    fn status(&self) -> u16;
    /// Returns its content.
    fn content(&self) -> &Content;
    /// Returns what has been made of the content.
    fn made(&self) -> &Made;
    /// Counts bytes that were made of the content, and are kept with it.
    fn grew(&self, thread: &Thread, bytes: u64);
}

/// Content of a stored response.
#[derive(Debug)]
pub enum Content {
    /// In memory.
    Memory(Bytes),
    /// In a file, from an offset on.
    File(Rc<OpenFile>, u64),
}

impl Content {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Content::Memory(b) => b.len() as u64,
            Content::File(f, start) => f.size.saturating_sub(*start),
        }
    }

    /// Returns `true` if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
