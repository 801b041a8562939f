//! Compares what git would execute before and after a run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jail::rights::Rights;

use super::ask::RepositoryAnswer;
use super::hooks::hook_files;
use super::{display_path, is_writable_by_run};

/// Maximum bytes read of one hook. A longer one is compared by its beginning and its size.
const MAX_HOOK_BYTES: u64 = 64 << 10;
/// Maximum number of names in one line.
const MAX_NAMES: usize = 8;
/// Settings that git writes in ordinary work and that make it execute nothing.
const HARMLESS_SETTINGS: &[(&str, &[&str])] = &[
    ("branch.", &[".remote", ".merge", ".rebase", ".description", ".pushremote"]),
    ("submodule.", &[".active"]),
    ("user.", &[".name", ".email"]),
];

/// Beginning of a line about a new repository.
pub const NEW_REPOSITORY: &str = "a repository was made: ";

/// Snapshot of the settings and hooks of every repository.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct GitSnapshot(BTreeMap<String, RepositoryState>);

#[derive(Debug, Default, PartialEq, Eq)]
struct RepositoryState {
    readable: bool,
    /// All values of each setting, in their order.
    settings: BTreeMap<String, Vec<Vec<u8>>>,
    hooks: BTreeMap<PathBuf, String>,
}

impl GitSnapshot {
    /// Takes a snapshot, based on git's answers.
    pub fn from_answers(rights: &Rights, answers: &[RepositoryAnswer]) -> GitSnapshot {
        let mut repositories = BTreeMap::new();
        for answer in answers {
            let location = match &answer.settings {
                Some(settings) => settings.git_dir.clone(),
                None => answer.query.as_protected().path,
            };
            // Two work trees can share one repository and have different hooks.
            let location = display_path(rights, &location);
            let queried = display_path(rights, answer.query_path());
            let name = if location.starts_with(&queried) || queried == "." {
                location
            } else {
                format!("{queried} ({location})")
            };
            repositories.insert(name, RepositoryState::from_answer(rights, answer));
        }
        GitSnapshot(repositories)
    }

    /// Describes every repository that has changed, one line for each change.
    pub fn changes_since(&self, previous: &GitSnapshot) -> Vec<String> {
        let created = self.0.iter().filter(|(name, _)| !previous.0.contains_key(*name));
        let mut lines: Vec<String> =
            created.map(|(name, _)| format!("{NEW_REPOSITORY}{name}")).collect();
        for (name, old_state) in &previous.0 {
            match self.0.get(name) {
                None => lines.push(format!("a repository was removed: {name}")),
                Some(new_state) => lines.extend(
                    new_state
                        .changes_since(old_state)
                        .map(|change| format!("{change} of {name} changed")),
                ),
            }
        }
        lines
    }
}

impl RepositoryState {
    fn from_answer(rights: &Rights, answer: &RepositoryAnswer) -> RepositoryState {
        let Some(settings) = &answer.settings else { return RepositoryState::default() };
        let mut repository =
            RepositoryState { readable: answer.is_certain(), ..RepositoryState::default() };
        for (file, key, value) in settings.entries.iter().filter(|(_, key, _)| !is_harmless(key)) {
            // A run cannot have changed what it cannot write.
            if is_writable_by_run(rights, file) {
                repository.settings.entry(key.clone()).or_default().push(value.clone());
            }
        }
        let hooks =
            hook_files(settings).into_iter().filter(|file| is_writable_by_run(rights, file));
        repository.hooks = hooks
            .map(|file| (describe_hook(&file), file))
            .map(|(content, file)| (file, content))
            .collect();
        repository
    }

    fn changes_since(&self, previous: &RepositoryState) -> impl Iterator<Item = String> {
        let settings = differing_keys(&self.settings, &previous.settings).map(|key| key.to_owned());
        let name =
            |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let hooks = differing_keys(&self.hooks, &previous.hooks).map(name);
        let format_line = |subject: &str, names: Vec<String>| {
            let ellipsis = if names.len() > MAX_NAMES { ", …" } else { "" };
            let names = names
                .iter()
                .take(MAX_NAMES)
                .map(|name| name.escape_debug().to_string())
                .collect::<Vec<_>>()
                .join(", ");
            (!names.is_empty()).then(|| format!("{subject} ({names}{ellipsis})"))
        };
        let readability_change =
            (self.readable != previous.readable).then(|| "readability".to_owned());
        let lines = [
            format_line("settings", settings.collect()),
            format_line("hooks", hooks.collect()),
            readability_change,
        ];
        lines.into_iter().flatten()
    }
}

/// Returns the keys that are in only one of the maps, or have different values in the two.
fn differing_keys<'a, K: Ord, V: PartialEq>(
    current: &'a BTreeMap<K, V>,
    previous: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = &'a K> {
    let changed =
        current.iter().filter(|(key, value)| previous.get(key) != Some(value)).map(|(key, _)| key);
    changed.chain(previous.keys().filter(|key| !current.contains_key(key)))
}

fn is_harmless(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    HARMLESS_SETTINGS.iter().any(|(prefix, suffixes)| {
        key.starts_with(prefix) && suffixes.iter().any(|suffix| key.ends_with(suffix))
    })
}

/// Describes a hook by its kind, mode and content. It may be anything, even a pipe.
fn describe_hook(path: &Path) -> String {
    let link = std::fs::read_link(path).ok();
    let real_path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let path = real_path.as_path();
    let Ok(metadata) = path.symlink_metadata() else { return format!("{link:?}") };
    let mut hash = blake3::Hasher::new();
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path);
    if let Some(mut file) =
        file.ok().filter(|_| metadata.is_file()).map(|file| file.take(MAX_HOOK_BYTES))
    {
        let mut content = Vec::new();
        // A file that cannot be read is still compared by its size and mode.
        let _ = file.read_to_end(&mut content);
        hash.update(&content);
    }
    format!("{link:?} {:o} {} {}", metadata.mode(), metadata.len(), hash.finalize().to_hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(settings: &[(&str, &str)], hooks: &[(&str, &str)]) -> RepositoryState {
        let settings = settings
            .iter()
            .map(|(key, value)| ((*key).to_owned(), vec![value.as_bytes().to_vec()]));
        let hooks = hooks
            .iter()
            .map(|(name, text)| (PathBuf::from("/w/.git/hooks").join(name), (*text).to_owned()));
        RepositoryState { readable: true, settings: settings.collect(), hooks: hooks.collect() }
    }

    fn picture(repositories: Vec<(&str, RepositoryState)>) -> GitSnapshot {
        GitSnapshot(
            repositories
                .into_iter()
                .map(|(place, repository)| (place.to_owned(), repository))
                .collect(),
        )
    }

    #[test]
    fn what_git_would_execute_otherwise_is_named() {
        let before = picture(vec![
            (".git", repository(&[("core.editor", "vi")], &[("pre-commit", "a")])),
            ("old", repository(&[], &[])),
        ]);
        let after = picture(vec![
            (
                ".git",
                repository(
                    &[("core.editor", "evil"), ("alias.x", "!sh")],
                    &[("pre-commit", "b"), ("pre-push", "c")],
                ),
            ),
            ("sub/.git", repository(&[], &[])),
        ]);
        assert_eq!(
            after.changes_since(&before),
            [
                "a repository was made: sub/.git",
                "settings (alias.x, core.editor) of .git changed",
                "hooks (pre-commit, pre-push) of .git changed",
                "a repository was removed: old",
            ]
        );
        assert_eq!(after.changes_since(&after), Vec::<String>::new());
    }

    #[test]
    fn ordinary_work_of_git_is_no_change() {
        for key in
            ["branch.main.remote", "branch.feature.x.merge", "user.email", "submodule.libs.active"]
        {
            assert!(is_harmless(key), "{key}");
        }
        for key in
            ["core.fsmonitor", "branch.x", "user.signingkey", "submodule.x.update", "remote.o.url"]
        {
            assert!(!is_harmless(key), "{key}");
        }
    }
}
