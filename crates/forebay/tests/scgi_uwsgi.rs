//! `scgi_pass` and `uwsgi_pass`, with servers made here.

forebay_testkit::cases!("cases/scgi_uwsgi.cases":
    uwsgi_over_tls, as_nginx_does, invalid_answers_and_parameters_are_refused, a_field_proxy_is_no_parameter);
