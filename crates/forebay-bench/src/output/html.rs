//! `--html`: one file with everything in it, for showing to others.

use super::text::summary;
use crate::histogram::Histogram;
use crate::run::{Point, Report};
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 44.0;
const COLORS: [&str; 6] = ["#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2"];

/// A line of a plot.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    /// For the legend.
    pub name: String,
    /// Points, by x.
    pub points: Vec<(f64, f64)>,
}

/// A line plot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plot {
    /// Above it.
    pub title: String,
    /// Below the x axis.
    pub x_label: String,
    /// Beside the y axis.
    pub y_label: String,
    /// Lines of the plot.
    pub lines: Vec<Curve>,
    /// Places of the x axis with their texts; empty: chosen.
    pub x_ticks: Vec<(f64, String)>,
    /// Y is logarithmic.
    pub log: bool,
}

/// Text in HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn nice(range: f64, ticks: f64) -> f64 {
    let raw = (range / ticks).max(1e-12);
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|s| s * power >= raw).unwrap_or(10.0);
    step * power
}

fn short(v: f64) -> String {
    match v.abs() {
        a if a >= 1e6 => format!("{}M", trim(v / 1e6)),
        a if a >= 1e3 => format!("{}k", trim(v / 1e3)),
        _ => trim(v),
    }
}

fn trim(v: f64) -> String {
    let text = format!("{v:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Scales of a plot, which turn values into places.
struct Axes {
    x: (f64, f64),
    /// Powers of ten where `log` is set.
    y: (f64, f64),
    /// Distance of the lines of the y axis.
    y_step: f64,
    log: bool,
}

impl Axes {
    fn of(plot: &Plot) -> Axes {
        let all = || plot.lines.iter().flat_map(|l| l.points.iter().copied());
        let x_min = all().map(|p| p.0).fold(f64::INFINITY, f64::min);
        let x_max = all().map(|p| p.0).fold(f64::NEG_INFINITY, f64::max);
        let x = if x_min < x_max { (x_min, x_max) } else { (0.0, 1.0) };
        let top = all().map(|p| p.1).fold(0.0, f64::max).max(1e-9);
        let low = all().map(|p| p.1).filter(|y| *y > 0.0).fold(f64::INFINITY, f64::min).min(top);
        let y_step = nice(top, 5.0);
        let y = if plot.log {
            (low.log10().floor(), top.log10().ceil().max(low.log10().floor() + 1.0))
        } else {
            (0.0, (top / y_step).ceil() * y_step)
        };
        Axes { x, y, y_step, log: plot.log }
    }

    fn x(&self, v: f64) -> f64 {
        LEFT + (v - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, v: f64) -> f64 {
        let v = if self.log { v.max(10f64.powf(self.y.0)).log10() } else { v };
        HEIGHT - BOTTOM - (v - self.y.0) / (self.y.1 - self.y.0) * (HEIGHT - TOP - BOTTOM)
    }

    fn y_ticks(&self) -> Vec<f64> {
        if self.log {
            (self.y.0 as i32..=self.y.1 as i32).map(|e| 10f64.powi(e)).collect()
        } else {
            (0..=(self.y.1 / self.y_step).round() as u32).map(|i| f64::from(i) * self.y_step).collect()
        }
    }

    fn x_ticks(&self) -> Vec<(f64, String)> {
        let step = nice(self.x.1 - self.x.0, 8.0);
        let first = (self.x.0 / step).ceil() as i64;
        let last = (self.x.1 / step).floor() as i64;
        (first..=last).map(|i| (i as f64 * step, trim(i as f64 * step))).collect()
    }
}

impl Plot {
    /// Returns the plot as SVG.
    pub(crate) fn svg(&self) -> String {
        let axes = Axes::of(self);
        let mut s = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\"><text class=\"t\" x=\"{LEFT}\" y=\"18\">{0}</text>",
            escape(&self.title)
        );
        self.draw_y_axis(&mut s, &axes);
        self.draw_x_axis(&mut s, &axes);
        for (i, line) in self.lines.iter().enumerate() {
            let color = COLORS[i % COLORS.len()];
            line.draw(&mut s, &axes, color);
            // From the right, each as wide as its name.
            let at = WIDTH - RIGHT - self.lines.iter().skip(i).map(Curve::legend_width).sum::<f64>();
            line.draw_legend(&mut s, at, color);
        }
        self.draw_labels(&mut s);
        s
    }

    fn draw_y_axis(&self, s: &mut String, axes: &Axes) {
        for v in axes.y_ticks() {
            let at = axes.y(v);
            let _ = write!(
                s,
                "<line class=\"g\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/><text class=\"a\" x=\"{:.1}\" \
                 y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                short(v)
            );
        }
    }

    fn draw_x_axis(&self, s: &mut String, axes: &Axes) {
        let ticks = if self.x_ticks.is_empty() { axes.x_ticks() } else { self.x_ticks.clone() };
        for (v, text) in ticks.iter().filter(|(v, _)| *v >= axes.x.0 - 1e-9 && *v <= axes.x.1 + 1e-9) {
            let _ = write!(
                s,
                "<line class=\"g\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{TOP}\" y2=\"{1:.1}\"/><text class=\"a\" x=\"{0:.1}\" \
                 y=\"{2:.1}\" text-anchor=\"middle\">{3}</text>",
                axes.x(*v),
                HEIGHT - BOTTOM,
                HEIGHT - BOTTOM + 15.0,
                escape(text)
            );
        }
    }

    fn draw_labels(&self, s: &mut String) {
        let _ = write!(
            s,
            "<text class=\"a\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text><text class=\"a\" transform=\"translate(14 {:.1}) \
             rotate(-90)\" text-anchor=\"middle\">{}</text></svg>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 8.0,
            escape(&self.x_label),
            (TOP + HEIGHT - BOTTOM) / 2.0,
            escape(&self.y_label)
        );
    }
}

impl Curve {
    fn draw(&self, s: &mut String, axes: &Axes, color: &str) {
        let place = |(a, b): &(f64, f64)| (axes.x(*a), axes.y(*b));
        let path: Vec<String> =
            self.points.iter().map(place).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(
            s,
            "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"1.8\" points=\"{}\"/>",
            path.join(" ")
        );
        if self.points.len() <= 12 {
            for (x, y) in self.points.iter().map(place) {
                let _ = write!(s, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"/>");
            }
        }
    }

    fn legend_width(&self) -> f64 {
        34.0 + 6.5 * self.name.chars().count() as f64
    }

    fn draw_legend(&self, s: &mut String, at: f64, color: &str) {
        let _ = write!(
            s,
            "<rect x=\"{at:.1}\" y=\"9\" width=\"12\" height=\"10\" fill=\"{color}\"/><text class=\"a\" x=\"{:.1}\" y=\"18\">{}</text>",
            at + 17.0,
            escape(&self.name)
        );
    }
}

/// A page around a body.
pub(crate) fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{0}</title><style>body{{font:15px/1.5 system-ui,sans-serif;max-width:920px;margin:2rem auto;padding:0 1rem;\
         color:#1f2937;background:#fff}}h1{{font-size:1.3rem}}h2{{font-size:1.05rem;margin-top:2rem}}pre{{background:#f3f4f6;\
         padding:1rem;overflow:auto;font-size:13px}}svg{{width:100%;height:auto;margin:.6rem 0}}.t{{font:600 14px system-ui}}\
         .a{{font:11px system-ui;fill:#4b5563}}.g{{stroke:#e5e7eb;stroke-width:1}}table{{border-collapse:collapse}}td,th{{border:1px \
         solid #d1d5db;padding:.2rem .7rem;text-align:right}}.void{{background:#fee2e2;padding:.6rem 1rem}}.note{{background:#fef3c7;\
         padding:.6rem 1rem}}</style></head><body><h1>{0}</h1>\n{1}\n</body></html>\n",
        escape(title),
        body
    )
}

/// Latency by percentile, the axis stretched towards 100 as HdrHistogram's plots have it.
pub(crate) fn by_percentile(lines: &[(&str, &Histogram)]) -> Plot {
    let longest = lines.iter().map(|(_, h)| h.len()).max().unwrap_or(0).max(10) as f64;
    let nines = longest.log10().min(6.0);
    let line = |(name, h): &(&str, &Histogram)| Curve {
        name: (*name).to_owned(),
        points: (0..=200)
            .map(|i| {
                let x = f64::from(i) / 200.0 * nines;
                (x, h.quantile(1.0 - 10f64.powf(-x)) as f64 / 1e6)
            })
            .collect(),
    };
    let ticks = [
        (0.0, 0.0),
        (0.301, 50.0),
        (1.0, 90.0),
        (2.0, 99.0),
        (3.0, 99.9),
        (4.0, 99.99),
        (5.0, 99.999),
        (6.0, 99.9999),
    ];
    Plot {
        title: "Latency by percentile".into(),
        x_label: "percentile".into(),
        y_label: "ms".into(),
        lines: lines.iter().map(line).collect(),
        x_ticks: ticks.into_iter().map(|(x, p)| (x, format!("{p} %"))).collect(),
        log: true,
    }
}

/// Returns the report of a run.
pub(crate) fn report(report: &Report) -> String {
    let mut body = String::new();
    for finding in &report.findings {
        let class = if finding.void { "void" } else { "note" };
        let _ = writeln!(body, "<p class=\"{class}\">{}</p>", escape(&finding.text));
    }
    let _ = writeln!(body, "<pre>{}</pre>", escape(&summary(report)));
    let record = &report.outcome.record;
    let lines = match report.rate {
        Some(_) => vec![("from due", &record.latency), ("from sent", &record.uncorrected)],
        None => vec![("latency", &record.latency)],
    };
    body.push_str(&by_percentile(&lines).svg());
    for plot in over_time(report) {
        body.push_str(&plot.svg());
    }
    page(&format!("forebay bench: {}", report.target), &body)
}

/// Returns the plots of throughput, latency and CPU time over time.
fn over_time(report: &Report) -> [Plot; 3] {
    let series = |name: &str, f: &dyn Fn(&Point) -> Option<f64>| Curve {
        name: name.to_owned(),
        points: report.points.iter().filter_map(|p| Some((p.at, f(p)?))).collect(),
    };
    let plot = |title: &str, y_label: &str, lines: Vec<Curve>| Plot {
        title: title.into(),
        x_label: "seconds since the start, warm-up included".into(),
        y_label: y_label.into(),
        lines,
        ..Plot::default()
    };
    let latency =
        |name: &str, f: fn(&Point) -> u64| series(name, &|p| (f(p) > 0).then_some(f(p) as f64 / 1e6));
    let mut cpu = vec![series("client", &|p| Some(p.client_cpu))];
    if report.server.is_some() {
        cpu.push(series("server", &|p| p.server_cpu));
    }
    let rates = vec![series("answers", &|p| Some(p.rate)), series("errors", &|p| Some(p.errors))];
    let latencies = vec![latency("median", |p| p.p50), latency("99 %", |p| p.p99)];
    [
        plot("Throughput over time", "a second", rates),
        Plot { log: true, ..plot("Latency over time", "ms", latencies) },
        plot("CPUs in use", "CPUs", cpu),
    ]
}
