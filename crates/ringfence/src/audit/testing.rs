//! Helpers shared by the tests of the audit log.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::base::ids::{random_bytes, to_hex};

/// A directory of its own for one test, removed with it.
pub(super) struct Dir(PathBuf);

impl Dir {
    pub(super) fn new() -> Self {
        let path =
            std::env::temp_dir().join(format!("ringfence-audit-{}", to_hex(&random_bytes::<8>())));
        fs::create_dir(&path).unwrap();
        Dir(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn audit(&self, name: &str) -> PathBuf {
        self.0.join("audit").join(name)
    }

    /// The log files, oldest first.
    pub(super) fn logs(&self) -> Vec<String> {
        let names = super::store::list_names(&self.0.join("audit")).unwrap();
        names.into_iter().filter(|name| name.ends_with(".jsonl")).collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const ROLE: &str = "RINGFENCE_AUDIT_TEST_ROOT";

/// Returns the root to work on, in a child started by [`again`].
pub(super) fn child_root() -> Option<PathBuf> {
    std::env::var_os(ROLE).map(PathBuf::from)
}

/// Runs one test of this binary again, as another process that finds `root` in [`child_root`]. It
/// starts with SIGXFSZ ignored, so that exceeding a file-size limit is an error of write(2), like a
/// full disk, and not a signal.
pub(super) fn again(test: &str, root: &Path) -> Child {
    Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\" --exact \"$1\" --nocapture --test-threads 1"])
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(ROLE, root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}
