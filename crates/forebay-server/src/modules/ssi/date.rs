//! Dates in a format of strftime, for `config timefmt`.

use std::fmt::Write;

/// A point in time, with its time zone.
pub struct Moment<'z> {
    /// Unix seconds.
    pub unix: i64,
    /// Offset from UTC, seconds.
    pub offset: i32,
    /// Abbreviation of the time zone.
    pub zone: &'z str,
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Longest text, bytes (nginx: 128 including the final NUL).
const LONGEST: usize = 127;

/// Formats a point in time. Unknown conversions are copied as they are. Returns `None` if the text is empty or too long, or
/// the time is out of range.
pub fn format(format: &[u8], m: &Moment<'_>) -> Option<Vec<u8>> {
    let time = jiff::Timestamp::from_second(m.unix).ok()?;
    let t = jiff::tz::Offset::from_seconds(m.offset).ok()?.to_datetime(time);
    let mut out = Vec::new();
    expand(format, m, &t, &mut out);
    (!out.is_empty() && out.len() <= LONGEST).then_some(out)
}

fn expand(format: &[u8], m: &Moment<'_>, t: &jiff::civil::DateTime, out: &mut Vec<u8>) {
    let mut rest = format.iter();
    while let Some(b) = rest.next() {
        if out.len() > LONGEST {
            return;
        }
        if *b != b'%' {
            out.push(*b);
            continue;
        }
        let Some(what) = rest.next() else {
            out.push(b'%');
            return;
        };
        let mut text = String::new();
        if conversion(*what, m, t, &mut text) {
            out.extend_from_slice(text.as_bytes());
        } else {
            out.extend_from_slice(&[b'%', *what]);
        }
    }
}

fn conversion(what: u8, m: &Moment<'_>, t: &jiff::civil::DateTime, out: &mut String) -> bool {
    let weekday = t.weekday().to_sunday_zero_offset();
    let hour12 = if t.hour() % 12 == 0 { 12 } else { t.hour() % 12 };
    let year_day = t.day_of_year();
    let week = t.date().iso_week_date();
    let name = |names: &[&'static str], i: i8| usize::try_from(i).ok().and_then(|i| names.get(i)).copied();
    let day = name(&DAYS, weekday).unwrap_or_default();
    let month = name(&MONTHS, t.month() - 1).unwrap_or_default();
    let more = |format: &str, out: &mut String| {
        let mut bytes = Vec::new();
        expand(format.as_bytes(), m, t, &mut bytes);
        out.push_str(&String::from_utf8_lossy(&bytes));
        Ok(())
    };
    let done = match what {
        b'a' => write!(out, "{day:.3}"),
        b'A' => write!(out, "{day}"),
        b'b' | b'h' => write!(out, "{month:.3}"),
        b'B' => write!(out, "{month}"),
        b'c' => more("%a %b %e %H:%M:%S %Y", out),
        b'C' => write!(out, "{:02}", t.year() / 100),
        b'd' => write!(out, "{:02}", t.day()),
        b'D' | b'x' => more("%m/%d/%y", out),
        b'e' => write!(out, "{:2}", t.day()),
        b'F' => more("%Y-%m-%d", out),
        b'g' => write!(out, "{:02}", week.year() % 100),
        b'G' => write!(out, "{}", week.year()),
        b'H' => write!(out, "{:02}", t.hour()),
        b'I' => write!(out, "{hour12:02}"),
        b'j' => write!(out, "{year_day:03}"),
        b'k' => write!(out, "{:2}", t.hour()),
        b'l' => write!(out, "{hour12:2}"),
        b'm' => write!(out, "{:02}", t.month()),
        b'M' => write!(out, "{:02}", t.minute()),
        b'n' => writeln!(out),
        b'p' => write!(out, "{}", if t.hour() < 12 { "AM" } else { "PM" }),
        b'P' => write!(out, "{}", if t.hour() < 12 { "am" } else { "pm" }),
        b'r' => more("%I:%M:%S %p", out),
        b'R' => more("%H:%M", out),
        b's' => write!(out, "{}", m.unix),
        b'S' => write!(out, "{:02}", t.second()),
        b't' => write!(out, "\t"),
        b'T' | b'X' => more("%H:%M:%S", out),
        b'u' => write!(out, "{}", if weekday == 0 { 7 } else { weekday }),
        b'U' => write!(out, "{:02}", (year_day + 6 - i16::from(weekday)) / 7),
        b'V' => write!(out, "{:02}", week.week()),
        b'w' => write!(out, "{weekday}"),
        b'W' => write!(out, "{:02}", (year_day + 6 - i16::from((weekday + 6) % 7)) / 7),
        b'y' => write!(out, "{:02}", t.year().rem_euclid(100)),
        b'Y' => write!(out, "{}", t.year()),
        b'z' => {
            let minutes = m.offset.abs() / 60;
            let sign = if m.offset < 0 { '-' } else { '+' };
            write!(out, "{sign}{:02}{:02}", minutes / 60, minutes % 60)
        }
        b'Z' => write!(out, "{}", m.zone),
        b'%' => write!(out, "%"),
        _ => return false,
    };
    done.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(unix: i64, format_: &str) -> Option<String> {
        let m = Moment { unix, offset: 3600, zone: "CET" };
        format(format_.as_bytes(), &m).map(|b| String::from_utf8(b).expect("text"))
    }

    /// Compares with the output of GNU date.
    #[test]
    fn conversions_are_those_of_strftime() {
        let all = "%a %A %b %B %C %d %e %D %F %g %G %H %I %j %k %l %m %M %p %P %r %R %s %S %T %u %U %V %w %W %y %Y %z %Z %%";
        let at_r = all.find(" %r").expect("a place");
        let one = at(784_111_777, &all[..at_r]).expect("a text");
        assert_eq!(
            one,
            "Sun Sunday Nov November 19 06  6 11/06/94 1994-11-06 94 1994 09 09 310  9  9 11 49 AM am"
        );
        let two = at(784_111_777, &all[at_r + 1..]).expect("a text");
        assert_eq!(two, "09:49:37 AM 09:49 784111777 37 09:49:37 7 45 44 0 44 94 1994 +0100 CET %");
        assert_eq!(at(1_104_534_000, "%G-%V %g %U %W %j %u").as_deref(), Some("2004-53 04 00 00 001 6"));
        assert_eq!(
            at(0, "%c|%x|%X|%q|%").as_deref(),
            Some("Thu Jan  1 01:00:00 1970|01/01/70|01:00:00|%q|%")
        );
    }

    #[test]
    fn texts_have_bounds() {
        assert_eq!(at(0, ""), None);
        assert_eq!(at(0, &"x".repeat(128)), None);
        assert_eq!(at(0, &"x".repeat(127)).map(|t| t.len()), Some(127));
    }
}
