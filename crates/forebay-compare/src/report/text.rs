//! The report for a terminal.

use super::{Group, Report};
use crate::known::Known;
use crate::pair::ADDRESSES;

/// Most groups that are shown in full.
const MOST: usize = 40;

impl Report {
    /// Returns the headline.
    pub(crate) fn headline(&self) -> String {
        let (unknown, known) = (self.unknown().count(), self.known().count());
        format!(
            "{} requests, {unknown} unknown difference{}, {known} known: {} and {} on {}{}",
            thousands(self.requests),
            if unknown == 1 { "" } else { "s" },
            self.names[0],
            self.names[1],
            self.configuration,
            self.with.as_ref().map_or(String::new(), |w| format!(" and {w}")),
        )
    }

    /// Returns the report as text.
    pub(crate) fn text(&self) -> String {
        let mut out = format!("{}\n", self.headline());
        if self.interrupted {
            out.push_str(&format!(
                "Interrupted: {} of {} requests were sent.\n",
                self.requests, self.planned
            ));
        }
        out.push_str(&format!(
            "{:.1} s, {} requests a second\n",
            self.elapsed.as_secs_f64(),
            thousands(self.rate() as u64)
        ));
        if self.coverage.lines > 0 {
            self.push_coverage(&mut out);
        }
        let unknown: Vec<&Group> = self.unknown().collect();
        if !unknown.is_empty() {
            out.push_str("\nUnknown differences\n");
        }
        for (i, group) in unknown.iter().take(MOST).enumerate() {
            self.push_unknown(i + 1, group, &mut out);
        }
        if unknown.len() > MOST {
            out.push_str(&format!("\n{} more; --json and --html have all\n", unknown.len() - MOST));
        }
        self.push_passing(&mut out);
        self.push_known(&mut out);
        if !self.left_out.is_empty() {
            out.push_str(&format!("\nNot compared: {}\n", self.left_out.join(", ")));
        }
        out
    }

    fn push_coverage(&self, out: &mut String) {
        let c = &self.coverage;
        out.push_str(&format!(
            "{} of {} lines reached",
            thousands(c.reached as u64),
            thousands(c.lines as u64)
        ));
        if c.unreached.is_empty() {
            out.push('\n');
            return;
        }
        match c.lines - c.reached {
            1 => out.push_str("; this one not:\n"),
            n => out.push_str(&format!("; these {n} not:\n")),
        }
        for u in c.unreached.iter().take(MOST) {
            let lines = if u.lines == 1 { "1 line".into() } else { format!("{} lines", u.lines) };
            out.push_str(&format!("  {} {} ({lines}): {}\n", u.place, u.block, u.why));
        }
        if c.unreached.len() > MOST {
            out.push_str(&format!(
                "  {} more blocks; --json and --html have all\n",
                c.unreached.len() - MOST
            ));
        }
    }

    fn push_unknown(&self, number: usize, group: &Group, out: &mut String) {
        out.push_str(&format!(
            "\n{number}. {}, {}{}{}\n",
            group.difference.part.text(),
            count(group.requests as u64),
            if group.place.is_empty() { String::new() } else { format!(", in {}", group.place) },
            if group.others == 0 { String::new() } else { format!(" and {} more blocks", group.others) },
        ));
        self.push_values(group, out);
        for address in ADDRESSES {
            out.push_str(&format!("   {}\n", group.ask.curl(address)));
        }
    }

    fn push_values(&self, group: &Group, out: &mut String) {
        let values = [&group.difference.first, &group.difference.second];
        for (name, value) in self.names.iter().zip(values) {
            let shown = value.as_deref().map_or("nothing".to_owned(), shortened);
            out.push_str(&format!("   {name}: {shown}\n"));
        }
    }

    fn push_passing(&self, out: &mut String) {
        let passing: Vec<&Group> = self.passing().collect();
        if passing.is_empty() {
            return;
        }
        out.push_str(
            "\nSeen once and not again, with the same requests one after the other (order or time decides)\n",
        );
        for group in passing.iter().take(MOST) {
            out.push_str(&format!(
                "  {}, {}, in {}: {} and {}\n",
                group.difference.part.text(),
                count(group.requests as u64),
                group.place,
                group.difference.first.as_deref().map_or("nothing".to_owned(), shortened),
                group.difference.second.as_deref().map_or("nothing".to_owned(), shortened),
            ));
        }
    }

    fn push_known(&self, out: &mut String) {
        if self.known().next().is_some() {
            out.push_str("\nKnown differences (docs/differences.md, or changes of nginx itself)\n");
        }
        for group in self.known() {
            out.push_str(&format!("\n  {}\n", count(group.requests as u64)));
            for line in group.known.map(Known::text).unwrap_or_default().lines() {
                out.push_str(&format!("  {line}\n"));
            }
        }
    }
}

/// Returns a number of requests in words.
pub(crate) fn count(requests: u64) -> String {
    if requests == 1 { "1 request".into() } else { format!("{} requests", thousands(requests)) }
}

fn shortened(value: &str) -> String {
    let shown: String = value.chars().take(300).collect();
    let clean = shown.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'");
    if shown.len() < value.len() { format!("{clean}...") } else { clean }
}

/// Returns a number with commas.
pub(crate) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_values() {
        assert_eq!(["7", "1,204", "1,204,332"].map(str::to_owned), [7, 1204, 1_204_332].map(thousands));
        assert_eq!(shortened("a\x1b[0m\"b\""), "a\\u{1b}[0m\"b\"");
        assert!(shortened(&"x".repeat(400)).ends_with("x..."));
    }
}
