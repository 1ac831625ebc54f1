//! What nginx 1.31.5 to 1.31.9 added to the language of the http block.

forebay_testkit::cases!("cases/language.cases":
    locations_of_variables, a_location_of_a_variable_fails_closed, alias_and_proxy_pass_in_a_location_of_a_variable);
