//! `forebay ingress audit`: what of each Ingress works, differs and is refused.

use super::{AuditArgs, Format, complaints, read, severity, values};
use forebay_cluster::{Api, controller};
use forebay_k8s::gateway::Complaint;
use forebay_k8s::objects::{ConfigMap, Metadata, Object};
use forebay_k8s::{Key, Kind, Objects, Options, Problem, Severity, Translator, annotations};
use forebay_terminal::print;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Reasons of problems that come from objects that are not among the files.
const ABSENT: &[&str] = &["BackendMissing", "CertificateMissing", "ReferenceMissing", "CanaryAlone"];

/// The same for objects of the Gateway API.
const ABSENT_OF_GATEWAYS: &[&str] = &["BackendNotFound", "InvalidCertificateRef", "InvalidCACertificateRef"];

/// What is said of one Ingress.
struct Report {
    key: Key,
    place: String,
    problems: Vec<Problem>,
}

impl Report {
    fn worst(&self) -> Option<Severity> {
        self.problems.iter().map(|p| p.severity).filter(|s| *s != Severity::Ignored).max()
    }

    fn verdict(&self) -> &'static str {
        match self.worst() {
            None | Some(Severity::Ignored) => "works",
            Some(Severity::Differs) => "differs",
            Some(Severity::Refused) => "refused",
        }
    }
}

/// Counts of the summary.
struct Counts {
    ingresses: usize,
    annotations: usize,
    snippets: usize,
    works: usize,
    differs: usize,
    refused: usize,
}

/// Runs the audit. The exit code is 0 if all works as it is, and 1 if something differs or is refused.
pub(super) fn run(args: &AuditArgs) -> Result<u8, String> {
    let mut options = args.controller.options()?;
    let mut found =
        if args.cluster { cluster(args.kubeconfig.as_deref(), &options)? } else { read::read(&args.files)? };
    let mut notes = prepare(args, &mut found.objects, &mut options)?;
    let made = Translator::new().translate(&found.objects, &options);
    let (mut reports, mut general) = (Vec::new(), Vec::new());
    for (key, _) in found.objects.ingresses() {
        let served = made.accepted.iter().any(|a| a.key == *key);
        let place = found.places.get(&format!("Ingress {key}")).cloned().unwrap_or_default();
        if !served {
            notes.push(format!("{place}: Ingress {key} is of another class"));
            continue;
        }
        reports.push(Report { key: key.clone(), place, problems: Vec::new() });
    }
    let mut gateways = complaints(&made);
    gateways.retain(|c| args.cluster || !ABSENT_OF_GATEWAYS.contains(&c.reason.as_str()));
    for problem in made.problems.into_iter().filter(|p| args.cluster || !ABSENT.contains(&p.reason)) {
        match reports.iter_mut().find(|r| problem.kind == Kind::Ingress && r.key == problem.key) {
            Some(report) if !report.problems.contains(&problem) => report.problems.push(problem),
            Some(_) => {}
            None => general.push(problem),
        }
    }
    notes.extend(found.unread.into_iter().map(|text| format!("not read: {text}")));
    for (file, skipped) in found.skipped.iter().filter(|(_, s)| !s.other_kind) {
        notes.push(format!("{file}:{}: skipped: {}", skipped.line, skipped.reason));
    }
    let counts = count(&reports, &found.objects, &options);
    match args.format {
        Format::Text => {
            print(text(&reports, Remarks { general: &general, gateways: &gateways }, &notes, &counts))
        }
        Format::Json => print(format!(
            "{:#}\n",
            to_json(&reports, Remarks { general: &general, gateways: &gateways }, &notes, &counts)
        )),
    }
    let clean =
        counts.differs + counts.refused == 0 && general.iter().all(|p| p.severity == Severity::Ignored);
    Ok(u8::from(!clean || !gateways.is_empty()))
}

/// Reads the objects of a cluster.
fn cluster(kubeconfig: Option<&Path>, options: &Options) -> Result<read::Found, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    let look = async { controller::look(&Api::connect(kubeconfig, None).await?, options).await };
    let seen = runtime.block_on(look).map_err(|e| format!("cannot read the cluster: {e}"))?;
    let places = seen.objects.ingresses().map(|(key, _)| (format!("Ingress {key}"), "cluster".to_owned()));
    Ok(read::Found {
        places: places.collect(),
        objects: seen.objects,
        unread: seen.unread,
        ..read::Found::default()
    })
}

/// Sets the options of a cluster with ingress-nginx, and those of its chart.
fn prepare(args: &AuditArgs, objects: &mut Objects, options: &mut Options) -> Result<Vec<String>, String> {
    if args.controller.ingress_class.is_none() {
        options.ingress_class = "nginx".into();
    }
    if args.controller.controller_class.is_none() {
        options.controller_class = "k8s.io/ingress-nginx".into();
    }
    options.watch_ingress_without_class = true;
    if options.resolvers.is_empty() {
        // A cluster has some.
        options.resolvers.push("127.0.0.53".into());
    }
    if let Some(path) = &args.values {
        let text = read::text(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let values = forebay_k8s::objects::yaml(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut notes = values::apply(&values, objects, options);
        notes.extend(super::carried::over(&values));
        return Ok(notes);
    }
    if options.config_map.is_none() {
        let data = [("allow-snippet-annotations", "true"), ("annotations-risk-level", "Critical")];
        let data = data.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let metadata = Metadata { name: "audit".into(), namespace: "audit".into(), ..Metadata::default() };
        objects.apply(Object::ConfigMap(Arc::new(ConfigMap { metadata, data })));
        options.config_map = Some(Key::new("audit", "audit"));
        return Ok(vec![
            "without --values, snippets are judged as if allow-snippet-annotations were true".into(),
        ]);
    }
    Ok(Vec::new())
}

fn count(reports: &[Report], objects: &Objects, options: &Options) -> Counts {
    let (mut names, mut snippets) = (BTreeSet::new(), 0);
    for report in reports {
        let Some(ingress) = objects.ingress(&report.key) else { continue };
        for full in ingress.object.metadata.annotations.keys() {
            let Some((prefix, name)) = full.split_once('/') else { continue };
            let ours = prefix == options.annotations_prefix || prefix == annotations::PREFIX;
            if let Some(row) = annotations::row(name).filter(|_| ours) {
                names.insert(row.name);
                snippets += usize::from(row.name.ends_with("-snippet"));
            }
        }
    }
    let of = |verdict: &str| reports.iter().filter(|r| r.verdict() == verdict).count();
    Counts {
        ingresses: reports.len(),
        annotations: names.len(),
        snippets,
        works: of("works"),
        differs: of("differs"),
        refused: of("refused"),
    }
}

/// What a report says about other objects than Ingresses.
#[derive(Clone, Copy)]
struct Remarks<'a> {
    general: &'a [Problem],
    /// Complaints about the Gateway API.
    gateways: &'a [Complaint],
}

fn text(reports: &[Report], remarks: Remarks<'_>, notes: &[String], counts: &Counts) -> String {
    let mut out = String::new();
    for note in notes {
        out.push_str(&format!("note: {note}\n"));
    }
    for problem in remarks.general {
        out.push_str(&format!("{}: {}\n", problem.severity.as_str(), problem.render()));
    }
    for complaint in remarks.gateways {
        out.push_str(&format!("{}: {}\n", severity(complaint).as_str(), complaint.text));
    }
    for report in reports.iter().filter(|r| !r.problems.is_empty()) {
        out.push_str(&format!("\n{} Ingress {}: {}\n", report.place, report.key, report.verdict()));
        for problem in &report.problems {
            let lines = problem.render();
            // The name of the object is in the head line.
            let head = format!("Ingress {}: ", report.key);
            let short = lines.strip_prefix(&head).unwrap_or(&lines).replace('\n', "\n    ");
            out.push_str(&format!("  {}: {short}\n", problem.severity.as_str()));
        }
    }
    let c = counts;
    out.push_str(&format!(
        "\n{}, {}, {}: {} {} as {}",
        plural(c.ingresses, "Ingress", "Ingresses"),
        plural(c.annotations, "annotation", "annotations"),
        plural(c.snippets, "snippet", "snippets"),
        c.works,
        if c.works == 1 { "works" } else { "work" },
        if c.works == 1 { "it is" } else { "they are" },
    ));
    if c.differs > 0 {
        out.push_str(&format!("; {} {}", c.differs, if c.differs == 1 { "differs" } else { "differ" }));
    }
    if c.refused > 0 {
        out.push_str(&format!(
            "; {} {} refused in part",
            c.refused,
            if c.refused == 1 { "is" } else { "are" }
        ));
    }
    out.push('\n');
    out
}

fn plural(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

fn to_json(reports: &[Report], remarks: Remarks<'_>, notes: &[String], c: &Counts) -> serde_json::Value {
    let problem = |p: &Problem| {
        json!({
            "kind": p.kind.name(), "namespace": p.key.namespace, "name": p.key.name, "field": p.field, "severity": p.severity.as_str(),
            "reason": p.reason, "text": p.text, "line": p.place.map(|(l, _)| l), "column": p.place.map(|(_, c)| c),
        })
    };
    let complaint =
        |c: &Complaint| json!({"severity": severity(c).as_str(), "reason": c.reason, "text": c.text});
    let ingresses: Vec<_> = reports
        .iter()
        .map(|r| {
            let problems: Vec<_> = r.problems.iter().map(problem).collect();
            json!({"namespace": r.key.namespace, "name": r.key.name, "place": r.place, "verdict": r.verdict(), "problems": problems})
        })
        .collect();
    json!({
        "summary": {
            "ingresses": c.ingresses, "annotations": c.annotations, "snippets": c.snippets, "works": c.works, "differs": c.differs,
            "refused": c.refused,
        },
        "ingresses": ingresses,
        "gateways": remarks.gateways.iter().map(complaint).collect::<Vec<_>>(),
        "problems": remarks.general.iter().map(problem).collect::<Vec<_>>(),
        "notes": notes,
    })
}
