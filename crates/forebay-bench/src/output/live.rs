//! The view of a run under way: a screen in a terminal, lines elsewhere.

use super::{bytes_text, percent};
use crate::duration_text;
use crate::run::{Point, Progress};
use forebay_terminal::{Line, Look, Screen, bars, beside, gauge, keys, panel};
use std::io::{IsTerminal, Stderr, stderr};

/// Shows progress until it is dropped.
pub(crate) enum Live {
    /// A screen.
    Screen(Screen<Stderr>, String),
    /// A line each second.
    Lines(f64),
    /// Nothing.
    Quiet,
}

impl Live {
    /// Begins to show progress: on a screen if standard error is a terminal, else as lines.
    pub(crate) fn new(title: &str, quiet: bool) -> Live {
        if quiet {
            return Live::Quiet;
        }
        if !stderr().is_terminal() {
            return Live::Lines(0.0);
        }
        match Screen::open(stderr()) {
            Ok(screen) => Live::Screen(screen, title.to_owned()),
            Err(_) => Live::Lines(0.0),
        }
    }

    /// Shows the state; `false` when the user wants to stop.
    pub(crate) fn show(&mut self, progress: &Progress<'_>) -> bool {
        match self {
            Live::Quiet => {}
            Live::Lines(next) => {
                if progress.elapsed >= *next + 1.0 {
                    *next = progress.elapsed.floor();
                    eprintln!("{}", line(progress));
                }
            }
            Live::Screen(screen, title) => {
                heed_keys(screen);
                let (width, height) = screen.size();
                let _ = screen.draw(&screen_lines(title, progress, width, height));
            }
        }
        !crate::signals::interrupted()
    }
}

/// Stops the run when the user asks for it. Raw mode makes ^C a key.
fn heed_keys(screen: &Screen<Stderr>) {
    while let Some(pressed) = screen.pressed() {
        if keys(&pressed).iter().any(|key| matches!(*key, b"q" | b"Q" | b"\x03")) {
            crate::signals::interrupt();
        }
        // The terminal is gone.
        if pressed.is_empty() {
            return;
        }
    }
}

fn line(p: &Progress<'_>) -> String {
    let last = p.points.last().cloned().unwrap_or_default();
    let total = p.total.map(|t| format!("/{t:.0}")).unwrap_or_default();
    format!(
        "{:6.1}{total} s  {:9.0} requests/s  p50 {:>9}  p99 {:>9}  errors {}{}",
        p.elapsed,
        last.rate,
        duration_text(last.p50),
        duration_text(last.p99),
        p.errors,
        if last.warmup { "  (warm-up)" } else { "" }
    )
}

/// Heights of the gauge and of the figures; the chart has the rest, but never less than `CHART`.
const GAUGE: usize = 3;
const FIGURES: usize = 10;
const CHART: usize = 4;

/// Returns the lines of a screen; made for 80x24.
fn screen_lines(title: &str, p: &Progress<'_>, width: usize, height: usize) -> Vec<Line> {
    let last = p.points.last().cloned().unwrap_or_default();
    let half = width / 2;
    let chart = height.saturating_sub(2 + GAUGE + FIGURES).max(CHART);
    let mut lines = vec![Line::default().add(format!(" {title}"), Look::Bold)];
    lines.extend(progress(p, &last, width));
    let figures = panel("last second", figures(p, &last, half), half, FIGURES);
    let latencies = latencies(p, &last, width - half);
    lines.extend(beside(figures, panel("latency, whole run", latencies, width - half, FIGURES)));
    lines.extend(rates(p, width, chart));
    lines.truncate(height.saturating_sub(1));
    lines.push(Line::dim(" q or ^C: stop and show what was measured"));
    lines
}

/// Returns how much of the run is done, 0 to 1.
fn share_done(p: &Progress<'_>) -> f64 {
    match (p.total, p.count) {
        (_, Some(count)) => p.complete as f64 / count.max(1) as f64,
        (Some(total), None) => p.elapsed / total,
        _ => 0.0,
    }
}

/// Returns the time that is left in words.
fn time_left(p: &Progress<'_>, share: f64) -> String {
    match (p.total, share) {
        (Some(total), _) => format!("{:.0} s left", (total - p.elapsed).max(0.0)),
        (None, s) if s > 0.01 => format!("about {:.0} s left", (p.elapsed / s - p.elapsed).max(0.0)),
        _ => String::new(),
    }
}

fn progress(p: &Progress<'_>, last: &Point, width: usize) -> Vec<Line> {
    let share = share_done(p);
    let text = format!("{:.1} s   {}", p.elapsed, time_left(p, share));
    let state = if last.warmup { "warm-up" } else { "measuring" };
    panel(state, vec![gauge(share, &text, width.saturating_sub(2))], width, GAUGE)
}

/// Returns a name and a value. `width` is that of the box; where it is narrow, the name is cut and never the value.
fn figure(name: &str, value: &str, wide: usize, width: usize) -> String {
    let inner = width.saturating_sub(2);
    let room = inner.saturating_sub(value.chars().count() + 1).min(wide);
    let name: String = name.chars().take(room).collect();
    format!("{name:room$} {value}")
}

fn figures(p: &Progress<'_>, last: &Point, width: usize) -> Vec<Line> {
    let recent: Vec<_> = p.points.iter().rev().take(10).collect();
    let mean =
        |f: &dyn Fn(&Point) -> f64| recent.iter().map(|x| f(x)).sum::<f64>() / recent.len().max(1) as f64;
    let server = last.server_cpu.map_or("not visible".to_owned(), |c| format!("{c:.2} CPUs"));
    let line = |name, value: String, look| Line::default().add(figure(name, &value, 12, width), look);
    vec![
        line("requests/s", format!("{:.0}", mean(&|x| x.rate)), Look::Bold),
        line("answers", p.complete.to_string(), Look::Plain),
        line("errors", p.errors.to_string(), if p.errors > 0 { Look::Bad } else { Look::Plain }),
        line("received", format!("{}/s", bytes_text(mean(&|x| x.bytes))), Look::Plain),
        line("client", format!("{:.2} CPUs", mean(&|x| x.client_cpu)), Look::Plain),
        line("server", server, Look::Plain),
    ]
}

fn latencies(p: &Progress<'_>, last: &Point, width: usize) -> Vec<Line> {
    let line = |name: &str, time| figure(name, &format!("{:>8}", duration_text(time)), 12, width);
    let quantiles =
        [0.5, 0.9, 0.99, 0.999].map(|q| line(&format!("{:>6} %", percent(q)), p.latency.quantile(q)));
    let rest = [
        line("longest", p.latency.max()),
        String::new(),
        line("now  50 %", last.p50),
        line("now  99 %", last.p99),
    ];
    quantiles.into_iter().chain(rest).map(|text| Line::default().add(text, Look::Plain)).collect()
}

fn rates(p: &Progress<'_>, width: usize, height: usize) -> Vec<Line> {
    let columns = width.saturating_sub(2);
    let skip = p.points.len().saturating_sub(columns);
    let rates: Vec<f64> = p.points.iter().skip(skip).map(|x| x.rate).collect();
    let top = rates.iter().copied().fold(0.0, f64::max);
    let bars = bars(&rates, columns, height.saturating_sub(2));
    let bars = bars.into_iter().map(|row| Line::default().add(row, Look::Good)).collect();
    panel(&format!("requests/s, highest {top:.0}"), bars, width, height)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Coarse;

    #[test]
    fn fits_into_80_by_24() {
        let mut latency = Coarse::default();
        (1..1000).for_each(|v| latency.record(v * 1000));
        let points: Vec<Point> = (0..200).map(|i| Point { rate: f64::from(i), ..Point::default() }).collect();
        let progress = Progress {
            points: &points,
            elapsed: 3.0,
            total: Some(10.0),
            count: None,
            complete: 1_234_567,
            errors: 7,
            latency: &latency,
        };
        for (width, height) in [(80, 24), (40, 10), (20, 8), (200, 60)] {
            let lines = screen_lines("http://127.0.0.1/", &progress, width, height);
            assert_eq!(lines.len(), height);
            let text: Vec<String> = lines.iter().map(Line::plain).collect();
            assert!(
                text.iter().skip(1).take(height - 2).all(|line| line.chars().count() <= width),
                "{text:#?}"
            );
            // Digits that are cut off make another number.
            if width >= 40 {
                assert!(text.iter().any(|line| line.contains("1234567")), "{text:#?}");
            }
            if width == 80 {
                let text = text.join("\n");
                for part in
                    ["1234567", "errors       7", "99.9 %", "7 s left", "^C", "requests/s, highest 199", "█│"]
                {
                    assert!(text.contains(part), "{part}: {text}");
                }
            }
        }
    }
}
