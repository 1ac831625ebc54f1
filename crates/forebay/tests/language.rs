//! What nginx 1.31.5 to 1.31.9 added to the language of the http block.

use forebay_http::h2::frame::flag;
use forebay_testkit::h2::{Answer, Client, data};
use forebay_testkit::{Oracle, Server, Site, is_before, oracle, wrap};
use std::net::TcpStream;

forebay_testkit::cases!("cases/language.cases":
    locations_of_variables, a_location_of_a_variable_fails_closed, alias_and_proxy_pass_in_a_location_of_a_variable,
    bodies_that_are_read_early, bodies_that_are_read_early_spill_to_files, variables_of_documents, named_locations_by_goto,
    internal_redirects_after_access, numbers_and_ranges, formats_of_the_time, variables_of_plus, variables_of_plus_in_streams, a_kept_server_has_its_variables, early_bodies_are_logged, early_bodies_in_each_phase);

/// A body over HTTP/2, in pieces, with and without its length before it.
#[test]
fn bodies_over_http2_are_read_early() {
    let Some(nginx) = oracle().filter(|nginx| !is_before(nginx, 31)) else {
        println!("skipped: no nginx of 1.31, which knows the directive");
        return;
    };
    let conf = wrap(
        "server { listen 127.0.0.1:%PORT0%; http2 on; client_body_early_read $arg_early; client_max_body_size 20; \
         error_page 413 /large; location /large { return 200 'large $request_body'; } \
         location /if { if ($request_body = hello) { return 200 matched; } return 200 'other $request_body'; } \
         location / { return 200 'body $request_body'; } }",
    );
    let ours = Server::start_on(Site::new(&conf));
    let theirs = Oracle::start(&nginx, Site::new(&conf));
    let long = "a".repeat(30);
    for (path, pieces) in [
        ("/?early=1", vec!["hello"]),
        ("/?early=1", vec!["he", "l", "lo"]),
        ("/?early=1", vec!["", "hello", ""]),
        ("/if?early=1", vec!["hel", "lo"]),
        ("/if", vec!["hello"]),
        ("/?early=1", vec![&*long]),
        ("/?early=1", vec![&long[..10], &long[..20]]),
    ] {
        for with_length in [true, false] {
            let of_nginx = send(&mut client(theirs.site()), path, &pieces, with_length);
            let answer = send(&mut client(&ours.site), path, &pieces, with_length);
            let shown =
                |a: &Answer| (a.field(":status").to_owned(), String::from_utf8_lossy(&a.body).into_owned());
            // Unlike nginx: pages of `error_page 413` come over HTTP/2 as well.
            if of_nginx.field(":status") == "413" {
                assert_eq!(
                    shown(&answer),
                    ("413".to_owned(), "large ".to_owned()),
                    "{path} {pieces:?} {with_length}"
                );
                continue;
            }
            assert_eq!(shown(&answer), shown(&of_nginx), "{path} {pieces:?} {with_length}");
        }
    }
}

fn client(site: &Site) -> Client {
    Client::on(TcpStream::connect(site.addr(0)).expect("connect"))
}

/// Sends a request whose body consists of some frames.
fn send(client: &mut Client, path: &str, pieces: &[&str], with_length: bool) -> Answer {
    let length = pieces.iter().map(|piece| piece.len()).sum::<usize>().to_string();
    let mut fields = vec![(":method", "POST")];
    if with_length {
        fields.push(("content-length", &length));
    }
    assert!(client.request(1, path, &fields, false));
    for (at, piece) in pieces.iter().enumerate() {
        let end = if at + 1 == pieces.len() { flag::END_STREAM } else { 0 };
        client.send(&data(1, piece.as_bytes(), end));
    }
    client.answer(1)
}

/// An extended CONNECT has a stream for its body, which has no end before the answer.
#[test]
fn a_websocket_is_not_read_early() {
    let site = Site::new(wrap(
        "server { listen 127.0.0.1:%PORT0%; http2 on; client_body_early_read on; location / { return 403; } }",
    ));
    let ours = Server::start_on(site);
    let mut client = client(&ours.site);
    assert!(client.request(1, "/", &[(":method", "CONNECT"), (":protocol", "websocket")], false));
    assert_eq!(client.answer(1).field(":status"), "403");
}
