//! Requests that are made from a configuration: for each server, location, alternative of a pattern, condition and key.

use super::conditions::{Change, matching, of_if};
use super::paths::{MOST_FILES, instances, location_paths, pattern_paths, size, walk, without_brackets};
use super::{Ask, Content, Front, Version, vary};
use forebay_copy::patch::{View, normal};
use forebay_copy::scene::Copy;
use std::collections::HashSet;

/// Most keys of a `map` that are asked for.
pub(super) const MOST_KEYS: usize = 60;

/// Directives that pass requests on.
pub(crate) const PASSES: [&str; 6] =
    ["proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass", "memcached_pass"];

/// A server and the way to it.
struct Server {
    node: usize,
    fronts: Vec<Front>,
    hosts: Vec<String>,
    proxied: bool,
}

/// Maker of requests.
pub(crate) struct Maker<'a> {
    pub(super) view: &'a View<'a>,
    pub(super) copy: &'a Copy,
    asks: Vec<Ask>,
    /// Positions of requests that are to be varied, with whether an upstream may answer.
    varied: Vec<(usize, bool)>,
    seen: HashSet<String>,
}

/// Returns the requests for a configuration, at most this many.
pub(crate) fn requests(view: &View<'_>, copy: &Copy, most: usize) -> Vec<Ask> {
    let maker = Maker { view, copy, asks: Vec::new(), varied: Vec::new(), seen: HashSet::new() };
    maker.all(most)
}

impl Maker<'_> {
    fn all(mut self, most: usize) -> Vec<Ask> {
        self.streams();
        let Some(http) = self.view.child(None, "http") else { return self.vary(most) };
        let servers: Vec<Server> = self.view.servers(http).map(|s| self.server(s)).collect();
        for server in &servers {
            self.of_server(server);
        }
        for map in self.view.all("map") {
            self.of_map(map, &servers);
        }
        self.vary(most)
    }

    /// Adds the variations: first those of one request, then of the next, until there are enough.
    fn vary(self, most: usize) -> Vec<Ask> {
        let mut out = self.asks.clone();
        let variations: Vec<Vec<Ask>> = self
            .varied
            .iter()
            .filter_map(|(at, proxied)| Some(vary::of(self.asks.get(*at)?, *proxied)))
            .collect();
        let longest = variations.iter().map(Vec::len).max().unwrap_or(0);
        let rounds = (0..longest).flat_map(|i| variations.iter().filter_map(move |v| v.get(i)));
        out.extend(rounds.take(most.saturating_sub(self.asks.len())).cloned());
        out.truncate(most);
        out
    }

    fn server(&self, node: usize) -> Server {
        let view = self.view;
        let mut listens: Vec<Vec<String>> =
            view.children(Some(node)).filter(|n| view.name(*n) == "listen").map(|n| view.args(n)).collect();
        if listens.is_empty() {
            listens.push(vec!["80".to_owned()]);
        }
        let on = |name: &str| {
            let found = view.effective(Some(node), name).map(|n| view.args(n));
            found.is_some_and(|a| a.first().is_some_and(|v| v == "on"))
        };
        let two = on("http2");
        let mut fronts: Vec<Front> = Vec::new();
        for listen in &listens {
            let address = listen.first().map(|a| normal(a)).unwrap_or_default();
            let Some(port) = self.copy.ports.get(&address) else { continue };
            let has = |word: &str| listen.iter().any(|w| w == word);
            let (tls, http2) = (has("ssl") || on("ssl"), has("http2") || two);
            let quic = has("quic");
            let proxy_protocol = has("proxy_protocol");
            let (tls, http2) = (tls || quic, http2 && !quic);
            let front = Front { port: *port, tls, http2, proxy_protocol, quic, ..Front::default() };
            if !fronts.iter().any(|f| (f.port, f.quic) == (front.port, quic)) {
                fronts.push(front);
            }
        }
        let proxied = PASSES.iter().any(|p| view.all(p).any(|n| view.within(n, node)));
        Server { node, fronts, hosts: self.hosts(node), proxied }
    }

    /// Returns a host for each name of a server.
    pub(super) fn hosts(&self, server: usize) -> Vec<String> {
        let view = self.view;
        let names = view.children(Some(server)).filter(|n| view.name(*n) == "server_name");
        let mut hosts: Vec<String> =
            names.flat_map(|n| view.args(n)).flat_map(|name| instances(&name)).collect();
        if hosts.is_empty() {
            hosts.push("localhost".into());
        }
        hosts.truncate(40);
        hosts
    }

    fn of_server(&mut self, server: &Server) {
        let host = server.hosts.first().cloned();
        for (i, front) in server.fronts.iter().enumerate() {
            let base = Ask {
                front: *front,
                version: if front.quic { Version::Http3 } else { Version::Http11 },
                method: "GET".into(),
                target: "/".into(),
                host: host.clone(),
                aim: Some(server.node),
                lane: server.node,
                ..Ask::default()
            };
            for name in server.hosts.iter().skip(1) {
                self.add(Ask { host: Some(name.clone()), ..base.clone() });
            }
            if i > 0
                && server
                    .fronts
                    .iter()
                    .take(i)
                    .any(|f| (f.tls, f.http2, f.quic) == (front.tls, front.http2, front.quic))
            {
                // Another address of the same kind.
                self.add(base);
                continue;
            }
            self.of_front(server, &base);
        }
    }

    fn of_front(&mut self, server: &Server, base: &Ask) {
        if let Some(at) = self.add(base.clone()) {
            self.varied.push((at, server.proxied));
        }
        for path in
            ["/nothing-here", "/index.html", "/.hidden", "/a/b/c.php?x=1", "/favicon.ico", "/robots.txt"]
        {
            self.add(Ask { target: path.into(), ..base.clone() });
        }
        let long = Content::Length(vec![b'z'; (1 << 20) + 1]);
        self.add(Ask { method: "POST".into(), content: Some(long), ..base.clone() });
        self.add(Ask { fields: vec![("X-Huge".into(), "h".repeat(40_000))], ..base.clone() });
        self.add(Ask { target: format!("/{}", "p".repeat(9000)), ..base.clone() });
        for (path, _) in self.files(server.node) {
            if let Some(at) = self.add(Ask { target: path, ..base.clone() }) {
                self.varied.push((at, server.proxied));
            }
        }
        self.inner(server, base, server.node, std::slice::from_ref(&base.target));
    }

    /// Adds the requests for what is in a block. `paths`: those that lead to it.
    fn inner(&mut self, server: &Server, base: &Ask, block: usize, paths: &[String]) {
        let children: Vec<usize> = self.view.children(Some(block)).collect();
        for n in children {
            let args = self.view.args(n);
            match self.view.name(n) {
                "location" => {
                    let paths = location_paths(&args, paths);
                    self.location(server, base, n, &paths);
                }
                "if" => self.condition(base, n, paths, &args),
                "rewrite" => {
                    if let Some(pattern) = args.first() {
                        let aim = Some(block);
                        for path in pattern_paths(pattern, false, paths) {
                            self.add(Ask { target: path, aim, lane: block, ..base.clone() });
                        }
                    }
                }
                "client_max_body_size" => self.body_sizes(base, block, paths, &args),
                "valid_referers" => self.referers(base, block, paths, &args),
                "limit_except" => {
                    for method in ["GET", "POST", "PUT", "DELETE"] {
                        self.add_at(base, n, paths, &[Change::Method(method.into())]);
                    }
                }
                _ => {}
            }
        }
    }

    fn location(&mut self, server: &Server, base: &Ask, location: usize, paths: &[String]) {
        for (i, path) in paths.iter().enumerate() {
            let ask = Ask { target: path.clone(), aim: Some(location), lane: location, ..base.clone() };
            if let Some(at) = self.add(ask)
                && i < 2
            {
                self.varied.push((at, server.proxied));
            }
        }
        let base = Ask { lane: location, ..base.clone() };
        self.inner(server, &base, location, paths);
    }

    fn condition(&mut self, base: &Ask, n: usize, paths: &[String], args: &[String]) {
        let words = without_brackets(args);
        for change in of_if(&words) {
            self.add_at(base, n, paths, &[change]);
        }
        // A variable that `set` or a `map` makes is reached by their own requests.
        let base = Ask { aim: Some(n), ..base.clone() };
        for pass in PASSES {
            if let (Some(_), Some(path)) = (self.view.child(Some(n), pass), paths.first()) {
                self.add(Ask { target: path.clone(), ..base.clone() });
            }
        }
    }

    /// Adds a request with changes for each of the first paths.
    fn add_at(&mut self, base: &Ask, aim: usize, paths: &[String], changes: &[Change]) {
        for path in paths.iter().take(2) {
            let mut ask = Ask { target: path.clone(), aim: Some(aim), ..base.clone() };
            changes.iter().for_each(|change| change.apply(&mut ask));
            self.add(ask);
        }
    }

    fn body_sizes(&mut self, base: &Ask, block: usize, paths: &[String], args: &[String]) {
        let limit = args.first().and_then(|a| size(a)).filter(|n| *n > 0 && *n <= 2 << 20);
        for (limit, path) in limit.into_iter().zip(paths) {
            for length in [limit, limit + 1] {
                let content = Some(Content::Length(vec![b'y'; length]));
                let method = "POST".into();
                self.add(Ask { method, content, target: path.clone(), aim: Some(block), ..base.clone() });
            }
        }
    }

    fn referers(&mut self, base: &Ask, block: usize, paths: &[String], args: &[String]) {
        let host = base.host.clone().unwrap_or_default();
        let named = args
            .iter()
            .map(|a| format!("http://{}/x", a.trim_start_matches("~").replace('*', "a").replace('\\', "")));
        let all = named.chain([format!("http://{host}/"), "https://evil.example/".into(), "bare".into()]);
        for referer in all.collect::<Vec<_>>() {
            self.add_at(base, block, paths, &[Change::Field(("Referer".into(), referer))]);
        }
    }

    /// Adds requests for the keys of a `map`, at places where its variable is used.
    fn of_map(&mut self, map: usize, servers: &[Server]) {
        let args = self.view.args(map);
        let [source, target] = args.as_slice() else { return };
        let Some(block) = self.view.nodes.get(map).and_then(|n| n.d.block.as_ref()) else { return };
        let keys = block.iter().map(|d| d.name.as_str().into_owned());
        let known = ["default", "hostnames", "volatile", "include"];
        let keys: Vec<String> = keys.filter(|k| !known.contains(&k.as_str())).take(MOST_KEYS).collect();
        let bases = self.users(target, servers);
        for key in keys {
            for change in matching(source, &key) {
                for base in &bases {
                    let mut ask = base.clone();
                    change.apply(&mut ask);
                    self.add(ask);
                }
            }
        }
    }

    /// Returns a request that led to each of the first blocks that use a variable, or to the first servers.
    fn users(&self, variable: &str, servers: &[Server]) -> Vec<Ask> {
        let name = variable.trim_start_matches('$');
        let uses = |n: usize| {
            let args = self.view.args(n);
            args.iter().any(|a| a.contains(&format!("${name}")) || a.contains(&format!("${{{name}}}")))
        };
        let mut blocks = Vec::new();
        for n in (0..self.view.nodes.len()).filter(|n| self.view.name(*n) != "map" && uses(*n)) {
            let mut at = self.view.nodes.get(n).and_then(|n| n.parent);
            while at.is_some_and(|b| !matches!(self.view.name(b), "location" | "server")) {
                at = at.and_then(|b| self.view.nodes.get(b)?.parent);
            }
            blocks.extend(at.filter(|b| !blocks.contains(b)));
        }
        let led = |block: &usize| self.asks.iter().find(|a| a.aim == Some(*block)).cloned();
        let found: Vec<Ask> = blocks.iter().filter_map(led).take(8).collect();
        if !found.is_empty() {
            return found;
        }
        servers.iter().filter_map(|s| led(&s.node)).take(3).collect()
    }

    /// Adds a request; its position, unless it is there already.
    pub(super) fn add(&mut self, ask: Ask) -> Option<usize> {
        let key = format!(
            "{:?} {} {} {:?} {:?} {:?} {}",
            ask.front,
            ask.method,
            ask.target,
            ask.host,
            ask.fields,
            ask.content.is_some(),
            ask.wish
        );
        if ask.target.is_empty() || !self.seen.insert(key) {
            return None;
        }
        self.asks.push(ask);
        Some(self.asks.len() - 1)
    }

    /// Returns files below the roots of a server, by the paths at which they are.
    fn files(&self, server: usize) -> Vec<(String, u64)> {
        let view = self.view;
        let mut out = Vec::new();
        let places = view.all("root").chain(view.all("alias"));
        let here: Vec<usize> = places.filter(|n| view.within(*n, server)).collect();
        let inherited = view.effective(Some(server), "root").filter(|n| !here.contains(n));
        for n in here.into_iter().chain(inherited).take(10) {
            let Some(dir) = view.args(n).first().filter(|d| !d.contains('$')).cloned() else { continue };
            let dir = self.copy.place.prefix.join(dir);
            let location = view.nodes.get(n).and_then(|n| n.parent).filter(|l| view.name(*l) == "location");
            let args = location.map(|l| view.args(l)).unwrap_or_default();
            let at = match (view.name(n), args.as_slice()) {
                ("alias", [path]) if path.starts_with('/') => path.clone(),
                ("alias", _) => continue,
                _ => "/".to_owned(),
            };
            let mut found = Vec::new();
            walk(&dir, &at, 0, &mut found);
            out.extend(found.into_iter().take(MOST_FILES));
        }
        out
    }
}
