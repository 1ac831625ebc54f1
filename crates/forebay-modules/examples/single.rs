//! Runs a configuration in one process without a master, for measuring and for trying things out:
//! `cargo run --example single -- PREFIX CONF`.

use forebay_conf::files::Files;
use forebay_core::config::{Environment, ListenAddr};
use forebay_core::process::{Generation, ThreadPlan, Worker};
use std::path::PathBuf;
use std::sync::Arc;

fn main() {
    let mut args = std::env::args().skip(1);
    let prefix = PathBuf::from(args.next().unwrap_or_else(|| ".".into()));
    let conf = prefix.join(args.next().unwrap_or_else(|| "nginx.conf".into()));
    let env = Environment {
        prefix,
        conf_path: conf,
        globals: String::new(),
        error_log: Some("stderr".into()),
        access_log: "access.log".into(),
    };
    let mut files = Files::disk();
    let (config, warnings) = match forebay_core::config::load(&env, &mut files, forebay_modules::FRONT_ENDS) {
        Ok(c) => c,
        Err(e) => {
            eprintln!("{}", files.render(&e));
            std::process::exit(1);
        }
    };
    for w in &warnings {
        eprintln!("{}", files.render(w));
    }
    let mut sockets = Vec::new();
    for l in &config.listeners {
        if let ListenAddr::Inet(a) = &l.addr {
            let s = socket2::Socket::new(socket2::Domain::for_address(*a), socket2::Type::STREAM, None)
                .expect("socket");
            s.set_reuse_address(true).expect("reuse");
            s.set_nonblocking(true).expect("nonblocking");
            s.bind(&(*a).into()).expect("bind");
            s.listen(4096).expect("listen");
            sockets.push((l.addr.clone(), vec![s.into()]));
        }
    }
    let logs = (config.log_files.iter())
        .map(|p| {
            (p.clone(), forebay_sys::files::append(p, forebay_sys::files::READABLE).expect("log").into())
        })
        .collect();
    let plan = ThreadPlan { cpus: vec![vec![]], connections: config.main.worker_connections.unwrap_or(512) };
    let generation = Generation { config: Arc::new(config), sockets, logs, number: 1 };
    Worker::start(generation, &plan, None, forebay_modules::FRONT_ENDS)
        .expect("start")
        .join(&|_, text| eprintln!("{text}"));
}
