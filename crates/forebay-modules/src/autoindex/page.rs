//! `autoindex_format page`: a listing for people, with a way up, columns that sort, and colours for light and dark. It needs no script.

use super::directory::{Listed, Listing, Type};
use super::escape_name;
use forebay_http::uri::escape_html;
use std::cmp::Ordering;
use std::io::Write;

/// Column that a listing is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Name,
    Size,
    Time,
}

/// Order of a listing, from the arguments `sort=name|size|time` and `order=desc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    column: Column,
    descending: bool,
}

impl Order {
    fn of(args: &[u8]) -> Order {
        let mut order = Order { column: Column::Name, descending: false };
        for arg in args.split(|b| *b == b'&') {
            match arg {
                b"sort=size" => order.column = Column::Size,
                b"sort=time" => order.column = Column::Time,
                b"order=desc" => order.descending = true,
                _ => {}
            }
        }
        order
    }

    /// Compares two entries. Folders come first in any order.
    fn compare(self, a: &Listed<'_>, b: &Listed<'_>) -> Ordering {
        let is_file = |e: &Listed<'_>| e.kind != Type::Directory;
        let own = match self.column {
            Column::Name => a.name.cmp(b.name),
            Column::Size => a.size.cmp(&b.size),
            Column::Time => a.mtime.cmp(&b.mtime),
        };
        let own = if self.descending { own.reverse() } else { own };
        is_file(a).cmp(&is_file(b)).then(own).then_with(|| a.name.cmp(b.name))
    }
}

/// Style of the page.
const STYLE: &str = "\
:root{color-scheme:light dark;--text:#1b1f24;--dim:#5f6b76;--line:#dfe4e8;--link:#0b5cad;--back:#fff;--hover:#f3f6f8}\
@media(prefers-color-scheme:dark){:root{--text:#e6e9ec;--dim:#98a4af;--line:#2f363d;--link:#6cb2ff;--back:#14181c;--hover:#1d2329}}\
body{margin:0 auto;max-width:60rem;padding:1.5rem 1rem;background:var(--back);color:var(--text);font:1rem/1.5 system-ui,sans-serif}\
h1{font-size:1.2rem;font-weight:600;margin:0 0 1rem;overflow-wrap:anywhere}\
a{color:var(--link);text-decoration:none}a:hover{text-decoration:underline}\
table{width:100%;border-collapse:collapse}\
th{text-align:left;font-weight:500;color:var(--dim);border-bottom:1px solid var(--line);padding:.3rem .5rem}\
th a{color:inherit}td{padding:.3rem .5rem;border-bottom:1px solid var(--line)}tr:hover td{background:var(--hover)}\
td:first-child{overflow-wrap:anywhere}.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums;color:var(--dim)}\
p{color:var(--dim);font-size:.9rem}\
@media(max-width:32rem){td:last-child,th:last-child{display:none}}";

/// What a page shows besides the entries.
pub(super) struct Look<'a> {
    /// Path of the folder, decoded.
    pub path: &'a [u8],
    /// Query of the request.
    pub args: &'a [u8],
    /// Sizes are in bytes.
    pub exact: bool,
    /// Offset of the times from UTC, seconds.
    pub offset: i64,
}

/// Appends the page.
pub(super) fn page(look: &Look<'_>, entries: &Listing, out: &mut Vec<u8>) {
    let order = Order::of(look.args);
    let mut sorted: Vec<Listed<'_>> = entries.iter().collect();
    sorted.sort_by(|a, b| order.compare(a, b));
    out.extend_from_slice(b"<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n");
    out.extend_from_slice(b"<meta name=\"viewport\" content=\"width=device-width\">\n<title>");
    escape_html(look.path, out);
    out.extend_from_slice(b"</title>\n<style>");
    out.extend_from_slice(STYLE.as_bytes());
    out.extend_from_slice(b"</style>\n<h1>");
    crumbs(look.path, out);
    out.extend_from_slice(b"</h1>\n<table>\n<thead><tr>");
    for (column, name, title) in
        [(Column::Name, "name", "Name"), (Column::Size, "size", "Size"), (Column::Time, "time", "Changed")]
    {
        heading(order, (column, name, title), out);
    }
    out.extend_from_slice(b"</tr></thead>\n<tbody>\n");
    if look.path.len() > 1 {
        out.extend_from_slice(b"<tr><td><a href=\"../\">../</a></td><td></td><td></td></tr>\n");
    }
    for e in &sorted {
        row(e, look, out);
    }
    let folders = sorted.iter().filter(|e| e.kind == Type::Directory).count();
    let bytes =
        sorted.iter().filter(|e| e.kind == Type::File).fold(0u64, |sum, e| sum.saturating_add(e.size));
    let _ = write!(
        out,
        "</tbody>\n</table>\n<p>{}, {}, {}</p>\n</html>\n",
        count(folders, "folder"),
        count(sorted.len() - folders, "file"),
        size(bytes)
    );
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Appends the folders of a path, each as a link but the last.
fn crumbs(path: &[u8], out: &mut Vec<u8>) {
    let names: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|name| !name.is_empty()).collect();
    let up = |levels: usize| "../".repeat(levels);
    let _ = match names.len() {
        0 => write!(out, "/"),
        deep => write!(out, "<a href=\"{}\">/</a>", up(deep)),
    };
    for (at, name) in names.iter().enumerate() {
        let levels = names.len() - at - 1;
        if levels > 0 {
            let _ = write!(out, "<a href=\"{}\">", up(levels));
        }
        escape_html(name, out);
        out.extend_from_slice(if levels > 0 { b"/</a>" } else { b"/" });
    }
}

/// Appends the head of a column, which sorts by it, or the other way round.
fn heading(order: Order, (column, name, title): (Column, &str, &str), out: &mut Vec<u8>) {
    let is_own = order.column == column;
    let turned = if is_own && !order.descending { "&amp;order=desc" } else { "" };
    let (mark, aria) = match (is_own, order.descending) {
        (false, _) => ("", ""),
        (true, false) => (" \u{2191}", " aria-sort=\"ascending\""),
        (true, true) => (" \u{2193}", " aria-sort=\"descending\""),
    };
    let class = if column == Column::Name { "" } else { " class=\"n\"" };
    let _ = write!(out, "<th{class}{aria}><a href=\"?sort={name}{turned}\">{title}{mark}</a></th>");
}

fn row(e: &Listed<'_>, look: &Look<'_>, out: &mut Vec<u8>) {
    let slash: &[u8] = if e.kind == Type::Directory { b"/" } else { b"" };
    out.extend_from_slice(b"<tr><td><a href=\"");
    escape_name(e.name, out);
    out.extend_from_slice(slash);
    out.extend_from_slice(b"\">");
    escape_html(e.name, out);
    out.extend_from_slice(slash);
    let size = match (e.kind, look.exact) {
        (Type::Directory, _) => String::new(),
        (_, true) => e.size.to_string(),
        (_, false) => size(e.size),
    };
    let date = forebay_http::date::iso8601(e.mtime.saturating_add(look.offset), 0);
    let date = String::from_utf8_lossy(date.get(..16).unwrap_or_default()).replace('T', " ");
    let _ = writeln!(out, "</a></td><td class=\"n\">{size}</td><td class=\"n\">{date}</td></tr>");
}

/// Returns a size for people: three digits and a unit.
fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        // A tenth is shown where it says something.
        Some((unit, name)) if bytes / unit < 10 => {
            let tenths = bytes % unit * 10 / unit;
            format!("{}.{tenths} {name}", bytes / unit)
        }
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(path: &str, args: &str) -> String {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("sub")).expect("made");
        for (name, length) in [("a.txt", 2), ("b <&>.txt", 3000), ("c.bin", 20)] {
            std::fs::write(dir.path().join(name), vec![b'x'; length]).expect("written");
        }
        let entries = Listing::read(dir.path().as_os_str().as_encoded_bytes()).expect("entries");
        let mut out = Vec::new();
        let look = Look { path: path.as_bytes(), args: args.as_bytes(), exact: false, offset: 0 };
        page(&look, &entries, &mut out);
        String::from_utf8(out).expect("text")
    }

    fn order(text: &str) -> Vec<usize> {
        ["sub/</a>", "a.txt</a>", "b &lt;&amp;&gt;.txt</a>", "c.bin</a>"]
            .map(|name| text.find(name).unwrap_or_else(|| panic!("no {name}: {text}")))
            .to_vec()
    }

    #[test]
    fn folders_come_first_and_columns_sort() {
        let sorted = |text: &str| {
            let places = order(text);
            let mut by_place: Vec<usize> = (0..places.len()).collect();
            by_place.sort_by_key(|n| places[*n]);
            by_place
        };
        assert_eq!(sorted(&made("/", "")), [0, 1, 2, 3]);
        assert_eq!(sorted(&made("/", "sort=name&order=desc")), [0, 3, 2, 1]);
        assert_eq!(sorted(&made("/", "sort=size")), [0, 1, 3, 2]);
        assert_eq!(sorted(&made("/", "x=1&order=desc&sort=size")), [0, 2, 3, 1]);
    }

    #[test]
    fn names_and_paths_are_escaped() {
        let text = made("/p/<q>/", "sort=size");
        assert!(text.contains("href=\"b%20%3C%26%3E.txt\""), "{text}");
        assert!(text.contains("<a href=\"../../\">/</a><a href=\"../\">p/</a>&lt;q&gt;/"), "{text}");
        assert!(!text.contains("<q>"), "{text}");
        assert!(text.contains("href=\"?sort=size&amp;order=desc\""), "{text}");
        assert!(text.contains("1 folder, 3 files, 2.9 kB"), "{text}");
        assert!(text.contains(">../<") && !made("/", "").contains(">../<"));
    }

    #[test]
    fn sizes() {
        for (bytes, want) in
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 kB"), (20 << 20, "20 MB"), (3 << 40, "3.0 TB")]
        {
            assert_eq!(size(bytes), want);
        }
    }
}
