//! Home directory of Codex, with its rules.
//!
//! Codex does not pass CODEX_HOME on to the MCP servers that it starts, so a server whose user has
//! set it would read other rules than its client, or none. Two things reveal the client's home: the
//! environment of the process that started the server, if that is Codex, and the directory with
//! Codex's own helpers, which Codex puts in front of PATH
//! (`$CODEX_HOME/tmp/arg0-linux/codex-arg0XXXXXX`). Both are controlled by the process that started
//! the server, as is its environment. Nothing in a workspace is configuration: a home inside one is
//! not used.

use std::path::{Path, PathBuf};

use crate::config::env::{self, ProcessEnv};

/// Rules that the host's administrator provides for every Codex.
const SYSTEM_RULES: &str = "/etc/codex/rules";

/// Directories of rules, as Codex would look for them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RulesDirs {
    /// Directories whose rules apply, in the order in which they are read.
    pub effective: Vec<PathBuf>,
    /// Directories of other homes, which do not apply. Rules in there are worth a warning if there
    /// are no others.
    pub ignored: Vec<PathBuf>,
}

/// Returns the home of Codex: from the environment, else that of the Codex that started us, else
/// `~/.codex`.
pub fn find_codex_home(env: &ProcessEnv, workspace: Option<&Path>) -> Option<PathBuf> {
    candidate_homes(env, workspace).into_iter().next()
}

/// Returns the directories of rules. A workspace provides no configuration, so a client's home
/// inside one does not count.
pub fn find_rules_dirs(env: &ProcessEnv, workspace: Option<&Path>) -> RulesDirs {
    let mut homes = candidate_homes(env, workspace).into_iter();
    let mut effective = vec![PathBuf::from(SYSTEM_RULES)];
    effective.extend(homes.next().map(|home| home.join("rules")));
    let mut ignored: Vec<PathBuf> = Vec::new();
    for home in homes.chain(env.client_codex_home.clone()) {
        let rules = home.join("rules");
        if !effective.contains(&rules) && !ignored.contains(&rules) {
            ignored.push(rules);
        }
    }
    RulesDirs { effective, ignored }
}

/// Returns every possible home, the effective one first.
fn candidate_homes(env: &ProcessEnv, workspace: Option<&Path>) -> Vec<PathBuf> {
    let is_outside =
        |home: &&PathBuf| workspace.is_none_or(|workspace| !home.starts_with(workspace));
    let explicit_home = env.get_absolute(env::CODEX_HOME).map(Path::to_owned);
    let client_home = env.client_codex_home.as_ref().filter(is_outside).cloned();
    let default_home = env.get_absolute(env::HOME).map(|home| home.join(".codex"));
    let mut homes: Vec<PathBuf> = Vec::new();
    for home in [explicit_home, client_home, default_home].into_iter().flatten() {
        if !homes.contains(&home) {
            homes.push(home);
        }
    }
    homes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)], client: Option<&str>) -> ProcessEnv {
        let mut env = ProcessEnv::new(pairs.iter().copied(), "/");
        env.client_codex_home = client.map(PathBuf::from);
        env
    }

    #[test]
    fn the_variable_counts_before_the_client_and_the_client_before_the_home_directory() {
        let home = |pairs: &[(&str, &str)], client| {
            find_codex_home(&env(pairs, client), Some(Path::new("/work")))
        };
        let both = [("HOME", "/h"), ("CODEX_HOME", "/named")];
        assert_eq!(home(&both, Some("/client")), Some("/named".into()));
        assert_eq!(home(&both[..1], Some("/client")), Some("/client".into()));
        assert_eq!(home(&both[..1], None), Some("/h/.codex".into()));
        assert_eq!(home(&[], None), None);
        assert_eq!(
            home(&both[..1], Some("/work/.codex")),
            Some("/h/.codex".into()),
            "a workspace configures nothing"
        );
    }

    #[test]
    fn rules_of_the_host_are_read_first_and_other_homes_are_known() {
        let dirs = find_rules_dirs(
            &env(&[("HOME", "/h"), ("CODEX_HOME", "/named")], Some("/client")),
            None,
        );
        assert_eq!(dirs.effective, [Path::new("/etc/codex/rules"), Path::new("/named/rules")]);
        assert_eq!(dirs.ignored, [Path::new("/client/rules"), Path::new("/h/.codex/rules")]);
        let dirs =
            find_rules_dirs(&env(&[("HOME", "/h")], Some("/work/c")), Some(Path::new("/work")));
        assert_eq!(dirs.effective[1..], [Path::new("/h/.codex/rules")]);
        assert_eq!(dirs.ignored, [Path::new("/work/c/rules")]);
    }
}
