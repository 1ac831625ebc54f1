//! Facts about the machine, its disks, the running server and the certificates, for the rules.

pub(crate) mod acme;
pub(crate) mod disk;
pub(crate) mod host;
pub(crate) mod live;

pub use host::{Home, Host, version_of_nginx};

use crate::scene::Scene;
use forebay_acme::Order;
use forebay_conf::error::Error;
use forebay_conf::files::Files;
use forebay_core::config::Environment;
use forebay_sys::files;
use std::path::{Path, PathBuf};

/// Reads the configuration of this environment with all front ends of the program, which doctor does not depend on. Returns what it
/// orders by ACME, and its errors.
pub type ReadOrders = fn(&Environment, &mut Files) -> (Vec<Order>, Vec<Error>);

/// Parts of the machine to look at, besides the configuration.
pub struct Look<'a> {
    /// Places of the configuration.
    pub environment: &'a Environment,
    /// The machine, and name servers.
    pub machine: bool,
    /// The server runs on this machine, whatever else is known.
    pub is_here: bool,
    /// Files of kernel settings; those of the machine if there are none.
    pub sysctl: &'a [PathBuf],
    /// Reads what the configuration orders by ACME.
    pub read_orders: ReadOrders,
}

/// Returns the directory of the configuration.
pub fn directory_of(environment: &Environment) -> PathBuf {
    environment.conf_path.parent().map_or_else(|| environment.prefix.clone(), Into::into)
}

/// Looks at the machine, the running server and name servers, if the server of the configuration runs here. Otherwise only
/// certificates beside the configuration are read.
///
/// # Errors
/// A file of kernel settings cannot be read.
pub fn look_at_host(scene: &Scene<'_>, look: &Look<'_>) -> Result<Host, String> {
    let mut host = if look.machine { looked_at(scene, look) } else { Host::default() };
    if host.is_here() && look.sysctl.is_empty() {
        host.take_own_sysctl_files(Path::new("/etc"));
    }
    for file in look.sysctl {
        let text = files::read_text(file, files::MAX_WHOLE)
            .map_err(|e| format!("cannot read {}: {e}", file.display()))?;
        host.take_sysctl_file(file, &text);
    }
    Ok(host)
}

/// Returns the facts of this machine that say something about the configuration.
fn looked_at(scene: &Scene<'_>, look: &Look<'_>) -> Host {
    let environment = look.environment;
    let (conf, prefix, dir) = (&environment.conf_path, &environment.prefix, directory_of(environment));
    let is_known = look.is_here || host::is_usual_place(conf);
    let running = live::Running::find(scene, prefix).filter(|r| is_known || r.runs(conf));
    let certificates = host::Certificate::find(scene, &dir);
    if !is_known && running.is_none() {
        let is_beside = |n: usize| dir.join(scene.arg(n, 0)).starts_with(&dir);
        let certificates = certificates.into_iter().filter(|(n, _)| is_beside(*n)).collect();
        return Host { home: Home::Elsewhere, certificates, now: host::now(), ..Host::default() };
    }
    let mut host = Host { running, certificates, ..Host::detect() };
    host.disks = disk::Disks::find(scene, prefix);
    host.acme = acme::Acme::of(scene, environment, look.read_orders);
    host.acme.look(scene, host.running.is_some());
    host
}
