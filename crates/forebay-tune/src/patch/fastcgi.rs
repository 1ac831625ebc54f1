//! Connections to FastCGI applications that are kept.

use super::{append_to_block, replace_argument};
use forebay_copy::patch::{Edit, View};
use forebay_copy::scene::NEW_UPSTREAM;

/// Makes the upstreams of `fastcgi_pass` keep connections: those that have a name, and new ones for addresses that stand there.
pub(super) fn keep_connections(view: &View<'_>, level: &str) -> Vec<Edit> {
    let Some(http) = view.child(None, "http") else { return Vec::new() };
    let mut edits = Vec::new();
    let mut new: Vec<String> = Vec::new();
    for pass in view.all("fastcgi_pass").filter(|p| view.within(*p, http)) {
        let target = view.args(pass).first().cloned().unwrap_or_default();
        if target.is_empty() || target.contains('$') {
            continue;
        }
        let named = |u: &usize| view.args(*u).first() == Some(&target);
        if let Some(block) = view.all("upstream").find(named) {
            let keeps = view.child(Some(block), "keepalive").is_some();
            edits.extend((!keeps).then(|| append_to_block(view, block, level)));
        } else {
            let number = new.iter().position(|t| *t == target).unwrap_or(new.len());
            if number == new.len() {
                new.push(target);
            }
            edits.extend(replace_argument(view, pass, 0, format!("{NEW_UPSTREAM}fastcgi_{}", number + 1)));
        }
        edits.extend(asks_to_keep(view, pass));
    }
    for (n, target) in new.iter().enumerate() {
        let block = format!("upstream {NEW_UPSTREAM}fastcgi_{} {{ server {target}; {level} }}", n + 1);
        edits.push(view.insert(Some(http), &block));
    }
    edits.dedup();
    edits
}

/// Asks the application not to close the connection.
fn asks_to_keep(view: &View<'_>, pass: usize) -> Option<Edit> {
    const ON: &str = "fastcgi_keep_conn on;";
    let location = view.nodes.get(pass)?.parent;
    match view.effective(location, "fastcgi_keep_conn") {
        None => Some(view.insert(location, ON)),
        Some(n) if view.args(n).first().is_some_and(|a| a == "on") => None,
        Some(n) => Some(view.replace(n, ON)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::patched;

    #[test]
    fn applications_are_asked_to_keep_connections() {
        let text = "events {}\nhttp {\n upstream php {\n  server 10.0.0.1:9000;\n }\n server {\n  location /a {\n   fastcgi_pass php;\n  }\n  \
                    location /b {\n   fastcgi_keep_conn off;\n   fastcgi_pass unix:/run/php.sock;\n  }\n  location /c {\n   fastcgi_pass $x;\n  }\n }\n}\n";
        let new = patched(text, "fastcgi_keep_conn", None);
        for part in [
            "server 10.0.0.1:9000;\n  keepalive 4;",
            "upstream tuned_fastcgi_1 { server unix:/run/php.sock; keepalive 4; }",
            "fastcgi_pass tuned_fastcgi_1;",
            "fastcgi_pass $x;",
        ] {
            assert_eq!(new.matches(part).count(), 1, "{part}: {new}");
        }
        assert_eq!(new.matches("fastcgi_keep_conn on;").count(), 2, "{new}");
        assert!(!new.contains("off;"), "{new}");
    }
}
