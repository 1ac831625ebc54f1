//! `check`, `explain` and `serve`.
