//! A Kubernetes cluster as the source of a configuration: lists and watches of objects, statuses, events, and the election of a
//! leader. What objects mean is in `forebay-k8s`, which does no I/O.
//!
//! Start at [`controller::run`].
//!
//! The client of the `kube` crates serves for requests alone. Objects have types of their own in `forebay-k8s`, with the fields that
//! are read.
//!
//! `guilty.rs` finds the files that the server refuses. They are set aside, so that the others have effect. `suspects.rs` has the keys
//! of the ConfigMap that are suspected while no cause is found.

#![warn(unreachable_pub)]
#![allow(clippy::disallowed_methods, reason = "a process of its own, without connections of clients")]

pub mod api;
pub mod controller;
mod events;
mod guilty;
mod health;
pub mod lease;
mod ports;
pub mod status;
mod suspects;
mod tickets;
pub mod watch;
mod webhook;

pub use api::{Api, Error};
