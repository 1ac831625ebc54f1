//! Requests to the API server.

use forebay_sys::errno::errno;
use futures_util::{Stream, StreamExt};
use http::{Method, Request};
use kube::core::{Status, WatchEvent};
use kube::{Client, Config};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Time limit of requests other than watches.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Connection to an API server.
#[derive(Clone)]
pub struct Api(Client);

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Api")
    }
}

/// Failure of a request.
#[derive(Debug)]
pub struct Error {
    /// HTTP status; 0 without an answer.
    code: u16,
    text: String,
}

impl Error {
    /// Returns `true` if the API server does not have what was asked for (404).
    pub fn is_not_found(&self) -> bool {
        self.code == 404
    }

    /// Returns `true` if the account may not do what was asked for (403).
    pub fn is_forbidden(&self) -> bool {
        self.code == 403
    }

    /// Returns `true` if an object has changed since it was read, or exists already (409).
    pub fn is_conflict(&self) -> bool {
        self.code == 409
    }

    /// Returns `true` if the history since a version is gone (410).
    pub fn is_expired(&self) -> bool {
        self.code == 410
    }

    /// Creates the error of a watch that has been silent for too long.
    pub(crate) fn silent() -> Error {
        Error { code: 0, text: "no event for too long".to_owned() }
    }

    pub(crate) fn of_status(status: &Status) -> Error {
        Error { code: status.code, text: status.message.clone() }
    }

    pub(crate) fn plain(error: impl fmt::Display) -> Error {
        Error { code: 0, text: error.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            0 => f.write_str(&self.text),
            code => write!(f, "{code}: {}", self.text),
        }
    }
}

impl std::error::Error for Error {}

/// Returns the error in an error. An `io::Error` leaves the one that it was made of out of its sources.
fn inner<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e (dyn std::error::Error + 'static)> {
    let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    wrapped.map(|error| error as _).or_else(|| error.source())
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Error {
        match error {
            kube::Error::Api(status) => Error::of_status(&status),
            other => {
                // The reason is in the innermost error: the outer ones only name layers.
                let mut innermost: &dyn std::error::Error = &other;
                while let Some(inner) = inner(innermost) {
                    innermost = inner;
                }
                let of_system = innermost.downcast_ref::<std::io::Error>().map(errno);
                Error { code: 0, text: of_system.unwrap_or_else(|| innermost.to_string()) }
            }
        }
    }
}

impl Api {
    /// Connects by a kubeconfig file, or as the pod that this process runs in, or else by the default kubeconfig. `server` replaces
    /// the address of the API server. No request is sent yet.
    ///
    /// # Errors
    /// The file or the environment cannot be used.
    pub async fn connect(kubeconfig: Option<&Path>, server: Option<&str>) -> Result<Api, Error> {
        // The second call finds the provider of the first.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut config = match kubeconfig {
            Some(path) => {
                let file = kube::config::Kubeconfig::read_from(path).map_err(Error::plain)?;
                Config::from_custom_kubeconfig(file, &Default::default()).await.map_err(Error::plain)?
            }
            None => Config::infer().await.map_err(Error::plain)?,
        };
        if let Some(server) = server {
            config.cluster_url = server.parse().map_err(Error::plain)?;
        }
        config.connect_timeout = Some(Duration::from_secs(5));
        Ok(Api(Client::try_from(config)?))
    }

    /// Reads an object or a list.
    ///
    /// # Errors
    /// The API server refuses, cannot be reached, or its answer is of another type.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.request(Method::GET, path, None).await
    }

    /// Creates an object in the collection `path`.
    ///
    /// # Errors
    /// As [`Api::get`].
    pub async fn create(&self, path: &str, object: &Value) -> Result<Value, Error> {
        self.request(Method::POST, path, Some(("application/json", object))).await
    }

    /// Replaces an object. It must have the version that was read, or the request fails by a conflict.
    ///
    /// # Errors
    /// As [`Api::get`].
    pub async fn replace(&self, path: &str, object: &Value) -> Result<Value, Error> {
        self.request(Method::PUT, path, Some(("application/json", object))).await
    }

    /// Sets the fields of an object that this program owns (server-side apply), also those that another manager has set.
    ///
    /// # Errors
    /// As [`Api::get`].
    pub async fn apply(&self, path: &str, object: &Value) -> Result<Value, Error> {
        let path = format!("{path}?fieldManager={MANAGER}&force=true");
        self.request(Method::PATCH, &path, Some(("application/apply-patch+yaml", object))).await
    }

    /// Opens a stream of events.
    ///
    /// # Errors
    /// As [`Api::get`].
    pub(crate) async fn events(
        &self,
        path: &str,
    ) -> Result<impl Stream<Item = Result<WatchEvent<Value>, Error>> + use<>, Error> {
        let request = Request::get(path).body(Vec::new()).map_err(Error::plain)?;
        let opened = tokio::time::timeout(TIMEOUT, self.0.request_events::<Value>(request)).await;
        let events = opened.map_err(|_| Error::plain("no answer in time"))??;
        Ok(events.map(|event| event.map_err(Error::from)))
    }

    async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        content: Option<(&str, &Value)>,
    ) -> Result<T, Error> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some((kind, _)) = content {
            request = request.header("content-type", kind);
        }
        let body = content.map(|(_, object)| object.to_string().into_bytes()).unwrap_or_default();
        let request = request.body(body).map_err(Error::plain)?;
        let answer = tokio::time::timeout(TIMEOUT, self.0.request::<T>(request)).await;
        Ok(answer.map_err(|_| Error::plain("no answer in time"))??)
    }
}

/// Name of this program among the managers of fields.
pub const MANAGER: &str = "forebay-ingress";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_are_in_the_words_of_nginx() {
        let reset = std::io::Error::from_raw_os_error(104);
        let error = Error::from(kube::Error::ReadEvents(std::io::Error::other(reset)));
        assert_eq!(error.to_string(), "104: Connection reset by peer");
    }
}
