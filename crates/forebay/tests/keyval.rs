//! `keyval` and `keyval_zone`, with the part of the API that changes them.

forebay_testkit::cases!("cases/keyval.cases":
    a_deny_list, the_api_of_a_zone, bodies_that_are_refused, requests_of_other_origins_are_refused,
    pairs_expire, a_full_zone_refuses, zones_over_reloads, a_state_file_outlives_the_process, all_versions_of_http,
    zones_of_stream, refused_configurations);
