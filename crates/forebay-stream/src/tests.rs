//! The table of directives tells the truth about what is bound here, and errors have nginx's words.

use crate::modules::{
    BLOCK_DIRECTIVES, core, health_check, limit_conn, log, preread, proxy, proxy_protocol, realip,
};
use crate::udp;
use forebay_conf::error::Level;
use forebay_conf::files::Files;
use forebay_conf::grammar::{self, Support};
use forebay_core::config::{Environment, load_all};
use forebay_core::limit::access;
use forebay_core::tls::{alpn, proxy_ssl, settings};
use forebay_core::upstream::bind;

/// Directives that the builder takes itself, and those of an `upstream` block.
const OTHERS: &[&str] = &[
    "stream",
    "server",
    "upstream",
    "listen",
    "server_name",
    "set",
    "proxy_pass",
    "pass",
    "health_check",
    "status_zone",
    "acme",
    "return",
    "hash",
    "least_conn",
    "least_time",
    "random",
    "zone",
    "state",
    "fallback",
    "peers",
    "sticky",
    "sticky_secret",
    "sticky_strict",
    "resolver",
    "resolver_timeout",
    "upstream_start_unresolved",
];

#[test]
fn supported_directives_are_bound() {
    let settings = [
        core::Written::DIRECTIVES,
        log::Written::DIRECTIVES,
        limit_conn::Written::DIRECTIVES,
        preread::Written::DIRECTIVES,
        health_check::Written::DIRECTIVES,
        proxy::Written::DIRECTIVES,
        proxy_protocol::Written::DIRECTIVES,
        udp::Written::DIRECTIVES,
        realip::Written::DIRECTIVES,
        access::Written::DIRECTIVES,
        alpn::Written::DIRECTIVES,
        alpn::upstream::Written::DIRECTIVES,
        proxy_ssl::Written::DIRECTIVES,
        settings::Written::DIRECTIVES,
        bind::Written::DIRECTIVES,
        OTHERS,
    ];
    let mut bound: Vec<&str> = settings.concat();
    bound.extend(BLOCK_DIRECTIVES.iter().map(|(name, _)| name));
    let rows: Vec<_> = grammar::all().iter().filter(|row| row.module.starts_with("stream")).collect();
    let of = |is: fn(Support) -> bool| rows.iter().filter(move |row| is(row.support)).map(|row| row.name);
    let unbound: Vec<&str> = of(|s| s == Support::Yes).filter(|name| !bound.contains(name)).collect();
    assert_eq!(unbound, [""; 0]);
    let hidden: Vec<&str> = of(Support::is_refused).filter(|name| bound.contains(name)).collect();
    assert_eq!(hidden, [""; 0]);
}

/// Returns the errors of a stream block.
fn errors(stream: &str) -> Vec<String> {
    let env = Environment {
        prefix: "/test/".into(),
        conf_path: "/test/nginx.conf".into(),
        globals: String::new(),
        error_log: None,
        access_log: "access.log".into(),
    };
    let text = format!("error_log stderr emerg;\nevents {{}}\nstream {{\n{stream}\n}}\n");
    let mut files = Files::recorded([("/test/nginx.conf", text)]);
    let (_, errors) = load_all(&env, &mut files, &[&crate::FRONT_END]);
    errors.into_iter().filter(|e| e.level == Level::Emerg).map(|e| e.message).collect()
}

#[test]
fn mistakes_have_nginx_s_words() {
    let server = |more: &str| errors(&format!("server {{ listen 127.0.0.1:1; {more} }}"));
    assert_eq!(server("proxy_pass 127.0.0.1:2;"), [""; 0]);
    assert_eq!(errors("server { proxy_pass 127.0.0.1:2; }"), ["no \"listen\" is defined for server"]);
    assert_eq!(
        server("proxy_pass 127.0.0.1:2; proxy_pass 127.0.0.1:3;"),
        ["\"proxy_pass\" directive is duplicate"]
    );
    assert_eq!(server("return a; return b;"), ["\"return\" directive is duplicate"]);
    assert_eq!(server("proxy_timeout x;"), ["\"proxy_timeout\" directive invalid value"]);
    assert_eq!(server("proxy_download_rate x;"), ["\"proxy_download_rate\" directive invalid value"]);
    assert_eq!(server("proxy_download_rate $status; proxy_upload_rate 1m;"), [""; 0]);
    assert_eq!(server("proxy_protocol v3;"), ["invalid value \"v3\""]);
    assert_eq!(server("proxy_pass a.invalid:1;"), ["host not found in upstream \"a.invalid\""]);
    assert_eq!(server("status_zone a; status_zone b;"), ["\"status_zone\" directive is duplicate"]);
    assert_eq!(server("set x y;"), ["invalid variable name \"x\""]);
    assert_eq!(server("access_log /l main;"), ["unknown log format \"main\""]);
    assert_eq!(server("limit_conn z 1;"), ["zero size shared memory zone \"z\""]);
    assert_eq!(server("return $nothing;"), ["unknown \"nothing\" variable"]);
    assert_eq!(server("proxy_requests x;"), ["\"proxy_requests\" directive invalid number"]);
    assert_eq!(server("proxy_responses -1;"), ["\"proxy_responses\" directive invalid number"]);
    let twice = "proxy_responses 1; proxy_responses 1;";
    assert_eq!(server(twice), ["\"proxy_responses\" directive is duplicate"]);
    assert_eq!(errors("server { listen 127.0.0.1:1 udp; proxy_responses 0; return a; }"), [""; 0]);
    let udp = "\"listen\" directive \"ssl\" parameter is incompatible with \"udp\"";
    assert_eq!(errors("server { listen 127.0.0.1:1 udp ssl; return a; }"), [udp]);
    let ssl = "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive";
    assert_eq!(errors("server { listen 127.0.0.1:1 ssl; return a; }"), [ssl]);
    let client = "acme client \"c\" is not defined in an \"http\" block before this one";
    assert_eq!(server("acme c; return a;"), [client]);
}

#[test]
fn mistakes_in_health_checks_are_named() {
    let server = |more: &str| errors(&format!("server {{ listen 127.0.0.1:1; {more} }}"));
    let check = |more: &str| server(&format!("proxy_pass 127.0.0.1:2; health_check {more};"));
    assert_eq!(check("interval=1s jitter=1s fails=2 passes=3 mandatory persistent port=5 udp"), [""; 0]);
    for parameter in ["interval=0", "fails=x", "passes=0", "persistent", "port=70000", "uri=/", "udp=on"] {
        assert_eq!(check(parameter), [format!("invalid parameter \"{parameter}\"")]);
    }
    assert_eq!(check("match=m"), ["match \"m\" not found"]);
    assert_eq!(check("; health_check"), ["\"health_check\" directive is duplicate"]);
    assert_eq!(server("health_check;"), ["\"health_check\" requires \"proxy_pass\""]);
    assert_eq!(server("return a; health_check;"), ["\"health_check\" requires \"proxy_pass\""]);
    let variable = server("proxy_pass $server_addr:1; health_check;");
    assert_eq!(variable, ["\"health_check\" requires a constant \"proxy_pass\""]);
    let m = |lines: &str| errors(&format!("match m {{ {lines} }}"));
    assert_eq!(m("send a; expect ~* b;"), [""; 0]);
    for line in ["send", "send a b", "expect", "expect ! b", "send a; send b", "expect a; expect b"] {
        let name = line.split_whitespace().next().unwrap_or_default();
        assert_eq!(m(&format!("{line};")), [format!("invalid \"{name}\" in \"match\"")], "{line}");
    }
    assert_eq!(m("status 200;"), ["invalid \"status\" in \"match\""]);
    assert_eq!(errors("match m { send a; } match m { send b; }"), ["duplicate match \"m\""]);
}

#[test]
fn a_queue_is_refused_in_words() {
    let found = errors("upstream u { server 127.0.0.1:1 max_conns=1; queue 5; }");
    let words = "\"queue\" directive is not supported: sessions do not wait for a server";
    assert!(matches!(found.as_slice(), [one] if one.starts_with(words)), "{found:?}");
    assert_eq!(errors("upstream u { server 127.0.0.1:1 slow_start=5s; zone u 64k; }"), [""; 0]);
}

#[test]
fn mistakes_in_sticky_are_named() {
    let block = |lines: &str| errors(&format!("upstream u {{ server 127.0.0.1:1 sid=a; {lines} }}"));
    assert_eq!(
        block("sticky route $remote_addr $server_port; sticky_secret s$remote_addr; sticky_strict on;"),
        [""; 0]
    );
    let learn = "sticky learn create=$remote_addr lookup=$remote_addr zone=z:64k";
    assert_eq!(block(&format!("{learn} timeout=1h norefresh connect;")), [""; 0]);
    assert_eq!(block(&format!("{learn} header;")), ["unknown parameter \"header\""]);
    assert_eq!(block("sticky cookie a;"), ["unknown parameter \"cookie\""]);
    assert_eq!(block("sticky route a;"), ["invalid variable name \"a\""]);
    let zone = "\"sticky\" directive \"zone\" parameter is not specified";
    assert_eq!(block("sticky learn create=$pid lookup=$pid;"), [zone]);
    for line in ["sticky route $pid;", "sticky_secret a;", "sticky_strict off;"] {
        let name = line.split(' ').next().unwrap_or_default();
        assert_eq!(block(&format!("{line} {line}")), [format!("\"{name}\" directive is duplicate")]);
    }
    assert_eq!(errors("upstream u { server 127.0.0.1:1 sid=; }"), ["sid is empty"]);
}

#[test]
fn names_without_an_address_stop_the_start_or_not() {
    let named = "upstream u { server a.invalid:1; } server { listen 1; proxy_pass b.invalid:2; }";
    assert_eq!(errors(named).len(), 2);
    assert_eq!(errors(&format!("{named} upstream_start_unresolved on;")), [""; 0]);
}
