//! Environment of a run: a short allow-list of names from the server's own, and what the call adds.
//!
//! The server's environment holds tokens and keys, so it is never passed on whole; a variable that
//! is not on the list does not exist for a run.

use std::ffi::OsString;

use crate::base::{Error, Result};

/// Names that ordinary programs need.
const BASELINE: &[&str] = &["PATH", "HOME", "LANG", "TERM", "TZ", "USER", "LOGNAME", "SHELL"];
const BASELINE_PREFIX: &str = "LC_";
/// `PATH` of a run if the server has none.
pub const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Names that make a program load or run other code than it was asked to: a call that says `git
/// status` must not run another program. A command may still set them itself, where everyone who
/// reads it sees them.
const CODE_LOADING_NAMES: &[&str] = &[
    "PATH",
    "BASH_ENV",
    "ENV",
    "SHELLOPTS",
    "BASHOPTS",
    "PROMPT_COMMAND",
    "PS4",
    "IFS",
    "CDPATH",
    "GLOBIGNORE",
    "ZDOTDIR",
    "FPATH",
    "GCONV_PATH",
    "LOCPATH",
    "NLSPATH",
    "MALLOC_TRACE",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONINSPECT",
    "PYTHONBREAKPOINT",
    "PERL5OPT",
    "PERL5LIB",
    "PERL5DB",
    "PERLLIB",
    "RUBYOPT",
    "RUBYLIB",
    "NODE_OPTIONS",
    "NODE_PATH",
    "LUA_INIT",
    "PHPRC",
    "PHP_INI_SCAN_DIR",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "CLASSPATH",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "OPENSSL_CONF",
    "OPENSSL_ENGINES",
    "HOME",
    "XDG_CONFIG_HOME",
    "XDG_CONFIG_DIRS",
    "PAGER",
    "MANPAGER",
    "EDITOR",
    "VISUAL",
    "LESSOPEN",
    "LESSCLOSE",
    "MAKEFLAGS",
    "MAKEFILES",
];
const CODE_LOADING_PREFIXES: &[&str] =
    &["LD_", "DYLD_", "BASH_FUNC_", "LUA_INIT_", "GIT_", "CARGO_", "npm_config_", "NPM_CONFIG_"];

/// More names that a client may not set for a whole session: they would decide, for every command
/// that the operator configured, what code it runs, which hosts it talks to and which it trusts,
/// without showing in the command. Written in upper case, and compared without regard to case.
const STEERING: &[&str] = &[
    "SHELL",
    "TAR_OPTIONS",
    "GREP_OPTIONS",
    "GOFLAGS",
    "GOPROXY",
    "GOENV",
    "GOROOT",
    "GOPATH",
    "GOTOOLCHAIN",
    "CURL_CA_BUNDLE",
    "CURL_HOME",
    "WGETRC",
    "REQUESTS_CA_BUNDLE",
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "KUBECONFIG",
    "TMPDIR",
    "TMP",
    "TEMP",
    "RIPGREP_CONFIG_PATH",
    "CC",
    "CXX",
    "CFLAGS",
    "CPPFLAGS",
    "CXXFLAGS",
    "LDFLAGS",
    "VIMINIT",
    "EXINIT",
    "BROWSER",
    "LESS",
    "MAVEN_OPTS",
    "GRADLE_OPTS",
];
const STEERING_PREFIXES: &[&str] = &[
    "PYTHON",
    "PYTEST_",
    "PIP_",
    "UV_",
    "RUBY",
    "GEM_",
    "BUNDLE_",
    "PERL",
    "NODE_",
    "DOTNET_",
    "RUST",
    "SSL_",
    "SSH_",
    "XDG_",
    "DOCKER_",
    "AWS_ENDPOINT_URL",
    "NPM_",
];
const STEERING_SUFFIXES: &[&str] = &["_PROXY", "_ASKPASS"];

/// Returns the exact environment of a run: the baseline, overridden by what the call gives.
pub fn build(variables: &[(String, String)]) -> Result<Vec<(String, String)>> {
    let mut env = baseline_env(std::env::vars_os());
    for (name, value) in variables {
        check_variable(name, value)?;
        env.retain(|(known, _)| known != name);
        env.push((name.clone(), value.clone()));
    }
    Ok(env)
}

/// User variables that say where git finds settings.
const GIT_SETTINGS: &[&str] =
    &["XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"];

/// Returns those that are set, with `prefix` before their names.
pub fn git_settings(prefix: &str) -> Vec<(String, String)> {
    let value =
        |name: &&str| std::env::var(name).ok().map(|value| (format!("{prefix}{name}"), value));
    GIT_SETTINGS.iter().filter_map(value).collect()
}

/// User variables that say which certificates package managers trust. Each names a file or a
/// directory.
const CERTIFICATE_SETTINGS: &[&str] = &[
    "NODE_EXTRA_CA_CERTS",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "npm_config_cafile",
    "NPM_CONFIG_CAFILE",
];

/// Returns those that are set.
pub fn certificate_settings() -> Vec<(String, String)> {
    let names = CERTIFICATE_SETTINGS.iter();
    names.filter_map(|name| Some(((*name).to_owned(), nonempty_variable(name)?))).collect()
}

/// Returns the package registry that the operator's environment names in the first of these
/// variables. It may contain a password.
pub fn registry_setting(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| nonempty_variable(name))
}

fn nonempty_variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns `env` with the variables of `additions`, which replace those of the same names.
pub fn merge_env(
    mut env: Vec<(String, String)>,
    additions: Vec<(String, String)>,
) -> Vec<(String, String)> {
    env.retain(|(name, _)| !additions.iter().any(|(other, _)| other == name));
    env.extend(additions);
    env
}

/// Returns the variables in which Codex finds its credentials, as far as the operator's environment
/// has them. The values must never be shown.
pub fn codex_keys() -> Vec<(String, String)> {
    ["OPENAI_API_KEY", "CODEX_API_KEY"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), nonempty_variable(name)?)))
        .collect()
}

/// Returns the operator's own environment, for commands that leave the sandbox: all of it except
/// the variables of this server.
pub fn operator_env() -> Vec<(String, String)> {
    let is_server_variable = |name: &str| {
        ["MCP_AUTH_", "RINGFENCE_", "SANDBOX_"].iter().any(|prefix| name.starts_with(prefix))
            || crate::config::env::VARIABLES
                .iter()
                .any(|variable| variable.secret && variable.name == name)
    };
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    variables.filter(|(name, _)| !is_server_variable(name)).collect()
}

fn baseline_env(server_env: impl Iterator<Item = (OsString, OsString)>) -> Vec<(String, String)> {
    let mut env: Vec<(String, String)> = server_env
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| BASELINE.contains(&name.as_str()) || name.starts_with(BASELINE_PREFIX))
        .collect();
    if !env.iter().any(|(name, _)| name == "PATH") {
        env.push(("PATH".to_owned(), DEFAULT_PATH.to_owned()));
    }
    env.sort_unstable();
    env
}

/// Checks that a call may set this variable.
pub fn check_variable(name: &str, value: &str) -> Result<()> {
    let display_name: String = name.chars().take(64).collect();
    if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
        return Err(Error::invalid_arguments(format!(
            "`env` has an invalid entry: `{display_name}`"
        ))
        .with_hint(
            "A name must not be empty or contain `=`; neither name nor value may contain a NUL.",
        ));
    }
    if CODE_LOADING_NAMES.contains(&name)
        || CODE_LOADING_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    {
        return Err(Error::permission_denied(
            "env_name",
            format!("a call may not set the variable `{display_name}`"),
        )
        .with_hint(format!(
            "It decides what code runs: set it inside the command instead (`{display_name}=… program`)."
        )));
    }
    Ok(())
}

/// Checks that a client may set this variable for its session, where the operator lets clients do
/// so.
pub fn check_override(name: &str, value: &str) -> Result<()> {
    check_variable(name, value)?;
    let upper_name = name.to_ascii_uppercase();
    let is_steering = STEERING.contains(&upper_name.as_str())
        || CODE_LOADING_NAMES.contains(&upper_name.as_str())
        || [STEERING_PREFIXES, CODE_LOADING_PREFIXES]
            .concat()
            .iter()
            .any(|prefix| upper_name.starts_with(prefix))
        || STEERING_SUFFIXES.iter().any(|suffix| upper_name.ends_with(suffix));
    if is_steering {
        let display_name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
        return Err(Error::permission_denied("env_name", format!("a client may not set the variable `{display_name}`")).with_hint(
            "It decides what code runs or which hosts it talks to. The operator can set it in the `env` of a command.",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn only_listed_names_pass() {
        let ours = pairs(&[
            ("MCP_AUTH_JWT_SECRET", "s"),
            ("LC_ALL", "C"),
            ("HOME", "/h"),
            ("LD_PRELOAD", "x"),
            ("HOMEX", "y"),
        ]);
        let env = baseline_env(ours.into_iter());
        let expected = [("HOME", "/h"), ("LC_ALL", "C"), ("PATH", DEFAULT_PATH)];
        assert_eq!(env, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_name_that_loads_code_is_refused() {
        for name in [
            "LD_PRELOAD",
            "LD_X",
            "PATH",
            "BASH_ENV",
            "ENV",
            "SHELLOPTS",
            "PYTHONSTARTUP",
            "BASH_FUNC_ls%%",
            "GIT_EXTERNAL_DIFF",
            "HOME",
            "PAGER",
        ] {
            let error = build(&[(name.to_owned(), "x".to_owned())]).unwrap_err();
            assert_eq!(error.reason_name(), Some("env_name"), "{name}");
        }
        for (name, value) in [("", "x"), ("A=B", "x"), ("A", "x\0y")] {
            assert!(check_variable(name, value).is_err(), "{name}");
        }
    }

    #[test]
    fn the_call_overrides_the_baseline() {
        let env = build(&[
            ("PATH_INFO".to_owned(), "x".to_owned()),
            ("LANG".to_owned(), "xx".to_owned()),
            ("X".to_owned(), "1".to_owned()),
        ])
        .unwrap();
        assert_eq!(env.iter().filter(|(name, _)| name == "LANG").count(), 1);
        assert!(env.contains(&("LANG".to_owned(), "xx".to_owned())));
        assert!(env.contains(&("X".to_owned(), "1".to_owned())));
    }
}
