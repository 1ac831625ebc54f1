//! Boxes with titles, boxes side by side, and bars of progress.

use crate::line::{Line, Look};

/// Draws a box of `width` columns and `height` lines with a title in its upper edge. Lines are cut to the room inside. Returns
/// nothing if there is no room for the edges.
pub fn panel(title: &str, body: Vec<Line>, width: usize, height: usize) -> Vec<Line> {
    let (Some(inner), Some(rows)) = (width.checked_sub(2), height.checked_sub(2)) else { return Vec::new() };
    let title: String = format!(" {title} ").chars().take(inner).collect();
    let rest = "─".repeat(inner - title.chars().count());
    let mut lines = vec![Line::default().add(format!("┌{title}{rest}┐"), Look::Plain)];
    let body = body.into_iter().chain(std::iter::repeat_with(Line::default));
    let edge = || Line::default().add("│", Look::Plain);
    lines.extend(body.take(rows).map(|line| edge().append(line.fitted(inner)).append(edge())));
    lines.push(Line::default().add(format!("└{}┘", "─".repeat(inner)), Look::Plain));
    lines
}

/// Puts two boxes of the same height side by side.
pub fn beside(left: Vec<Line>, right: Vec<Line>) -> Vec<Line> {
    left.into_iter().zip(right).map(|(left, right)| left.append(right)).collect()
}

/// Draws a bar of `width` columns with text in its middle. `share` is how much of it is full, 0 to 1.
pub fn gauge(share: f64, text: &str, width: usize) -> Line {
    let full = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    let text: Vec<char> = format!("{text:^width$}").chars().take(width).collect();
    let (done, rest) = text.split_at(full.min(text.len()));
    Line::default().add(String::from_iter(done), Look::Chosen).add(String::from_iter(rest), Look::Plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &[Line]) -> Vec<String> {
        lines.iter().map(Line::plain).collect()
    }

    #[test]
    fn panels_have_their_size() {
        let line = |text: &str| Line::default().add(text, Look::Plain);
        let left = panel("a", vec![line("first"), line("cut away here"), line("no room")], 10, 4);
        assert_eq!(text(&left), ["┌ a ─────┐", "│first   │", "│cut away│", "└────────┘"]);
        let both = beside(left, panel("long title", Vec::new(), 6, 4));
        assert_eq!(text(&both)[..2], ["┌ a ─────┐┌ lon┐", "│first   ││    │"]);
        assert!(panel("a", Vec::new(), 1, 9).is_empty());
    }

    #[test]
    fn gauges_are_full_to_their_share() {
        assert_eq!(gauge(0.5, "ab", 6).colored(6, true), "\x1b[7m  a\x1b[0mb  ");
        assert_eq!(gauge(7.0, "abc", 2).colored(9, true), "\x1b[7mab\x1b[0m");
    }
}
