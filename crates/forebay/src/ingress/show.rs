//! `forebay ingress show`: what one host is made of.

use super::{ControllerArgs, Format, read};
use clap::{Args, Parser};
use forebay_cluster::{Api, controller};
use forebay_conf::grammar::Contexts;
use forebay_conf::parse;
use forebay_conf::tree::{Block, Directive};
use forebay_k8s::{Endpoint, Problem, Translation, Translator};
use forebay_net::tls::{pem, verify};
use forebay_terminal::print;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `forebay ingress show`.
#[derive(Args)]
pub(super) struct ShowArgs {
    /// Host of Ingresses or routes
    host: String,
    /// Manifests instead of a cluster: files or directories of YAML or JSON
    #[arg(short = 'f', long = "filename", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// File with the address and the user of the cluster (default: $KUBECONFIG, ~/.kube/config, or the account of the pod)
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    kubeconfig: Option<PathBuf>,
    /// Form of the output
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    controller: ControllerArgs,
}

/// Most workloads of controllers that are looked at.
const MOST_WORKLOADS: usize = 100;

/// Server that takes the requests of a host.
struct Found<'m> {
    /// Name of the file.
    file: &'m Path,
    text: &'m str,
    /// Words of `server_name`.
    names: Vec<String>,
    certificates: Vec<String>,
}

/// Certificate of a server.
struct Certificate {
    file: String,
    names: Vec<String>,
    /// Seconds since 1970.
    until: i64,
}

/// Shows a host. The exit code is 1 if no server is for it.
pub(super) fn run(args: &ShowArgs) -> Result<u8, String> {
    let (objects, options, notes) = if args.files.is_empty() {
        of_cluster(args)?
    } else {
        (read::read(&args.files)?.objects, args.controller.options()?, Vec::new())
    };
    let made = Translator::new().translate(&objects, &options);
    let host = args.host.to_ascii_lowercase();
    let Some(found) = find(&made, &host) else {
        eprintln!("forebay ingress: no server is for the host {host}");
        notes.iter().for_each(|note| eprintln!("note: {note}"));
        return Ok(1);
    };
    let shown = HostReport::new(&made, &host, &found);
    match args.format {
        Format::Text => print(shown.text(&notes)),
        Format::Json => print(format!("{:#}\n", shown.json(&notes))),
    }
    Ok(0)
}

/// Objects, options, and notes about them.
type Source = (forebay_k8s::Objects, forebay_k8s::Options, Vec<String>);

/// Reads the objects of the cluster, and the options with which the controller runs there unless the command line has some.
fn of_cluster(args: &ShowArgs) -> Result<Source, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let cannot = |e: forebay_cluster::Error| format!("cannot read the cluster: {e}");
        let api = Api::connect(args.kubeconfig.as_deref(), None).await.map_err(cannot)?;
        let mut notes = Vec::new();
        let mut options = args.controller.options()?;
        if !args.controller.chooses() {
            match deployed(&api).await {
                Ok(Some((name, found))) => {
                    options = found.options()?;
                    notes.push(format!("with the options of {name}"));
                }
                Ok(None) => {
                    notes.push("no workload of the controller was found; with its default options".into())
                }
                Err(e) => notes.push(format!(
                    "the options of the controller cannot be read: {e}; with its default ones"
                )),
            }
        }
        let seen = controller::look(&api, &options).await.map_err(cannot)?;
        notes.extend(seen.unread.into_iter().map(|text| format!("not read: {text}")));
        Ok((seen.objects, options, notes))
    })
}

/// Options of the controller, among others that it may have.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Deployed {
    #[command(flatten)]
    cluster: crate::cluster::ClusterArgs,
    #[command(flatten)]
    controller: ControllerArgs,
}

/// Finds the workload of the controller, and its arguments.
async fn deployed(api: &Api) -> Result<Option<(String, ControllerArgs)>, forebay_cluster::Error> {
    for kind in ["deployments", "daemonsets"] {
        let query =
            format!("labelSelector=app.kubernetes.io%2Fcomponent%3Dcontroller&limit={MOST_WORKLOADS}");
        let list: Value = api.get(&format!("/apis/apps/v1/{kind}?{query}")).await?;
        for item in list["items"].as_array().into_iter().flatten() {
            let metadata = &item["metadata"];
            let name = format!("{kind} {}/{}", text(&metadata["namespace"]), text(&metadata["name"]));
            let containers = item["spec"]["template"]["spec"]["containers"].as_array().into_iter().flatten();
            let arguments = containers.filter_map(|container| arguments(container, metadata));
            if let Some(found) = arguments.filter_map(|a| Deployed::try_parse_from(a).ok()).next() {
                return Ok(Some((name, found.controller)));
            }
        }
    }
    Ok(None)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the arguments of a container after `ingress`, if it runs the controller.
fn arguments(container: &Value, metadata: &Value) -> Option<Vec<String>> {
    let words =
        ["command", "args"].into_iter().flat_map(|key| container[key].as_array().into_iter().flatten());
    let words: Vec<&str> = words.filter_map(Value::as_str).collect();
    let at = words.iter().position(|word| *word == "ingress")?;
    words.get(..at)?.iter().any(|word| word.rsplit('/').next() == Some("forebay")).then_some(())?;
    // The kubelet fills the others in, which only the running controller needs.
    let fill = |word: &&str| word.replace("$(POD_NAMESPACE)", text(&metadata["namespace"]));
    Some(words.get(at + 1..)?.iter().map(fill).collect())
}

/// Finds the server for a host: one of its name, of a wildcard, or the default one.
fn find<'m>(made: &'m Translation, host: &str) -> Option<Found<'m>> {
    let wildcard = host.split_once('.').map(|(_, rest)| rest);
    let fits = |name: &str| match name {
        _ if name == host => 3,
        _ if name.strip_prefix("*.").is_some_and(|rest| Some(rest) == wildcard) => 2,
        "_" => 1,
        _ => 0,
    };
    let mut best: Option<(u32, Found<'m>)> = None;
    for (path, bytes) in &made.files {
        let directory = path.iter().next().and_then(|first| first.to_str());
        if !matches!(directory, Some("hosts" | "gateways")) {
            continue;
        }
        let Ok(text) = std::str::from_utf8(bytes) else { continue };
        let parsed = parse::body(bytes, Contexts::HTTP);
        for server in blocks(&parsed.tree.root, b"server") {
            // A wildcard of Kubernetes is one label, which nginx's star is not.
            let of_kubernetes =
                |name: String| name.strip_prefix('+').map_or(name.clone(), |rest| format!("*{rest}"));
            let names: Vec<String> = words(server, b"server_name").into_iter().map(of_kubernetes).collect();
            let rank = names.iter().map(|name| fits(name)).max().unwrap_or(0);
            if rank > best.as_ref().map_or(0, |(rank, _)| *rank) {
                let mut certificates = words(server, b"ssl_certificate");
                certificates.extend(mapped(&parsed.tree.root, &certificates));
                certificates.retain(|file| !file.starts_with('$'));
                best = Some((rank, Found { file: path, text, names, certificates }));
            }
        }
    }
    best.map(|(_, found)| found)
}

fn blocks<'b>(block: &'b Block, name: &'static [u8]) -> impl Iterator<Item = &'b Block> {
    block.iter().filter(move |d| d.name.text == name).filter_map(|d| d.block.as_ref())
}

/// Returns the words of the directives of a name in a block.
fn words(block: &Block, name: &[u8]) -> Vec<String> {
    let all = block.iter().filter(|d| d.name.text == name);
    all.flat_map(|d| &d.args).map(|word| word.as_str().into_owned()).collect()
}

/// Returns the values of `map` blocks that set one of the variables.
fn mapped(root: &Block, variables: &[String]) -> Vec<String> {
    let sets = |d: &&Directive| {
        d.name.text == b"map" && d.args.get(1).is_some_and(|w| variables.contains(&w.as_str().into_owned()))
    };
    let blocks = root.iter().filter(sets).filter_map(|d| d.block.as_ref());
    blocks.flat_map(Block::iter).filter_map(|d| Some(d.args.first()?.as_str().into_owned())).collect()
}

/// All that is shown of a host.
struct HostReport<'m> {
    host: &'m str,
    found: &'m Found<'m>,
    ingresses: Vec<String>,
    problems: Vec<&'m Problem>,
    certificates: Vec<Certificate>,
    /// Groups that the server names, with their endpoints.
    groups: Vec<(&'m str, &'m [Endpoint])>,
}

impl<'m> HostReport<'m> {
    fn new(made: &'m Translation, host: &'m str, found: &'m Found<'m>) -> HostReport<'m> {
        let is_of_host = |hosts: &[String]| hosts.iter().any(|h| h == host || found.names.contains(h));
        let of_host: Vec<_> = made.accepted.iter().filter(|a| is_of_host(&a.hosts)).collect();
        let named = |name: &str| {
            let mut rest = found.text.match_indices(name).map(|(at, _)| (at, at + name.len()));
            let is_part =
                |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
            let bytes = found.text.as_bytes();
            rest.any(|(start, end)| {
                !is_part(start.checked_sub(1).and_then(|at| bytes.get(at))) && !is_part(bytes.get(end))
            })
        };
        HostReport {
            host,
            found,
            problems: made.problems.iter().filter(|p| of_host.iter().any(|a| a.key == p.key)).collect(),
            ingresses: of_host.iter().map(|a| a.key.to_string()).collect(),
            certificates: certificates(made, &found.certificates),
            groups: made
                .groups
                .iter()
                .map(|(name, all)| (&**name, &**all))
                .filter(|(name, _)| named(name))
                .collect(),
        }
    }

    fn json(&self, notes: &[String]) -> Value {
        let certificate =
            |c: &Certificate| json!({"file": c.file, "names": c.names, "expires": time(c.until)});
        let group = |(name, all): &(&str, &[Endpoint])| {
            let servers: Vec<Value> =
                all.iter().map(|e| json!({"address": e.addr.to_string(), "weight": e.weight})).collect();
            json!({"name": name, "servers": servers})
        };
        let problem = |p: &&Problem| json!({"severity": p.severity.as_str(), "text": p.render()});
        json!({
            "host": self.host,
            "server_names": self.found.names,
            "ingresses": self.ingresses,
            "problems": self.problems.iter().map(problem).collect::<Vec<_>>(),
            "certificates": self.certificates.iter().map(certificate).collect::<Vec<_>>(),
            "groups": self.groups.iter().map(group).collect::<Vec<_>>(),
            "file": self.found.file.display().to_string(),
            "configuration": self.found.text,
            "notes": notes,
        })
    }

    fn text(&self, notes: &[String]) -> String {
        let mut out = format!("host          {}\n", self.host);
        let mut row = |name: &str, value: &str| out.push_str(&format!("{name:13} {value}\n"));
        row("server_name", &self.found.names.join(" "));
        for ingress in &self.ingresses {
            row("Ingress", ingress);
        }
        for c in &self.certificates {
            row("certificate", &format!("{}: {}; expires {}", c.file, c.names.join(" "), time(c.until)));
        }
        for (name, all) in &self.groups {
            let weight =
                |e: &Endpoint| if e.weight == 1 { String::new() } else { format!(" weight={}", e.weight) };
            let servers: Vec<String> = all.iter().map(|e| format!("{}{}", e.addr, weight(e))).collect();
            let servers = if servers.is_empty() { "no endpoints".to_owned() } else { servers.join(" ") };
            row("group", &format!("{name}: {servers}"));
        }
        for problem in &self.problems {
            row(problem.severity.as_str(), &problem.render());
        }
        for note in notes {
            row("note", note);
        }
        out + &format!("\n# {}\n{}", self.found.file.display(), self.found.text)
    }
}

fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map_or_else(|_| String::new(), |time| time.to_string())
}

/// Reads the certificates of a server, each once.
fn certificates(made: &Translation, files: &[String]) -> Vec<Certificate> {
    let files: BTreeSet<&String> = files.iter().collect();
    let read = |file: &String| {
        let bytes: &Arc<[u8]> = &made.files.iter().find(|(path, _)| path.to_str() == Some(file))?.1;
        let chain = pem::certificates(bytes);
        let leaf = chain.first()?;
        let (_, until) = verify::validity(leaf)?;
        Some(Certificate { file: file.clone(), names: verify::names(leaf), until })
    };
    files.into_iter().filter_map(read).collect()
}
