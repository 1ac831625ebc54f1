//! The stream block: sessions that are routed by their first message, and sessions that stick to a server.

forebay_testkit::cases!("cases/stream_preread.cases":
    mqtt_is_routed_by_client_id, mqtt_is_read_behind_tls, other_bytes_than_mqtt_are_passed_on, rdp_is_routed_by_its_cookie,
    a_client_that_is_learnt_keeps_its_server, a_dead_sticky_server_gives_way, a_route_may_need_a_secret,
    a_session_over_udp_is_learnt, hellos_in_the_old_form_tell_their_version);
