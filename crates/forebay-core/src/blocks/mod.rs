//! Blocks that define variables and that every front end has: `map`, `geo`, `split_clients`.

pub mod geo;
pub mod map;
pub mod split_clients;
