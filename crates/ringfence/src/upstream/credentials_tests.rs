use std::path::Path;

use serde_json::json;

use super::*;
use crate::config::scratch::Scratch;
use crate::redact::known_secrets::redact_str;

fn login_store(root: &Path, principal: &str) -> LoginStore {
    let store = SecretStore::new(root, None).to_login_store();
    LoginStore::new(&store, &Principal::from_name(principal))
}

fn record(access: &str, refresh: &str) -> SecretText {
    let record = json!({
        "client": {"client_secret": format!("secret-with-{access}")},
        "grant": {"access_token": access, "refresh_token": refresh},
    });
    SecretText::new(record.to_string())
}

/// Returns every file below a directory.
fn files_below(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

#[tokio::test]
async fn a_login_is_encrypted_and_of_one_server_and_principal() {
    let scratch = Scratch::new();
    let root = scratch.dir("root");
    let (ann, bob) = (login_store(&root, "ann"), login_store(&root, "bob"));
    assert!(ann.load("docs").await.unwrap().is_none());
    ann.clear("docs").await.unwrap();
    ann.save("docs", record("access-of-ann", "refresh-of-ann")).await.unwrap();
    bob.save("docs", record("access-of-bob", "refresh-of-bob")).await.unwrap();
    let load = async |store: &LoginStore, id: &str| {
        store.load(id).await.unwrap().map(|text| text.expose().to_owned())
    };
    assert!(load(&ann, "docs").await.unwrap().contains("access-of-ann"));
    assert!(load(&bob, "docs").await.unwrap().contains("access-of-bob"));
    assert!(load(&ann, "docs\",\"ann").await.is_none(), "names cannot be forged");
    assert!(load(&login_store(&root, "local"), "docs").await.is_none());
    for file in files_below(&root) {
        let bytes = std::fs::read(&file).unwrap();
        assert!(!bytes.windows(7).any(|window| window == b"of-ann\""), "{file:?}");
    }
    let logins = LoginStore::list_logins(&ann.store).unwrap();
    let names: Vec<&str> = logins.iter().map(|(_, principal)| principal.name()).collect();
    assert_eq!(names, ["ann", "bob"]);
    ann.clear("docs").await.unwrap();
    assert!(load(&ann, "docs").await.is_none());
    assert!(load(&bob, "docs").await.is_some());
}

#[tokio::test]
async fn tokens_are_redacted_once_they_are_written_or_read() {
    let scratch = Scratch::new();
    let root = scratch.dir("root");
    let store = login_store(&root, "ann");
    store.save("wiki", record("access-7h2kd", "refresh-9s1mx")).await.unwrap();
    for token in ["access-7h2kd", "refresh-9s1mx", "secret-with-access-7h2kd"] {
        assert_eq!(redact_str(token), "[secret:login:wiki]");
    }
    // As another process finds it: written without this one's knowledge.
    let unseen = Secret::new(record("access-unseen-4", "refresh-unseen-4").expose());
    store.store.put_secret(&store.entry_name("wiki"), &unseen, None).unwrap();
    assert_eq!(redact_str("access-unseen-4"), "access-unseen-4");
    store.load("wiki").await.unwrap().unwrap();
    assert_eq!(redact_str("access-unseen-4"), "[secret:login:wiki]");
}

#[tokio::test]
async fn one_at_a_time_has_the_lock_of_a_login() {
    let scratch = Scratch::new();
    let root = scratch.dir("root");
    let (ann, bob) = (login_store(&root, "ann"), login_store(&root, "bob"));
    let lock = ann.lock("docs").await.unwrap();
    let _other_principal = bob.lock("docs").await.unwrap();
    let _other_server = ann.lock("wiki").await.unwrap();
    let waiting = ann.lock("docs");
    tokio::pin!(waiting);
    assert!(tokio::time::timeout(Duration::from_millis(60), &mut waiting).await.is_err());
    // What the lock protects can be used while it is taken.
    ann.save("docs", record("access-locked", "refresh-locked")).await.unwrap();
    drop(lock);
    assert!(waiting.await.is_ok());
}

#[tokio::test]
async fn a_store_that_cannot_be_read_is_left_alone_and_its_path_is_not_told() {
    let scratch = Scratch::new();
    let root = scratch.dir("root");
    let store = login_store(&root, "ann");
    store.save("docs", record("access-token-1", "refresh-token-1")).await.unwrap();
    let file = root.join("upstreams/logins/store");
    let before = std::fs::read(&file).unwrap();
    // The file of one kind is not taken for the other.
    std::fs::copy(&file, root.join("secrets/store")).unwrap();
    assert!(SecretStore::new(&root, None).read_all().is_err());
    std::fs::remove_file(root.join("secrets/store")).unwrap();
    std::fs::rename(root.join("secrets/key"), root.join("secrets/lost")).unwrap();
    for error in [
        store.load("docs").await.unwrap_err(),
        store.save("docs", record("access-token-2", "x")).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(!error.to_string().contains("upstreams"), "{error}");
        assert!(error.hint().unwrap().contains("ringfence auth status"));
    }
    let error = store.check_readable().unwrap_err();
    assert!(error.message().contains("upstreams/logins/store"), "{error}");
    // Neither does the operator's store make another key.
    let put = SecretStore::new(&root, None).put_secret("DB", &Secret::new("value"), None);
    assert!(put.is_err());
    assert_eq!(std::fs::read(&file).unwrap(), before);
    std::fs::rename(root.join("secrets/lost"), root.join("secrets/key")).unwrap();
    assert!(store.load("docs").await.unwrap().is_some());
}

#[test]
fn the_operators_secrets_and_logins_are_apart() {
    let scratch = Scratch::new();
    let root = scratch.dir("root");
    let secrets = SecretStore::new(&root, None);
    secrets.put_secret("DB", &Secret::new("value-of-db"), None).unwrap();
    let store = login_store(&root, "local");
    store.save_text("docs", &record("access-apart", "refresh-apart")).unwrap();
    assert_eq!(secrets.read_all().unwrap().into_keys().collect::<Vec<_>>(), ["DB"]);
    let name = store.entry_name("docs");
    assert_eq!(name, "login:[\"docs\",\"local\"]");
    assert!(secrets.put_secret(&name, &Secret::new("forged"), None).is_err());
    // A change of a login is none of what a server watches.
    let watched = secrets.watched_files();
    assert!(watched.iter().all(|path| !store.store.directory().starts_with(path)), "{watched:?}");
}

#[test]
fn the_hint_names_the_principal_where_that_matters() {
    let hint = login_hint("docs", &Principal::local());
    assert_eq!(hint, "Have the operator run `ringfence auth login docs`.");
    let hint = login_hint("docs", &Principal::from_name("ann o'x@https://id"));
    assert!(hint.contains("--principal") && !hint.contains(" ann o'x@https"), "{hint}");
}
