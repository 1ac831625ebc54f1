//! Directives that define variables and that front ends have in common: `map`, `num_map`, `geo`, `split_clients`, `time_format`.

pub mod geo;
pub mod map;
pub mod num_map;
pub mod split_clients;
pub mod time_format;
