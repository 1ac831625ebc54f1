//! `more_set_headers` and its kin, and the directives of set-misc.

forebay_testkit::cases!("cases/headers_more.cases":
    fields_of_responses_are_set_and_cleared, fields_of_requests_are_set_and_cleared, fields_that_cannot_be_changed_are_refused,
    functions_run_in_order_with_set, a_field_is_cleared_whatever_value_is_named);
