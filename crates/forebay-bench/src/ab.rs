//! `bench ab`: options and output of ab.

use crate::cli::print;
use crate::histogram::Histogram;
use crate::load::{Load, Order, Protocol, Stop, Wanted};
use crate::observe::Server;
use crate::record::{Failure, Record};
use crate::run::Report;
use crate::url::Url;
use crate::{Error, run, units, wrk};
use base64::Engine as _;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

const USAGE: &str = "Usage: forebay bench ab [options] [http[s]://]hostname[:port]/path
AbOptions are:
    -n requests     Number of requests to perform
    -c concurrency  Number of multiple requests to make at a time
    -t timelimit    Seconds to max. to spend on benchmarking; implies -n 50000
    -s timeout      Seconds to max. wait for each response
    -b windowsize   Size of TCP send/receive buffer, in bytes
    -p postfile     File containing data to POST
    -u putfile      File containing data to PUT
    -T content-type Content-type header to use for POST/PUT data
    -i              Use HEAD instead of GET
    -m method       Method name
    -H attribute    Add arbitrary header line
    -C attribute    Add cookie, eg. 'Apache=1234'
    -A attribute    Add Basic WWW Authentication, user:password
    -k              Use HTTP KeepAlive feature
    -l              Accept variable document length
    -q, -d, -S, -r, -w, -v n  Quiet; accepted
    -e filename     Output CSV file with percentages served
    -g filename     Output collected data to gnuplot format file
    -V              Print version number and exit
    -h              Display usage information
";

/// The options.
#[derive(Clone, Debug, Default)]
pub(crate) struct AbOptions {
    requests: Option<u64>,
    concurrency: usize,
    limit: Option<Duration>,
    timeout: Duration,
    buffer: usize,
    post: Option<(PathBuf, &'static str)>,
    content_type: Option<String>,
    method: Option<String>,
    fields: Vec<(String, String)>,
    keep_alive: bool,
    variable: bool,
    quiet: bool,
    csv: Option<PathBuf>,
    gnuplot: Option<PathBuf>,
    own: bool,
    url: String,
}

fn bad(text: String) -> Error {
    Error::Usage(format!("{text}\n{USAGE}"))
}

/// Setter of an option without a value.
type Flag = fn(&mut AbOptions);

/// Options without a value; the last ones change nothing here.
const FLAGS: [(char, Flag); 9] = [
    ('k', |o| o.keep_alive = true),
    ('l', |o| o.variable = true),
    ('q', |o| o.quiet = true),
    ('i', |o| o.method = Some("HEAD".into())),
    ('d', |_| {}),
    ('S', |_| {}),
    ('r', |_| {}),
    ('w', |_| {}),
    ('I', |_| {}),
];

/// Options of ab that are not there.
const MISSING: &str = "XBPZfExyz";

/// Setter of an option with a value.
type AbSetter = fn(&mut AbOptions, &str) -> Result<(), String>;

/// Options with a value.
const SETTERS: [(char, AbSetter); 15] = [
    ('n', |o, value| units::count(value).map(|n| o.requests = Some(n))),
    ('c', |o, value| units::count(value).map(|n| o.concurrency = usize::try_from(n).unwrap_or(usize::MAX))),
    ('t', |o, value| units::count(value).map(|n| o.limit = Some(Duration::from_secs(n)))),
    ('s', |o, value| units::count(value).map(|n| o.timeout = Duration::from_secs(n))),
    ('b', |o, value| units::count(value).map(|n| o.buffer = usize::try_from(n).unwrap_or(0))),
    ('p', |o, value| set(&mut o.post, (value.into(), "POST"))),
    ('u', |o, value| set(&mut o.post, (value.into(), "PUT"))),
    ('T', |o, value| set(&mut o.content_type, value.into())),
    ('m', |o, value| set(&mut o.method, value.into())),
    ('v', |_, _| Ok(())),
    ('H', AbOptions::add_field),
    ('C', |o, value| {
        o.fields.push(("Cookie".into(), value.into()));
        Ok(())
    }),
    ('A', |o, value| {
        let coded = base64::engine::general_purpose::STANDARD.encode(value);
        o.fields.push(("Authorization".into(), format!("Basic {coded}")));
        Ok(())
    }),
    ('e', |o, value| set(&mut o.csv, value.into())),
    ('g', |o, value| set(&mut o.gnuplot, value.into())),
];

fn set<T>(option: &mut Option<T>, value: T) -> Result<(), String> {
    *option = Some(value);
    Ok(())
}

/// Prints help or the version, if the option is for that.
fn is_printed(letter: char) -> bool {
    match letter {
        'h' => print(USAGE),
        'V' => print(format!("forebay bench {}, as ab 2.3\n", env!("CARGO_PKG_VERSION"))),
        _ => return false,
    }
    true
}

/// Reads ab's options. `Ok(None)`: help or version was printed.
///
/// # Errors
/// An option that is not known, or a bad value.
pub(crate) fn parse(args: &[String]) -> Result<Option<AbOptions>, Error> {
    let mut o = AbOptions { concurrency: 1, timeout: Duration::from_secs(30), ..AbOptions::default() };
    let mut rest = args.iter();
    while let Some(word) = rest.next() {
        if o.word(word, &mut rest)? == Letters::Print {
            return Ok(None);
        }
    }
    o.check()?;
    Ok(Some(o))
}

/// Result of reading the options in one word.
#[derive(PartialEq, Eq)]
enum Letters {
    Settings,
    /// Help or version, which was printed.
    Print,
}

impl AbOptions {
    /// Takes a word: options or the URL.
    fn word(&mut self, word: &String, rest: &mut std::slice::Iter<'_, String>) -> Result<Letters, Error> {
        match word.strip_prefix('-').filter(|l| !l.is_empty()) {
            _ if word == "--i-own-this-target" => self.own = true,
            Some(letters) => return self.letters(letters, rest),
            None if self.url.is_empty() => word.clone_into(&mut self.url),
            None => return Err(bad(format!("unexpected \"{word}\""))),
        }
        Ok(Letters::Settings)
    }

    /// Checks that there is a URL, and that options do not contradict each other.
    fn check(&self) -> Result<(), Error> {
        if self.url.is_empty() {
            return Err(bad("there is no URL".into()));
        }
        if self.requests.is_some_and(|n| self.concurrency as u64 > n) {
            return Err(bad("Cannot use concurrency level greater than total number of requests".into()));
        }
        Ok(())
    }

    /// Sets the options of one word; the last of them may have its value in it or in the next word.
    fn letters(&mut self, letters: &str, rest: &mut std::slice::Iter<'_, String>) -> Result<Letters, Error> {
        for (at, letter) in letters.char_indices() {
            if let Some((_, set)) = FLAGS.iter().find(|(known, _)| *known == letter) {
                set(self);
                continue;
            }
            if is_printed(letter) {
                return Ok(Letters::Print);
            }
            if MISSING.contains(letter) {
                return Err(bad(format!("option -{letter} of ab is not there")));
            }
            let glued = letters.get(at + letter.len_utf8()..).filter(|text| !text.is_empty());
            let value = glued.or_else(|| rest.next().map(String::as_str));
            let value = value.ok_or_else(|| bad(format!("option -{letter} needs a value")));
            value.and_then(|value| self.value(letter, value).map_err(bad))?;
            break;
        }
        Ok(Letters::Settings)
    }

    fn names_field(&self, name: &str) -> bool {
        self.fields.iter().any(|(n, _)| n.eq_ignore_ascii_case(name))
    }

    /// Returns how many requests are sent at most.
    fn count(&self) -> u64 {
        self.requests.unwrap_or(if self.limit.is_some() { 50_000 } else { 1 })
    }

    fn wanted(&self, url: &Url) -> Result<Wanted, Error> {
        let mut wanted = Wanted::get(url.clone());
        let mut put = |name: &str, value: &str| wanted.fields.push((name.into(), value.into()));
        let defaults = [
            ("Connection", "Keep-Alive", self.keep_alive),
            ("User-Agent", "ApacheBench/2.3", !self.names_field("user-agent")),
            ("Accept", "*/*", !self.names_field("accept")),
        ];
        for (name, value, _) in defaults.into_iter().filter(|(.., is_sent)| *is_sent) {
            put(name, value);
        }
        if let Some((file, method)) = &self.post {
            put("Content-type", self.content_type.as_deref().unwrap_or("text/plain"));
            wanted.body = std::fs::read(file).map_err(Error::io(file.display()))?;
            wanted.method = (*method).into();
        }
        if let Some(method) = &self.method {
            wanted.method.clone_from(method);
        }
        wanted.fields.extend(self.fields.iter().cloned());
        Ok(wanted)
    }

    fn load(&self, url: &Url) -> Result<(Load, Option<Server>), Error> {
        let mut load = Load::new(&[self.wanted(url)?], Protocol::Http10, Order::Listed, 1)?;
        load.stop = Stop::Count(self.count(), self.limit);
        load.connections = self.concurrency;
        load.timeout = self.timeout;
        load.per_connection = u64::from(!self.keep_alive);
        load.checks.status = Some((100..1000).collect());
        load.checks.same_length = !self.variable;
        load.receive_buffer = self.buffer;
        load.split = true;
        let (mut load, server) = wrk::prepare(load, 1, self.own)?;
        load.cpus.truncate(1);
        Ok((load, server))
    }

    fn add_field(&mut self, field: &str) -> Result<(), String> {
        let (name, value) = field.split_once(':').ok_or(format!("-H {field}: expected \"Name: value\""))?;
        self.fields.push((name.trim().into(), value.trim().into()));
        Ok(())
    }

    fn value(&mut self, letter: char, value: &str) -> Result<(), String> {
        let set = SETTERS.iter().find(|(known, _)| *known == letter);
        let (_, set) = set.ok_or_else(|| format!("unknown option -{letter}"))?;
        set(self, value)
    }
}

/// Runs the subcommand.
///
/// # Errors
/// Bad options, or a run that is not possible.
pub(crate) fn main(args: &[String]) -> Result<u8, Error> {
    let Some(o) = parse(args)? else { return Ok(0) };
    let url = Url::parse(&o.url)?;
    let (load, server) = o.load(&url)?;
    print(format!(
        "This is forebay bench {}, in the words of ApacheBench, Version 2.3\n\n",
        env!("CARGO_PKG_VERSION")
    ));
    let mut progress = TenthsProgress::new(&o, &url);
    let report = run::run(&load, server, |p| {
        progress.show(p.complete);
        !crate::signals::interrupted()
    })?;
    progress.end(report.outcome.record.complete);
    print("\n\n");
    print(render(&o, &url, &report));
    write_files(&o, &report.outcome.record.latency)?;
    wrk::say_findings(&report);
    Ok(u8::from(report.outcome.record.complete == 0))
}

/// Progress as ab shows it: at each tenth of all requests, at least 100, on standard error.
struct TenthsProgress {
    quiet: bool,
    all: u64,
    step: u64,
    next: u64,
}

impl TenthsProgress {
    fn new(o: &AbOptions, url: &Url) -> TenthsProgress {
        if o.quiet {
            print(format!("Benchmarking {} (be patient)...", url.host));
        } else {
            print(format!("Benchmarking {} (be patient)\n", url.host));
        }
        let step = (o.count() / 10).max(100);
        TenthsProgress { quiet: o.quiet, all: o.count(), step, next: step }
    }

    fn show(&mut self, complete: u64) {
        while !self.quiet && complete >= self.next && self.next <= self.all {
            eprintln!("Completed {} requests", self.next);
            self.next += self.step;
        }
    }

    fn end(mut self, complete: u64) {
        if self.quiet {
            print("..done\n");
        } else {
            self.show(complete);
            eprintln!("Finished {complete} requests");
        }
    }
}

/// Writes the files of `-e` and `-g`.
fn write_files(o: &AbOptions, h: &Histogram) -> Result<(), Error> {
    if let Some(file) = &o.csv {
        std::fs::write(file, percentages(h)).map_err(Error::io(file.display()))?;
    }
    if let Some(file) = &o.gnuplot {
        std::fs::write(file, requests(h)).map_err(Error::io(file.display()))?;
    }
    Ok(())
}

/// Returns the time of each percentage of requests.
fn percentages(h: &Histogram) -> String {
    let mut text = String::from("Percentage served,Time in ms\n");
    for p in 0..100u32 {
        let _ = writeln!(text, "{p},{:.3}", h.quantile(f64::from(p) / 100.0) as f64 / 1e6);
    }
    text
}

/// Returns a line for each request.
fn requests(h: &Histogram) -> String {
    let mut text = String::from("starttime\tseconds\tctime\tdtime\tttime\twait\n");
    for (low, _, n) in h.used() {
        let ms = low / 1_000_000;
        let line = format!("-\t0\t0\t{ms}\t{ms}\t{ms}\n");
        text.push_str(&line.repeat(n as usize));
    }
    text
}

/// Returns the value of the `Server` field of a head.
fn software(head: &[u8]) -> String {
    let text = String::from_utf8_lossy(head);
    let value =
        text.lines().filter_map(|l| l.split_once(':')).find(|(n, _)| n.eq_ignore_ascii_case("server"));
    value.map(|(_, v)| v.trim().to_owned()).unwrap_or_default()
}

/// Returns the text that ab prints at the end.
pub(crate) fn render(o: &AbOptions, url: &Url, report: &Report) -> String {
    let mut out = String::new();
    let record = &report.outcome.record;
    let length = record.body_in.checked_div(record.in_time).unwrap_or(0);
    let mut row = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<24}{value}");
    };
    row("Server Software:", software(&report.outcome.head));
    row("Server Hostname:", url.host.clone());
    row("Server Port:", url.port.to_string());
    row("\nDocument Path:", format!(" {}", url.path));
    row("Document Length:", if o.variable { "Variable".into() } else { format!("{length} bytes") });
    counts(&mut row, o, report);
    rates(&mut row, o, report);
    if record.complete > 0 {
        times(&mut out, record);
    }
    out
}

/// Adds requests, failures and bytes.
fn counts(row: &mut impl FnMut(&str, String), o: &AbOptions, report: &Report) {
    let record = &report.outcome.record;
    let done = record.complete;
    row("\nConcurrency Level:", format!(" {}", o.concurrency));
    row("Time taken for tests:", format!("{:.3} seconds", seconds(report)));
    row("Complete requests:", done.to_string());
    failures(row, record);
    let bad = record.seen().filter(|(s, _)| !(200..300).contains(s)).map(|(_, n)| n).sum::<u64>();
    if bad > 0 {
        row("Non-2xx responses:", bad.to_string());
    }
    if o.keep_alive {
        let closed = record.connections.saturating_sub(o.concurrency as u64);
        row("Keep-Alive requests:", done.saturating_sub(closed).to_string());
    }
    row("Total transferred:", format!("{} bytes", record.bytes_in));
    if o.post.is_some() {
        row("Total body sent:", record.bytes_out.to_string());
    }
    row("HTML transferred:", format!("{} bytes", record.body_in));
}

fn failures(row: &mut impl FnMut(&str, String), record: &Record) {
    let sum = |kinds: &[Failure]| kinds.iter().map(|k| record.failed(*k)).sum::<u64>();
    let connect = sum(&[Failure::Connect, Failure::Tls]);
    let receive =
        sum(&[Failure::Read, Failure::Timeout, Failure::Protocol, Failure::Write, Failure::Unanswered]);
    let length = sum(&[Failure::Length]);
    let failed = connect + receive + length;
    row("Failed requests:", failed.to_string());
    if failed > 0 {
        row("   (Connect:", format!("{connect}, Receive: {receive}, Length: {length}, Exceptions: 0)"));
    }
}

fn seconds(report: &Report) -> f64 {
    report.outcome.measured.as_secs_f64().max(1e-9)
}

/// Adds requests and bytes a second.
fn rates(row: &mut impl FnMut(&str, String), o: &AbOptions, report: &Report) {
    let record = &report.outcome.record;
    let (seconds, done) = (seconds(report), record.complete);
    let rate = done as f64 / seconds;
    row("Requests per second:", format!("{rate:.2} [#/sec] (mean)"));
    let per = seconds * 1e3 / done.max(1) as f64;
    row("Time per request:", format!("{:.3} [ms] (mean)", per * o.concurrency as f64));
    row("Time per request:", format!("{per:.3} [ms] (mean, across all concurrent requests)"));
    let kilo = |bytes: u64| bytes as f64 / 1024.0 / seconds;
    row("Transfer rate:", format!("{:.2} [Kbytes/sec] received", kilo(record.bytes_in)));
    if o.post.is_some() {
        row("", format!("{:.2} kb/s sent", kilo(record.bytes_out)));
        row("", format!("{:.2} kb/s total", kilo(record.bytes_in + record.bytes_out)));
    }
}

/// Adds the tables of times.
fn times(out: &mut String, record: &Record) {
    let ms = |n: u64| n as f64 / 1e6;
    let _ = writeln!(out, "\nConnection Times (ms)\n              min  mean[+/-sd] median   max");
    for (name, h) in [
        ("Connect:", &record.dial),
        ("Processing:", &record.processing),
        ("Waiting:", &record.waiting),
        ("Total:", &record.latency),
    ] {
        let (min, mean, deviation) = (ms(h.min()), h.mean() / 1e6, h.deviation() / 1e6);
        let (median, max) = (ms(h.quantile(0.5)), ms(h.max()));
        let _ = writeln!(out, "{name:<13}{min:>4.0} {mean:>4.0} {deviation:>5.1} {median:>6.0} {max:>7.0}");
    }
    if record.complete > 1 {
        let _ = writeln!(out, "\nPercentage of the requests served within a certain time (ms)");
        for p in [50u32, 66, 75, 80, 90, 95, 98, 99, 100] {
            let value = ms(record.latency.quantile(f64::from(p) / 100.0));
            let longest = if p == 100 { " (longest request)" } else { "" };
            let _ = writeln!(out, " {p:>3}%  {value:>5.0}{longest}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_the_articles() {
        let options = |line: &str| parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let o = options("-k -n 50000 -c40 http://127.0.0.1/").expect("good").expect("options");
        assert_eq!((o.requests, o.concurrency, o.keep_alive), (Some(50_000), 40, true));
        let o = options("-kc 100 -t 10 -H Accept-Encoding:gzip -A a:b http://h/")
            .expect("good")
            .expect("options");
        assert_eq!((o.concurrency, o.limit, o.fields.len()), (100, Some(Duration::from_secs(10)), 2));
        assert_eq!(o.fields[1].1, "Basic YTpi");
        for bad in
            ["", "-n", "-n 1 -c 2 http://a/", "-n 0 http://a/", "-X p:1 http://a/", "-@ 1 http://a/", "a b"]
        {
            assert!(options(bad).is_err(), "{bad}");
        }
    }
}
