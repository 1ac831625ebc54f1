//! Lists of tables: a line that names some is there once for each of their rows.

/// A list, `-- each NAME`.
pub(super) struct List {
    /// Name, as in `<NAME>` for the row and `<#NAME>` for its number, from 0.
    pub name: String,
    /// Rows; `''` is an empty one, `1..20` are the numbers.
    pub rows: Vec<String>,
}

impl List {
    fn names(&self) -> [String; 2] {
        [format!("<{}>", self.name), format!("<#{}>", self.name)]
    }

    /// Returns `true` if a text names the list.
    pub fn is_in(&self, text: &str) -> bool {
        self.names().iter().any(|name| text.contains(name))
    }

    /// Returns a text for each row, or once if it does not name the list.
    fn fill(&self, text: &str) -> Vec<String> {
        let [row, number] = self.names();
        if !self.is_in(text) {
            return vec![text.to_owned()];
        }
        let value = |value: &String| if value == "''" { String::new() } else { value.clone() };
        let all = self.rows.iter().flat_map(|row| numbers(row));
        let one = |(n, v): (usize, String)| text.replace(&row, &value(&v)).replace(&number, &n.to_string());
        all.enumerate().map(one).collect()
    }
}

/// Returns a row, or the numbers that it stands for.
fn numbers(row: &str) -> Vec<String> {
    let ends = row.split_once("..").map(|(first, last)| (first.parse::<u32>(), last.parse::<u32>()));
    match ends {
        Some((Ok(first), Ok(last))) => (first..=last).map(|n| n.to_string()).collect(),
        _ => vec![row.to_owned()],
    }
}

/// Returns a text for each row of the lists that it names, and each pair of rows where it names two. The first list is the outermost.
pub(super) fn repeated<'a>(text: &str, lists: impl IntoIterator<Item = &'a List>) -> Vec<String> {
    lists.into_iter().fold(vec![text.to_owned()], |all, list| all.iter().flat_map(|t| list.fill(t)).collect())
}

#[cfg(test)]
mod tests {
    use super::{List, repeated};

    #[test]
    fn a_line_is_repeated_for_each_row_of_each_list() {
        let list = |name: &str, rows: &[&str]| List {
            name: name.to_owned(),
            rows: rows.iter().map(|row| (*row).to_owned()).collect(),
        };
        let lists = [list("a", &["x", "''"]), list("b", &["p<#a>", "q"])];
        assert_eq!(repeated("no list", &lists), ["no list"]);
        assert_eq!(repeated("<#a><a>", &lists), ["0x", "1"]);
        assert_eq!(repeated("<#b><b> <a>", &lists[1..]), ["0p<#a> <a>", "1q <a>"]);
        assert_eq!(repeated("<a><#a>", &[list("a", &["8..9"])]), ["80", "91"]);
        assert_eq!(repeated("<a> <#b>", &lists), ["x 0", "x 1", " 0", " 1"]);
    }
}
