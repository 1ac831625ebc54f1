//! Subcommands, which nginx does not have: their arguments, and what runs them. Their order in the help and examples are in
//! `command_help.rs`.

use crate::cli::Options;
use crate::front_ends::load_all;
use crate::https::HttpsArgs;
use crate::trust::TrustArgs;
use crate::{
    acme, check, command_help, doctor, explain, fmt, healthcheck, help, manual, moving, origin, passwd,
    proxy, reload, serve, top, trust, watch,
};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use forebay_bench::url::{Scheme, Url};
use forebay_conf::error::Level;
use forebay_conf::files::Files;
use forebay_doctor::Target;
use forebay_terminal::print;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Parser)]
#[command(name = "forebay", version, about = "A web server that runs nginx.conf, with the tools around it.")]
struct Line {
    #[command(subcommand)]
    command: Wish,
}

/// What a program without the cargo feature `kubernetes` says to `forebay ingress`.
#[cfg(not(feature = "kubernetes"))]
const NO_INGRESS: &str = "forebay ingress: this program was built without the ingress controller. The packages, images and \
                          release archives of Forebay have it (deb, rpm, the image of the Helm chart). To build it: \
                          cargo build --release -p forebay --features kubernetes";

#[derive(Subcommand)]
enum Wish {
    /// Show or renew the certificates that are got by ACME
    Acme(AcmeArgs),
    /// Report all errors of a configuration at once
    Check(CheckArgs),
    /// Send nginx and Forebay the same requests, and show what differs
    #[command(disable_help_flag = true)]
    Compare(BenchArgs),
    /// Show the settings in effect, or the way of a request through them
    Explain(ExplainArgs),
    /// Find what is wrong, harmful or without effect, and why
    Doctor(DoctorArgs),
    /// Format configuration files: layout only, comments are kept
    Fmt(FmtArgs),
    /// Exit with 0 if the server on this machine answers
    Healthcheck(HealthcheckArgs),
    /// Serve the Ingresses of a Kubernetes cluster
    #[cfg(feature = "kubernetes")]
    Ingress(Box<crate::ingress::IngressArgs>),
    /// Say how to get a program that serves the Ingresses of a Kubernetes cluster
    #[cfg(not(feature = "kubernetes"))]
    #[command(hide = true, disable_help_flag = true)]
    Ingress {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    },
    /// Load a server and measure it
    #[command(disable_help_flag = true)]
    Bench(BenchArgs),
    /// Show the steps from nginx to Forebay, and the next command
    Move(MoveArgs),
    /// Pass all requests to an application
    Proxy(ProxyArgs),
    /// Reload the configuration, and say what has changed
    Reload(ReloadArgs),
    /// Run the tests of a configuration
    #[command(disable_help_flag = true)]
    Test(BenchArgs),
    /// Find faster settings by measuring
    #[command(disable_help_flag = true)]
    Tune(BenchArgs),
    /// Serve a folder, or the demo site, without a configuration
    Serve(ServeArgs),
    /// Show the figures of the running server in the terminal
    Top(TopArgs),
    /// Have browsers trust the certificates of localhost
    Trust(TrustArgs),
    /// Check a configuration again after each change
    Watch(WatchArgs),
    /// Set the password of a user of auth_basic
    Passwd(PasswdArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Print the manual page of a command
    Man(ManArgs),
    /// Serve an editor: diagnostics, completion, help and fixes
    Lsp(LspArgs),
}

/// `forebay bench`, `compare`, `test` and `tune` read their arguments themselves.
#[derive(Args)]
struct BenchArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

/// Which configuration.
#[derive(Args)]
pub(crate) struct Where {
    /// Configuration file
    #[arg(short = 'c', value_name = "FILE")]
    conf: Option<PathBuf>,
    /// Prefix of relative paths
    #[arg(short = 'p', value_name = "DIR")]
    prefix: Option<String>,
    /// Directives before those of the file
    #[arg(short = 'g', value_name = "DIRECTIVES")]
    globals: Option<String>,
}

/// Which configuration, with its file also as a word of its own.
#[derive(Args)]
pub(crate) struct WhichFile {
    #[command(flatten)]
    pub place: Where,
    /// Configuration file, as with -c
    #[arg(value_name = "FILE", conflicts_with = "conf")]
    pub file: Option<PathBuf>,
}

impl WhichFile {
    pub(crate) fn options(self) -> Options {
        self.place.with_file(self.file).options()
    }
}

/// `forebay acme`.
#[derive(Args)]
struct AcmeArgs {
    #[command(subcommand)]
    wish: AcmeWish,
}

#[derive(Subcommand)]
enum AcmeWish {
    /// Show each certificate and when it expires; exit code 1 if one is missing or has expired
    Status(WhichFile),
    /// Have the running server renew certificates now
    Renew(NamesArgs),
    /// Have the running server prove control of the names without asking for certificates; exit code 1 if that fails
    Test(AcmeTestArgs),
}

/// Certificates of `forebay acme`.
#[derive(Args)]
struct NamesArgs {
    #[command(flatten)]
    place: Where,
    /// Configuration file, if the first word has a slash or ends in .conf; then the names of certificates (default: all)
    #[arg(value_name = "FILE|NAME")]
    words: Vec<String>,
}

impl NamesArgs {
    /// Returns the options, and the names.
    fn parts(self) -> (Options, Vec<String>) {
        let NamesArgs { place, mut words } = self;
        // No name of a certificate looks like this.
        let is_file = words.first().is_some_and(|word| word.contains('/') || word.ends_with(".conf"));
        let file = is_file.then(|| PathBuf::from(words.remove(0)));
        (place.with_file(file).options(), words)
    }
}

/// `forebay acme test`.
#[derive(Args)]
struct AcmeTestArgs {
    #[command(flatten)]
    which: NamesArgs,
    /// Longest wait
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u32,
}

/// `forebay explain`.
#[derive(Args)]
struct ExplainArgs {
    #[command(flatten)]
    place: Where,
    /// Configuration file; or a URL to show the way of a request, http://HOST/PATH or https://HOST/PATH, or of a session of the stream block, tcp://ADDRESS:PORT, tls://NAME:PORT or udp://ADDRESS:PORT
    #[arg(value_name = "FILE|URL")]
    target: Option<String>,
    /// Name in the client's TLS handshake, for a session
    #[arg(long, value_name = "NAME", requires = "target")]
    sni: Option<String>,
    /// Address of the client (default for requests: 192.0.2.1)
    #[arg(long, value_name = "ADDRESS", requires = "target")]
    client: Option<std::net::IpAddr>,
    #[command(flatten)]
    request: RequestArgs,
    /// For servers and locations also the directives that nothing sets, with their defaults
    #[arg(long)]
    defaults: bool,
}

/// The request of `forebay explain URL`.
#[derive(Args)]
#[command(next_help_heading = "Requests")]
struct RequestArgs {
    /// Method (default: GET, with -d POST)
    #[arg(short = 'X', long, value_name = "METHOD", requires = "target")]
    method: Option<String>,
    /// Field line "Name: value"; "Name:" takes a field away. May be repeated
    #[arg(short = 'H', long = "header", value_name = "LINE", requires = "target")]
    fields: Vec<String>,
    /// Content
    #[arg(short = 'd', long = "data", value_name = "TEXT", requires = "target")]
    body: Option<String>,
    /// Status of the response that stands in for an upstream's
    #[arg(long, value_name = "STATUS", default_value_t = 200, value_parser = clap::value_parser!(u16).range(200..=599))]
    answer: u16,
    /// Field line of that response. May be repeated
    #[arg(long = "answer-header", value_name = "LINE", requires = "target")]
    answer_fields: Vec<String>,
    /// Print JSON
    #[arg(long, requires = "target")]
    json: bool,
    /// With "nginx": say where nginx would differ
    #[arg(long, value_name = "SERVER", requires = "target")]
    server: Option<ExplainedServer>,
}

/// Server that an explanation is compared with.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExplainedServer {
    Forebay,
    Nginx,
}

/// Explains a request.
fn explain_request(options: &Options, url: Url, client: Option<std::net::IpAddr>, args: RequestArgs) -> u8 {
    if let Some(line) = args.fields.iter().chain(&args.answer_fields).find(|line| !is_field_line(line)) {
        eprintln!("forebay explain: \"{}\" is no field line: expected \"Name: value\"", line.escape_debug());
        return 2;
    }
    let implied = if args.body.is_some() { "POST" } else { "GET" };
    let method = args.method.unwrap_or_else(|| implied.to_owned());
    if method.is_empty() || !method.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-' || b == b'_') {
        eprintln!("forebay explain: \"{}\" is no method", method.escape_debug());
        return 2;
    }
    let form = explain::Form { json: args.json, nginx: args.server == Some(ExplainedServer::Nginx) };
    let asked = explain::Asked {
        url,
        method,
        fields: args.fields,
        body: args.body,
        client,
        answer: args.answer,
        answer_fields: args.answer_fields,
    };
    explain::request(options, &asked, form)
}

/// Returns `true` for a name, a colon and a value without control characters.
fn is_field_line(line: &str) -> bool {
    line.split_once(':').is_some_and(|(name, _)| !name.is_empty() && !name.contains(' '))
        && !line.chars().any(char::is_control)
}

/// Runs `explain`.
fn explain_main(args: ExplainArgs) -> u8 {
    let (place, target) = args.place.or_target(args.target);
    let options = place.options();
    let Some(target) = &target else { return explain::main(&options, args.defaults, None) };
    if let Ok(url) = Url::parse(target)
        && matches!(url.scheme, Scheme::Http | Scheme::Https)
    {
        return explain_request(&options, url, args.client, args.request);
    }
    match explain::Question::new(target, args.sni, args.client) {
        Ok(question) => explain::main(&options, args.defaults, Some(&question)),
        Err(why) => {
            eprintln!("forebay explain: {why}");
            command_help::WRONG
        }
    }
}

/// `forebay check`.
#[derive(Args)]
struct CheckArgs {
    #[command(flatten)]
    which: WhichFile,
    /// For people, or for programs
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Output format of `forebay check`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// With carets.
    Text,
    /// A list.
    Json,
}

/// `forebay watch`.
#[derive(Args)]
struct WatchArgs {
    #[command(flatten)]
    which: WhichFile,
    /// Have the running server reload what the check accepts
    #[arg(long)]
    reload: bool,
    /// Longest wait for a reload
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u32,
}

/// `forebay passwd`.
#[derive(Args)]
pub(crate) struct PasswdArgs {
    /// File of auth_basic_user_file; made if it does not exist
    pub file: PathBuf,
    /// Name of the user
    pub user: String,
    /// Take the user away
    #[arg(long, conflicts_with = "verify")]
    pub delete: bool,
    /// Compare a password with the file, and change nothing
    #[arg(long)]
    pub verify: bool,
}

/// `forebay completions`.
#[derive(Args)]
struct CompletionsArgs {
    /// Shell
    shell: clap_complete::Shell,
}

/// `forebay lsp`.
#[derive(Args)]
struct LspArgs {
    /// Standard input and output, as it is in any case; editors pass it
    #[arg(long)]
    stdio: bool,
}

/// `forebay man`.
#[derive(Args)]
struct ManArgs {
    /// Command, and a command below it (default: the page of the server)
    words: Vec<String>,
}

/// `forebay doctor`.
#[derive(Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub which: WhichFile,
    /// For people, for programs, or for code hosts
    #[arg(long, value_enum, default_value_t = DoctorFormat::Text)]
    pub format: DoctorFormat,
    /// A file of kernel settings, as sysctl.conf, to be judged with the configuration (default: those of this machine)
    #[arg(long, value_name = "FILE")]
    pub sysctl: Vec<PathBuf>,
    /// Do not look at this machine, and ask no name server
    #[arg(long)]
    pub no_host: bool,
    /// The server of this file runs on this machine, so look at the machine, too (default: if a server runs with the file, or it lies
    /// where servers look for theirs)
    #[arg(long, conflicts_with = "no_host")]
    pub here: bool,
    /// Show advice about the machine, and rules of taste or measurement, too
    #[arg(long)]
    pub all: bool,
    /// The server that the advice is for: forebay, nginx, or nginx:VERSION (default: the one that runs this file, else Forebay). With
    /// the version of nginx its faults (CVE) are named, too, as far as the configuration opens them
    #[arg(long = "for", visible_alias = "server", value_name = "SERVER", value_parser = Target::parse)]
    pub target: Option<Target>,
    /// Ask this nginx for its version, for --for nginx. Default: the installed one for a file that it would run, else the newest version
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Mend what is safe to mend: edits of the files, written if the result is accepted
    #[arg(long)]
    pub fix: bool,
    /// Show what --fix would change
    #[arg(long)]
    pub diff: bool,
    /// With --fix or --diff: mend as well what somebody could rely on
    #[arg(long)]
    pub unsafe_fixes: bool,
    /// Print a rule (or `all`), and end
    #[arg(long, value_name = "RULE")]
    pub explain: Option<String>,
}

/// Output format of `forebay doctor`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DoctorFormat {
    /// With carets.
    Text,
    /// A list.
    Json,
    /// SARIF 2.1.0, with the fixes.
    Sarif,
    /// Annotations of GitHub's workflows.
    Github,
}

/// `forebay fmt`.
#[derive(Args)]
pub(crate) struct FmtArgs {
    /// Files to rewrite; `-` reads standard input and writes standard output
    #[arg(required_unless_present = "conf", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// A file to rewrite, as the other commands have it
    #[arg(short = 'c', value_name = "FILE")]
    pub conf: Vec<PathBuf>,
    /// Write nothing; name the files that are not formatted, and exit with 1 if there are any
    #[arg(long)]
    pub check: bool,
    /// Write nothing; show what would change
    #[arg(long)]
    pub diff: bool,
}

/// `forebay healthcheck`.
#[derive(Args)]
struct HealthcheckArgs {
    #[command(flatten)]
    place: Where,
    /// Configuration file; or a resource whose status has to be 200 to 399, http://ADDRESS:PORT/PATH (default: any answer of the first `listen`)
    #[arg(value_name = "FILE|URL")]
    url: Option<String>,
    /// Longest wait
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    timeout: u32,
}

/// `forebay serve`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServeArgs {
    /// Folder to serve; the built-in demo site when left out
    pub dir: Option<PathBuf>,
    #[command(flatten)]
    pub https: HttpsArgs,
    /// Address or port
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Serve files and folders whose names begin with a dot too (without it only those below /.well-known/)
    #[arg(long)]
    pub dot_files: bool,
    /// Print a line for each request
    #[arg(long)]
    pub access_log: bool,
    /// Show what the server does, at /-/dashboard, to this machine
    #[arg(long)]
    pub dashboard: bool,
    /// Print the nginx.conf that would be run, and end
    #[arg(long)]
    pub print_config: bool,
}

/// `forebay proxy`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ProxyArgs {
    /// Where to listen (an address or a port), and where requests go: a port, an address or a URL
    #[arg(value_name = "[LISTEN] UPSTREAM", required = true, num_args = 1..=2)]
    pub places: Vec<String>,
    #[command(flatten)]
    pub https: HttpsArgs,
    /// Print the nginx.conf that would be run, and end
    #[arg(long)]
    pub print_config: bool,
}

/// `forebay move`.
#[derive(Args)]
pub(crate) struct MoveArgs {
    /// Configuration, as with -c
    #[arg(value_name = "FILE", conflicts_with = "conf")]
    pub file: Option<PathBuf>,
    /// Configuration (default: that of nginx)
    #[arg(short = 'c', value_name = "FILE")]
    pub conf: Option<PathBuf>,
    /// Prefix of its relative paths (default: that of nginx)
    #[arg(short = 'p', value_name = "DIR")]
    pub prefix: Option<String>,
    /// Executable of nginx (default: the one in the path)
    #[arg(long, value_name = "PROGRAM")]
    pub nginx: Option<PathBuf>,
    /// Access log for the comparison (default: that of the configuration)
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `forebay reload`.
#[derive(Args)]
struct ReloadArgs {
    #[command(flatten)]
    which: WhichFile,
    /// Reload nothing; check the configuration, and say what a reload would change
    #[arg(long, conflicts_with = "control")]
    dry_run: bool,
    /// Address of the control API, as the server was started with: unix:PATH or a port
    #[arg(short = 'l', value_name = "ADDRESS")]
    control: Option<String>,
    /// Longest wait
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u32,
}

/// `forebay top`.
#[derive(Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub place: Where,
    /// Configuration file; or the address of a location with "api" or "dashboard" (default: one of the configuration)
    #[arg(value_name = "FILE|URL")]
    pub url: Option<String>,
    /// Connect to this unix socket
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Accept any certificate of the server
    #[arg(short = 'k', long)]
    pub insecure: bool,
    /// Print everything once as text, and end
    #[arg(long)]
    pub once: bool,
    /// Time between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..3600))]
    pub interval: u32,
}

/// Returns all commands as clap knows them, with those of the crates that read their arguments themselves, and with their help.
pub(crate) fn command() -> clap::Command {
    let own = [
        ("bench", forebay_bench::cli::command()),
        ("compare", forebay_compare::cli::command()),
        ("test", forebay_compare::expect::cli::command()),
        ("tune", forebay_tune::cli::command()),
    ];
    let command = own.into_iter().fold(Line::command(), |command, (name, own)| {
        command.mut_subcommand(name, |listed| {
            own.name(name).about(listed.get_about().cloned().unwrap_or_default())
        })
    });
    command_help::dressed(command)
}

/// Runs a subcommand. Returns the exit code.
pub(crate) fn main(arguments: Vec<OsString>, titled: bool) -> u8 {
    if let Some(words) = help::words(&arguments) {
        return help_main(&words);
    }
    let matches = command_help::dressed(Line::command()).try_get_matches_from(&arguments);
    let line = match matches.and_then(|matches| Line::from_arg_matches(&matches)) {
        Ok(line) => line,
        Err(e) => return command_help::wrong(&e),
    };
    match line.command {
        Wish::Acme(AcmeArgs { wish: AcmeWish::Status(which) }) => acme::status(&which.options()),
        Wish::Acme(AcmeArgs { wish: AcmeWish::Renew(args) }) => {
            let (options, names) = args.parts();
            acme::renew(&options, &names)
        }
        Wish::Acme(AcmeArgs { wish: AcmeWish::Test(args) }) => {
            let (options, names) = args.which.parts();
            acme::test(&options, &names, Duration::from_secs(args.timeout.into()))
        }
        Wish::Check(args) => check(&args.which.options(), args.format).0,
        Wish::Compare(args) => forebay_compare::cli::main(args.rest),
        Wish::Explain(args) => explain_main(args),
        Wish::Doctor(args) => doctor::main(args),
        Wish::Fmt(args) => fmt::main(&args),
        Wish::Healthcheck(HealthcheckArgs { place, url, timeout }) => {
            let (place, url) = place.or_target(url);
            healthcheck::main(&place.options(), url.as_deref(), Duration::from_secs(timeout.into()))
        }
        #[cfg(feature = "kubernetes")]
        Wish::Ingress(args) => crate::ingress::main(&args, arguments, titled),
        #[cfg(not(feature = "kubernetes"))]
        Wish::Ingress { .. } => {
            eprintln!("{NO_INGRESS}");
            2
        }
        Wish::Bench(args) => forebay_bench::cli::main(args.rest),
        Wish::Move(args) => moving::main(&args),
        Wish::Proxy(args) => proxy::main(&args, arguments, titled),
        Wish::Reload(args) => {
            // The command answers to the one who runs it: the log is the server's.
            let options = Options {
                error_log: Some("stderr".to_owned()),
                control: args.control,
                ..args.which.options()
            };
            match args.dry_run {
                true => reload::dry_run(&options),
                false => reload::main(&options, Duration::from_secs(args.timeout.into())),
            }
        }
        Wish::Test(args) => forebay_compare::expect::cli::main(args.rest),
        Wish::Tune(args) => forebay_tune::cli::main_knowing(args.rest, &doctor::knobs),
        Wish::Serve(args) => serve::main(&args, arguments, titled),
        Wish::Top(args) => {
            let (place, url) = args.place.or_target(args.url);
            top::main(TopArgs { place, url, ..args })
        }
        Wish::Trust(args) => trust::main(&args),
        Wish::Watch(args) => {
            let reloads = args.reload.then(|| Duration::from_secs(args.timeout.into()));
            let options = Options { error_log: Some("stderr".to_owned()), ..args.which.options() };
            watch::main(&options, reloads)
        }
        Wish::Passwd(args) => passwd::main(&args),
        Wish::Completions(args) => {
            print(manual::completions(args.shell));
            0
        }
        Wish::Man(args) => manual::main(&args.words),
        Wish::Lsp(LspArgs { stdio: _ }) => forebay_lsp::main(mistakes),
    }
}

/// Runs `help WORD...`. A subcommand and a directive may have the same name (`proxy`, of mail): both are printed.
fn help_main(words: &[&str]) -> u8 {
    let is_command = command_help::of_command(words);
    let [name] = words else {
        if !is_command {
            eprintln!("forebay help: no command \"{}\"", words.join(" ").escape_debug());
        }
        return if is_command { 0 } else { 1 };
    };
    if !is_command {
        return help::main(name);
    }
    if !forebay_conf::grammar::rows(name.as_bytes()).is_empty() {
        print("\nDirective of nginx.conf:\n\n");
        return help::main(name);
    }
    0
}

/// Finds the mistakes of a configuration, without asking a name server.
fn mistakes(
    environment: &forebay_core::config::Environment,
    files: &mut Files,
) -> Vec<forebay_conf::error::Error> {
    let (_, mut errors) = forebay_net::addr::offline(|| load_all(environment, files));
    check::hints::add(&mut errors, &origin::tree(environment, files));
    errors
}

/// Checks a configuration and prints the result. Returns exit code 1 if there is an error, 0 if there are at most warnings, and the
/// files that were read.
pub(crate) fn check(options: &Options, format: Format) -> (u8, Files) {
    let (environment, paths) = options.places();
    let mut files = Files::disk();
    let (config, mut errors) = load_all(&environment, &mut files);
    if let Some(config) = &config {
        errors.extend(check::machine::errors(config, &environment, &paths, &mut files));
    }
    check::hints::add(&mut errors, &origin::tree(&environment, &mut files));
    errors.sort_by_key(|error| error.ordinal);
    let text = match format {
        Format::Json => check::render_json(&errors, &files),
        Format::Text => check::render_text(&errors, &files, std::io::stdout().is_terminal()),
    };
    print(text);
    (u8::from(errors.iter().any(|error| error.level == Level::Emerg)), files)
}

impl Where {
    fn with_file(self, file: Option<PathBuf>) -> Where {
        Where { conf: file.or(self.conf), ..self }
    }

    /// Takes a word that is a file for the configuration, and returns any other word.
    pub(crate) fn or_target(self, word: Option<String>) -> (Where, Option<String>) {
        match word {
            Some(word)
                if !word.contains("://")
                    && (word.contains(".conf") || std::path::Path::new(&word).is_file()) =>
            {
                (self.with_file(Some(word.into())), None)
            }
            other => (self, other),
        }
    }

    pub(crate) fn options(self) -> Options {
        // People name files from where they are; only -p makes a name relative to the prefix.
        let conf = self.conf.map(|path| match self.prefix {
            None => std::path::absolute(&path).unwrap_or(path),
            Some(_) => path,
        });
        Options {
            conf: conf.map(|path| path.to_string_lossy().into_owned()),
            prefix: self.prefix,
            globals: self.globals,
            ..Options::default()
        }
    }
}
