//! The dynamic tables: that of what the server sends has another implementation as its decoder.

use super::{Client, closing, ping, serve};
use forebay_http::h3::frame::push_settings;
use forebay_http::h3::{encode, qpack};
use forebay_testkit::h3::steps::{frame, hex, unhex};
use forebay_testkit::{Server, wait_until};
use serde_json::{Value, json};

const CAPACITY: u64 = 4096;

fn send(client: &mut Client, stream: &str, bytes: &[u8], end: bool) {
    client.call("raw", json!({"on": "a", "steps": [[stream, hex(bytes), end]]}));
}

/// Opens a connection with a table and a decoder stream.
fn connect(client: &mut Client, server: &Server, capacity: u64) {
    client.connect_with("a", server, json!({"raw": true}));
    let mut control = vec![0];
    push_settings(&mut control, &[(1, capacity)]);
    send(client, "uni", &control, false);
    send(client, "uni2", &[3], false);
}

/// Sends a GET on a new stream and decodes the head of its answer.
fn get(client: &mut Client, stream: &str, path: &str) -> Value {
    let mut section = Vec::new();
    encode::prefix(&mut section);
    let fields = [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", path)];
    fields.iter().for_each(|(n, v)| encode::field(&mut section, n.as_bytes(), v.as_bytes()));
    send(client, stream, &frame(1, &section), true);
    assert_eq!(client.answer(stream)["ended"], true);
    ping(client);
    client.call("decode", json!({"on": "a", "of": stream, "capacity": CAPACITY}))
}

/// Number of insertions that the server has sent.
fn inserted(client: &mut Client) -> u64 {
    let told = ping(client);
    let Some(instructions) = told["uni"]["11"].as_str() else { return 0 };
    let mut decoder = qpack::Decoder::new(CAPACITY as usize);
    let instructions = unhex(instructions);
    let done = decoder.instructions(&instructions[1..], &mut Vec::new());
    assert_eq!(done, Ok(instructions.len() - 1));
    decoder.inserted()
}

fn fields(told: &Value) -> Vec<Value> {
    let all = told["fields"].as_array().cloned().unwrap_or_default();
    all.into_iter().filter(|f| f[0] != "date").collect()
}

fn len(told: &Value) -> usize {
    told["section"].as_str().map_or(0, |hex| hex.len() / 2)
}

const LINES: &str = "add_header Cache-Control 'public, max-age=12345'; add_header X-Custom 'some value of ours'; \
                     add_header Set-Cookie 'id=secret';";

#[test]
fn answers_refer_to_what_the_client_has_acknowledged() {
    let Some(mut client) = Client::start() else { return };
    let server = serve(LINES);
    connect(&mut client, &server, CAPACITY);
    let first = get(&mut client, "bidi0", "/page");
    assert_eq!(inserted(&mut client), 0, "nothing has come twice");
    let second = get(&mut client, "bidi1", "/page");
    assert_eq!(
        (fields(&second), len(&second), &second["feedback"]),
        (fields(&first), len(&first), &json!(""))
    );
    let known = inserted(&mut client);
    assert!(known >= 5, "{known}: {first}");
    let third = get(&mut client, "bidi2", "/page");
    assert_eq!(len(&third), len(&first), "the client has acknowledged nothing");
    // An Insert Count Increment.
    send(&mut client, "uni2", &[known as u8], false);
    ping(&mut client);
    let mut acknowledged = String::new();
    for n in 3..20 {
        let told = get(&mut client, &format!("bidi{n}"), "/page");
        assert_eq!((fields(&told), &told["kind"]), (fields(&first), &json!(1)));
        assert!(len(&told) + 60 < len(&first), "{} {}", len(&told), len(&first));
        // A section acknowledgment.
        acknowledged = told["feedback"].as_str().unwrap_or_default().to_owned();
        assert!(acknowledged.as_str() >= "80", "{told}");
        send(&mut client, "uni2", &unhex(&acknowledged), false);
    }
    let other = get(&mut client, "bidi20", "/index.html");
    assert_eq!(fields(&other).len(), fields(&first).len());
    assert!(len(&other) + 40 < len(&first), "{other}");
    // RFC 9204, section 4.4.1: that section was acknowledged.
    send(&mut client, "uni2", &unhex(&acknowledged), false);
    assert_eq!(closing(&mut client)["closed"]["code"], 0x202);
}

/// Acknowledgments of sections wait for each other, but not for another request.
#[test]
fn sections_are_acknowledged_once_the_client_pauses() {
    let Some(mut client) = Client::start() else { return };
    let server = serve("");
    client.connect_with("a", &server, json!({"raw": true}));
    let mut control = vec![0];
    push_settings(&mut control, &[(1, CAPACITY)]);
    send(&mut client, "uni", &control, false);
    // `x: y` is the first insertion.
    send(&mut client, "uni2", &[2, 0x3f, 0xa9, 0x01, 0x41, b'x', 1, b'y'], false);
    let mut told = |what: &str| {
        wait_until(what, || ping(&mut client)["uni"]["7"] == what);
        // A field section that needs the insertion.
        let mut section = vec![0x02, 0x00];
        let fields =
            [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", "/page")];
        fields.iter().for_each(|(n, v)| encode::field(&mut section, n.as_bytes(), v.as_bytes()));
        section.push(0x80);
        let head = frame(1, &section);
        let stream = format!("bidi{}", what.len());
        send(&mut client, &stream, &head, true);
        assert_eq!(client.answer(&stream)["ended"], true);
    };
    // An Insert Count Increment, and Section Acknowledgments of streams 0 and 4.
    for what in ["0301", "030180", "03018084"] {
        told(what);
    }
}

#[test]
fn acknowledgments_of_what_was_not_sent_end_the_connection() {
    let Some(mut client) = Client::start() else { return };
    let server = serve(LINES);
    for (feedback, code) in [(&[0][..], 0x202), (&[0x3f, 0x40], 0x202), (&[0x80], 0x202), (&[0x40], 0)] {
        connect(&mut client, &server, CAPACITY);
        (0..3).for_each(|n| drop(get(&mut client, &format!("bidi{n}"), "/page")));
        assert!(inserted(&mut client) > 0);
        send(&mut client, "uni2", feedback, false);
        let closed = match code {
            0 => ping(&mut client),
            _ => closing(&mut client),
        };
        assert_eq!(closed["closed"]["code"].as_u64().unwrap_or(0), code, "{feedback:?}");
    }
}

#[test]
fn a_client_without_a_table_gets_none() {
    let Some(mut client) = Client::start() else { return };
    let server = serve(LINES);
    connect(&mut client, &server, 0);
    (0..4).for_each(|n| drop(get(&mut client, &format!("bidi{n}"), "/page")));
    assert_eq!(ping(&mut client)["uni"]["11"], json!(null));
}

/// Sends a HEADERS frame on a new stream. Returns the status of the answer.
fn request(client: &mut Client, stream: &str, section: &[u8]) -> Value {
    send(client, stream, &frame(1, section), true);
    assert_eq!(client.answer(stream)["ended"], true);
    let told = client.call("decode", json!({"on": "a", "of": stream, "capacity": CAPACITY}));
    fields(&told)[0][1].clone()
}

#[test]
fn sections_that_are_repeated_mean_what_the_table_says() {
    let Some(mut client) = Client::start() else { return };
    let server = serve("location /other { return 204; }");
    let paths = [("a", "/page", "200"), ("b", "/other", "204")];
    let open = |client: &mut Client, path: &str| {
        client.connect_with("a", &server, json!({"raw": true}));
        // A table with room for one path, and the path in it.
        let mut inserts = vec![0x02, 0x3f, 60 - 31, 0xc1, path.len() as u8];
        inserts.extend_from_slice(path.as_bytes());
        send(client, "uni", &inserts, false);
        ping(client);
    };
    // GET, https, localhost, and the entry that was inserted first.
    let section = [&[0x02, 0x00, 0xd1, 0xd7, 0x50, 9][..], b"localhost", &[0x80]].concat();
    for (name, path, status) in paths {
        open(&mut client, path);
        for n in 0..5 {
            assert_eq!(request(&mut client, &format!("{name}{n}"), &section), status);
        }
    }
    // Another entry takes its place: the same bytes refer to one that is gone.
    open(&mut client, "/page");
    for n in 0..3 {
        assert_eq!(request(&mut client, &format!("bidi{n}"), &section), "200");
    }
    send(&mut client, "uni", &[&[0xc1, 6][..], b"/other"].concat(), false);
    ping(&mut client);
    let mut newer = section.clone();
    newer[0] = 0x03;
    for n in 3..6 {
        assert_eq!(request(&mut client, &format!("bidi{n}"), &newer), "204");
    }
    send(&mut client, "bidi6", &frame(1, &section), true);
    let told = closing(&mut client);
    assert_eq!(told["closed"]["code"], 0x200, "{told}");
}
