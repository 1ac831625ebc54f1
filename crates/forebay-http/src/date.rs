//! Dates of HTTP and of logs (RFC 9110, section 5.6.7), from and to seconds since 1970 (UTC), without
//! allocating. Hot path, although callers keep the results for a second.

const DAYS: &[u8; 21] = b"SunMonTueWedThuFriSat";
const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";

/// Date and time of day, as written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Civil {
    year: u32,
    /// From 1.
    month: u32,
    day: u32,
    /// From 0 = Sunday.
    weekday: u32,
    hour: u32,
    minute: u32,
    second: u32,
}

/// Last second of the year 9999: later ones do not fit into four digits.
pub const LAST: i64 = 253_402_300_799;

/// Splits a time into its parts. Years are counted from March, so that the leap day is the last of its year; 400 years make
/// 146,097 days.
fn civil(seconds: i64) -> Civil {
    let seconds = seconds.clamp(0, LAST) as u64;
    let (days, of_day) = ((seconds / 86_400) as u32, (seconds % 86_400) as u32);
    // 719,468 days lie between 1 March of the year 0 and 1970.
    let from_march = days + 719_468;
    let (era, of_era) = (from_march / 146_097, from_march % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let (month, carry) =
        if month_from_march < 10 { (month_from_march + 3, 0) } else { (month_from_march - 9, 1) };
    Civil {
        year: era * 400 + year_of_era + carry,
        month,
        day,
        weekday: (days + 4) % 7,
        hour: of_day / 3_600,
        minute: of_day / 60 % 60,
        second: of_day % 60,
    }
}

/// Returns the seconds since 1970 of a valid date from then on. The inverse of `civil`.
fn seconds(year: u32, month: u32, day: u32, of_day: u32) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.saturating_sub(1), month + 9) };
    let days = i64::from(365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1);
    (days - 719_468) * 86_400 + i64::from(of_day)
}

/// Writes parts one after the other into an array whose size the format fixes.
struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    fn new() -> Self {
        Writer { bytes: [b' '; N], at: 0 }
    }
    fn put(&mut self, text: &[u8]) -> &mut Self {
        if let Some(place) = self.bytes.get_mut(self.at..self.at + text.len()) {
            place.copy_from_slice(text);
        }
        self.at += text.len();
        self
    }
    fn two(&mut self, n: u32) -> &mut Self {
        self.put(&[digit(n / 10), digit(n)])
    }
    fn four(&mut self, n: u32) -> &mut Self {
        self.two(n / 100).two(n)
    }
    fn time(&mut self, c: &Civil) -> &mut Self {
        self.two(c.hour).put(b":").two(c.minute).put(b":").two(c.second)
    }
    /// Writes `+HH`, then `separator`, then `MM`.
    fn offset(&mut self, seconds: i32, separator: &[u8]) -> &mut Self {
        let minutes = (seconds / 60).unsigned_abs();
        self.put(if seconds < 0 { b"-" } else { b"+" }).two(minutes / 60).put(separator).two(minutes % 60)
    }
}

fn digit(n: u32) -> u8 {
    b'0' + (n % 10) as u8
}

/// Returns the three letters at an index of `DAYS` or `MONTHS`.
fn three(names: &[u8], index: u32) -> &[u8] {
    names.get(index as usize * 3..index as usize * 3 + 3).unwrap_or(b"???")
}

/// Formats a date as IMF-fixdate, for instance `Sun, 06 Nov 1994 08:49:37 GMT`. Times before 1970 or after 9999 become the
/// nearest one within.
pub fn imf(unix: i64) -> [u8; 29] {
    let c = civil(unix);
    let mut w = Writer::new();
    w.put(three(DAYS, c.weekday)).put(b", ").two(c.day).put(b" ").put(three(MONTHS, c.month - 1)).put(b" ");
    w.four(c.year).put(b" ").time(&c).put(b" GMT");
    w.bytes
}

/// Formats a date as in nginx's cookies: `Sun, 06-Nov-94 08:49:37 GMT`, with four digits of the year from 2038 on.
pub fn cookie(unix: i64, out: &mut Vec<u8>) {
    let c = civil(unix);
    let mut w = Writer::<31>::new();
    w.put(three(DAYS, c.weekday)).put(b", ").two(c.day).put(b"-").put(three(MONTHS, c.month - 1)).put(b"-");
    if c.year > 2037 {
        w.four(c.year);
    } else {
        w.two(c.year % 100);
    }
    w.put(b" ").time(&c).put(b" GMT");
    let len = w.at;
    out.extend_from_slice(w.bytes.get(..len).unwrap_or_default());
}

/// Formats a time as `$time_local`, for instance `21/Nov/2026:02:14:40 +0000`. The offset from UTC is in seconds.
pub fn log(unix: i64, utc_offset: i32) -> [u8; 26] {
    let c = civil(unix.saturating_add(i64::from(utc_offset)));
    let mut w = Writer::new();
    w.two(c.day).put(b"/").put(three(MONTHS, c.month - 1)).put(b"/").four(c.year).put(b":").time(&c);
    w.put(b" ").offset(utc_offset, b"");
    w.bytes
}

/// Formats a time as `$time_iso8601`, for instance `2026-11-21T02:14:40+00:00`. The offset from UTC is in seconds.
pub fn iso8601(unix: i64, utc_offset: i32) -> [u8; 25] {
    let c = civil(unix.saturating_add(i64::from(utc_offset)));
    let mut w = Writer::new();
    w.four(c.year).put(b"-").two(c.month).put(b"-").two(c.day).put(b"T").time(&c).offset(utc_offset, b":");
    w.bytes
}

/// Formats a time as `$time_iso8601_ms`, for instance `2026-11-21T02:14:40.007+00:00`. The offset from UTC is in seconds.
pub fn iso8601_ms(unix: i64, milliseconds: u32, utc_offset: i32) -> [u8; 29] {
    let whole = iso8601(unix, utc_offset);
    let mut out = [0; 29];
    let (seconds, zone) = whole.split_at(19);
    let digit = |place: u32| b'0' + (milliseconds / place % 10) as u8;
    let parts =
        seconds.iter().copied().chain([b'.', digit(100), digit(10), digit(1)]).chain(zone.iter().copied());
    out.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
    out
}

/// Formats a time as in nginx's error log, for instance `2026/11/21 02:14:40`. The offset from UTC is in seconds.
pub fn error_log(unix: i64, utc_offset: i32) -> [u8; 19] {
    let c = civil(unix.saturating_add(i64::from(utc_offset)));
    let mut w = Writer::new();
    w.four(c.year).put(b"/").two(c.month).put(b"/").two(c.day).put(b" ").time(&c);
    w.bytes
}

/// Formats a time for syslog (RFC 3164), for instance `Nov 21 02:14:40`. The offset from UTC is in seconds.
pub fn syslog(unix: i64, utc_offset: i32) -> [u8; 15] {
    let c = civil(unix.saturating_add(i64::from(utc_offset)));
    let mut w = Writer::new();
    w.put(three(MONTHS, c.month - 1)).put(b" ");
    w.put(&[if c.day < 10 { b' ' } else { digit(c.day / 10) }, digit(c.day)]).put(b" ").time(&c);
    w.bytes
}

/// Reads a date in any of HTTP's three formats, as leniently as nginx: the weekday is not checked, and
/// neither is the text behind the time (or behind the year of the asctime form). `None` if it is no date.
pub fn parse(text: &[u8]) -> Option<i64> {
    let first = memchr::memchr2(b',', b' ', text)?;
    let rest = text.get(first + 1..)?;
    match text.get(first) {
        Some(b',') => parse_with_comma(rest.trim_ascii_start()),
        _ => parse_asctime(rest),
    }
}

/// Reads `06 Nov 1994 08:49:37` or `06-Nov-94 08:49:37`.
fn parse_with_comma(text: &[u8]) -> Option<i64> {
    let mut p = Reader(text);
    let day = p.two()?;
    let separator = p.byte()?;
    let month = p.month()?;
    let year = p.year_behind(separator)?;
    let time = p.time_behind_blank()?;
    valid(year, month, day, time)
}

/// Reads `Nov  6 08:49:37 1994`.
fn parse_asctime(text: &[u8]) -> Option<i64> {
    let mut p = Reader(text);
    let month = p.month()?;
    let day = p.padded_day()?;
    let time = p.time_behind_blank()?;
    p.expect(b' ')?;
    let year = p.four()?;
    valid(year, month, day, time)
}

fn valid(year: u32, month: u32, day: u32, of_day: u32) -> Option<i64> {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    // Years before 1970 would be negative times, which nginx does not use either.
    (year >= 1970 && (1..=days).contains(&day)).then(|| seconds(year, month, day, of_day))
}

/// Returns the year from its last two digits, 1970 to 2069.
fn full_year(two_digits: u32) -> u32 {
    if two_digits < 70 { 2000 + two_digits } else { 1900 + two_digits }
}

/// The text of a date that has not been read.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&b, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(b)
    }
    fn expect(&mut self, want: u8) -> Option<()> {
        (self.byte()? == want).then_some(())
    }
    fn digit(&mut self) -> Option<u32> {
        let b = self.byte()?;
        b.is_ascii_digit().then(|| u32::from(b - b'0'))
    }
    fn two(&mut self) -> Option<u32> {
        Some(self.digit()? * 10 + self.digit()?)
    }
    fn four(&mut self) -> Option<u32> {
        Some(self.two()? * 100 + self.two()?)
    }
    /// Reads the name of a month. Returns its number, from 1. The case matters.
    fn month(&mut self) -> Option<u32> {
        let (name, rest) = self.0.split_first_chunk::<3>()?;
        self.0 = rest;
        let index = MONTHS.chunks_exact(3).position(|m| m == name)?;
        u32::try_from(index + 1).ok()
    }
    /// Reads a day of one or two digits behind one or two blanks.
    fn padded_day(&mut self) -> Option<u32> {
        self.expect(b' ')?;
        if self.0.first() == Some(&b' ') {
            self.byte()?;
        }
        let first = self.digit()?;
        if self.0.first() == Some(&b' ') {
            return Some(first);
        }
        Some(first * 10 + self.digit()?)
    }
    /// Reads the separator of day and month again, and then the year. Dashes come with a year of two digits (RFC 9110,
    /// section 5.6.7).
    fn year_behind(&mut self, separator: u8) -> Option<u32> {
        self.expect(separator)?;
        match separator {
            b' ' => self.four(),
            b'-' => self.two().map(full_year),
            _ => None,
        }
    }
    fn time_behind_blank(&mut self) -> Option<u32> {
        self.expect(b' ')?;
        self.time()
    }
    /// Reads `08:49:37`. Returns seconds of the day.
    fn time(&mut self) -> Option<u32> {
        let hour = self.two()?;
        self.expect(b':')?;
        let minute = self.two()?;
        self.expect(b':')?;
        let second = self.two()?;
        (hour < 24 && minute < 60 && second < 60).then_some(hour * 3_600 + minute * 60 + second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        assert_eq!(&imf(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(&imf(0), b"Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(&imf(951_782_400), b"Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(&imf(-1), &imf(0));
        assert_eq!(&imf(i64::MAX), b"Fri, 31 Dec 9999 23:59:59 GMT");
        assert_eq!(&log(1_795_227_280, 0), b"21/Nov/2026:02:14:40 +0000");
        assert_eq!(&log(1_795_227_280, -12_600), b"20/Nov/2026:22:44:40 -0330");
        assert_eq!(&iso8601(1_795_227_280, 7_200), b"2026-11-21T04:14:40+02:00");
        assert_eq!(&error_log(1_795_227_280, 0), b"2026/11/21 02:14:40");
        assert_eq!(&syslog(1_767_337_445, 0), b"Jan  2 07:04:05");
        let mut out = Vec::new();
        cookie(784_111_777, &mut out);
        assert_eq!(out, b"Sun, 06-Nov-94 08:49:37 GMT");
        out.clear();
        cookie(2_145_916_800 + 86_400 * 366, &mut out);
        assert_eq!(out, b"Sun, 02-Jan-2039 00:00:00 GMT");
    }

    #[test]
    fn every_day_goes_there_and_back() {
        for day in 0..120_000i64 {
            let unix = day * 86_400 + day % 86_400;
            assert_eq!(parse(&imf(unix)), Some(unix));
        }
    }

    #[test]
    fn parses_as_nginx() {
        for text in [
            "Thu, 02 Jan 2020 03:04:05 GMT",
            "Fri, 02 Jan 2020 03:04:05",
            "Thu,02 Jan 2020 03:04:05 PST",
            ",  02 Jan 2020 03:04:05 GMT; length=3",
            "Thursday, 02-Jan-20 03:04:05 GMT",
            "Thu Jan  2 03:04:05 2020",
            "Thu Jan 2 03:04:05 2020 GMT",
            "Thu Jan 02 03:04:05 2020x",
        ] {
            assert_eq!(parse(text.as_bytes()), Some(1_577_934_245), "{text}");
        }
        for text in [
            "",
            "x",
            "thu, 02 jan 2020 03:04:05 gmt",
            "Thu, 2 Jan 2020 03:04:05 GMT",
            "Thu 02 Jan 2020 03:04:05 GMT",
            "Thu, 02-Jan-2020 03:04:05 GMT",
            "Thu, 02-Jan 2020 03:04:05 GMT",
            "Jan  2 03:04:05 2020",
            "Thu, 02 Jan 2020  03:04:05 GMT",
            "Thu, 02 Jan 2020 3:04:05 GMT",
            "Thu, 01 Jan 2020 27:04:05 GMT",
            "Thu, 02 Jan 2020 03:03:65 GMT",
            "Thu, 30 Feb 2020 03:03:05 GMT",
            "Thu, 02 Jan 20 03:04:05 GMT",
            "Thu, 02 Jan 2020T03:04:05",
            "Thu, 02 Jan 1969 03:04:05 GMT",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse(b"Sunday, 06-Nov-94 08:49:37 GMT"), Some(784_111_777));
    }
}
