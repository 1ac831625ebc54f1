//! Pairs of keys and values in JSON, as the API takes them and as a state file has them.

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use std::fmt;

/// An object whose members are keys with what is to become of them, in their order.
#[derive(Debug, PartialEq, Eq)]
pub struct Members(pub Vec<(String, Member)>);

/// Change of a key, or its value in a state file.
#[derive(Debug, PartialEq, Eq)]
pub enum Member {
    /// It has no value (`null`).
    Null,
    /// Its value.
    Value(String),
    /// An object.
    Object(Object),
}

/// Value and time of a key.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Object {
    /// Value.
    #[serde(deserialize_with = "value")]
    pub value: Option<String>,
    /// Time after which it expires, in milliseconds from now.
    pub expire: Option<u64>,
    /// Time at which it expires, in milliseconds since 1970. In state files only.
    pub until: Option<u64>,
}

/// Fault of a text, with its place.
#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is no JSON.
    Syntax(String),
    /// It is JSON, but no pairs.
    Form(String),
}

impl Members {
    /// Reads a text.
    ///
    /// # Errors
    /// If it is not an object of pairs, or has a key twice.
    pub fn parse(text: &[u8]) -> Result<Members, Fault> {
        serde_json::from_slice(text).map_err(|e| match e.is_data() {
            true => Fault::Form(e.to_string()),
            false => Fault::Syntax(e.to_string()),
        })
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of keys and values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut keys = std::collections::HashSet::new();
                let mut members = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    if !keys.insert(key.clone()) {
                        return Err(A::Error::custom(format_args!("the key {key:?} is there twice")));
                    }
                    members.push((key, map.next_value()?));
                }
                Ok(Members(members))
            }
        }
        d.deserialize_map(Read)
    }
}

impl<'de> Deserialize<'de> for Member {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Member;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, null or an object with \"value\" and \"expire\"")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Member, E> {
                Ok(Member::Value(text.to_owned()))
            }

            // NGINX Plus takes whole numbers for their text.
            fn visit_u64<E: Error>(self, n: u64) -> Result<Member, E> {
                Ok(Member::Value(n.to_string()))
            }

            fn visit_i64<E: Error>(self, n: i64) -> Result<Member, E> {
                Ok(Member::Value(n.to_string()))
            }

            fn visit_unit<E: Error>(self) -> Result<Member, E> {
                Ok(Member::Null)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Member, A::Error> {
                Object::deserialize(serde::de::value::MapAccessDeserializer::new(map)).map(Member::Object)
            }
        }
        d.deserialize_any(Read)
    }
}

/// Reads the value in an object.
fn value<'de, D: Deserializer<'de>>(d: D) -> Result<Option<String>, D::Error> {
    match Member::deserialize(d)? {
        Member::Value(text) => Ok(Some(text)),
        Member::Null => Err(D::Error::custom("\"value\" is null")),
        Member::Object(_) => Err(D::Error::custom("\"value\" is an object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Option<&str>, expire: Option<u64>) -> Member {
        Member::Object(Object { value: value.map(str::to_owned), expire, until: None })
    }

    #[test]
    fn pairs_are_read_in_order() {
        let text =
            br#"{"b":"1","a":null,"c":{"value":"2","expire":30},"d":{"expire":0},"e":7,"f":{"value":-7}}"#;
        let Members(members) = Members::parse(text).expect("pairs");
        let want = [
            ("b", Member::Value("1".into())),
            ("a", Member::Null),
            ("c", object(Some("2"), Some(30))),
            ("d", object(None, Some(0))),
            ("e", Member::Value("7".into())),
            ("f", object(Some("-7"), None)),
        ];
        assert_eq!(members, want.map(|(key, member)| (key.to_owned(), member)));
        assert_eq!(Members::parse(b"{}"), Ok(Members(Vec::new())));
    }

    #[test]
    fn faults_have_a_place() {
        let form = |text: &str| match Members::parse(text.as_bytes()) {
            Err(Fault::Form(text)) => text,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(form(r#"{"a":"1","a":"2"}"#), "the key \"a\" is there twice at line 1 column 12");
        for text in [
            r#"{"a":true}"#,
            r#"{"a":1.5}"#,
            r#"{"a":["1"]}"#,
            r#"{"a":{"value":{"value":"1"}}}"#,
            r#"{"a":{"value":null}}"#,
            r#"{"a":{"value":"1","value":"2"}}"#,
            r#"{"a":{"other":"1"}}"#,
            r#"{"a":{"expire":-1}}"#,
            r#"{"a":{"expire":"1"}}"#,
            "[]",
            "\"a\"",
            "7",
        ] {
            assert!(form(text).contains("line 1 column"), "{text}");
        }
        let broken: [&[u8]; 6] =
            [b"", b"{", br#"{"a":}"#, br#"{"a":"1"} x"#, br#"{"a":"\ud800"}"#, b"{\"a\":\"\xff\"}"];
        for text in broken {
            assert!(matches!(Members::parse(text), Err(Fault::Syntax(_))), "{}", text.escape_ascii());
        }
        let deep = format!("{{\"a\":{}", "[".repeat(100_000));
        assert!(Members::parse(deep.as_bytes()).is_err());
    }
}
