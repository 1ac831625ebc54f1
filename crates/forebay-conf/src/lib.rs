//! The nginx.conf language: bytes to a tree of directives with spans, checked against a table of
//! every directive nginx knows. No HTTP, no I/O runtime.

pub mod error;
pub mod files;
pub mod grammar;
pub mod tree;
