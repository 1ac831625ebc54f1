//! The report as one page that needs nothing else.

use super::text::thousands;
use super::{Group, Report};
use crate::known::Known;
use crate::pair::ADDRESSES;

const STYLE: &str = "
:root { color-scheme: light dark; --line: #d0d7de; --soft: #57606a; --bad: #b42318; --good: #1a7f37; --code: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --line: #3d444d; --soft: #9198a1; --bad: #ff7b72; --good: #3fb950; --code: #151b23; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.figures { display: flex; flex-wrap: wrap; gap: 2rem; margin: 1rem 0; }
.figures b { display: block; font-size: 1.6rem; } .figures span { color: var(--soft); }
.bad { color: var(--bad); } .good { color: var(--good); }
article { border-top: 1px solid var(--line); padding: .8rem 0; }
pre { background: var(--code); padding: .6rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line);
 vertical-align: top; overflow-wrap: anywhere; }
";

impl Report {
    /// Returns the report as a page.
    pub(crate) fn html(&self) -> String {
        let unknown = self.unknown().count();
        let class = if unknown == 0 { "good" } else { "bad" };
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width\"><title>forebay compare</title><style>{STYLE}</style></head><body>\n<h1>{}</h1>\n\
             <div class=\"figures\">",
            escaped(&self.headline())
        );
        let coverage = format!("{} of {}", self.coverage.reached, self.coverage.lines);
        for (value, what, class) in [
            (thousands(self.requests), "requests", ""),
            (unknown.to_string(), "unknown differences", class),
            (self.known().count().to_string(), "known differences", ""),
            (coverage, "lines reached", ""),
            (format!("{:.1} s", self.elapsed.as_secs_f64()), "time", ""),
        ] {
            out.push_str(&format!("<div><b class=\"{class}\">{value}</b><span>{what}</span></div>"));
        }
        out.push_str("</div>\n");
        self.push_groups("Unknown differences", self.unknown(), &mut out);
        self.push_groups("Seen once and not again", self.passing(), &mut out);
        self.push_lines(&mut out);
        self.push_paragraphs(&mut out);
        if !self.left_out.is_empty() {
            out.push_str(&format!("<h2>Not compared</h2><p>{}</p>\n", escaped(&self.left_out.join(", "))));
        }
        out.push_str("</body></html>\n");
        out
    }

    fn push_groups<'g>(&self, title: &str, groups: impl Iterator<Item = &'g Group>, out: &mut String) {
        let mut groups = groups.peekable();
        if groups.peek().is_some() {
            out.push_str(&format!("<h2>{title}</h2>\n"));
        }
        for group in groups {
            out.push_str(&format!(
                "<article><b>{}</b>, {} requests<br><span>{}</span><table>",
                escaped(&group.difference.part.text()),
                group.requests,
                escaped(&group.place)
            ));
            let values = [&group.difference.first, &group.difference.second];
            for (name, value) in self.names.iter().zip(values) {
                let value = value.as_deref().map_or("<i>nothing</i>".to_owned(), escaped);
                out.push_str(&format!("<tr><th>{}</th><td>{value}</td></tr>", escaped(name)));
            }
            let lines = ADDRESSES.map(|address| escaped(&group.ask.curl(address))).join("\n");
            out.push_str(&format!("</table><pre>{lines}</pre></article>\n"));
        }
    }

    fn push_lines(&self, out: &mut String) {
        if self.coverage.unreached.is_empty() {
            return;
        }
        out.push_str("<h2>Lines that were not reached</h2>\n<table><tr><th>Place</th><th>Block</th><th>Lines</th><th>Reason</th></tr>\n");
        for u in &self.coverage.unreached {
            let cells = [&u.place, &u.block, &u.lines.to_string(), &u.why]
                .map(|t| format!("<td>{}</td>", escaped(t)));
            out.push_str(&format!("<tr>{}</tr>\n", cells.concat()));
        }
        out.push_str("</table>\n");
    }

    fn push_paragraphs(&self, out: &mut String) {
        if self.known().next().is_some() {
            out.push_str("<h2>Known differences</h2>\n");
        }
        for group in self.known() {
            out.push_str(&format!(
                "<article>{} requests<p>{}</p></article>\n",
                group.requests,
                escaped(&group.known.map(Known::text).unwrap_or_default())
            ));
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    #[test]
    fn markup_in_values_stays_text() {
        assert_eq!(super::escaped("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
    }
}
