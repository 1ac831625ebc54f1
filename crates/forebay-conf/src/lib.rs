//! The nginx.conf language: bytes to a tree of directives with spans, checked against a table of
//! every directive nginx knows. No HTTP, no I/O runtime.
//!
//! Start at [`parse::parse`]; `lexer` splits bytes into words, [`grammar`] holds the table,
//! [`files`] reads and records what was read, [`units`] turns words into numbers.

#![warn(unreachable_pub)]

pub mod address;
pub mod descriptions;
pub mod differences;
#[cfg(test)]
mod documented;
pub mod error;
pub mod files;
pub mod fmt;
mod glob;
pub mod grammar;
mod lexer;
pub mod parse;
pub mod print;
mod third_party;
pub mod tree;
pub mod units;
pub mod variables;
pub mod version;

pub use parse::{Parsed, parse};
pub use print::{Node, print};

/// Version of nginx whose behaviour, directives and texts are followed. No other place has it: a test compares the documents with it
/// (`tests/version.rs`).
pub const NGINX_VERSION: &str = "1.31.9";
