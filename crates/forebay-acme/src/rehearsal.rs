//! Orders that prove control of names and ask for no certificate, with an account that is thrown away.

use crate::failure::Failure;
use crate::issue::Issuance;
use crate::key::Key;
use crate::protocol::Session;
use crate::publish::Publisher;
use crate::settings::{Challenge, Issuer, KeyKind, Order};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Results by name.
pub(crate) type Results = Vec<(String, Result<(), Failure>)>;

/// Proves control of the names of an order to the authority with this directory.
///
/// # Errors
/// If there is no order there.
pub(crate) async fn run(
    order: &Order,
    uri: &str,
    challenge: Challenge,
    publisher: &Publisher,
) -> Result<Results, Failure> {
    // A profile may be missing there, which is no fault of the names.
    let issuer = Issuer { uri: uri.to_owned(), profile: None, ..Issuer::clone(&order.issuer) };
    let issuer = Arc::new(issuer);
    let order = Order { issuer: issuer.clone(), ..order.clone() };
    let key = Key::generate(KeyKind::P256).map_err(Failure::temporary)?;
    let mut session = Session::begin(&issuer, Arc::new(key), None).await?;
    Issuance { session: &mut session, order: &order, publisher, challenge, replaces: None }.rehearse().await
}

/// Returns the JSON text of the results: `null` or the failure for each name.
pub(crate) fn report(uri: &str, results: &Result<Results, Failure>) -> String {
    let (names, error) = match results {
        Ok(results) => {
            let text = |proven: &Result<(), Failure>| proven.as_ref().err().map(|f| f.text.clone());
            let names = results.iter().map(|(name, proven)| (name.clone(), json!(text(proven))));
            (names.collect::<Map<String, Value>>(), None)
        }
        Err(failure) => (Map::new(), Some(failure.text.clone())),
    };
    json!({"directory": uri, "names": names, "error": error}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_each_name() {
        let results = vec![("a".to_owned(), Ok(())), ("b".to_owned(), Err(Failure::unproven("closed")))];
        let text = report("https://x/", &Ok(results));
        assert_eq!(text, r#"{"directory":"https://x/","error":null,"names":{"a":null,"b":"closed"}}"#);
        let text = report("https://x/", &Err(Failure::temporary("down")));
        assert_eq!(text, r#"{"directory":"https://x/","error":"down","names":{}}"#);
    }
}
