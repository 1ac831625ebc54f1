//! Health checks beyond what `upstream.rs` has: encrypted ones.

forebay_testkit::cases!("cases/health.cases":
    require_takes_variables_only, checks_are_encrypted_as_requests_are, variables_that_a_check_requires,
    checks_begin_with_the_proxy_protocol_of_their_location);
