//! `forebay test`: expectations of a configuration.

forebay_testkit::cases!("cases/expect.cases":
    expectations_hold_or_are_told_with_their_places, a_file_that_cannot_be_run_says_where_and_why);
