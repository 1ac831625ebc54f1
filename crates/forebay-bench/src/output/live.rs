//! The view of a run under way: a screen in a terminal, lines elsewhere.

use super::{bytes_text, percent};
use crate::duration_text;
use crate::run::{Point, Progress};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::{cursor, event, execute, terminal};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::prelude::Frame;
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Sparkline};
use std::io::{IsTerminal, Stderr, stderr};

/// Shows progress until it is dropped.
pub(crate) enum Live {
    /// A screen.
    Screen(Box<Terminal<CrosstermBackend<Stderr>>>, String),
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
        match open_screen() {
            Ok(screen) => Live::Screen(Box::new(screen), title.to_owned()),
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
                heed_keys();
                let _ = screen.draw(|frame| draw(frame, title, progress));
            }
        }
        !crate::signals::interrupted()
    }
}

/// Switches the terminal to a screen of its own.
fn open_screen() -> std::io::Result<Terminal<CrosstermBackend<Stderr>>> {
    terminal::enable_raw_mode()?;
    execute!(stderr(), terminal::EnterAlternateScreen, cursor::Hide)?;
    Terminal::new(CrosstermBackend::new(stderr()))
}

/// Stops the run when the user asks for it. Raw mode makes ^C a key.
fn heed_keys() {
    while event::poll(std::time::Duration::ZERO).unwrap_or(false) {
        if let Ok(event::Event::Key(key)) = event::read() {
            let control = key.modifiers.contains(event::KeyModifiers::CONTROL);
            let stop =
                key.code == event::KeyCode::Char('q') || control && key.code == event::KeyCode::Char('c');
            if stop {
                crate::signals::interrupt();
            }
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Live::Screen(..) = self {
            let _ = terminal::disable_raw_mode();
            let _ = execute!(stderr(), terminal::LeaveAlternateScreen, cursor::Show);
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

/// Draws into whatever size there is; made for 80x24.
fn draw(frame: &mut Frame<'_>, title: &str, p: &Progress<'_>) {
    let rows = [
        Constraint::Length(1),
        Constraint::Length(3),
        Constraint::Length(10),
        Constraint::Min(4),
        Constraint::Length(1),
    ];
    let [head, bar, middle, chart, foot] = Layout::vertical(rows).areas(frame.area());
    let [left, right] = Layout::horizontal([Constraint::Percentage(50); 2]).areas(middle);
    let last = p.points.last().cloned().unwrap_or_default();
    frame.render_widget(Line::from(format!(" {title}")).bold(), head);
    draw_gauge(frame, bar, p, &last);
    draw_figures(frame, left, p, &last);
    draw_latencies(frame, right, p, &last);
    draw_rates(frame, chart, p);
    frame.render_widget(Line::from(" q or ^C: stop and show what was measured").dim(), foot);
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

fn draw_gauge(frame: &mut Frame<'_>, area: Rect, p: &Progress<'_>, last: &Point) {
    let share = share_done(p);
    let left = time_left(p, share);
    let state = if last.warmup { "warm-up" } else { "measuring" };
    let gauge = Gauge::default()
        .block(Block::bordered().title(format!(" {state} ")))
        .gauge_style(Style::new().fg(Color::Blue))
        .ratio(share.clamp(0.0, 1.0))
        .label(format!("{:.1} s   {left}", p.elapsed));
    frame.render_widget(gauge, area);
}

fn draw_figures(frame: &mut Frame<'_>, area: Rect, p: &Progress<'_>, last: &Point) {
    let recent: Vec<_> = p.points.iter().rev().take(10).collect();
    let mean =
        |f: &dyn Fn(&Point) -> f64| recent.iter().map(|x| f(x)).sum::<f64>() / recent.len().max(1) as f64;
    let server = last.server_cpu.map_or("not visible".to_owned(), |c| format!("{c:.2} CPUs"));
    let errors = Line::from(format!("errors       {}", p.errors));
    let text = vec![
        Line::from(format!("requests/s   {:.0}", mean(&|x| x.rate))).bold(),
        Line::from(format!("answers      {}", p.complete)),
        if p.errors > 0 { errors.red() } else { errors },
        Line::from(format!("received     {}/s", bytes_text(mean(&|x| x.bytes)))),
        Line::from(format!("client       {:.2} CPUs", mean(&|x| x.client_cpu))),
        Line::from(format!("server       {server}")),
    ];
    frame.render_widget(Paragraph::new(text).block(Block::bordered().title(" last second ")), area);
}

fn draw_latencies(frame: &mut Frame<'_>, area: Rect, p: &Progress<'_>, last: &Point) {
    let mut text: Vec<Line<'_>> = [0.5, 0.9, 0.99, 0.999]
        .into_iter()
        .map(|q| Line::from(format!("{:>6} %     {:>10}", percent(q), duration_text(p.latency.quantile(q)))))
        .collect();
    text.push(Line::from(format!("longest      {:>10}", duration_text(p.latency.max()))));
    text.push(Line::from(""));
    text.push(Line::from(format!("now  50 %    {:>10}", duration_text(last.p50))));
    text.push(Line::from(format!("now  99 %    {:>10}", duration_text(last.p99))));
    frame.render_widget(Paragraph::new(text).block(Block::bordered().title(" latency, whole run ")), area);
}

fn draw_rates(frame: &mut Frame<'_>, area: Rect, p: &Progress<'_>) {
    let width = usize::from(area.width.saturating_sub(2)).max(1);
    let skip = p.points.len().saturating_sub(width);
    let data: Vec<u64> = p.points.iter().skip(skip).map(|x| x.rate as u64).collect();
    let top = data.iter().max().copied().unwrap_or(0);
    let block = Block::bordered().title(format!(" requests/s, highest {top} "));
    frame.render_widget(
        Sparkline::default().block(block).data(&data).style(Style::new().fg(Color::Green)),
        area,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Coarse;
    use ratatui::backend::TestBackend;

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
            complete: 12345,
            errors: 7,
            latency: &latency,
        };
        for (width, height) in [(80, 24), (20, 8), (200, 60)] {
            let mut screen = Terminal::new(TestBackend::new(width, height)).expect("terminal");
            screen.draw(|f| draw(f, "http://127.0.0.1/", &progress)).expect("drawn");
            if width == 80 {
                let text = screen.backend().to_string();
                for part in ["12345", "errors       7", "99.9 %", "7 s left", "^C", "requests/s, highest 199"]
                {
                    assert!(text.contains(part), "{part}: {text}");
                }
            }
        }
    }
}
