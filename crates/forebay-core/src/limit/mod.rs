//! Networks of clients, and shares of connections among them.

pub mod cidr;
pub mod concurrency;
pub mod outcomes;
pub mod rate;
pub mod shares;
pub mod zones;
