//! `explain URL`: the way of one request.

forebay_testkit::cases!("cases/explain.cases":
    a_request_is_followed_from_listener_to_log, a_variable_chooses_a_location, a_request_that_would_change_something_changes_nothing,
    upstreams_are_asked_in_their_protocols, questions_that_cannot_be_answered_say_why);
