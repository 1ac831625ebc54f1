//! Work for configurations with many servers, counted in allocations: it grows with their number and not faster, and a change of
//! one file costs little of it.
#![allow(missing_docs)]

use forebay_conf::files::Files;
use forebay_core::config::{Config, Environment, Memory};
use forebay_modules::FRONT_ENDS;
use forebay_sys::alloc::CountingAllocator;

#[path = "../../forebay/tests/harness/many.rs"]
mod many;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn environment() -> Environment {
    Environment {
        prefix: "/many/".into(),
        conf_path: "/many/nginx.conf".into(),
        globals: String::new(),
        error_log: Some("stderr".into()),
        access_log: "access.log".into(),
    }
}

/// Files with so many servers, of which one has another time limit.
fn files(servers: usize, changed: usize, seconds: usize) -> Files {
    let site = |n: usize| {
        let text = many::site(n, 8080, &many::backend(n));
        let seconds = format!("proxy_read_timeout {}s;", if n == changed { seconds } else { 60 });
        (format!("/many/sites/{}", many::file_name(n)), text.replace("proxy_read_timeout 60s;", &seconds))
    };
    let main = many::main("/many".as_ref(), 8080, "include sites/*.conf;");
    Files::recorded((0..servers).map(site).chain([("/many/nginx.conf".to_owned(), main)]))
}

/// Returns the number of allocations, and the bytes that are in use.
fn counts() -> (i64, i64) {
    let counts = CountingAllocator::counts();
    (i64::try_from(counts.allocations).expect("a number"), counts.live())
}

fn load(memory: &mut Memory, files: Files) -> Config {
    let mut files = memory.files(files);
    let (config, warnings) = memory.load(&environment(), &mut files, FRONT_ENDS).expect("a configuration");
    assert!(warnings.is_empty());
    memory.accept(files);
    config
}

/// Counts the allocations of loading so many servers, and of loading them again after one has changed.
fn work(servers: usize) -> (i64, i64) {
    let mut memory = Memory::serving();
    let first = files(servers, 7, 60);
    let before = counts().0;
    let config = load(&mut memory, first);
    let between = counts().0;
    let second = files(servers, 7, 61);
    let second = memory.files(second);
    let again = counts().0;
    let changed = load(&mut memory, second);
    let after = counts().0;
    drop((config, changed));
    (between - before, after - again)
}

#[test]
fn work_grows_with_the_number_of_servers_and_not_faster() {
    // What all configurations of a process share is there from the first on.
    work(10);
    let (few, few_again) = work(200);
    let (more, more_again) = work(400);
    let (most, most_again) = work(800);
    println!("whole {few} {more} {most}, one change {few_again} {more_again} {most_again}");
    let linear = |a: i64, b: i64, c: i64| (c - b) as f64 / (b - a) as f64;
    let ratio = linear(few, more, most);
    assert!((1.9..2.1).contains(&ratio), "{ratio}: {few} {more} {most}");
    let ratio = linear(few_again, more_again, most_again);
    assert!((1.7..2.3).contains(&ratio), "{ratio}: {few_again} {more_again} {most_again}");
    let (whole, again) = ((most - more) / 400, (most_again - more_again) / 400);
    assert!(
        again * 10 < whole,
        "{again} allocations for each server that stays, {whole} for each that is read"
    );
}

#[test]
fn changes_leave_nothing_behind() {
    const SERVERS: usize = 100;
    for mut memory in [Memory::serving(), Memory::checking()] {
        let mut config = load(&mut memory, files(SERVERS, 0, 60));
        let first = counts().1;
        let mut changes = |range: std::ops::Range<usize>| {
            for change in range {
                config = load(&mut memory, files(SERVERS, change % SERVERS, 61 + change));
            }
            counts().1
        };
        // Servers that were read one by one share no settings with the others, until all are read again.
        let all = changes(0..SERVERS);
        let later = changes(SERVERS..4 * SERVERS);
        println!("{first} bytes, {all} when all have been read one by one, {later} later");
        assert!(all < 2 * first && later * 100 < all * 102, "{first} {all} {later}");
    }
}
