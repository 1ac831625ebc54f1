//! Stored content that answers requests again and again, and what is made of it. Hot path.

use super::sent::SentHeads;
use crate::file_cache::OpenFile;
use crate::thread::Thread;
use bytes::Bytes;
use std::any::Any;
use std::cell::RefCell;
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

/// What has been made of content, and is kept and dropped together with it.
#[derive(Debug, Default)]
pub struct Made {
    /// Heads of responses as they were sent last.
    pub heads: SentHeads,
    /// The rest, one value of a type.
    values: RefCell<Vec<Rc<dyn Derived>>>,
}

/// Something that a module makes of content.
pub trait Derived: Any + Debug {
    /// Returns the memory that it takes, in bytes.
    fn size(&self) -> u64;
}

impl Made {
    /// Returns the value of a type. It is made when it is first asked for.
    pub fn of<T: Derived + Default>(&self) -> Rc<T> {
        let mut values = self.values.borrow_mut();
        let found = values.iter().find_map(|value| {
            let value: Rc<dyn Any> = value.clone();
            value.downcast().ok()
        });
        found.unwrap_or_else(|| {
            let new = Rc::new(T::default());
            values.push(new.clone());
            new
        })
    }

    /// Returns the memory that all values take, in bytes.
    pub fn size(&self) -> u64 {
        self.values.borrow().iter().map(|value| value.size()).sum()
    }
}
