//! Facts about the machine, its disks, the running server and the certificates, for the rules.

pub(crate) mod acme;
pub(crate) mod disk;
pub(crate) mod host;
pub(crate) mod live;

pub use host::{Host, version_of_nginx};

use crate::scene::Scene;
use forebay_conf::error::Error;
use forebay_conf::files::Files;
use forebay_core::config::{Config, Environment};
use forebay_sys::files;
use std::path::{Path, PathBuf};

/// Reads a configuration of this environment with all front ends of the program; see [`forebay_core::config::load_all`].
pub type Load = fn(&Environment, &mut Files) -> (Option<Config>, Vec<Error>);

/// Parts of the machine to look at, besides the configuration.
pub struct Look<'a> {
    /// Places of the configuration.
    pub environment: &'a Environment,
    /// The machine, and name servers.
    pub machine: bool,
    /// Files of kernel settings; those of the machine if there are none.
    pub sysctl: &'a [PathBuf],
    /// Reads the configuration, for what it orders by ACME.
    pub load: Load,
}

/// Returns the directory of the configuration.
pub fn directory_of(environment: &Environment) -> PathBuf {
    environment.conf_path.parent().map_or_else(|| environment.prefix.clone(), Into::into)
}

/// Looks at the machine, the running server and name servers.
///
/// # Errors
/// A file of kernel settings cannot be read.
pub fn look_at_host(scene: &Scene<'_>, look: &Look<'_>) -> Result<Host, String> {
    let Look { environment, sysctl, .. } = *look;
    let prefix = &environment.prefix;
    let mut host = if look.machine { Host::detect() } else { Host::default() };
    if look.machine {
        host.disks = disk::Disks::find(scene, prefix);
        host.certificates = host::Certificate::find(scene, &directory_of(environment));
        host.running = live::Running::find(scene, prefix);
        host.acme = acme::Acme::of(scene, environment, look.load);
        host.acme.look(scene, host.running.is_some());
        if sysctl.is_empty() {
            host.take_own_sysctl_files(Path::new("/etc"));
        }
    }
    for file in sysctl {
        let text = files::read_text(file, files::MAX_WHOLE)
            .map_err(|e| format!("cannot read {}: {e}", file.display()))?;
        host.take_sysctl_file(file, &text);
    }
    Ok(host)
}
