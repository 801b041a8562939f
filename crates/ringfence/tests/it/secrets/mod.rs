//! Secrets of an operator's commands: where they come from, who is told what about them, and that their values are in
//! nothing that we write.

mod command;
mod cores;
mod forms;
mod keyring;
mod later;
mod proof;
mod refusals;
mod rotation;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::escalate::Serving;
use crate::support::server::{Scratch, ringfence};

/// `ringfence secret …` on this root, with this on its standard input.
fn secret(scratch: &Scratch, words: &[&str], input: &str) -> Output {
    secret_with(scratch, words, input, &[])
}

fn secret_with(scratch: &Scratch, words: &[&str], input: &str, env: &[(&str, &str)]) -> Output {
    let mut command = ringfence(scratch);
    command.arg("secret").args(words).arg("--root").arg(scratch.path().join("root"));
    let config = scratch.path().join("config.toml");
    if config.is_file() {
        command.arg("--config").arg(config);
    }
    command.envs(env.iter().copied());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that wants no value has ended by now.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn set(scratch: &Scratch, name: &str, value: &str) {
    let output = secret(scratch, &["set", name], value);
    assert!(output.status.success(), "{output:?}");
}

fn text(output: &Output) -> String {
    String::from_utf8([&output.stdout[..], &output.stderr].concat()).unwrap()
}

fn env_file(scratch: &Scratch, lines: &str) -> PathBuf {
    let path = scratch.path().join("env");
    std::fs::write(&path, lines).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// A server with the operator's command `tool`, a Python script with `{mode}` as its argument.
fn serving(transport: crate::support::Transport, script: &str, keys: &str) -> Serving {
    let script = serde_json::to_string(script).unwrap();
    Serving::new(transport).config(&format!(
        "[mcp.tool]\ncommand = \"/usr/bin/python3\"\nargs = [\"-c\", {script}, \"{{mode}}\"]\n{keys}\n\
         input_schema = '{{\"type\": \"object\", \"properties\": {{\"mode\": {{\"type\": \"string\"}}}}}}'\n"
    ))
}

#[track_caller]
fn error_of(message: &Value) -> &Value {
    assert_eq!(message["result"]["isError"], true, "{message:#}");
    &message["result"]["structuredContent"]["error"]
}

/// Every file beneath that holds one of the values.
fn files_with(folder: &Path, values: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && holds(&std::fs::read(entry.path()).unwrap(), values) {
                found.push(entry.path());
            }
            assert!(!holds(entry.file_name().as_encoded_bytes(), values), "{:?}", entry.path());
        }
    }
    found
}

fn holds(bytes: &[u8], values: &[&str]) -> bool {
    values.iter().any(|value| bytes.windows(value.len()).any(|window| window == value.as_bytes()))
}
