//! State of the controller for probes and metrics. The server passes their requests on to this listener, which only the machine itself
//! reaches.

use forebay_k8s::{Problem, Severity};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Time limit of a connection.
const LIMIT: Duration = Duration::from_secs(10);
/// Problems that an answer names.
const MOST: usize = 50;

/// Reasons of problems of which a value has no effect, and their words in metrics.
const SET_ASIDE: &[&str] =
    &["NotBuilt", "SnippetRefused", "ValueSetAside", "CertificateMissing", "HostRefused", "ObjectRefused"];

/// State that is shared with the listener.
pub(crate) type Shared = Rc<RefCell<State>>;

/// State of the controller.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Reason why the server does not use the newest configuration. `None` while setting values aside makes it usable.
    pub(crate) refused: Option<String>,
    /// Configurations that were refused.
    pub(crate) refusals: u64,
    /// Values that have no effect, by kind of object and reason.
    aside: BTreeMap<(&'static str, &'static str), usize>,
    /// Texts of the first of them.
    texts: Vec<String>,
}

impl State {
    /// Notes the problems of the newest translation.
    pub(crate) fn note(&mut self, problems: &[Problem]) {
        self.aside.clear();
        self.texts.clear();
        let aside = |p: &&Problem| p.severity == Severity::Refused && SET_ASIDE.contains(&p.reason);
        for problem in problems.iter().filter(aside) {
            *self.aside.entry((problem.kind.name(), problem.reason)).or_default() += 1;
            if self.texts.len() < MOST {
                self.texts.push(problem.render());
            }
        }
    }

    fn answer(&self, path: &str) -> (StatusCode, String) {
        match path {
            "/metrics" => (StatusCode::OK, self.metrics()),
            "/healthz" => (StatusCode::OK, self.text()),
            "/readyz" if self.refused.is_some() => (StatusCode::SERVICE_UNAVAILABLE, self.text()),
            "/readyz" => (StatusCode::OK, self.text()),
            _ => (StatusCode::NOT_FOUND, String::new()),
        }
    }

    fn text(&self) -> String {
        let mut text = match &self.refused {
            None => "ok\n".to_owned(),
            Some(why) => format!("the newest configuration is refused, an older one serves: {why}\n"),
        };
        let count: usize = self.aside.values().sum();
        if count > 0 {
            let _ = writeln!(text, "{count} set aside:");
        }
        self.texts.iter().for_each(|line| text.push_str(&format!("{line}\n")));
        text
    }

    fn metrics(&self) -> String {
        let mut text = String::from(
            "# HELP forebay_ingress_configuration_refused The newest configuration is refused as a whole.\n\
             # TYPE forebay_ingress_configuration_refused gauge\n",
        );
        let _ = writeln!(text, "forebay_ingress_configuration_refused {}", u8::from(self.refused.is_some()));
        text.push_str(
            "# HELP forebay_ingress_refusals_total Configurations that the server has refused.\n\
             # TYPE forebay_ingress_refusals_total counter\n",
        );
        let _ = writeln!(text, "forebay_ingress_refusals_total {}", self.refusals);
        text.push_str(
            "# HELP forebay_ingress_set_aside Values of objects that have no effect because no server accepts them.\n\
             # TYPE forebay_ingress_set_aside gauge\n",
        );
        if self.aside.is_empty() {
            text.push_str("forebay_ingress_set_aside{kind=\"ConfigMap\",reason=\"ValueSetAside\"} 0\n");
        }
        for ((kind, reason), count) in &self.aside {
            let _ =
                writeln!(text, "forebay_ingress_set_aside{{kind=\"{kind}\",reason=\"{reason}\"}} {count}");
        }
        text
    }
}

/// Answers probes until the program ends.
pub(crate) async fn serve(listener: TcpListener, state: Shared) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Too many descriptors are open: others close meanwhile.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let state = state.clone();
        tokio::task::spawn_local(async move {
            let service = service_fn(|request| answer(request, &state));
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(LIMIT, connection).await;
        });
    }
}

async fn answer(request: Request<Incoming>, state: &Shared) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, text) = state.borrow().answer(request.uri().path());
    let response = Response::builder().status(status).header("content-type", "text/plain");
    Ok(response.body(Full::new(text.into())).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_k8s::Kind;

    #[test]
    fn health_names_what_is_set_aside() {
        let mut state = State::default();
        assert_eq!(state.answer("/healthz"), (StatusCode::OK, "ok\n".into()));
        let metadata = Default::default();
        let aside =
            Problem::new(Kind::ConfigMap, &metadata, "data[gzip-types]", "no").reason("ValueSetAside");
        let other = Problem::new(Kind::Ingress, &metadata, "spec", "no").reason("BackendMissing");
        state.note(&[aside, other]);
        assert!(state.answer("/healthz").1.contains("1 set aside:"), "{:?}", state.answer("/healthz"));
        assert_eq!(state.answer("/readyz").0, StatusCode::OK);
        let line = "forebay_ingress_set_aside{kind=\"ConfigMap\",reason=\"ValueSetAside\"} 1\n";
        assert!(state.metrics().ends_with(line), "{}", state.metrics());
        state.refused = Some("bind() failed".into());
        assert_eq!(state.answer("/readyz").0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(state.answer("/healthz").0, StatusCode::OK);
        state.note(&[]);
        assert!(!state.metrics().contains("} 1"));
    }
}
