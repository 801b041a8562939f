//! The question about one command: what is asked, and what the answer may be remembered for.

use std::path::Path;

use ::policy::ExecVerdict;
use jail::intercept::exec::wire::HeldExec;
use serde_json::{Map, Value, json};

use super::wider::CurrentSandbox;
use super::{CallDecider, ExecDestination};
use crate::approval::{ApprovalPrompt, Granted, TrustKey};
use crate::base::call::digest_json;
use crate::base::{Result, shell_quote};
use crate::config::EscalationMode;
use crate::redact::secret::is_sensitive;
use crate::sandbox::WaitingExec;
use crate::sandbox::escalate::{self, EscalatedExec};

/// Variables that every shell changes on its own.
const SHELL_NOISE_VARS: [&str; 4] = ["PWD", "OLDPWD", "SHLVL", "_"];

impl CallDecider {
    /// Asks for approval of one command.
    pub(super) async fn ask_approval(
        &self,
        held_exec: &HeldExec,
        destination: &ExecDestination,
        reason: &str,
        waiting: WaitingExec,
    ) -> Result<Granted<WaitingExec>> {
        let verdict = &held_exec.verdict;
        let cx = self.owner.owner_cx();
        // The subject is cut; the arguments below show the command in full.
        let command_text = self.shown_command(held_exec);
        let is_cut = command_text.chars().nth(120).is_some();
        let subject: String = command_text.chars().take(120).chain(is_cut.then_some('…')).collect();
        let prompt = ApprovalPrompt::for_exec(
            &self.call,
            subject,
            reason,
            self.prompt_fields(held_exec, destination),
            cx.session(),
        );
        let prompt = ApprovalPrompt {
            offers_inside: matches!(destination, ExecDestination::Outside(_)),
            ..prompt
        };
        // The remembered answer is tied to the files as well as the words: two scripts of one
        // interpreter may have the same words, and the same words mean something else in another
        // directory. It is also tied to the place, because what may run inside may not therefore
        // leave.
        let files = [Some(&held_exec.program), held_exec.script.as_ref(), Some(&held_exec.cwd)];
        let files = files.map(|file| file.map(|file| (file.device, file.inode)));
        let passed_env: Vec<_> = held_exec
            .env
            .iter()
            .filter(|(name, _)| cx.settings.config.policy.escalate_env.contains(name))
            .collect();
        let command_hash = digest_json(&json!([
            files,
            held_exec.argv,
            passed_env,
            matches!(destination, ExecDestination::Outside(_))
        ]));
        let rule = format!("exec {}:{}", verdict.origin.file, verdict.origin.line);
        let deadlines = self.owner.pausable_deadlines();
        let pauses: Vec<_> = deadlines.iter().map(|deadline| deadline.pause()).collect();
        let granted = cx
            .confirm_for_session(prompt, TrustKey { subject: rule, detail: command_hash }, waiting)
            .await;
        drop(pauses);
        granted
    }

    fn shown_command(&self, held_exec: &HeldExec) -> String {
        let argv = self.short_secrets.redact_argv(&held_exec.argv);
        shell_quote::quote_command(argv.iter().map(String::as_str))
    }

    /// Returns everything that matters for the decision, for a human.
    fn prompt_fields(&self, held_exec: &HeldExec, destination: &ExecDestination) -> Value {
        let mut fields = Map::new();
        let mut add =
            |name: &str, value: String| drop(fields.insert(name.to_owned(), value.into()));
        add("program", held_exec.program.path.clone());
        if let Some(script) = &held_exec.script {
            add("script", script.path.clone());
        }
        add("command", self.shown_command(held_exec));
        add("in", held_exec.cwd.path.clone());
        let path = match destination {
            ExecDestination::InPlace(_) | ExecDestination::KeptInside(_) => {
                held_exec.env.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone())
            }
            ExecDestination::Outside(exec) => self.search_path(exec),
        };
        add("PATH", path.unwrap_or_default());
        let changed = self.changed_env(&held_exec.env);
        if !changed.is_empty() {
            add("environment", changed.join(" "));
        }
        add("called by", held_exec.parents.join(" < "));
        add("rule", rule_location(&held_exec.verdict));
        add(
            "runs",
            match destination {
                ExecDestination::InPlace(_)
                    if matches!(self.current_sandbox, CurrentSandbox::Wider) =>
                {
                    "in the wider sandbox".to_owned()
                }
                ExecDestination::InPlace(reason) => format!("in the sandbox ({reason})"),
                ExecDestination::KeptInside(reason) => format!("in the sandbox ({reason})"),
                ExecDestination::Outside(_) => match self.owner.owner_cx().settings.sandbox.escalate
                {
                    EscalationMode::Wider => "in the wider sandbox".to_owned(),
                    _ => "outside the sandbox, with your rights and without the environment below"
                        .to_owned(),
                },
            },
        );
        Value::Object(fields)
    }

    /// Returns `PATH` as the command gets it outside.
    fn search_path(&self, exec: &EscalatedExec) -> Option<String> {
        escalate::search_path(exec, &self.owner.owner_cx().settings.config)
    }

    /// Lists what a command has changed in the run's initial environment.
    fn changed_env(&self, env: &[(String, String)]) -> Vec<String> {
        let is_noise = |name: &str| SHELL_NOISE_VARS.contains(&name);
        let format_added = |name: &str, value: &str| match is_sensitive(name) {
            true => format!("+{name}=[redacted]"),
            // A URL may also contain a password.
            false => {
                format!(
                    "+{}",
                    self.short_secrets.redact_argv(&[format!("{name}={value}")]).join(" ")
                )
            }
        };
        let added =
            env.iter().filter(|pair| !is_noise(&pair.0) && !self.initial_env.contains(pair));
        let removed = self
            .initial_env
            .iter()
            .filter(|(name, _)| !is_noise(name) && !env.iter().any(|(other, _)| other == name));
        let added = added.map(|(name, value)| format_added(name, value));
        added.chain(removed.map(|(name, _)| format!("-{name}"))).collect()
    }
}

/// Names the rule without its directory: a client need not know where the operator keeps rules.
fn rule_location(verdict: &ExecVerdict) -> String {
    let file = Path::new(&verdict.origin.file);
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
    format!("{name}:{}", verdict.origin.line)
}
