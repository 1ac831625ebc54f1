//! `--update`: expectations that do not hold get the value that there is. Layout and comments stay.

use super::run::Tested;

/// Returns the text of a file with the values of failed expectations replaced, and how many there were. Only plain words are
/// replaced: a rule or a text over several lines stays as it is.
pub(crate) fn update(text: &str, tested: &[Tested]) -> (String, usize) {
    let mut lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
    let mut changed = 0;
    for failure in tested.iter().flat_map(|t| &t.failures) {
        let Some(value) = &failure.update else { continue };
        let (Ok(row), Ok(column)) =
            (usize::try_from(failure.at.line()), usize::try_from(failure.at.column()))
        else {
            continue;
        };
        let Some(line) = row.checked_sub(1).and_then(|row| lines.get_mut(row)) else { continue };
        if let Some(new) = replaced(line, column.saturating_sub(1), value) {
            *line = new;
            changed += 1;
        }
    }
    (lines.join("\n"), changed)
}

/// Replaces the value that begins at a column of a line, counted in characters. A comment behind it stays.
fn replaced(line: &str, column: usize, value: &str) -> Option<String> {
    let start = line.char_indices().nth(column)?.0;
    let (before, old) = line.split_at_checked(start)?;
    let length = length(old)?;
    Some(format!("{before}{}{}", scalar(value), old.get(length..)?))
}

/// Returns the length of the value that a text begins with; `None` if it is no plain word and no text in quotes.
fn length(text: &str) -> Option<usize> {
    match text.chars().next()? {
        quote @ ('"' | '\'') => {
            let mut escaped = false;
            let end = text.char_indices().skip(1).find(|(_, c)| {
                let ends = *c == quote && !escaped;
                escaped = *c == '\\' && quote == '"' && !escaped;
                ends
            });
            end.map(|(at, _)| at + 1)
        }
        '|' | '>' | '{' | '[' | '&' | '*' | '!' => None,
        _ => {
            let comment = text.find(" #").unwrap_or(text.len());
            // Behind a value of a map in braces comes a comma or the brace.
            let end = text.find([',', '}']).unwrap_or(text.len()).min(comment);
            Some(text.get(..end)?.trim_end().len())
        }
    }
}

/// Returns a value as YAML: as it is where that is a plain word, else in quotes.
pub(crate) fn scalar(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=?%".contains(c);
    let special = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let plain = value.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
        && value.chars().all(is_plain)
        && !special.contains(&value.to_ascii_lowercase().as_str());
    if plain { value.to_owned() } else { serde_json::Value::from(value).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_replaced_in_their_places() {
        for (line, column, value, wanted) in [
            ("    status: 200", 12, "301", "    status: 301"),
            ("    status: 200  # moved", 12, "301", "    status: 301  # moved"),
            ("  fields: { A: b, C: d }", 15, "x y", "  fields: { A: \"x y\", C: d }"),
            ("  body: \"a \\\" # b\" # c", 8, "d", "  body: d # c"),
            ("  body: 'it''s'", 8, "d", "  body: d's'"),
        ] {
            assert_eq!(replaced(line, column, value).as_deref(), Some(wanted), "{line}");
        }
        assert_eq!(replaced("  body: |", 8, "x"), None);
        assert_eq!(replaced("  body: {contains: a}", 8, "x"), None);
    }

    #[test]
    fn scalars_are_yaml() {
        for (value, wanted) in [
            ("301", "301"),
            ("/a?b=c", "/a?b=c"),
            ("", "\"\""),
            ("no", "\"no\""),
            ("a: b", "\"a: b\""),
            ("a\n", "\"a\\n\""),
        ] {
            assert_eq!(scalar(value), wanted);
        }
    }
}
