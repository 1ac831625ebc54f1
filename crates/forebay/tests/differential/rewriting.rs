//! Rewriting, locations, and pages of errors.

use forebay_testkit::{compare, get};

#[test]
fn patterns_and_empty_values() {
    compare(
        r#"map $arg_a $x { default d; ~^$ re; } map $arg_a $y { default d; ~.* re; } map $arg_a $z { "" e; ~.* re; }
        map $arg_a $h { hostnames; default d; ~.* re; a.b h; } map $arg_a $n { ~.* re; }
        map $arg_a $w { volatile; ~*^(?<c>.*)$ re; default d; } map $arg_a$arg_b $two { ~x re; ~^$ emp; default d; }
        server { listen 127.0.0.1:%PORT0%;
            location / { set $i no; if ($arg_a ~ ^$) { set $i yes; } return 200 "$x $y $z $h $n $w $two $i"; } }"#,
        &["/", "/?a=", "/?a=.", "/?a=q", "/?a=a.b.", "/?b=x"].map(get),
    );
}

#[test]
fn rewriting() {
    compare(
        r#"
        map $arg_m $mapped { default none; a one; ~^b(?<rest>.*) "two-$rest"; }
        server {
            listen 127.0.0.1:%PORT0%;
            set $v "server";
            location /set { set $w "$v-$request_uri"; return 200 "$w"; }
            location /r/ { rewrite ^/r/(.*)$ /page.html?x=$1 last; }
            location /rb/ { rewrite ^/rb/(.*)$ /$1 break; }
            location /red/ { rewrite ^/red/(.*)$ /to/$1 redirect; }
            location /perm/ { rewrite ^/perm/(.*)$ https://example.org/$1? permanent; }
            location /ret301 { return 301 /else?$args; }
            location /ret302 { return 302 http://example.org/; }
            location /ret { return 403; }
            location /text { default_type text/plain; return 200 "m=$mapped u=$uri a=$args q=$query_string i=$is_args h=$host"; }
            location /if { if ($arg_a = 1) { return 200 "one"; } if ($arg_a ~ ^x(\d+)) { return 200 "x$1"; } if ($request_method = POST) { return 405; } return 200 "none"; }
            location /file { if (-f $document_root/page.html) { return 200 "there"; } return 200 "missing"; }
            location /nofile { if (!-e $document_root/nothing) { return 200 "missing"; } }
            location /try { try_files $uri $uri/ /page.html; }
            location /try4 { try_files $uri =404; }
            location /tryn { try_files /nothing @named; }
            location @named { return 200 "named $uri"; }
            location ~ ^/re/(?<name>[a-z]+)/(\d+)$ { return 200 "$name $1 $2"; }
            location ~* \.PHP$ { return 200 "php $uri"; }
            location ^~ /noregex/ { return 200 "prefix"; }
            location ~ ^/noregex/ { return 200 "regex"; }
            location /loop { rewrite ^ /loop; }
            location /internal { internal; return 200 "never"; }
            error_page 404 /50x.html;
            location /ep/ { error_page 404 =200 /page.html; }
            location /epn/ { error_page 404 = @named; }
            location /epr/ { error_page 404 http://example.org/missing; }
            location /epc/ { error_page 403 =402 /page.html; return 403; }
        }"#,
        &[
            get("/set?a=1"),
            get("/r/one"),
            get("/r/one?b=2"),
            get("/rb/page.html"),
            get("/red/a/b"),
            get("/red/a%20b?c=d"),
            get("/perm/a?b=c"),
            get("/ret301?q=1"),
            get("/ret302"),
            get("/ret"),
            get("/text?m=a&x=y"),
            get("/text?m=bcd"),
            get("/text"),
            get("/if?a=1"),
            get("/if?a=x42"),
            get("/if"),
            get("/file"),
            get("/nofile"),
            get("/try/none"),
            get("/try"),
            get("/try4/none"),
            get("/tryn"),
            get("/re/abc/12"),
            get("/x.php"),
            get("/noregex/x"),
            get("/loop"),
            get("/internal"),
            get("/none"),
            get("/ep/none"),
            get("/epn/none"),
            get("/epr/none"),
            get("/epc/"),
        ],
    );
}

/// Captures after a match that failed, and locations after a rewrite.
#[test]
fn traces_of_rewriting() {
    compare(
        r#"
        server {
            listen 127.0.0.1:%PORT0%;
            rewrite ^/left/(.*)$ /over?x;
            rewrite ^/never/ /no;
            location /over { return 200 "[$1]"; }
            location /internal { internal; return 200 "inside $uri"; }
            location /to-internal { rewrite ^ /internal last; }
            location /through { rewrite ^/through/(.*)$ /internal/$1; }
            location /if/ { if ($uri ~ "^/if/(.*)$") { set $x $1; } if ($arg_a ~ ^(y)) { set $y 1; } return 200 "$x [$1]"; }
            location ~ ^/re/(.*)$ { if ($arg_a ~ ^(y)) { set $y 1; } return 200 "[$1]"; }
            location ~ ^/named/(?<n>.*)$ { if ($arg_a ~ ^(?<n>y)) { set $y 1; } return 200 "[$n]"; }
            location /enc { if ($arg_a ~ ^x(.*)$) { set $x "<$1>"; } return 200 "$x"; }
            location /al/ { alias %DIR%/html/alias/; rewrite ^/al/(.*)$ /al/$1 break; }
            location /cut/ { alias %DIR%/html/alias/; rewrite ^ /abc../page.html break; }
            location /alif/ { alias %DIR%/html/alias/; if ($arg_a) { rewrite ^ /x break; } }
            location ~ ^/alre/(.*)$ { alias %DIR%/html/alias/$1; rewrite ^/alre/(.*)$ /x/$1 break; }
            location /gif { empty_gif; if ($arg_a) { set $y 1; } }
            location /gif-except { empty_gif; limit_except POST { allow all; } }
            location /altry/ { alias %DIR%/html/alias/; rewrite ^ /x break; try_files $uri =404; }
            location /alconst/ { alias %DIR%/html/alias/; try_files $arg_a /alconst/one.txt =404; }
            location /alslash/ { alias %DIR%/html/alias/; try_files $arg_a one.txt =404; }
        }"#,
        &[
            get("/left/abc"),
            get("/internal"),
            get("/to-internal"),
            get("/through/x"),
            get("/if/abc"),
            get("/if/abc?a=y"),
            get("/re/abc"),
            get("/re/abc?a=y"),
            get("/named/abc"),
            get("/enc?a=x%0ay+z"),
            get("/en%63?a=x%0ay+z"),
            get("/al/one.txt"),
            get("/cut/x"),
            get("/alif/one.txt"),
            get("/alif/one.txt?a=1"),
            get("/alre/one.txt"),
            get("/altry/one.txt"),
            get("/alconst/x"),
            get("/alconst/x?a=/alconst/one.txt"),
            get("/alslash/x"),
            get("/gif?a=1").replace("GET", "HEAD"),
            get("/gif-except").replace("GET", "HEAD"),
        ],
    );
}

/// Without a location that matches, the directives of the server run once.
#[test]
fn rewriting_without_a_location() {
    compare(
        r#"
        server {
            listen 127.0.0.1:%PORT0%;
            rewrite ^/x/(.*)$ /page.html?q=$1;
            rewrite ^/(\w)/(.*)$ /alias/$2;
            rewrite ^/(page)(.*)$ /$1$2?again;
            add_header X-Args "$args";
            location /only { return 200 only; }
        }"#,
        &[get("/x/y"), get("/b/one.txt"), get("/page.html"), get("/only")],
    );
}

/// `limit_except` of a named location guards it however it is reached.
#[test]
fn methods_of_named_locations() {
    let ask = |method: &str, uri: &str| {
        format!("{method} {uri} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    };
    let uris = ["/try", "/page/x", "/post", "/get"];
    let requests: Vec<String> =
        uris.iter().flat_map(|u| ["GET", "HEAD", "POST", "PUT", "DELETE"].map(|m| ask(m, u))).collect();
    compare(
        r#"
        server {
            listen 127.0.0.1:%PORT0%;
            location /try { try_files /none @guarded; }
            location /page { error_page 404 = @guarded; }
            location /post { try_files /none @posted; }
            location /get { error_page 418 = @posted; return 418; }
            location @guarded { limit_except GET { deny all; } try_files /page.html =404; }
            location @posted { limit_except POST { deny all; } try_files /page.html =404; }
        }"#,
        &requests,
    );
}

/// Inside `^~` its own regular expressions hold, and not those beside it; inside another location both do.
#[test]
fn locations_in_locations() {
    compare(
        r#"server {
            listen 127.0.0.1:%PORT0%;
            location ^~ /up/ {
                return 200 "up";
                location /up/in/ { return 200 "up in"; }
                location ~ \.re$ { return 200 "up re"; }
            }
            location /low/ {
                return 200 "low";
                location ^~ /low/in/ { return 200 "low in"; }
                location = /low/is.html { return 200 "low is"; }
                location ~ \.re$ { return 200 "low re"; }
            }
            location ~ \.html$ { return 200 "html"; }
        }"#,
        &[
            "/up/a.html",
            "/up/in/a.html",
            "/up/in/a.re",
            "/up/in/a",
            "/up/a.re",
            "/low/a.html",
            "/low/in/a.html",
            "/low/in/a.re",
            "/low/in/a",
            "/low/is.html",
            "/low/a.re",
            "/a.html",
        ]
        .map(get),
    );
}

/// `$status` in the target of `error_page` is the status that is to be sent.
#[test]
fn error_pages_by_status() {
    compare(
        "server { listen 127.0.0.1:%PORT0%; error_page 404 410 /page?s=$status; error_page 403 =402 /page?s=$status;\n\
         error_page 405 =200 /page?s=$status; error_page 406 http://other/$status; error_page 409 = /page?s=$status;\n\
         location /404 { return 404; } location /410 { return 410; } location /403 { return 403; }\n\
         location /405 { return 405; } location /406 { return 406; } location /409 { return 409; }\n\
         location /page { return 200 \"$arg_s $status\"; } }",
        &["/404", "/410", "/403", "/405", "/406", "/409"].map(get),
    );
}

/// A file that `try_files` has found below an `alias` does not affect the alias of another location.
#[test]
fn aliases_of_regular_expressions() {
    let post = "POST /t/x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    compare(
        "server { listen 127.0.0.1:%PORT0%; location ~ ^/re/(.*)$ { alias %DIR%/html/alias/$1; }\n\
         location ~ ^/t/(.*)$ { alias %DIR%/html; error_page 405 = /re/one.txt; try_files /page.html =404; } }",
        &[get("/t/x"), get("/re/one.txt"), post.into()],
    );
}

/// A page of `error_page` is asked for by GET, and its `limit_except` judges that.
#[test]
fn methods_of_error_pages() {
    let ask = |method: &str, uri: &str| {
        format!("{method} {uri} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    };
    let requests: Vec<String> = ["/none", "/50x.html"]
        .iter()
        .flat_map(|u| ["GET", "HEAD", "POST", "PUT", "ODD"].map(|m| ask(m, u)))
        .collect();
    compare(
        "server { listen 127.0.0.1:%PORT0%; error_page 404 405 /50x.html; recursive_error_pages on;\n\
         location = /50x.html { limit_except GET { deny all; } } location /none { return 404; } }",
        &requests,
    );
}
