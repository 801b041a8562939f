//! Finds the home directory of the Codex that started this process.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::base::client_process::find_client_process;

/// The variable that names the home.
const CODEX_HOME: &str = "CODEX_HOME";
/// The name of Codex's process.
const CODEX_PROCESS: &str = "codex";
/// Write permission for everyone.
const WRITABLE_BY_ALL: u32 = 0o002;

/// Returns the home of the Codex that started this process, if it can be found out. Only a
/// directory that belongs to our user and is not writable by everyone is trusted.
pub fn find_client_home(search_path: Option<&OsStr>) -> Option<PathBuf> {
    let candidate = home_from_client().or_else(|| search_path.and_then(home_from_search_path))?;
    let home = candidate.canonicalize().ok()?;
    let metadata = home.metadata().ok()?;
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    (metadata.is_dir() && is_ours && metadata.mode() & WRITABLE_BY_ALL == 0).then_some(home)
}

/// Reads the home from the client's environment, if the client is Codex and its environment is
/// readable.
fn home_from_client() -> Option<PathBuf> {
    let client = find_client_process()?;
    if fs::read_to_string(format!("/proc/{client}/comm")).ok()?.trim_end() != CODEX_PROCESS {
        return None;
    }
    home_from_environ(&fs::read(format!("/proc/{client}/environ")).ok()?)
}

/// Finds CODEX_HOME in the contents of /proc/PID/environ.
fn home_from_environ(environ: &[u8]) -> Option<PathBuf> {
    let prefix = [CODEX_HOME.as_bytes(), b"="].concat();
    let value =
        environ.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(prefix.as_slice()))?;
    Some(PathBuf::from(OsString::from_vec(value.to_vec()))).filter(|home| home.is_absolute())
}

/// Returns the home whose helpers are on the search path. Codex removes their directory when it
/// exits.
fn home_from_search_path(search_path: &OsStr) -> Option<PathBuf> {
    let starts_with = |part: Option<&OsStr>, prefix: &str| {
        part.is_some_and(|part| part.as_bytes().starts_with(prefix.as_bytes()))
    };
    std::env::split_paths(search_path).find_map(|helpers| {
        let arg0 = helpers.parent()?;
        let tmp = arg0.parent()?;
        let is_codex = helpers.is_absolute()
            && starts_with(helpers.file_name(), "codex-arg0")
            && starts_with(arg0.file_name(), "arg0")
            && tmp.file_name() == Some(OsStr::new("tmp"))
            && helpers.is_dir();
        is_codex.then(|| tmp.parent().map(Path::to_owned)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::scratch::Scratch;

    #[test]
    fn a_home_is_found_by_the_helpers_of_codex_on_the_search_path() {
        let scratch = Scratch::new();
        let home = scratch.path().join("elsewhere");
        for (helpers, is_found) in [
            ("tmp/arg0-linux/codex-arg0FRE5j2", true),
            ("tmp/arg0/codex-arg0x", true),
            ("tmp/other/codex-arg0x", false),
            ("tmp/arg0/other", false),
            ("arg0/codex-arg0x", false),
        ] {
            let helpers = home.join(helpers);
            let path =
                std::env::join_paths([Path::new("/usr/bin"), &helpers, Path::new("/bin")]).unwrap();
            assert_eq!(
                home_from_search_path(&path),
                None,
                "a directory that is gone names nothing"
            );
            fs::create_dir_all(&helpers).unwrap();
            assert_eq!(home_from_search_path(&path).is_some(), is_found, "{}", helpers.display());
            assert_eq!(find_client_home(Some(&path)).is_some(), is_found, "{}", helpers.display());
            fs::remove_dir_all(&home).unwrap();
        }
        assert_eq!(home_from_environ(b"HOME=/h\0CODEX_HOME=/c d\0X=1\0"), Some("/c d".into()));
        assert_eq!(home_from_environ(b"OLD_CODEX_HOME=/c\0CODEX_HOME=relative\0"), None);
    }

    #[test]
    fn a_home_that_everyone_can_write_is_not_believed() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = Scratch::new();
        let helpers = scratch.path().join("tmp/arg0-linux/codex-arg0x");
        fs::create_dir_all(&helpers).unwrap();
        assert_eq!(find_client_home(Some(helpers.as_os_str())), scratch.path().canonicalize().ok());
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(find_client_home(Some(helpers.as_os_str())), None);
    }
}
