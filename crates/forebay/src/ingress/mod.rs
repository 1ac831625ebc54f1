//! `forebay ingress`: the controller of a cluster (see [`crate::cluster`]), and `render` and `audit`, which read manifests without one.

mod audit;
pub(crate) mod build;
mod carried;
pub(crate) mod flags;
mod read;
mod show;
mod values;

use crate::cluster::{self, ClusterArgs};
use build::Builder;
use clap::{Args, Subcommand, ValueEnum};
use forebay_k8s::gateway::{Complaint, GatewayOptions, StatusUpdate};
use forebay_k8s::judge::Judge;
use forebay_k8s::selector::Selector;
use forebay_k8s::{Key, Options, Problem, Severity, Translation, Translator};
use forebay_terminal::print;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// `spec.controllerName` of GatewayClasses that are ours if `--gateway-controller` gives no other.
const GATEWAY_CONTROLLER: &str = "forebay.io/gateway";

/// `forebay ingress`: without a subcommand it serves the cluster.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct IngressArgs {
    #[command(subcommand)]
    wish: Option<Wish>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    carried: flags::WithoutEffect,
}

#[derive(Subcommand)]
enum Wish {
    /// Print the configuration that manifests become, or write its files
    Render(RenderArgs),
    /// Say for each Ingress what works as it is, what differs and what is refused
    Audit(AuditArgs),
    /// Show the configuration, the endpoints and the certificates of a host, as a cluster or manifests have them
    Show(show::ShowArgs),
    /// Print the features of the Gateway API that are served, a line each
    GatewayFeatures,
}

/// `forebay ingress render`.
#[derive(Args)]
struct RenderArgs {
    /// Manifests: files or directories of YAML or JSON; `-` is the standard input
    #[arg(short = 'f', long = "filename", value_name = "PATH", required = true)]
    files: Vec<PathBuf>,
    /// Write the files to a directory, for `forebay -p DIR -c forebay.conf`
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    controller: ControllerArgs,
}

/// `forebay ingress audit`.
#[derive(Args)]
struct AuditArgs {
    /// Manifests: files or directories of YAML or JSON
    #[arg(value_name = "PATH", required_unless_present = "cluster")]
    files: Vec<PathBuf>,
    /// Read the objects of the cluster; nothing is written to it
    #[arg(long, conflicts_with = "files")]
    cluster: bool,
    /// File with the address and the user of the cluster (default: $KUBECONFIG, ~/.kube/config, or the account of the pod)
    #[arg(long, value_name = "FILE", requires = "cluster")]
    kubeconfig: Option<PathBuf>,
    /// Values of the Helm chart of ingress-nginx
    #[arg(long, value_name = "FILE")]
    values: Option<PathBuf>,
    /// Form of the report
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    controller: ControllerArgs,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Options of the controller, named as those of ingress-nginx.
#[derive(Args, Default)]
pub(crate) struct ControllerArgs {
    /// Name of the class
    #[arg(long, value_name = "NAME")]
    ingress_class: Option<String>,
    /// `spec.controller` of our classes
    #[arg(long, value_name = "NAME")]
    controller_class: Option<String>,
    /// Serve classes of that name, whatever their controller is
    #[arg(long, value_name = "BOOL", value_parser = flags::switch, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    ingress_class_by_name: bool,
    /// Serve Ingresses without a class, too
    #[arg(long, value_name = "BOOL", value_parser = flags::switch, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    watch_ingress_without_class: bool,
    /// Namespaces to serve (default: all)
    #[arg(long, value_name = "NAMESPACE")]
    watch_namespace: Vec<String>,
    /// Serve Ingresses of namespaces with these labels alone, such as team=web,stage in (live)
    #[arg(long, value_name = "SELECTOR")]
    watch_namespace_selector: Option<String>,
    /// Serve no Ingress that has a default backend, and no rule without a host
    #[arg(long, value_name = "BOOL", value_parser = flags::switch, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    disable_catch_all: bool,
    /// Zone of this replica: endpoints that EndpointSlices hint to it are preferred
    #[arg(long, value_name = "ZONE")]
    topology_zone: Option<String>,
    /// ConfigMap with settings
    #[arg(long, value_name = "NAMESPACE/NAME")]
    configmap: Option<String>,
    /// Service for requests that no rule takes
    #[arg(long, value_name = "NAMESPACE/NAME")]
    default_backend_service: Option<String>,
    /// Secret with the certificate of hosts without one
    #[arg(long, value_name = "NAMESPACE/NAME")]
    default_ssl_certificate: Option<String>,
    /// ConfigMap of TCP services
    #[arg(long, value_name = "NAMESPACE/NAME")]
    tcp_services_configmap: Option<String>,
    /// ConfigMap of UDP services
    #[arg(long, value_name = "NAMESPACE/NAME")]
    udp_services_configmap: Option<String>,
    /// Port for HTTP
    #[arg(long, value_name = "PORT")]
    http_port: Option<u16>,
    /// Port for HTTPS
    #[arg(long, value_name = "PORT")]
    https_port: Option<u16>,
    /// Let TLS sessions of some hosts pass as they are
    #[arg(long, value_name = "BOOL", value_parser = flags::switch, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_ssl_passthrough: bool,
    /// Port of this machine for TLS sessions that do not pass as they are
    #[arg(long, value_name = "PORT")]
    ssl_passthrough_proxy_port: Option<u16>,
    /// Secret in which the leader keeps keys of TLS session tickets, so that a session goes on at any replica
    #[arg(long, value_name = "NAMESPACE/NAME")]
    session_ticket_secret: Option<String>,
    /// `spec.controllerName` of GatewayClasses that are served (default: forebay.io/gateway); empty for none
    #[arg(long, value_name = "NAME")]
    gateway_controller: Option<String>,
    /// Addresses of this machine of which each Gateway gets one, separated by commas (default: all Gateways share all addresses)
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',')]
    gateway_addresses: Vec<std::net::IpAddr>,
    /// Service of the controller, NAMESPACE/NAME, of which each Gateway gets an alias in its namespace (default: none gets one)
    #[arg(long, value_name = "SERVICE")]
    gateway_service: Option<String>,
    /// Refuse Services of type ExternalName
    #[arg(long, value_name = "BOOL", value_parser = flags::switch, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    disable_svc_external_name: bool,
    /// First prefix of annotations
    #[arg(long, value_name = "PREFIX")]
    annotations_prefix: Option<String>,
    /// Name server for names in annotations and Services (default: those of /etc/resolv.conf)
    #[arg(long, value_name = "ADDRESS")]
    resolver: Vec<String>,
    /// Domain below which short names of ExternalName Services are looked for (default: those of /etc/resolv.conf, and with
    /// --resolver none)
    #[arg(long, value_name = "DOMAIN")]
    search_domain: Vec<String>,
    /// Serve what asks for ModSecurity, and filter nothing
    #[arg(long, value_name = "BOOL", value_parser = flags::switch, default_value = "false", num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    ignore_missing_waf: bool,
    /// Address that is never an upstream: the API server's
    #[arg(long, value_name = "ADDRESS")]
    api_server: Vec<String>,
}

impl ControllerArgs {
    /// Returns `true` if an option chooses what is served.
    fn chooses(&self) -> bool {
        self.ingress_class.is_some()
            || self.controller_class.is_some()
            || self.configmap.is_some()
            || self.gateway_controller.is_some()
            || !self.watch_namespace.is_empty()
    }

    /// Returns the options of a translation.
    fn options(&self) -> Result<Options, String> {
        let key = |text: &Option<String>| match text {
            Some(text) => {
                Key::parse(text).map(Some).ok_or_else(|| format!("\"{text}\" is not NAMESPACE/NAME"))
            }
            None => Ok(None),
        };
        let default = Options::default();
        let conf = read::resolv_conf();
        let own = !self.resolver.is_empty() || !self.search_domain.is_empty();
        if let Some(bad) = self.search_domain.iter().find(|d| !forebay_k8s::ingress::is_host(d)) {
            return Err(format!("\"{bad}\" is no domain"));
        }
        Ok(Options {
            ingress_class: self.ingress_class.clone().unwrap_or(default.ingress_class),
            controller_class: self.controller_class.clone().unwrap_or(default.controller_class),
            ingress_class_by_name: self.ingress_class_by_name,
            watch_ingress_without_class: self.watch_ingress_without_class,
            watch_namespaces: self.watch_namespace.clone(),
            namespace_selector: Selector::parse(self.watch_namespace_selector.as_deref().unwrap_or_default())
                .map_err(|why| format!("--watch-namespace-selector: {why}"))?,
            disable_catch_all: self.disable_catch_all,
            topology_zone: self.topology_zone.clone().unwrap_or_default(),
            config_map: key(&self.configmap)?,
            default_backend_service: key(&self.default_backend_service)?,
            default_ssl_certificate: key(&self.default_ssl_certificate)?,
            tcp_services: key(&self.tcp_services_configmap)?,
            udp_services: key(&self.udp_services_configmap)?,
            http_port: self.http_port.unwrap_or(default.http_port),
            https_port: self.https_port.unwrap_or(default.https_port),
            enable_ssl_passthrough: self.enable_ssl_passthrough,
            ssl_passthrough_proxy_port: self
                .ssl_passthrough_proxy_port
                .unwrap_or(default.ssl_passthrough_proxy_port),
            session_tickets: key(&self.session_ticket_secret)?,
            ignore_missing_waf: self.ignore_missing_waf,
            disable_svc_external_name: self.disable_svc_external_name,
            annotations_prefix: self.annotations_prefix.clone().unwrap_or(default.annotations_prefix),
            resolvers: if self.resolver.is_empty() { conf.servers } else { self.resolver.clone() },
            search: if own { self.search_domain.clone() } else { conf.search },
            ndots: conf.ndots,
            api_server: self.api_server.clone(),
            endpoints_in_files: true,
            judge: Judge::new(Builder { files: Vec::new(), elsewhere: true }),
            gateway: GatewayOptions {
                controller: self.gateway_controller.clone().unwrap_or_else(|| GATEWAY_CONTROLLER.to_owned()),
                addresses: self.gateway_addresses.clone(),
                published: Vec::new(),
                service: key(&self.gateway_service)?,
            },
            ..Options::default()
        })
    }
}

/// Runs `forebay ingress`.
pub(crate) fn main(args: &IngressArgs, arguments: Vec<OsString>, titled: bool) -> u8 {
    let done = match &args.wish {
        Some(Wish::Render(args)) => render(args),
        Some(Wish::Audit(args)) => audit::run(args),
        Some(Wish::Show(args)) => show::run(args),
        Some(Wish::GatewayFeatures) => {
            print(forebay_k8s::gateway::FEATURES.join("\n") + "\n");
            Ok(0)
        }
        None => args.controller.options().map(|options| {
            if !cluster::is_controller() {
                args.carried.report();
            }
            cluster::main(&args.cluster, options, arguments, titled)
        }),
    };
    done.unwrap_or_else(|text| {
        eprintln!("forebay ingress: {text}");
        2
    })
}

/// Prints or writes the files. The exit code is 1 if something of the manifests was refused.
fn render(args: &RenderArgs) -> Result<u8, String> {
    let read = read::read(&args.files)?;
    for (place, skipped) in &read.skipped {
        if !skipped.other_kind {
            eprintln!("forebay ingress: {place}:{}: {}", skipped.line, skipped.reason);
        }
    }
    let made = Translator::new().translate(&read.objects, &args.controller.options()?);
    match &args.output {
        Some(dir) => write(dir, &made)?,
        None => print(text(&made)),
    }
    made.problems.iter().for_each(report);
    let complaints = complaints(&made);
    for complaint in &complaints {
        eprintln!("{}: {}", severity(complaint).as_str(), complaint.text);
    }
    let refused = made.problems.iter().any(|p| p.severity == Severity::Refused);
    Ok(u8::from(refused || complaints.iter().any(|c| c.refused)))
}

/// Returns what the statuses of the Gateway API say against their objects.
fn complaints(made: &Translation) -> Vec<Complaint> {
    made.statuses.iter().flat_map(StatusUpdate::complaints).collect()
}

fn severity(complaint: &Complaint) -> Severity {
    if complaint.refused { Severity::Refused } else { Severity::Differs }
}

fn report(problem: &Problem) {
    eprintln!("{}: {}", problem.severity.as_str(), problem.render());
}

/// Returns the configuration files as one text, and of keys and the like only their names.
fn text(made: &Translation) -> String {
    let mut out = String::new();
    for (path, bytes) in &made.files {
        let secret = path.starts_with("secrets");
        let content = if secret {
            format!("# {} bytes\n", bytes.len())
        } else {
            String::from_utf8_lossy(bytes).into_owned()
        };
        out.push_str(&format!("# file {}\n{content}\n", path.display()));
    }
    out
}

fn write(dir: &Path, made: &Translation) -> Result<(), String> {
    for (path, bytes) in &made.files {
        let path = dir.join(path);
        read::write(&path, bytes).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    let logs = dir.join("logs");
    forebay_sys::files::create_directories(&logs, 0o755)
        .map_err(|e| format!("cannot make {}: {e}", logs.display()))
}
