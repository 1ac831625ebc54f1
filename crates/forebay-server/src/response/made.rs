//! Things that are made of content, and are kept with it: heads, compressed forms. Hot path.

use super::sent_heads::SentHeads;
use std::any::Any;
use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;

/// Values made of content, which are kept and dropped together with it.
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
