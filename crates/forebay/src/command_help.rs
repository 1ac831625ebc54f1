//! The help of the command line: commands in groups, examples, and what is said of a wrong line.

use crate::subcommands;
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use forebay_terminal::print;
use std::fmt::Write as _;
use std::path::Path;

/// Exit code of a wrong command line.
pub(crate) const WRONG: u8 = 2;

/// A command and examples of its use, each with what it does.
type Examples = (&'static str, &'static [(&'static str, &'static str)]);

/// Commands in the groups of `forebay --help`.
const GROUPS: &[(&str, &[Examples])] = &[
    (
        "Serve",
        &[
            (
                "serve",
                &[
                    ("forebay serve", "the demo site, on port 8080 or the next free one"),
                    ("forebay serve ./public --listen 3000", "a folder"),
                    (
                        "forebay serve ./public --domain example.com",
                        "with a certificate that is got and renewed",
                    ),
                ],
            ),
            (
                "proxy",
                &[
                    ("forebay proxy 3000", "everything to the application on port 3000"),
                    ("forebay proxy 443 3000 --domain localhost", "with HTTPS in front of it"),
                ],
            ),
            (
                "ingress",
                &[("forebay ingress --help", "the controller of a Kubernetes cluster, and its tools")],
            ),
        ],
    ),
    (
        "Work on a configuration",
        &[
            (
                "check",
                &[
                    ("forebay check nginx.conf", "all mistakes, with the lines"),
                    ("forebay check --format json", "for programs; the configuration of the package"),
                ],
            ),
            (
                "watch",
                &[
                    ("forebay watch nginx.conf", "checks again whenever a file of it changes"),
                    ("forebay watch --reload", "and has the running server reload what is right"),
                ],
            ),
            (
                "explain",
                &[
                    ("forebay explain nginx.conf", "the settings in effect, and where each comes from"),
                    ("forebay explain http://example.com/a -c nginx.conf", "the way of one request"),
                ],
            ),
            (
                "doctor",
                &[
                    ("forebay doctor nginx.conf", "what is wrong, stale, harmful or without effect"),
                    ("forebay doctor --explain header-lost", "one rule"),
                ],
            ),
            (
                "fmt",
                &[
                    ("forebay fmt nginx.conf", "rewrites the layout; comments are kept"),
                    ("forebay fmt --check *.conf", "for CI: names files that are not formatted"),
                ],
            ),
            ("lsp", &[("forebay lsp", "what an editor starts; docs/lsp.md has the lines for some")]),
            (
                "test",
                &[
                    ("forebay test site.test", "requests, and what is expected of them"),
                    ("forebay test --watch site.test", "again after each change"),
                ],
            ),
        ],
    ),
    (
        "Move from nginx",
        &[
            ("move", &[("forebay move", "the steps, how far they are, and the command for the next one")]),
            (
                "compare",
                &[
                    ("forebay compare -c /etc/nginx/nginx.conf", "both servers on the same requests"),
                    ("forebay compare -c nginx.conf --log access.log", "also with the requests of a log"),
                ],
            ),
        ],
    ),
    (
        "Measure",
        &[
            (
                "bench",
                &[
                    ("forebay bench http://127.0.0.1:8080/", "ten seconds with 50 connections"),
                    ("forebay bench -r 5000 https://example.com/", "an open loop of 5,000 requests a second"),
                ],
            ),
            (
                "tune",
                &[("forebay tune -c nginx.conf", "faster settings for a copy of it, proved by measuring")],
            ),
        ],
    ),
    (
        "Look after a running server",
        &[
            (
                "reload",
                &[
                    ("forebay reload", "returns when the new configuration is in effect"),
                    ("forebay reload --dry-run", "says what would change"),
                ],
            ),
            ("top", &[("forebay top", "the figures of the server, in the terminal")]),
            ("healthcheck", &[("forebay healthcheck", "exit code 0 if the server answers, for containers")]),
            (
                "acme",
                &[
                    ("forebay acme status", "certificates that are got by ACME, and when they expire"),
                    ("forebay acme renew example.com", "now"),
                ],
            ),
        ],
    ),
    (
        "Others",
        &[
            (
                "passwd",
                &[
                    ("forebay passwd /etc/nginx/htpasswd alice", "asks for a password, for auth_basic"),
                    ("forebay passwd --delete /etc/nginx/htpasswd alice", "takes a user away"),
                ],
            ),
            ("trust", &[("forebay trust", "browsers accept https://localhost of 'forebay serve'")]),
            (
                "completions",
                &[(
                    "forebay completions bash > ~/.local/share/bash-completion/completions/forebay",
                    "for one user",
                )],
            ),
            ("man", &[("forebay man bench | man -l -", "the manual page of a command")]),
            (
                "help",
                &[
                    ("forebay help bench", "a command"),
                    ("forebay help proxy_pass", "a directive of nginx.conf"),
                    ("forebay help '$upstream_addr'", "a variable"),
                ],
            ),
        ],
    ),
];

/// Returns a command with examples below its help, and each subcommand of the program in its group.
pub(crate) fn dressed(command: Command) -> Command {
    let listed = list(&command);
    let usage = "forebay [COMMAND] [ARGUMENTS]\n       forebay [-c FILE] [OPTIONS]   runs a configuration; see forebay -h";
    let mut command = command
        .help_template("{about-with-newline}\n{usage-heading} {usage}{after-help}\n\nOptions:\n{options}\n")
        .override_usage(usage)
        .after_help(listed);
    for (name, examples) in GROUPS.iter().flat_map(|(_, commands)| *commands) {
        if command.find_subcommand(name).is_some() {
            command = command.mut_subcommand(name, |c| c.after_help(shown(examples)));
        }
    }
    command
}

/// What `help` does, in clap's words.
pub(crate) const HELP: &str = "Print this message or the help of the given subcommand(s)";

/// Returns the commands in groups, a line each.
fn list(command: &Command) -> String {
    let mut out = String::new();
    for (group, commands) in GROUPS {
        let _ = writeln!(out, "{group}:");
        for (name, _) in *commands {
            let found = command.find_subcommand(name).filter(|c| !c.is_hide_set());
            // clap adds this one when it builds the tree, which takes longer than all the rest.
            let of_help = (*name == "help").then(|| HELP.to_owned());
            let own = found.map(|c| c.get_about().map(ToString::to_string).unwrap_or_default());
            let Some(about) = own.or(of_help) else { continue };
            let _ = writeln!(out, "  {name:<12} {about}");
        }
        out.push('\n');
    }
    out.push_str("'forebay help WORD' explains a command, a directive or a '$variable'.");
    out
}

/// Returns examples under their heading, what they do in a column of its own.
fn shown(examples: &[(&str, &str)]) -> String {
    let width = examples.iter().map(|(line, _)| line.len()).max().unwrap_or_default();
    let mut out = String::from("Examples:");
    for (line, what) in examples {
        // A line that leaves no room has its text below it.
        let _ = match width {
            0..=48 => write!(out, "\n  {line:<width$}  {what}"),
            _ => write!(out, "\n  {line}\n      {what}"),
        };
    }
    out
}

/// Prints what is wrong with a command line, or the help or version that it asks for. Returns the exit code.
pub(crate) fn wrong(error: &clap::Error) -> u8 {
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        // The commands below a command have clap's own words.
        && std::env::args_os().nth(1).is_some_and(|first| first.to_string_lossy() == *word)
    {
        eprintln!("{}", unknown(word));
        return WRONG;
    }
    // A reader that has gone away, as `head` does, is no reason to complain.
    let _ = error.print();
    if error.use_stderr() { WRONG } else { 0 }
}

/// Returns the message about a first word that is no command.
fn unknown(word: &str) -> String {
    let mut text = format!("forebay: no command \"{}\".", word.escape_debug());
    let path = Path::new(word);
    if path.is_dir() {
        let _ = write!(text, " To serve a folder: forebay serve {word}");
    } else if path.is_file() {
        let _ = write!(text, " To check a configuration: forebay check {word}. To run it: forebay -c {word}");
    } else if let Some(near) = forebay_conf::grammar::nearest(word, names().into_iter()) {
        let _ = write!(text, " Did you mean \"{near}\"?");
    }
    text.push_str("\n'forebay --help' lists the commands.");
    text
}

/// Returns the names of the commands.
pub(crate) fn names() -> Vec<&'static str> {
    GROUPS.iter().flat_map(|(_, commands)| commands.iter().map(|(name, _)| *name)).collect()
}

/// Prints the help of a command, or of one below it. Returns `false` if there is none of this name.
pub(crate) fn of_command(words: &[&str]) -> bool {
    let mut command = subcommands::command();
    command.build();
    let mut found = &mut command;
    for word in words {
        let Some(next) = found.find_subcommand_mut(word) else { return false };
        found = next;
    }
    print(found.render_long_help().to_string());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_in_one_group_and_has_examples() {
        let command = subcommands::command();
        let mut known: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        known.push("help");
        let mut listed = names();
        for list in [&mut known, &mut listed] {
            list.sort_unstable();
        }
        assert_eq!(listed, known);
        for (name, examples) in GROUPS.iter().flat_map(|(_, commands)| *commands) {
            assert!(!examples.is_empty(), "{name}");
            for (line, what) in *examples {
                assert!(line.starts_with("forebay ") && line.contains(name) && !what.is_empty(), "{line}");
            }
        }
    }

    /// Lines of examples that clap reads itself are right.
    #[test]
    fn examples_are_command_lines() {
        for (_, examples) in GROUPS.iter().flat_map(|(_, commands)| *commands) {
            for (line, _) in *examples {
                let line = line.split(['|', '>']).next().unwrap_or_default();
                let words = line.split_whitespace().map(|w| w.trim_matches('\''));
                let parsed = subcommands::command().try_get_matches_from(words);
                let wrong = parsed.err().filter(|e| !matches!(e.kind(), ErrorKind::DisplayHelp));
                let wrong = wrong.filter(|_| !line.starts_with("forebay help"));
                assert!(wrong.is_none(), "{line}: {wrong:?}");
            }
        }
    }

    #[test]
    fn words_that_are_no_command() {
        assert!(unknown("chekc").contains("Did you mean \"check\"?"), "{}", unknown("chekc"));
        assert!(!unknown("xyzzyxyzzy").contains("mean"));
        assert!(unknown("/").contains("forebay serve /"));
    }

    #[test]
    fn the_list_fits_a_terminal_of_eighty_columns() {
        let mut command = subcommands::command();
        command.build();
        for line in command.render_help().to_string().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
