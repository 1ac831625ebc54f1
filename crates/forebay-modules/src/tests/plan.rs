//! Plans of locations.

use crate::testing::request;

#[test]
fn a_location_knows_whether_anything_runs_before_its_content() {
    let before_content = |http: &str| request(http, "").own_location().plan.has_hooks_before_content();
    assert!(!before_content("root /srv; expires 1h; gzip on;"));
    for http in [
        "more_set_input_headers 'A: b';",
        "set_real_ip_from 192.0.2.0/24;",
        "limit_req_zone $uri zone=z:1m rate=1r/s; limit_req zone=z;",
        "limit_conn_zone $uri zone=z:1m; limit_conn z 1;",
        "deny 192.0.2.1;",
        "auth_basic realm; auth_basic_user_file users;",
        "auth_request /auth;",
        "mirror /copy;",
        "server { try_files $uri =404; }",
    ] {
        assert!(before_content(http), "{http}");
    }
}
