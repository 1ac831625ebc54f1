//! Writes docs/kubernetes-annotations.md and docs/kubernetes-configmap.md from the tables.

use forebay_k8s::manual;

#[allow(clippy::disallowed_methods, reason = "a tool of the source tree")]
fn main() -> std::io::Result<()> {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    std::fs::write(docs.join("kubernetes-annotations.md"), manual::annotations())?;
    std::fs::write(docs.join("kubernetes-configmap.md"), manual::configmap())
}
