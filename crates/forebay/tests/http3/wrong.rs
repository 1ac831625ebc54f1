//! Clients that break the rules: each gets the error that RFC 9114 and RFC 9204 ask for, and others on the connection are only hurt
//! where the rules say so.

use super::{Client, serve};
use forebay_http::compression::{Field, Sink, push_int};
use forebay_http::h3::frame::{Header, push_settings};
use forebay_http::h3::qpack::Decoder;
use forebay_testkit::{Origin, Server};
use serde_json::{Value, json};
use std::net::TcpListener;

const STREAM_CREATION: u64 = 0x103;
const CLOSED_CRITICAL: u64 = 0x104;
const UNEXPECTED: u64 = 0x105;
const FRAME: u64 = 0x106;
const EXCESSIVE: u64 = 0x107;
const ID: u64 = 0x108;
const SETTINGS: u64 = 0x109;
const MISSING_SETTINGS: u64 = 0x10a;
const REJECTED: u64 = 0x10b;
const INCOMPLETE: u64 = 0x10d;
const MESSAGE: u64 = 0x10e;
const DECOMPRESSION: u64 = 0x200;
const ENCODER: u64 = 0x201;
const DECODER: u64 = 0x202;

/// Right answer to a wrong client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    /// The connection ends with this code.
    Connection(u64),
    /// The stream `bidi` ends with this code, and the connection goes on.
    Stream(u64),
    /// The request on `bidi` is refused by status 400 or H3_MESSAGE_ERROR, and the connection goes on.
    Refused,
    /// The connection goes on.
    Nothing,
}

/// Action of a client on a stream.
#[derive(Clone, Debug)]
enum Step {
    Send(&'static str, Vec<u8>),
    End(&'static str, Vec<u8>),
    Reset(&'static str),
}

use Step::{End, Reset, Send};
use Want::{Connection, Nothing, Refused, Stream};

impl Step {
    fn json(&self) -> Value {
        match self {
            Send(stream, bytes) => json!([stream, hex(bytes), false]),
            End(stream, bytes) => json!([stream, hex(bytes), true]),
            Reset(stream) => json!([stream, "reset", 0x100]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Header { kind, len: payload.len() as u64 }.push(&mut out);
    out.extend_from_slice(payload);
    out
}

fn settings(pairs: &[(u64, u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    push_settings(&mut out, pairs);
    out
}

/// A control stream with SETTINGS and then these bytes.
fn control(more: &[u8]) -> Vec<u8> {
    [&[0, 4, 0], more].concat()
}

/// A field section of literals.
fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = vec![0, 0];
    for (name, value) in fields {
        push_int(&mut out, 0x20, 3, name.len());
        out.extend_from_slice(name.as_bytes());
        push_int(&mut out, 0, 7, value.len());
        out.extend_from_slice(value.as_bytes());
    }
    out
}

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", "/page")];

/// HEADERS of a request with more fields.
fn head(path: &'static str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut fields = GET.to_vec();
    fields[3].1 = path;
    if path == "/up" {
        fields[0].1 = "POST";
    }
    fields.extend_from_slice(more);
    frame(1, &section(&fields))
}

/// HEADERS of these fields only.
fn only(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(1, &section(fields))
}

fn trailers() -> Vec<u8> {
    frame(1, &section(&[("x", "y")]))
}

struct Status(u16);

impl Sink for Status {
    fn field(&mut self, Field { name, value, .. }: Field<'_>) {
        if name == b":status" {
            self.0 = String::from_utf8_lossy(value).parse().expect("a status");
        }
    }
}

/// Status of the answer that a stream without HTTP has received; 0 without one.
fn status(told: &Value) -> u16 {
    let body = told["text"].as_str().expect("bytes");
    let bytes: Vec<u8> = body.chars().map(|c| c as u8).collect();
    let Some((header, len)) = Header::read(&bytes) else { return 0 };
    assert_eq!(header.kind, 1);
    let mut status = Status(0);
    let section = &bytes[len..len + header.len as usize];
    Decoder::new(0).decode(section, &mut Vec::new(), &mut status).expect("a field section");
    status.0
}

fn server() -> Server {
    let up = Origin::start(|asked| asked.answer("200 OK", "", "up"));
    serve(&format!("location = /up {{ proxy_pass http://{up}; }}"))
}

/// Asks for a page on another stream of a connection without HTTP.
fn goes_on(client: &mut Client) -> Result<(), String> {
    let steps = json!([End("bidi good", head("/page", &[])).json()]);
    client.call("raw", json!({"on": "a", "steps": steps}));
    let told = client.answer("bidi good");
    match (told["ended"].as_bool(), told["closed"].is_null()) {
        (Some(true), true) if status(&told) == 200 => Ok(()),
        _ => Err(format!("a good request afterwards: {told}")),
    }
}

/// Has a client do these steps; `Err` if it is not answered as wanted.
fn judge(client: &mut Client, server: &Server, steps: &[Step], want: Want) -> Result<(), String> {
    client.connect_with("a", server, json!({"raw": true}));
    let list: Vec<Value> = steps.iter().map(Step::json).collect();
    client.call("raw", json!({"on": "a", "steps": list}));
    let result = match want {
        Connection(code) => {
            let told = client.call("wait", json!({"on": "a", "for": "closed"}));
            match told["closed"]["code"].as_u64() {
                Some(got) if got == code => Ok(()),
                _ => Err(format!("wanted {code:#x}: {}", told["closed"])),
            }
        }
        Stream(code) => {
            let told = client.call("answer", json!({"of": "bidi"}));
            match told["reset"].as_u64() {
                Some(got) if got == code => goes_on(client),
                _ => Err(format!("wanted {code:#x} on the stream: {told}")),
            }
        }
        Refused => {
            let told = client.call("answer", json!({"of": "bidi"}));
            match told["reset"] == MESSAGE || told["stopped"] == MESSAGE || status(&told) == 400 {
                true => goes_on(client),
                false => Err(format!("wanted a refusal: {told}")),
            }
        }
        Nothing => goes_on(client),
    };
    client.call("close", json!({"on": "a"}));
    result
}

fn check(rows: &[(&str, Vec<Step>, Want)]) {
    let Some(mut client) = Client::start() else { return };
    let server = server();
    let wrong = |row: &(&str, Vec<Step>, Want)| {
        let (what, steps, want) = row;
        judge(&mut client, &server, steps, *want).err().map(|e| format!("{what}: {e}\n"))
    };
    let failures: String = rows.iter().filter_map(wrong).collect();
    assert_eq!(failures, "");
    let log = server.error_log();
    assert!(!log.contains("panic"), "{log}");
}

#[test]
fn control_streams() {
    let of = |bytes: &[u8]| vec![Send("uni", control(bytes))];
    let first = |bytes: &[u8]| vec![Send("uni", [&[0], bytes].concat())];
    let push_id = |id: u8| frame(0xd, &[id]);
    let goaway = |id: u8| frame(7, &[id]);
    let mut rows = vec![
        (
            "frames after SETTINGS",
            of(&[frame(0x21, b"x"), goaway(8), goaway(4), push_id(3), push_id(3)].concat()),
            Nothing,
        ),
        (
            "a control stream in pieces",
            vec![Send("uni", vec![0]), Send("uni", vec![4]), Send("uni", vec![0])],
            Nothing,
        ),
        ("no SETTINGS first", first(&goaway(0)), Connection(MISSING_SETTINGS)),
        ("an unknown frame first", first(&frame(0x21, b"")), Connection(MISSING_SETTINGS)),
        ("SETTINGS twice", of(&[4, 0]), Connection(UNEXPECTED)),
        ("a setting twice", first(&settings(&[(6, 1), (6, 1)])), Connection(SETTINGS)),
        ("an unknown setting twice", first(&settings(&[(0x21, 1), (0x21, 2)])), Connection(SETTINGS)),
        ("a flag that is 2", first(&settings(&[(8, 2)])), Connection(SETTINGS)),
        ("SETTINGS that end within a setting", first(&frame(4, &[6])), Connection(FRAME)),
        ("DATA", of(&frame(0, b"x")), Connection(UNEXPECTED)),
        ("HEADERS", of(&head("/page", &[])), Connection(UNEXPECTED)),
        ("PUSH_PROMISE", of(&frame(5, &[0])), Connection(UNEXPECTED)),
        ("CANCEL_PUSH", of(&frame(3, &[0])), Connection(ID)),
        ("MAX_PUSH_ID decreases", of(&[push_id(3), push_id(2)].concat()), Connection(ID)),
        ("MAX_PUSH_ID with more behind it", of(&frame(0xd, &[1, 1])), Connection(FRAME)),
        ("MAX_PUSH_ID without a number", of(&frame(0xd, &[])), Connection(FRAME)),
        ("GOAWAY increases", of(&[goaway(4), goaway(8)].concat()), Connection(ID)),
        ("GOAWAY cut", of(&frame(7, &[0x40])), Connection(FRAME)),
        ("PRIORITY_UPDATE", of(&frame(0xf0700, b"\x00u=1")), Nothing),
        ("PRIORITY_UPDATE of nothing", of(&frame(0xf0700, b"")), Connection(FRAME)),
        ("PRIORITY_UPDATE of no request", of(&frame(0xf0700, b"\x02u=1")), Connection(ID)),
        ("PRIORITY_UPDATE of the last request that is allowed", of(&frame(0xf0700, b"\x41\xfcu=1")), Nothing),
        ("PRIORITY_UPDATE of the one behind it", of(&frame(0xf0700, b"\x42\x00u=1")), Connection(ID)),
        ("PRIORITY_UPDATE of a push", of(&frame(0xf0701, b"\x00u=1")), Connection(ID)),
        ("a frame too large to keep", of(&frame(0x21, &[0; 5000])), Connection(EXCESSIVE)),
        (
            "two control streams",
            vec![Send("uni", control(b"")), Send("uni2", control(b""))],
            Connection(STREAM_CREATION),
        ),
        (
            "two encoder streams",
            vec![Send("uni", vec![2]), Send("uni2", vec![2])],
            Connection(STREAM_CREATION),
        ),
        (
            "two decoder streams",
            vec![Send("uni", vec![3]), Send("uni2", vec![3])],
            Connection(STREAM_CREATION),
        ),
        ("a push stream", vec![Send("uni", vec![1, 0])], Connection(STREAM_CREATION)),
        ("a stream of an unknown type", vec![Send("uni", vec![0x21, 1, 2, 3])], Nothing),
        ("a stream without a type", vec![End("uni", vec![])], Nothing),
        ("the control stream ends", vec![End("uni", control(b""))], Connection(CLOSED_CRITICAL)),
        ("it ends before SETTINGS", vec![End("uni", vec![0])], Connection(CLOSED_CRITICAL)),
        ("it ends within a frame", vec![End("uni", control(&[7]))], Connection(CLOSED_CRITICAL)),
        ("the encoder stream ends", vec![End("uni", vec![2])], Connection(CLOSED_CRITICAL)),
        ("the decoder stream ends", vec![End("uni", vec![3])], Connection(CLOSED_CRITICAL)),
    ];
    rows.extend(
        (2..=5u64).map(|id| ("a setting of HTTP/2", first(&settings(&[(id, 0)])), Connection(SETTINGS))),
    );
    rows.push(("setting 0", first(&settings(&[(0, 0)])), Connection(SETTINGS)));
    rows.extend(
        [2, 6, 8, 9].map(|kind| ("a frame of HTTP/2", of(&frame(kind, b"")), Connection(UNEXPECTED))),
    );
    check(&rows);
}

#[test]
fn critical_streams_that_are_broken_off() {
    let Some(mut client) = Client::start() else { return };
    let server = server();
    for stream in [3, 7] {
        client.connect_with("a", &server, json!({"raw": true}));
        client.call("raw", json!({"on": "a", "steps": [Send("uni", control(b"")).json()]}));
        client.call("ping", json!({"on": "a"}));
        client.call("raw_own", json!({"on": "a", "stream": stream}));
        let told = client.call("wait", json!({"on": "a", "for": "closed"}));
        assert_eq!(told["closed"]["code"], CLOSED_CRITICAL, "our stream {stream}");
    }
    client.connect_with("a", &server, json!({"raw": true}));
    client.call("raw", json!({"on": "a", "steps": [Send("uni", control(b"")).json()]}));
    client.call("ping", json!({"on": "a"}));
    client.call("raw", json!({"on": "a", "steps": [Reset("uni").json()]}));
    let told = client.call("wait", json!({"on": "a", "for": "closed"}));
    assert_eq!(told["closed"]["code"], CLOSED_CRITICAL);
}

#[test]
fn request_streams() {
    let end = |parts: &[&[u8]]| vec![End("bidi", parts.concat())];
    let open = |parts: &[&[u8]]| vec![Send("bidi", parts.concat())];
    let page = head("/page", &[]);
    let mut rows = vec![
        ("a request with unknown frames", end(&[&frame(0x21, b"x"), &page, &frame(0x40, b"y")]), Nothing),
        ("DATA before HEADERS", open(&[&frame(0, b"x")]), Connection(UNEXPECTED)),
        ("an empty DATA frame before HEADERS", open(&[&frame(0, b"")]), Connection(UNEXPECTED)),
        ("HEADERS that end within the section", end(&[&page[..20]]), Connection(FRAME)),
        ("a frame that ends within its length", end(&[&[1]]), Connection(FRAME)),
        ("an unknown frame that is cut", end(&[&[0x21, 5, 1]]), Connection(FRAME)),
        ("nothing", end(&[]), Stream(INCOMPLETE)),
        ("an unknown frame only", end(&[&frame(0x21, b"x")]), Stream(INCOMPLETE)),
        ("a section that is too large", open(&[&[1, 0x80, 0, 0x9c, 0x40]]), Refused),
        ("one that is there", end(&[&frame(1, &[0; 40_000]), &frame(0, b"x")]), Refused),
        ("one that is cut", end(&[&[1, 0x80, 0, 0x9c, 0x40, 0]]), Connection(FRAME)),
        ("a field that is too large", end(&[&head("/page", &[("x", "y".repeat(9000).as_str())])]), Refused),
        (
            "fields that are too large",
            end(&[&head("/page", &[("x", "y".repeat(7000).as_str()); 5])]),
            Refused,
        ),
    ];
    for path in ["/page", "/up"] {
        let head = head(path, &[]);
        let large = [&[1, 0x80, 0, 0x9c, 0x40][..], &[0; 40_000]].concat();
        let more: [(&str, Vec<Step>, Want); 7] = [
            // Only an upstream waits for them.
            (
                "trailers that are too large",
                end(&[&head, &large]),
                if path == "/up" { Refused } else { Nothing },
            ),
            (
                "HEADERS behind trailers",
                end(&[&head, &frame(0, b"x"), &trailers(), &trailers()]),
                Connection(UNEXPECTED),
            ),
            ("DATA behind trailers", end(&[&head, &trailers(), &frame(0, b"x")]), Connection(UNEXPECTED)),
            ("DATA that is cut", end(&[&head, &[0, 5, b'x']]), Connection(FRAME)),
            ("trailers that are cut", end(&[&head, &[1, 5, 0]]), Connection(FRAME)),
            ("a frame behind the head that is cut", end(&[&head, &[0x21, 5]]), Connection(FRAME)),
            (
                "trailers that are no QPACK",
                end(&[&head, &frame(1, &[0, 0, 0xff, 0x7f])]),
                Connection(DECOMPRESSION),
            ),
        ];
        rows.extend(more);
        for kind in [2, 3, 4, 5, 6, 7, 8, 9, 0xd, 0xf0700, 0xf0701] {
            rows.push((
                "a frame of another stream behind HEADERS",
                open(&[&head, &frame(kind, &[0])]),
                Connection(UNEXPECTED),
            ));
        }
    }
    for kind in [2, 3, 4, 5, 6, 7, 8, 9, 0xd, 0xf0700, 0xf0701] {
        rows.push(("a frame of another stream", open(&[&frame(kind, &[0])]), Connection(UNEXPECTED)));
    }
    check(&rows);
}

#[test]
fn field_compression() {
    let encoder = |bytes: &[u8]| vec![Send("uni", control(b"")), Send("uni2", [&[2], bytes].concat())];
    let decoder = |bytes: &[u8]| vec![Send("uni", control(b"")), Send("uni2", [&[3], bytes].concat())];
    let get = |section: &[u8]| vec![End("bidi", frame(1, section))];
    // Refers to the first insertion, which is `:path: /page`.
    let waits = [0x02, 0x00, 0x80, 0xd1, 0xd7, 0x50, 9].into_iter().chain(*b"localhost").collect::<Vec<u8>>();
    // A capacity of 200, `:path` of the static table with a value.
    let inserts = [&[0x3f, 0xa9, 0x01, 0xc1, 5][..], b"/page"].concat();
    let blocked = |n: usize| {
        const NAMES: [&str; 17] = [
            "bidi0", "bidi1", "bidi2", "bidi3", "bidi4", "bidi5", "bidi6", "bidi7", "bidi8", "bidi9",
            "bidi10", "bidi11", "bidi12", "bidi13", "bidi14", "bidi15", "bidi16",
        ];
        NAMES.iter().take(n).map(|name| End(name, frame(1, &waits))).collect::<Vec<_>>()
    };
    check(&[
        ("an entry behind the static table", get(&[0, 0, 0xff, 0x24]), Connection(DECOMPRESSION)),
        ("an entry that nobody needs", get(&[0, 0, 0x80]), Connection(DECOMPRESSION)),
        ("a post-base entry that nobody needs", get(&[0, 0, 0x10]), Connection(DECOMPRESSION)),
        ("a count beyond the range", get(&[0xff, 0x7f, 0]), Connection(DECOMPRESSION)),
        ("no prefix", get(&[]), Connection(DECOMPRESSION)),
        ("half a prefix", get(&[0]), Connection(DECOMPRESSION)),
        ("a base below zero", get(&[0, 0x80]), Connection(DECOMPRESSION)),
        ("a string that is cut", get(&[0, 0, 0x51, 5, b'/']), Connection(DECOMPRESSION)),
        ("padding of zeros", get(&[0, 0, 0x51, 0x81, 0]), Connection(DECOMPRESSION)),
        ("padding of a byte and more", get(&[0, 0, 0x51, 0x82, 0x63, 0xff]), Connection(DECOMPRESSION)),
        ("a capacity above ours", encoder(&[0x3f, 0xe2, 0x1f]), Connection(ENCODER)),
        ("the capacity that we offer", encoder(&[0x3f, 0xe1, 0x1f]), Nothing),
        ("an insertion without capacity", encoder(&[0xc1, 1, b'/']), Connection(ENCODER)),
        (
            "a name behind the static table",
            encoder(&[0x3f, 0xa9, 0x01, 0xff, 0x24, 1, b'/']),
            Connection(ENCODER),
        ),
        ("a name that is not in the table", encoder(&[0x3f, 0xa9, 0x01, 0x80, 1, b'/']), Connection(ENCODER)),
        ("a duplicate of nothing", encoder(&[0x3f, 0xa9, 0x01, 0x00]), Connection(ENCODER)),
        (
            "a string without end",
            encoder(&[0x3f, 0xa9, 0x01, 0xc1, 0x7f, 0xff, 0xff, 0x7f]),
            Connection(ENCODER),
        ),
        ("an acknowledgment of nothing", decoder(&[0x80]), Connection(DECODER)),
        ("an increment of zero", decoder(&[0]), Connection(DECODER)),
        ("an increment of nothing", decoder(&[1]), Connection(DECODER)),
        (
            "a number without end",
            decoder(&[0x3f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
            Connection(DECODER),
        ),
        ("a cancellation", decoder(&[0x44]), Nothing),
        ("sections that wait for ever", blocked(16), Nothing),
        ("one more", blocked(17), Connection(DECOMPRESSION)),
    ]);
    let Some(mut client) = Client::start() else { return };
    let server = server();
    client.connect_with("a", &server, json!({"raw": true}));
    client.call(
        "raw",
        json!({"on": "a", "steps": [Send("uni", control(b"")).json(), End("bidi", frame(1, &waits)).json()]}),
    );
    client.call("ping", json!({"on": "a"}));
    client.call("raw", json!({"on": "a", "steps": [Send("uni2", [&[2], &inserts[..]].concat()).json()]}));
    let told = client.answer("bidi");
    assert_eq!((status(&told), &told["ended"]), (200, &json!(true)), "{told}");
    let uni = client.call("ping", json!({"on": "a"}))["uni"]["7"].clone();
    // An increment by one or a section acknowledgment for stream 0 tells the client that the entry is there.
    assert!(uni == "030180" || uni == "0380", "{uni}");
}

/// Trailers wait for insertions as requests do, and the request waits for its trailers.
#[test]
fn trailers_that_wait() {
    let Some(mut client) = Client::start() else { return };
    let server = server();
    // `x: y` is the first insertion, and the only field of the trailers.
    let waits = frame(1, &[0x02, 0x00, 0x80]);
    let inserts = [2, 0x3f, 0xa9, 0x01, 0x41, b'x', 1, b'y'];
    let upload = |trailers: &[u8]| [&head("/up", &[])[..], &frame(0, b"abc"), trailers].concat();
    for (fields, status_of) in [(&waits[..], 200), (&frame(1, &[0x02, 0x00, 0x80, 0xd1])[..], 400)] {
        client.connect_with("a", &server, json!({"raw": true}));
        let steps = [Send("uni", control(b"")), End("bidi", upload(fields))];
        client.call("raw", json!({"on": "a", "steps": steps.map(|step| step.json())}));
        let before = client.call("ping", json!({"on": "a"}));
        assert_eq!(before["closed"], json!(null));
        client.call("raw", json!({"on": "a", "steps": [Send("uni2", inserts.to_vec()).json()]}));
        let told = client.answer("bidi");
        assert!(status(&told) == status_of || told["reset"] == 0x10e && status_of == 400, "{told}");
        let uni = client.call("ping", json!({"on": "a"}))["uni"]["7"].clone();
        assert_eq!(uni, "030180", "an increment and an acknowledgment");
    }
    // So many streams may wait, whatever they wait for.
    client.connect_with("a", &server, json!({"raw": true}));
    let names: Vec<String> = (0..17).map(|n| format!("bidi{n}")).collect();
    let mut steps = vec![Send("uni", control(b"")).json()];
    steps.extend(names.iter().take(16).map(|name| json!([name, hex(&upload(&waits)), true])));
    client.call("raw", json!({"on": "a", "steps": steps}));
    assert_eq!(client.call("ping", json!({"on": "a"}))["closed"], json!(null));
    client.call("raw", json!({"on": "a", "steps": [json!([names[16], hex(&upload(&waits)), true])]}));
    assert_eq!(client.call("wait", json!({"on": "a", "for": "closed"}))["closed"]["code"], 0x200);
    // A request that nobody reads to its end: the client learns that its trailers are not decoded.
    client.connect_with("a", &server, json!({"raw": true}));
    let steps = [Send("uni", control(b"")), End("bidi", [&head("/page", &[])[..], &waits].concat())];
    client.call("raw", json!({"on": "a", "steps": steps.map(|step| step.json())}));
    let told = client.answer("bidi");
    assert_eq!((status(&told), &told["ended"]), (200, &json!(true)), "{told}");
    assert_eq!(client.call("ping", json!({"on": "a"}))["uni"]["7"], "0340", "a cancellation");
}

#[test]
fn messages() {
    let pseudo = |skip: usize| {
        let fields: Vec<_> = GET.iter().enumerate().filter(|(n, _)| *n != skip).map(|(_, f)| *f).collect();
        only(&fields)
    };
    let with = |more: &[(&str, &str)]| head("/page", more);
    let rows = [
        ("no method", pseudo(0)),
        ("no scheme", pseudo(1)),
        ("no authority", pseudo(2)),
        ("no path", pseudo(3)),
        ("two methods", with(&[(":method", "GET")])),
        ("two paths", with(&[(":path", "/")])),
        ("an empty path", only(&[GET[0], GET[1], GET[2], (":path", "")])),
        ("a status", with(&[(":status", "200")])),
        ("an unknown pseudo-header field", with(&[(":what", "x")])),
        ("a pseudo-header field behind others", only(&[("x", "y"), GET[0], GET[1], GET[2], GET[3]])),
        ("an upper-case name", with(&[("X-Y", "z")])),
        ("an empty name", with(&[("", "z")])),
        ("a name with a space", with(&[("x y", "z")])),
        ("a name with a colon", with(&[("x:y", "z")])),
        ("a value with a line end", with(&[("x", "y\r\nz: w")])),
        ("a value with NUL", with(&[("x", "y\0")])),
        ("Connection", with(&[("connection", "close")])),
        ("Keep-Alive", with(&[("keep-alive", "1")])),
        ("Transfer-Encoding", with(&[("transfer-encoding", "chunked")])),
        ("Upgrade", with(&[("upgrade", "x")])),
        ("Proxy-Connection", with(&[("proxy-connection", "close")])),
        ("TE that is not trailers", with(&[("te", "gzip")])),
        ("two lengths", with(&[("content-length", "1"), ("content-length", "2")])),
        ("a length that is no number", with(&[("content-length", "x")])),
        ("another host", with(&[("host", "other")])),
    ]
    .map(|(what, bytes)| (what, vec![End("bidi", bytes)], Refused));
    check(&rows);
    let long = "x".repeat(9000);
    let more = [
        ("TE: trailers", vec![End("bidi", with(&[("te", "trailers")]))], Nothing),
        ("a field that is too long", vec![End("bidi", with(&[("x", &long)]))], Refused),
        ("a length without content", vec![End("bidi", head("/up", &[("content-length", "5")]))], Refused),
        (
            "pseudo-header fields in trailers",
            vec![End("bidi", [head("/up", &[]), frame(0, b"x"), only(&[(":path", "/")])].concat())],
            Refused,
        ),
        ("a request that is reset", vec![Send("bidi", with(&[])), Reset("bidi")], Nothing),
    ];
    check(&more);
}

/// Fields that every request with them would be refused for are not taken into the table.
#[test]
fn insertions_beyond_the_header_buffers() {
    let Some(mut client) = Client::start() else { return };
    let server = serve("large_client_header_buffers 4 1k;");
    for (length, want) in [(1024, Nothing), (1025, Connection(ENCODER))] {
        let mut bytes = vec![2];
        push_int(&mut bytes, 0x20, 5, 4096);
        push_int(&mut bytes, 0xc0, 6, 1);
        push_int(&mut bytes, 0, 7, length);
        bytes.resize(bytes.len() + length, b'x');
        assert_eq!(judge(&mut client, &server, &[Send("uni", bytes)], want), Ok(()), "{length}");
    }
}

/// Work without progress ends the connection.
#[test]
fn floods() {
    let many = |bytes: &[u8], n: usize| bytes.repeat(n);
    let entry = [&[2, 0x3f, 0xa9, 0x01, 0xc1, 5][..], b"/page"].concat();
    check(&[
        (
            "unknown frames on the control stream",
            vec![Send("uni", control(&many(&frame(0x21, b""), 100_000)))],
            Connection(EXCESSIVE),
        ),
        (
            "unknown frames before HEADERS",
            vec![Send("bidi", many(&frame(0x21, b""), 100_000))],
            Connection(EXCESSIVE),
        ),
        (
            "unknown frames behind HEADERS",
            vec![Send("bidi", [head("/up", &[]), many(&frame(0x21, b""), 100_000)].concat())],
            Connection(EXCESSIVE),
        ),
        (
            "empty DATA frames",
            vec![Send("bidi", [head("/up", &[]), many(&frame(0, b""), 10_000)].concat())],
            Connection(EXCESSIVE),
        ),
        (
            "priorities",
            vec![Send("uni", control(&many(&frame(0xf0700, b"\x08u=1"), 20_000)))],
            Connection(EXCESSIVE),
        ),
        ("capacities", vec![Send("uni", [vec![2], many(&[0x20], 100_000)].concat())], Connection(EXCESSIVE)),
        ("duplicates", vec![Send("uni", [entry, many(&[0], 100_000)].concat())], Connection(EXCESSIVE)),
        (
            "cancellations",
            vec![Send("uni", [vec![3], many(&[0x44], 100_000)].concat())],
            Connection(EXCESSIVE),
        ),
    ]);
}

#[test]
fn rapid_resets() {
    let Some(mut client) = Client::start() else { return };
    // Responses that are finished before the reset would make up for it. An upstream that takes connections and nothing else.
    let silent = TcpListener::bind("127.0.0.1:0").expect("bound");
    let up = silent.local_addr().expect("bound");
    let server = serve(&format!("location = /up {{ proxy_pass http://{up}; }}"));
    for path in ["/up", "/large"] {
        client.connect("a", &server);
        let told = client.call("rapid", json!({"on": "a", "path": path, "count": 1000}));
        assert_eq!(told["closed"]["code"], EXCESSIVE, "{path}: {told}");
        assert!(told["sent"].as_u64().is_some_and(|n| n < 500), "{path}: {told}");
    }
    client.connect("b", &server);
    assert_eq!(client.get("b", "/page")["status"], 200);
}

/// aioquic takes the Content-Length of an answer to HEAD for that of its content, so this one has no HTTP of its own.
#[test]
fn head_requests() {
    let Some(mut client) = Client::start() else { return };
    let server = server();
    client.connect_with("a", &server, json!({"raw": true}));
    let request = only(&[(":method", "HEAD"), GET[1], GET[2], GET[3]]);
    client.call("raw", json!({"on": "a", "steps": [End("bidi", request).json()]}));
    let told = client.answer("bidi");
    assert_eq!((status(&told), &told["ended"]), (200, &json!(true)));
    let bytes: Vec<u8> = told["text"].as_str().expect("bytes").chars().map(|c| c as u8).collect();
    let (header, len) = Header::read(&bytes).expect("HEADERS");
    assert_eq!(told["length"], len as u64 + header.len, "only HEADERS: {told}");
}

/// Heads that stay incomplete end after `client_header_timeout`, whatever else the client sends: half of one, and one that waits for
/// insertions. The client may send these requests again (RFC 9114, section 4.1.1), and its encoder learns that the sections were not
/// decoded (RFC 9204, section 4.4.2).
#[test]
fn heads_that_take_too_long() {
    let Some(mut client) = Client::start() else { return };
    let server = serve("client_header_timeout 1s;");
    client.connect_with("a", &server, json!({"raw": true}));
    let half = &head("/page", &[])[..9];
    let steps = [
        Send("uni", control(b"")),
        Send("bidi", half.to_vec()),
        Send("silent", frame(1, &[0x02, 0x00, 0x80])),
    ];
    client.call("raw", json!({"on": "a", "steps": steps.map(|step| step.json())}));
    for stream in ["bidi", "silent"] {
        let told = client.answer(stream);
        assert_eq!((&told["reset"], &told["closed"]), (&json!(REJECTED), &Value::Null), "{stream}: {told}");
    }
    let told = client.call("ping", json!({"on": "a"}));
    assert_eq!((&told["uni"]["7"], &told["closed"]), (&json!("034044"), &Value::Null), "{told}");
    client.call("raw", json!({"on": "a", "steps": [End("whole", head("/page", &[])).json()]}));
    assert_eq!(status(&client.answer("whole")), 200);
    assert!(server.error_log().contains("client timed out"), "{}", server.error_log());
}

/// A request whose head waits for insertions is answered once its client resets the stream, which has not given up the answer by that
/// (RFC 9114, section 4.1.1). The client's encoder learns that the section was not decoded (RFC 9204, section 2.2.2.2).
#[test]
fn a_reset_of_a_head_that_waits() {
    let Some(mut client) = Client::start() else { return };
    let server = server();
    client.connect_with("a", &server, json!({"raw": true}));
    let steps = [Send("uni", control(b"")), Send("bidi", frame(1, &[0x02, 0x00, 0x80]))];
    client.call("raw", json!({"on": "a", "steps": steps.map(|step| step.json())}));
    client.call("ping", json!({"on": "a"}));
    client.call("raw", json!({"on": "a", "steps": [Reset("bidi").json()]}));
    let told = client.answer("bidi");
    assert_eq!((status(&told), &told["ended"], &told["closed"]), (400, &json!(true), &Value::Null), "{told}");
    let told = client.call("ping", json!({"on": "a"}));
    assert_eq!((&told["uni"]["7"], &told["closed"]), (&json!("0340"), &Value::Null), "{told}");
    assert!(server.error_log().contains("client reset a stream"), "{}", server.error_log());
    client.call("raw", json!({"on": "a", "steps": [End("whole", head("/page", &[])).json()]}));
    assert_eq!(status(&client.answer("whole")), 200);
    // A client that does this without end is stopped as one that resets other requests.
    repeat_until_stopped(&mut client, 1000, |n| {
        let name = format!("bidi{n}");
        json!([
            [name, hex(&frame(1, &[0x02, 0x00, 0x80])), false],
            [name, "reset", 0x10c],
            [name, "stop", 0x10c]
        ])
    });
}

/// Carries out steps up to `most` times, and checks that the server ends the connection for their number before that.
fn repeat_until_stopped(client: &mut Client, most: usize, steps: impl Fn(usize) -> Value) {
    for n in 0..most {
        client.call("raw", json!({"on": "a", "steps": steps(n)}));
        let told = client.call("ping", json!({"on": "a"}));
        if !told["closed"].is_null() {
            assert_eq!(told["closed"]["code"], EXCESSIVE);
            return;
        }
    }
    panic!("the connection goes on");
}

/// The client's encoder learns which section could not be decoded before the connection ends (RFC 9204, section 4.4.2).
#[test]
fn the_section_that_fails_is_named() {
    let Some(mut client) = Client::start() else { return };
    let server = server();
    client.connect_with("a", &server, json!({"raw": true}));
    let steps = [End("first", head("/page", &[])), End("bidi", frame(1, &[0, 0, 0x80]))];
    client.call("raw", json!({"on": "a", "steps": steps.map(|step| step.json())}));
    let told = client.call("wait", json!({"on": "a", "for": "closed"}));
    assert_eq!(
        (&told["closed"]["code"], &told["uni"]["7"]),
        (&json!(DECOMPRESSION), &json!("0344")),
        "{told}"
    );
}

/// Streams of unknown types cost nothing for ever, but not without end.
#[test]
fn streams_of_unknown_types() {
    let Some(mut client) = Client::start() else { return };
    let server = server();
    client.connect_with("a", &server, json!({"raw": true}));
    repeat_until_stopped(&mut client, 50, |group| {
        (0..30).map(|n| json!([format!("uni{group} {n}"), "21", true])).collect()
    });
}
