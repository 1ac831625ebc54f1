//! A request on its way. Hot path.

/// Stands for the next request in the origin's order, which the connection fills in.
pub(super) const UNASSIGNED: u32 = u32::MAX;

/// A request that is due or under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flight {
    /// Time at which the request was due, ns.
    pub(super) due: u64,
    /// Time at which it was sent, ns.
    pub(super) start: u64,
    /// Index of [`crate::load::Load::requests`], or [`UNASSIGNED`].
    pub(super) request: u32,
}
