//! Codex: what is written, and what stays.

use serde_json::json;

use super::{Place, executable, names, read, read_toml, write};

const CONFIG: &str = "\
# My Codex.
model = \"gpt-5\" # the good one

[mcp_servers.other]
command = \"other\" # keep
# args = [\"later\"]
";

#[test]
fn an_empty_home_gets_everything_that_codex_needs() {
    let place = Place::new();
    let shown = place.done("connect codex --yes");
    let file = place.home(".codex/config.toml");
    let entry = json!({
        "command": executable(),
        "args": ["serve"],
        "env_vars": ["CODEX_HOME"],
        "startup_timeout_sec": 20,
        "tool_timeout_sec": 600,
        "default_tools_approval_mode": "approve",
    });
    assert_eq!(read_toml(&file), json!({"mcp_servers": {"ringfence": entry}}));
    assert!(shown.contains("+[mcp_servers.ringfence]"), "{shown}");
    assert!(shown.contains("Codex is connected"), "{shown}");
}

#[test]
fn comments_and_order_stay_and_a_second_run_writes_nothing() {
    let place = Place::new();
    let file = place.home(".codex/config.toml");
    write(&file, CONFIG);
    place.done("connect codex --yes");
    let connected = read(&file);
    assert!(connected.starts_with(CONFIG), "{connected}");
    let before = file.metadata().unwrap().modified().unwrap();
    let said = place.done("connect codex");
    assert!(said.contains("already connected"), "{said}");
    assert_eq!(read(&file), connected);
    assert_eq!(file.metadata().unwrap().modified().unwrap(), before);
}

#[test]
fn codex_home_is_where_codex_looks() {
    let place = Place::new();
    let home = place.path().join("other-home");
    std::fs::create_dir_all(&home).unwrap();
    let output = place.command("connect codex --yes").env("CODEX_HOME", &home).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(home.join("config.toml").is_file() && !place.home(".codex").exists());
}

#[test]
fn the_shell_of_codex_is_turned_off_and_on_again() {
    let place = Place::new();
    let file = place.home(".codex/config.toml");
    write(&file, "[features]\nweb_search = true # yes\n\n[tui]\ntheme = \"dark\"\n");
    place.done("connect codex --replace-shell --yes");
    let config = read_toml(&file);
    assert_eq!(config["features"], json!({"web_search": true, "shell_tool": false}));
    // Something else has changed since: only our settings go.
    write(&file, &read(&file).replace("dark", "light"));
    place.done("disconnect codex");
    let text = "[features]\nweb_search = true # yes\n\n[tui]\ntheme = \"light\"\n";
    assert_eq!(read(&file), text);
}

#[test]
fn a_choice_of_the_user_is_restored_or_kept() {
    for (before, after) in [("true", "true"), ("false", "false")] {
        let place = Place::new();
        let file = place.home(".codex/config.toml");
        write(&file, &format!("[features]\nshell_tool = {before}\n"));
        place.done("connect codex --replace-shell --yes");
        assert_eq!(read_toml(&file)["features"]["shell_tool"], json!(false));
        write(&file, &format!("# new\n{}", read(&file)));
        place.done("disconnect codex");
        assert_eq!(read(&file), format!("# new\n[features]\nshell_tool = {after}\n"));
    }
}

/// An old copy must not decide about what the user sets later.
#[test]
fn a_file_that_is_not_connected_is_left_alone() {
    let place = Place::new();
    let file = place.home(".codex/config.toml");
    write(&file, "model = \"m\"\n");
    place.done("connect codex --yes");
    let text = "model = \"n\"\n[features]\nshell_tool = false\n";
    write(&file, text);
    let said = place.done("disconnect codex");
    assert!(said.contains("is not connected"), "{said}");
    assert_eq!(read(&file), text);
}

/// Without the copy no one knows who turned it off.
#[test]
fn a_setting_of_unknown_origin_is_kept_and_named() {
    let place = Place::new();
    let file = place.home(".codex/config.toml");
    write(&file, "model = \"m\"\n");
    place.done("connect codex --replace-shell --yes");
    for name in names(&place.home(".codex")) {
        if name.ends_with(".bak") {
            std::fs::remove_file(place.home(".codex").join(name)).unwrap();
        }
    }
    let said = place.done("disconnect codex");
    assert!(said.contains("Kept: `features.shell_tool`"), "{said}");
    assert_eq!(read_toml(&file), json!({"model": "m", "features": {"shell_tool": false}}));
}

#[test]
fn versions_that_ignore_the_default_get_every_tool_by_name() {
    for (version, is_named) in
        [("0.116.0", false), ("0.117.0", true), ("0.129.3", true), ("0.130.0", false)]
    {
        let place = Place::new();
        place.install("codex", &format!("codex-cli {version}"));
        place.done("connect codex --yes");
        let config = read_toml(&place.home(".codex/config.toml"));
        let tools = &config["mcp_servers"]["ringfence"]["tools"];
        let shell = &tools["shell.exec"]["approval_mode"];
        assert_eq!(*shell == json!("approve"), is_named, "{version}: {tools}");
        place.done("disconnect codex");
        assert!(!place.home(".codex/config.toml").exists());
    }
}

#[test]
fn http_replaces_the_command_and_back() {
    let place = Place::new();
    let file = place.home(".codex/config.toml");
    place.done("connect codex --yes");
    place.done("connect codex --http http://127.0.0.1:8931/mcp --yes");
    let entry = read_toml(&file)["mcp_servers"]["ringfence"].clone();
    assert_eq!(entry["url"], "http://127.0.0.1:8931/mcp");
    assert_eq!(entry["bearer_token_env_var"], "RINGFENCE_TOKEN");
    assert!(entry.get("command").is_none() && entry.get("env_vars").is_none(), "{entry}");
    place.done("connect codex --yes");
    let entry = read_toml(&file)["mcp_servers"]["ringfence"].clone();
    assert_eq!(entry["command"], executable());
    assert!(entry.get("url").is_none(), "{entry}");
    // However often it was connected, what was there before comes back.
    place.done("disconnect codex");
    assert!(!file.exists());
    assert_eq!(names(&place.home(".codex")), [""; 0]);
}

/// Codex's own `mcp add` and its editor write numbers and order anew.
#[test]
fn values_of_the_user_survive_a_new_executable() {
    let place = Place::new();
    let file = place.home(".codex/config.toml");
    write(
        &file,
        "[mcp_servers.ringfence]\ntool_timeout_sec = 90.0\nstartup_timeout_sec = 20.0\n\
         command = \"/old/ringfence\" # mine\nargs = [\"serve\", \"--workspace\", \"/w\"]\n\
         enabled_tools = [\"shell.exec\"]\nenv_vars = [\"EDITOR\"]\n\n\
         [mcp_servers.ringfence.env]\nSANDBOX_ROOT = \"/r\"\n",
    );
    place.done("connect codex --yes");
    let text = read(&file);
    assert!(text.contains(&format!("command = \"{}\" # mine\n", executable())), "{text}");
    let entry = json!({
        "tool_timeout_sec": 90.0,
        "startup_timeout_sec": 20.0,
        "command": executable(),
        "args": ["serve", "--workspace", "/w"],
        "enabled_tools": ["shell.exec"],
        "env_vars": ["EDITOR", "CODEX_HOME"],
        "default_tools_approval_mode": "approve",
        "env": {"SANDBOX_ROOT": "/r"},
    });
    assert_eq!(read_toml(&file)["mcp_servers"]["ringfence"], entry);
    place.done("disconnect codex");
    assert_eq!(read(&file), "");
}

#[test]
fn every_way_to_write_a_table_is_edited() {
    for text in [
        "mcp_servers = { other = { command = \"x\" } }\nfeatures = { a = true }\n",
        "mcp_servers = {}\nfeatures = {}\n",
        "mcp_servers.other.command = \"x\"\nfeatures.a = true\n",
        "[mcp_servers]\nother = { command = \"x\" }\n[features]\n",
        "[mcp_servers.ringfence.env]\nA = \"b\"\n[features.deep]\na = 1\n",
        "features.a = true",
        "\u{feff}model = \"m\"\n",
    ] {
        let place = Place::new();
        let file = place.home(".codex/config.toml");
        write(&file, text);
        place.done("connect codex --replace-shell --yes");
        let new = read(&file);
        let config: toml::Table = toml::from_str(new.trim_start_matches('\u{feff}')).unwrap();
        assert_eq!(config["mcp_servers"]["ringfence"]["command"].as_str(), Some(&*executable()));
        assert_eq!(config["features"]["shell_tool"].as_bool(), Some(false), "{new}");
        place.done("connect codex --replace-shell");
        assert_eq!(read(&file), new, "the second run changed it");
        if !text.contains("ringfence") {
            place.done("disconnect codex");
            assert_eq!(read(&file), text);
        }
    }
}
