use super::*;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A client in this process, with the folder of its documents.
struct Client {
    connection: Connection,
    server: Option<std::thread::JoinHandle<Result<(), String>>>,
    dir: tempfile::TempDir,
    id: i32,
    /// The last diagnostics of each file, by its name.
    diagnostics: HashMap<String, Vec<String>>,
}

const LONGEST: Duration = Duration::from_secs(20);

fn check(
    environment: &forebay_core::config::Environment,
    files: &mut forebay_conf::files::Files,
) -> Vec<forebay_conf::error::Error> {
    let folder = crate::project::folder(&environment.conf_path);
    forebay_conf::parse::parse(&environment.conf_path, "", folder, files).errors
}

impl Client {
    /// Starts a session about files on disk.
    fn new(files: &[(&str, &str)]) -> Client {
        Client::with_check(files, check)
    }

    fn with_check(files: &[(&str, &str)], check: Check) -> Client {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).expect("written");
        }
        let (connection, own) = Connection::memory();
        let server = Some(std::thread::spawn(move || serve(&own, check)));
        let mut client = Client { connection, server, dir, id: 0, diagnostics: HashMap::new() };
        let answer = client.ask("initialize", json!({ "capabilities": {} }));
        assert_eq!(answer["capabilities"]["hoverProvider"], true);
        client.tell("initialized", json!({}));
        client
    }

    fn uri(&self, name: &str) -> String {
        text::uri(&self.dir.path().join(name)).expect("a URI").as_str().to_owned()
    }

    fn tell(&self, method: &str, params: Value) {
        let notification = Notification::new(method.to_owned(), params);
        self.connection.sender.send(Message::Notification(notification)).expect("sent");
    }

    fn open(&mut self, name: &str, text: &str) {
        let document = json!({ "uri": self.uri(name), "languageId": "nginx", "version": 1, "text": text });
        self.tell("textDocument/didOpen", json!({ "textDocument": document }));
        self.settle();
    }

    fn change(&mut self, name: &str, text: &str) {
        let document = json!({ "uri": self.uri(name), "version": 2 });
        self.tell(
            "textDocument/didChange",
            json!({ "textDocument": document, "contentChanges": [{ "text": text }] }),
        );
        self.settle();
    }

    /// Waits until what was sent has been handled: the answer to a request comes after it.
    fn settle(&mut self) {
        let name = self.uri("none");
        self.ask("textDocument/documentSymbol", json!({ "textDocument": { "uri": name } }));
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.response(method, params).unwrap_or_else(|why| panic!("{method}: {why}"))
    }

    fn response(&mut self, method: &str, params: Value) -> Result<Value, String> {
        self.id += 1;
        let request = Request::new(self.id.into(), method.to_owned(), params);
        self.connection.sender.send(Message::Request(request)).expect("sent");
        loop {
            match self.connection.receiver.recv_timeout(LONGEST).expect("an answer") {
                Message::Response(response) => return response.response_result.map_err(|e| e.message),
                Message::Notification(told) => self.note(told),
                Message::Request(_) => {}
            }
        }
    }

    fn note(&mut self, told: Notification) {
        let told: PublishDiagnosticsParams =
            told.extract("textDocument/publishDiagnostics").expect("diagnostics");
        let name = told.uri.as_str().rsplit('/').next().unwrap_or_default().to_owned();
        let shown = |d: Diagnostic| {
            format!("{}:{}", d.range.start.line + 1, d.message.lines().next().unwrap_or_default())
        };
        self.diagnostics.insert(name, told.diagnostics.into_iter().map(shown).collect());
    }

    /// Waits until the diagnostics of a file are as wanted.
    fn wait(&mut self, name: &str, wanted: impl Fn(&[String]) -> bool) {
        let end = Instant::now() + LONGEST;
        while !self.diagnostics.get(name).is_some_and(|list| wanted(list)) {
            match self.connection.receiver.recv_deadline(end) {
                Ok(Message::Notification(told)) => self.note(told),
                Ok(_) => {}
                Err(e) => panic!("{e}: {name}: {:?}", self.diagnostics),
            }
        }
    }

    /// Parameters of a request at the first place of `text` in a document, behind `text`.
    fn at(&self, name: &str, document: &str, text: &str) -> Value {
        let offset = document.find(text).expect("a place") + text.len();
        json!({ "textDocument": { "uri": self.uri(name) }, "position": text::position(document.as_bytes(), offset) })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.ask("shutdown", Value::Null);
        self.tell("exit", Value::Null);
        let ended = self.server.take().expect("a server").join().expect("no panic");
        assert_eq!(ended, Ok(()));
    }
}

fn labels(items: &Value) -> Vec<&str> {
    items.as_array().into_iter().flatten().filter_map(|i| i["label"].as_str()).collect()
}

const MAIN: &str = "events {}\nhttp {\n    upstream app { server 127.0.0.1:1; }\n    map $host $pool { default app; }\n    include site.conf;\n}\n";
const SITE: &str = "server {\n    listen 80;\n    set $name x;\n    location / { proxy_pass http://app/a; }\n    location /b { proxy_pass http://$pool; add_header X $name; }\n    location /c { try_files $uri @none; }\n    location @none { return 404; }\n}\n";

fn two_files() -> Client {
    let mut client = Client::new(&[("nginx.conf", MAIN), ("site.conf", SITE)]);
    client.open("site.conf", SITE);
    client
}

#[test]
fn diagnostics_follow_the_text_in_the_editor() {
    let mut client = two_files();
    client.wait("site.conf", |list| list.iter().all(|d| !d.contains("directive")));
    let broken = SITE.replace("listen 80;", "lissten 80;");
    client.change("site.conf", &broken);
    client.wait("site.conf", |list| list.iter().any(|d| d == "2:unknown directive \"lissten\""));
    client.change("site.conf", SITE);
    client.wait("site.conf", |list| list.iter().all(|d| !d.contains("lissten")));
    // The main file is not open: its text is that on disk, and its mistakes are shown.
    std::fs::write(client.dir.path().join("nginx.conf"), MAIN.replace("events {}", "evnts {}"))
        .expect("written");
    client.tell("textDocument/didSave", json!({ "textDocument": { "uri": client.uri("site.conf") } }));
    client.wait("nginx.conf", |list| list.iter().any(|d| d.starts_with("1:unknown directive \"evnts\"")));
}

#[test]
fn completion_knows_the_context() {
    let mut client = two_files();
    let text = SITE.replace("listen 80;", "listen 80; client_");
    client.change("site.conf", &text);
    let at = client.at("site.conf", &text, "client_");
    let items = client.ask("textDocument/completion", at);
    let found = labels(&items);
    assert!(found.contains(&"client_max_body_size") && !found.contains(&"worker_connections"), "{found:?}");
    assert!(!found.contains(&"upstream"), "a server has no groups: {found:?}");
    let item = items.as_array().and_then(|all| all.iter().find(|i| i["label"] == "client_max_body_size"));
    let item = item.expect("an item").clone();
    assert_eq!(item["documentation"], Value::Null, "help comes when it is asked for");
    let whole = client.ask("completionItem/resolve", item);
    let help = whole["documentation"]["value"].as_str().unwrap_or_default();
    assert!(help.contains("**client_max_body_size**") && help.contains("In: "), "{whole}");
    client.change("site.conf", SITE);
    let text = SITE;
    let at = client.at("site.conf", text, "http://");
    assert_eq!(labels(&client.ask("textDocument/completion", at)), ["app"]);
    let at = client.at("site.conf", text, "X $");
    let items = client.ask("textDocument/completion", at);
    let found = labels(&items);
    assert!(
        found.contains(&"name") && found.contains(&"pool") && found.contains(&"remote_addr"),
        "{found:?}"
    );
    let at = client.at("site.conf", text, "try_files $uri @");
    assert_eq!(labels(&client.ask("textDocument/completion", at)), ["@none"]);
}

#[test]
fn hover_and_definitions() {
    let mut client = two_files();
    let hover = |client: &mut Client, text: &str| {
        let at = client.at("site.conf", SITE, text);
        client.ask("textDocument/hover", at)["contents"]["value"].as_str().unwrap_or_default().to_owned()
    };
    assert!(hover(&mut client, "list").contains("**listen**"));
    assert!(hover(&mut client, "proxy_p").contains("```nginx"));
    assert!(hover(&mut client, "$ur").contains("decoded and normalized"));
    assert!(hover(&mut client, "X $na").contains("site.conf:3"));
    let line = |answer: &Value| {
        (
            answer[0]["uri"].as_str().unwrap_or_default().rsplit('/').next().unwrap_or_default().to_owned(),
            answer[0]["range"]["start"]["line"].clone(),
        )
    };
    let at = client.at("site.conf", SITE, "http://ap");
    assert_eq!(line(&client.ask("textDocument/definition", at)), ("nginx.conf".to_owned(), json!(2)));
    let at = client.at("site.conf", SITE, "$uri @no");
    assert_eq!(line(&client.ask("textDocument/definition", at)), ("site.conf".to_owned(), json!(6)));
    client.open("nginx.conf", MAIN);
    let at = client.at("nginx.conf", MAIN, "include si");
    assert_eq!(line(&client.ask("textDocument/definition", at)), ("site.conf".to_owned(), json!(0)));
}

#[test]
fn a_group_is_renamed_in_all_files() {
    let mut client = two_files();
    let mut at = client.at("site.conf", SITE, "http://ap");
    at["newName"] = json!("backend");
    let edit = client.ask("textDocument/rename", at);
    let lines = |name: &str| -> Vec<u64> {
        let edits = edit["changes"][client.uri(name)].as_array().cloned().unwrap_or_default();
        edits.iter().filter_map(|e| e["range"]["start"]["line"].as_u64()).collect()
    };
    // The block, the map whose variable is passed to, and the use.
    assert_eq!((lines("nginx.conf"), lines("site.conf")), (vec![2, 3], vec![3]));
    let mut at = client.at("site.conf", SITE, "X $na");
    at["newName"] = json!("$title");
    let edit = client.ask("textDocument/rename", at);
    assert_eq!(edit["changes"][client.uri("site.conf")].as_array().map(Vec::len), Some(2));
    for (place, new) in [("$ur", "other"), ("X $na", "a-b"), ("http://ap", "a b")] {
        let mut at = client.at("site.conf", SITE, place);
        at["newName"] = json!(new);
        assert!(client.response("textDocument/rename", at).is_err(), "{place} {new}");
    }
    let mut at = client.at("site.conf", SITE, "http://ap");
    at["context"] = json!({ "includeDeclaration": true });
    assert_eq!(client.ask("textDocument/references", at).as_array().map(Vec::len), Some(3));
}

#[test]
fn formatting_outline_and_fixes() {
    let mut client = Client::new(&[]);
    let text = "events {}\nhttp {\nserver { listen 80;\n  ssl_protocols TLSv1 TLSv1.2;\nlocation / { return 200; } } }\n";
    client.open("nginx.conf", text);
    let document = json!({ "uri": client.uri("nginx.conf") });
    let edits = client.ask(
        "textDocument/formatting",
        json!({ "textDocument": document, "options": { "tabSize": 4, "insertSpaces": true } }),
    );
    let new = edits[0]["newText"].as_str().expect("a text").to_owned();
    assert!(new.contains("\n    server {\n        listen 80;\n"), "{new}");
    let outline = client.ask("textDocument/documentSymbol", json!({ "textDocument": document }));
    assert_eq!(outline[1]["children"][0]["children"][0]["name"], "location");
    let part = json!({ "start": { "line": 3, "character": 0 }, "end": { "line": 3, "character": 9 } });
    let actions = client.ask(
        "textDocument/codeAction",
        json!({ "textDocument": document, "range": part, "context": { "diagnostics": [] } }),
    );
    let fix = &actions[0]["edit"]["changes"][client.uri("nginx.conf")];
    assert!(fix.as_array().is_some_and(|edits| !edits.is_empty()), "{actions}");
    let other = json!({ "start": { "line": 4, "character": 0 }, "end": { "line": 4, "character": 9 } });
    let actions = client.ask(
        "textDocument/codeAction",
        json!({ "textDocument": document, "range": other, "context": { "diagnostics": [] } }),
    );
    assert_eq!(actions, json!([]));
}

#[test]
fn a_file_without_a_configuration_is_still_helped() {
    let mut client = Client::new(&[]);
    let text = "location / {\n    proxy_pas http://a;\n}\n";
    client.open("snippet.conf", text);
    client.wait("snippet.conf", |list| list.iter().any(|d| d.starts_with("2:unknown directive")));
    let at = client.at("snippet.conf", text, "proxy_pas");
    let items = client.ask("textDocument/completion", at);
    assert!(labels(&items).contains(&"proxy_pass"));
    assert!(client.response("textDocument/none", json!({})).is_err());
    assert!(client.response("textDocument/hover", json!({ "x": 1 })).is_err());
}

/// Held while no check may end.
static HELD: Mutex<()> = Mutex::new(());

fn held_check(
    environment: &forebay_core::config::Environment,
    files: &mut forebay_conf::files::Files,
) -> Vec<forebay_conf::error::Error> {
    let _ended = HELD.lock();
    check(environment, files)
}

/// The parser's mistakes and the answers do not wait for the check of all stages and for doctor, whose findings follow.
#[test]
fn nothing_waits_for_checks() {
    let mut client = Client::with_check(&[], held_check);
    let text = "events {}\nhttp {\n    server_tokens on;\n    server { lissten 80; }\n}\n";
    let held = HELD.lock().expect("nobody has panicked");
    client.open("nginx.conf", text);
    client.wait("nginx.conf", |list| list == ["4:unknown directive \"lissten\""]);
    let at = client.at("nginx.conf", text, "server_tok");
    for method in ["textDocument/hover", "textDocument/completion", "textDocument/codeAction"] {
        let mut params = at.clone();
        if method.ends_with("codeAction") {
            let here = &at["position"];
            params["range"] = json!({ "start": here, "end": here });
            params["context"] = json!({ "diagnostics": [] });
        }
        assert!(!client.ask(method, params).is_null(), "{method}");
    }
    drop(held);
    let is_found = |list: &[String]| list.iter().any(|d| d.starts_with("3:"));
    client.wait("nginx.conf", is_found);
    // What was found moves with the lines, while nothing is known about the new text yet.
    let held = HELD.lock().expect("nobody has panicked");
    client.change("nginx.conf", &format!("# one line more\n{text}"));
    client.wait("nginx.conf", |list| {
        list.iter().any(|d| d.starts_with("5:unknown")) && list.iter().any(|d| d.starts_with("4:"))
    });
    drop(held);
}

#[test]
fn a_part_of_a_text_is_replaced() {
    let mut client = Client::new(&[]);
    client.open("nginx.conf", "events {}\nhttp {\n    server { listen 80; }\n}\n");
    let part = json!({ "start": { "line": 2, "character": 13 }, "end": { "line": 2, "character": 19 } });
    client.tell(
        "textDocument/didChange",
        json!({
            "textDocument": { "uri": client.uri("nginx.conf"), "version": 2 },
            "contentChanges": [{ "range": part, "text": "lissten" }],
        }),
    );
    client.wait("nginx.conf", |list| list.iter().any(|d| d == "3:unknown directive \"lissten\""));
}

#[test]
fn a_configuration_is_read_once_for_a_text() {
    let main = PathBuf::from("/none/nginx.conf");
    let documents: Documents = [(main.clone(), Arc::from(MAIN.as_bytes()))].into();
    let mut projects = Projects::default();
    let read = |projects: &Projects| projects.of(&main, None, &documents).expect("a main file");
    let first = read(&projects);
    assert!(Rc::ptr_eq(&first, &read(&projects)));
    projects.clear();
    assert!(!Rc::ptr_eq(&first, &read(&projects)));
}

/// With optimization each answer about a text of 5,000 lines comes within 50 ms, and doctor and the other stages are not in the
/// way. Here the answers are counted that have to come before a check ends.
#[test]
fn answers_about_a_long_text_come_before_its_findings() {
    let mut client = Client::with_check(&[], held_check);
    let servers: String = (0..1000)
        .map(|n| format!("server {{\n    listen 127.0.0.1:{};\n    server_name s{n};\n    location / {{ return 200 $uri; }}\n}}\n", 1024 + n))
        .collect();
    let text = format!("events {{}}\nhttp {{\n{servers}}}\n");
    let held = HELD.lock().expect("nobody has panicked");
    client.open("nginx.conf", &text);
    let at = client.at("nginx.conf", &text, "s999;\n    location / { return 200 $ur");
    for method in ["textDocument/hover", "textDocument/definition", "textDocument/completion"] {
        let begun = Instant::now();
        client.ask(method, at.clone());
        println!("{method}: {:?}", begun.elapsed());
    }
    assert_eq!(client.diagnostics.get("nginx.conf"), Some(&Vec::new()), "the parser has nothing to tell");
    drop(held);
    client.wait("nginx.conf", |list| !list.is_empty());
}
