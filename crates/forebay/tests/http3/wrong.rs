//! Clients that break the rules: each gets the error that RFC 9114 and RFC 9204 ask for, and others on the connection are only hurt
//! where the rules say so.

use super::{Client, closing, ping, serve};
use forebay_http::compression::{Field, Sink, push_int};
use forebay_http::h3::frame::Header;
use forebay_http::h3::qpack::Decoder;
use forebay_testkit::cases;
use forebay_testkit::h3::steps::Step::{self, End, Reset, Send};
use forebay_testkit::h3::steps::{GET, control, frame, head, hex, only, step};
use forebay_testkit::{Origin, Server};
use serde_json::{Value, json};
use std::net::TcpListener;

const CLOSED_CRITICAL: u64 = 0x104;
const EXCESSIVE: u64 = 0x107;
const REJECTED: u64 = 0x10b;
const MESSAGE: u64 = 0x10e;
const DECOMPRESSION: u64 = 0x200;
const ENCODER: u64 = 0x201;

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

use Want::{Connection, Nothing, Refused, Stream};

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
    client.act("a", &[End("bidi good".into(), head("/page", &[]))]);
    let told = client.answer("bidi good");
    match (told["ended"].as_bool(), told["closed"].is_null()) {
        (Some(true), true) if status(&told) == 200 => Ok(()),
        _ => Err(format!("a good request afterwards: {told}")),
    }
}

/// Has a client do these steps; `Err` if it is not answered as wanted.
fn judge(client: &mut Client, server: &Server, steps: &[Step], want: Want) -> Result<(), String> {
    client.connect_with("a", server, json!({"raw": true}));
    client.act("a", steps);
    let result = match want {
        Connection(code) => {
            let told = closing(client);
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

/// A row of `wrong.cases`.
struct Row {
    what: String,
    steps: Vec<Step>,
    want: Want,
}

impl Row {
    fn parse(row: &str) -> Row {
        let (row, answer) = row.rsplit_once(" => ").expect("an answer");
        let mut parts = row.split(" | ");
        let what = parts.next().expect("a name").to_owned();
        let code = |code: &str| u64::from_str_radix(code, 16).expect("a code");
        let want = match answer.split_once(' ') {
            Some(("connection", number)) => Connection(code(number)),
            Some(("stream", number)) => Stream(code(number)),
            _ if answer == "refused" => Refused,
            _ if answer == "nothing" => Nothing,
            _ => panic!("no answer {answer}"),
        };
        Row { what, steps: parts.map(step).collect(), want }
    }
}

/// Has clients act as the rows of a case say.
fn check(name: &str) {
    let Some(mut client) = Client::start() else { return };
    let server = server();
    let text = include_str!("../cases/http3/wrong.cases");
    let case = text.split("\n== ").find(|case| case.lines().next() == Some(name)).expect("a case");
    let wrong = |row: &String| {
        let Row { what, steps, want } = Row::parse(row);
        judge(&mut client, &server, &steps, want).err().map(|e| format!("{what}: {e}\n"))
    };
    let failures: String =
        cases::rows(case.split_once('\n').expect("rows").1).iter().filter_map(wrong).collect();
    assert_eq!(failures, "");
    let log = server.error_log();
    assert!(!log.contains("panic"), "{log}");
}

/// Makes a test of each case of `wrong.cases`.
macro_rules! checks {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*
    };
}

checks! { control_streams request_streams field_compression messages floods }

#[test]
fn a_section_that_waits_is_acknowledged() {
    // Refers to the first insertion, which is `:path: /page`.
    let waits = [0x02, 0x00, 0x80, 0xd1, 0xd7, 0x50, 9].into_iter().chain(*b"localhost").collect::<Vec<u8>>();
    // A capacity of 200, `:path` of the static table with a value.
    let inserts = [&[0x3f, 0xa9, 0x01, 0xc1, 5][..], b"/page"].concat();
    let Some(mut client) = Client::start() else { return };
    let server = server();
    client.connect_with("a", &server, json!({"raw": true}));
    client.act("a", &[Send("uni".into(), control(b"")), End("bidi".into(), frame(1, &waits))]);
    ping(&mut client);
    client.act("a", &[Send("uni2".into(), [&[2], &inserts[..]].concat())]);
    let told = client.answer("bidi");
    assert_eq!((status(&told), &told["ended"]), (200, &json!(true)), "{told}");
    let uni = ping(&mut client)["uni"]["7"].clone();
    // An increment by one or a section acknowledgment for stream 0 tells the client that the entry is there.
    assert!(uni == "030180" || uni == "0380", "{uni}");
}

#[test]
fn critical_streams_that_are_broken_off() {
    let Some(mut client) = Client::start() else { return };
    let server = server();
    for stream in [3, 7] {
        client.connect_with("a", &server, json!({"raw": true}));
        client.act("a", &[Send("uni".into(), control(b""))]);
        ping(&mut client);
        client.call("raw_own", json!({"on": "a", "stream": stream}));
        let told = closing(&mut client);
        assert_eq!(told["closed"]["code"], CLOSED_CRITICAL, "our stream {stream}");
    }
    client.connect_with("a", &server, json!({"raw": true}));
    client.act("a", &[Send("uni".into(), control(b""))]);
    ping(&mut client);
    client.act("a", &[Reset("uni".into())]);
    let told = closing(&mut client);
    assert_eq!(told["closed"]["code"], CLOSED_CRITICAL);
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
        let steps = [Send("uni".into(), control(b"")), End("bidi".into(), upload(fields))];
        client.act("a", &steps);
        let before = ping(&mut client);
        assert_eq!(before["closed"], json!(null));
        client.act("a", &[Send("uni2".into(), inserts.to_vec())]);
        let told = client.answer("bidi");
        assert!(status(&told) == status_of || told["reset"] == 0x10e && status_of == 400, "{told}");
        let uni = ping(&mut client)["uni"]["7"].clone();
        assert_eq!(uni, "030180", "an increment and an acknowledgment");
    }
    // So many streams may wait, whatever they wait for.
    client.connect_with("a", &server, json!({"raw": true}));
    let names: Vec<String> = (0..17).map(|n| format!("bidi{n}")).collect();
    let of = |name: &String| End(name.clone(), upload(&waits));
    let mut steps = vec![Send("uni".into(), control(b""))];
    steps.extend(names.iter().take(16).map(of));
    client.act("a", &steps);
    assert_eq!(ping(&mut client)["closed"], json!(null));
    client.act("a", &[of(&names[16])]);
    assert_eq!(closing(&mut client)["closed"]["code"], 0x200);
    // A request that nobody reads to its end: the client learns that its trailers are not decoded.
    client.connect_with("a", &server, json!({"raw": true}));
    let steps =
        [Send("uni".into(), control(b"")), End("bidi".into(), [&head("/page", &[])[..], &waits].concat())];
    client.act("a", &steps);
    let told = client.answer("bidi");
    assert_eq!((status(&told), &told["ended"]), (200, &json!(true)), "{told}");
    assert_eq!(ping(&mut client)["uni"]["7"], "0340", "a cancellation");
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
        assert_eq!(judge(&mut client, &server, &[Send("uni".into(), bytes)], want), Ok(()), "{length}");
    }
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
    client.act("a", &[End("bidi".into(), request)]);
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
        Send("uni".into(), control(b"")),
        Send("bidi".into(), half.to_vec()),
        Send("silent".into(), frame(1, &[0x02, 0x00, 0x80])),
    ];
    client.act("a", &steps);
    for stream in ["bidi", "silent"] {
        let told = client.answer(stream);
        assert_eq!((&told["reset"], &told["closed"]), (&json!(REJECTED), &Value::Null), "{stream}: {told}");
    }
    let told = ping(&mut client);
    assert_eq!((&told["uni"]["7"], &told["closed"]), (&json!("034044"), &Value::Null), "{told}");
    client.act("a", &[End("whole".into(), head("/page", &[]))]);
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
    let steps = [Send("uni".into(), control(b"")), Send("bidi".into(), frame(1, &[0x02, 0x00, 0x80]))];
    client.act("a", &steps);
    ping(&mut client);
    client.act("a", &[Reset("bidi".into())]);
    let told = client.answer("bidi");
    assert_eq!((status(&told), &told["ended"], &told["closed"]), (400, &json!(true), &Value::Null), "{told}");
    let told = ping(&mut client);
    assert_eq!((&told["uni"]["7"], &told["closed"]), (&json!("0340"), &Value::Null), "{told}");
    assert!(server.error_log().contains("client reset a stream"), "{}", server.error_log());
    client.act("a", &[End("whole".into(), head("/page", &[]))]);
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
        let told = ping(client);
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
    let steps = [End("first".into(), head("/page", &[])), End("bidi".into(), frame(1, &[0, 0, 0x80]))];
    client.act("a", &steps);
    let told = closing(&mut client);
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
