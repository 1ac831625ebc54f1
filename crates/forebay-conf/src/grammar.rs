//! The table of directives: one row a directive and module.

/// One row of the grammar table.
#[derive(Debug)]
pub struct Row {
    /// Directive name.
    pub name: &'static str,
}
