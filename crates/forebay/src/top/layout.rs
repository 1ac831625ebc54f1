//! Tables as lines: order of the rows, and widths of the columns.

use super::tables::{Cell, Table};
use forebay_terminal::{Line, Look, spark};
use std::cmp::Ordering;
use std::iter::Peekable;
use std::str::Chars;

/// Compares texts, the numbers in them by their values.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.chars().peekable(), b.chars().peekable());
    loop {
        let order = match (number(&mut a), number(&mut b)) {
            (Some(x), Some(y)) => x.cmp(&y),
            // A digit that was taken comes before a letter.
            (Some(_), None) => b.peek().map_or(Ordering::Greater, |c| '0'.cmp(c)),
            (None, Some(_)) => a.peek().map_or(Ordering::Less, |c| c.cmp(&'0')),
            (None, None) => match (a.next(), b.next()) {
                (None, None) => return Ordering::Equal,
                (x, y) => x.cmp(&y),
            },
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// Takes the number that begins here.
fn number(chars: &mut Peekable<Chars<'_>>) -> Option<u64> {
    let mut found = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        found = Some(found.unwrap_or(0u64).saturating_mul(10).saturating_add(digit.into()));
        chars.next();
    }
    found
}

fn compare(a: &Cell, b: &Cell) -> Ordering {
    match (a, b) {
        // Great numbers first.
        (Cell::Number(a, ..), Cell::Number(b, ..)) => {
            let known = |v: &f64| if v.is_nan() { f64::NEG_INFINITY } else { *v };
            known(b).total_cmp(&known(a))
        }
        (Cell::Trend(a), Cell::Trend(b)) => b.iter().sum::<f64>().total_cmp(&a.iter().sum()),
        (a, b) => natural(&a.text(), &b.text()),
    }
}

/// Sorts the rows by a column, and by their names.
pub(super) fn sort(table: &mut Table, column: Option<usize>, reverse: bool) {
    let by = |a: &[Cell], b: &[Cell], n: usize| match (a.get(n), b.get(n)) {
        (Some(a), Some(b)) => compare(a, b),
        _ => Ordering::Equal,
    };
    table.rows.sort_by(|a, b| {
        let chosen = column.map_or(Ordering::Equal, |n| by(a, b, n));
        let chosen = chosen.then_with(|| by(a, b, 0)).then_with(|| by(a, b, 1));
        if reverse { chosen.reverse() } else { chosen }
    });
}

/// Least and greatest width of a spark line.
const TREND: (usize, usize) = (8, 30);
/// Greatest width of a text, unless there is room.
const TEXT: usize = 40;

/// Returns the widths of the columns, as far as they fit: the last ones are left out, and the spark line takes what is left.
fn widths(table: &Table, width: usize) -> Vec<usize> {
    let wanted = |n: usize, head: &str| {
        let cells = table.rows.iter().filter_map(|row| row.get(n));
        let cell = |cell: &Cell| match cell {
            Cell::Trend(_) => TREND.0,
            Cell::Text(text) => text.chars().count().min(TEXT),
            other => other.text().chars().count(),
        };
        cells.map(cell).max().unwrap_or(0).max(head.chars().count())
    };
    let mut widths: Vec<usize> = table.heads.iter().enumerate().map(|(n, head)| wanted(n, head)).collect();
    let total = |widths: &[usize]| widths.iter().map(|w| w + 2).sum::<usize>().saturating_sub(2);
    while widths.len() > 2 && total(&widths) > width {
        widths.pop();
    }
    let left = width.saturating_sub(total(&widths));
    let trend = table.heads.iter().position(|head| *head == "TREND");
    if let Some(w) = trend.and_then(|n| widths.get_mut(n)) {
        *w = (*w + left).min(TREND.1);
    }
    widths
}

/// Writes a cell into its width.
fn cell(cell: &Cell, width: usize) -> (String, Look) {
    match cell {
        Cell::Trend(values) => (spark(values, width), Look::Line),
        Cell::Number(value, show, bad) => {
            let look = if *bad && *value != 0.0 { Look::Bad } else { Look::Plain };
            (format!("{:>width$}", show(*value)), look)
        }
        Cell::Text(text) => (format!("{:width$}", shortened(text, width)), look_of(text)),
    }
}

/// Returns the look of the state of a server; other texts are plain.
fn look_of(text: &str) -> Look {
    match text {
        "up" => Look::Good,
        "down" | "unavail" | "unhealthy" | "failing" => Look::Bad,
        "draining" | "checking" => Look::Warn,
        _ => Look::Plain,
    }
}

fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Returns the lines of a table. The head of the column that it is sorted by is marked.
pub(super) fn render(table: &Table, width: usize, sorted: Option<usize>) -> Vec<Line> {
    let mut lines = vec![Line::default(), Line::default().add(table.title, Look::Bold)];
    if table.rows.is_empty() {
        lines.push(Line::dim(table.empty));
        return lines;
    }
    let widths = widths(table, width);
    let head = table.heads.iter().zip(&widths).enumerate().fold(Line::default(), |line, (n, (head, &w))| {
        let left = table.rows.iter().all(|row| !matches!(row.get(n), Some(Cell::Number(..))));
        let text = if left { format!("{head:w$}") } else { format!("{head:>w$}") };
        line.add(text, if sorted == Some(n) { Look::Chosen } else { Look::Dim }).add("  ", Look::Plain)
    });
    lines.push(head);
    lines.extend(table.rows.iter().map(|row| {
        row.iter().zip(&widths).fold(Line::default(), |line, (c, &w)| {
            let (text, look) = cell(c, w);
            line.add(text, look).add("  ", Look::Plain)
        })
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_their_numbers() {
        let mut names = ["b", "a10", "a9", "a", "10.0.0.2", "9.0.0.1", "a9b"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["9.0.0.1", "10.0.0.2", "a", "a9", "a9b", "a10", "b"]);
    }
}
