//! Subrequests, limits of requests under way, and smaller parts of the proxy.

use forebay_testkit::{Origin, server, tool};

forebay_testkit::cases!("cases/subrequests.cases":
    another_location_decides_on_access, the_method_of_the_client_is_told, copies_go_elsewhere,
    connections_come_from_where_they_are_told_to, connect_makes_a_tunnel, errors_of_a_post_action_are_of_the_request,
    an_answer_without_a_head_is_no_consent, the_page_of_a_refusal_is_no_consent, large_bodies_find_their_directory,
    requests_under_way_are_limited, hints_come_early);

#[test]
fn hints_come_early_by_http2() {
    if !tool("curl") {
        return;
    }
    let up = Origin::start(|asked| {
        asked.write(b"HTTP/1.1 103 Early Hints\r\nLink: </s.css>; rel=preload\r\n\r\n");
        asked.answer("200 OK", "", "well")
    });
    let server = server!("http2 on; early_hints 1; location / {{ proxy_pass http://{up}; }}").start();
    let url = format!("http://{}/", server.addr(0));
    let out = std::process::Command::new("curl").args(["-si", "--http2-prior-knowledge", &url]).output();
    let text = String::from_utf8_lossy(&out.expect("curl runs").stdout).into_owned();
    assert!(text.starts_with("HTTP/2 103 \r\nlink: </s.css>; rel=preload\r\n\r\nHTTP/2 200 \r\n"), "{text}");
    assert!(text.ends_with("well"), "{text}");
}
