//! Colours of the summary in a terminal.

use std::io::IsTerminal;

/// Returns `true` if standard output is a terminal whose user has not said no (`NO_COLOR`).
pub(crate) fn is_wanted() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    std::io::stdout().is_terminal() && !refused && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// Colours the lines of a summary: what is wrong in red, what is good in green, the bars in blue.
pub(crate) fn paint(text: &str) -> String {
    text.lines().map(|line| paint_line(line) + "\n").collect()
}

fn paint_line(line: &str) -> String {
    let word = line.split_whitespace().next().unwrap_or_default();
    let rest = line.trim_start().strip_prefix(word).unwrap_or_default().trim_start();
    let code = match word {
        "VOID" | "FAILED" => "1;31",
        "note" => "33",
        "errors" if rest != "none" => "31",
        "trust" | "passed" => "32",
        "requests/s" => "1",
        _ if line.contains('#') && line.contains(" ms ") => return paint_bar(line),
        _ => return line.to_owned(),
    };
    format!("\x1b[{code}m{line}\x1b[0m")
}

/// Colours the bar of a line of the histogram.
fn paint_bar(line: &str) -> String {
    let Some(start) = line.find('#') else { return line.to_owned() };
    let (before, bar) = line.split_at(start);
    format!("{before}\x1b[36m{bar}\x1b[0m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_red_and_the_text_stays() {
        let text = "  errors       none\n  errors       status: 3\n  VOID         x\n  other        y\n";
        let painted = paint(text);
        assert_eq!(painted.lines().filter(|l| l.contains("31m")).count(), 2, "{painted}");
        assert!(
            painted.starts_with("  errors       none\n") && painted.ends_with("  other        y\n"),
            "{painted:?}"
        );
    }
}
