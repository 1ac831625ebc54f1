//! Networks of clients, and shares of connections among them.

pub mod cidr;
pub mod shares;
