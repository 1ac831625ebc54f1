//! Results as text for people, as TAP (version 14) and as JUnit.

use super::run::{Configuration, Tested};
use std::fmt::Write;
use std::time::Duration;

/// Results of one file.
#[derive(Debug)]
pub(crate) struct Results {
    /// Name of the file.
    pub(crate) file: String,
    /// Tests, or why there are none.
    pub(crate) tests: Result<Vec<Tested>, String>,
    /// The configuration that they ran with.
    pub(crate) configuration: Option<Configuration>,
}

impl Results {
    fn tests(&self) -> &[Tested] {
        self.tests.as_deref().unwrap_or_default()
    }
}

/// Returns the lines about a failed test.
fn reasons(file: &str, test: &Tested) -> Vec<String> {
    let error = test.error.iter().map(|why| format!("{file}:{}: {why}", test.line));
    let failures = test.failures.iter().map(|f| {
        format!("{file}:{}: {}: expected {}, got {}", f.at.line(), f.what, short(&f.wanted), short(&f.got))
    });
    error.chain(failures).collect()
}

/// Returns a text, or its beginning.
fn short(text: &str) -> String {
    const MOST: usize = 300;
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}... ({} bytes)", text.get(..at).unwrap_or_default(), text.len()),
        None => text.to_owned(),
    }
}

/// Returns text for people.
pub(crate) fn text(all: &[Results], took: Duration) -> String {
    let mut out = String::new();
    for results in all {
        if let Err(why) = &results.tests {
            let _ = writeln!(out, "{why}");
        }
        for test in results.tests() {
            let word = if test.passed() { "ok  " } else { "FAIL" };
            let _ = writeln!(out, "{word} {}", test.title);
            for reason in reasons(&results.file, test).iter().filter(|_| !test.passed()) {
                let _ = writeln!(out, "     {reason}");
            }
        }
    }
    let count = all.iter().map(|r| r.tests().len()).sum::<usize>();
    let failed = all.iter().flat_map(Results::tests).filter(|t| !t.passed()).count();
    let broken = all.iter().filter(|r| r.tests.is_err()).count();
    let files = if broken == 0 { String::new() } else { format!(", {broken} files could not be run") };
    let _ = writeln!(out, "{} passed, {failed} failed{files}, {:.1} s", count - failed, took.as_secs_f64());
    out
}

/// Returns TAP.
pub(crate) fn tap(all: &[Results]) -> String {
    let broken = all.iter().filter(|r| r.tests.is_err()).count();
    let count = all.iter().map(|r| r.tests().len()).sum::<usize>() + broken;
    let mut out = format!("TAP version 14\n1..{count}\n");
    let mut number = 0;
    let mut line = |out: &mut String, passed: bool, title: &str, reasons: &[String]| {
        number += 1;
        let word = if passed { "ok" } else { "not ok" };
        // A number sign would begin a directive.
        let _ = writeln!(out, "{word} {number} - {}", title.replace('\\', "\\\\").replace('#', "\\#"));
        if !passed {
            let list = reasons
                .iter()
                .map(|r| format!("    - {}\n", serde_json::Value::from(r.as_str())))
                .collect::<String>();
            let _ = write!(out, "  ---\n  reasons:\n{list}  ...\n");
        }
    };
    for results in all {
        match &results.tests {
            Err(why) => line(&mut out, false, &results.file, std::slice::from_ref(why)),
            Ok(tests) => {
                for test in tests {
                    line(&mut out, test.passed(), &test.title, &reasons(&results.file, test));
                }
            }
        }
    }
    out
}

/// Returns JUnit's XML.
pub(crate) fn junit(all: &[Results]) -> String {
    let mut out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n".to_owned();
    for results in all {
        let file = xml(&results.file);
        let tests = results.tests();
        let failed = tests.iter().filter(|t| !t.passed()).count();
        let errors = usize::from(results.tests.is_err());
        let _ = writeln!(
            out,
            "  <testsuite name=\"{file}\" tests=\"{}\" failures=\"{failed}\" errors=\"{errors}\">",
            tests.len() + errors
        );
        if let Err(why) = &results.tests {
            let _ = writeln!(
                out,
                "    <testcase name=\"{file}\" classname=\"{file}\"><error message=\"{}\"/></testcase>",
                xml(why)
            );
        }
        for test in tests {
            let time = test.took.as_secs_f64();
            let _ = write!(
                out,
                "    <testcase name=\"{}\" classname=\"{file}\" time=\"{time:.3}\"",
                xml(&test.title)
            );
            if test.passed() {
                out.push_str("/>\n");
                continue;
            }
            let reasons = reasons(&results.file, test);
            let first = reasons.first().map(String::as_str).unwrap_or_default();
            let _ = writeln!(
                out,
                "><failure message=\"{}\">{}</failure></testcase>",
                xml(first),
                xml(&reasons.join("\n"))
            );
        }
        out.push_str("  </testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

/// Escapes a text for XML 1.0, in which most control characters cannot be written at all.
fn xml(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push_str("&#9;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Vec<Results> {
        let test = |title: &str, error: Option<&str>| Tested {
            title: title.to_owned(),
            line: 3,
            took: Duration::from_millis(12),
            failures: Vec::new(),
            error: error.map(str::to_owned),
        };
        vec![
            Results {
                file: "a.yaml".into(),
                configuration: None,
                tests: Ok(vec![test("one", None), test("t#o <&>", Some("no \"way\""))]),
            },
            Results { file: "b.yaml".into(), tests: Err("b.yaml:1: broken".into()), configuration: None },
        ]
    }

    #[test]
    fn people_read_text() {
        let text = text(&results(), Duration::from_millis(1500));
        assert_eq!(
            text,
            "ok   one\nFAIL t#o <&>\n     a.yaml:3: no \"way\"\nb.yaml:1: broken\n1 passed, 1 failed, 1 files could not be run, 1.5 s\n"
        );
    }

    #[test]
    fn programs_read_tap_and_junit() {
        let tap = tap(&results());
        assert!(tap.starts_with("TAP version 14\n1..3\nok 1 - one\nnot ok 2 - t\\#o <&>\n  ---\n"), "{tap}");
        assert!(tap.contains("not ok 3 - b.yaml\n"), "{tap}");
        let junit = junit(&results());
        assert!(junit.contains("name=\"t#o &lt;&amp;&gt;\" classname=\"a.yaml\" time=\"0.012\"><failure message=\"a.yaml:3: no &quot;way&quot;\">"), "{junit}");
        assert!(junit.contains("tests=\"1\" failures=\"0\" errors=\"1\""), "{junit}");
    }
}
