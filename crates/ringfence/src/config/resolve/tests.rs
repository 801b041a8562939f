use std::os::unix::fs::{PermissionsExt, symlink};

use super::super::scratch::Scratch;
use std::time::Duration;

use super::*;
use crate::base::Kind;
use crate::config::OwnToolsApproval;

/// A user with a home, a project to work in, and nothing configured.
struct User(Scratch);

impl User {
    fn new() -> Self {
        let scratch = Scratch::new();
        scratch.dir("home");
        scratch.dir("project");
        User(scratch)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn env(&self, more: &[(&str, &str)]) -> ProcessEnv {
        let home = self.path("home").display().to_string();
        let all = [("HOME", home.as_str())].into_iter().chain(more.iter().copied());
        ProcessEnv::new(
            all.map(|(name, value)| (name.to_owned(), value.to_owned())),
            self.path("project"),
        )
    }

    fn resolve(&self, flags: &ConfigFlags, more: &[(&str, &str)]) -> Result<Config> {
        resolve_config(flags, &self.env(more))
    }

    fn config(&self, text: &str) -> PathBuf {
        self.0.file("home/.config/ringfence/config.toml", text)
    }
}

fn origin(config: &Config, key: &str) -> SettingOrigin {
    config.settings.iter().find(|setting| setting.key == key).unwrap().origin.clone()
}

#[test]
fn the_defaults_are_complete_and_shown() {
    let user = User::new();
    let config = user.resolve(&ConfigFlags::default(), &[]).unwrap();
    assert_eq!(config.root, user.path("home/.local/state/ringfence"));
    assert_eq!(config.workspace, Some(user.path("project")));
    assert!(config.surface.enabled && config.auth.is_none() && config.file.is_none());
    assert_eq!((config.tools, config.tool_names), (ToolSet::Core, ToolNameStyle::Auto));
    assert_eq!(config.approval.expiry, Duration::from_secs(300));
    assert!(!config.approval.allows_terminal);
    assert_eq!(config.approval.own_tools, OwnToolsApproval::Never);
    assert_eq!(config.limits.message_bytes, 16 << 20);
    assert!(
        config.settings.iter().all(|setting| setting.origin == SettingOrigin::Default),
        "{:?}",
        config.settings
    );
    // Every key that the defaults set is in the table.
    let table: toml::Table = DEFAULT_CONFIG.parse().unwrap();
    for (name, value) in &table {
        let keys: Vec<String> = match value {
            toml::Value::Table(inner) => inner.keys().map(|key| format!("{name}.{key}")).collect(),
            _ => vec![name.clone()],
        };
        for key in keys {
            assert!(config.settings.iter().any(|setting| setting.key == key), "{key}");
        }
    }
}

#[test]
fn flag_over_environment_over_file_over_default() {
    let user = User::new();
    let of = |name: &str| user.0.dir(name).display().to_string();
    let (flag, env, file) = (of("flag"), of("env"), of("file"));
    let path = user.config(&format!("root = '{file}/root'\nworkspace = '{file}'\ntools = 'all'\n"));
    let variables = [("SANDBOX_ROOT", "../env-root"), ("SANDBOX_WORKSPACE", env.as_str())];

    let from_file = user.resolve(&ConfigFlags::default(), &[]).unwrap();
    assert_eq!(from_file.root, PathBuf::from(&file).join("root"));
    assert_eq!(from_file.workspace, Some(PathBuf::from(&file)));
    assert_eq!(from_file.closed_paths, [PathBuf::from(&file).join("root")]);
    assert_eq!(from_file.tools, ToolSet::All);
    assert_eq!(origin(&from_file, "workspace"), SettingOrigin::File(path));

    let from_env = user.resolve(&ConfigFlags::default(), &variables).unwrap();
    assert_eq!(from_env.root, user.path("env-root"));
    assert_eq!(from_env.workspace, Some(PathBuf::from(&env)));
    assert_eq!(origin(&from_env, "root"), SettingOrigin::Env("SANDBOX_ROOT"));

    let flags = ConfigFlags {
        root: Some("../flag-root".into()),
        workspace: Some(flag.clone().into()),
        tools: Some("shell".into()),
        ..ConfigFlags::default()
    };
    let from_flag = user.resolve(&flags, &variables).unwrap();
    assert_eq!(from_flag.root, user.path("flag-root"));
    assert_eq!(from_flag.workspace, Some(PathBuf::from(&flag)));
    assert_eq!(from_flag.tools, ToolSet::Shell);
    assert_eq!(origin(&from_flag, "tools"), SettingOrigin::Flag("--tools"));
}

#[test]
fn the_surface_switch_of_the_environment_beats_the_file() {
    let user = User::new();
    user.config("enable_mcp_server_surface = false");
    assert!(!user.resolve(&ConfigFlags::default(), &[]).unwrap().surface.enabled);
    assert!(
        user.resolve(&ConfigFlags::default(), &[("Enable_MCP_Server_Surface", "1")])
            .unwrap()
            .surface
            .enabled
    );
}

#[test]
fn a_named_config_file_must_be_there_and_the_default_one_need_not() {
    let user = User::new();
    assert!(user.resolve(&ConfigFlags::default(), &[]).is_ok());
    let named = ConfigFlags { config: Some("/nowhere/rf.toml".into()), ..ConfigFlags::default() };
    assert_eq!(user.resolve(&named, &[]).unwrap_err().kind(), Kind::NotFound);
    assert!(
        user.resolve(&ConfigFlags::default(), &[("RINGFENCE_CONFIG", "missing.toml")]).is_err()
    );
    // The flag wins over the variable, and a relative name starts from the current directory.
    user.0.file("conf/good.toml", "tools = 'all'");
    let flags = ConfigFlags { config: Some("../conf/good.toml".into()), ..ConfigFlags::default() };
    assert_eq!(
        user.resolve(&flags, &[("RINGFENCE_CONFIG", "/nowhere")]).unwrap().tools,
        ToolSet::All
    );
    // XDG_CONFIG_HOME moves the default; a relative one is ignored.
    user.0.file("xdg/ringfence/config.toml", "tools = 'shell'");
    let xdg = user.path("xdg").display().to_string();
    assert_eq!(
        user.resolve(&ConfigFlags::default(), &[("XDG_CONFIG_HOME", &xdg)]).unwrap().tools,
        ToolSet::Shell
    );
    assert_eq!(
        user.resolve(&ConfigFlags::default(), &[("XDG_CONFIG_HOME", "../xdg")]).unwrap().tools,
        ToolSet::Core
    );
}

#[test]
fn a_config_that_anybody_can_write_or_that_is_wrong_stops_the_start() {
    let user = User::new();
    let path = user.config("tols = 'all'");
    let error = user.resolve(&ConfigFlags::default(), &[]).unwrap_err();
    assert!(error.message().starts_with(&format!("{}:1:1:", path.display())), "{error}");
    assert_eq!(error.hint_text(), Some("Did you mean `tools`?"));
    std::fs::write(&path, "tools = 'all'").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    assert_eq!(
        user.resolve(&ConfigFlags::default(), &[]).unwrap_err().kind(),
        Kind::PermissionDenied
    );
}

#[test]
fn nothing_inside_the_workspace_is_used_unasked() {
    let user = User::new();
    for name in [
        "config.toml",
        "ringfence.toml",
        ".ringfence/config.toml",
        ".config/ringfence/config.toml",
        "ringfence/config.toml",
    ] {
        user.0.file(&format!("project/{name}"), "tools = 'all'");
    }
    assert_eq!(user.resolve(&ConfigFlags::default(), &[]).unwrap().tools, ToolSet::Core);
}

#[test]
fn places_that_are_no_project_are_refused_through_links_too() {
    let user = User::new();
    symlink(user.path("home"), user.path("project/link")).unwrap();
    for workspace in ["/", "..", "../home", "link", "../home/.config", "../home/.local"] {
        user.config("");
        user.0.dir("home/.local/state");
        let flags = ConfigFlags { workspace: Some(workspace.into()), ..ConfigFlags::default() };
        let error = user.resolve(&flags, &[]).unwrap_err();
        assert_eq!(error.reason_name(), Some("bad_workspace"), "{workspace}");
        assert!(error.hint_text().unwrap().contains("--workspace"));
    }
    let flags = ConfigFlags { workspace: Some("missing".into()), ..ConfigFlags::default() };
    assert!(user.resolve(&flags, &[]).unwrap_err().hint_text().unwrap().contains("--workspace"));
    // The directory of a config file that does not exist yet could be filled by a tool.
    std::fs::remove_file(user.config("")).unwrap();
    let flags = ConfigFlags {
        workspace: Some("../home/.config/ringfence".into()),
        ..ConfigFlags::default()
    };
    assert!(user.resolve(&flags, &[]).is_err());
}

#[test]
fn a_root_inside_the_workspace_is_closed_when_both_were_named() {
    let user = User::new();
    let root = Some(PathBuf::from(".state"));
    let by_chance = ConfigFlags { root: root.clone(), ..ConfigFlags::default() };
    assert!(user.resolve(&by_chance, &[]).is_err());
    let named = ConfigFlags { root, workspace: Some(".".into()), ..ConfigFlags::default() };
    assert_eq!(user.resolve(&named, &[]).unwrap().closed_paths, [user.path("project/.state")]);
    // A config inside the workspace is never accepted: a tool could rewrite it.
    user.0.file("project/rf.toml", "");
    let flags = ConfigFlags {
        config: Some("rf.toml".into()),
        workspace: Some(".".into()),
        ..ConfigFlags::default()
    };
    assert!(user.resolve(&flags, &[]).is_err());
}

#[test]
fn on_the_network_no_workspace_comes_by_itself() {
    let user = User::new();
    let mut flags = ConfigFlags { http: Some("8080".into()), ..ConfigFlags::default() };
    let config = user.resolve(&flags, &[]).unwrap();
    assert_eq!(config.workspace, None);
    assert_eq!(config.http.listen, Some("127.0.0.1:8080".parse().unwrap()));
    flags.workspace = Some(".".into());
    assert_eq!(user.resolve(&flags, &[]).unwrap().workspace, Some(user.path("project")));
}

#[test]
fn the_root_alone_resolves_where_a_workspace_would_not() {
    let user = User::new();
    let env = ProcessEnv::new([("HOME", user.path("home"))], user.path("home"));
    assert!(resolve_config(&ConfigFlags::default(), &env).is_err());
    assert_eq!(
        resolve_root(&ConfigFlags::default(), &env).unwrap(),
        user.path("home/.local/state/ringfence")
    );
    let bare = ProcessEnv::new([("PATH", "/bin")], user.path("project"));
    assert!(
        resolve_root(&ConfigFlags::default(), &bare)
            .unwrap_err()
            .hint_text()
            .unwrap()
            .contains("--root")
    );
    let xdg = ProcessEnv::new([("XDG_STATE_HOME", user.path("state"))], user.path("project"));
    assert_eq!(resolve_root(&ConfigFlags::default(), &xdg).unwrap(), user.path("state/ringfence"));
}

#[test]
fn a_public_address_needs_auth_or_the_explicit_word() {
    let user = User::new();
    let secret =
        [("MCP_AUTH_ENABLED", "1"), ("MCP_AUTH_JWT_SECRET", "0123456789abcdef0123456789abcdef")];
    let at = |address: &str, insecure_no_auth, variables: &[(&str, &str)]| {
        let flags =
            ConfigFlags { http: Some(address.into()), insecure_no_auth, ..ConfigFlags::default() };
        user.resolve(&flags, variables)
    };
    for address in
        ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", ":1", "1", "[::ffff:127.0.0.1]:1"]
    {
        assert!(at(address, false, &[]).is_ok(), "{address}");
    }
    for address in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1"] {
        assert_eq!(
            at(address, false, &[]).unwrap_err().reason_name(),
            Some("public_without_auth"),
            "{address}"
        );
        assert!(at(address, true, &[]).is_ok(), "{address}");
        assert!(at(address, false, &secret).is_ok(), "{address}");
    }
    for address in ["example.com:80", "", "99999", "127.0.0.1"] {
        assert_eq!(
            at(address, false, &[]).unwrap_err().kind(),
            Kind::InvalidArguments,
            "{address}"
        );
    }
}

/// Whoever can change a link on the way to a file says what is in it.
#[test]
fn no_way_to_a_file_that_steers_leads_through_where_commands_write() {
    let scratch = Scratch::new();
    let at = scratch.path().canonicalize().unwrap();
    let real = scratch.file("real/config.toml", "");
    for folder in ["etc", "project/deep", "root/homes", "root/workspaces/x", "open"] {
        scratch.dir(folder);
    }
    let refusal = |config: &Path| {
        let flags = ConfigFlags {
            config: Some(config.to_owned()),
            root: Some(at.join("root")),
            ..ConfigFlags::default()
        };
        let env = ProcessEnv::new([("HOME", scratch.dir("home"))], at.join("project"));
        resolve_config(&flags, &env).err().and_then(|error| error.reason_name())
    };
    assert_eq!(refusal(&real), None);
    for (through, reason) in [
        ("project/link", "bad_workspace"),
        ("root/homes/link", "bad_place"),
        ("root/workspaces/x/link", "bad_place"),
    ] {
        symlink(&real, at.join(through)).unwrap();
        let _ = std::fs::remove_file(at.join("etc/config.toml"));
        symlink(at.join(through), at.join("etc/config.toml")).unwrap();
        assert_eq!(refusal(&at.join("etc/config.toml")), Some(reason), "{through}");
    }
    assert_eq!(refusal(&at.join("project/deep/../../real/config.toml")), Some("bad_workspace"));
    // The same for what the config names, and for what it opens itself.
    let env_file = scratch.file("real/env", "A=1\n");
    symlink(&env_file, at.join("project/env")).unwrap();
    symlink(at.join("project/env"), at.join("real/linked")).unwrap();
    scratch.file("real/config.toml", "secrets.env_file = 'linked'");
    assert_eq!(refusal(&real), Some("bad_workspace"));
    symlink(&env_file, at.join("open/env")).unwrap();
    scratch.file(
        "real/config.toml",
        "secrets.env_file = '../open/env'\nsandbox.writable = ['../open']",
    );
    assert_eq!(refusal(&real), Some("bad_place"));
    scratch.file("real/config.toml", "secrets.env_file = 'env'\nsandbox.writable = ['../open']");
    assert_eq!(refusal(&real), None);
}

#[test]
fn a_directory_of_secrets_is_hidden_whole_where_nothing_else_is_needed_of_it() {
    let scratch = Scratch::new();
    let at = scratch.path().canonicalize().unwrap();
    let of = |folder: &str, more: &str| {
        scratch.file(format!("{folder}/env").trim_start_matches('/'), "A=1\n");
        let file = scratch.file(
            "etc/config.toml",
            &format!("secrets.env_file = '{}/{folder}/env'\n{more}", at.display()),
        );
        let flags = ConfigFlags {
            config: Some(file),
            root: Some(at.join("state/root")),
            ..ConfigFlags::default()
        };
        let env = ProcessEnv::new(
            [("HOME", scratch.dir("home/me")), ("PATH", scratch.dir("bin"))],
            scratch.dir("code/project"),
        );
        let config = resolve_config(&flags, &env).unwrap();
        let (file, folder) = (at.join(folder).join("env"), at.join(folder));
        assert!(config.private_paths.contains(&file));
        assert_eq!(
            config.exposed_secrets.is_empty(),
            config.private_paths.contains(&folder),
            "{:?}",
            config.exposed_secrets
        );
        config.private_paths.contains(&folder)
    };
    for folder in ["etc", "keys", "home/me/.config/ringfence"] {
        assert!(of(folder, ""), "{folder}");
    }
    for folder in ["code", "home", "home/me", "home/me/.config", "bin", "state", ""] {
        assert!(!of(folder, ""), "{folder}");
    }
    scratch.dir("shared/data");
    assert!(!of("shared", "sandbox.writable = ['../shared/data']"));
    for entry in [
        format!("[mcp.x]\ncommand = '{}/keys/run'", at.display()),
        format!("[mcp.x]\ncommand = 'sh'\nargs = ['{}/keys/run']", at.display()),
    ] {
        assert!(!of("keys", &entry), "{entry}");
    }
}

#[test]
fn a_command_starts_from_the_config_file_and_is_named_plainly() {
    let scratch = Scratch::new();
    let text = "[mcp.a]\ncommand = \"./bin/./deploy.sh\"\n[mcp.b]\ncommand = \"make\"\n";
    let file = scratch.file("etc/config.toml", text);
    let flags = ConfigFlags {
        config: Some(file),
        root: Some(scratch.path().join("root")),
        ..ConfigFlags::default()
    };
    let config = resolve_config(
        &flags,
        &ProcessEnv::new([("HOME", "/nonexistent")], scratch.dir("project")),
    )
    .unwrap();
    let commands: Vec<&str> = config.commands.iter().map(|entry| entry.command.as_str()).collect();
    let expected = scratch.path().join("etc/bin/deploy.sh").display().to_string();
    assert_eq!(commands, [expected.as_str(), "make"]);
}
