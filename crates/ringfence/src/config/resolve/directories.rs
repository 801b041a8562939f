//! Directories: where the root and the workspace are, and where they must not be.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::base::workspace::Workspace;
use crate::base::{Error, Kind, Result};
use crate::config::Config;

const ROOT_HINT: &str = "Name another directory with `--root` (or SANDBOX_ROOT).";

/// Returns the canonical form of a path whose last components may not exist yet.
pub fn canonicalize_partial(path: &Path) -> Result<PathBuf> {
    let unusable = |path: &Path| {
        Error::invalid_arguments(format!("the path {} cannot be used", path.display()))
    };
    let mut missing_names = Vec::new();
    let mut existing = path;
    loop {
        match existing.canonicalize() {
            Ok(mut canonical) => {
                canonical.extend(missing_names.iter().rev());
                return Ok(canonical);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // `file_name` is None for `..`, which has no meaning below a directory that does
                // not exist.
                let (Some(parent), Some(name)) = (existing.parent(), existing.file_name()) else {
                    return Err(unusable(path).with_source(error));
                };
                // A dangling link would move the directory once its target appears.
                if existing.is_symlink() {
                    return Err(
                        unusable(path).with_hint("It leads through a dangling symbolic link.")
                    );
                }
                missing_names.push(name);
                existing = parent;
            }
            Err(error) => return Err(unusable(path).with_source(error)),
        }
    }
}

/// Makes a path absolute. `base` is where relative paths start.
pub fn make_absolute(path: &Path, base: Option<&Path>, home: Option<&Path>) -> Result<PathBuf> {
    let mut parts = path.components();
    if parts.next() == Some(Component::Normal("~".as_ref()))
        && let Some(home) = home
    {
        return Ok(home.join(parts.as_path()));
    }
    match base {
        _ if path.is_absolute() => Ok(path.to_owned()),
        Some(base) => Ok(base.join(path)),
        None => Err(Error::invalid_arguments(format!(
            "the path {} is relative to an unknown directory",
            path.display()
        ))
        .with_hint("Give the full path.")),
    }
}

/// A directory, and whether the operator named it or it is a default.
pub struct NamedDir<'a> {
    pub path: &'a Path,
    pub is_explicit: bool,
}

/// Directories and files that a workspace must not contain.
pub struct ForbiddenDirs<'a> {
    pub home: Option<PathBuf>,
    pub root: NamedDir<'a>,
    /// Directories and files that control this server: a process that can write there can change
    /// the rules.
    pub control_files: &'a [(&'static str, PathBuf)],
}

/// Refuses workspaces that would give the tools more than a project. Returns the paths to close
/// inside it.
pub fn check_workspace(
    workspace: &NamedDir<'_>,
    forbidden_dirs: &ForbiddenDirs<'_>,
) -> Result<Vec<PathBuf>> {
    let (path, root) = (workspace.path, &forbidden_dirs.root);
    if path.parent().is_none() {
        return Err(workspace_error("`/`"));
    }
    if let Some(home) = &forbidden_dirs.home
        && home.starts_with(path)
    {
        return Err(workspace_error(if home == path {
            "the home directory"
        } else {
            "a directory that contains the home directory"
        }));
    }
    for (label, control_path) in forbidden_dirs.control_files {
        if control_path.starts_with(path) {
            return Err(workspace_error(&format!("a directory that contains {label}")));
        }
    }
    if path == root.path {
        return Err(workspace_error("the root directory of this server"));
    }
    // Audit files, sockets and other principals' files are here; only its `workspaces` are for
    // tools.
    if path.starts_with(root.path) && path.parent() != Some(&root.path.join("workspaces")) {
        return Err(workspace_error("a directory inside the root directory of this server"));
    }
    if !root.path.starts_with(path) {
        return Ok(Vec::new());
    }
    // If both are named, the operator meant it, and the root is closed to every tool. Otherwise it
    // is an accident.
    match workspace.is_explicit && root.is_explicit {
        true => Ok(vec![root.path.to_owned()]),
        false => {
            Err(workspace_error("a directory that contains the root directory of this server"))
        }
    }
}

/// Refuses control files in directories that runs can write to, and paths to them that lead through
/// such directories.
pub fn check_control_files(
    control_files: &[(&'static str, PathBuf)],
    root: &Path,
    writable: &[PathBuf],
) -> Result<()> {
    let server_dirs = ["workspaces", "homes", "tmp"].map(|name| root.join(name));
    let writable_dirs: Vec<(&PathBuf, PathBuf)> =
        writable.iter().filter_map(|path| Some((path, path.canonicalize().ok()?))).collect();
    for (label, control_path) in control_files {
        let refuse = |dir: &Path, remedy: &str| {
            let message = format!(
                "commands could replace {label}, because they can write to {}",
                dir.display()
            );
            Err(Error::invalid_arguments(message)
                .with_reason("bad_place")
                .with_hint(format!("{remedy} {} out of it.", control_path.display())))
        };
        if let Some(dir) = server_dirs.iter().find(|dir| control_path.starts_with(dir)) {
            return refuse(dir, "Move");
        }
        let writable_dir = writable_dirs.iter().find(|(_, dir)| control_path.starts_with(dir));
        if let Some((dir, _)) = writable_dir {
            return refuse(dir, &format!("Remove {} from `writable`, or move", dir.display()));
        }
    }
    Ok(())
}

fn workspace_error(description: &str) -> Error {
    Error::new(Kind::InvalidArguments, format!("the workspace cannot be {description}"))
        .with_reason("bad_workspace")
        .with_hint("Name a project directory with `--workspace` (or SANDBOX_WORKSPACE).")
}

/// Creates the root on first use, and refuses one that another user can write to.
pub fn prepare_root(config: &Config) -> Result<()> {
    prepare_root_dir(&config.root)?;
    let prepare = |directory: &Path| {
        create_private_dir(directory).map_err(|error| {
            root_error(&config.root, "cannot be used").with_hint(ROOT_HINT).with_source(error)
        })
    };
    if config.secrets.uses_store() {
        // Created early, so that it can be watched before it contains anything.
        prepare(&config.root.join("secrets"))?;
    }
    if let Some(directory) = config.upstreams.lock_path.as_deref().and_then(Path::parent)
        && directory.starts_with(&config.root)
    {
        // Created early for the same reason.
        prepare(directory)?;
    }
    Ok(())
}

fn root_error(root: &Path, problem: &str) -> Error {
    Error::new(Kind::Unavailable, format!("the root directory {} {problem}", root.display()))
}

/// Creates the root directory itself on first use, and refuses one that another user can write to.
pub fn prepare_root_dir(root: &Path) -> Result<()> {
    let failed = |problem: &str| root_error(root, problem);
    let hint = ROOT_HINT;
    create_private_dir(root)
        .map_err(|error| failed("cannot be created").with_hint(hint).with_source(error))?;
    // Inspected through the opened directory, so that the directory checked is the one that was
    // opened.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let stat = rustix::fs::open(root, flags, Mode::empty())
        .and_then(rustix::fs::fstat)
        .map_err(|error| failed("cannot be opened").with_hint(hint).with_source(error))?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(failed("belongs to another user").with_reason("foreign_root").with_hint(hint));
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(failed("can be written to by other users").with_reason("open_root").with_hint(
            format!("Run `chmod 700 {}`, or name another directory with `--root`.", root.display()),
        ));
    }
    Ok(())
}

/// Opens a caller's workspace. `directory` is the name of the principal's own directory; it is used
/// only over HTTP, if no workspace is configured and none is shared.
pub fn open_workspace_for(config: &Config, directory: &str) -> Result<Workspace> {
    if let Some(path) = &config.workspace {
        return Workspace::open(path, &config.closed_paths);
    }
    let name = if config.shared_workspace { "shared" } else { directory };
    let is_plain_name = matches!(Path::new(name).components().collect::<Vec<_>>()[..], [Component::Normal(part)] if part == name);
    if !is_plain_name {
        return Err(Error::internal("a principal's directory must be a plain name"));
    }
    let path = config.root.join("workspaces").join(name);
    create_private_dir(&path)
        .map_err(|error| Error::internal("cannot create the workspace").with_source(error))?;
    Workspace::open(&path, &[])
}

fn create_private_dir(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::config::resolve_config;
    use crate::config::scratch::Scratch;
    use crate::config::{ConfigFlags, ProcessEnv};

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn config(scratch: &Scratch, http: bool) -> Config {
        let flags = ConfigFlags {
            root: Some(scratch.path().join("state/root")),
            http: http.then(|| "0".to_owned()),
            ..ConfigFlags::default()
        };
        resolve_config(
            &flags,
            &ProcessEnv::new([("HOME", scratch.dir("home"))], scratch.dir("project")),
        )
        .unwrap()
    }

    #[test]
    fn the_root_is_made_private_and_a_loose_one_is_refused() {
        let scratch = Scratch::new();
        let config = config(&scratch, false);
        prepare_root(&config).unwrap();
        prepare_root(&config).unwrap();
        assert_eq!(mode(&config.root), 0o700);
        for loose in [0o770, 0o702] {
            std::fs::set_permissions(&config.root, PermissionsExt::from_mode(loose)).unwrap();
            let error = prepare_root(&config).unwrap_err();
            assert_eq!(error.reason_name(), Some("open_root"));
            assert!(error.hint_text().unwrap().contains("chmod 700"), "{error:?}");
        }
    }

    #[test]
    fn a_foreign_root_is_refused() {
        let scratch = Scratch::new();
        let mut config = config(&scratch, false);
        // `/usr` belongs to root; when the tests run as root, a directory given away is as foreign.
        config.root = PathBuf::from("/usr");
        if rustix::process::geteuid().is_root() {
            config.root = scratch.dir("given");
            std::os::unix::fs::chown(&config.root, Some(12345), None).unwrap();
        }
        assert_eq!(prepare_root(&config).unwrap_err().reason_name(), Some("foreign_root"));
    }

    #[test]
    fn each_principal_has_a_workspace_of_its_own_unless_shared() {
        let scratch = Scratch::new();
        let mut config = config(&scratch, true);
        prepare_root(&config).unwrap();
        let alice = open_workspace_for(&config, "alice-01").unwrap();
        let bob = open_workspace_for(&config, "bob-02").unwrap();
        assert_eq!(alice.path(), config.root.join("workspaces/alice-01"));
        assert_ne!(alice.path(), bob.path());
        assert_eq!(mode(alice.path()), 0o700);
        for name in ["..", "a/b", "/etc", "", ".", "a/"] {
            assert!(open_workspace_for(&config, name).is_err(), "{name}");
        }
        config.shared_workspace = true;
        assert_eq!(
            open_workspace_for(&config, "alice-01").unwrap().path(),
            config.root.join("workspaces/shared")
        );
    }

    #[test]
    fn a_path_settles_through_links_and_beyond_what_exists() {
        let scratch = Scratch::new();
        let real = scratch.dir("real");
        symlink(&real, scratch.path().join("link")).unwrap();
        symlink("nowhere", scratch.path().join("dangling")).unwrap();
        assert_eq!(
            canonicalize_partial(&scratch.path().join("link/a/b")).unwrap(),
            real.join("a/b")
        );
        assert!(canonicalize_partial(&scratch.path().join("real/missing/../../x")).is_err());
        assert!(canonicalize_partial(&scratch.path().join("dangling/x")).is_err());
    }

    #[test]
    fn a_writable_directory_that_contains_a_control_file_is_named() {
        let scratch = Scratch::new();
        let etc = scratch.dir("etc");
        let control_files = [("the config file", etc.join("rf/config.toml"))];
        let root = scratch.path().join("root");
        let check = |writable: PathBuf| check_control_files(&control_files, &root, &[writable]);
        assert!(check(scratch.dir("other")).is_ok());
        let file = control_files[0].1.display();
        for dir in [PathBuf::from("/"), etc.clone()] {
            let error = check(dir.clone()).unwrap_err();
            let dir = dir.display();
            assert_eq!(
                error.message(),
                format!("commands could replace the config file, because they can write to {dir}")
            );
            assert_eq!(
                error.hint_text(),
                Some(&*format!("Remove {dir} from `writable`, or move {file} out of it."))
            );
        }
        let homes = root.join("homes");
        let control_files = [("the config file", homes.join("config.toml"))];
        let error = check_control_files(&control_files, &root, &[]).unwrap_err();
        assert!(error.message().ends_with(&format!("write to {}", homes.display())), "{error}");
        assert!(error.hint_text().unwrap().starts_with("Move "), "{error:?}");
    }

    #[test]
    fn the_workspace_rules_as_a_table() {
        let keepers = |root: &'static str, named| ForbiddenDirs {
            home: Some("/home/ada".into()),
            root: NamedDir { path: Path::new(root), is_explicit: named },
            control_files: Box::leak(Box::new([("the config file", PathBuf::from("/etc/rf"))])),
        };
        let check = |workspace, named, root, root_named| {
            check_workspace(
                &NamedDir { path: Path::new(workspace), is_explicit: named },
                &keepers(root, root_named),
            )
        };
        let far = "/var/rf";
        assert_eq!(check("/home/ada/code", true, far, false).unwrap(), Vec::<PathBuf>::new());
        assert_eq!(check("/home/adam", false, far, false).unwrap(), Vec::<PathBuf>::new());
        for workspace in [
            "/",
            "/home/ada",
            "/home",
            "/etc",
            "/etc/rf",
            "/var/rf",
            "/var/rf/audit",
            "/var/rf/workspaces/a/b",
        ] {
            let error = check(workspace, true, far, true).unwrap_err();
            assert!(error.hint_text().unwrap().contains("--workspace"), "{workspace}");
        }
        assert!(check("/var/rf/workspaces/shared", true, far, true).is_ok());
        // A root inside the workspace: both named, or refused.
        assert_eq!(
            check("/srv/p", true, "/srv/p/.rf", true).unwrap(),
            [PathBuf::from("/srv/p/.rf")]
        );
        for (named, root_named) in [(true, false), (false, true), (false, false)] {
            assert!(check("/srv/p", named, "/srv/p/.rf", root_named).is_err());
        }
    }
}
