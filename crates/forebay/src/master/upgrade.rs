//! Upgrade of the program: a new binary with the same sockets (nginx: USR2).

use super::{Ending, Master, end_line};
use crate::master_log::{errno, failed};
use crate::{control_api, service_manager, succession, title, wire};
use forebay_conf::error::Level;
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;

impl Master {
    /// Returns `false` while another binary is being tried. As in nginx, also if the master was not started as a daemon:
    /// the process that started it would take its end for that of the server.
    ///
    /// Unlike nginx: a service manager that gets messages learns which process is the main one.
    pub(super) fn may_change_binary(&self) -> bool {
        self.new_binary.is_none() && (self.starter().is_none() || self.reports.are_followed())
    }

    pub(super) fn change_binary(&mut self) {
        if !self.may_change_binary() {
            self.log.write(
                Level::Crit,
                "the changing binary signal is ignored: you should shutdown or terminate before either old or \
                 new binary's process",
            );
            return;
        }
        self.log.notice("changing binary");
        let mut old_name = self.state.pid.clone().into_os_string();
        old_name.push(".oldbin");
        let old_name = PathBuf::from(old_name);
        if let Err(e) = std::fs::rename(&self.state.pid, &old_name) {
            let call = format!("rename() {} to {}", self.state.pid.display(), old_name.display());
            self.log.alert(&format!("{call} failed ({})", errno(&e)));
            return;
        }
        self.pid_file = old_name;
        match self.start_binary() {
            Ok(pid) => {
                self.log.notice(&format!("start new binary process {pid}"));
                self.new_binary = Some(pid);
            }
            Err(e) => {
                let program = self.start.arguments.first().map(PathBuf::from).unwrap_or_default();
                self.log.alert(&failed("execve()", &program, &e));
                self.restore_pid_file();
            }
        }
    }

    fn start_binary(&self) -> io::Result<Pid> {
        let (program, arguments) = self.start.arguments.split_first().ok_or(io::ErrorKind::NotFound)?;
        let (variable, sockets) = self.state.listeners.to_inherit();
        let inheritable = |flags| {
            for socket in &sockets {
                let _ = rustix::io::fcntl_setfd(socket, flags);
            }
        };
        inheritable(rustix::io::FdFlags::empty());
        let mut command = Command::new(program);
        command.args(arguments).env("NGINX", variable).env_remove(title::ARGUMENTS);
        // Without the socket the connections of one program over QUIC are lost where the other gets their datagrams.
        let pair = self.pair_for_binary();
        if let Some((pair, number)) = &pair {
            let _ = rustix::io::fcntl_setfd(pair, rustix::io::FdFlags::empty());
            command.env(succession::VARIABLE, number);
        } else {
            command.env_remove(succession::VARIABLE);
        }
        if let Some(control) = &self.control {
            let (socket, number) = control.to_inherit();
            control_api::inheritable(socket, rustix::io::FdFlags::empty());
            command.env(control_api::VARIABLE, number);
        } else {
            command.env_remove(control_api::VARIABLE);
        }
        for name in service_manager::OWN_VARIABLES {
            command.env_remove(name);
        }
        let child = command.spawn();
        inheritable(rustix::io::FdFlags::CLOEXEC);
        if let Some(control) = &self.control {
            control_api::inheritable(control.to_inherit().0, rustix::io::FdFlags::CLOEXEC);
        }
        Ok(Pid::from_raw(i32::try_from(child?.id()).map_err(io::Error::other)?))
    }

    /// Connects the worker with that of a new binary. Returns the socket of the latter with its number.
    fn pair_for_binary(&self) -> Option<(OwnedFd, String)> {
        let worker = self.children.iter().rev().find_map(|child| child.control.as_ref())?;
        let (ours, theirs, number) = self.succession.pair_for_binary().ok()?;
        wire::send_succeed(worker, ours.as_fd()).ok()?;
        Some((theirs, number))
    }

    pub(super) fn new_binary_ended(&mut self, status: &WaitStatus) {
        let (level, text) = end_line(status);
        let pid = self.new_binary.take().map_or(0, Pid::as_raw);
        self.log.write(level, &format!("new binary process {pid} {text}"));
        self.restore_pid_file();
        if self.no_accept && self.ending == Ending::No {
            self.no_accept = false;
            self.spawn();
        }
    }

    fn restore_pid_file(&mut self) {
        if self.pid_file == self.state.pid {
            return;
        }
        if let Err(e) = std::fs::rename(&self.pid_file, &self.state.pid) {
            let call = format!("rename() {} back to {}", self.pid_file.display(), self.state.pid.display());
            self.log.alert(&format!("{call} failed ({})", errno(&e)));
            return;
        }
        self.pid_file = self.state.pid.clone();
    }
}
