//! The command line as nginx has it: options glued or apart, several letters behind one dash.

use crate::control_api::Address;
use crate::paths::Paths;
use forebay_core::NGINX_VERSION;
use forebay_core::config::Environment;
use std::path::PathBuf;

/// `-s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum Signal {
    Stop,
    Quit,
    Reopen,
    Reload,
}

/// The options, before they mean anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// `-?`, `-h`.
    pub help: bool,
    /// `-v`, `-V`, `-h`.
    pub version: bool,
    /// `-V`.
    pub configure: bool,
    /// `-t`, `-T`.
    pub test: bool,
    /// `-T`.
    pub dump: bool,
    /// `-q`.
    pub quiet: bool,
    /// `-s`.
    pub signal: Option<Signal>,
    /// `-p`.
    pub prefix: Option<String>,
    /// `-c`.
    pub conf: Option<String>,
    /// `-e`.
    pub error_log: Option<String>,
    /// `-g`.
    pub globals: Option<String>,
    /// `-l`: address of the control API.
    pub control: Option<String>,
}

/// Words of `-s`.
const SIGNALS: [(&str, Signal); 4] =
    [("stop", Signal::Stop), ("quit", Signal::Quit), ("reopen", Signal::Reopen), ("reload", Signal::Reload)];

/// Reads the arguments after the program's name.
///
/// # Errors
/// nginx's text, without `nginx: `.
pub(crate) fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let Some(letters) = arg.strip_prefix('-') else {
            return Err(format!("invalid option: \"{arg}\""));
        };
        for (at, letter) in letters.char_indices() {
            let rest = letters.get(at + letter.len_utf8()..).unwrap_or_default();
            if options.flag(letter) {
                continue;
            }
            let Some((_, missing)) = WITH_VALUE.iter().find(|(known, _)| *known == letter) else {
                return Err(format!("invalid option: \"{letter}\""));
            };
            let value = match rest {
                "" => args.next().ok_or(*missing)?.as_str(),
                glued => glued,
            };
            options.value(letter, value)?;
            break;
        }
    }
    Ok(options)
}

/// Options that have a value, with nginx's text for one that lacks it.
const WITH_VALUE: [(char, &str); 6] = [
    ('p', "option \"-p\" requires directory name"),
    ('c', "option \"-c\" requires file name"),
    ('e', "option \"-e\" requires file name"),
    ('g', "option \"-g\" requires parameter"),
    ('l', "option \"-l\" requires parameter"),
    ('s', "option \"-s\" requires parameter"),
];

impl Options {
    /// Takes a letter that has no value; `false` if it is none of them.
    fn flag(&mut self, letter: char) -> bool {
        match letter {
            '?' | 'h' => (self.version, self.help) = (true, true),
            'v' => self.version = true,
            'V' => (self.version, self.configure) = (true, true),
            't' => self.test = true,
            'T' => (self.test, self.dump) = (true, true),
            'q' => self.quiet = true,
            _ => return false,
        }
        true
    }

    fn value(&mut self, letter: char, value: &str) -> Result<(), String> {
        let text = Some(value.to_owned());
        match letter {
            'p' => self.prefix = text,
            'c' => self.conf = text,
            'e' => self.error_log = text,
            'g' => self.globals = text,
            'l' => self.control = text,
            _ => {
                let signal = SIGNALS.iter().find(|(name, _)| *name == value);
                let (_, signal) = signal.ok_or_else(|| format!("invalid option: \"-s {value}\""))?;
                self.signal = Some(*signal);
            }
        }
        Ok(())
    }

    /// Returns the address of the control API, if one is asked for.
    ///
    /// # Errors
    /// The text for people.
    pub(crate) fn control_address(&self) -> Result<Option<Address>, String> {
        let prefix = Paths::new(self.prefix.as_deref()).prefix;
        self.control.as_deref().map(|word| Address::parse(word, &prefix)).transpose()
    }

    /// Returns the places that the options and the defaults give together.
    pub(crate) fn places(&self) -> (Environment, Paths) {
        let paths = Paths::new(self.prefix.as_deref());
        let below = |name: &str| paths.prefix.join(name);
        let error_log = match self.error_log.as_deref() {
            None => paths.error_log.clone(),
            Some("stderr" | "") => PathBuf::from("stderr"),
            Some(name) => below(name),
        };
        let environment = Environment {
            prefix: paths.prefix.clone(),
            conf_path: self.conf.as_deref().map_or_else(|| paths.conf.clone(), below),
            globals: self.globals.clone().unwrap_or_default(),
            error_log: Some(error_log),
            access_log: paths.access_log.clone(),
        };
        (environment, paths)
    }
}

/// Returns the text of `-v`.
pub(crate) fn version_line() -> String {
    format!("nginx version: nginx/{NGINX_VERSION} (forebay {})\n", env!("CARGO_PKG_VERSION"))
}

/// The line of `-V` about TLS. Tools look for a version behind `built with OpenSSL`, and certbot warns when there is none:
/// 3.0 is the version whose commands, names of ciphers and words of errors are followed.
const TLS: &str = "built with OpenSSL 3.0 compatible TLS: rustls 0.23, OpenSSL itself is not linked";

/// Returns the text that `-V` adds.
pub(crate) fn build_lines() -> String {
    format!(
        "built by {}\n{TLS}\nTLS SNI support enabled\nconfigure arguments: {}\n",
        env!("FOREBAY_RUSTC"),
        crate::paths::configure_arguments()
    )
}

/// Returns the text of `-h`: nginx's, then the text of the subcommands.
pub(crate) fn usage() -> String {
    use crate::paths::{CONF, ERROR_LOG, PREFIX};
    format!(
        "\
Usage: nginx [-?hvVtTq] [-s signal] [-p prefix]
             [-e filename] [-c filename] [-g directives] [-l address]

Options:
  -?,-h         : this help
  -v            : show version and exit
  -V            : show version and configure options then exit
  -t            : test configuration and exit
  -T            : test configuration, dump it and exit
  -q            : suppress non-error messages during configuration testing
  -s signal     : send signal to a master process: stop, quit, reopen, reload
  -p prefix     : set prefix path (default: {PREFIX})
  -e filename   : set error log file (default: {ERROR_LOG})
  -c filename   : set configuration file (default: {CONF})
  -g directives : set global directives out of configuration file
  -l address    : set address of the control API: unix:path or a port

Subcommands:
  serve [DIR]   : serve a folder, or the demo site, without a configuration
  check [FILE]  : report all errors of a configuration at once
  explain       : show each effective setting and where it comes from
  bench URL     : load a server and measure it
  top [URL]     : show the figures of the running server in the terminal
  help NAME     : say what a directive of the configuration, or a subcommand, does

"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Options, String> {
        parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn glued_and_apart() {
        let apart = parsed(&["-t", "-q", "-c", "x.conf", "-p", "/srv", "-g", "daemon off;"]).expect("good");
        let glued = parsed(&["-qtcx.conf", "-p/srv", "-gdaemon off;"]).expect("good");
        assert_eq!(apart, glued);
        assert!(apart.test && apart.quiet && !apart.version);
        let (environment, _) = apart.places();
        assert_eq!(environment.conf_path, PathBuf::from("/srv/x.conf"));
        assert_eq!(environment.error_log, Some(PathBuf::from("/srv/logs/error.log")));
    }

    #[test]
    fn signals() {
        assert_eq!(parsed(&["-s", "quit"]).map(|o| o.signal), Ok(Some(Signal::Quit)));
        assert_eq!(parsed(&["-sreload"]).map(|o| o.signal), Ok(Some(Signal::Reload)));
        assert_eq!(parsed(&["-tsq"]), Err("invalid option: \"-s q\"".into()));
    }

    #[test]
    fn refusals_in_nginx_words() {
        for (args, text) in [
            (&["-x"][..], "invalid option: \"x\""),
            (&["foo"], "invalid option: \"foo\""),
            (&[""], "invalid option: \"\""),
            (&["-t", "extra"], "invalid option: \"extra\""),
            (&["-s"], "option \"-s\" requires parameter"),
            (&["-g"], "option \"-g\" requires parameter"),
            (&["-p"], "option \"-p\" requires directory name"),
            (&["-tc"], "option \"-c\" requires file name"),
            (&["-e"], "option \"-e\" requires file name"),
            (&["-é"], "invalid option: \"é\""),
        ] {
            assert_eq!(parsed(args), Err(text.to_owned()), "{args:?}");
        }
        assert_eq!(parsed(&["-"]), Ok(Options::default()));
    }

    #[test]
    fn standard_error_as_log() {
        let (environment, _) = parsed(&["-e", "stderr"]).expect("good").places();
        assert_eq!(environment.error_log, Some(PathBuf::from("stderr")));
    }
}
