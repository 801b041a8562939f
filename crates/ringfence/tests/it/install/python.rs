//! Packages for Python.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::{Place, look, refused};
use crate::support::SESSIONS;
use crate::support::place::visible_folder;
use crate::support::server::Scratch;
use crate::support::subset::assert_holds;

const SERVER: &str = include_str!("server.py");

/// Whether this machine has what the tests need. The system's own Python is meant: version managers keep theirs in the
/// user's home.
fn has_pip() -> bool {
    let pip = std::process::Command::new("/usr/bin/python3")
        .args(["-I", "-m", "pip", "--version"])
        .output();
    pip.is_ok_and(|output| output.status.success())
}

/// The runner's path leads to the Python next to it.
fn place(args: &[&str]) -> Place {
    Place::new("/usr/bin/pipx", args)
}

#[test]
fn a_wheel_is_installed_and_starts_without_network() {
    if !has_pip() {
        return;
    }
    let place = place(&["run", "--spec", "tiny==1.0.0", "tiny", "--flag"]);
    place.registry.publish_wheel("tiny", SERVER);
    place.install(&[]);
    assert_holds(
        json!({"tiny": {
            "runner": "pipx", "requested": ["tiny==1.0.0"], "version": "1.0.0",
            "integrity": "~sha256:", "tree": "~sha256:",
        }}),
        &place.lock()["packages"],
    );
    place.accept();
    let mut server = place.serve();
    let mut client = server.connect(SESSIONS);
    let seen = look(&mut client, json!({}));
    assert_eq!(seen["argv"], json!(["--flag"]));
    assert_eq!(seen["env"]["UV_OFFLINE"], "1");
    assert_eq!((&seen["own"], &seen["beside"]), (&json!("OSError"), &json!("OSError")));
    drop((client, server));
    std::fs::write(place.tree().join("other.py"), "").unwrap();
    let mut server = place.serve();
    let mut client = server.connect(SESSIONS);
    assert_holds(
        json!({"kind": "permission_denied", "reason": "package_changed"}),
        &refused(&mut client),
    );
}

#[test]
fn only_wheels_are_installed_and_a_missing_program_is_named() {
    if !has_pip() {
        return;
    }
    let source = place(&["run", "tiny"]);
    source.registry.put_archive("tiny", "tiny-1.0.0.tar.gz", b"never read".to_vec());
    source.fail_to_install(&[]);
    source.assert_nothing();
    let other = place(&["run", "--spec", "tiny", "other"]);
    other.registry.publish_wheel("tiny", SERVER);
    let text = other.fail_to_install(&[]);
    assert!(text.contains("no program `other`") && text.contains(": tiny."), "{text}");
    other.assert_nothing();
}

/// A place whose Python is a script that starts the real one, as version managers have it.
fn place_with_shim(script: &str) -> (Place, std::sync::Arc<Scratch>) {
    let shims = Scratch::within(visible_folder());
    for (name, text) in [("pipx", "#!/bin/sh\n"), ("python3", script)] {
        let path = shims.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let place = Place::new(shims.path().join("pipx").to_str().unwrap(), &["run", "tiny"]);
    place.registry.publish_wheel("tiny", SERVER);
    (place, shims)
}

/// The wrapper of a version manager wants to write to its own directories after each installation, and fails.
#[test]
fn the_wrapper_of_a_version_manager_is_not_used_to_install() {
    if !has_pip() {
        return;
    }
    let script = "#!/bin/sh\n/usr/bin/python3 \"$@\" || exit\ncase \"$*\" in *install*) echo cannot rehash; exit 1;; esac\n";
    let (place, _shims) = place_with_shim(script);
    let text = place.install(&[]);
    assert!(text.contains("by /usr/bin/python3"), "{text}");
    place.accept();
    let mut server = place.serve();
    look(&mut server.connect(SESSIONS), json!({}));
}

/// What a wrapper names is started, so it must not be in the hands of an agent.
#[test]
fn a_wrapper_that_leads_to_the_workspace_is_refused() {
    let (place, shims) = place_with_shim("");
    let workspace = place.path("workspace").canonicalize().unwrap();
    let own = workspace.join("python3");
    std::fs::write(&own, "#!/bin/sh\ntouch ran\n").unwrap();
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).unwrap();
    let shim = shims.path().join("python3");
    let script = format!("#!/bin/sh\necho {}\n", own.display());
    std::fs::write(&shim, script).unwrap();
    let text = place.fail_to_install(&[]);
    assert!(text.contains("where an agent can change it"), "{text}");
    place.assert_nothing();
}
