//! Files: broken ones, links, modes, hostile projects, and changes by others.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::{Place, executable, names, read, write};

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_broken_file_is_refused_with_its_line_and_left_alone() {
    for (client, file, text, line) in [
        ("codex", ".codex/config.toml", "a = 1\nb = \n[x]\n", "line 2"),
        ("codex", ".codex/config.toml", "a = 1\na = 2\n", "line 2"),
        ("codex", ".codex/config.toml", "mcp_servers = 3\n", "line 1"),
        ("codex", ".codex/config.toml", "\n[[mcp_servers]]\na = 1\n", "line 2"),
        ("claude", ".claude.json", "{\n  \"a\": 1,\n  // no\n  \"b\": 2\n}\n", "line 3"),
        ("cursor", ".cursor/mcp.json", "{\n  \"a\": 1\n  \"b\": 2\n}\n", "line 2"),
        ("cursor", ".cursor/mcp.json", "{\n  \"mcpServers\": []\n}\n", "line 2"),
        ("gemini", ".gemini/settings.json", "[1]\n", "line 1"),
        (
            "zed",
            ".config/zed/settings.json",
            "{\"context_servers\": {},\n\"context_servers\": {}}",
            "line 2",
        ),
        ("vscode", ".config/Code/User/mcp.json", "{\"servers\": {'x': 1}}", "line 1"),
    ] {
        let place = Place::new();
        let file = place.home(file);
        write(&file, text);
        for command in ["connect", "disconnect"] {
            let yes = if command == "connect" { "--yes" } else { "" };
            let said = place.run(&format!("{command} {client} {yes}"));
            if command == "disconnect" && said.code == Some(0) {
                // Valid, only not what `connect` can add to: there is nothing to remove.
                assert!(said.stdout.contains("not connected"), "{said:?}");
                continue;
            }
            assert!(said.stderr.contains(line), "{client}: {text}: {said:?}");
            assert!(said.stderr.contains("Nothing was written"), "{said:?}");
        }
        assert_eq!(read(&file), text);
        assert_eq!(names(file.parent().unwrap()).len(), 1, "{client}");
    }
}

#[test]
fn text_that_is_not_utf_8_is_refused_with_its_line() {
    let place = Place::new();
    let file = place.home(".codex/config.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, b"a = 1\nb = \"\xff\"\n").unwrap();
    let said = place.run("connect codex --yes");
    assert_eq!(said.code, Some(65), "{said:?}");
    assert!(said.stderr.contains("line 2"), "{said:?}");
    assert_eq!(std::fs::read(&file).unwrap(), b"a = 1\nb = \"\xff\"\n");
}

#[test]
fn the_mode_stays_and_the_copy_has_it_too() {
    let place = Place::new();
    let file = place.home(".codex/config.toml");
    write(&file, "token = \"secret\"\n");
    set_mode(&file, 0o640);
    place.done("connect codex --yes");
    for name in names(&place.home(".codex")) {
        let mode = place.home(".codex").join(&name).metadata().unwrap().mode();
        assert_eq!(mode & 0o7777, 0o640, "{name}");
    }
    // A new file may get a token later.
    place.done("connect cursor --yes");
    assert_eq!(place.home(".cursor/mcp.json").metadata().unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn the_copy_is_next_to_the_file_and_goes_with_the_connection() {
    let place = Place::new();
    let file = place.home(".codex/config.toml");
    write(&file, "model = \"m\"\n");
    let said = place.done("connect codex --yes");
    let copies = names(&place.home(".codex"));
    let [_, copy] = &copies[..] else { panic!("{copies:?}") };
    assert!(copy.starts_with("config.toml.ringfence-") && said.contains(copy.as_str()), "{said}");
    assert_eq!(read(&place.home(".codex").join(copy)), "model = \"m\"\n");
    place.done("disconnect codex");
    assert_eq!(names(&place.home(".codex")), ["config.toml"]);
}

/// Dotfiles: the link stays, its target is replaced.
#[test]
fn a_link_in_the_home_is_written_through() {
    let place = Place::new();
    let target = place.path().join("dotfiles/codex.toml");
    write(&target, "model = \"m\"\n");
    let file = place.home(".codex/config.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    symlink("../../dotfiles/codex.toml", &file).unwrap();
    place.done("connect codex --yes");
    assert!(file.is_symlink());
    assert!(read(&target).contains(&executable()), "{}", read(&target));
    place.done("disconnect codex");
    assert!(file.is_symlink());
    assert_eq!(read(&target), "model = \"m\"\n");
}

/// A project may come from anyone.
#[test]
fn a_link_that_leaves_the_project_is_refused() {
    for link in ["../home/.codex", "/etc", "ABSOLUTE", "dir-link"] {
        let place = Place::new();
        let outside = place.home(".codex/config.toml");
        write(&outside, "model = \"mine\"\n");
        let home = place.home(".codex");
        if link == "dir-link" {
            std::fs::create_dir(place.project(".codex")).unwrap();
            symlink(&outside, place.project(".codex/config.toml")).unwrap();
        } else {
            let to = if link == "ABSOLUTE" { home.as_path() } else { Path::new(link) };
            symlink(to, place.project(".codex")).unwrap();
        }
        for command in ["connect codex --project --yes", "disconnect codex --project"] {
            let said = place.run(command);
            assert_eq!(said.code, Some(77), "{link}: {said:?}");
            assert!(said.stderr.contains("leads out of the project"), "{said:?}");
        }
        assert_eq!(read(&outside), "model = \"mine\"\n");
        assert_eq!(names(&home), ["config.toml"], "{link}");
    }
}

#[test]
fn a_link_that_stays_in_the_project_is_followed() {
    let place = Place::new();
    write(&place.project("settings/codex/config.toml"), "model = \"m\"\n");
    symlink("settings/codex", place.project(".codex")).unwrap();
    place.done("connect codex --project --yes");
    assert!(read(&place.project("settings/codex/config.toml")).contains("ringfence"));
    assert!(place.project(".codex").is_symlink());
}

/// A copy under the right name that is a link to a file of the user.
#[test]
fn a_planted_copy_is_not_followed() {
    let place = Place::new();
    let secret = place.home("secret.json");
    write(&secret, "{\"private\": true}");
    place.done("connect claude --project --yes");
    let connected = read(&place.project(".mcp.json"));
    for name in names(&place.project("")) {
        if name.contains("ringfence-") {
            let path = place.project(&name);
            std::fs::remove_file(&path).unwrap();
            symlink(&secret, path.with_extension("bak")).unwrap();
        }
    }
    place.done("disconnect claude --project");
    let file = place.project(".mcp.json");
    assert!(connected.contains("ringfence"));
    assert!(!file.exists() || !read(&file).contains("private"), "{}", read(&file));
    assert_eq!(read(&secret), "{\"private\": true}");
}

#[test]
fn what_is_no_regular_file_is_refused() {
    let place = Place::new();
    std::fs::create_dir_all(place.home(".codex/config.toml")).unwrap();
    let said = place.run("connect codex --yes");
    assert_ne!(said.code, Some(0), "{said:?}");
    assert!(said.stderr.contains("directory"), "{said:?}");
}

/// Escapes in a project's file would rewrite the terminal in which the change is approved.
#[test]
fn the_difference_shows_what_cannot_be_seen() {
    let place = Place::new();
    write(&place.project(".codex/config.toml"), "# \u{9b}2J \u{202e}evil\na = 1\n");
    let shown = place.done("connect codex --project --dry-run");
    assert!(!shown.contains('\u{9b}') && !shown.contains('\u{202e}'), "{shown:?}");
    assert!(shown.contains("evil"), "{shown}");
    assert_eq!(names(&place.project(".codex")), ["config.toml"]);
}
