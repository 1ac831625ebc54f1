//! Writing gathered lines to a log, and going on where a killed process stopped.

use rustix::fs::FileType;
use rustix::io::Errno;
use std::borrow::Cow;
use std::io::Write;
use std::os::fd::AsFd;

/// Most bytes that a pipe takes in one piece even if others write to it (pipe(7), PIPE_BUF).
const ATOMIC: usize = 4096;

/// Returns `true` if a log is a regular file or /dev/null: the kernel then appends each write in one piece, however long.
/// Pipes, sockets and terminals get no more than 4096 bytes at a time.
pub fn is_regular(log: impl AsFd) -> bool {
    let Ok(s) = rustix::fs::fstat(log) else { return false };
    match FileType::from_raw_mode(s.st_mode) {
        FileType::RegularFile => true,
        FileType::CharacterDevice => (rustix::fs::major(s.st_rdev), rustix::fs::minor(s.st_rdev)) == (1, 3),
        _ => false,
    }
}

/// Writes whole lines: at once to a regular file (`regular`), else in pieces that are not mixed with those of other processes.
/// Calls `written` with the number of bytes written so far after each piece.
///
/// # Errors
/// The number of lines that could not be written.
pub fn write_lines(
    log: impl AsFd,
    lines: &[u8],
    regular: bool,
    mut written: impl FnMut(usize),
) -> Result<(), u64> {
    let mut start = 0;
    while let Some(rest) = lines.get(start..).filter(|rest| !rest.is_empty()) {
        let next = if regular { rest } else { first_piece(rest) };
        match rustix::io::write(&log, next) {
            Ok(n) if n > 0 => {
                start += n;
                // Of a regular file the master reads the end itself (`resume`).
                if !regular {
                    written(start);
                }
            }
            Err(Errno::INTR) => {}
            // For instance a full disk: a thread of connections cannot wait for room, so the lines are lost.
            _ => return Err(memchr::memchr_iter(b'\n', rest).count() as u64),
        }
    }
    Ok(())
}

/// Returns as many whole lines as a pipe takes in one piece. A longer line goes alone.
pub fn first_piece(lines: &[u8]) -> &[u8] {
    let fits = lines.get(..ATOMIC).unwrap_or(lines);
    let end = match fits.len() == lines.len() {
        // Not empty: the caller has checked.
        true => Some(lines.len() - 1),
        false => memchr::memrchr(b'\n', fits).or_else(|| memchr::memchr(b'\n', lines)),
    };
    end.and_then(|end| lines.get(..=end)).unwrap_or(lines)
}

/// Returns the bytes that are written for lines (nginx: access_log, gzip=). The same lines give the same bytes each time.
pub fn encode(lines: &[u8], gzip: Option<u32>) -> Cow<'_, [u8]> {
    let Some(level) = gzip else { return lines.into() };
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(level));
    match encoder.write_all(lines).and_then(|()| encoder.finish()) {
        Ok(bytes) => bytes.into(),
        Err(_) => lines.into(),
    }
}

/// Finds the place in `bytes` to go on from after a write to a log was cut off, by the `tail` of that log. A line of which a
/// part is in the log is completed. If lines may be in the log already or may be earlier ones with the same text, they are
/// written again.
///
/// `None`: the log ends inside a line of another writer.
pub fn resume(tail: &[u8], bytes: &[u8], gzip: bool) -> Option<usize> {
    let torn = match memchr::memrchr(b'\n', tail) {
        _ if gzip => 1,
        Some(end) => tail.len() - end - 1,
        None => tail.len(),
    };
    if torn == 0 {
        return Some(0);
    }
    let borders = Borders::of(bytes);
    let mut length = tail.iter().fold(0, |length, byte| borders.step(length, *byte));
    if gzip {
        // A member that is complete may be an earlier one. Of others the longest counts: its header is in no
        // other place.
        return Some(if length == bytes.len() { 0 } else { length });
    }
    if length < torn {
        return None;
    }
    while borders.shorter(length) >= torn {
        length = borders.shorter(length);
    }
    Some(length)
}

/// For each beginning of a text, the length of the longest shorter beginning that is also its end (Knuth, Morris, Pratt).
struct Borders<'t> {
    text: &'t [u8],
    lengths: Vec<u32>,
}

impl<'t> Borders<'t> {
    fn of(text: &'t [u8]) -> Borders<'t> {
        let mut borders = Borders { text, lengths: vec![0; text.len() + 1] };
        for (i, byte) in text.iter().enumerate().skip(1) {
            let length = borders.step(borders.shorter(i), *byte);
            if let Some(border) = borders.lengths.get_mut(i + 1) {
                *border = length as u32;
            }
        }
        borders
    }

    /// Returns the length of the next shorter beginning that is also an end.
    fn shorter(&self, length: usize) -> usize {
        self.lengths.get(length).map_or(0, |b| *b as usize)
    }

    /// Returns the length of the beginning that ends in `byte`, after one of this length.
    fn step(&self, mut length: usize, byte: u8) -> usize {
        loop {
            if self.text.get(length) == Some(&byte) {
                return length + 1;
            }
            if length == 0 {
                return 0;
            }
            length = self.shorter(length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn pieces_end_with_lines() {
        let line = [b"x".repeat(999), b"\n".to_vec()].concat();
        let lines = line.repeat(10);
        assert_eq!(first_piece(&lines).len(), 4000);
        assert_eq!(first_piece(&lines[..4000]).len(), 4000);
        assert_eq!(first_piece(&lines[..1000]).len(), 1000);
        let long = [b"y".repeat(5000), b"\n".to_vec(), line].concat();
        assert_eq!(first_piece(&long).len(), 5001);
        assert_eq!(first_piece(&long[..5000]).len(), 5000);
    }

    #[test]
    fn a_pipe_reader_gets_whole_lines_from_two_threads() {
        let (mut reader, writer) = std::io::pipe().expect("pipe");
        assert!(!is_regular(&writer));
        // Small enough that writers wait for room all the time.
        rustix::pipe::fcntl_setpipe_size(&writer, 8192).expect("size");
        let thread = |letter: char| {
            let writer = writer.try_clone().expect("descriptor");
            std::thread::spawn(move || {
                let mut lines = Vec::new();
                for n in 0..4000 {
                    let line = letter.to_string().repeat(1 + (n * 7) % 300);
                    lines.extend_from_slice(format!("{letter}{n} {line}.\n").as_bytes());
                    if n % 97 == 0 {
                        let mut last = 0;
                        assert_eq!(write_lines(&writer, &lines, false, |n| last = n), Ok(()));
                        assert_eq!(last, lines.len());
                        lines.clear();
                    }
                }
                assert_eq!(write_lines(&writer, &lines, false, |_| {}), Ok(()));
            })
        };
        let threads = [thread('a'), thread('b')];
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("read");
        for t in threads {
            t.join().expect("no panic");
        }
        let mut next = [0, 0];
        for line in text.lines() {
            let (letter, n) = (line.as_bytes()[0] as char, &mut next[usize::from(line.as_bytes()[0] - b'a')]);
            let expected = format!("{letter}{n} {}.", letter.to_string().repeat(1 + (*n * 7) % 300));
            assert_eq!(line, expected);
            *n += 1;
        }
        assert_eq!(next, [4000, 4000]);
    }

    #[test]
    fn kinds_of_logs() {
        let open = |path: &str| std::fs::OpenOptions::new().append(true).open(path).expect("open");
        assert!(is_regular(tempfile::tempfile().expect("file")) && is_regular(open("/dev/null")));
        assert!(!is_regular(open("/dev/full")));
    }

    #[test]
    fn lines_that_find_no_room_are_counted() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        assert_eq!(write_lines(&full, b"one\ntwo\nthree\n", true, |_| {}), Err(3));
    }

    #[test]
    fn a_torn_line_is_completed() {
        let bytes = b"GET /1\nGET /2\nGET /3\n";
        for cut in 0..=bytes.len() {
            let tail = [b"GET /0\n", &bytes[..cut]].concat();
            let at = resume(&tail, bytes, false).expect("ours");
            let whole = [&tail[..], &bytes[at..]].concat();
            let text = String::from_utf8(whole).expect("text");
            for n in 0..4 {
                let times = text.lines().filter(|l| *l == format!("GET /{n}")).count();
                assert!((1..=2).contains(&times), "{cut}: {text}");
                // What is unmistakable is not written twice.
                assert!(times == 1 || cut % 7 < 6, "{cut}: {text}");
            }
            assert!(text.lines().all(|l| l.len() == 6), "{cut}: {text}");
        }
    }

    #[test]
    fn lines_that_are_the_same_are_not_lost() {
        // Three in the log from before, three in the slot, one of them written and a half.
        let at = resume(b"same\nsame\nsame\nsame\nsa", b"same\nsame\nsame\n", false).expect("ours");
        assert_eq!(at, 2);
        assert_eq!(resume(b"", b"same\n", false), Some(0));
        assert_eq!(resume(b"else", b"same\n", false), None);
        assert_eq!(resume(b"x\nsomething sa", b"same\n", false), None);
    }

    #[test]
    fn a_torn_member_is_completed() {
        let lines = (0..500).map(|n| format!("GET /{n}\n")).collect::<String>();
        let (before, now) = (encode(b"GET /before\n", Some(1)), encode(lines.as_bytes(), Some(6)));
        for cut in (0..=now.len()).step_by(17).chain([1, 2, now.len() - 1, now.len()]) {
            let tail = [&before[..], &now[..cut]].concat();
            let at = resume(&tail, &now, true).expect("always");
            assert_eq!(at, if cut == now.len() { 0 } else { cut });
        }
        assert_eq!(resume(&now, &now, true), Some(0));
        let mut text = String::new();
        let twice = [&now[..], &now[..]].concat();
        flate2::read::MultiGzDecoder::new(&twice[..]).read_to_string(&mut text).expect("two members");
        assert_eq!(text, lines.repeat(2));
    }
}
