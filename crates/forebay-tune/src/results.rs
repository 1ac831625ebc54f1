//! Writes the files of a tuning: configuration, patch, reports and the systemd drop-in.

use crate::knobs::Place;
use crate::output::Summary;
use crate::patch::explained;
use crate::search::Line;
use crate::service;
use crate::sysctl::Journal;
use forebay_copy::patch::{self, Edit, Source};
use std::path::Path;

/// The file of kernel settings that were kept.
pub(crate) const KERNEL: &str = "90-forebay.conf";

/// Writes all results. Returns the edits that are proposed.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn write(
    source: &Source,
    summary: &Summary<'_>,
    out: &Path,
    journal: Option<&Journal>,
) -> Result<Vec<Edit>, String> {
    let (edits, kernel) = proposals(source, summary, journal);
    let unit = out.join("nginx.service.d");
    std::fs::create_dir_all(&unit).map_err(|e| format!("{}: {e}", unit.display()))?;
    let main = source.view().main;
    let mut files = vec![
        ("tuned.conf", patch::apply(source.files.bytes(main), main, &edits)),
        ("tuned.patch", unified_diff(source, &edits).into()),
        ("result.json", format!("{:#}\n", summary.json()).into()),
        ("report.html", summary.html().into()),
        ("rejected.md", summary.rejected().into()),
        ("nginx.service.d/forebay.conf", service::unit(source, &edits).into()),
    ];
    if !kernel.is_empty() {
        files.push((KERNEL, kernel.into()));
    }
    for (name, bytes) in files {
        let path = out.join(name);
        std::fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(edits)
}

/// Returns the edits of all lines that are proposed, and the lines for the kernel.
fn proposals(source: &Source, summary: &Summary<'_>, journal: Option<&Journal>) -> (Vec<Edit>, String) {
    let mut edits = Vec::new();
    let mut kernel = String::new();
    for line in summary.report.lines.iter().filter(|l| l.kept && summary.report.proven) {
        let (_, changes) = &summary.active[line.knob].levels[usize::from(line.level) - 1];
        edits.extend(explained(&source.files, changes, &summary.reason(line)));
        if summary.active[line.knob].knob.place == Place::Sysctl {
            kernel.push_str(&kernel_lines(summary, line, journal));
        }
    }
    (edits, kernel)
}

/// Returns a kernel setting that was kept, with its reason and its old value.
fn kernel_lines(summary: &Summary<'_>, line: &Line, journal: Option<&Journal>) -> String {
    let (text, _) = &summary.active[line.knob].levels[usize::from(line.level) - 1];
    let setting = text.split(';').next().unwrap_or_default();
    let name = setting.split(" = ").next().unwrap_or_default();
    let old = journal.and_then(|j| j.get(name).ok()).unwrap_or_default();
    format!("# {}; was {old}\n{setting}\n", summary.reason(line))
}

/// Returns the changes of all files as `patch -p0` takes them.
fn unified_diff(source: &Source, edits: &[Edit]) -> String {
    let mut diff = String::new();
    for (path, new) in patch::changed(source, edits) {
        let old = std::fs::read(&path).unwrap_or_default();
        let (old, new) =
            (String::from_utf8_lossy(&old).into_owned(), String::from_utf8_lossy(&new).into_owned());
        let name = path.display().to_string();
        diff.push_str(
            &similar::TextDiff::from_lines(&old, &new).unified_diff().header(&name, &name).to_string(),
        );
    }
    diff
}
