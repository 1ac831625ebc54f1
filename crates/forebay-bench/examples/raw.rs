use forebay_bench::{engine, load::*, url::Url};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let p = if a[4] == "h2" { Protocol::Http2 } else { Protocol::Http1 };
    let mut l = Load::new(&[Wanted::get(Url::parse(&a[1]).unwrap())], p, Order::Mixed, 1).unwrap();
    l.connections = a[2].parse().unwrap();
    l.stop = Stop::After(std::time::Duration::from_secs(a[3].parse().unwrap()));
    l.parallel = a.get(5).map_or(1, |x| x.parse().unwrap());
    let o = engine::run(&l, |_| true).unwrap();
    let t = &o.threads[0];
    println!(
        "{:.0} r/s ok {} err {:?} p50 {} p99 {} cpu/req {:.2}us {:?} {:?}",
        o.rate(),
        o.record.ok,
        o.record.failures,
        o.record.latency.quantile(0.5) / 1000,
        o.record.latency.quantile(0.99) / 1000,
        o.client_cpu_per_request() / 1e3,
        t,
        o.first_error
    );
}
