//! `forebay explain`: the settings in effect with their origins, for the machine, the main level, each server and location; the
//! way of a request through the http block; or the way of a session through the stream block.

mod levels;
mod request;
mod session;
mod values;

use crate::cli::Options;
use crate::master_log::Log;
use crate::origin;
use crate::plan::Plan;
use crate::state;
use forebay_conf::files::Files;
use forebay_conf::tree::Tree;
use forebay_core::config::Config;
use forebay_net::quic::Congestion;
use forebay_sys::cpus;
use forebay_terminal::print;

pub(crate) use request::{Asked, Form, main as request};
pub(crate) use session::Question;

/// One line: a setting, its value and the origin of the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Directive or quantity.
    pub name: String,
    /// Value in effect, as one would write it.
    pub value: String,
    /// `FILE:LINE`, `detected: ...` or `default`.
    pub origin: String,
}

impl Row {
    /// Creates a row.
    pub(crate) fn new(name: &str, value: impl ToString, origin: impl Into<String>) -> Row {
        Row { name: name.to_owned(), value: value.to_string(), origin: origin.into() }
    }
}

/// Prints the settings of a configuration, or the way of the session that is asked for. Returns the exit code. `defaults`: also
/// prints settings of servers and locations that no directive sets.
pub(crate) fn main(options: &Options, defaults: bool, question: Option<&Question>) -> u8 {
    let (environment, paths) = options.places();
    let mut files = Files::disk();
    let Ok((config, _)) = state::read(&environment, &mut files, &Log::default_console()) else { return 1 };
    let tree = origin::tree(&environment, &mut files);
    let text = match question {
        None => Ok(text(&config, &Places { tree: &tree, files: &files }, &paths, defaults)),
        Some(question) => session::text(question, &config, &Places { tree: &tree, files: &files }, defaults),
    };
    match text {
        Ok(text) => {
            print(text);
            0
        }
        Err(why) => {
            eprintln!("forebay explain: {why}");
            1
        }
    }
}

fn text(config: &Config, places: &Places<'_>, paths: &crate::paths::Paths, defaults: bool) -> String {
    let plan = Plan::new(config);
    let mut rows = machine_rows(&plan);
    rows.extend(main_rows(config, &plan, places, paths));
    let mut text = table(&rows);
    for level in levels::levels(places.tree, places.files, defaults) {
        section(&mut text, &level.name, &level.rows);
    }
    if !defaults {
        text.push_str("\nDefaults of servers and locations are left out: forebay explain --defaults\n");
    }
    text
}

/// Adds rows below a title.
fn section(text: &mut String, title: &str, rows: &[Row]) {
    text.push_str(&format!("\n{title}\n"));
    for line in table(rows).lines() {
        text.push_str(&format!("    {}\n", line.trim_end()));
    }
}

/// Finds the places of settings.
struct Places<'a> {
    tree: &'a Tree,
    files: &'a Files,
}

impl Places<'_> {
    /// Returns the setting's place, or `otherwise` when it is in no file.
    fn of(&self, name: &str, otherwise: impl Into<String>) -> String {
        match origin::main_directive(self.tree, name) {
            Some(directive) => origin::place(directive, self.files),
            None => otherwise.into(),
        }
    }

    /// Returns a row with the words as written, or the default.
    fn row(&self, name: &str, default: &str) -> Row {
        let Some(directive) = origin::main_directive(self.tree, name) else {
            return Row::new(name, default, "default");
        };
        let words: Vec<_> = directive.args.iter().map(|word| word.as_str().into_owned()).collect();
        Row::new(name, words.join(" "), origin::place(directive, self.files))
    }
}

fn machine_rows(plan: &Plan) -> Vec<Row> {
    let cpus = &plan.cpus;
    let memory = cpus::detect_memory();
    let limit = memory.source.map_or(memory.limiting.to_owned(), |file| file.display().to_string());
    let quota = cpus.quota.map_or("none".to_owned(), |quota| format!("{quota:.2}"));
    vec![
        Row::new("(CPUs online)", cpus.online, "detected"),
        Row::new("(CPUs allowed)", cpus.affinity, "detected: affinity of this process"),
        Row::new("(CPU quota)", quota, "detected: control groups"),
        Row::new("(memory)", format!("{} MiB", memory.bytes >> 20), format!("detected: {limit}")),
        Row::new("(descriptors)", plan.descriptors, plan.descriptors_reason),
        Row::new(
            "(congestion control)",
            Congestion::of_system().name(),
            "detected: /proc/sys/net/ipv4/tcp_congestion_control, for quic_congestion_control system",
        ),
    ]
}

fn main_rows(config: &Config, plan: &Plan, places: &Places<'_>, paths: &crate::paths::Paths) -> Vec<Row> {
    let detected = |reason: &str| format!("detected: {reason}");
    let origin_of_threads = match places.of("worker_processes", "") {
        place if place.is_empty() => detected(&plan.threads_reason),
        place if plan.threads_reason == "as configured" => place,
        place => format!("{place}, {}", detected(&plan.threads_reason)),
    };
    let pinned = plan.threads.cpus.iter().filter(|cpus| !cpus.is_empty()).count();
    let affinity = if pinned == 0 { "off".to_owned() } else { format!("{pinned} threads pinned") };
    let pid = state::pid_path(config, paths);
    vec![
        Row::new("worker_processes", plan.threads.cpus.len(), origin_of_threads),
        Row::new(
            "worker_cpu_affinity",
            affinity,
            places.of("worker_cpu_affinity", detected(plan.pinning_reason)),
        ),
        Row::new(
            "worker_connections",
            plan.threads.connections,
            places.of("worker_connections", detected(&plan.connections_reason)),
        ),
        Row::new(
            "worker_rlimit_nofile",
            plan.descriptors,
            places.of("worker_rlimit_nofile", detected(plan.descriptors_reason)),
        ),
        places.row("user", paths_user()),
        Row::new("pid", pid.display(), places.of("pid", "default")),
        places.row("daemon", "on"),
        places.row("master_process", "on"),
        places.row("worker_shutdown_timeout", "none"),
        places.row("worker_priority", "0"),
        places.row("worker_rlimit_core", "none"),
        places.row("working_directory", "none"),
        places.row("error_log", &format!("{} error", paths.error_log.display())),
    ]
}

fn paths_user() -> &'static str {
    if forebay_sys::identity::is_root() { crate::paths::USER } else { "(that of the caller)" }
}

/// Returns the rows in aligned columns.
pub(crate) fn table(rows: &[Row]) -> String {
    let width = |of: fn(&Row) -> &str| rows.iter().map(|row| of(row).chars().count()).max().unwrap_or(0);
    let (names, values) = (width(|row| &row.name), width(|row| &row.value));
    rows.iter().map(|row| format!("{:names$}  {:values$}  {}\n", row.name, row.value, row.origin)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [Row::new("a", 1, "default"), Row::new("long", 100, "x:1")];
        assert_eq!(table(&rows), "a     1    default\nlong  100  x:1\n");
    }
}
