//! Reports of the start, of reloads and of the end: to the service manager, and to commands that wait for a reload.

use crate::reload::{Askers, Outcome};
use crate::service_manager::ServiceManager;
use std::path::Path;

/// Reports, and what they wait for.
#[derive(Debug)]
pub(crate) struct Reports {
    manager: ServiceManager,
    /// The server has been reported as ready once.
    serving: bool,
    /// Commands that wait for the reload which reads its configuration now.
    asking: Askers,
    /// Number of a configuration that is not in effect yet, and the commands that wait for it. The first one is that of the
    /// start.
    awaited: Option<(u64, Askers)>,
}

impl Reports {
    /// Creates the reports of a server that starts. Its first configuration, of number 1 or higher, is waited for.
    pub(crate) fn new(manager: ServiceManager) -> Reports {
        Reports { manager, serving: false, asking: Askers::default(), awaited: Some((1, Askers::default())) }
    }

    /// Returns `true` if a service manager follows the process.
    pub(crate) fn are_followed(&self) -> bool {
        self.manager.is_there()
    }

    /// Begins a reload.
    pub(crate) fn reading(&mut self, pid_file: &Path) {
        self.asking.extend(Askers::beside(pid_file));
        if self.serving {
            self.manager.reloading();
        }
    }

    /// Ends a reload whose configuration was refused before the worker had it.
    pub(crate) fn refused(&mut self, reason: &str) {
        let asking = std::mem::take(&mut self.asking);
        self.report_refusal(asking, reason);
    }

    /// Waits for a configuration that has been given to the worker.
    pub(crate) fn given(&mut self, generation: u64) {
        let mut asking = std::mem::take(&mut self.asking);
        if let Some((_, before)) = self.awaited.take() {
            // A newer configuration has their changes too.
            asking.extend(before);
        }
        self.awaited = Some((generation, asking));
    }

    /// Reports that the worker uses a configuration. `status` is the sentence for people.
    pub(crate) fn applied(&mut self, generation: u64, status: &str) {
        let Some((_, asking)) = self.awaited.take_if(|(awaited, _)| *awaited <= generation) else { return };
        self.serving = true;
        self.manager.ready(status);
        asking.answer(&Ok(generation));
    }

    /// Reports that the worker could not use what it was given.
    pub(crate) fn failed(&mut self, reason: &str) {
        if !self.serving {
            self.manager.status(&format!("Starting; the last try failed: {reason}"));
            return;
        }
        let asking = self.awaited.take().map(|(_, asking)| asking).unwrap_or_default();
        self.report_refusal(asking, reason);
    }

    fn report_refusal(&mut self, asking: Askers, reason: &str) {
        if self.serving {
            self.manager
                .ready(&format!("Serving with the former configuration; the new one was refused: {reason}"));
        }
        let outcome: Outcome = Err(reason.to_owned());
        asking.answer(&outcome);
    }

    /// Reports the end of the server. `successor` is the process that goes on instead, if this one knows it.
    pub(crate) fn ending(&self, successor: Option<i32>) {
        match successor {
            Some(pid) => self.manager.hand_to(pid),
            None => self.manager.stopping(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    /// A command that waits beside `nginx.pid`.
    fn asker(directory: &Path, number: u32) -> UnixDatagram {
        let socket = UnixDatagram::bind(directory.join(format!("nginx.pid.reload.{number}"))).expect("bind");
        socket.set_nonblocking(true).expect("option");
        socket
    }

    fn answer(socket: &UnixDatagram) -> Option<String> {
        let mut buffer = [0; 99];
        let count = socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..count]).into_owned())
    }

    #[test]
    fn commands_get_the_result_of_the_reload_that_read_their_changes() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let pid_file = directory.path().join("nginx.pid");
        let mut reports = Reports::new(ServiceManager::default());
        reports.applied(1, "");
        let first = asker(directory.path(), 1);
        reports.reading(&pid_file);
        reports.given(2);
        // Another one comes while the worker has not answered, and its configuration is bad.
        drop(std::fs::remove_file(directory.path().join("nginx.pid.reload.1")));
        let second = asker(directory.path(), 2);
        reports.reading(&pid_file);
        reports.refused("bad");
        assert_eq!((answer(&first), answer(&second)), (None, Some("-bad".into())));
        reports.applied(1, "");
        assert_eq!(answer(&first), None, "an older configuration");
        // A worker that died has a successor, which starts with a higher number. The socket's name is gone, so that the
        // answer does not arrive; nothing else waits.
        reports.applied(3, "");
        assert!(reports.awaited.is_none());
    }

    #[test]
    fn a_newer_configuration_answers_for_an_older_one() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let pid_file = directory.path().join("nginx.pid");
        let mut reports = Reports::new(ServiceManager::default());
        reports.applied(1, "");
        let command = asker(directory.path(), 1);
        reports.reading(&pid_file);
        reports.given(2);
        reports.reading(&pid_file);
        reports.given(3);
        reports.applied(2, "");
        assert_eq!(answer(&command), None);
        reports.applied(3, "");
        // The master saw its socket in both reloads.
        assert_eq!((answer(&command), answer(&command)), (Some("+3".into()), Some("+3".into())));
    }

    #[test]
    fn the_socket_of_a_killed_command_is_removed() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("nginx.pid.reload.7");
        drop(UnixDatagram::bind(&path).expect("bind"));
        assert!(path.exists());
        Askers::beside(&directory.path().join("nginx.pid")).answer(&Ok(2));
        assert!(!path.exists());
    }
}
