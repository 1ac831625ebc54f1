//! `forebay move`: the steps, the records of `compare` and `test`, and a swap by the commands that it prints.

use forebay_testkit::{
    Done, Server, Signal, Site, children, files, kill, oracle, program, title, wait_for, wait_until,
};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// Paths are those of the site whatever program reads it. The port is used in [`SITE`].
const CONF: &str = "# %PORT0%\n\
    pid %DIR%/logs/nginx.pid; error_log %DIR%/logs/error.log notice;\n\
    events {}\n\
    http {\n\
    access_log off;\n\
    include %DIR%/sites/*;\n\
    }\n";

const SITE: &str = "server { listen 127.0.0.1:%PORT0%; root %DIR%/html; location /a { return 200 here; } }\n";

fn site() -> Site {
    let site = Site::new(CONF);
    site.write("html/index.html", "<p>hello</p>");
    let server = SITE.replace("%PORT0%", &site.addr(0).port().to_string());
    site.write("sites/default", server.replace("%DIR%", &site.dir().display().to_string()));
    fake(&site, "1.22.1");
    site
}

/// Makes a program that says it is an nginx of a version, and is Forebay otherwise.
pub(crate) fn fake(site: &Site, version: &str) {
    let text = format!(
        "#!/bin/sh\ncase \"$1\" in -v | -V) echo 'nginx version: nginx/{version}' >&2; exit;; esac\nexec {} \"$@\"\n",
        program()
    );
    let path = site.write("fake", text);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
}

/// Runs a subcommand with the site's configuration and its own records.
fn forebay(site: &Site, name: &str, args: &str) -> Done {
    site.forebay(&format!("{name} -c {} {args}", conf(site).display()))
}

/// Runs one that has to succeed.
fn succeed(site: &Site, name: &str, args: &str) {
    let done = forebay(site, name, args);
    assert_eq!(done.code, 0, "{}", done.all());
}

fn conf(site: &Site) -> PathBuf {
    site.path("nginx.conf")
}

/// Returns what `forebay move --json` says with an nginx.
fn steps_with(site: &Site, nginx: &str) -> Value {
    let done = forebay(site, "move", &format!("--json --nginx {nginx}"));
    assert_eq!(done.code, 0, "{}", done.all());
    serde_json::from_str(&done.out).expect("JSON")
}

pub(crate) fn steps(site: &Site) -> Value {
    steps_with(site, "fake")
}

fn step<'v>(steps: &'v Value, name: &str) -> &'v Value {
    let list = steps["steps"].as_array().expect("a list");
    list.iter().find(|step| step["name"] == name).unwrap_or_else(|| panic!("no {name} in {steps}"))
}

/// Returns the state of a step and its line.
pub(crate) fn state(steps: &Value, name: &str) -> (String, String) {
    let part = |part: &str| step(steps, name)[part].as_str().expect("text").to_owned();
    (part("state"), part("fact"))
}

fn states(steps: &Value) -> Vec<&str> {
    steps["steps"].as_array().expect("a list").iter().filter_map(|step| step["state"].as_str()).collect()
}

/// Compares, writes tests and runs them.
pub(crate) fn compare_and_test(site: &Site) {
    succeed(site, "compare", "--nginx fake --write-tests t.yaml");
    succeed(site, "test", "t.yaml");
}

#[test]
fn the_commands_lead_from_step_to_step() {
    let site = site();
    assert_eq!(states(&steps(&site)), ["done", "done", "next", "later", "later", "later"]);
    succeed(&site, "compare", "--nginx fake --write-tests t.yaml");
    let written = state(&steps(&site), "tests");
    assert!(written.0 == "next" && written.1.contains("t.yaml has not run"), "{written:?}");
    compare_and_test(&site);
    let all = steps(&site);
    assert_eq!(states(&all), ["done", "done", "done", "done", "next", "later"], "{all:#}");
    let compared = state(&all, "compared").1;
    assert!(compared.contains(" no unknown differences, "), "{compared}");
    assert!(compared.contains("lines reached"), "{compared}");
    assert!(state(&all, "tests").1.contains("t.yaml pass"), "{all:#}");
    let shown = forebay(&site, "move", "--nginx fake").all();
    assert!(shown.lines().count() < 14 && shown.contains("\nnext    swap  "), "{shown}");
    assert!(shown.lines().last().is_some_and(|line| line.starts_with("    ")), "a command: {shown}");
}

#[test]
fn changes_make_records_stale() {
    let site = site();
    compare_and_test(&site);
    let expect = |wanted: [(&str, &str); 2]| {
        let all = steps(&site);
        for (name, (wanted, reason)) in ["compared", "tests"].into_iter().zip(wanted) {
            let (state, fact) = state(&all, name);
            assert!(state == wanted && fact.contains(reason), "{name}: {state}, {fact}");
        }
    };
    fake(&site, "1.24.0");
    expect([("stale", "nginx was 1.22.1 since"), ("done", "pass")]);
    fake(&site, "1.22.1");
    let tests = site.read("t.yaml");
    site.write("t.yaml", format!("{tests}# more\n"));
    expect([("done", "no unknown"), ("stale", "t.yaml has changed since")]);
    site.write("t.yaml", tests);
    // What certbot does: a file that is included has other lines.
    let before = site.read("sites/default");
    site.write("sites/default", before.replace("here", "there"));
    expect([("stale", "sites/default has changed since"), ("stale", "sites/default has changed since")]);
    site.write("sites/default", before);
    site.write("sites/more", "# a new file\n");
    expect([("stale", "sites/more is new since"), ("stale", "sites/more is new since")]);
    std::fs::remove_file(site.dir().join("sites/more")).expect("removed");
    expect([("done", "no unknown"), ("done", "pass")]);
}

#[test]
fn only_whole_runs_leave_records() {
    let site = site();
    compare_and_test(&site);
    site.write("sites/default", site.read("sites/default").replace("return 200 here", "return 404"));
    let failed = forebay(&site, "test", "t.yaml");
    assert_eq!(failed.code, 1, "{}", failed.all());
    assert_eq!(state(&steps(&site), "tests").0, "failed");
    let part = forebay(&site, "test", "t.yaml --filter index");
    assert_eq!(state(&steps(&site), "tests").0, "failed", "{}", part.all());
    let other = forebay(&site, "compare", &format!("--with {}", program()));
    assert_eq!(state(&steps(&site), "compared").0, "stale", "{}", other.all());
}

#[test]
fn records_that_cannot_be_read_count_as_none() {
    let site = site();
    compare_and_test(&site);
    let place = site.dir().join("state/forebay/move");
    let records = files(&place);
    assert_eq!(records.len(), 2, "{records:?}");
    for record in &records {
        let mode = std::fs::metadata(record).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let good: Vec<String> = records.iter().map(|path| std::fs::read_to_string(path).expect("text")).collect();
    let huge = "[".repeat(1 << 20);
    for bad in ["", "{}", "\u{1b}", "[1]", &huge, &good[0].replacen("\"format\":1", "\"format\":2", 1)] {
        records.iter().for_each(|path| std::fs::write(path, bad).expect("written"));
        assert_eq!(states(&steps(&site)), ["done", "done", "next", "later", "later", "later"], "{bad:.20}");
    }
    // The record of another configuration under this one's name.
    for (path, text) in records.iter().zip(&good) {
        std::fs::write(path, text.replace("nginx.conf\",\"digest", "other.conf\",\"digest"))
            .expect("written");
    }
    assert_eq!(state(&steps(&site), "compared").0, "next");
    // Neither a directory nor a device is read.
    std::fs::remove_dir_all(&place).expect("removed");
    site.write("state/forebay/move", "a file");
    assert_eq!(state(&steps(&site), "compared").0, "next");
    succeed(&site, "compare", "--nginx fake");
}

#[test]
fn a_user_without_home_has_no_records() {
    let site = site();
    let run = |name: &str| {
        let mut command = site.subcommand([name, "--nginx", "fake", "-c", "nginx.conf"]);
        Done::of(command.env_remove("XDG_STATE_HOME").env("HOME", ""))
    };
    let done = run("compare");
    assert_eq!(done.code, 0, "{}", done.all());
    let done = run("move");
    assert!(done.code == 0 && done.all().contains("next    compared"), "{}", done.all());
}

#[test]
fn what_is_not_there_is_told_in_a_sentence() {
    let site = site();
    for (args, reason) in [
        ("--nginx nowhere", "nowhere: No such file"),
        ("--nginx /bin/true", "/bin/true is no nginx"),
        ("--nginx fake --log nowhere.log", "nowhere.log: No such file"),
    ] {
        let done = forebay(&site, "move", args);
        assert_eq!(done.code, 2);
        let said = done.all();
        assert!(said.starts_with("forebay move: ") && said.contains(reason), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    std::fs::remove_file(conf(&site)).expect("removed");
    let said = forebay(&site, "move", "--nginx fake").all();
    assert!(said.contains("nginx.conf\" failed (2: No such file or directory)"), "{said}");
}

#[test]
fn mistakes_have_their_places() {
    let site = site();
    site.write("sites/default", "server { listen 80; }\nno_such_directive x;\n");
    let all = steps(&site);
    assert_eq!(states(&all), ["done", "failed", "later", "later", "later", "later"]);
    let error = step(&all, "configuration")["errors"][0].as_str().expect("an error").to_owned();
    assert!(
        error.starts_with("unknown directive \"no_such_directive\" in ")
            && error.ends_with("sites/default:2")
    );
    let shown = forebay(&site, "move", "--nginx fake").all();
    assert!(shown.contains("sites/default:2\n") && shown.contains("    forebay check "), "{shown}");
}

#[test]
fn a_forebay_that_serves_is_the_end() {
    let server = Server::start_on(site());
    let all = steps(&server.site);
    assert_eq!(state(&all, "swap"), ("done".into(), format!("Forebay runs as process {}", server.pid())));
    assert_eq!(all["next"], serde_json::json!([]));
    assert_eq!(all["process"], server.pid());
}

/// Runs the commands of a step as people would.
fn run(site: &Site, all: &Value, name: &str) {
    for command in step(all, name)["commands"].as_array().expect("a list") {
        let command = command.as_str().expect("text");
        let pid = site.pid_in_file();
        let done = Done::of(Command::new("sh").args(["-ec", command]));
        assert_eq!(done.code, 0, "{command}: {}", done.all());
        if !command.contains("USR2") {
            continue;
        }
        // The next command ends the old master.
        let new = wait_for("a new master", || site.pid_in_file().filter(|new| Some(*new) != pid));
        wait_for("its worker", || children(new).first().copied());
    }
}

/// Returns `true` if there is no former master.
fn alone(site: &Site) -> bool {
    !site.dir().join("logs/nginx.pid.oldbin").exists()
}

#[test]
fn the_printed_commands_swap_and_lead_back() {
    let Some(nginx) = oracle() else { return };
    let site = site();
    let copy = site.dir().join("sbin/nginx");
    site.make_dir("sbin");
    std::fs::copy(nginx, &copy).expect("copied");
    let path = copy.display().to_string();
    let started = Command::new(&copy).arg("-c").arg(conf(&site)).arg("-p").arg(site.dir()).status();
    assert!(started.expect("starts").success());
    let url = format!("http://{}/a", site.addr(0));
    let serves = |name: &str| {
        wait_until(name, || {
            let text = Done::of(Command::new("curl").args(["-si", "-m", "5", &url])).out;
            text.contains("here") && text.contains(&format!("Server: {name}"))
        });
    };
    serves("nginx");
    let pid = wait_for("a pid file", || site.pid_in_file());
    let before = steps_with(&site, &path);
    assert!(state(&before, "nginx").1.contains(&format!("running as process {pid}")), "{before:#}");
    assert!(state(&before, "swap").1.starts_with("by USR2"), "{before:#}");
    run(&site, &before, "swap");
    serves("forebay");
    wait_until("the end of nginx", || title(pid).is_empty() && alone(&site));
    let after = steps_with(&site, &path);
    assert_eq!(state(&after, "swap").0, "done", "{after:#}");
    assert_eq!(after["nginx"]["program"], format!("{path}.distrib"));
    let pid = site.pid_in_file().expect("a master");
    run(&site, &after, "way back");
    serves("nginx");
    wait_until("the end of Forebay", || title(pid).is_empty() && alone(&site));
    let back = steps_with(&site, &path);
    assert_eq!(state(&back, "swap").0, "later", "{back:#}");
    kill(site.pid_in_file().expect("a master"), Signal::SIGTERM);
    wait_until("the end", || site.pid_in_file().is_none());
}
