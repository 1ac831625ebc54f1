use crate::testing;

#[test]
fn parts() {
    let mut req = testing::request(
        "split_clients $arg_a $x { 30% one; 20.5% two; * rest; } split_clients $arg_a $y { 0.01% y; }",
        "",
    );
    let mut counts = std::collections::BTreeMap::new();
    for i in 0..10_000 {
        testing::again(&mut req, &format!("a={i}"));
        *counts.entry(testing::value(&mut req, "x").expect("always one")).or_insert(0) += 1;
    }
    let near = |name: &str, want: i32| (counts.get(name).copied().unwrap_or(0) - want).abs() < 300;
    assert!(near("one", 3000) && near("two", 2050) && near("rest", 4950), "{counts:?}");
    assert_eq!(testing::value(&mut req, "y"), None);
}

#[test]
fn errors() {
    for (conf, want) in [
        ("split_clients $uri x { * 1; }", "invalid variable name \"x\""),
        ("split_clients $uri $x { 60% 1; 50% 2; }", "percent total is greater than 100%"),
        ("split_clients $uri $x { * 1; 50% 2; }", "percent total is greater than 100%"),
        ("split_clients $uri $x { 0% 1; }", "invalid percent value \"0%\""),
    ] {
        assert_eq!(testing::error(conf).as_deref(), Some(want), "{conf}");
    }
}
