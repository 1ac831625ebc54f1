//! Blocks that define variables and that every front end has: `map`, `num_map`, `geo`, `split_clients`.

pub mod geo;
pub mod map;
pub mod num_map;
pub mod split_clients;
