//! npm's layout: a tree with `node_modules`, and a lock file that says what was installed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::manager::{
    InstallPaths, InstalledVersion, ManagerCommand, read_json, too_many_programs,
};
use super::request::{PackageRequest, is_program_name};
use crate::base::{Error, Result};

/// Most programs that an error lists.
const MAX_LISTED: usize = 20;

/// Returns the command that installs the packages.
pub fn install_command(
    npm: &Path,
    request: &PackageRequest,
    paths: &InstallPaths,
    run_scripts: bool,
) -> ManagerCommand {
    let mut args: Vec<String> = ["install", "--no-audit", "--no-fund", "--no-progress"]
        .into_iter()
        .chain(["--no-update-notifier", "--loglevel=http", "--fetch-retries=1"])
        .chain(["--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=2000"])
        .map(str::to_owned)
        .collect();
    args.push(format!("--ignore-scripts={}", !run_scripts));
    args.push(format!("--prefix={}", paths.tree.display()));
    args.push(format!("--cache={}", paths.cache.display()));
    args.push("--".to_owned());
    args.extend(request.packages.iter().cloned());
    // Without one in the tree npm would look for it in the directories above.
    let files = vec![("package.json", "{\"private\": true}\n")];
    ManagerCommand { program: npm.to_owned(), args, files, env: Vec::new() }
}

/// Returns what was installed of the first package, by npm's own lock file.
pub fn installed_version(tree: &Path, request: &PackageRequest) -> Result<InstalledVersion> {
    let lock = read_json(&tree.join("package-lock.json"))?;
    let entry = &lock["packages"][format!("node_modules/{}", request.package_name())];
    let text = |member: &str| entry[member].as_str().map(str::to_owned);
    let version = text("version").ok_or_else(|| {
        Error::internal(format!("npm did not record the version of `{}`", request.package_name()))
    })?;
    Ok(InstalledVersion { version, integrity: text("integrity") })
}

/// Returns the program, as `npm exec` chooses it: the one that was named; else the only one of the
/// package, or the one with the package's name.
pub fn find_program(tree: &Path, request: &PackageRequest) -> Result<PathBuf> {
    let name = match &request.program {
        Some(name) => name.clone(),
        None => choose_program(tree, request.package_name())?,
    };
    let program = tree.join("node_modules/.bin").join(&name);
    match program.is_file() {
        true => Ok(program),
        false => Err(too_many_programs(
            format!("the package has no program `{name}`"),
            list_programs(tree),
            "Name one of these after `-p PACKAGE` in the server's arguments",
        )),
    }
}

fn choose_program(tree: &Path, package: &str) -> Result<String> {
    let manifest = read_json(&tree.join("node_modules").join(package).join("package.json"))?;
    let unscoped = package.rsplit('/').next().unwrap_or(package);
    let programs: BTreeMap<&str, &str> = match &manifest["bin"] {
        Value::String(file) => BTreeMap::from([(unscoped, file.as_str())]),
        // A name may be anything, also a path to somewhere else.
        Value::Object(bin) => bin
            .iter()
            .filter(|(name, _)| is_program_name(name))
            .filter_map(|(name, file)| Some((name.as_str(), file.as_str()?)))
            .collect(),
        _ => BTreeMap::new(),
    };
    // Several names for one file are one program.
    let mut files: Vec<&str> = programs.values().copied().collect();
    files.dedup();
    match programs.keys().next() {
        Some(first) if files.len() == 1 => Ok((*first).to_owned()),
        Some(_) if programs.contains_key(unscoped) => Ok(unscoped.to_owned()),
        _ => Err(too_many_programs(
            format!("the package `{package}` does not say which program to start"),
            programs.keys().map(|name| (*name).to_owned()).collect(),
            &format!("Choose one with `-p {package} PROGRAM` in the server's arguments"),
        )),
    }
}

fn list_programs(tree: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(tree.join("node_modules/.bin")).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.take(MAX_LISTED).collect()
}

/// Returns the variables of a start. Some servers call npm themselves, which must not wait for a
/// network that does not exist.
pub fn start_env() -> Vec<(String, String)> {
    [("npm_config_offline", "true"), ("npm_config_update_notifier", "false")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::scratch::Scratch;

    #[test]
    fn the_program_is_chosen_as_npm_exec_does() {
        for (name, bin, chosen) in [
            ("one", json!("cli.js"), Some("one")),
            ("@a/one", json!("cli.js"), Some("one")),
            ("one", json!({"other": "cli.js"}), Some("other")),
            ("one", json!({"b": "cli.js", "a": "cli.js"}), Some("a")),
            ("@a/one", json!({"x": "x.js", "one": "cli.js"}), Some("one")),
            ("one", json!({"x": "x.js", "y": "y.js"}), None),
            ("one", json!({"../../../../bin/sh": "x.js"}), None),
            ("one", Value::Null, None),
        ] {
            let scratch = Scratch::new();
            let manifest = json!({"name": name, "bin": bin}).to_string();
            scratch.file(&format!("node_modules/{name}/package.json"), &manifest);
            let found = choose_program(scratch.path(), name);
            match (found, chosen) {
                (Ok(found), Some(chosen)) => assert_eq!(found, chosen, "{bin}"),
                (Err(error), None) => assert!(error.hint_text().unwrap().contains("-p one")),
                (found, _) => panic!("{bin}: {found:?}"),
            }
        }
    }
}
