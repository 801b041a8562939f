//! Where tests put what a sandbox must be able to see. Every run has a `/tmp` and a `/var/tmp` of its own, so what lies
//! below those is no subject for a test of hiding or reaching; and a clone may well lie there.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::UNIX_EPOCH;

use super::server::binary;

/// A directory that sandboxes see and that every user of these tests can reach.
pub fn visible_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        // Each clone has its own, so that two can be tested at once.
        let clone = env!("CARGO_MANIFEST_DIR").trim_start_matches('/').replace('/', "-");
        let own = |base: PathBuf| base.join("ringfence-tests").join(&clone);
        let home = std::env::var_os("HOME").map(|home| own(PathBuf::from(home).join(".cache")));
        let places = [Some(env!("CARGO_TARGET_TMPDIR").into()), Some(own("/var/lib".into())), home];
        let mut places = places.into_iter().flatten();
        let found = places.find(|place| can_write(place) && is_visible(place) && is_open(place));
        found.expect(
            "these tests need a directory outside of /tmp: a clone, or a home, that lies elsewhere",
        )
    })
}

/// The binary itself where every sandbox and every user sees it, else a copy of this very build.
pub fn visible_binary() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        let own = std::fs::canonicalize(binary()).unwrap();
        if is_visible(&own) && is_open(&own) {
            return own;
        }
        let data = std::fs::metadata(&own).unwrap();
        let time = data.modified().unwrap().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let folder = visible_folder().join(format!("{}-{time}", data.len()));
        let copy = folder.join("ringfence");
        if !copy.exists() {
            std::fs::create_dir_all(&folder).unwrap();
            // Under another name first: a parallel test must not run half a file.
            let partial = folder.join(std::process::id().to_string());
            if std::fs::hard_link(&own, &partial).is_err() {
                std::fs::copy(&own, &partial).unwrap();
            }
            std::fs::rename(&partial, &copy).unwrap();
        }
        copy
    })
}

/// Whether this user can put something there: it may be left from another one's run.
fn can_write(folder: &Path) -> bool {
    let probe = folder.join(format!("probe-{}", std::process::id()));
    std::fs::create_dir_all(&probe).and_then(|()| std::fs::remove_dir(&probe)).is_ok()
}

fn is_visible(path: &Path) -> bool {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    !["/tmp", "/var/tmp"].iter().any(|private| path.starts_with(private))
}

/// Whether everybody can reach and read it. Only root runs tests as other users.
fn is_open(path: &Path) -> bool {
    let mode = |path: &Path| std::fs::metadata(path).map_or(0, |data| data.permissions().mode());
    let reaches = |folder: &Path| folder.as_os_str().is_empty() || mode(folder) & 0o001 == 0o001;
    !rustix::process::geteuid().is_root()
        || (mode(path) & 0o005 == 0o005 && path.ancestors().skip(1).all(reaches))
}
