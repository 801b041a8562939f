use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::super::scratch::Scratch;
use super::super::{Config, ConfigFlags, resolve_config};
use super::*;

fn env(scratch: &Scratch, more: &[(&str, &str)]) -> ProcessEnv {
    let home = scratch.dir("home").display().to_string();
    let all = [("HOME", home.as_str())].into_iter().chain(more.iter().copied());
    ProcessEnv::new(
        all.map(|(name, value)| (name.to_owned(), value.to_owned())),
        scratch.dir("project"),
    )
}

/// A config with one tool that wants `${VAR}` and `${secret:DB}`.
fn config(scratch: &Scratch, more: &[(&str, &str)], lines: &str) -> Result<Config> {
    let tool = "[mcp.query]\ncommand = 'true'\ndescription = 'x'\nenv = { A = '${VAR}', B = '${secret:DB}' }\n";
    let file = scratch.file("etc/config.toml", &format!("{lines}\n{tool}"));
    let flags = ConfigFlags {
        config: Some(file),
        root: Some(scratch.dir("root")),
        ..ConfigFlags::default()
    };
    resolve_config(&flags, &env(scratch, more))
}

fn store(scratch: &Scratch) -> SecretStore {
    SecretStore::new(&scratch.dir("root"), None)
}

fn variable() -> SecretRef {
    SecretRef::Variable("VAR".into())
}

fn stored() -> SecretRef {
    SecretRef::Stored("DB".into())
}

fn value(config: &Config, wanted: &SecretRef) -> String {
    String::from_utf8(config.secrets.get(wanted).unwrap().expose().to_vec()).unwrap()
}

fn why(config: &Config, wanted: &SecretRef) -> (Kind, &'static str) {
    let error = config.secrets.get(wanted).unwrap_err();
    (error.kind(), error.reason_name().unwrap_or_default())
}

fn private(scratch: &Scratch, name: &str, text: &str) -> PathBuf {
    let path = scratch.file(name, text);
    chmod(&path, 0o600);
    path
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn the_env_file_comes_before_the_environment_and_the_store_is_another_world() {
    let scratch = Scratch::new();
    let environment = [("VAR", "from-the-environment"), ("DB", "from-the-environment")];
    let plain = config(&scratch, &environment, "").unwrap();
    assert_eq!(value(&plain, &variable()), "from-the-environment");
    assert_eq!(why(&plain, &stored()), (Kind::Unauthenticated, "missing_secret"));

    private(&scratch, "etc/env", "VAR=from-the-file\nDB=from-the-file\n");
    store(&scratch).put_secret("DB", &Secret::new("from-the-store"), None).unwrap();
    let all = config(&scratch, &environment, "secrets.env_file = 'env'").unwrap();
    assert_eq!(
        (value(&all, &variable()), value(&all, &stored())),
        ("from-the-file".into(), "from-the-store".into())
    );
    for file in ["etc/env", "root/secrets/store", "root/secrets/key"] {
        assert!(
            all.secrets.watched_files().contains(&scratch.path().join(file)),
            "{file}: {:?}",
            all.secrets.watched_files()
        );
    }
    assert!(all.private_paths.contains(&scratch.path().join("etc/env")));
    let shown = format!("{all:?}");
    assert!(!shown.contains("from-the-"), "{shown}");
    assert_eq!(
        known_secrets::redact_str("from-the-file from-the-store"),
        "[secret:VAR] [secret:DB]"
    );
}

#[test]
fn what_is_missing_or_expired_is_named_and_nothing_else_is_told() {
    let scratch = Scratch::new();
    let none = config(&scratch, &[], "").unwrap();
    for (wanted, name) in [(variable(), "VAR"), (stored(), "DB")] {
        let error = none.secrets.get(&wanted).unwrap_err();
        assert_eq!(
            (error.kind(), error.reason_name()),
            (Kind::Unauthenticated, Some("missing_secret"))
        );
        assert!(
            error.message().contains(name) && error.hint_text().unwrap().contains(name),
            "{error}"
        );
    }
    let past = unix_seconds() - 1;
    store(&scratch).put_secret("DB", &Secret::new("old-value-of-it"), Some(past)).unwrap();
    assert_eq!(
        why(&config(&scratch, &[], "").unwrap(), &stored()),
        (Kind::Unauthenticated, "expired_secret")
    );
    store(&scratch)
        .put_secret("DB", &Secret::new("new-value-of-it"), Some(unix_seconds() + 1000))
        .unwrap();
    assert_eq!(value(&config(&scratch, &[], "").unwrap(), &stored()), "new-value-of-it");
}

#[test]
fn what_is_too_short_to_be_searched_for_is_said() {
    let scratch = Scratch::new();
    store(&scratch).put_secret("DB", &Secret::new("short"), None).unwrap();
    let config = config(&scratch, &[("VAR", "long-enough-for-it")], "").unwrap();
    let warnings = config.secrets.list_warnings();
    assert!(
        warnings.len() == 1 && warnings[0].contains("`DB` is shorter than 8 bytes"),
        "{warnings:?}"
    );
    assert!(!warnings[0].contains("short ") && known_secrets::redact_str("short") == "short");
}

#[test]
fn only_a_public_variable_may_be_short_without_a_warning() {
    let scratch = Scratch::new();
    let scratch_env = env(&scratch, &[("LC_TIME", "C"), ("TERM", "vt"), ("PIN", "1234")]);
    let sources =
        SecretSources { env: &scratch_env, env_file: None, store: store(&scratch), keyring: None };
    // A stored secret is one whatever its name.
    store(&scratch).put_secret("LC_KEY", &Secret::new("short"), None).unwrap();
    let refs = ["LC_TIME", "TERM", "PIN"].map(|name| SecretRef::Variable(name.to_owned()));
    let refs = refs.into_iter().chain([SecretRef::Stored("LC_KEY".to_owned())]);
    let refs: Vec<SecretRef> = refs.collect();
    let warnings = SecretValues::look_up_all(refs.iter(), &sources).list_warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("`PIN`") && warnings[1].contains("`LC_KEY`"), "{warnings:?}");
}

#[test]
fn an_env_file_that_cannot_be_trusted_is_not_passed_over() {
    let scratch = Scratch::new();
    let environment = [("VAR", "from-the-environment")];
    let named = "secrets.env_file = 'env'";
    let expect_refused = |what: &str| {
        let config = config(&scratch, &environment, named).unwrap();
        assert_eq!(why(&config, &variable()), (Kind::Unauthenticated, "secret_store"), "{what}");
        let error = config.secrets.get(&variable()).unwrap_err();
        assert!(
            !format!("{error:?}{:?}", error.hint_text()).contains(scratch.path().to_str().unwrap()),
            "{error:?}"
        );
    };
    expect_refused("not there");
    let path = private(&scratch, "etc/env", "VAR=from-the-file\n");
    for loose in [0o640, 0o604, 0o620, 0o666] {
        chmod(&path, loose);
        expect_refused("open to others");
    }
    chmod(&path, 0o600);
    assert_eq!(
        value(&config(&scratch, &environment, named).unwrap(), &variable()),
        "from-the-file"
    );
    private(&scratch, "etc/env", "VAR=from-the-file\nnonsense\n");
    expect_refused("a line that is none");
    private(&scratch, "etc/env", &"#".repeat((1 << 20) + 1));
    expect_refused("too large");
    std::fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    expect_refused("a pipe");
}

#[test]
fn an_env_file_or_a_key_inside_the_workspace_is_refused() {
    let scratch = Scratch::new();
    let inside = private(&scratch, "project/.env", "VAR=from-the-file\n");
    let error = config(&scratch, &[], "secrets.env_file = '../project/.env'").unwrap_err();
    assert_eq!(error.reason_name(), Some("bad_workspace"), "{error:?}");
    // A link that lies outside and leads inside, and one that lies inside and leads outside.
    symlink(&inside, scratch.path().join("etc/link")).unwrap();
    assert!(config(&scratch, &[], "secrets.env_file = 'link'").is_err());
    let outside = private(&scratch, "etc/env", "VAR=from-the-file\n");
    symlink(&outside, scratch.path().join("project/link")).unwrap();
    assert!(config(&scratch, &[], "secrets.env_file = '../project/link'").is_err());
    let key = scratch.path().join("project/key").display().to_string();
    assert!(config(&scratch, &[("RINGFENCE_SECRETS_KEY_FILE", &key)], "").is_err());
}

#[test]
fn the_store_keeps_values_sealed_and_to_its_owner() {
    let scratch = Scratch::new();
    let store = store(&scratch);
    assert!(store.read_all().unwrap().is_empty() && !store.remove("DB").unwrap());
    assert!(!scratch.path().join("root/secrets").exists(), "reading makes nothing");
    let binary = Secret::new([0xff, 0xfe, b'\n', 1, 2, 3, 4, 5]);
    store.put_secret("DB", &Secret::new("hunter2hunter2"), Some(99)).unwrap();
    store.put_secret("BINARY", &binary, None).unwrap();
    let items = store.read_all().unwrap();
    assert_eq!(items["DB"].value.expose(), b"hunter2hunter2");
    assert_eq!(
        (items["DB"].expires_at, items["BINARY"].value.expose()),
        (Some(99), binary.expose())
    );
    assert!(unix_seconds() - items["DB"].set_at < 60);
    let dir = scratch.path().join("root/secrets");
    assert_eq!(mode(&dir), 0o700);
    for file in ["store", "key", "lock"] {
        assert_eq!(mode(&dir.join(file)), 0o600, "{file}");
    }
    let text = std::fs::read_to_string(dir.join("store")).unwrap();
    // Neither the value, nor its base64, nor its name.
    for shown in ["hunter2", "aHVudGVyMmh1bnRlcjI", "BINARY"] {
        assert!(!text.contains(shown), "{text}");
    }
    assert!(store.remove("DB").unwrap() && !store.remove("DB").unwrap());
    assert_eq!(store.read_all().unwrap().keys().collect::<Vec<_>>(), ["BINARY"]);
}

#[test]
fn what_cannot_be_a_secret_is_not_stored() {
    let scratch = Scratch::new();
    let store = store(&scratch);
    for (name, value) in [("", "x"), ("a-b", "x"), ("1A", "x"), ("A", ""), ("A", "a\0b")] {
        assert_eq!(
            store.put_secret(name, &Secret::new(value), None).unwrap_err().kind(),
            Kind::InvalidArguments,
            "{name}"
        );
    }
    store.put_secret("A", &Secret::new(vec![b'x'; MAX_VALUE_BYTES]), None).unwrap();
    let large = Secret::new(vec![b'x'; MAX_VALUE_BYTES + 1]);
    assert_eq!(store.put_secret("A", &large, None).unwrap_err().kind(), Kind::TooLarge);
    let mut last = Ok(());
    for at in 0..20 {
        last = store.put_secret(&format!("N{at}"), &Secret::new(vec![b'x'; MAX_VALUE_BYTES]), None);
        if last.is_err() {
            break;
        }
    }
    assert_eq!(last.unwrap_err().kind(), Kind::TooLarge);
    assert!(store.read_all().unwrap().contains_key("A"));
}

/// What is wrong with a store, and that it is as it was after an attempt to write to it.
fn expect_untouched(scratch: &Scratch, what: &str) {
    let store = store(scratch);
    let file = scratch.path().join("root/secrets/store");
    let before = std::fs::read(&file).ok();
    for error in [
        store.read_all().unwrap_err(),
        store.put_secret("NEW", &Secret::new("new-value"), None).unwrap_err(),
        store.remove("DB").unwrap_err(),
    ] {
        assert_eq!(error.reason_name(), Some("secret_store"), "{what}: {error:?}");
        assert!(error.hint_text().is_some(), "{what}: {error:?}");
    }
    assert_eq!(std::fs::read(&file).ok(), before, "{what}");
    let config = config(scratch, &[("DB", "no stand-in")], "").unwrap();
    assert_eq!(why(&config, &stored()), (Kind::Unauthenticated, "secret_store"), "{what}");
}

#[test]
fn a_store_that_is_not_as_we_left_it_is_refused_and_never_overwritten() {
    let scratch = Scratch::new();
    store(&scratch).put_secret("DB", &Secret::new("hunter2hunter2"), None).unwrap();
    let dir = scratch.path().join("root/secrets");
    let (file, key) = (dir.join("store"), dir.join("key"));
    let (good, good_key) = (std::fs::read(&file).unwrap(), std::fs::read(&key).unwrap());
    let put = |path: &Path, bytes: &[u8]| std::fs::write(path, bytes).unwrap();

    for (path, loose) in
        [(&dir, 0o750), (&dir, 0o701), (&file, 0o640), (&file, 0o602), (&key, 0o604)]
    {
        let before = mode(path);
        chmod(path, loose);
        expect_untouched(&scratch, &format!("{} {loose:o}", path.display()));
        chmod(path, before);
    }
    let mut changed = good.clone();
    let middle = changed.len() / 2;
    changed[middle] = if changed[middle] == b'A' { b'B' } else { b'A' };
    let text = String::from_utf8(good.clone()).unwrap();
    let newer = text.replace("\"version\":1", "\"version\":2");
    for (what, bytes) in [
        ("changed", &changed[..]),
        ("cut", &good[..good.len() - 9]),
        ("empty", b""),
        ("another file", b"{\"a\": 1}"),
        ("newer", newer.as_bytes()),
        ("large", &vec![b' '; (1 << 20) + 1]),
    ] {
        put(&file, bytes);
        expect_untouched(&scratch, what);
    }
    put(&file, &good);
    put(&key, b"bm90IGEga2V5\n");
    expect_untouched(&scratch, "no key");
    put(&key, format!("{}\n", "A".repeat(43)).as_bytes());
    expect_untouched(&scratch, "another key");
    std::fs::remove_file(&key).unwrap();
    expect_untouched(&scratch, "a key that is gone");
    assert!(!key.exists(), "no other key is made for it");
    put(&key, &good_key);
    chmod(&key, 0o600);
    // What we made is no link, wherever it leads.
    std::fs::rename(&file, dir.join("moved")).unwrap();
    symlink("moved", &file).unwrap();
    expect_untouched(&scratch, "a link");
    std::fs::rename(dir.join("moved"), &file).unwrap();
    // One that belongs to somebody else; only root can give a file away.
    if rustix::process::geteuid().is_root() {
        for path in [&dir, &file, &key] {
            std::os::unix::fs::chown(path, Some(12345), None).unwrap();
            expect_untouched(&scratch, "foreign");
            std::os::unix::fs::chown(path, Some(0), None).unwrap();
        }
    }
    assert_eq!(store(&scratch).read_all().unwrap()["DB"].value.expose(), b"hunter2hunter2");
}

#[test]
fn a_key_elsewhere_opens_what_the_store_alone_does_not() {
    let scratch = Scratch::new();
    let key = scratch.dir("keys").join("key");
    let store = SecretStore::new(&scratch.dir("root"), Some(key.clone()));
    store.put_secret("DB", &Secret::new("hunter2hunter2"), None).unwrap();
    assert!(
        key.is_file() && mode(&key) == 0o600 && !scratch.path().join("root/secrets/key").exists()
    );
    assert_eq!(store.read_all().unwrap()["DB"].value.expose(), b"hunter2hunter2");
    assert!(SecretStore::new(&scratch.dir("root"), None).read_all().is_err());
    let path = key.display().to_string();
    let with_key = config(&scratch, &[("RINGFENCE_SECRETS_KEY_FILE", &path)], "").unwrap();
    assert_eq!(value(&with_key, &stored()), "hunter2hunter2");
    assert!(with_key.private_paths.contains(&key));
    assert_eq!(
        why(&config(&scratch, &[], "").unwrap(), &stored()),
        (Kind::Unauthenticated, "secret_store")
    );
}

#[test]
fn writers_at_the_same_time_lose_nothing_and_readers_see_a_whole_store() {
    let scratch = Scratch::new();
    let store = store(&scratch);
    store.put_secret("FIRST", &Secret::new("hunter2hunter2"), None).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let store = &store;
            scope.spawn(move || {
                for at in 0..10 {
                    store
                        .put_secret(
                            &format!("W{writer}_{at}"),
                            &Secret::new(format!("value-{at}")),
                            None,
                        )
                        .unwrap();
                    assert!(store.read_all().unwrap().contains_key("FIRST"));
                }
            });
        }
    });
    assert_eq!(store.read_all().unwrap().len(), 81);
}

#[test]
fn a_writer_that_was_ended_in_the_midst_leaves_the_store_as_it_was() {
    let scratch = Scratch::new();
    let store = store(&scratch);
    store.put_secret("DB", &Secret::new("hunter2hunter2"), None).unwrap();
    scratch.file("root/secrets/store.new", "half of someth");
    assert_eq!(store.read_all().unwrap().len(), 1);
    store.put_secret("NEXT", &Secret::new("next-value"), None).unwrap();
    assert_eq!(store.read_all().unwrap().len(), 2);
    assert!(!scratch.path().join("root/secrets/store.new").exists());
}

#[test]
fn names_that_say_where_one_is_are_no_secrets() {
    let scratch = Scratch::new();
    let tool = "[mcp.query]\ncommand = 'true'\ndescription = 'x'\nenv = { A = '${HOME}/x' }\n";
    let file = scratch.file("etc/config.toml", tool);
    let flags = ConfigFlags {
        config: Some(file),
        root: Some(scratch.dir("root")),
        ..ConfigFlags::default()
    };
    let config = resolve_config(&flags, &env(&scratch, &[])).unwrap();
    let home = scratch.path().join("home").display().to_string();
    assert_eq!(value(&config, &SecretRef::Variable("HOME".into())), home);
    assert_eq!(known_secrets::redact_str(&home), home);
}

#[test]
fn a_key_that_was_never_written_is_made_again_and_one_that_is_lost_is_not() {
    let scratch = Scratch::new();
    for key in [None, Some(scratch.dir("keys").join("mine"))] {
        let root = scratch.dir(if key.is_some() { "other" } else { "root" });
        let store = SecretStore::new(&root, key.clone());
        let key = key.unwrap_or(root.join("secrets/key"));
        std::fs::create_dir_all(root.join("secrets")).unwrap();
        std::fs::set_permissions(root.join("secrets"), PermissionsExt::from_mode(0o700)).unwrap();
        std::fs::write(&key, "").unwrap();
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        store.put_secret("DB", &Secret::new("value-in-the-store"), None).unwrap();
        assert_eq!(
            std::fs::read_dir(key.parent().unwrap())
                .unwrap()
                .filter(|entry| {
                    entry.as_ref().unwrap().file_name().to_string_lossy().contains("new")
                })
                .count(),
            0,
            "nothing is left behind"
        );
        std::fs::write(&key, "").unwrap();
        assert!(store.put_secret("DB", &Secret::new("another"), None).is_err());
        assert!(store.read_all().is_err());
    }
}
