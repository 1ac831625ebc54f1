//! Kubernetes objects to a configuration of Forebay. Pure: objects in, files and groups out, no I/O.
//!
//! Read in this order: [`objects`] holds the objects; [`ingress`] makes the [`model`] of them with the help of [`annotations`]
//! and [`settings`]; [`tree`] makes directives of the model; [`translate`] puts the parts together and keeps those that have not
//! changed. A value of an object becomes a word of a directive and is never pasted into text: `forebay_conf::print` is the only
//! way to text.
//!
//! The tables of annotations and keys are in `annotations/rows.rs` and `settings/rows.rs`. docs/kubernetes-annotations.md and
//! docs/kubernetes-configmap.md are printed from them. The cases of the program are the tables in `forebay/tests/ingress/`.

#![warn(unreachable_pub)]

pub mod annotations;
pub mod blame;
pub mod cases;
pub mod closed;
pub mod gateway;
pub mod groups;
pub mod ingress;
pub mod judge;
pub mod manual;
pub mod model;
pub mod objects;
pub mod options;
pub mod problem;
pub mod reach;
pub mod selector;
pub mod settings;
pub mod snippet;
mod taken;
pub mod translate;
pub mod tree;
pub mod value;
pub mod variables;
mod view;

pub use groups::Endpoint;
pub use objects::{Key, Kind, Object, Objects};
pub use options::Options;
pub use problem::{Problem, Severity};
pub use translate::{Accepted, Translation, Translator};
