//! `proxy_http3_alt_svc`: upstreams say where they take HTTP/3 (RFC 7838).

forebay_testkit::cases!("../cases/http3/upstream_alt_svc.cases":
    requests_move_to_quic_and_back, without_the_directive_the_field_is_for_clients,
    another_port_needs_a_certificate_that_is_verified, alternatives_that_nobody_serves_are_left_alone,
    alternatives_that_fail_are_left_alone, requests_over_quic_are_counted, requests_that_fall_back_are_counted);
