//! Dates in a format of strftime, for `config timefmt` of SSI and for `time_format`.

use jiff::civil::DateTime;
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

/// Longest text, bytes (nginx's limit for SSI: 128 including the final NUL).
const LONGEST: usize = 127;

impl Moment<'_> {
    /// Returns the date and time of day in the time zone; `None` if they are out of range.
    pub(crate) fn civil(&self) -> Option<DateTime> {
        let time = jiff::Timestamp::from_second(self.unix).ok()?;
        Some(jiff::tz::Offset::from_seconds(self.offset).ok()?.to_datetime(time))
    }
}

/// Formats a point in time. Unknown conversions are copied as they are. Returns `None` if the text is empty or too long, or
/// the time is out of range.
pub fn format(format: &[u8], m: &Moment<'_>) -> Option<Vec<u8>> {
    let t = m.civil()?;
    let mut out = Vec::new();
    expand(format, m, &t, &mut out);
    (!out.is_empty() && out.len() <= LONGEST).then_some(out)
}

fn expand(format: &[u8], m: &Moment<'_>, t: &DateTime, out: &mut Vec<u8>) {
    let mut rest = format.iter();
    while let Some(b) = rest.next() {
        // A text of this length is refused in any case, so the rest of the format is not needed.
        if out.len() > LONGEST {
            return;
        }
        if *b != b'%' {
            out.push(*b);
            continue;
        }
        // A percent sign at the very end begins no conversion, and stays as it is.
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

/// Appends the text of a conversion. Returns `false` if there is none of this letter.
pub(crate) fn conversion(what: u8, m: &Moment<'_>, t: &DateTime, out: &mut String) -> bool {
    if let Some((_, format)) = COMPOUNDS.iter().find(|(letters, _)| letters.contains(&what)) {
        let mut bytes = Vec::new();
        expand(format.as_bytes(), m, t, &mut bytes);
        out.push_str(&String::from_utf8_lossy(&bytes));
        return true;
    }
    if let Some((width, pad, number)) = number(what, m, t) {
        // Writing to a string cannot fail.
        let _ = match pad {
            Pad::Zero => write!(out, "{number:00$}", width),
            Pad::Space => write!(out, "{number:0$}", width),
        };
        return true;
    }
    word(what, m, t, out)
}

/// Conversions that stand for others.
const COMPOUNDS: &[(&[u8], &str)] = &[
    (b"c", "%a %b %e %H:%M:%S %Y"),
    (b"Dx", "%m/%d/%y"),
    (b"F", "%Y-%m-%d"),
    (b"r", "%I:%M:%S %p"),
    (b"R", "%H:%M"),
    (b"TX", "%H:%M:%S"),
];

/// Byte before numbers that are shorter than their field.
enum Pad {
    Zero,
    Space,
}

/// Returns the number that a conversion writes, with the width of its field.
fn number(what: u8, m: &Moment<'_>, t: &DateTime) -> Option<(usize, Pad, i64)> {
    use Pad::{Space, Zero};
    let weekday = i64::from(t.weekday().to_sunday_zero_offset());
    let hour12 = if t.hour() % 12 == 0 { 12 } else { t.hour() % 12 };
    let year_day = i64::from(t.day_of_year());
    let week = t.date().iso_week_date();
    Some(match what {
        b'C' => (2, Zero, i64::from(t.year() / 100)),
        b'd' => (2, Zero, t.day().into()),
        b'e' => (2, Space, t.day().into()),
        b'g' => (2, Zero, i64::from(week.year() % 100)),
        b'G' => (0, Zero, week.year().into()),
        b'H' => (2, Zero, t.hour().into()),
        b'I' => (2, Zero, hour12.into()),
        b'j' => (3, Zero, year_day),
        b'k' => (2, Space, t.hour().into()),
        b'l' => (2, Space, hour12.into()),
        b'm' => (2, Zero, t.month().into()),
        b'M' => (2, Zero, t.minute().into()),
        b's' => (0, Zero, m.unix),
        b'S' => (2, Zero, t.second().into()),
        b'u' => (0, Zero, if weekday == 0 { 7 } else { weekday }),
        b'U' => (2, Zero, (year_day + 6 - weekday) / 7),
        b'V' => (2, Zero, week.week().into()),
        b'w' => (0, Zero, weekday),
        b'W' => (2, Zero, (year_day + 6 - (weekday + 6) % 7) / 7),
        b'y' => (2, Zero, i64::from(t.year().rem_euclid(100))),
        b'Y' => (0, Zero, t.year().into()),
        _ => return None,
    })
}

/// Returns an offset from UTC as `+hhmm`.
fn offset(seconds: i32) -> String {
    let (minutes, sign) = (seconds.abs() / 60, if seconds < 0 { '-' } else { '+' });
    format!("{sign}{:02}{:02}", minutes / 60, minutes % 60)
}

/// Appends the word that a conversion writes. Returns `false` if there is none of this letter.
fn word(what: u8, m: &Moment<'_>, t: &DateTime, out: &mut String) -> bool {
    let name = |names: &[&'static str], i: i8| usize::try_from(i).ok().and_then(|i| names.get(i)).copied();
    let day = name(&DAYS, t.weekday().to_sunday_zero_offset()).unwrap_or_default();
    let month = name(&MONTHS, t.month() - 1).unwrap_or_default();
    let (morning, offset) = (t.hour() < 12, offset(m.offset));
    out.push_str(match what {
        b'a' => day.get(..3).unwrap_or(day),
        b'A' => day,
        b'b' | b'h' => month.get(..3).unwrap_or(month),
        b'B' => month,
        b'n' => "\n",
        b'p' => {
            if morning {
                "AM"
            } else {
                "PM"
            }
        }
        b'P' => {
            if morning {
                "am"
            } else {
                "pm"
            }
        }
        b't' => "\t",
        b'z' => offset.as_str(),
        b'Z' => m.zone,
        b'%' => "%",
        _ => return false,
    });
    true
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
