//! Ignore rules of `.gitignore` and related files.
//!
//! The files are read by descriptor and used only as patterns. Their precedence is that of git and
//! ripgrep: the deepest directory with a matching pattern decides, `.ignore` before `.gitignore`
//! before `.git/info/exclude`, and files above a repository do not apply inside it.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{FileType, Mode, OFlags, fstat, openat};

use super::super::Workspace;
use super::{OPEN_DIR_FLAGS, open_dir_at};

/// More patterns than people write by hand.
const MAX_FILE_BYTES: u64 = 256 << 10;
const MAX_LINES: usize = 4096;

/// Ignore rules of a directory and of those above it.
#[derive(Debug)]
pub struct IgnoreRules {
    /// Number of leading bytes of a path that the patterns do not see.
    prefix_bytes: usize,
    ignore: Option<Gitignore>,
    gitignore: Option<Gitignore>,
    exclude: Option<Gitignore>,
    /// The directory is the root of a repository.
    is_repository: bool,
    above: Option<Arc<IgnoreRules>>,
}

impl IgnoreRules {
    /// Reads the rules that apply to the directory with these names, from the workspace down to its
    /// parent.
    pub fn read_above(workspace: &Workspace, names: &[OsString]) -> Option<Arc<IgnoreRules>> {
        let (_, parents) = names.split_last()?;
        let mut dir = openat(&workspace.base, ".", OPEN_DIR_FLAGS, Mode::empty()).ok()?;
        let mut rules = Arc::new(IgnoreRules::from_dir(&dir, 0, None));
        let mut prefix = 0;
        for name in parents {
            prefix += name.len() + usize::from(prefix > 0);
            // A directory that was removed in the meantime has no rules.
            let Ok(next_dir) = open_dir_at(&dir, name) else { break };
            dir = next_dir;
            rules = Arc::new(IgnoreRules::from_dir(&dir, prefix, Some(&rules)));
        }
        Some(rules)
    }

    /// Reads the rules of the directory itself, whose path has this length.
    pub fn from_dir(
        dir: &OwnedFd,
        path_bytes: usize,
        parent_rules: Option<&Arc<IgnoreRules>>,
    ) -> IgnoreRules {
        let git_dir = open_at(dir, ".git", OFlags::PATH);
        let exclude = git_dir.as_ref().and_then(|git_dir| {
            read_patterns(&open_dir_at(git_dir, "info".as_ref()).ok()?, "exclude")
        });
        IgnoreRules {
            prefix_bytes: path_bytes + usize::from(path_bytes > 0),
            ignore: read_patterns(dir, ".ignore"),
            gitignore: read_patterns(dir, ".gitignore"),
            exclude,
            is_repository: git_dir.is_some(),
            above: parent_rules.cloned(),
        }
    }

    /// Returns whether a path is ignored; `None` if no pattern matches it.
    pub fn is_ignored(&self, path: &[u8], is_dir: bool) -> Option<bool> {
        let (mut ignore, mut gitignore, mut exclude) = (None, None, None);
        let mut is_outside_repository = false;
        for rules in std::iter::successors(Some(self), |rules| rules.above.as_deref()) {
            let relative_path = Path::new(std::ffi::OsStr::from_bytes(
                path.get(rules.prefix_bytes..).unwrap_or_default(),
            ));
            let match_path = |matcher: &Option<Gitignore>| match matcher
                .as_ref()?
                .matched(relative_path, is_dir)
            {
                Match::None => None,
                Match::Ignore(_) => Some(true),
                Match::Whitelist(_) => Some(false),
            };
            ignore = ignore.or_else(|| match_path(&rules.ignore));
            if !is_outside_repository {
                gitignore = gitignore.or_else(|| match_path(&rules.gitignore));
                exclude = exclude.or_else(|| match_path(&rules.exclude));
            }
            is_outside_repository |= rules.is_repository;
        }
        ignore.or(gitignore).or(exclude)
    }
}

fn open_at(dir: &OwnedFd, name: &str, access: OFlags) -> Option<OwnedFd> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    openat(dir, name, flags, Mode::empty()).ok()
}

/// Reads a pattern file. A file that cannot be read or parsed ignores nothing.
fn read_patterns(dir: &OwnedFd, name: &str) -> Option<Gitignore> {
    let fd = open_at(dir, name, OFlags::RDONLY)?;
    if FileType::from_raw_mode(fstat(&fd).ok()?.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut text = Vec::new();
    File::from(fd).take(MAX_FILE_BYTES).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    // Paths are passed relative to the file's own directory; with any other root, the builder would
    // strip that from them.
    let mut builder = GitignoreBuilder::new(".");
    for line in text.trim_start_matches('\u{feff}').lines().take(MAX_LINES) {
        // Invalid patterns are skipped, as git does.
        let _ = builder.add_line(None, line);
    }
    builder.build().ok().filter(|patterns| !patterns.is_empty())
}
