//! Rewriting, locations, and pages of errors.

forebay_testkit::cases!("../cases/differential/rewriting.cases":
    patterns_and_empty_values, rewriting, traces_of_rewriting, rewriting_without_a_location,
    methods_of_named_locations, locations_in_locations, error_pages_by_status, aliases_of_regular_expressions,
    methods_of_error_pages);
