use super::*;
use crate::config::scratch::Scratch;
use crate::config::secrets::{SecretRef, SecretStore};
use crate::config::{ConfigFlags, ProcessEnv};
use crate::mcp::server::Server;

/// A server on these files, without a transport; root and workspace are what the file says.
fn serving(scratch: &Scratch, config: &str) -> Arc<Server> {
    let file = scratch.file("etc/config.toml", config);
    let env = ProcessEnv::new([("HOME", scratch.dir("home"))], scratch.dir("elsewhere"));
    let made = ConfigSource::new(ConfigFlags { config: Some(file), ..ConfigFlags::default() }, env);
    let (config, seen) = made.resolve_first();
    Server::with_reload(config.unwrap(), made, seen).unwrap()
}

async fn write(
    server: &Server,
    scratch: &Scratch,
    config: &str,
) -> (Arc<PipelineState>, ReloadStatus) {
    scratch.file("etc/config.toml", config);
    server.pipeline.reload_if_changed().await;
    (server.pipeline.state(), server.pipeline.reloader.as_ref().unwrap().status())
}

fn private(scratch: &Scratch, name: &str, text: &str) {
    let path = scratch.file(name, text);
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

#[tokio::test]
async fn secrets_come_from_the_root_of_the_start() {
    let scratch = Scratch::new();
    let roots = ["one", "two"].map(|name| scratch.path().canonicalize().unwrap().join(name));
    for (root, value) in roots.iter().zip(["value-of-the-first", "value-of-the-second"]) {
        SecretStore::new(root, None)
            .put_secret("DB", &crate::redact::secret::Secret::new(value), None)
            .unwrap();
    }
    let workspace = scratch.dir("workspace");
    let config = |root: &str, more: &str| {
        format!(
            "root = '../{root}'\nworkspace = '{}'\n[mcp.x]\ncommand = 'true'\nenv.A = '${{secret:DB}}'\n{more}",
            workspace.display()
        )
    };
    let server = serving(&scratch, &config("one", ""));
    let value = |state: &PipelineState| {
        state.config.secrets.get(&SecretRef::Stored("DB".into())).unwrap().expose().to_vec()
    };
    let (state, found) = write(&server, &scratch, &config("two", "version = '2'\n")).await;
    assert_eq!(state.config.generation, 2);
    assert_eq!(value(&state), b"value-of-the-first");
    assert_eq!((&state.config.root, &found.restart_needed[..]), (&roots[0], &["root"][..]));
    let (_, found) = write(&server, &scratch, &config("one", "")).await;
    assert_eq!(found.restart_needed, [""; 0]);
}

#[tokio::test]
async fn files_that_steer_are_kept_out_of_the_workspace_of_the_start() {
    let scratch = Scratch::new();
    let workspace = scratch.dir("one");
    scratch.dir("two");
    private(&scratch, "one/env", "A=1\n");
    let server = serving(&scratch, "root = '../root'\nworkspace = '../one'\n");
    // The workspace that the file names by now does not hold it, but the one that tools work in
    // does.
    let changed = "root = '../root'\nworkspace = '../two'\nsecrets.env_file = '../one/env'\n";
    let (state, found) = write(&server, &scratch, changed).await;
    assert!(found.fault.is_some());
    assert_eq!(
        (state.config.generation, state.config.workspace.as_deref()),
        (1, Some(&*workspace))
    );
}

#[tokio::test]
async fn what_is_in_use_stays_private() {
    let scratch = Scratch::new();
    for (name, text) in
        [("keys/old", "x"), ("keys/new", "y"), ("env/old", "A=1\n"), ("env/new", "A=2\n")]
    {
        private(&scratch, name, text);
    }
    let at = scratch.path().canonicalize().unwrap();
    let config = |which: &str| {
        format!(
            "root = '../root'\nworkspace = '../elsewhere'\nlog.file = '../log/{which}'\n\
             secrets.env_file = '../env/{which}'\n[auth]\nenabled = true\njwt_secret_file = '../keys/{which}'\n"
        )
    };
    let server = serving(&scratch, &config("old"));
    let (state, found) = write(&server, &scratch, &config("new")).await;
    assert_eq!(state.config.log.file, Some(at.join("log/old")));
    for name in ["keys/old", "keys/new", "env/old", "env/new"] {
        assert!(
            state.config.private_paths.contains(&at.join(name)),
            "{name}: {:?}",
            state.config.private_paths
        );
    }
    assert_eq!(found.restart_needed, ["log.file", "auth.jwt_secret_file"]);
    // And however many reloads later.
    let (state, _) =
        write(&server, &scratch, "root = '../root'\nworkspace = '../elsewhere'\n").await;
    assert!(
        state.config.private_paths.contains(&at.join("env/new"))
            && state.config.private_paths.contains(&at.join("keys/old"))
    );
}

#[tokio::test]
async fn another_token_secret_in_the_same_file_is_told() {
    let scratch = Scratch::new();
    private(&scratch, "keys/secret", "first-secret-of-tokens");
    let config = "root = '../root'\nworkspace = '../elsewhere'\nauth = { enabled = true, jwt_secret_file = '../keys/secret' }\n";
    let server = serving(&scratch, config);
    private(&scratch, "keys/secret", "second-secret-of-tokens");
    server.pipeline.reload_if_changed().await;
    let reload = server.pipeline.reloader.as_ref().unwrap();
    assert_eq!(reload.status().restart_needed, ["auth.jwt_secret_file"]);
    let state = server.pipeline.state();
    assert_eq!(fixed_settings::jwt_secret(&state.config), Some(&b"first-secret-of-tokens"[..]));
}

#[test]
fn words_for_clients_hold_no_path_of_the_host() {
    for (text, expected) in [
        ("`/etc/rf/key` is not there", "`…` is not there"),
        ("cwd = ~/x/y, and/or (/srv)", "cwd = …, and/or (…)"),
        ("there is no key `a/b` here", "there is no key `a/b` here"),
        ("1 / 2", "1 / 2"),
    ] {
        assert_eq!(strip_paths(text), expected);
    }
}

#[tokio::test]
async fn a_store_that_is_mended_is_read() {
    let scratch = Scratch::new();
    SecretStore::new(&scratch.dir("root"), None)
        .put_secret("DB", &crate::redact::secret::Secret::new("a-value"), None)
        .unwrap();
    let folder = scratch.path().join("root/secrets");
    let open = |mode| {
        std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(mode))
            .unwrap()
    };
    open(0o755);
    let config = "root = '../root'\nworkspace = '../elsewhere'\n[mcp.x]\ncommand = 'true'\nenv.A = '${secret:DB}'\n";
    let server = serving(&scratch, config);
    let has =
        || server.pipeline.state().config.secrets.get(&SecretRef::Stored("DB".into())).is_ok();
    server.pipeline.reload_if_changed().await;
    assert!(!has());
    assert_eq!(server.pipeline.state().config.generation, 1, "still not, and that is nothing new");
    open(0o700);
    server.pipeline.reload_if_changed().await;
    assert!(has());
    server.pipeline.reload_now().await;
    assert_eq!(server.pipeline.state().config.generation, 3, "because somebody wants it");
}

/// Somebody writes without end; those who come together do not wait one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn constant_edits_hold_nobody_up_for_long() {
    let scratch = Arc::new(Scratch::new());
    let text = "root = '../root'\nworkspace = '../elsewhere'\n";
    let server = serving(&scratch, text);
    let stop = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (scratch, stop) = (Arc::clone(&scratch), Arc::clone(&stop));
        move || {
            while !stop.load(Ordering::Relaxed) {
                scratch.file("etc/config.toml", text);
            }
        }
    });
    let waits: Vec<_> = (0..6)
        .map(|_| {
            let server = Arc::clone(&server);
            tokio::spawn(async move {
                let begun = Instant::now();
                server.pipeline.reload_if_changed().await;
                begun.elapsed()
            })
        })
        .collect();
    for wait in waits {
        let waited = wait.await.unwrap();
        assert!(waited < Duration::from_secs(4), "{waited:?}");
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
}
