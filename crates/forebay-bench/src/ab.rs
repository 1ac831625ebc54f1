//! `bench ab`: options and output of ab.

use crate::load::{Load, Order, Protocol, Stop, Wanted};
use crate::record::Failure;
use crate::run::Report;
use crate::url::Url;
use crate::{Error, run, units, wrk};
use base64::Engine as _;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

const USAGE: &str = "Usage: forebay bench ab [options] [http[s]://]hostname[:port]/path
Options are:
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
pub struct Options {
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

/// Reads ab's options. `Ok(None)`: help or version was printed.
///
/// # Errors
/// What is wrong.
pub fn parse(args: &[String]) -> Result<Option<Options>, Error> {
    let bad = |text: String| Error::Usage(format!("{text}\n{USAGE}"));
    let mut o = Options { concurrency: 1, timeout: Duration::from_secs(30), ..Options::default() };
    let mut rest = args.iter();
    while let Some(word) = rest.next() {
        if word == "--i-own-this-target" {
            o.own = true;
            continue;
        }
        let Some(letters) = word.strip_prefix('-').filter(|l| !l.is_empty()) else {
            if !o.url.is_empty() {
                return Err(bad(format!("unexpected \"{word}\"")));
            }
            word.clone_into(&mut o.url);
            continue;
        };
        for (at, letter) in letters.char_indices() {
            match letter {
                'k' => o.keep_alive = true,
                'l' => o.variable = true,
                'q' => o.quiet = true,
                'i' => o.method = Some("HEAD".into()),
                'd' | 'S' | 'r' | 'w' | 'I' => {}
                'h' => {
                    print!("{USAGE}");
                    return Ok(None);
                }
                'V' => {
                    println!("forebay bench {}, as ab 2.3", env!("CARGO_PKG_VERSION"));
                    return Ok(None);
                }
                'X' | 'B' | 'P' | 'Z' | 'f' | 'E' | 'x' | 'y' | 'z' => {
                    return Err(bad(format!("option -{letter} of ab is not there")));
                }
                _ => {
                    let glued = letters.get(at + letter.len_utf8()..).unwrap_or_default();
                    let value = match glued {
                        "" => rest
                            .next()
                            .ok_or_else(|| bad(format!("option -{letter} needs a value")))?
                            .as_str(),
                        glued => glued,
                    };
                    o.value(letter, value).map_err(bad)?;
                    break;
                }
            }
        }
    }
    if o.url.is_empty() {
        return Err(bad("there is no URL".into()));
    }
    if let Some(n) = o.requests
        && o.concurrency as u64 > n
    {
        return Err(bad("Cannot use concurrency level greater than total number of requests".into()));
    }
    Ok(Some(o))
}

impl Options {
    fn value(&mut self, letter: char, value: &str) -> Result<(), String> {
        match letter {
            'n' => self.requests = Some(units::count(value)?),
            'c' => self.concurrency = usize::try_from(units::count(value)?).unwrap_or(usize::MAX),
            't' => self.limit = Some(Duration::from_secs(units::count(value)?)),
            's' => self.timeout = Duration::from_secs(units::count(value)?),
            'b' => self.buffer = usize::try_from(units::count(value)?).unwrap_or(0),
            'p' => self.post = Some((value.into(), "POST")),
            'u' => self.post = Some((value.into(), "PUT")),
            'T' => self.content_type = Some(value.into()),
            'm' => self.method = Some(value.into()),
            'v' => {}
            'H' => {
                let (name, value) =
                    value.split_once(':').ok_or(format!("-H {value}: expected \"Name: value\""))?;
                self.fields.push((name.trim().into(), value.trim().into()));
            }
            'C' => self.fields.push(("Cookie".into(), value.into())),
            'A' => {
                let coded = base64::engine::general_purpose::STANDARD.encode(value);
                self.fields.push(("Authorization".into(), format!("Basic {coded}")));
            }
            'e' => self.csv = Some(value.into()),
            'g' => self.gnuplot = Some(value.into()),
            _ => return Err(format!("unknown option -{letter}")),
        }
        Ok(())
    }
}

/// Runs the subcommand.
///
/// # Errors
/// Bad options, or a run that is not possible.
pub fn main(args: &[String]) -> Result<u8, Error> {
    let Some(o) = parse(args)? else { return Ok(0) };
    let url = Url::parse(&o.url)?;
    let mut wanted = Wanted::get(url.clone());
    if o.keep_alive {
        wanted.fields.push(("Connection".into(), "Keep-Alive".into()));
    }
    let known = |name: &str| o.fields.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    if !known("user-agent") {
        wanted.fields.push(("User-Agent".into(), "ApacheBench/2.3".into()));
    }
    if !known("accept") {
        wanted.fields.push(("Accept".into(), "*/*".into()));
    }
    if let Some((file, method)) = &o.post {
        wanted.body = std::fs::read(file).map_err(Error::io(file.display()))?;
        wanted.method = (*method).into();
        wanted
            .fields
            .push(("Content-type".into(), o.content_type.clone().unwrap_or_else(|| "text/plain".into())));
    }
    if let Some(method) = &o.method {
        wanted.method.clone_from(method);
    }
    wanted.fields.extend(o.fields.iter().cloned());
    let mut load = Load::new(&[wanted], Protocol::Http10, Order::Listed, 1)?;
    let n = o.requests.unwrap_or(if o.limit.is_some() { 50_000 } else { 1 });
    load.stop = Stop::Count(n, o.limit);
    load.connections = o.concurrency;
    load.timeout = o.timeout;
    load.per_connection = u64::from(!o.keep_alive);
    load.checks.status = Some((100..1000).collect());
    load.checks.same_length = !o.variable;
    load.receive_buffer = o.buffer;
    load.split = true;
    let (mut load, server) = wrk::prepare(load, 1, o.own)?;
    load.cpus.truncate(1);
    println!(
        "This is forebay bench {}, in the words of ApacheBench, Version 2.3\n",
        env!("CARGO_PKG_VERSION")
    );
    // As ab: a tenth of all requests at a time, at least 100, on standard error.
    let step = (n / 10).max(100);
    let mut next = step;
    if o.quiet {
        print!("Benchmarking {} (be patient)...", url.host);
    } else {
        println!("Benchmarking {} (be patient)", url.host);
    }
    let beat = |complete: u64, next: &mut u64| {
        while !o.quiet && complete >= *next && *next <= n {
            eprintln!("Completed {next} requests");
            *next += step;
        }
    };
    let report = run::run(&load, server, |p| {
        beat(p.complete, &mut next);
        !crate::signals::interrupted()
    })?;
    if o.quiet {
        println!("..done");
    } else {
        beat(report.outcome.record.complete, &mut next);
        eprintln!("Finished {} requests", report.outcome.record.complete);
    }
    println!("\n");
    print!("{}", render(&o, &url, &report));
    let h = &report.outcome.record.latency;
    if let Some(file) = &o.csv {
        let mut text = String::from("Percentage served,Time in ms\n");
        for p in 0..100u32 {
            let _ = writeln!(text, "{p},{:.3}", h.quantile(f64::from(p) / 100.0) as f64 / 1e6);
        }
        std::fs::write(file, text).map_err(Error::io(file.display()))?;
    }
    if let Some(file) = &o.gnuplot {
        let mut text = String::from("starttime\tseconds\tctime\tdtime\tttime\twait\n");
        for (low, _, n) in h.used() {
            let ms = low / 1_000_000;
            (0..n).for_each(|_| {
                let _ = writeln!(text, "-\t0\t0\t{ms}\t{ms}\t{ms}");
            });
        }
        std::fs::write(file, text).map_err(Error::io(file.display()))?;
    }
    for finding in report.findings.iter().filter(|f| f.client || f.void) {
        eprintln!("forebay bench: {}", finding.text);
    }
    Ok(u8::from(report.outcome.record.complete == 0))
}

/// The value of the `Server` field of a head.
fn software(head: &[u8]) -> String {
    let text = String::from_utf8_lossy(head);
    let value =
        text.lines().filter_map(|l| l.split_once(':')).find(|(n, _)| n.eq_ignore_ascii_case("server"));
    value.map(|(_, v)| v.trim().to_owned()).unwrap_or_default()
}

/// What ab prints at the end.
pub fn render(o: &Options, url: &Url, report: &Report) -> String {
    let mut out = String::new();
    let record = &report.outcome.record;
    let seconds = report.outcome.measured.as_secs_f64().max(1e-9);
    let done = record.complete;
    let length = record.body_in.checked_div(record.in_time).unwrap_or(0);
    let mut row = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<24}{value}");
    };
    row("Server Software:", software(&report.outcome.head));
    row("Server Hostname:", url.host.clone());
    row("Server Port:", url.port.to_string());
    row("\nDocument Path:", format!(" {}", url.path));
    row("Document Length:", if o.variable { "Variable".into() } else { format!("{length} bytes") });
    row("\nConcurrency Level:", format!(" {}", o.concurrency));
    row("Time taken for tests:", format!("{seconds:.3} seconds"));
    row("Complete requests:", done.to_string());
    let f = |k: Failure| record.failed(k);
    let connect = f(Failure::Connect) + f(Failure::Tls);
    let receive = f(Failure::Read)
        + f(Failure::Timeout)
        + f(Failure::Protocol)
        + f(Failure::Write)
        + f(Failure::Unanswered);
    let failed = connect + receive + f(Failure::Length);
    row("Failed requests:", failed.to_string());
    if failed > 0 {
        row(
            "   (Connect:",
            format!("{connect}, Receive: {receive}, Length: {}, Exceptions: 0)", f(Failure::Length))
                .trim_start()
                .to_owned(),
        );
    }
    let bad = record.seen().filter(|(s, _)| !(200..300).contains(s)).map(|(_, n)| n).sum::<u64>();
    if bad > 0 {
        row("Non-2xx responses:", bad.to_string());
    }
    if o.keep_alive {
        row(
            "Keep-Alive requests:",
            done.saturating_sub(record.connections.saturating_sub(o.concurrency as u64)).to_string(),
        );
    }
    row("Total transferred:", format!("{} bytes", record.bytes_in));
    if o.post.is_some() {
        row("Total body sent:", record.bytes_out.to_string());
    }
    row("HTML transferred:", format!("{} bytes", record.body_in));
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
    if done == 0 {
        return out;
    }
    let h = &record.latency;
    let ms = |n: u64| n as f64 / 1e6;
    let _ = writeln!(out, "\nConnection Times (ms)\n              min  mean[+/-sd] median   max");
    let line = |name: &str, h: &crate::histogram::Histogram| {
        format!(
            "{name:<13}{:>4.0} {:>4.0} {:>5.1} {:>6.0} {:>7.0}\n",
            ms(h.min()),
            h.mean() / 1e6,
            h.deviation() / 1e6,
            ms(h.quantile(0.5)),
            ms(h.max())
        )
    };
    out.push_str(&line("Connect:", &record.dial));
    out.push_str(&line("Processing:", &record.processing));
    out.push_str(&line("Waiting:", &record.waiting));
    out.push_str(&line("Total:", h));
    if done > 1 {
        let _ = writeln!(out, "\nPercentage of the requests served within a certain time (ms)");
        for p in [50u32, 66, 75, 80, 90, 95, 98, 99, 100] {
            let value = ms(h.quantile(f64::from(p) / 100.0));
            let _ =
                writeln!(out, " {p:>3}%  {value:>5.0}{}", if p == 100 { " (longest request)" } else { "" });
        }
    }
    out
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
