//! A Kubernetes cluster as the source of a configuration: lists and watches of objects, statuses, events, and the election of a
//! leader. What objects mean is in `forebay-k8s`, which does no I/O.
//!
//! Start at [`controller::run`].

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
