//! Reports of a tuning: a summary for the terminal, `result.json`, `rejected.md`, and the reasons in `tuned.conf`.

use crate::figures::Figures;
use crate::knobs::Place;
use crate::load_point::Check;
use crate::model::Sample;
use crate::rig::{Active, Goal};
use crate::search::{Confirmed, Line, Report};
use crate::stats::Interval;
use forebay_bench::duration_text;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// Everything that reports are made of.
#[derive(Debug)]
pub(crate) struct Summary<'r> {
    /// Settings that were not tried, with the reason.
    pub left_out: &'r [(&'static str, String)],
    /// Result of the search.
    pub report: &'r Report,
    /// Settings that are known to be set badly, by `forebay doctor`.
    pub known: &'r [String],
    /// Settings that were tried.
    pub active: &'r [Active],
    /// Figures by number of the run.
    pub figures: &'r [Option<Figures>],
    /// Points by number of the run.
    pub points: &'r [Vec<u8>],
    /// Objective.
    pub aim: Goal,
    /// Objective in words.
    pub goal: &'r str,
    /// Server and load, in a line.
    pub about: String,
    /// Usual time of a run.
    pub run_time: Duration,
    /// Original and final at half of the load, where a gain is proven.
    pub half: Option<Check>,
}

/// Most noise of a run with which a search without a gain says something, as a logarithm.
const TOO_NOISY: f64 = 0.08;

/// Returns a difference of logarithms as a percentage.
pub(crate) fn percent(x: f64) -> String {
    format!("{:+.1} %", x.exp_m1() * 100.0)
}

/// Returns a difference of logarithms as people say it: `4.1x` for large ones.
pub(crate) fn factor(x: f64) -> String {
    if x > 1.5f64.ln() { format!("{:.1}x", x.exp()) } else { percent(x) }
}

/// Returns a gain with its interval.
pub(crate) fn gain(i: &Interval) -> String {
    if !i.low.is_finite() || !i.high.is_finite() {
        return format!("{} [too few pairs]", percent(i.mid));
    }
    format!("{} [{:+.1}, {:+.1}]", percent(i.mid), i.low.exp_m1() * 100.0, i.high.exp_m1() * 100.0)
}

/// Returns figures in the columns of the summary.
fn row(name: &str, f: &Figures) -> String {
    let (p50, p99) = (duration_text(f.p50), duration_text(f.p99));
    format!("{name:<28} {:>10.0} {p50:>9} {p99:>9} {:>9.1} us\n", f.rate, f.cpu)
}

impl Summary<'_> {
    /// Returns the name and the level of a line.
    pub(crate) fn name(&self, line: &Line) -> String {
        let a = &self.active[line.knob];
        let text = a.levels.get(usize::from(line.level).wrapping_sub(1)).map_or("", |l| l.0.as_str());
        format!("{}: {}", a.knob.name, text.trim_end_matches(';'))
    }

    /// Returns whether a line is kept, and why.
    pub(crate) fn verdict(&self, line: &Line) -> &'static str {
        match () {
            () if line.kept && !self.report.proven => "not proposed: the whole is not proven",
            () if line.kept => "kept",
            () if line.gain.high < 0.0 => "rejected: worse",
            () if line.gain.high < 0.01 => "rejected: no effect",
            () if line.pairs == 0 => "rejected: not measured by itself",
            () => "rejected: in doubt",
        }
    }

    /// Returns the reason for a line in tuned.conf.
    pub(crate) fn reason(&self, line: &Line) -> String {
        format!("forebay tune: {} {}, {} runs without it", gain(&line.gain), self.goal, line.pairs)
    }

    /// Returns `true` if a kernel setting is kept.
    pub(crate) fn keeps_kernel_settings(&self) -> bool {
        self.report.lines.iter().any(|l| l.kept && self.active[l.knob].knob.place == Place::Sysctl)
    }

    /// Returns the medians of the figures at a point.
    pub(crate) fn at(&self, point: &[u8]) -> Option<Figures> {
        let all: Vec<Figures> = self
            .points
            .iter()
            .zip(self.figures)
            .filter(|(p, _)| *p == point)
            .filter_map(|(_, f)| *f)
            .collect();
        (!all.is_empty()).then(|| Figures::median(&all))
    }

    /// Returns the summary for the terminal.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "\n{}\n\n{}", self.sentences().join(" "), self.about);
        let _ = writeln!(out, "Noise of one run: {:.1} %\n", self.report.noise * 100.0);
        let _ =
            writeln!(out, "{:<28} {:>10} {:>9} {:>9} {:>12}", "", "requests/s", "p50", "p99", "CPU/request");
        out.extend(self.at(&vec![0; self.active.len()]).map(|f| row("as it is", &f)));
        if self.report.proven {
            out.extend(self.at(&self.report.best).map(|f| row("tuned", &f)));
        }
        let _ = writeln!(out);
        for l in &self.report.lines {
            self.push_line(l, &mut out);
        }
        if self.report.proven {
            self.push_gain(&mut out);
        } else {
            let _ = writeln!(out, "\n{}", self.no_proof());
        }
        out.push_str(&self.found());
        out
    }

    /// Returns what was found, in a line each: settings with a gain, those without one, those that are worse, those that were not
    /// judged, and those that are set badly though nothing about them can be measured with this load.
    fn found(&self) -> String {
        let [mut with, mut without, mut worse, mut open] = [const { Vec::new() }; 4];
        // Without a proof of the whole nothing is said about its parts.
        for (k, a) in self.active.iter().enumerate().filter(|_| self.report.proven) {
            let moved = |l: &Line| format!("{} {}", a.knob.name, factor(l.gain.mid));
            match self.report.lines.iter().find(|l| l.knob == k) {
                Some(l) if l.kept => with.push(moved(l)),
                Some(l) if l.pairs == 0 => open.push(a.knob.name.to_owned()),
                Some(l) if l.gain.high < 0.0 => worse.push(moved(l)),
                Some(_) => without.push(a.knob.name.to_owned()),
                None => open.push(a.knob.name.to_owned()),
            }
        }
        let is_known = |name: &str| self.known.iter().any(|k| k == name);
        let set_badly = self.left_out.iter().filter(|(name, _)| is_known(name));
        let unmeasured: Vec<String> = set_badly.map(|(name, why)| format!("{name} ({why})")).collect();
        let heads = [
            "With a gain",
            "Without a measurable gain here",
            "Worse here",
            "Not judged",
            "Called set badly by `forebay doctor`, not measurable with this load",
        ];
        let line =
            |(head, names): (&str, Vec<String>)| format!("{head}, {}: {}\n", names.len(), names.join(", "));
        let lists = [with, without, worse, open, unmeasured];
        let all = heads.into_iter().zip(lists).filter(|(_, names)| !names.is_empty());
        let text: String = all.map(line).collect();
        if text.is_empty() { text } else { format!("\n{text}") }
    }

    /// Appends a line of the tuned configuration: its gain and verdict, and the figures that they rest on.
    fn push_line(&self, l: &Line, out: &mut String) {
        let _ = writeln!(out, "{}\n    {:<26} {}", self.name(l), gain(&l.gain), self.verdict(l));
        // A kept line is judged by the whole without it, one that was not by the whole with it.
        let mut point = self.report.best.clone();
        point[l.knob] = if l.kept { 0 } else { l.level };
        if let Some(f) = self.at(&point).filter(|_| self.report.proven) {
            out.push_str(&row(if l.kept { "    without it" } else { "    with it" }, &f));
        }
    }

    /// Appends the proven gain of all lines together.
    fn push_gain(&self, out: &mut String) {
        let _ = writeln!(out, "\nAll together: {} ({}), 95 % interval", gain(&self.report.gain), self.goal);
        let (pairs, fell) = self.report.starts;
        let usual = 3.0 * self.report.noise * std::f64::consts::SQRT_2;
        let steady = if fell > usual.max(0.1 * self.report.gain.mid) {
            "not steady: the gain differs from start to start"
        } else {
            "steady"
        };
        let _ = writeln!(
            out,
            "{steady}; of {pairs} pairs on fresh starts the worst was {:.1} % below the median.",
            -(-fell).exp_m1() * 100.0
        );
        if let Some(half) = &self.half {
            let _ = write!(out, "\n{}", half.text(row));
        }
    }

    /// Returns what is known where no gain is proven.
    pub(crate) fn no_proof(&self) -> String {
        self.nearly().unwrap_or_else(|| format!("No proven gain. {}", self.why_not()))
    }

    /// Returns what the pairs so far say, if all point the same way and more of them would prove it.
    fn nearly(&self) -> Option<String> {
        let Confirmed { pairs, won, missing } = self.report.confirmed;
        let more = missing.filter(|_| pairs > 0 && won == pairs)?;
        let all = match pairs {
            1 => "the only pair".to_owned(),
            2 => "both pairs".to_owned(),
            n => format!("all {n} pairs"),
        };
        let minutes = (2.0 * more as f64 * self.run_time.as_secs_f64() / 60.0).ceil().max(1.0);
        let time = if minutes > 1.0 {
            format!("about {minutes} more minutes prove")
        } else {
            "one more minute proves".into()
        };
        Some(format!(
            "Not proven yet: about {} in {all}; {time} it: `tune --resume`.",
            factor(self.report.gain.mid)
        ))
    }

    /// Returns why no gain is proven, and how large one would have been seen.
    pub(crate) fn why_not(&self) -> String {
        if let Some(phase) = self.report.ended {
            return format!(
                "The runs ended in the {phase}, before all was judged; --resume or a longer --budget goes on."
            );
        }
        let measured = if self.report.confirmed.pairs == 0 {
            String::new()
        } else {
            format!("Measured: {}. ", gain(&self.report.gain))
        };
        let seen = self.report.could_see.exp_m1() * 100.0;
        if self.report.noise > TOO_NOISY {
            return format!(
                "{measured}This machine is too noisy to conclude: runs of one configuration differ by {:.1} %, and only a \
                 gain of {seen:.0} % would have been seen. Try again when nothing else runs, or with a longer --budget.",
                self.report.noise * 100.0
            );
        }
        format!("{measured}A gain of {seen:.1} % would have been seen.")
    }

    /// Makes `result.json`.
    pub(crate) fn json(&self) -> Value {
        let interval = |i: &Interval| json!({"mid": i.mid.exp_m1(), "low": finite(i.low.exp_m1()), "high": finite(i.high.exp_m1())});
        let fig = |f: Option<Figures>| f.map(|f| f.json());
        let lines: Vec<Value> = self
            .report
            .lines
            .iter()
            .map(|l| {
                json!({"knob": self.active[l.knob].knob.name, "setting": self.name(l), "gain": interval(&l.gain),
                       "pairs": l.pairs, "kept": l.kept && self.report.proven, "proven": l.kept,
                       "verdict": self.verdict(l)})
            })
            .collect();
        let infeasible: Vec<Value> = self
            .report
            .infeasible
            .iter()
            .map(|(p, why)| json!({"settings": self.settings(p), "why": why}))
            .collect();
        json!({"about": self.about, "goal": self.goal, "proven": self.report.proven, "gain": interval(&self.report.gain),
               "pairs": self.report.confirmed.pairs, "pairs_won": self.report.confirmed.won, "pairs_missing": self.report.confirmed.missing,
               "starts": self.report.starts.0, "worst_start_below_median": self.report.starts.1,
               "noise": self.report.noise, "could_see": self.report.could_see.exp_m1(), "ended": self.report.ended, "lines": lines,
               "before": fig(self.at(&vec![0; self.active.len()])), "after": fig(self.at(&self.report.best)),
               "half_load": self.half.as_ref().map(Check::json), "infeasible": infeasible, "runs": self.points.len()})
    }

    fn settings(&self, p: &[u8]) -> String {
        let names: Vec<&str> = self
            .active
            .iter()
            .zip(p)
            .filter(|(_, l)| **l > 0)
            .map(|(a, l)| a.levels[usize::from(*l) - 1].0.as_str())
            .collect();
        if names.is_empty() { "as it is".into() } else { names.join(" ") }
    }

    /// Makes `rejected.md`.
    pub(crate) fn rejected(&self) -> String {
        let mut out = "# Tried and not taken\n\n".to_owned();
        for l in self.report.lines.iter().filter(|l| !l.kept || !self.report.proven) {
            let _ = writeln!(out, "- {}: {}, {}", self.name(l), gain(&l.gain), self.verdict(l));
        }
        for (k, a) in self.active.iter().enumerate() {
            let Some(why) = self.why_no_line(k) else { continue };
            let _ = writeln!(out, "- {}: {why}", a.knob.name);
        }
        for (p, why) in &self.report.infeasible {
            let _ = writeln!(out, "- {}: cannot be run: {why}", self.settings(p));
        }
        out.push_str("\n# Not tried\n\n");
        for (name, why) in self.left_out {
            let _ = writeln!(out, "- {name}: {why}");
        }
        out
    }

    /// Returns the reason for which a knob has no line, `None` if it has one.
    fn why_no_line(&self, knob: usize) -> Option<&'static str> {
        if self.report.lines.iter().any(|l| l.knob == knob) {
            return None;
        }
        let scored = |s: &Sample| s.point[knob] != 0;
        Some(if !self.report.samples.iter().any(scored) {
            "no run of it counts"
        } else if self.report.ended == Some("screening") {
            "not screened to the end"
        } else {
            "screened, no gain expected"
        })
    }
}

fn finite(x: f64) -> Option<f64> {
    x.is_finite().then_some(x)
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn report(noise: f64, could_see: f64) -> Report {
        Report {
            noise,
            best: Vec::new(),
            gain: Interval::default(),
            proven: false,
            confirmed: Confirmed::default(),
            lines: Vec::new(),
            could_see,
            infeasible: Vec::new(),
            samples: Vec::new(),
            starts: (0, 0.0),
            ended: None,
        }
    }

    pub(crate) fn summary(report: &Report) -> Summary<'_> {
        Summary {
            left_out: &[],
            known: &[],
            report,
            active: &[],
            figures: &[],
            points: &[],
            aim: Goal::Throughput,
            goal: "requests/s",
            about: "a server".to_owned(),
            run_time: Duration::from_millis(500),
            half: None,
        }
    }

    #[test]
    fn without_a_gain_it_says_what_that_means() {
        let quiet = summary(&report(0.02, 0.015)).text();
        assert!(quiet.ends_with("No proven gain. A gain of 1.5 % would have been seen.\n"), "{quiet}");
        let noisy = summary(&report(0.16, 0.18)).text();
        assert!(noisy.contains("too noisy to conclude") && noisy.contains("only a gain of 20 %"), "{noisy}");
        let cut = summary(&Report { ended: Some("screening"), ..report(0.02, 0.015) }).text();
        assert!(cut.contains("ended in the screening") && !cut.contains("would have been seen"), "{cut}");
    }

    #[test]
    fn what_is_set_badly_and_cannot_be_measured_is_told() {
        let report = report(0.02, 0.015);
        let left_out =
            [("ssl_buffer_size", "without effect on this load".to_owned()), ("aio", "without".to_owned())];
        let known = ["ssl_buffer_size".to_owned(), "sendfile".to_owned()];
        let text = Summary { left_out: &left_out, known: &known, ..summary(&report) }.text();
        let wanted = "\nCalled set badly by `forebay doctor`, not measurable with this load, 1: ssl_buffer_size (without \
                      effect on this load)\n";
        assert!(text.ends_with(wanted), "{text}");
    }

    #[test]
    fn each_setting_is_in_the_list_of_its_verdict() {
        let active: Vec<Active> =
            crate::knobs::KNOBS.iter().take(5).map(|knob| Active { knob, levels: Vec::new() }).collect();
        let line = |knob, pairs, mid: f64| Line {
            knob,
            level: 1,
            gain: Interval { mid, low: mid - 0.02, high: mid + 0.02 },
            pairs,
            kept: mid > 0.02,
        };
        let lines = vec![line(0, 4, 0.1), line(1, 4, 0.0), line(2, 4, -0.1), line(3, 0, -0.1)];
        let proven = Report { lines, proven: true, ..report(0.02, 0.015) };
        let name = |k: usize| active[k].knob.name;
        let wanted = format!(
            "\nWith a gain, 1: {} +10.5 %\nWithout a measurable gain here, 1: {}\nWorse here, 1: {} -9.5 %\nNot judged, 2: {}, {}\n",
            name(0),
            name(1),
            name(2),
            name(3),
            name(4)
        );
        assert_eq!(Summary { active: &active, ..summary(&proven) }.found(), wanted);
        let open = Report { proven: false, ..proven };
        assert_eq!(Summary { active: &active, ..summary(&open) }.found(), "");
    }

    #[test]
    fn a_gain_that_is_nearly_proven_is_told() {
        let gain = Interval { mid: 4.1f64.ln(), low: -1.0, high: 3.0 };
        let confirmed = Confirmed { pairs: 4, won: 4, missing: Some(1) };
        let nearly = summary(&Report { gain, confirmed, ..report(0.02, 0.015) }).no_proof();
        let wanted = "Not proven yet: about 4.1x in all 4 pairs; one more minute proves it: `tune --resume`.";
        assert_eq!(nearly, wanted);
        let confirmed = Confirmed { pairs: 2, won: 2, missing: Some(600) };
        let far = summary(&Report { gain: Interval { mid: 0.05, ..gain }, confirmed, ..report(0.02, 0.015) })
            .no_proof();
        assert!(far.contains("about +5.1 % in both pairs; about 10 more minutes prove it"), "{far}");
        let confirmed = Confirmed { pairs: 4, won: 3, missing: Some(9) };
        let unclear = summary(&Report { gain, confirmed, ..report(0.02, 0.015) }).no_proof();
        assert!(unclear.starts_with("No proven gain. Measured: "), "{unclear}");
    }
}
