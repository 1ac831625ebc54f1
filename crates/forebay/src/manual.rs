//! Man pages and completions of the packages, made from what clap knows of the subcommands.
//!
//! `forebay man` and `forebay completions` print them, and `FOREBAY_MANUAL=DIR cargo test -p forebay --bin forebay manual` writes the
//! files of the packages. The page of nginx's options, forebay(8), is written by hand.

use crate::command_help;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command, ValueHint};
use clap_complete::{Shell, generate};
use forebay_terminal::print;
use std::collections::BTreeSet;

/// Files by name.
type Made = Vec<(String, Vec<u8>)>;

/// Returns a page for a command and for each of its subcommands.
fn pages(command: &Command, name: &str, made: &mut Made) {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help")
    {
        let name = format!("{name}-{}", inner.get_name());
        // clap wants a name for ever.
        let page = inner.clone().name(&*name.clone().leak()).disable_help_subcommand(true);
        let mut bytes = Vec::new();
        // Writing to memory cannot fail.
        let _ = clap_mangen::Man::new(page).render(&mut bytes);
        made.push((format!("{name}.1"), bytes));
        pages(inner, &name, made);
    }
}

/// Adds nginx's options, which clap does not read.
fn with_options(command: Command) -> Command {
    let value =
        |letter: &'static str, help: &'static str| Arg::new(letter).short(letter.chars().next()).help(help);
    let flag = |letter, help| value(letter, help).action(ArgAction::SetTrue);
    command
        .arg(flag("v", "Print the version"))
        .arg(flag("t", "Test the configuration"))
        .arg(flag("T", "Test the configuration and print it"))
        .arg(flag("q", "Print errors only while testing"))
        .arg(
            value("s", "Send a signal to the running master")
                .value_parser(["stop", "quit", "reopen", "reload"]),
        )
        .arg(value("p", "Directory of relative paths").value_hint(ValueHint::DirPath))
        .arg(value("e", "Log for errors").value_hint(ValueHint::FilePath))
        .arg(value("c", "Configuration file").value_hint(ValueHint::FilePath))
        .arg(value("g", "Directives of the main context"))
}

/// Page of the server, with nginx's options.
const SERVER: &str = include_str!("../../../packaging/share/forebay.8");

/// Runs `man`: prints a page as roff. Returns the exit code.
pub(crate) fn main(words: &[String]) -> u8 {
    if words.is_empty() {
        print(SERVER.replace("@VERSION@", env!("CARGO_PKG_VERSION")).replace("\"@DATE@\"", "\"\""));
        return 0;
    }
    let name = format!("forebay-{}.1", words.join("-"));
    let mut made = Made::new();
    pages(&crate::subcommands::command(), "forebay", &mut made);
    match made.iter().find(|(page, _)| *page == name) {
        Some((_, bytes)) => {
            print(bytes);
            0
        }
        None => {
            eprintln!("forebay man: no command \"{}\"", words.join(" ").escape_debug());
            1
        }
    }
}

/// Adds the words that commands know besides those that clap reads: rules for `doctor --explain`, and commands and directives for
/// `help`.
fn with_words(command: Command) -> Command {
    let rules = forebay_doctor::rules().map(|rule| rule.id.as_str());
    let rules = PossibleValuesParser::new(rules.collect::<Vec<_>>());
    let topic = Arg::new("topic").value_parser(PossibleValuesParser::new(topics()));
    command
        .mut_subcommand("doctor", |doctor| doctor.mut_arg("explain", |arg| arg.value_parser(rules)))
        .disable_help_subcommand(true)
        .subcommand(Command::new("help").about(command_help::HELP).arg(topic))
}

/// Returns the commands and directives that `help` explains.
fn topics() -> BTreeSet<&'static str> {
    let directives = forebay_conf::grammar::all().iter().map(|row| row.name);
    command_help::names().into_iter().chain(directives).collect()
}

/// Returns the completions of a shell.
pub(crate) fn completions(shell: Shell) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut command = with_words(with_options(crate::subcommands::command()));
    generate(shell, &mut command, "forebay", &mut bytes);
    if shell == Shell::Fish {
        // clap_complete leaves positional arguments out for fish.
        let topics = Vec::from_iter(topics()).join(" ");
        let line =
            format!("complete -c forebay -n \"__fish_forebay_using_subcommand help\" -f -a \"{topics}\"\n");
        bytes.extend_from_slice(line.as_bytes());
    }
    bytes
}

#[cfg(test)]
fn made() -> Made {
    let mut made = Made::new();
    pages(&crate::subcommands::command(), "forebay", &mut made);
    for (shell, name) in
        [(Shell::Bash, "forebay.bash"), (Shell::Zsh, "_forebay"), (Shell::Fish, "forebay.fish")]
    {
        made.push((name.to_owned(), completions(shell)));
    }
    made
}

#[test]
fn manual() {
    let made = made();
    let text = |name: &str| {
        let (_, bytes) = made.iter().find(|(made, _)| made == name).unwrap_or_else(|| panic!("no {name}"));
        String::from_utf8(bytes.clone()).expect("UTF-8")
    };
    for (name, word) in [
        ("forebay-check.1", "\\-\\-format"),
        ("forebay-reload.1", "\\-\\-timeout"),
        ("forebay-bench.1", "\\-\\-connections"),
        ("forebay-bench-compare.1", "interleaved"),
        ("forebay-tune.1", "\\-\\-"),
        ("forebay.bash", "doctor"),
        ("_forebay", "Directives of the main context"),
        ("forebay.fish", "Find faster settings"),
        ("forebay.bash", "proxy_next_upstream_tries"),
        ("_forebay", "proxy_next_upstream_tries"),
        ("forebay.fish", "proxy_next_upstream_tries"),
        ("forebay.bash", "alias-traversal"),
        ("_forebay", "alias-traversal"),
        ("forebay.fish", "alias-traversal"),
    ] {
        assert!(text(name).contains(word), "{name}: {}", text(name));
    }
    let Some(directory) = std::env::var_os("FOREBAY_MANUAL") else { return };
    for (name, bytes) in &made {
        std::fs::write(std::path::Path::new(&directory).join(name), bytes).expect("written");
    }
}
