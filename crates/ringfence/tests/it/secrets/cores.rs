//! Memory holds secrets, and a core file is a copy of it.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;

use super::{serving, set};
use crate::support::server::binary;
use crate::support::{SESSIONS, Transport};

/// Whether a process of this host leaves a core where it crashes: without that the rest would prove nothing.
fn leaves_cores(folder: &Path) -> bool {
    let crash = "ulimit -c unlimited && kill -SEGV $$";
    let status = Command::new("bash").args(["-c", crash]).current_dir(folder).status().unwrap();
    status.core_dumped()
}

fn cores(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("core")).collect()
}

#[test]
fn a_crash_leaves_no_core_of_a_run_or_of_the_server() {
    let script = "import os, resource
print(resource.getrlimit(resource.RLIMIT_CORE)[1] <= 1, os.access('.', os.W_OK), flush=True)
try:
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30))
    print('raised', flush=True)
except (ValueError, OSError):
    pass
os.kill(os.getpid(), int(os.sys.argv[1]))";
    let keys = "env = { A = \"${secret:DB}\" }\nside_effects = [\"filesystem_write\"]";
    let serving = serving(Transport::Stdio, script, keys);
    let (scratch, workspace) = (serving.scratch.clone(), serving.scratch.path().join("workspace"));
    let control = scratch.path().join("control");
    std::fs::create_dir(&control).unwrap();
    assert!(
        leaves_cores(&control),
        "no process of this host leaves a core: see /proc/sys/kernel/core_pattern"
    );
    set(&scratch, "DB", "value-in-memory");
    // The server may leave cores as far as its limits go.
    let through = scratch.path().join("tools/unlimited");
    std::fs::write(
        &through,
        format!("#!/bin/sh\nulimit -c unlimited\nexec {} \"$@\"\n", binary().display()),
    )
    .unwrap();
    std::fs::set_permissions(&through, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut server = serving.options.through(through).spawn();
    let mut client = server.connect(SESSIONS);
    for signal in [6, 11] {
        let message = client.call("tool", json!({"mode": signal.to_string()}));
        let result = &message["result"]["structuredContent"];
        assert_eq!(
            (&result["signal"], &result["stdout"]),
            (&json!(signal), &json!("True True\n")),
            "{message:#}"
        );
    }
    assert_eq!(cores(&workspace), [""; 0].map(PathBuf::from));
    server.signal(Signal::ABORT);
    let status = server.ended();
    assert_eq!((status.signal(), status.core_dumped()), (Some(6), false), "{status:?}");
    assert_eq!(cores(&workspace), [""; 0].map(PathBuf::from));
}
