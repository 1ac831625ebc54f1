//! Shared values of any type. Unlike `Arc<dyn Any>`, a value is asked for its type without a call of one of its functions. Hot path.

use std::any::TypeId;
use std::fmt::Debug;
use std::sync::Arc;

/// What a value of any type can do.
trait Value: Debug + Send + Sync {}

impl<T: Debug + Send + Sync> Value for T {}

/// Shared value of any type.
#[derive(Clone, Debug)]
pub struct SharedAny {
    /// Type of the value.
    kind: TypeId,
    value: Arc<dyn Value>,
}

impl SharedAny {
    /// Makes a value.
    pub fn new<T: Debug + Send + Sync + 'static>(value: T) -> SharedAny {
        SharedAny { kind: TypeId::of::<T>(), value: Arc::new(value) }
    }

    /// Returns the value if it is a `T`.
    #[inline]
    pub fn get<T: 'static>(&self) -> Option<&T> {
        if self.kind != TypeId::of::<T>() {
            return None;
        }
        // SAFETY: `new` alone makes values, and notes their type. The reference borrows `self`, which shares the value, and nothing gives
        // out a mutable reference to it.
        Some(unsafe { &*Arc::as_ptr(&self.value).cast::<T>() })
    }

    /// Returns the address of the value, which is its own while it exists.
    pub fn addr(&self) -> usize {
        Arc::as_ptr(&self.value).addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_of_its_type_alone() {
        let value = SharedAny::new(String::from("text"));
        assert_eq!(value.get::<String>().map(String::as_str), Some("text"));
        assert_eq!((value.get::<Vec<u8>>(), value.get::<&'static str>()), (None, None));
        assert_eq!(
            format!("{value:?}"),
            format!("SharedAny {{ kind: {:?}, value: \"text\" }}", TypeId::of::<String>())
        );
    }

    #[test]
    fn clones_share_the_value() {
        let value = SharedAny::new(vec![1u8]);
        let clone = value.clone();
        assert_eq!(value.addr(), clone.addr());
        drop(value);
        assert_eq!(clone.get::<Vec<u8>>(), Some(&vec![1]));
        assert_ne!(clone.addr(), SharedAny::new(vec![1u8]).addr());
    }
}
