//! Asks the host's own git about repositories, in a run that can write nothing and reach nothing.
//!
//! A hostile repository must gain nothing by the query: hooks, file watchers, pagers and prompts
//! are off, only plumbing is called, and the output is bounded in time and size and split into
//! parts by a word that no one can guess.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jail::rights::{NetworkAccess, ProtectedPath, Rights, StandIn};
use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::env;
use super::super::launch::{LaunchRequest, StdinSource};
use super::super::session_sandbox::SessionSandbox;
use crate::base::ids::{random_bytes, to_hex};
use crate::base::{Error, Result, lexical};

const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_OUTPUT_BYTES: u64 = 4 << 20;
/// Number of parts in the answer about one repository.
const PARTS_PER_ANSWER: usize = 4;
/// Status of the paths of a repository that has no work tree.
const NO_WORK_TREE: &[u8] = b"3";
/// Prefix for the user's variables that say where git finds settings: some of them are set for
/// every run under their own names.
const VARIABLE_PREFIX: &str = "RINGFENCE_";

/// Status of a command that took too long.
const KILLED: &[u8] = b"137";

/// Each part is followed by a word, which comes on standard input, with the status of its command.
const SCRIPT: &str = r#"
exec 2>/dev/null
read -r word
home=$1; shift
unset GIT_DIR GIT_WORK_TREE
for name in XDG_CONFIG_HOME GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_CONFIG_NOSYSTEM; do
    unset "$name"
    eval "[ -z \"\${RINGFENCE_$name+x}\" ] || export $name=\"\$RINGFENCE_$name\""
done
[ -z "$home" ] || export HOME="$home"
export GIT_OPTIONAL_LOCKS=0 GIT_TERMINAL_PROMPT=0 GIT_PAGER=cat PAGER=cat
# Git fetches objects that it misses, with a program that the repository names.
export GIT_NO_LAZY_FETCH=1 GIT_ALLOW_PROTOCOL=
part() { "$@"; printf '\000%s %s\000' "$word" "$?"; }
# A time limit for each command, so that one repository cannot hide the others. Each costs the start
# of a program: a single repository needs it only where its contents decide how long git takes.
limit='timeout -s KILL 1'
call() { $limit git -c 'safe.directory=*' -c core.fsmonitor=false --no-pager "$@"; }
places='--git-dir --git-common-dir --git-path hooks'
# git ends at the first word that it cannot answer, so nothing is printed twice.
paths() {
    call "$@" rev-parse --path-format=absolute --show-toplevel $places && return
    call "$@" rev-parse --path-format=absolute $places && return 3
}
# If git was killed, the last entry has no path.
links() {
    { call "$@" ls-files -s -z; [ $? != 137 ] || printf '\000160000 killed\000'; } | grep -z '^160000 '
}
is_single=; [ $# -gt 1 ] || is_single=yes
for place; do
    [ -z "$is_single" ] || limit=
    dir=${place#?}
    case $place in
    W*) set -- -C "$dir"; export GIT_CEILING_DIRECTORIES="${dir%/*}" ;;
    *) set -- "--git-dir=$dir" ;;
    esac
    part call "$@" config -z --show-origin --includes --list
    part paths "$@"
    limit='timeout -s KILL 1'
    part links "$@"
    # Nothing comes after the last list of a single repository, so nothing is lost if it never ends.
    [ -z "$is_single" ] || limit=
    part call "$@" worktree list --porcelain -z
done
"#;

/// Place that git is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepositoryQuery {
    /// Directory with a `.git` in it.
    WorkTree(PathBuf),
    /// Directory that is, or may be, a repository itself.
    GitDir(PathBuf),
}

impl RepositoryQuery {
    /// Returns the path that is asked about.
    pub fn query_path(&self) -> &Path {
        match self {
            RepositoryQuery::WorkTree(path) | RepositoryQuery::GitDir(path) => path,
        }
    }

    /// Returns its repository, read-only as a whole: for one that is not asked about, or has no
    /// answer.
    pub fn as_protected(&self) -> ProtectedPath {
        let path = match self {
            RepositoryQuery::WorkTree(path) => path.join(".git"),
            RepositoryQuery::GitDir(path) => path.clone(),
        };
        ProtectedPath { path, stand_in: StandIn::Directory }
    }

    fn to_argument(&self) -> OsString {
        let mut argument =
            OsString::from(if matches!(self, RepositoryQuery::WorkTree(_)) { "W" } else { "G" });
        argument.push(self.query_path());
        argument
    }
}

/// Answer of git about one place.
#[derive(Debug)]
pub struct RepositoryAnswer {
    pub query: RepositoryQuery,
    /// Absent if git could not be asked: then no part of the repository may be written.
    pub settings: Option<GitSettings>,
    /// Git finished every list. What an unfinished one lacks could not be protected, so then no part
    /// of the repository may be written either.
    pub is_complete: bool,
    /// Submodules in the index, relative to the top of the work tree.
    pub submodules: Vec<PathBuf>,
    /// Directories of its other work trees.
    pub work_trees: Vec<PathBuf>,
}

/// Settings of a repository as git reads them.
#[derive(Debug)]
pub struct GitSettings {
    pub git_dir: PathBuf,
    pub common_dir: PathBuf,
    /// Directory where git looks for hooks with everything that is configured now.
    pub hooks: PathBuf,
    /// Top of the work tree, which settings can move; absent without one.
    pub top: Option<PathBuf>,
    /// File, key and value, in the order in which git reads them.
    pub entries: Vec<(PathBuf, String, Vec<u8>)>,
}

impl RepositoryAnswer {
    /// Builds the answer about a place that git was not asked about.
    pub fn new_unknown(query: RepositoryQuery) -> RepositoryAnswer {
        RepositoryAnswer {
            query,
            settings: None,
            is_complete: false,
            submodules: Vec::new(),
            work_trees: Vec::new(),
        }
    }

    /// Returns whether everything that git would execute is known.
    pub fn is_certain(&self) -> bool {
        self.settings.is_some() && self.is_complete
    }

    /// Returns the path that was asked about.
    pub fn query_path(&self) -> &Path {
        self.query.query_path()
    }

    /// Returns whether it also answers this question: a repository can be reached in several ways.
    pub fn answers_query(&self, query: &RepositoryQuery) -> bool {
        let by_dir =
            self.settings.as_ref().is_some_and(|settings| settings.git_dir == query.query_path());
        self.query == *query || matches!(query, RepositoryQuery::GitDir(_)) && by_dir
    }
}

/// Asks about all of these in one run. A failure of git, or its absence, is an answer too.
pub async fn query_git(
    sandbox: &SessionSandbox,
    home: Option<&Path>,
    queries: &[RepositoryQuery],
) -> Result<Vec<RepositoryAnswer>> {
    let marker = to_hex(&random_bytes::<16>());
    let mut output = Vec::new();
    // Use what arrived in time: one repository that delays git must not hide any other.
    if let Ok(outcome) = tokio::time::timeout(
        QUERY_TIMEOUT,
        run_script(sandbox, home, (&marker, queries), &mut output),
    )
    .await
    {
        outcome?;
    }
    let mut parts = split_parts(&output, &marker);
    Ok(queries.iter().map(|query| parse_answer(query, &mut parts)).collect())
}

async fn run_script(
    sandbox: &SessionSandbox,
    home: Option<&Path>,
    (word, queries): (&str, &[RepositoryQuery]),
    output: &mut Vec<u8>,
) -> Result<()> {
    let query_error = |error: io::Error| {
        Error::internal("git could not be asked about the repositories").with_source(error)
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let cwd = rustix::fs::open(sandbox.workspace_path(), flags, Mode::empty())
        .map_err(|errno| query_error(errno.into()))?;
    let home = home.map(Path::as_os_str).unwrap_or_default().to_owned();
    let fixed_args = ["-c".into(), SCRIPT.into(), "sh".into(), home];
    let repository_args = queries.iter().map(RepositoryQuery::to_argument);
    // A path that is not UTF-8 cannot be passed, and its repository stays without an answer.
    let args = fixed_args
        .into_iter()
        .chain(repository_args)
        .map(|word: OsString| word.into_string().unwrap_or_default());
    let request = LaunchRequest {
        program: "/bin/sh".to_owned(),
        args: args.collect(),
        cwd,
        cwd_path: sandbox.workspace_path().to_owned(),
        env: env::merge_env(env::build(&[])?, env::git_settings(VARIABLE_PREFIX)),
        stdin: StdinSource::Bytes(format!("{word}\n").into_bytes()),
        merge_stderr: false,
        rights: Some(read_only_rights(&sandbox.rights)),
        grace: Duration::ZERO,
        on_decision: None,
        execs: None,
        denied_hosts: Vec::new(),
        driver_socket: None,
        session_router: None,
    };
    let mut run = sandbox.start_run(request).await?;
    if let Some((mut stdin, bytes)) = run.stdin.take() {
        stdin.write_all(&bytes).await.map_err(query_error)?;
    }
    if let Some(stdout) = run.stdout.take() {
        stdout.take(MAX_OUTPUT_BYTES).read_to_end(output).await.map_err(query_error)?;
    }
    Ok(())
}

/// Returns the session's rights without a single place that can be written.
fn read_only_rights(rights: &Rights) -> Rights {
    let mut restricted = rights.clone();
    restricted.read_only_dirs.extend(rights.home.iter().chain(&rights.writable).cloned());
    (restricted.read_only, restricted.home, restricted.writable) = (true, None, Vec::new());
    (restricted.protected, restricted.git_protected, restricted.repositories) =
        (Vec::new(), Some(Vec::new()), Vec::new());
    restricted.network = NetworkAccess::Off;
    restricted
}

/// Output of one command, and its status.
#[derive(Debug, Default, Clone, Copy)]
struct AnswerPart<'s> {
    text: &'s [u8],
    status: &'s [u8],
}

impl AnswerPart<'_> {
    fn is_success(&self) -> bool {
        self.status == b"0"
    }
}

/// Splits the output into parts, each with the status of its command. An unfinished part is left
/// out.
fn split_parts<'s>(output: &'s [u8], marker: &str) -> std::vec::IntoIter<AnswerPart<'s>> {
    let separator = format!("\0{marker} ").into_bytes();
    let (mut parts, mut rest) = (Vec::new(), output);
    while let Some(offset) = find_bytes(rest, &separator) {
        let remainder = &rest[offset + separator.len()..];
        let Some(end) = remainder.iter().position(|byte| *byte == 0) else { break };
        parts.push(AnswerPart { text: &rest[..offset], status: &remainder[..end] });
        rest = &remainder[end + 1..];
    }
    parts.into_iter()
}

fn find_bytes(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len()).position(|window| window == needle)
}

fn parse_answer<'s>(
    query: &RepositoryQuery,
    parts: &mut impl Iterator<Item = AnswerPart<'s>>,
) -> RepositoryAnswer {
    let answer_parts: Vec<AnswerPart<'_>> = parts.by_ref().take(PARTS_PER_ANSWER).collect();
    let part = |index: usize| answer_parts.get(index).copied().unwrap_or_default();
    let (settings, paths, links, trees) = (part(0), part(1), part(2), part(3));
    let base = query.query_path();
    let git_settings = settings.is_success().then(|| parse_settings(base, settings.text, paths));
    let split_nul = |text: &'s [u8]| text.split(|byte| *byte == 0).filter(|part| !part.is_empty());
    let parse_link =
        |entry: &'s [u8]| entry.splitn(2, |byte| *byte == b'\t').nth(1).map(path_from_bytes);
    let parse_tree = |line: &'s [u8]| line.strip_prefix(b"worktree ").map(path_from_bytes);
    let is_complete = answer_parts.len() == PARTS_PER_ANSWER
        && split_nul(links.text).all(|entry| parse_link(entry).is_some())
        && trees.status != KILLED;
    RepositoryAnswer {
        query: query.clone(),
        settings: git_settings.flatten(),
        is_complete,
        submodules: split_nul(links.text).filter_map(parse_link).collect(),
        work_trees: if trees.is_success() {
            split_nul(trees.text).filter_map(parse_tree).collect()
        } else {
            Vec::new()
        },
    }
}

/// Returns `None` if anything cannot be read with certainty.
fn parse_settings(base: &Path, list: &[u8], paths: AnswerPart<'_>) -> Option<GitSettings> {
    let lines: Vec<&[u8]> = paths.text.strip_suffix(b"\n")?.split(|byte| *byte == b'\n').collect();
    // A line break in a path would produce more of them.
    let (top, git_dir, common_dir, hooks) = match lines[..] {
        [top, git_dir, common_dir, hooks] if paths.is_success() => {
            (Some(path_from_bytes(top)), git_dir, common_dir, hooks)
        }
        [git_dir, common_dir, hooks] if paths.status == NO_WORK_TREE => {
            (None, git_dir, common_dir, hooks)
        }
        _ => return None,
    };
    let mut entries = Vec::new();
    // Every field ends with a zero byte.
    let list = if list.is_empty() { list } else { list.strip_suffix(&[0])? };
    let mut fields = list.split(|byte| *byte == 0);
    while let Some(origin) = fields.next().filter(|origin| !origin.is_empty()) {
        let entry = fields.next()?;
        let key_end = entry.iter().position(|byte| *byte == b'\n').unwrap_or(entry.len());
        let key = String::from_utf8_lossy(&entry[..key_end]).into_owned();
        let value = entry.get(key_end + 1..).unwrap_or_default().to_vec();
        // Our own options have no file.
        if let Some(file) = origin.strip_prefix(b"file:") {
            entries.push((lexical::normalize_path(base, &path_from_bytes(file)), key, value));
        }
    }
    Some(GitSettings {
        git_dir: path_from_bytes(git_dir),
        common_dir: path_from_bytes(common_dir),
        hooks: path_from_bytes(hooks),
        top,
        entries,
    })
}

fn path_from_bytes(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_git_says_is_cut_where_nobody_can_forge_it() {
        let said = b"file:.git/config\0core.x\nfile:/etc/passwd\0\0WORD 0\0/w\n/w/.git\n/w/.git\n/w/.git/hooks\n\0WORD 0\0\
            160000 abc 0\tsub\0\0WORD 0\0worktree /w\0HEAD abc\0\0worktree /w/wt\0\0\0WORD 0\0cut off";
        let question = RepositoryQuery::WorkTree("/w".into());
        let mut parts = split_parts(said, "WORD");
        let answer = parse_answer(&question, &mut parts);
        let settings = answer.settings.as_ref().unwrap();
        assert_eq!(
            settings.entries,
            [("/w/.git/config".into(), "core.x".to_owned(), b"file:/etc/passwd".to_vec())]
        );
        assert_eq!(
            (settings.hooks.as_path(), answer.submodules.as_slice()),
            (Path::new("/w/.git/hooks"), &["sub".into()][..])
        );
        assert_eq!(answer.work_trees, [PathBuf::from("/w"), PathBuf::from("/w/wt")]);
        assert!(answer.answers_query(&RepositoryQuery::GitDir("/w/.git".into())));
        // Nothing is left for the next one.
        assert!(parse_answer(&question, &mut parts).settings.is_none());
    }

    #[test]
    fn a_list_that_was_cut_off_is_not_certain() {
        let begin = "\0WORD 0\0/w\n/w/.git\n/w/.git\n/w/.git/hooks\n\0WORD 0\0";
        let is_certain = |lists: &str| {
            let said = format!("{begin}{lists}");
            let question = RepositoryQuery::WorkTree("/w".into());
            parse_answer(&question, &mut split_parts(said.as_bytes(), "WORD")).is_certain()
        };
        assert!(is_certain("160000 abc 0\tsub\0\0WORD 0\0worktree /w\0\0\0WORD 0\0"));
        assert!(is_certain("\0WORD 1\0\0WORD 128\0"), "git has said why");
        assert!(!is_certain("160000 abc 0\tsub\x00160000 killed\0\0WORD 0\0\0WORD 0\0"));
        assert!(!is_certain("\0WORD 1\0\0WORD 137\0"));
        assert!(!is_certain("\0WORD 1\0"), "the last list did not arrive");
    }

    #[test]
    fn what_cannot_be_read_with_certainty_is_no_answer() {
        let parse = |list: &[u8], text: &str, status: &str| {
            let paths = AnswerPart { text: text.as_bytes(), status: status.as_bytes() };
            parse_settings(Path::new("/w"), list, paths).map(|settings| settings.top)
        };
        let (bare, whole) =
            ("/w/.git\n/w/.git\n/w/.git/hooks\n", "/w\n/w/.git\n/w/.git\n/w/.git/hooks\n");
        assert_eq!(parse(b"", whole, "0"), Some(Some("/w".into())));
        assert_eq!(parse(b"", bare, "3"), Some(None));
        for (text, status) in [
            ("/w/.git\n/w/.git\n", "3"),
            ("/a\nb/.git\n/w/.git\n/w/.git/hooks\n", "3"),
            (whole, "3"),
            (bare, "0"),
            (whole, "128"),
            (whole.trim_end(), "0"),
        ] {
            assert_eq!(parse(b"", text, status), None, "{text} {status}");
        }
        assert_eq!(parse(b"file:x\0", whole, "0"), None);
    }
}
