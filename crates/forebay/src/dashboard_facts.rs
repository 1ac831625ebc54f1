//! Facts for the dashboard that the server itself does not know: the changes of a reload, the certificates of files, and the
//! warnings of `forebay doctor`. A thread of its own finds them out, so that no reload waits for it. Without a location that
//! shows them there is none; `prometheus names=ingress-nginx` needs the certificates alone.

use crate::changes::{Recorded, between};
use crate::doctor;
use forebay_conf::files::Files;
use forebay_core::config::{Config, Environment};
use forebay_modules::parts::facts::{self, FileCertificate};
use forebay_modules::parts::shown_facts;
use forebay_net::tls::{pem, verify};
use forebay_sys::printable::printable;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Most warnings that are shown.
const MOST_WARNINGS: usize = 50;
/// Most names of a certificate that are shown.
const MOST_NAMES: usize = 20;

/// Configuration that is in effect.
struct Loaded {
    environment: Environment,
    files: Arc<Files>,
    certificate_files: Vec<PathBuf>,
    /// Number of the configuration.
    generation: u64,
    /// Not only the certificates are shown.
    all: bool,
}

/// Way to the thread, which begins with the first configuration that shows the facts and ends when this is dropped.
#[derive(Default)]
pub(crate) struct DashboardFacts(Option<Sender<Loaded>>);

impl DashboardFacts {
    /// Sends a configuration that has been loaded to the thread, with its files.
    pub(crate) fn loaded(&mut self, config: &Config, environment: &Environment, files: &Arc<Files>) {
        let (all, certificates) = shown_facts(config);
        if !all && !certificates {
            self.0 = None;
            return;
        }
        let sender = self.0.get_or_insert_with(|| {
            let (sender, receiver) = channel();
            // Without the thread the page lacks some facts.
            let _ = std::thread::Builder::new().name("facts".into()).spawn(move || serve(&receiver));
            sender
        });
        let _ = sender.send(Loaded {
            environment: environment.clone(),
            files: files.clone(),
            certificate_files: config.certificate_files.clone(),
            generation: facts::number(),
            all,
        });
    }

    /// Shows that a configuration was refused.
    pub(crate) fn refused(reason: String) {
        facts::note_reload(facts::number(), Err(reason));
    }
}

fn serve(receiver: &Receiver<Loaded>) {
    let mut former: Option<Loaded> = None;
    while let Ok(loaded) = receiver.recv() {
        // Certificates that have been replaced meanwhile are of no interest; changes are.
        let loaded = if loaded.all { loaded } else { receiver.try_iter().last().unwrap_or(loaded) };
        if let Some(former) = former.as_ref().filter(|former| former.all && loaded.all) {
            show_changes(former, &loaded);
        }
        show_facts(&loaded);
        former = Some(loaded);
    }
}

fn show_changes(former: &Loaded, now: &Loaded) {
    // Only the record is kept: the tree of a large configuration is many times as large.
    let read = |loaded: &Loaded| Recorded::new(&loaded.environment, &loaded.files.to_bytes());
    if let (Some(mut before), Some(mut after)) = (read(former), read(now)) {
        let changes = between(&mut before, &mut after, &now.certificate_files);
        facts::note_reload(now.generation, Ok(changes));
    }
}

fn show_facts(loaded: &Loaded) {
    let Ok(mut files) = Files::from_bytes(&loaded.files.to_bytes()) else { return };
    facts::set_certificates(certificates(&mut files, &loaded.certificate_files));
    if !loaded.all {
        return;
    }
    let mut warnings = doctor::of_configuration(&loaded.environment, &mut files);
    let left_out = warnings.len().saturating_sub(MOST_WARNINGS);
    warnings.truncate(MOST_WARNINGS);
    facts::set_warnings(warnings, left_out);
}

/// Reads the certificates among the files of a configuration, each once; keys are among these files, too.
fn certificates(files: &mut Files, paths: &[PathBuf]) -> Vec<FileCertificate> {
    let mut paths = paths.to_vec();
    paths.sort();
    paths.dedup();
    let read = |path: PathBuf| {
        let (_, bytes) = files.read(&path).ok()?;
        let chain = pem::certificates(bytes);
        let leaf = chain.first()?;
        let (from, until) = verify::validity(leaf)?;
        let names = verify::names(leaf);
        let names = names.iter().take(MOST_NAMES).map(printable).collect();
        Some(FileCertificate { file: path.display().to_string(), names, from, until })
    };
    paths.into_iter().filter_map(read).collect()
}
