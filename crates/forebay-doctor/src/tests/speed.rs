//! Work that an examination takes, as a number of looks at directives: times would depend on the machine and what else it does.

use super::*;

/// Returns a configuration with all faults of the examples, each as often as is said.
fn with_faults(times: usize) -> String {
    let is_part = |text: &&String| {
        !["events", "http", "stream"].iter().any(|b| text.split_whitespace().any(|w| w == *b))
    };
    let examples = rules().filter_map(|rule| rule.example.as_ref()).flat_map(|e| [&e.bad, &e.good]);
    let parts: Vec<&str> = examples.filter(is_part).map(String::as_str).collect();
    let mut all = String::from("worker_processes auto; events { worker_connections 60000; }\nhttp {\n");
    for part in std::iter::repeat_n(&parts, times).flatten() {
        all.push_str(part);
        all.push('\n');
    }
    all.push('}');
    all
}

/// Returns a configuration with servers as a host with many sites has them.
fn of_sites(count: usize) -> String {
    let site = |n: usize| {
        format!(
            "server {{ listen 8080; listen 44{n} ssl; server_name s{n}.example; root /srv/s{n}; access_log /srv/s{n}.log;
              set $n{n} $host; location / {{ try_files $uri $uri/ /index.php; }}
              location /app/ {{ proxy_pass http://u{n}; proxy_set_header Host $host; }}
              location ~ \\.php{n}$ {{ fastcgi_pass 127.0.0.1:9001; }} }}
              upstream u{n} {{ server 10.0.0.1; keepalive 8; }}
              map $uri $m{n} {{ /a 1; }} limit_req_zone $binary_remote_addr zone=z{n}:1m rate=1r/s;\n"
        )
    };
    format!("events {{}} http {{ {} }}", (0..count).map(site).collect::<String>())
}

/// Returns the number of directives, and of looks at them.
fn work(conf: &str, target: Target) -> (usize, usize) {
    let mut files = Files::recorded([("/etc/n.conf", conf)]);
    let parsed = forebay_conf::parse::parse(Path::new("/etc/n.conf"), "", Path::new("/etc"), &mut files);
    let scene = Scene::new(&parsed.tree);
    assert!(!examine(&scene, &Host::default(), target).is_empty());
    (scene.nodes.len(), scene.looks.get())
}

#[test]
fn the_work_grows_with_the_directives() {
    for target in [Target::Forebay, nginx(), Target::Nginx(NginxVersion::parse("1.18.0"))] {
        for make in [with_faults, of_sites] {
            let few = if make(1).len() > 4096 { 1 } else { 50 };
            let ((nodes, looks), (more_nodes, more_looks)) =
                (work(&make(few), target), work(&make(4 * few), target));
            println!("{target}: {looks} looks at {nodes} directives, {more_looks} at {more_nodes}");
            assert!(more_nodes > 3 * nodes, "{nodes} {more_nodes}");
            // Four times the directives, and a little where hundreds of faults of one file meet.
            assert!(more_looks < 6 * looks, "{looks} looks at {nodes}, {more_looks} at {more_nodes}");
            assert!(more_looks < 400 * more_nodes, "{more_looks} looks at {more_nodes}");
        }
    }
}
