//! `forebay ingress`: serves the Ingresses of a Kubernetes cluster.
//!
//! Three processes, all of this program: the master starts a controller, which follows the cluster and holds its credentials, and a
//! worker, which serves. The controller delivers to the master (see [`crate::controller_process`]).

use crate::controller_process::{self, Delivery, Report};
use crate::ingress::build::Builder;
use crate::master_log::Log;
use crate::paths::Paths;
use crate::{server, title};
use clap::Args;
use forebay_cluster::controller::{
    Configuration, Delivery as Delivered, Report as Reported, Settings, run as follow,
};
use forebay_cluster::lease::Candidate;
use forebay_cluster::status::Publish;
use forebay_cluster::{Api, Error};
use forebay_conf::Node;
use forebay_conf::error::Level;
use forebay_core::config::Environment;
use forebay_core::config::main_settings::{ErrorLog, ErrorLogTarget};
use forebay_k8s::judge::Judge;
use forebay_k8s::translate::Group;
use forebay_k8s::{Key, Options};
use forebay_sys::{closed, daemon};
use nix::sys::signal::SigSet;
use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// Name of the Lease of the leader if `--election-id` gives no other.
const ELECTION: &str = "forebay-ingress-leader";
/// Longest time that the process takes to end after the master. It gives up the lease in this time.
const PARTING: Duration = Duration::from_secs(3);
/// Directory in which the kubelet mounts the token of the pod's ServiceAccount.
const SERVICE_ACCOUNTS: &str = "/var/run/secrets";
/// Name in the certificate of hosts without one, and its subject. Programs know ingress-nginx's by them.
const NO_HOST: &str = "ingress.local";
const NO_HOST_SUBJECT: &str = "Kubernetes Ingress Controller Fake Certificate";

/// Options of `forebay ingress` that only the running controller has. The names are ingress-nginx's.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClusterArgs {
    /// File with the address and credentials of the API server (default: those of the pod)
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server, instead of the one that is found
    #[arg(long, value_name = "URL")]
    pub apiserver_host: Option<String>,
    /// Service, NAMESPACE/NAME, whose addresses are written to the status of Ingresses
    #[arg(long, value_name = "SERVICE", value_parser = key)]
    pub publish_service: Option<Key>,
    /// Addresses for the status of Ingresses, separated by commas
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',')]
    pub publish_status_address: Vec<String>,
    /// Write the status of Ingresses
    #[arg(long, default_value_t = true, value_parser = crate::ingress::flags::switch, action = clap::ArgAction::Set, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub update_status: bool,
    /// Name of the Lease by which replicas elect the one that writes statuses
    #[arg(long, value_name = "NAME", default_value = ELECTION)]
    pub election_id: String,
    /// This replica is the only one
    #[arg(long, value_name = "BOOL", value_parser = crate::ingress::flags::switch, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub disable_leader_election: bool,
    /// Address and port of the admission webhook, such as :8443 (default: none)
    #[arg(long, value_name = "ADDRESS", requires = "validating_webhook_certificate")]
    pub validating_webhook: Option<String>,
    /// Certificate of the admission webhook, PEM
    #[arg(long, value_name = "FILE", requires = "validating_webhook_key")]
    pub validating_webhook_certificate: Option<PathBuf>,
    /// Key of the admission webhook, PEM
    #[arg(long, value_name = "FILE")]
    pub validating_webhook_key: Option<PathBuf>,
    /// Files of this machine that snippets of the ConfigMap name, such as the password of shared_store, separated by commas
    #[arg(long, value_name = "FILES", value_delimiter = ',')]
    pub snippet_files: Vec<PathBuf>,
    /// Show metrics under the names of ingress-nginx, too: /metrics then counts requests by Ingress, path, method and status
    #[arg(long, value_name = "BOOL", value_parser = crate::ingress::flags::switch, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub ingress_nginx_metrics: bool,
    /// Port of /healthz and /metrics; 0 for none
    #[arg(long, value_name = "PORT", default_value_t = 10254)]
    pub healthz_port: u16,
}

/// Reads `NAMESPACE/NAME`.
pub(crate) fn key(text: &str) -> Result<Key, String> {
    Key::parse(text).ok_or_else(|| format!("\"{text}\" is not NAMESPACE/NAME"))
}

/// Returns `true` in the process that the master starts as the controller.
pub(crate) fn is_controller() -> bool {
    std::env::var_os(controller_process::ROLE).is_some()
}

/// Runs `forebay ingress`, as the master or as the controller. Returns the exit code.
pub(crate) fn main(args: &ClusterArgs, options: Options, arguments: Vec<OsString>, titled: bool) -> u8 {
    if is_controller() {
        return control(args, options);
    }
    if !titled {
        title::set_master(&arguments);
    }
    match serve(arguments, credentials(args)) {
        Ok(code) => code,
        Err(text) => {
            eprintln!("forebay: {text}");
            1
        }
    }
}

/// Returns the files and directories with credentials, which the process that serves requests does not read.
fn credentials(args: &ClusterArgs) -> Vec<PathBuf> {
    let configured = std::env::var_os("KUBECONFIG");
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube"));
    let files = [&args.kubeconfig, &args.validating_webhook_certificate, &args.validating_webhook_key];
    let files = files.into_iter().flatten().chain(&args.snippet_files).cloned();
    let kubeconfigs = configured.iter().flat_map(std::env::split_paths);
    files.chain(kubeconfigs).chain(home).chain([PathBuf::from(SERVICE_ACCOUNTS)]).collect()
}

fn serve(arguments: Vec<OsString>, credentials: Vec<PathBuf>) -> Result<u8, String> {
    let private = tempfile::Builder::new().prefix("forebay-").tempdir().map_err(|e| e.to_string())?;
    let prefix = private.path().to_owned();
    let paths = Paths {
        conf: prefix.join(forebay_k8s::translate::MAIN),
        error_log: "stderr".into(),
        pid: prefix.join("forebay.pid"),
        access_log: "access.log".into(),
        prefix: prefix.clone(),
    };
    let environment = Environment {
        conf_path: paths.conf.clone(),
        globals: String::new(),
        error_log: Some("stderr".into()),
        access_log: "access.log".into(),
        prefix,
    };
    // The directory is removed when `private` goes out of scope, after the server has ended.
    Ok(server::start_controlled(&environment, paths, arguments, credentials))
}

/// Runs the controller process.
fn control(args: &ClusterArgs, options: Options) -> u8 {
    // The process that serves requests may be of the same user.
    let _ = closed::hide_memory();
    // The master has blocked the signals that it waits for.
    let _ = SigSet::all().thread_unblock();
    let log = Log::configured(
        &[ErrorLog { target: ErrorLogTarget::Stderr, level: Level::Notice, form: Default::default() }],
        &[],
    );
    match connect(args, options, Arc::new(log)) {
        Ok(()) => 0,
        Err(text) => {
            eprintln!("forebay: ingress controller: {text}");
            1
        }
    }
}

fn connect(args: &ClusterArgs, options: Options, log: Arc<Log>) -> Result<(), String> {
    let socket = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from).map_err(|e| e.to_string())?;
    daemon::silence_stdin().map_err(|e| e.to_string())?;
    let (deliveries, to_deliver) = mpsc::unbounded_channel();
    let (reported, reports) = mpsc::unbounded_channel();
    let sending = socket.try_clone().map_err(|e| e.to_string())?;
    std::thread::spawn(move || deliver(&sending, to_deliver));
    std::thread::spawn(move || listen(&socket, &reported));
    let mut settings = settings(args, options)?;
    if let Some(address) = &args.validating_webhook {
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|e| format!("webhook: {e}"))?;
        let port = listener.local_addr().map_err(|e| e.to_string())?.port();
        settings.options.http.push(webhook(address, port));
        let files = [&args.validating_webhook_certificate, &args.validating_webhook_key];
        let files =
            WEBHOOK_FILES.iter().zip(files).filter_map(|(path, from)| Some((path.into(), from.clone()?)));
        settings.files.extend(files);
        settings.webhook = Some(listener);
    }
    // After all files of this machine are known.
    settings.options.judge = Judge::new(Builder { files: settings.files.clone(), elsewhere: false });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    let running = async {
        let api = Api::connect(args.kubeconfig.as_deref(), args.apiserver_host.as_deref()).await?;
        follow(api, settings, deliveries, reports, move |text: &str| log.notice(text)).await
    };
    let local = tokio::task::LocalSet::new();
    runtime.block_on(local.run_until(running)).map_err(|e: Error| e.to_string())
}

fn settings(args: &ClusterArgs, mut options: Options) -> Result<Settings, String> {
    let now = jiff::Timestamp::now().as_second();
    let (key, chain) = forebay_acme::self_signed(NO_HOST_SUBJECT, NO_HOST, now)?;
    options.made_certificate = Some(forebay_k8s::options::Certificate {
        chain: chain.into_bytes().into(),
        key: key.as_slice().into(),
    });
    // The running groups get them by their names.
    options.endpoints_in_files = false;
    options.gateway.published.clone_from(&args.publish_status_address);
    let identity = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME"));
    let identity = identity.unwrap_or_else(|_| format!("forebay-{}", std::process::id()));
    let namespace = std::env::var("POD_NAMESPACE").unwrap_or_else(|_| "default".to_owned());
    let mut metrics = Node::new("prometheus");
    if args.ingress_nginx_metrics {
        let labels = [
            format!("label=controller_class:{}", options.controller_class),
            format!("label=controller_namespace:{namespace}"),
            format!("label=controller_pod:{identity}"),
        ];
        metrics = metrics.args(["names=forebay", "names=ingress-nginx"]).args(labels);
        options.http.push(Node::new("prometheus_labels").args(METRIC_LABELS));
    }
    let health = match args.healthz_port {
        0 => None,
        port => {
            let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|e| format!("health: {e}"))?;
            let own = listener.local_addr().map_err(|e| e.to_string())?.port();
            options.http.push(probes(port, own, metrics));
            Some(listener)
        }
    };
    let election = (!args.disable_leader_election).then(|| Candidate {
        namespace,
        name: args.election_id.clone(),
        identity: identity.clone(),
    });
    let publish =
        Publish { service: args.publish_service.clone(), addresses: args.publish_status_address.clone() };
    Ok(Settings {
        options,
        election,
        publish: args.update_status.then_some(publish),
        identity,
        webhook: None,
        health,
        files: args.snippet_files.iter().map(|path| (path.clone(), path.clone())).collect(),
    })
}

/// Labels of ingress-nginx's metrics. The host is the one of the Ingress, not what a client says.
const METRIC_LABELS: [&str; 6] = [
    "host=$server_name",
    "namespace=$namespace",
    "ingress=$ingress_name",
    "service=$service_name",
    "path=$location_path",
    "canary=$proxy_alternative_upstream_name",
];

/// Returns the server for probes and metrics. `own` is the port of the controller, which knows what is set aside. While it is away, the
/// server answers by itself. `metrics` is the directive that shows the figures of the server.
fn probes(port: u16, own: u16, metrics: Node) -> Node {
    let plain = |name: &str, word: &str| Node::new(name).arg(word);
    let location = |path: &str, nodes| Node::new("location").args(["=", path]).block(nodes);
    let away = || Node::new("error_page").args(["502", "504", "=200", "@away"]);
    let pass = |path: &str| {
        let times = [("proxy_connect_timeout", "1s"), ("proxy_read_timeout", "2s"), ("access_log", "off")];
        let mut nodes: Vec<Node> = times.iter().map(|(name, time)| plain(name, time)).collect();
        nodes.extend([away(), plain("proxy_pass", &format!("http://127.0.0.1:{own}{path}"))]);
        nodes
    };
    let mut more = pass("/metrics");
    more.push(Node::new("internal"));
    Node::new("server").block(vec![
        plain("listen", &port.to_string()),
        plain("access_log", "off"),
        location("/healthz", pass("/healthz")),
        location("/readyz", pass("/readyz")),
        location("/controller_metrics", more),
        location(
            "/metrics",
            vec![
                metrics,
                plain("prometheus_labels", "off"),
                plain("addition_types", "*"),
                plain("add_after_body", "/controller_metrics"),
            ],
        ),
        Node::new("location").arg("@away").block(vec![plain("return", "200")]),
        Node::new("location").arg("/").block(vec![plain("return", "404")]),
    ])
}

/// Paths of certificate and key of the admission webhook in the configuration.
const WEBHOOK_FILES: [&str; 2] = ["webhook.crt", "webhook.key"];

/// Returns the server of the admission webhook, which passes requests on to the controller.
fn webhook(address: &str, port: u16) -> Node {
    let listen = address.strip_prefix(':').unwrap_or(address);
    let pass = Node::new("location").arg("/").block(vec![
        Node::new("client_max_body_size").arg("8m"),
        Node::new("proxy_pass").arg(format!("http://127.0.0.1:{port}")),
    ]);
    let [certificate, key] = WEBHOOK_FILES;
    Node::new("server").block(vec![
        Node::new("listen").args([listen, "ssl"]),
        Node::new("access_log").arg("off"),
        Node::new("ssl_certificate").arg(certificate),
        Node::new("ssl_certificate_key").arg(key),
        pass,
    ])
}

/// Sends deliveries to the master, until it is gone.
fn deliver(socket: &UnixStream, mut deliveries: UnboundedReceiver<Delivered>) {
    while let Some(delivery) = deliveries.blocking_recv() {
        if encoded(delivery).send(socket).is_err() {
            std::process::exit(1);
        }
    }
}

fn encoded(delivery: Delivered) -> Delivery {
    match delivery {
        Delivered::Endpoints(groups) => Delivery::Endpoints(groups.iter().map(endpoints).collect()),
        Delivered::Configuration(Configuration { number, complete, removed, files, endpoints: groups }) => {
            Delivery::Configuration(controller_process::Configuration {
                number,
                complete,
                removed: removed.iter().map(|path| path.to_path_buf()).collect(),
                files: files.into_iter().map(|(path, bytes)| (path.to_path_buf(), bytes)).collect(),
                endpoints: groups.iter().map(endpoints).collect(),
            })
        }
    }
}

fn endpoints(group: &Group) -> crate::wire::Endpoints {
    let (name, servers) = group;
    crate::wire::Endpoints {
        group: name.as_bytes().to_ascii_lowercase(),
        servers: servers.iter().map(|e| (e.addr, e.weight)).collect(),
    }
}

/// Passes reports of the master on. When the master has gone, or has closed the socket to end this process, it ends as if it was
/// told to, so that another replica leads at once.
fn listen(socket: &UnixStream, reports: &UnboundedSender<Reported>) {
    while let Ok(Some(report)) = Report::receive(socket) {
        let report = match report {
            Report::Applied(number) => Reported::Applied(number),
            Report::Refused(number, text) => Reported::Refused(number, text),
        };
        if reports.send(report).is_err() {
            break;
        }
    }
    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGTERM);
    std::thread::sleep(PARTING);
    std::process::exit(0);
}
