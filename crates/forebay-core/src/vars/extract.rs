//! Variables whose values come from the text of one other variable.

use super::{Evaluate, VarError, VarId};

/// A group of variables whose values one reading of a text finds.
pub trait Extract: std::fmt::Debug + Send + Sync {
    /// Returns the variable that has the text.
    fn source(&self) -> VarId;

    /// Reads a text. Calls `found` once for each variable of the group, with its value if it has one.
    fn read(&self, text: &[u8], found: &mut dyn FnMut(VarId, Option<&[u8]>));
}

/// Stores the values of a group for the rest of the request.
///
/// # Errors
/// If the source cannot be evaluated.
pub(super) fn store<E: Evaluate>(group: &dyn Extract, req: &mut E) -> Result<(), VarError> {
    let mut text = req.take_buf();
    if !req.var(group.source(), &mut text)? {
        text.clear();
    }
    group.read(&text, &mut |id, value| req.store(id, value));
    req.give_buf(text);
    Ok(())
}
