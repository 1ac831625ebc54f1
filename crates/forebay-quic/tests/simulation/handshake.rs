//! Connections that begin and end.

use crate::app::{Load, Work};
use crate::network::Faults;
use crate::node::{Host, Node, config};
use crate::random;
use crate::world::World;
use forebay_quic::id::Side;
use forebay_quic::version::Version;
use std::time::Duration;

#[test]
fn a_client_connects_with_both_versions() {
    for version in [Version::V1, Version::V2] {
        random::seed_shared(1);
        let load = Load { streams: [3, 2], ..Load::default() };
        let work = Work { seed: 1, loads: [load.clone(), load], most: 100_000 };
        let mut client = Node::new(Side::Client, config(), work.clone());
        let mut server = Node::new(Side::Server, config(), work);
        client.version = version;
        let mut world = World::new(1, Faults::default(), &mut client, &mut server);
        let (to, now) = (world.server.addr(), world.now);
        world.client.connect(now, to);
        let done = world.run(Duration::from_secs(10), |world| {
            let hosts: [&dyn Host; 2] = [&*world.client, &*world.server];
            hosts.iter().all(|host| host.apps().iter().any(|app| app.is_done()))
        });
        assert!(done, "{}", world.describe());
        assert_eq!(world.network.dropped, 0);
    }
}
