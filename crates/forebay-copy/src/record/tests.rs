use super::*;

fn digest(files: &[(&str, &str)]) -> Digest {
    Digest::new(files.iter().map(|(path, text)| (Path::new(path), text.as_bytes())))
}

fn record(files: &[(&str, &str)]) -> Record<Compared> {
    let versions = Versions { forebay: "1".into(), nginx: Some("2".into()) };
    Record::new(Path::new("/etc/a.conf"), digest(files), versions, Compared::default())
}

#[test]
fn a_record_is_stale_for_a_reason() {
    let record = record(&[("/etc/a.conf", "a"), ("/etc/b.conf", "b")]);
    let versions = |forebay: &str, nginx: Option<&str>| Versions {
        forebay: forebay.into(),
        nginx: nginx.map(str::to_owned),
    };
    let why = |files: &[(&str, &str)], forebay: &str, nginx: Option<&str>| {
        record.staleness(&digest(files), &versions(forebay, nginx))
    };
    let same = [("/etc/a.conf", "a"), ("/etc/b.conf", "b")];
    assert_eq!(why(&same, "1", Some("2")), None);
    // After the swap nginx may have gone.
    assert_eq!(why(&same, "1", None), None);
    for (files, text) in [
        (&[("/etc/a.conf", "a"), ("/etc/b.conf", "c")][..], "/etc/b.conf has changed"),
        (&[("/etc/a.conf", "a")], "/etc/b.conf is gone"),
        (&[("/etc/a.conf", "a"), ("/etc/b.conf", "b"), ("/etc/\x1bc", "")], "/etc/\\x1bc is new"),
    ] {
        let said = why(files, "1", Some("2")).expect("stale");
        assert!(!said.contains('\x1b'), "{said:?}");
        assert_eq!(said.split(' ').skip(1).collect::<Vec<_>>(), text.split(' ').skip(1).collect::<Vec<_>>());
    }
    assert_eq!(why(&same, "1", Some("3")).as_deref(), Some("nginx was 2"));
    assert_eq!(why(&same, "2", Some("2")).as_deref(), Some("Forebay was 1"));
}

#[test]
fn many_files_have_one_digest() {
    let many: Vec<(String, String)> = (0..2000).map(|n| (format!("/etc/{n}.conf"), n.to_string())).collect();
    let of = |files: &[(String, String)]| {
        Digest::new(files.iter().map(|(path, text)| (Path::new(path), text.as_bytes())))
    };
    let (all, fewer) = (of(&many), of(&many[1..]));
    assert_eq!(all.paths().count(), 0);
    assert_eq!(all.change(&all.clone()), None);
    assert_eq!(all.change(&fewer).as_deref(), Some("a file has changed"));
}

#[test]
fn a_record_is_replaced_as_a_whole() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("a/b/record.json");
    replace(&path, b"one").expect("written");
    replace(&path, b"two").expect("written");
    assert_eq!(std::fs::read(&path).expect("there"), b"two");
    assert_eq!(std::fs::read_dir(directory.path().join("a/b")).expect("there").count(), 1, "no other file");
    assert!(replace(&path.join("below"), b"x").is_err(), "a file is no directory");
}

#[test]
fn versions_are_read() {
    assert_eq!(version_in("nginx version: nginx/1.22.1\n").as_deref(), Some("1.22.1"));
    let own = "nginx version: nginx/1.31.9 (forebay 0.2.0)\n";
    assert_eq!(version_in(own).as_deref(), Some("1.31.9 (forebay 0.2.0)"));
    assert_eq!(version_in("Apache\n"), None);
    assert_eq!(version_of(Path::new("/nowhere/nginx")), None);
}
