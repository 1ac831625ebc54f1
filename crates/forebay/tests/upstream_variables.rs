//! Variables and fields about upstreams have the values that nginx gives them.

forebay_testkit::cases!("cases/upstream_variables.cases":
    slices_are_told_of_by_the_first, times_of_answers_that_are_not_passed_on, redirects_that_lead_nowhere,
    upstream_variables_name_the_failure, lengths_of_responses_without_heads, fields_that_are_the_upstreams_business);
