//! Files, values of the ConfigMap and objects of the Gateway API that the process that serves has refused, and that are set aside.

use super::outbox::Files;
use crate::suspects::Suspects;
use forebay_k8s::Options;
use forebay_k8s::blame::line_of;
use forebay_k8s::closed;
use forebay_k8s::objects::ConfigMap;
use forebay_k8s::translate::{MAIN, suspect};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which values that the process refused are tried again: a name may have an address by then.
pub(super) const TRY_AGAIN: Duration = Duration::from_secs(600);

/// A file that was refused, which is replaced by the last one that was applied.
#[derive(Debug)]
struct Quarantined {
    refused: Arc<[u8]>,
    instead: Option<Arc<[u8]>>,
    reason: String,
}

/// Result of the search for something that can be set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aside {
    /// Something new is set aside: the next configuration differs.
    Found,
    /// The search has found no cause, or one that is set aside already.
    Nothing,
}

/// Refused things that are set aside.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    pub(super) quarantined: QuarantinedFiles,
    /// Time at which the process refused a value of the ConfigMap last, until it is tried again.
    pub(super) key_refused: Option<Instant>,
    /// The same for objects of the Gateway API.
    pub(super) objects_refused: Option<Instant>,
    pub(super) suspects: Suspects,
}

/// A refusal of a configuration by the process.
#[derive(Clone, Copy)]
pub(super) struct Refusal<'a> {
    /// Files of the configuration.
    pub(super) files: &'a Files,
    /// Words of the process, with file and line.
    pub(super) reason: &'a str,
}

impl Refusals {
    /// Forgets what only held until a configuration would be applied.
    pub(super) fn applied(&mut self) {
        self.suspects.clear();
    }

    /// Returns `true` once each time that refused values of the ConfigMap are to be tried again.
    pub(super) fn values_are_due(&mut self) -> bool {
        is_over(&mut self.key_refused)
    }

    /// Returns `true` once each time that objects of the Gateway API are to be tried again.
    pub(super) fn objects_are_due(&mut self) -> bool {
        is_over(&mut self.objects_refused)
    }

    /// Returns the key of the ConfigMap that is suspected of a refusal.
    pub(super) fn suspect(
        &mut self,
        map: &ConfigMap,
        refusal: Refusal<'_>,
        options: &Options,
    ) -> Option<&'static str> {
        let Refusal { files, reason } = refusal;
        let place = place(reason).and_then(|(path, line)| Some((path, line_of(files.get(path)?, line))));
        let shared = place.as_ref().is_none_or(|(path, _)| is_main(path) || path.ends_with("hosts/_.conf"));
        let line = place.map(|(_, line)| line).unwrap_or_default();
        let guess = shared && !self.suspects.in_vain(map);
        suspect(map, options, &line, reason, guess)
    }
}

fn is_over(since: &mut Option<Instant>) -> bool {
    since.take_if(|at| at.elapsed() >= TRY_AGAIN).is_some()
}

/// Files that are set aside.
#[derive(Debug, Default)]
pub(super) struct QuarantinedFiles(HashMap<Arc<Path>, Quarantined>);

impl QuarantinedFiles {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the files with the reasons.
    pub(super) fn reasons(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.0.iter().map(|(path, q)| (&**path, q.reason.as_str()))
    }

    /// Replaces files that were refused by the last ones that were applied, as long as they are the same as those refused.
    pub(super) fn replace(&mut self, files: &mut Files) {
        self.0.retain(|path, q| files.get(path) == Some(&q.refused));
        for (path, q) in &self.0 {
            match &q.instead {
                Some(instead) => files.insert(path.clone(), instead.clone()),
                // The file that includes it names it: it has to be there.
                None => files.insert(path.clone(), Arc::from(&b""[..])),
            };
        }
    }

    /// Sets a file aside in favour of the last one that was applied.
    pub(super) fn add(
        &mut self,
        path: &Arc<Path>,
        refusal: Refusal<'_>,
        applied: &Files,
        log: &dyn Fn(&str),
    ) -> Aside {
        let Refusal { files, reason } = refusal;
        let Some(refused) = files.get(path).filter(|_| !is_main(path)) else { return Aside::Nothing };
        log(&format!("{} is set aside: {reason}", path.display()));
        // The process has the content that it refused: the next delivery has to differ from it. Requests for a host that never worked
        // must not reach the server of a wildcard or of all hosts.
        let instead = applied.get(path).filter(|applied| *applied != refused).cloned();
        let instead = instead.or_else(|| closed::closed(path, refused).filter(|closed| closed != refused));
        match self.0.get_mut(path) {
            // The server refused the stand-in of the file, too.
            Some(aside) if aside.instead.as_ref() == Some(refused) => aside.instead = None,
            Some(_) => return Aside::Nothing,
            None => {
                let aside = Quarantined { refused: refused.clone(), instead, reason: reason.to_owned() };
                self.0.insert(path.clone(), aside);
            }
        }
        Aside::Found
    }
}

/// Returns `true` for the file that includes all others, which cannot be left out.
pub(super) fn is_main(path: &Path) -> bool {
    path == Path::new(MAIN)
}

/// Returns `true` for a file that all Gateways share.
pub(super) fn is_of_gateways(path: &Path) -> bool {
    path.starts_with("gateways")
}

/// Returns the file and the line that an error of the configuration names at its end: `TEXT in PATH:LINE`.
pub(super) fn place(reason: &str) -> Option<(&Path, usize)> {
    let (_, place) = reason.trim_end().rsplit_once(" in ")?;
    let (path, line) = place.rsplit_once(':')?;
    Some((Path::new(path), line.parse().ok()?))
}
