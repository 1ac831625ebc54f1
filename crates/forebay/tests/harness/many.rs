//! Configurations with many servers, like those that controllers of Kubernetes generate: for each route an upstream, a server with
//! a name of its own, and a location of about 40 directives.

use std::fmt::Write as _;
use std::path::Path;

/// Directives of each location after those that name the route.
const LOCATION: &str = r#"
            client_max_body_size 1m;
            proxy_set_header Host $http_host;
            proxy_set_header Connection "";
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header X-Request-ID $request_id;
            proxy_set_header X-Real-IP $remote_addr;
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Host $http_host;
            proxy_set_header X-Forwarded-Port $server_port;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header X-Forwarded-Scheme $scheme;
            proxy_set_header X-Scheme $scheme;
            proxy_set_header X-Original-Forwarded-For $http_x_forwarded_for;
            proxy_set_header X-Original-URI $request_uri;
            proxy_set_header Proxy "";
            proxy_connect_timeout 5s;
            proxy_send_timeout 60s;
            proxy_read_timeout 60s;
            proxy_buffering off;
            proxy_buffer_size 4k;
            proxy_buffers 4 4k;
            proxy_max_temp_file_size 1024m;
            proxy_request_buffering on;
            proxy_http_version 1.1;
            proxy_cookie_domain off;
            proxy_cookie_path off;
            proxy_next_upstream error timeout;
            proxy_next_upstream_timeout 0;
            proxy_next_upstream_tries 3;
"#;

/// Returns the upstream and the server of a route. `port` is that of the listeners, `backend` the address of the only server.
pub fn site(number: usize, port: u16, backend: &str) -> String {
    format!(
        r#"upstream default-service-{number}-80 {{
    server {backend} max_fails=0;
    keepalive 32;
    keepalive_timeout 60s;
    keepalive_requests 1000;
}}
server {{
    listen {port};
    server_name host-{number}.example.org;
    location / {{
        set $namespace "default";
        set $ingress_name "ingress-{number}";
        set $service_name "service-{number}";
        set $service_port "80";
        set $location_path "/";
        set $proxy_upstream_name "default-service-{number}-80";{LOCATION}
        proxy_pass http://default-service-{number}-80;
        proxy_redirect off;
    }}
}}
"#
    )
}

/// Returns the address of the server of a route in measurements.
pub fn backend(number: usize) -> String {
    format!("10.{}.{}.{}:8080", number / 65536 % 256, number / 256 % 256, number % 256)
}

/// Returns the main file. `sites` is the text in the place of the servers: an `include`, or the servers themselves.
pub fn main(directory: &Path, port: u16, sites: &str) -> String {
    let directory = directory.display();
    format!(
        r#"worker_processes 2;
pid {directory}/pid;
error_log {directory}/error.log;
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server_names_hash_max_size 65536;
    server_names_hash_bucket_size 128;
    variables_hash_max_size 2048;
    proxy_headers_hash_max_size 1024;
    proxy_headers_hash_bucket_size 128;
    log_format upstreaminfo '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" '
        '"$http_user_agent" $request_length $request_time [$proxy_upstream_name] $upstream_addr $upstream_status $request_id';
    access_log {directory}/access.log upstreaminfo;
    server {{ listen {port} default_server; server_name _; return 404; }}
    {sites}
}}
"#
    )
}

/// Returns the name of the file of a route below `sites`.
pub fn file_name(number: usize) -> String {
    let mut name = String::new();
    let _ = write!(name, "{number:05}.conf");
    name
}
