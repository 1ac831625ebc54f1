//! Sessions of the stream block.

use super::from_conf::{MOST_KEYS, Maker};
use super::paths::instances;
use super::{Ask, Content, Front};
use forebay_copy::patch::normal;

impl Maker<'_> {
    /// Adds sessions of the stream block: each is a request of HTTP, which the upstream answers, or a datagram.
    pub(super) fn streams(&mut self) {
        let Some(stream) = self.view.child(None, "stream") else { return };
        let servers: Vec<usize> =
            self.view.children(Some(stream)).filter(|n| self.view.name(*n) == "server").collect();
        for server in servers {
            let listens: Vec<Vec<String>> = self
                .view
                .children(Some(server))
                .filter(|n| self.view.name(*n) == "listen")
                .map(|n| self.view.args(n))
                .collect();
            for listen in listens {
                self.stream_listen(server, &listen);
            }
        }
    }

    fn stream_listen(&mut self, server: usize, listen: &[String]) {
        let address = listen.first().map(|a| normal(a)).unwrap_or_default();
        let Some(port) = self.copy.ports.get(&address).copied() else { return };
        let has = |word: &str| listen.iter().any(|w| w == word);
        let (tls, udp, proxy_protocol) = (has("ssl"), has("udp"), has("proxy_protocol"));
        let front = Front { port, tls, udp, proxy_protocol, stream: true, ..Front::default() };
        let base = Ask { front, method: "GET".into(), aim: Some(server), lane: server, ..Ask::default() };
        let preread = self.view.effective(Some(server), "ssl_preread").map(|n| self.view.args(n));
        if preread.is_some_and(|a| a.first().is_some_and(|v| v == "on")) {
            let front = Front { tls: true, ..front };
            for host in self.preread_names() {
                self.add(Ask { front, host: Some(host), target: "/".into(), ..base.clone() });
            }
        }
        for host in self.hosts(server) {
            for target in ["/", "/stream?x=1"] {
                let fields = vec![("Connection".to_owned(), "close".to_owned())];
                self.add(Ask { target: target.into(), host: Some(host.clone()), fields, ..base.clone() });
            }
            for (length, wish) in [(0, "chunked"), (20_000, ""), (300_000, "gzip")] {
                let content = Some(Content::Length(vec![b's'; if udp { length / 300 } else { length }]));
                let (target, host) = (format!("/stream?length={length}"), Some(host.clone()));
                self.add(Ask { method: "POST".into(), target, host, content, wish, ..base.clone() });
            }
        }
    }

    /// Returns the names that maps look for in handshakes.
    fn preread_names(&self) -> Vec<String> {
        let maps = self
            .view
            .all("map")
            .filter(|m| self.view.args(*m).first().is_some_and(|v| v.contains("ssl_preread_server_name")));
        let blocks = maps.filter_map(|m| self.view.nodes.get(m)?.d.block.as_ref());
        let keys = blocks.flat_map(|b| b.iter().map(|d| d.name.as_str().into_owned()).collect::<Vec<_>>());
        let known = ["default", "hostnames", "volatile", "include"];
        let names = keys.filter(|k| !known.contains(&k.as_str())).flat_map(|k| instances(&k));
        names.chain(["unknown.example".to_owned()]).take(MOST_KEYS).collect()
    }
}
