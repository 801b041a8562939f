//! Tests on an overlay file system, where the first write to a file creates a copy of it.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::base::workspace::tests::Scratch;

const MOUNTED: &str = "RINGFENCE_TEST_LAYERS";
const NO_MOUNT: i32 = 77;

#[test]
fn the_first_edit_of_a_lower_file_is_not_stale() {
    if let Some(dir) = std::env::var_os(MOUNTED) {
        return edit_below(std::path::Path::new(&dir));
    }
    // A mount needs its own namespace, and that needs its own process: run this same test again in
    // it.
    let scratch = Scratch::new();
    for dir in ["lower", "upper", "work", "merged"] {
        fs::create_dir(scratch.dir.join(dir)).unwrap();
    }
    for file in ["a", "b"] {
        fs::write(scratch.dir.join("lower").join(file), "old\n").unwrap();
    }
    let script = format!(
        "mount -t tmpfs none upper && mkdir upper/u upper/w && \
         mount -t overlay -o lowerdir=lower,upperdir=upper/u,workdir=upper/w none merged || exit {NO_MOUNT}; \
         exec \"$0\" --exact tools::file::replace::layers_tests::the_first_edit_of_a_lower_file_is_not_stale"
    );
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", &script])
        .arg(std::env::current_exe().unwrap())
        .current_dir(&scratch.dir)
        .env(MOUNTED, scratch.dir.join("merged"))
        .output();
    let output = match output {
        Ok(output) if output.status.code() != Some(NO_MOUNT) => output,
        other => {
            return eprintln!("overlay file systems cannot be mounted on this machine: {other:?}");
        }
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
    assert_eq!(fs::read(scratch.dir.join("lower/a")).unwrap(), b"old\n");
}

fn edit_below(dir: &std::path::Path) {
    let workspace = Arc::new(Workspace::open(dir, &[]).unwrap());
    let call = |arguments| {
        let Value::Object(map) = arguments else { panic!("an object") };
        let args: Args = FileReplace::new().spec.parse_arguments(&map).unwrap();
        replace_text(&workspace, &args, &CancelToken::new()).unwrap().replacements
    };
    let edits = json!([{"old": "old", "new": "new"}]);
    assert_eq!(call(json!({"path": ".", "glob": ["*"], "edits": edits, "total_expected": 2})), 2);
    assert_eq!(fs::read(dir.join("a")).unwrap(), b"new\n");
}
