//! Options of ingress-nginx that have no counterpart. A command line that has them carries over: each is named, and nothing else happens.

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

/// Their names, and why Forebay needs none of them.
pub(super) const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("alsologtostderr", LOG),
    ("bucket-factor", METRICS),
    ("certificate-authority", "a kubeconfig file names the authorities"),
    ("deep-inspect", "values are words of a tree and cannot become directives"),
    ("default-server-port", "requests that no rule takes are answered in the process"),
    ("disable-full-test", "the webhook translates the one Ingress"),
    ("disable-sync-events", "there are no Events of what is as it should be"),
    ("dynamic-configuration-retries", "groups are changed in the process"),
    ("election-ttl", "a lease lasts 15 seconds"),
    ("enable-annotation-validation", "values are always checked"),
    ("enable-metrics", "metrics are always there"),
    ("enable-ssl-chain-completion", "a Secret has the whole chain"),
    ("enable-topology-aware-routing", "use --topology-zone"),
    ("exclude-socket-metrics", METRICS),
    ("health-check-path", "probes ask /healthz"),
    ("health-check-timeout", "probes are answered by the process that serves"),
    ("healthz-host", "probes are answered at all addresses"),
    ("internal-logger-address", LOG),
    ("length-buckets", METRICS),
    ("logtostderr", LOG),
    ("max-buckets", METRICS),
    ("maxmind-edition-ids", GEO),
    ("maxmind-license-key", GEO),
    ("maxmind-mirror", GEO),
    ("maxmind-retries-count", GEO),
    ("maxmind-retries-timeout", GEO),
    ("metrics-per-host", METRICS),
    ("metrics-per-undefined-host", METRICS),
    ("monitor-max-batch-size", METRICS),
    ("post-shutdown-grace-period", SHUTDOWN),
    ("profiler-port", "there is no profiler"),
    ("profiling", "there is no profiler"),
    ("report-node-internal-ip-address", "use --publish-status-address"),
    ("report-status-classes", METRICS),
    ("shutdown-grace-period", SHUTDOWN),
    ("size-buckets", METRICS),
    ("status-port", "/nginx_status is at the ports of the server"),
    ("status-update-interval", "a status is written when it changes"),
    ("stderrthreshold", LOG),
    ("stream-port", "groups are changed in the process"),
    ("sync-period", "objects are watched"),
    ("sync-rate-limit", "a change replaces the configuration in the running process"),
    ("time-buckets", METRICS),
    ("update-status-on-shutdown", "the next leader writes the statuses"),
    ("v", LOG),
];

const GEO: &str = "Forebay reads no GeoIP databases yet";
const LOG: &str = "error-log-level in the ConfigMap says what is logged";
const METRICS: &str = "docs/kubernetes.md says which series there are";
const SHUTDOWN: &str = "a pod leaves its Services, waits, and ends by the signal of its image; worker-shutdown-timeout bounds it";

/// Those that are given.
#[derive(Default)]
pub(super) struct WithoutEffect(Vec<(&'static str, &'static str)>);

impl WithoutEffect {
    /// Says that they have no effect.
    pub(super) fn report(&self) {
        for (name, why) in &self.0 {
            eprintln!("forebay ingress: --{name} has no effect: {why}");
        }
    }
}

impl FromArgMatches for WithoutEffect {
    fn from_arg_matches(matches: &ArgMatches) -> Result<WithoutEffect, clap::Error> {
        let given = |(name, _): &&(&'static str, &'static str)| matches.contains_id(name);
        Ok(WithoutEffect(WITHOUT_EFFECT.iter().filter(given).copied().collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = WithoutEffect::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for WithoutEffect {
    fn augment_args(command: Command) -> Command {
        WITHOUT_EFFECT.iter().fold(command, |command, (name, _)| {
            let arg = Arg::new(*name).num_args(0..=1).default_missing_value("true").hide(true);
            // A flag of one letter is written both ways.
            let arg = if name.len() == 1 { arg.short('v').long(*name) } else { arg.long(*name) };
            command.arg(arg)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        WithoutEffect::augment_args(command)
    }
}

/// Reads the value of a switch, as Go's flags do.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    forebay_k8s::value::parse_bool(text).ok_or_else(|| "it must be true or false".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingress::IngressArgs;

    fn read(args: &[&str]) -> Result<IngressArgs, clap::Error> {
        let command = IngressArgs::augment_args(Command::new("ingress"));
        let matches = command.try_get_matches_from(std::iter::once(&"ingress").chain(args))?;
        IngressArgs::from_arg_matches(&matches)
    }

    #[test]
    fn switches_have_values() {
        for (text, on) in [
            ("--enable-ssl-passthrough", true),
            ("--enable-ssl-passthrough=true", true),
            ("--enable-ssl-passthrough=T", true),
            ("--enable-ssl-passthrough=false", false),
        ] {
            let args = read(&[text, "--update-status=false"]).expect(text);
            assert_eq!(
                (args.controller.enable_ssl_passthrough, args.cluster.update_status),
                (on, false),
                "{text}"
            );
        }
        assert!(read(&["--disable-catch-all=maybe"]).is_err());
    }

    #[test]
    fn options_of_ingress_nginx_are_taken() {
        let text =
            ["--sync-period=10m", "--v=2", "--profiling", "--shutdown-grace-period", "5", "--http-port=8080"];
        let args = read(&text).expect("options");
        let names: Vec<&str> = args.carried.0.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["profiling", "shutdown-grace-period", "sync-period", "v"]);
        assert!(read(&["-v", "3"]).is_ok() && read(&["--sync-perriod=1"]).is_err());
    }
}
