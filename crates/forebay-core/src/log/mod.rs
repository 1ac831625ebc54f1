//! Log files: opening and writing them.

pub mod files;
pub mod write;
