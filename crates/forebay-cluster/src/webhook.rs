//! Admission webhook (admissionregistration.k8s.io/v1): judges one Ingress before the API server takes it.
//!
//! The worker has the TLS and passes requests on to this listener of the controller, which only the machine itself reaches. An Ingress is
//! translated by itself, with the settings of the ConfigMap, and its paths are compared with those of others. No program runs.

use forebay_k8s::objects::{Ingress, Kind, Object};
use forebay_k8s::{Key, Objects, Options, Problem, Severity, Translator};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Longest AdmissionReview, bytes: objects of etcd have at most 1.5 MB, and a review has the old one, too.
const LONGEST: usize = 8 << 20;
/// Time limit of a connection. The API server waits 30 seconds at most.
const LIMIT: Duration = Duration::from_secs(35);

/// Reasons of problems that may be gone by the time the other object is there, or that cannot be judged alone.
const OF_OTHERS: &[&str] = &[
    "BackendMissing",
    "CertificateMissing",
    "ReferenceMissing",
    "CanaryAlone",
    "Differs",
    "UnknownAnnotation",
    "DroppedAnnotation",
];

/// Objects that an Ingress is judged with: the ConfigMap, the classes, the namespaces, and the other Ingresses.
pub(crate) type Settings = Rc<RefCell<BTreeMap<(Kind, Key), Object>>>;

/// Answers reviews until the program ends.
pub(crate) async fn serve(listener: TcpListener, settings: Settings, options: Rc<Options>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Too many descriptors are open: others close meanwhile.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (settings, options) = (settings.clone(), options.clone());
        tokio::task::spawn_local(async move {
            let service = service_fn(|request| answer(request, &settings, &options));
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(LIMIT, connection).await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    settings: &Settings,
    options: &Options,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = Limited::new(request.into_body(), LONGEST).collect().await;
    let review = body.ok().and_then(|body| serde_json::from_slice::<Value>(&body.to_bytes()).ok());
    let judged = review.and_then(|review| judge(&review, &settings.borrow(), options));
    let (status, text) = match judged {
        Some(answer) => (StatusCode::OK, answer.to_string()),
        None => (StatusCode::BAD_REQUEST, "an AdmissionReview is wanted\n".to_owned()),
    };
    let response = Response::builder().status(status).header("content-type", "application/json");
    Ok(response.body(Full::new(text.into())).unwrap_or_default())
}

/// Returns the answer to an AdmissionReview; `None` if it is none.
fn judge(review: &Value, settings: &BTreeMap<(Kind, Key), Object>, options: &Options) -> Option<Value> {
    let request = review.get("request")?;
    let uid = request.get("uid")?.as_str()?;
    let object = request.get("object").filter(|object| object.is_object());
    let problems =
        match object.filter(|_| request.pointer("/kind/kind").and_then(Value::as_str) == Some("Ingress")) {
            Some(object) => problems(object, request.get("oldObject"), settings, options),
            // A deletion has no object, and other kinds are not judged.
            None => Ok(Vec::new()),
        };
    let (refused, warnings): (Vec<String>, Vec<String>) = match problems {
        Err(text) => (vec![text], Vec::new()),
        Ok(problems) => {
            let is_refused = |p: &&Problem| p.severity == Severity::Refused && !OF_OTHERS.contains(&p.reason);
            let refused = problems.iter().filter(is_refused).map(Problem::render).collect();
            (refused, problems.iter().filter(|p| !is_refused(p)).map(Problem::render).collect())
        }
    };
    let mut response = json!({ "uid": uid, "allowed": refused.is_empty() });
    if !refused.is_empty() {
        response["status"] = json!({ "code": 400, "message": refused.join("\n") });
    }
    if !warnings.is_empty() {
        response["warnings"] = json!(warnings);
    }
    Some(json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response }))
}

fn of(object: &Object) -> Option<&Ingress> {
    match object {
        Object::Ingress(ingress) => Some(ingress),
        _ => None,
    }
}

/// Translates an Ingress by itself, and compares its paths with those of others. `before`: the Ingress as it was.
fn problems(
    object: &Value,
    before: Option<&Value>,
    settings: &BTreeMap<(Kind, Key), Object>,
    options: &Options,
) -> Result<Vec<Problem>, String> {
    let mut objects = Objects::new();
    for object in settings.values().filter(|o| o.kind() != Kind::Ingress) {
        objects.apply(object.clone());
    }
    let ingress = Object::of(Kind::Ingress, object.clone())?;
    let key = ingress.key();
    objects.apply(ingress.clone());
    let translation = Translator::new().translate(&objects, options);
    let mut problems: Vec<Problem> =
        translation.problems.into_iter().filter(|p| p.kind == Kind::Ingress && p.key == key).collect();
    let is_ours = |ingress: &&Ingress| forebay_k8s::ingress::is_ours(ingress, &objects, options);
    if let Some(ingress) = of(&ingress).filter(is_ours) {
        let others = settings.values().filter_map(of).filter(is_ours);
        let before = before.filter(|old| old.is_object());
        let before = before.and_then(|old| Object::of(Kind::Ingress, old.clone()).ok());
        let before = before.as_ref().and_then(of).filter(is_ours);
        problems.extend(forebay_k8s::ingress::overlaps(ingress, before, others, options));
    }
    Ok(problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(annotations: Value) -> Value {
        json!({ "request": {
            "uid": "7",
            "kind": { "group": "networking.k8s.io", "version": "v1", "kind": "Ingress" },
            "object": {
                "metadata": { "name": "shop", "namespace": "a", "annotations": annotations },
                "spec": { "ingressClassName": "forebay", "rules": [{ "host": "shop.example", "http": { "paths": [{
                    "path": "/", "pathType": "Prefix", "backend": { "service": { "name": "web", "port": { "number": 80 } } },
                }] } }] },
            },
        } })
    }

    fn settings() -> BTreeMap<(Kind, Key), Object> {
        let class =
            json!({ "metadata": { "name": "forebay" }, "spec": { "controller": "forebay.io/ingress" } });
        let class = Object::of(Kind::IngressClass, class).expect("a class");
        [((Kind::IngressClass, class.key()), class)].into()
    }

    fn judged(review: &Value) -> Value {
        judge(review, &settings(), &Options::default()).expect("a review")["response"].clone()
    }

    #[test]
    fn an_ingress_is_judged_by_itself() {
        // Its Service may come later.
        let good = judged(&review(json!({ "nginx.ingress.kubernetes.io/proxy-body-size": "8m" })));
        assert_eq!((&good["uid"], &good["allowed"]), (&json!("7"), &json!(true)), "{good}");
        let bad = judged(&review(json!({ "nginx.ingress.kubernetes.io/proxy-body-size": "8m; }" })));
        assert_eq!(bad["allowed"], false);
        assert!(bad["status"]["message"].as_str().is_some_and(|m| m.contains('^')), "{bad}");
        let snippet =
            judged(&review(json!({ "nginx.ingress.kubernetes.io/configuration-snippet": "return 200;" })));
        assert_eq!(snippet["allowed"], false, "snippets are off");
    }

    #[test]
    fn paths_of_others_are_taken() {
        let none = review(json!({}));
        let mut all = settings();
        let mut old = none["request"]["object"].clone();
        old["metadata"]["name"] = json!("old");
        let old = Object::of(Kind::Ingress, old).expect("an Ingress");
        all.insert((Kind::Ingress, old.key()), old);
        let response =
            |review: &Value| judge(review, &all, &Options::default()).expect("a review")["response"].clone();
        let refused = response(&none);
        assert_eq!(refused["allowed"], false);
        assert!(
            refused["status"]["message"].as_str().is_some_and(|m| m.contains("taken by the Ingress a/old")),
            "{refused}"
        );
        let canary = review(json!({ "nginx.ingress.kubernetes.io/canary": "true" }));
        assert_eq!(response(&canary)["allowed"], true);
        let mut other = none.clone();
        other["request"]["object"]["spec"]["ingressClassName"] = json!("another");
        assert_eq!(response(&other)["allowed"], true);
    }

    #[test]
    fn other_objects_pass() {
        let mut other = review(json!({ "nginx.ingress.kubernetes.io/proxy-body-size": "x" }));
        other["request"]["object"]["spec"]["ingressClassName"] = json!("another");
        assert_eq!(judged(&other)["allowed"], true, "of another class");
        let deletion = json!({ "request": { "uid": "8", "kind": { "kind": "Ingress" }, "object": null } });
        assert_eq!(judged(&deletion)["allowed"], true);
        assert!(judge(&json!({}), &settings(), &Options::default()).is_none());
    }
}
