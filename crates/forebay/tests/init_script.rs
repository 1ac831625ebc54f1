//! The program in the place of Debian's nginx: the package's init script and log rotation find and lead it by its name.

use forebay_testkit::{
    Server, Signal, Site, alive, children, free_port, kill, program, title, wait_for, wait_until,
};
use std::path::Path;
use std::process::{Command, Stdio};

fn comm(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

const CONF: &str =
    "error_log logs/error.log; events {} http { access_log off; server { listen 127.0.0.1:%PORT0%; } }";

#[test]
fn processes_have_the_name_that_the_program_was_started_by() {
    let site = Site::new(CONF);
    let (link, copy) = (site.dir().join("nginx"), site.dir().join("a-name-longer-than-fifteen-bytes"));
    std::os::unix::fs::symlink(program(), &link).expect("link");
    std::fs::copy(program(), &copy).expect("copy");
    for (program, name) in [
        (program(), "forebay"),
        (&*link.to_string_lossy(), "nginx"),
        (&*copy.to_string_lossy(), "a-name-longer-t"),
    ] {
        let started = site.command(program, &[]).stdin(Stdio::null()).status().expect("starts");
        assert!(started.success(), "{program}");
        let master = wait_for("a pid file", || site.pid_in_file());
        let worker = wait_for("a worker", || children(master).first().copied());
        // Until it has its title, the new process is the master's copy.
        wait_until("the worker's title", || title(worker).starts_with("nginx: worker"));
        wait_until("the worker's name", || comm(worker) == name);
        assert_eq!(comm(master), name, "{program}");
        kill(master, Signal::SIGTERM);
        wait_until("the end", || !alive(master));
        wait_until("no pid file", || site.pid_in_file().is_none());
    }
}

#[test]
fn the_worker_has_its_name_in_the_foreground_too() {
    let server = Server::start(CONF);
    let worker = server.worker();
    wait_until("its name", || comm(worker) == "forebay");
    assert_eq!(comm(server.pid()), "forebay");
}

/// Runs in namespaces of mounts and processes of its own: what it starts ends with it, and what it writes is gone.
/// `$1` is the program, `$2` a directory with `nginx.conf`, `$3` the URL.
const SCRIPT: &str = r#"
set -u
mount -t tmpfs none /run && mount -t tmpfs -o mode=755 none /var/log/nginx && mount --bind "$2" /etc/nginx &&
    mount -t tmpfs -o mode=755 none /var/lib/nginx && mount --bind "$1" /usr/sbin/nginx || exit 77
mkdir -p /run/lock
url=$3
# Containers forbid services to be started; this is no service.
if [ -e /usr/sbin/policy-rc.d ]; then printf '#!/bin/sh\nexit 0\n' >/run/policy; chmod +x /run/policy
    mount --bind /run/policy /usr/sbin/policy-rc.d; fi
# No command substitution: the first process of its namespace has to wait here, so that daemons that end do not stay zombies.
say() { eval "$2" >/run/out 2>&1; echo "$1: $?"; }
init() { /etc/init.d/nginx "$@"; }
pid() { cat /run/nginx.pid 2>/dev/null; }
until_true() { n=0; until eval "$1"; do n=$((n + 1)); [ $n -gt 1000 ] && { echo "in vain: $1"; cat /var/log/nginx/*; return 1; }; sleep 0.02; done; }
say configtest "init configtest"
say start "init start"
until_true '[ -n "$(pid)" ]'
first=$(pid)
say "start again" "init start"
say status "init status"
say "found by pidof" "pidof nginx"
curl -s -o /dev/null "$url/before"
until_true 'grep -q /before /var/log/nginx/access.log'
say logrotate "logrotate -f -s /run/state /etc/nginx/rotate"
until_true 'grep -q "reopening logs" /var/log/nginx/error.log.1'
until_true 'curl -s -o /dev/null "$url/after"; grep -q /after /var/log/nginx/access.log'
echo "old lines: $(grep -c /before /var/log/nginx/access.log.1)"
sed -i 's/one/two/' /etc/nginx/nginx.conf
say reload "init reload"
until_true '[ "$(curl -s "$url/")" = two ]' && echo "reloaded"
say upgrade "init upgrade"
until_true '[ -n "$(pid)" ] && [ "$(pid)" != $first ] && [ ! -e /proc/$first ]' && echo "upgraded"
say "restart" "init restart"
until_true '[ "$(curl -s "$url/")" = two ]' && echo "serves"
say stop "init stop"
[ -e /run/nginx.pid ] || echo "no pid file"
say "status" "init status"
"#;

#[test]
fn the_packaged_init_script_and_logrotate_lead_it() {
    let tools =
        ["/etc/init.d/nginx", "/usr/sbin/nginx", "/usr/sbin/logrotate", "/usr/bin/curl", "/var/log/nginx"];
    if let Some(tool) = tools.iter().find(|tool| !Path::new(tool).exists()) {
        return println!("skipped: there is no {tool}");
    }
    let port = free_port();
    let site = Site::new(format!(
        "pid /run/nginx.pid; error_log /var/log/nginx/error.log notice; events {{}}\nhttp {{ access_log \
         /var/log/nginx/access.log; server {{ listen 127.0.0.1:{port}; location / {{ return 200 one; }} }} }}"
    ));
    site.write(
        "rotate",
        "/var/log/nginx/*.log { rotate 2\n missingok\n create 0640 root root\n sharedscripts\n postrotate\n invoke-rc.d \
         nginx rotate >/dev/null 2>&1\n endscript\n}\n",
    );
    let output = Command::new("unshare")
        .args([
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
            SCRIPT,
            "sh",
            program(),
        ])
        .arg(site.dir())
        .arg(format!("http://127.0.0.1:{port}"))
        .env_remove("NGINX")
        .stdin(Stdio::null())
        .output();
    let Ok(output) = output else { return println!("skipped: there is no unshare") };
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(77) || text.is_empty() {
        return println!("skipped: no right to make mounts: {}", String::from_utf8_lossy(&output.stderr));
    }
    // The codes are those that the script gives for Debian's nginx.
    let expected = "configtest: 0\nstart: 0\nstart again: 0\nstatus: 0\nfound by pidof: 0\nlogrotate: 0\nold lines: \
                    1\nreload: 0\nreloaded\nupgrade: 0\nupgraded\nrestart: 0\nserves\nstop: 0\nno pid file\nstatus: 3\n";
    assert_eq!(text, expected, "{}", String::from_utf8_lossy(&output.stderr));
}
