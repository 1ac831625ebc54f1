//! A request without a connection, for unit tests of modules.

use crate::config;
use crate::file_cache::FileCache;
use crate::request::Request;
use crate::thread::Thread;
use forebay_conf::files::Files;
use forebay_core::config::Environment;
use forebay_core::counters::Counters;
use forebay_core::thread::{ActiveConfig, Parts, Thread as WorkerThread};
use forebay_core::vars::VarId;
use forebay_net::io::Io;
use std::rc::Rc;
use std::sync::Arc;

type LoadResult =
    Result<(forebay_core::config::Config, Vec<forebay_conf::error::Error>), forebay_conf::error::Error>;

fn load(http: &str) -> LoadResult {
    load_text(whole(http), &[])
}

/// Returns the text of a whole configuration with this http level.
fn whole(http: &str) -> String {
    format!("error_log stderr emerg;\nevents {{}}\nhttp {{\naccess_log off;\n{http}\n}}\n")
}

/// Returns the http block of a configuration of the http level.
pub fn http(http: &str) -> Arc<config::http::Http> {
    let (config, _) = load(http).unwrap_or_else(|e| panic!("{}", e.message));
    config.front(0).expect("the front end of HTTP")
}

/// Loads a configuration from a record that has these other files as well.
fn load_text(text: String, others: &[(&str, &str)]) -> LoadResult {
    let env = Environment {
        prefix: "/test/".into(),
        conf_path: "/test/nginx.conf".into(),
        globals: String::new(),
        error_log: None,
        access_log: "access.log".into(),
    };
    let others = others.iter().map(|(path, text)| (*path, (*text).to_owned()));
    forebay_core::config::load(
        &env,
        &mut Files::recorded(others.chain([("/test/nginx.conf", text)])),
        crate::FRONT_ENDS,
    )
}

/// Returns the error of a whole configuration.
pub fn error_of(text: &str) -> Option<String> {
    load_text(text.to_owned(), &[]).err().map(|e| e.message)
}

/// Returns the error of a configuration of the http level.
pub fn error(http: &str) -> Option<String> {
    load(http).err().map(|e| e.message)
}

/// Warnings that a configuration of the http level gives.
pub fn warnings(http: &str) -> Vec<String> {
    load(http).map(|(_, w)| w.into_iter().map(|e| e.message).collect()).unwrap_or_default()
}

/// Makes a request with the given query at the first server, or at one without directives if there is none.
pub fn request(http: &str, args: &str) -> Request {
    request_with(&[], http, args)
}

/// As [`request`], with other files in the record of the configuration.
pub fn request_with(files: &[(&str, &str)], http: &str, args: &str) -> Request {
    let has_server = http.contains("server {") || http.contains("server{");
    let none = if has_server { "" } else { "\nserver { }" };
    let loaded = load_text(whole(&format!("{http}{none}")), files);
    let (config, _) = loaded.unwrap_or_else(|e| panic!("{}", e.message));
    let active = ActiveConfig { listeners: vec![Some(0)], ..ActiveConfig::new(Arc::new(config)) };
    let worker = WorkerThread::new(
        Rc::new(Io::new().expect("epoll")),
        Parts {
            number: 0,
            active,
            log_buffers: Default::default(),
            all_counters: Arc::new(vec![Arc::new(Counters::default())]),
            max_connections: 1,
        },
    );
    let thread = Thread::new(worker, 0, FileCache::default());
    let mut req = Request::new(thread);
    again(&mut req, args);
    req
}

/// Forgets what the request knows and gives it another query.
pub fn again(req: &mut Request, args: &str) {
    req.uri.args = args.as_bytes().to_vec();
    req.vars.forget();
    req.modules.clear();
    req.resp.clear();
    req.location = config::http::ROOT;
}

/// Gives the request these header lines, each ending in LF.
pub fn head(req: &mut Request, lines: &str) {
    let text = format!("GET / HTTP/1.1\r\n{}Host: test\r\n\r\n", lines.replace('\n', "\r\n"));
    req.head.clear();
    req.head.buf.extend_from_slice(text.as_bytes());
    let limits = forebay_http::h1::request::Limits::default();
    let done = forebay_http::h1::request::parse(&mut req.head, &limits);
    assert!(done.is_ok(), "a good head");
}

/// Returns the number of a variable.
pub fn id(req: &Request, name: &str) -> VarId {
    let at = req
        .http()
        .vars
        .iter()
        .position(|v| &*v.name == name.as_bytes())
        .expect("a variable of the configuration");
    VarId(u16::try_from(at).expect("few variables"))
}

/// Returns the value of a variable; `None` if it has none.
pub fn value(req: &mut Request, name: &str) -> Option<String> {
    let id = id(req, name);
    let value = req.var_value(id).expect("no circle");
    value.map(|v| String::from_utf8_lossy(&v).into_owned())
}

/// Makes the functions above for a crate with other modules.
#[macro_export]
macro_rules! testing_with {
    ($modules:expr) => {
        pub use $crate::testing::{again, head, id, value};

        fn begin() {
            $crate::module::list::begin($modules);
        }

        /// Returns the http block of a configuration of the http level.
        #[allow(dead_code)]
        pub fn http(http: &str) -> std::sync::Arc<$crate::config::http::Http> {
            begin();
            $crate::testing::http(http)
        }

        /// Returns the error of a whole configuration.
        #[allow(dead_code)]
        pub fn error_of(text: &str) -> Option<String> {
            begin();
            $crate::testing::error_of(text)
        }

        /// Returns the error of a configuration of the http level.
        #[allow(dead_code)]
        pub fn error(http: &str) -> Option<String> {
            begin();
            $crate::testing::error(http)
        }

        /// Warnings that a configuration of the http level gives.
        #[allow(dead_code)]
        pub fn warnings(http: &str) -> Vec<String> {
            begin();
            $crate::testing::warnings(http)
        }

        /// Makes a request with the given query at the first server, or at one without directives if there is none.
        #[allow(dead_code)]
        pub fn request(http: &str, args: &str) -> $crate::request::Request {
            begin();
            $crate::testing::request(http, args)
        }

        /// As [`request`], with other files in the record of the configuration.
        #[allow(dead_code)]
        pub fn request_with(files: &[(&str, &str)], http: &str, args: &str) -> $crate::request::Request {
            begin();
            $crate::testing::request_with(files, http, args)
        }
    };
}
