//! `report.html`: three sentences and a picture for everybody, then the lines, the runs and the summary.

use crate::load_point::Check;
use crate::output::{Summary, escape, factor, gain, percent};
use crate::rig::Goal;
use crate::search::{Confirmed, Line};
use crate::stats::{Interval, median};
use std::fmt::Write;

/// Lines that the second sentence names.
const NAMED: usize = 3;

/// Returns `true` if there is something to draw: the line was left out, and the interval has ends.
fn is_measured(line: &Line) -> bool {
    line.pairs > 0 && line.gain.low.is_finite() && line.gain.high.is_finite()
}

/// Returns a factor in words: `4.1 times as much`, `12 % more`.
fn more(x: f64) -> String {
    if x > 1.5f64.ln() {
        format!("{:.1} times as much", x.exp())
    } else {
        format!("{:.1} % more", x.exp_m1() * 100.0)
    }
}

/// Returns a factor as `1.12 times`.
fn times(x: f64) -> String {
    if x > 1.5f64.ln() { format!("{:.1} times", x.exp()) } else { format!("{:.2} times", x.exp()) }
}

impl Summary<'_> {
    /// Returns the result in three sentences for people who know neither the method nor the server.
    pub(crate) fn sentences(&self) -> [String; 3] {
        let Confirmed { pairs, won, .. } = self.report.confirmed;
        if !self.report.proven {
            let looked = format!(
                "{} settings were tried in {} runs; nothing is proposed and nothing was changed.",
                self.active.len(),
                self.report.samples.len()
            );
            let (head, why) = match self.report.confirmed.missing {
                Some(_) => (self.no_proof(), self.noise_sentence()),
                None => ("No proven gain.".to_owned(), self.why_not()),
            };
            return [head, looked, why];
        }
        let half = match &self.half {
            Some(check @ Check::Done(_)) if check.worse().is_none() => {
                "; with half of the load it is no worse"
            }
            Some(Check::Unchecked(_)) | None => "; half of the load was not checked",
            Some(_) => ", BUT with half of the load it is worse",
        };
        let sure = format!(
            "The original and the tuned server ran in turn on fresh starts, and the tuned one won {won} of {pairs} pairs{half}."
        );
        [self.result_sentence(), self.lines_sentence(), sure]
    }

    fn noise_sentence(&self) -> String {
        format!("Runs of one configuration differ by {:.1} % on this machine.", self.report.noise * 100.0)
    }

    fn result_sentence(&self) -> String {
        let server = self.about.split(' ').next().unwrap_or("the server");
        let lines = match self.report.lines.iter().filter(|l| l.kept).count() {
            1 => "one changed setting".to_owned(),
            n => format!("{n} changed settings"),
        };
        let i = &self.report.gain;
        let range = format!("(95 % interval {} to {})", factor(i.low), factor(i.high));
        match self.aim {
            Goal::Cpu => {
                format!("With {lines} {server} gets {} done with the same CPU time {range}.", more(i.mid))
            }
            Goal::Throughput => format!("With {lines} {server} answers {} in a second {range}.", more(i.mid)),
            Goal::Speed => {
                let both = "requests a second and CPU time of a request taken together";
                format!("With {lines} {server} is {} as fast, {both} {range}.", times(i.mid))
            }
            Goal::Latency => {
                format!(
                    "With {lines} the slowest hundredth of {server}'s answers comes {} as fast {range}.",
                    times(i.mid)
                )
            }
            Goal::Transfer => {
                let what =
                    if self.has_pages() { "pages arrive" } else { "answers would arrive, as reckoned," };
                format!("With {lines} {server}'s {what} over a slow link {} as fast {range}.", times(i.mid))
            }
        }
    }

    /// Returns `true` if runs were scored by pages over the slow link.
    fn has_pages(&self) -> bool {
        self.figures.iter().flatten().any(|f| f.page > 0.0)
    }

    fn lines_sentence(&self) -> String {
        let mut kept: Vec<&Line> = self.report.lines.iter().filter(|l| l.kept).collect();
        kept.sort_by(|a, b| b.gain.mid.total_cmp(&a.gain.mid));
        let name = |l: &&Line| format!("{} ({})", self.active[l.knob].knob.name, factor(l.gain.mid));
        let named: Vec<String> = kept.iter().take(NAMED).map(name).collect();
        let most = if kept.len() > NAMED { "Most of it comes from" } else { "It comes from" };
        format!("{most} {}; each line was measured by leaving it out.", named.join(", "))
    }

    /// Makes `report.html`.
    pub(crate) fn html(&self) -> String {
        let mut out = String::from(
            "<!DOCTYPE html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'><title>forebay \
             tune</title><style>body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222;\
             background:#fff}table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid \
             #ddd}pre{background:#f5f5f5;padding:1em;overflow:auto}svg{width:100%;height:auto}.first{font-size:1.25em}</style>\
             <h1>forebay tune</h1>",
        );
        let _ = write!(out, "<p class=first>{}</p>", escape(&self.sentences().join(" ")));
        out.push_str(&self.before_and_after());
        let _ = write!(out, "<p>{}</p>", escape(&self.about));
        if let Some(worse) = self.half.as_ref().and_then(Check::worse) {
            let _ = write!(out, "<p><strong>But {}</strong></p>", escape(&worse));
        }
        let _ = write!(out, "{}{}", self.bars(), self.timeline());
        out.push_str(&self.table());
        let _ = write!(
            out,
            "<h2>Summary</h2><pre>{}</pre><h2>Not taken</h2><pre>{}</pre>",
            escape(&self.text()),
            escape(&self.rejected())
        );
        out
    }

    /// Returns the table of lines, empty if there are none.
    fn table(&self) -> String {
        if self.report.lines.is_empty() {
            return String::new();
        }
        let mut out =
            "<h2>Lines</h2><table><tr><th>setting<th>gain, 95 %<th>runs without it<th>verdict".to_owned();
        for l in &self.report.lines {
            let _ = write!(
                out,
                "<tr><td>{}<td>{}<td>{}<td>{}",
                escape(&self.name(l)),
                escape(&gain(&l.gain)),
                l.pairs,
                self.verdict(l)
            );
        }
        out + "</table>"
    }

    /// Draws what is to be better, before and after; nothing without a proven gain.
    fn before_and_after(&self) -> String {
        if !self.report.proven {
            return String::new();
        }
        // What is to be better falls, except for the throughput.
        let (what, ratio) = match self.aim {
            Goal::Cpu => ("CPU time of a request", (-self.report.gain.mid).exp()),
            Goal::Latency => ("99th percentile of latency", (-self.report.gain.mid).exp()),
            Goal::Transfer if self.has_pages() => {
                ("time of a page over a slow link", (-self.report.gain.mid).exp())
            }
            Goal::Transfer => ("reckoned time of an answer over a slow link", (-self.report.gain.mid).exp()),
            Goal::Throughput => ("requests a second", self.report.gain.mid.exp()),
            Goal::Speed => ("speed", self.report.gain.mid.exp()),
        };
        let scale = 560.0 / ratio.max(1.0);
        let mut svg = format!(
            "<svg viewBox='0 0 800 110' role=img aria-label='{what}, before and after'><text x=0 y=14 font-size=13>{what}: \
             {:.0} % of before</text>",
            ratio * 100.0
        );
        for (n, (name, share, color)) in
            [("as it is", 1.0, "#999"), ("tuned", ratio, "#2a7")].into_iter().enumerate()
        {
            let y = 28 + n * 40;
            let width = share * scale;
            let _ = write!(
                svg,
                "<text x=0 y={} font-size=14>{name}</text><rect x=90 y={y} width={width:.1} height=28 fill='{color}'/><text x={:.1} y={} \
                 font-size=14>{:.0} %</text>",
                y + 19,
                98.0 + width,
                y + 19,
                share * 100.0
            );
        }
        svg + "</svg>"
    }

    fn bars(&self) -> String {
        let mut lines: Vec<(String, Interval, &str)> = self
            .report
            .lines
            .iter()
            .filter(|l| is_measured(l))
            .map(|l| (self.name(l), l.gain, if l.kept && self.report.proven { "#2a7" } else { "#bbb" }))
            .collect();
        if self.report.gain.low.is_finite() && self.report.confirmed.pairs > 0 {
            lines.push(("all together".into(), self.report.gain, "#27c"));
        }
        if lines.is_empty() {
            return String::new();
        }
        let most = lines
            .iter()
            .flat_map(|(_, i, _)| [i.low, i.high, i.mid])
            .filter(|x| x.is_finite())
            .map(f64::abs)
            .fold(0.01, f64::max);
        let x = |v: f64| 560.0 + (v / most).clamp(-1.0, 1.0) * 200.0;
        let mut svg = format!(
            "<h2>What each line does</h2><svg viewBox='0 0 800 {}' role=img aria-label='Gain of each line'>",
            lines.len() * 26 + 30
        );
        for (n, (name, i, color)) in lines.iter().enumerate() {
            let y = n * 26 + 8;
            let (a, b) = (x(0.0).min(x(i.mid)), x(0.0).max(x(i.mid)));
            let _ = write!(
                svg,
                "<text x=0 y={} font-size=11>{}</text><rect x={a:.1} y={y} width={:.1} height=14 fill='{color}'/>\
                 <path d='M{:.1} {m}H{:.1}' stroke='#222' stroke-width=1.5 />",
                y + 11,
                escape(&name.chars().take(56).collect::<String>()),
                (b - a).max(0.5),
                x(if i.low.is_finite() { i.low } else { -most }),
                x(if i.high.is_finite() { i.high } else { most }),
                m = y + 7
            );
        }
        let bottom = lines.len() * 26 + 10;
        let _ = write!(svg, "<path d='M560 0V{bottom}' stroke='#888'/>");
        for v in [-most, -most / 2.0, 0.0, most / 2.0, most] {
            let _ = write!(
                svg,
                "<text x={:.1} y={} font-size=11 fill='#555' text-anchor=middle>{}</text>",
                x(v),
                bottom + 14,
                if v == 0.0 { "0".to_owned() } else { percent(v) }
            );
        }
        svg.push_str(
            "</svg><p>Gain with its 95 % interval. Green: kept. Grey: not proposed. Blue: all together.</p>",
        );
        svg
    }

    fn timeline(&self) -> String {
        let s = &self.report.samples;
        if s.len() < 2 {
            return String::new();
        }
        let (lo, hi) = s.iter().fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x.score), b.max(x.score)));
        let last = s.last().map_or(1.0, |x| x.time).max(1.0);
        let mut svg = "<h2>Runs over time</h2><svg viewBox='0 0 800 200' role=img aria-label='Score of each run over time'>".to_owned();
        for x in s {
            let color = match () {
                () if x.point.iter().all(|l| *l == 0) => "#c33",
                () if self.report.proven && x.point == self.report.best => "#27c",
                () => "#bbb",
            };
            let cx = 10.0 + x.time / last * 780.0;
            let cy = 190.0 - (x.score - lo) / (hi - lo).max(1e-9) * 180.0;
            let _ = write!(svg, "<circle cx={cx:.1} cy={cy:.1} r=3 fill='{color}'/>");
        }
        if let Some(first) = s.first().map(|_| {
            median(
                &mut s
                    .iter()
                    .filter(|x| x.point.iter().all(|l| *l == 0))
                    .map(|x| x.score)
                    .collect::<Vec<_>>(),
            )
        }) {
            for (v, y) in [(hi, 12), (lo, 196)] {
                let _ = write!(svg, "<text x=2 y={y} font-size=11 fill='#555'>{}</text>", percent(v - first));
            }
        }
        svg.push_str("</svg><p>Higher is better; the figures are against the original's median. Red: as it is. Blue: what is proposed. Grey: others.</p>");
        svg
    }
}

#[cfg(test)]
mod tests {
    use crate::figures::Figures;
    use crate::output::Summary;
    use crate::output::tests::{report, summary};
    use crate::rig::Goal;
    use crate::search::{Confirmed, Line, Report};
    use crate::stats::Interval;

    #[test]
    fn a_report_without_data_draws_nothing() {
        let html = summary(&report(0.02, 0.015)).html();
        assert!(
            html.contains("class=first>No proven gain. 0 settings were tried") && !html.contains("<svg"),
            "{html}"
        );
    }

    #[test]
    fn a_report_opens_with_three_sentences_and_a_picture() {
        let gain = Interval { mid: 4.1f64.ln(), low: 3.9f64.ln(), high: 4.3f64.ln() };
        let confirmed = Confirmed { pairs: 5, won: 5, missing: None };
        let report = Report { gain, confirmed, proven: true, ..report(0.02, 0.015) };
        let html = summary(&report).html();
        let (text, picture) =
            (html.find("4.1 times as much in a second (95 % interval 3.9x to 4.3x)"), html.find("<svg"));
        assert!(text.is_some() && text < picture, "{html}");
        assert!(html.contains("won 5 of 5 pairs; half of the load was not checked"), "{html}");
        assert!(html.contains("410 % of before"), "{html}");
    }

    #[test]
    fn a_report_names_what_was_scored() {
        let gain = Interval { mid: 0.5, low: 0.4, high: 0.6 };
        let report = Report { gain, proven: true, ..report(0.02, 0.015) };
        let text = |page: f64| {
            let figures = [Some(Figures { page, ..Figures::default() })];
            Summary { aim: Goal::Transfer, figures: &figures, ..summary(&report) }.result_sentence()
        };
        assert!(text(1.0).contains("pages arrive"), "{}", text(1.0));
        assert!(text(0.0).contains("answers would arrive, as reckoned"), "{}", text(0.0));
    }

    #[test]
    fn a_line_that_was_not_left_out_has_no_bar() {
        let gain = Interval { mid: 0.1, low: 0.05, high: 0.2 };
        let line = |pairs| Line { knob: 0, level: 1, gain, pairs, kept: true };
        assert!(super::is_measured(&line(2)) && !super::is_measured(&line(0)));
        let endless = Line { gain: Interval { low: f64::NEG_INFINITY, ..gain }, ..line(2) };
        assert!(!super::is_measured(&endless));
    }
}
