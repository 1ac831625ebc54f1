//! Values of modules in a configuration, by their types.

use std::any::{Any, TypeId};
use std::fmt;

/// At most one value of each type.
#[derive(Default)]
pub struct Parts(Vec<(TypeId, Box<dyn Part>)>);

/// A value that a module keeps in a configuration.
pub trait Part: Any + Send + Sync {}

impl<T: Any + Send + Sync> Part for T {}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} parts", self.0.len())
    }
}

impl Parts {
    fn position<T: Part>(&self) -> Option<usize> {
        self.0.iter().position(|(kind, _)| *kind == TypeId::of::<T>())
    }

    /// Returns the value of a type.
    #[inline]
    pub fn get<T: Part>(&self) -> Option<&T> {
        let value: &dyn Any = &*self.0.get(self.position::<T>()?)?.1;
        value.downcast_ref()
    }

    /// Returns the value of a type, to change it. It is made when it is first asked for.
    pub fn get_mut<T: Part + Default>(&mut self) -> &mut T {
        let at = self.position::<T>().unwrap_or_else(|| {
            self.0.push((TypeId::of::<T>(), Box::<T>::default()));
            self.0.len() - 1
        });
        let value: &mut dyn Any = &mut *self.0[at].1;
        value.downcast_mut().expect("a value is found by its type")
    }

    /// Takes the value of a type out; the default if there is none.
    pub fn take<T: Part + Default>(&mut self) -> T {
        let Some(at) = self.position::<T>() else { return T::default() };
        let value: Box<dyn Any> = self.0.swap_remove(at).1;
        *value.downcast().expect("a value is found by its type")
    }

    /// Returns `true` if there is no value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::Parts;

    #[test]
    fn values_are_found_by_their_types() {
        let mut parts = Parts::default();
        assert!(parts.is_empty() && parts.get::<String>().is_none());
        parts.get_mut::<String>().push('a');
        parts.get_mut::<Vec<u8>>().push(1);
        parts.get_mut::<String>().push('b');
        assert_eq!(parts.get::<String>().map(String::as_str), Some("ab"));
        assert_eq!(parts.take::<String>(), "ab");
        assert_eq!((parts.take::<String>(), parts.take::<Vec<u8>>()), (String::new(), vec![1]));
        assert!(parts.is_empty());
    }
}
