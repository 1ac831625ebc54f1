//! Requests to upstreams and their answers, compared with nginx as in `differential.rs`.

forebay_testkit::cases!("cases/differential_proxy.cases":
    cookies_of_upstreams, variables_that_set_changes, fields_beside_an_x_accel_redirect, fields_that_an_upstream_repeats,
    fields_that_proxy_set_header_gives_twice, types_and_ages_of_answers_without_content, the_empty_image,
    redirects_for_internet_explorer, an_x_accel_expires_without_a_time, variants_of_cached_answers);
