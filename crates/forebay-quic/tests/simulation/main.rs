//! Two endpoints over a simulated network. All that is random comes from a seed.
//!
//! `FOREBAY_TEST_SEEDS=n` changes the number of seeds, `FOREBAY_TEST_SEED=n` runs one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod app;
mod handshake;
mod network;
mod node;
mod other;
mod plan;
mod random;
mod scenario;
mod seeds;
mod transport;
mod world;
