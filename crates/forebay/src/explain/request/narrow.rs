//! Leaves out the servers that a request cannot reach, before a configuration is built: most of the time of a large configuration goes
//! into them.

use forebay_conf::tree::{Block, Directive, Tree};
use std::collections::HashMap;

/// Servers with one `listen` line that stay, whatever their names. The first may be the default server. With the second the name of the
/// first counts: nginx does not look at the names of an only server.
const BESIDE: u8 = 2;

/// Takes servers out of the http block which are no default server, cannot have one of the names, and have no `listen` line of their
/// own. What is left answers a request for these names as the whole does.
pub(super) fn narrow(tree: &mut Tree, names: &[String]) {
    let mut kept = Kept { names, listens: HashMap::new() };
    for directive in &mut tree.root.items {
        if directive.name.text == b"http"
            && let Some(http) = &mut directive.block
        {
            kept.servers(http);
        }
    }
}

struct Kept<'n> {
    names: &'n [String],
    /// Numbers of servers that stay, by their `listen` lines.
    listens: HashMap<Vec<Vec<u8>>, u8>,
}

impl Kept<'_> {
    fn servers(&mut self, block: &mut Block) {
        block.items.retain_mut(|directive| match (directive.name.text.as_slice(), &mut directive.block) {
            (b"include", Some(included)) => {
                self.servers(included);
                true
            }
            (b"server", Some(server)) => self.server(server),
            _ => true,
        });
    }

    /// Tells whether a server stays.
    fn server(&mut self, server: &Block) -> bool {
        let words = |d: &Directive| d.args.iter().map(|word| word.text.clone()).collect::<Vec<_>>();
        let named = |name: &'static [u8]| server.iter().filter(move |d| d.name.text == name);
        let mut listens: Vec<Vec<Vec<u8>>> = named(b"listen").map(words).collect();
        if listens.is_empty() {
            listens.push(Vec::new());
        }
        let is_default =
            |listen: &[Vec<u8>]| listen.iter().any(|w| w == b"default_server" || w == b"default");
        let is_new = |listen: &Vec<Vec<u8>>| self.listens.get(listen).is_none_or(|count| *count < BESIDE);
        let stays = listens.iter().any(|listen| is_default(listen) || is_new(listen))
            || named(b"server_name").flat_map(|d| &d.args).any(|name| self.may_be(&name.text))
            || named(b"server_name").next().is_none();
        if stays {
            for listen in listens {
                let count = self.listens.entry(listen).or_default();
                *count = count.saturating_add(1);
            }
        }
        stays
    }

    /// Tells whether a name may be one of the names that are asked for.
    fn may_be(&self, name: &[u8]) -> bool {
        let is_literal =
            !name.is_empty() && !name.starts_with(b".") && !name.iter().any(|b| b"*~$".contains(b));
        !is_literal || self.names.iter().any(|n| n.as_bytes().eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_conf::files::Files;
    use std::path::Path;

    /// Returns the second words of the servers that stay for a name.
    fn left(conf: &str, name: &str) -> Vec<String> {
        let path = Path::new("/nginx.conf");
        let mut files = Files::recorded([(path.to_owned(), conf.as_bytes().to_vec())]);
        let mut tree = forebay_conf::parse::parse(path, "", Path::new("/"), &mut files).tree;
        narrow(&mut tree, &[name.to_owned()]);
        let http = tree.root.iter().find(|d| d.name.text == b"http").and_then(|d| d.block.as_ref());
        let servers = http.into_iter().flat_map(Block::iter).filter_map(|d| d.block.as_ref());
        let root = |server: &Block| {
            let root = server.iter().find(|d| d.name.text == b"root").expect("root");
            root.args[0].as_str().into_owned()
        };
        servers.map(root).collect()
    }

    #[test]
    fn servers_that_cannot_answer_are_left_out() {
        let conf = "http { server { listen 80; server_name a.test; root a; } server { listen 80; server_name b.test; root b; }
            server { listen 80; server_name c.test; root c; } server { listen 80; server_name D.test e.test; root d; }
            server { listen 80 backlog=9; server_name f.test; root f; } server { listen 80; server_name ~^g; root g; }
            server { listen 80; server_name *.h.test; root h; } server { listen 80; server_name .i.test; root i; }
            server { listen 80; server_name j.test; listen 81; root j; } server { listen 80; root k; }
            server { listen 80; server_name \"\"; root l; } server { listen 80; server_name m.test $hostname; root m; }
            server { listen 80; server_name n.test; root n; } server { listen 80 default_server; server_name o.test; root o; } }";
        let always = ["a", "b", "f", "g", "h", "i", "j", "k", "l", "m", "o"];
        assert_eq!(left(conf, "nobody.test"), always);
        assert_eq!(left(conf, "d.test"), ["a", "b", "d", "f", "g", "h", "i", "j", "k", "l", "m", "o"]);
        assert_eq!(left(conf, "N.TEST").len(), always.len() + 1);
    }

    #[test]
    fn servers_without_a_listener_listen_at_the_same_address() {
        let servers: String =
            ["a", "b", "c", "d"].iter().map(|n| format!("server {{ server_name {n}; root {n}; }}")).collect();
        assert_eq!(left(&format!("http {{ {servers} }}"), "d"), ["a", "b", "d"]);
    }
}
