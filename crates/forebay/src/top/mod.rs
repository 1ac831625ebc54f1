//! `forebay top`: the figures of the dashboard in a terminal. Asks the API of the running server once a second.

mod client;
mod find;
mod keys;
mod layout;
mod numbers;
mod summary;
mod tables;
mod view;

use crate::signals::Signals;
use crate::subcommands::TopArgs;
use client::{Client, Target};
use forebay_terminal::{Line, Screen};
use keys::Key;
use serde_json::Value;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};
use view::{MINUTE, Range, View};

/// Width of the text of `--once` where there is no terminal.
const PLAIN_WIDTH: usize = 120;
/// Paths of the API below a location, of `dashboard` and of `api`.
const BELOW: [&str; 2] = ["/api/9/forebay/", "/9/forebay/"];

/// Answers of a server.
#[derive(Debug, Default)]
struct Snapshot {
    /// `/forebay/overview`.
    overview: Value,
    /// `/forebay/history` of a range.
    history: Value,
}

/// API of a running server.
struct Server {
    client: Client,
    /// Path of the API up to `forebay/`.
    path: String,
}

impl Server {
    /// Finds the API at the first of these places that has one.
    fn reach(targets: Vec<Target>) -> Result<Server, String> {
        let mut reason =
            "the configuration has no location with \"dashboard\" or \"api\"; give its URL".to_owned();
        for target in targets {
            let (name, path) = (target.to_string(), target.path.clone());
            let mut client = Client::new(target);
            for below in BELOW {
                let path = format!("{}{below}", path.trim_end_matches('/'));
                match client.get(&format!("{path}reloads")) {
                    Ok(_) => return Ok(Server { client, path }),
                    Err(e) => reason = format!("{name}: {e}"),
                }
            }
        }
        Err(reason)
    }

    fn ask(&mut self, range: &Range) -> Result<Snapshot, String> {
        let mut get = |path: &str| self.client.get(&format!("{}{path}", self.path));
        let history = format!("history?range={}", range.name);
        Ok(Snapshot { overview: get("overview")?, history: get(&history)? })
    }
}

/// Runs the subcommand. Returns the exit code: 1 if the server cannot be asked.
pub(crate) fn main(args: TopArgs) -> u8 {
    match run(args) {
        Ok(()) => 0,
        Err(text) => {
            eprintln!("forebay top: {text}");
            1
        }
    }
}

fn run(args: TopArgs) -> Result<(), String> {
    let targets = match (&args.url, &args.socket) {
        (Some(url), socket) => vec![Target::of_url(url, socket.as_deref())?],
        (None, Some(socket)) => {
            ["/dashboard", "/api", "/"].map(|path| Target::of_socket(socket, path)).into()
        }
        (None, None) => find::targets(&args.place.options())?,
    };
    let targets =
        targets.into_iter().map(|target| Target { insecure: target.insecure || args.insecure, ..target });
    let mut server = Server::reach(targets.collect())?;
    let out = std::io::stdout();
    if args.once || !out.is_terminal() || !std::io::stdin().is_terminal() {
        let snapshot = server.ask(&MINUTE)?;
        let width = forebay_terminal::size(&out).map_or(PLAIN_WIDTH, |(width, _)| width);
        let text: String =
            view::everything(&snapshot, width).iter().map(|line| line.plain() + "\n").collect();
        // A reader that has gone away, as `head` does, is no reason to complain.
        let _ = out.lock().write_all(text.as_bytes());
        return Ok(());
    }
    watch(&mut server, Duration::from_secs(args.interval.into()))
}

/// Shows the figures until a key ends it.
fn watch(server: &mut Server, interval: Duration) -> Result<(), String> {
    let unusable = |e| format!("the terminal cannot be used: {e}");
    let signals = Signals::take_over().map_err(unusable)?;
    let mut screen = Screen::open(std::io::stdout()).map_err(unusable)?;
    let mut view = View::default();
    let mut shown: Result<Snapshot, String> = server.ask(&view.range);
    let mut due = Instant::now() + interval;
    let mut range = view.range;
    loop {
        let (width, height) = screen.size();
        let lines = match &shown {
            Ok(snapshot) => view.lines(snapshot, width, height),
            Err(e) => vec![Line::bad(format!("no answer: {e}")), Line::dim("q ends")],
        };
        if screen.draw(&lines).is_err() {
            // The terminal is gone.
            return Ok(());
        }
        for key in keys::wait(&screen, &signals, due) {
            match key {
                Key::Quit => return Ok(()),
                key => view.press(key),
            }
        }
        if view.range != range {
            // A range is shown at once, also while paused.
            range = view.range;
            shown = server.ask(&range);
        } else if Instant::now() >= due {
            due = Instant::now() + interval;
            if !view.paused {
                shown = server.ask(&range);
            }
        }
    }
}
