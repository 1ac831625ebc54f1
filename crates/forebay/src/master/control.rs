//! Answers to clients of the control API.

use super::{Ending, Master};
use crate::control_api::{Answer, Control, Facts, Process, Question, Wish};

impl Master {
    /// Gives the master the control API that it was started with.
    pub(crate) fn with_control(mut self, control: Option<Control>) -> Master {
        self.control = control;
        self
    }

    /// Returns `true` while this process takes clients: a new binary has the same socket, and they are for that.
    pub(super) fn accepts_control(&self) -> bool {
        self.new_binary.is_none() && self.ending == Ending::No
    }

    pub(super) fn answer_control(&mut self) {
        let accepting = self.accepts_control();
        let questions = self.control.as_mut().map(|control| control.act(accepting)).unwrap_or_default();
        for question in questions {
            self.answer(question);
        }
    }

    fn answer(&mut self, question: Question) {
        let answer = match question.wish {
            Wish::Nginx => Answer::Facts(Facts {
                pid: std::process::id(),
                generation: self.generations,
                loaded: self.loaded,
            }),
            Wish::Processes => Answer::Processes(self.processes()),
            Wish::Config => Answer::Config(self.state.files.clone()),
            Wish::Reload => return self.reload_for(question),
        };
        question.answer(answer);
    }

    fn processes(&self) -> Vec<Process> {
        let process = |child: &super::Child| Process { pid: child.pid.as_raw(), exiting: child.leaving };
        self.children.iter().map(process).collect()
    }

    /// Reloads as HUP does. The client gets its answer when the worker uses the configuration, or it is refused.
    fn reload_for(&mut self, question: Question) {
        let refuse = |question: Question, text: &str| {
            question.answer(Answer::NotReloaded(vec![format!("[emerg] {text}")]));
        };
        if self.ending != Ending::No {
            return refuse(question, "the server is ending");
        }
        if self.new_binary.is_some() {
            return refuse(question, "a new binary is being tried");
        }
        self.log.notice("reload by the control API, reconfiguring");
        self.no_accept = false;
        let result = self.reconfigure();
        let lines = std::mem::take(&mut self.heard);
        match (result, &mut self.control) {
            (Ok(()), Some(control)) => control.given(self.generations, lines, question),
            (Ok(()), None) => {}
            (Err(reason), _) if lines.is_empty() => refuse(question, &reason),
            (Err(_), _) => question.answer(Answer::NotReloaded(lines)),
        }
    }

    /// Removes the socket file, unless another master has the socket too.
    pub(super) fn close_control(&self) {
        let shared = self.new_binary.is_some() || self.predecessor().is_some();
        if let Some(control) = self.control.as_ref().filter(|_| !shared) {
            control.unlink();
        }
    }
}
