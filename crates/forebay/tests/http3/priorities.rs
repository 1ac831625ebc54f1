//! The order in which requests of a connection are answered (RFC 9218).

use super::{Client, serve};
use serde_json::{Value, json};

/// Sends requests for a long file together, each with its `Priority` field, and updates in front of them or behind. Returns the numbers
/// of the requests in the order in which their answers ended.
fn order(client: &mut Client, fields: &[&str], before: &[(u64, &str)], behind: &[(u64, &str)]) -> Vec<usize> {
    let update = |(stream, value): &(u64, &str)| json!({"on": "a", "stream": stream * 4, "value": value, "held": true});
    before.iter().for_each(|row| drop(client.call("priority", update(row))));
    for (n, field) in fields.iter().enumerate() {
        let fields: Vec<Value> = if field.is_empty() { vec![] } else { vec![json!(["priority", field])] };
        client.request("a", &format!("r{n}"), json!({"path": "/large", "fields": fields, "held": true}));
    }
    behind.iter().for_each(|row| drop(client.call("priority", update(row))));
    client.call("ping", json!({"on": "a"}));
    let told: Vec<Value> = (0..fields.len()).map(|n| client.answer(&format!("r{n}"))).collect();
    for answer in &told {
        assert_eq!((&answer["status"], &answer["length"]), (&json!(200), &json!(2_000_000)), "{answer}");
    }
    let mut numbers: Vec<usize> = (0..fields.len()).collect();
    numbers.sort_by_key(|n| told.get(*n).and_then(|answer| answer["place"].as_u64()));
    numbers
}

#[test]
fn urgent_answers_are_first() {
    let Some(mut client) = Client::start() else { return };
    let server = serve("");
    for (fields, before, behind, want) in [
        // The first one has what a connection may send before the others come.
        (&["u=7", "u=5", "u=1"][..], &[][..], &[][..], &[2, 1, 0][..]),
        (&["u=3", "u=3", "u=3"], &[], &[], &[0, 1, 2]),
        (&["u=5, i", "u=2, i", "", "u=0"], &[], &[], &[3, 1, 2, 0]),
        // Updates take precedence over fields, whichever comes first.
        (&["u=6", "u=5", "u=4"], &[(1, "u=1")], &[], &[1, 2, 0]),
        (&["u=6", "u=5", "u=4"], &[], &[(2, "u=7"), (1, "u=0")], &[1, 0, 2]),
    ] {
        client.connect("a", &server);
        assert_eq!(order(&mut client, fields, before, behind), want, "{fields:?} {before:?} {behind:?}");
    }
}
