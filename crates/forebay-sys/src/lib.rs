//! What the kernel offers and safe crates lack. The only crate with unsafe code.
