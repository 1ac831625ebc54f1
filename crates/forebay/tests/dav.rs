//! PUT, DELETE, MKCOL, COPY and MOVE.

forebay_testkit::cases!("cases/dav.cases":
    files_are_managed_as_by_nginx, an_upload_that_breaks_off_changes_nothing, nothing_leaves_the_root,
    a_mirror_of_a_put_has_the_body_too);
