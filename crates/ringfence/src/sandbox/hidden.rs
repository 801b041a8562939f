//! Paths that no run may read: locations of credentials from a list, and the locations that
//! variables name instead.
//!
//! A variable can name anything. It must never hide what a run needs: the workspace, the home
//! directory as a whole, the system, or `/dev/null`, which switches a file off.

use std::path::{Path, PathBuf};

use super::config::HostPaths;
use crate::config;

/// One or more paths per line, and the reason.
const HIDDEN_LIST: &str = include_str!("hidden.list");

/// Directories with mixed contents, which are never hidden as a whole.
const SHARED_DIRECTORIES: &[&str] = &[
    "/", "/boot", "/dev", "/etc", "/home", "/media", "/mnt", "/opt", "/proc", "/root", "/srv",
    "/sys", "/var",
];

/// Returns every path on the list, whether it exists or not.
pub(super) fn listed_paths(host: &HostPaths, workspace: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in list_entries() {
        match (entry.strip_prefix("~/"), entry.strip_prefix('$')) {
            (Some(relative_path), _) => {
                paths.extend(host.home.as_ref().map(|home| home.join(relative_path)))
            }
            (_, Some(variable_entry)) => {
                paths.extend(named_by_variable(host, variable_entry).filter(|path| {
                    // Covering a path follows links.
                    let target = path.canonicalize().unwrap_or_else(|_| path.clone());
                    can_be_hidden(host, workspace, path) && can_be_hidden(host, workspace, &target)
                }))
            }
            (None, None) => paths.push(PathBuf::from(entry)),
        }
    }
    paths
}

fn list_entries() -> impl Iterator<Item = &'static str> {
    HIDDEN_LIST.lines().filter_map(|line| line.split('#').next()).flat_map(str::split_whitespace)
}

/// Returns the paths for `NAME` or `NAME/below`.
fn named_by_variable<'a>(
    host: &'a HostPaths,
    entry: &'a str,
) -> impl Iterator<Item = PathBuf> + 'a {
    let (name, relative_path) = entry.split_once('/').unwrap_or((entry, ""));
    let values = host.credential_paths.iter().filter(move |(variable, _)| *variable == name);
    // Joining an empty path would add a slash at the end.
    values.map(
        move |(_, path)| {
            if relative_path.is_empty() { path.clone() } else { path.join(relative_path) }
        },
    )
}

/// Returns whether runs can do without this path. A path in the workspace is the operator's own
/// choice.
fn can_be_hidden(host: &HostPaths, workspace: &Path, path: &Path) -> bool {
    let is_ancestor_of = |needed: &Path| needed.starts_with(path);
    let is_common = SHARED_DIRECTORIES.iter().any(|common| path == Path::new(common));
    // A run has its own directories under these names, and owns what it creates there.
    let is_replaced =
        config::REPLACED_DIRECTORIES.iter().any(|directory| path.starts_with(directory));
    !is_common
        && !is_replaced
        && !config::is_system_path(path)
        && !path.starts_with(workspace)
        && !is_ancestor_of(workspace)
        && !host.home.as_deref().is_some_and(is_ancestor_of)
        && !host.rustup_home.as_deref().is_some_and(is_ancestor_of)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::env::CREDENTIAL_VARIABLES;
    use crate::config::{ProcessEnv, ProfileSetting};
    use crate::sandbox::SandboxConfig;

    fn hidden(variables: &[(&str, &str)]) -> Vec<PathBuf> {
        let dir = std::env::temp_dir().join(crate::base::ids::short_id("ringfence-hidden"));
        std::fs::create_dir_all(dir.join("ws")).unwrap();
        let mut config = crate::sandbox::tests::config(&dir, ProfileSetting::Default);
        std::fs::remove_dir_all(&dir).unwrap();
        config.home = Some("/home/someone".into());
        config.rustup_home = Some("/opt/rust/rustup".into());
        config.credential_paths =
            ProcessEnv::new(variables.iter().copied(), "/").credential_paths();
        let sandbox_config = SandboxConfig::from_config(&config);
        listed_paths(&sandbox_config.host, Path::new("/work/project"))
    }

    #[test]
    fn every_line_has_a_reason_and_every_variable_is_read() {
        for line in HIDDEN_LIST.lines().filter(|line| !line.is_empty()) {
            assert!(
                line.split_once('#').is_some_and(|(_, reason)| !reason.trim().is_empty()),
                "{line}"
            );
        }
        let named: BTreeSet<&str> = list_entries()
            .filter_map(|word| word.strip_prefix('$'))
            .filter_map(|word| word.split('/').next())
            .collect();
        assert_eq!(named, CREDENTIAL_VARIABLES.iter().copied().collect());
        assert!(
            list_entries().all(|word| word.starts_with("~/")
                || word.starts_with('$')
                || word.starts_with('/'))
        );
    }

    #[test]
    fn the_list_follows_variables() {
        let places = hidden(&[
            ("CARGO_HOME", "/opt/cargo"),
            ("DOCKER_CONFIG", "/opt/docker"),
            ("XDG_CONFIG_HOME", "/opt/settings"),
            ("GNUPGHOME", "/opt/keys"),
            ("KUBECONFIG", "/opt/kube/one:/opt/kube/two/"),
            ("GOOGLE_APPLICATION_CREDENTIALS", "/key.json"),
        ]);
        for place in [
            "/opt/cargo/credentials.toml",
            "/opt/docker/config.json",
            "/opt/settings/gh",
            "/opt/settings/git/credentials",
            "/opt/keys",
            "/opt/kube/one",
            "/opt/kube/two",
            "/key.json",
            "/home/someone/.cargo/credentials.toml",
            "/home/someone/.config/gh",
            "/etc/shadow",
        ] {
            assert!(places.contains(&PathBuf::from(place)), "{place}");
        }
        assert!(
            !places.contains(&PathBuf::from("/opt/cargo"))
                && !places.contains(&PathBuf::from("/opt/settings"))
        );
    }

    #[test]
    fn no_variable_hides_what_a_run_needs() {
        let usual = hidden(&[]);
        for value in [
            "/",
            "/etc",
            "/dev/null",
            "/usr/share/keys",
            "/home",
            "/home/someone",
            "/work",
            "/work/project",
            "/work/project/keys",
            "/opt/rust",
            "/opt",
            "/tmp/keys",
            "/run/keys",
            "relative",
            "",
            &format!("/opt/{}", "x".repeat(4096)),
        ] {
            for variable in ["GNUPGHOME", "KUBECONFIG", "PIP_CONFIG_FILE"] {
                assert_eq!(hidden(&[(variable, value)]), usual, "{variable}={value}");
            }
        }
        // Through a link, too.
        let link =
            std::env::temp_dir().join(format!("ringfence-hidden-link-{}", std::process::id()));
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink("/usr/share", &link).unwrap();
        let found = hidden(&[("GNUPGHOME", link.to_str().unwrap())]);
        std::fs::remove_file(&link).unwrap();
        assert_eq!(found, usual);
    }
}
