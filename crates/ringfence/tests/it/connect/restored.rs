//! Properties of every edit: comments, order and foreign keys survive, and `disconnect` restores.

use std::path::Path;

use serde_json::Value;

use super::generated::{Dice, json_file, toml_file};
use super::{Place, read, write};

/// Seeds per property: each is a few runs of the binary.
fn seeds() -> u64 {
    if std::env::var_os("RINGFENCE_PROOF").is_some() { 1000 } else { 60 }
}

/// Asserts that the lines of one text are all in another, in the same order.
fn assert_lines_kept(old: &str, new: &str) {
    let mut lines = new.lines();
    for line in old.lines() {
        assert!(
            lines.any(|other| other == line),
            "{line:?} is lost or moved in:\n{new}\n--\n{old}"
        );
    }
}

fn toml_values(text: &str) -> Value {
    let text = text.trim_start_matches('\u{feff}');
    let table: toml::Table = toml::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    serde_json::to_value(table).unwrap()
}

fn json_values(text: &str) -> Value {
    let parsed = jsonc_parser::cst::CstRootNode::parse(text, &Default::default());
    let root = parsed.unwrap_or_else(|error| panic!("{error}\n{text}"));
    root.to_serde_value().unwrap()
}

/// Removes our settings, and the tables that are empty without them.
fn without_ours(mut values: Value, paths: &[&[&str]]) -> Value {
    fn remove(value: &mut Value, path: &[&str]) {
        let Some(members) = value.as_object_mut() else { return };
        if let [name] = path {
            members.shift_remove(*name);
        } else if let Some(inner) = members.get_mut(path[0]) {
            remove(inner, &path[1..]);
            if inner.as_object().is_some_and(|inner| inner.is_empty()) {
                members.shift_remove(path[0]);
            }
        }
    }
    paths.iter().for_each(|path| remove(&mut values, path));
    values
}

/// Connects, checks, connects again, disconnects.
fn check(client: &str, file: &Path, place: &Place, text: &str, check_connected: impl Fn(&str)) {
    write(file, text);
    place.done(&format!("connect {client} --replace-shell --yes"));
    let connected = read(file);
    check_connected(&connected);
    let said = place.done(&format!("connect {client} --replace-shell"));
    assert!(said.contains("already connected"), "{said}");
    place.done(&format!("disconnect {client}"));
    assert_eq!(read(file), text);
}

#[test]
fn any_toml_file_is_restored_byte_for_byte() {
    const OURS: &[&[&str]] = &[&["mcp_servers", "ringfence"], &["features", "shell_tool"]];
    let place = Place::new();
    let file = place.home(".codex/config.toml");
    for seed in 0..seeds() {
        let text = toml_file(seed);
        check("codex", &file, &place, &text, |connected| {
            let (old, new) = (toml_values(&text), toml_values(connected));
            assert_eq!(new["mcp_servers"]["ringfence"]["args"][0], "serve", "seed {seed}");
            assert_eq!(without_ours(new, OURS), without_ours(old, OURS), "seed {seed}:\n{text}");
            // Lines that an inline table or the setting itself is on are edited.
            let is_edited = |line: &&str| {
                ["mcp_servers = ", "features = ", "shell_tool"]
                    .iter()
                    .any(|word| line.contains(word))
            };
            let kept: Vec<&str> = text.lines().filter(|line| !is_edited(line)).collect();
            assert_lines_kept(&kept.join("\n"), connected);
        });
    }
}

#[test]
fn any_json_file_is_restored_byte_for_byte() {
    const OURS: &[&[&str]] =
        &[&["mcp", "ringfence"], &["permission", "bash"], &["permission", "edit"]];
    let place = Place::new();
    let file = place.home(".config/opencode/opencode.jsonc");
    for seed in 0..seeds() {
        let text = json_file(seed, &["mcp", "permission"]);
        check("opencode", &file, &place, &text, |connected| {
            let (old, new) = (json_values(&text), json_values(connected));
            assert_eq!(new["mcp"]["ringfence"]["command"][1], "serve", "seed {seed}");
            let (old, new) = (without_ours(old, OURS), without_ours(new, OURS));
            // As text: the order counts too. An empty table of the user's may be left out above.
            assert_eq!(
                drop_empty(new).to_string(),
                drop_empty(old).to_string(),
                "{text}\n{connected}"
            );
            assert_comments_kept(&text, connected);
        });
    }
}

fn drop_empty(mut values: Value) -> Value {
    if let Some(members) = values.as_object_mut() {
        members.retain(|name, value| {
            !(["mcp", "permission"].contains(&&**name) && *value == serde_json::json!({}))
        });
    }
    values
}

/// Every comment is still there, in the same order.
fn assert_comments_kept(old: &str, new: &str) {
    let comments = |text: &str| -> Vec<String> {
        // One of them is in a string, and stays as well.
        let starts = text.match_indices('/').map(|(at, _)| &text[at..]);
        let words = starts.filter(|rest| rest.starts_with("// ") || rest.starts_with("/* "));
        words
            .map(|rest| rest[3..].split(['\n', '\r', '*', '"', ',']).next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(comments(new), comments(old), "{new}\n--\n{old}");
}

/// The file has changed since it was connected: no copy can be restored.
#[test]
fn after_a_change_only_our_settings_go() {
    let place = Place::new();
    let file = place.home(".codex/config.toml");
    for seed in 0..seeds() / 2 {
        let text = toml_file(seed);
        write(&file, &text);
        place.done("connect codex --replace-shell --yes");
        let mut dice = Dice::new(seed);
        let addition = dice.pick(&["\n[later]\nx = 1 # new\n", "\n# bye\n", "\n[later.deep]\n"]);
        write(&file, &format!("{}{addition}", read(&file)));
        place.done("disconnect codex");
        let after = read(&file);
        let expected = toml_values(&format!("{text}\n{addition}"));
        assert_eq!(toml_values(&after), expected, "seed {seed}:\n{text}\n--\n{after}");
        let edited = ["mcp_servers = ", "features = "];
        let is_kept = |line: &&str| !edited.iter().any(|word| line.contains(word));
        let kept: Vec<&str> = text.lines().filter(is_kept).collect();
        assert_lines_kept(&kept.join("\n"), &after);
        std::fs::remove_dir_all(place.home(".codex")).unwrap();
    }
}

#[test]
fn after_a_change_to_json_only_our_settings_go() {
    let place = Place::new();
    let file = place.home(".config/opencode/opencode.jsonc");
    for seed in 0..seeds() / 2 {
        let text = json_file(seed, &["mcp", "permission"]);
        write(&file, &text);
        place.done("connect opencode --replace-shell --yes");
        write(&file, &format!("{}\n// later", read(&file)));
        place.done("disconnect opencode");
        let after = read(&file);
        assert_eq!(
            json_values(&after).to_string(),
            json_values(&text).to_string(),
            "{text}\n{after}"
        );
        assert_comments_kept(&format!("{text}\n// later"), &after);
        std::fs::remove_dir_all(place.home(".config")).unwrap();
    }
}
