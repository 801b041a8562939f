//! `ringfence sandbox`: runs one command in the sandbox, in the foreground, without a server.

use std::io::Write;
use std::path::PathBuf;

use jail::namespaces::Tier;

use crate::base::{Error, Result};
use crate::config::{
    self, Config, ConfigFlags, EscalationMode, PolicyFlags, ProcessEnv, ProfileSetting,
    RiskyEscalation, SandboxFlags,
};
use crate::rulebook::escalation::{KEPT_BY_SETTING, NO_ONE_TO_ASK};
use crate::rulebook::{RuleLocations, Rulebook, RulebookCache, escalation_risk};
use crate::sandbox::foreground::{self, ForegroundOptions, ForegroundRules, OnPrompt};

/// Run a command in the sandbox, passing through its input, output and exit code
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: the command's own; 128 plus the signal number if a signal ended it; 125 if the sandbox could not be set up;\n\
126 if the command cannot be run; 127 if it was not found.\n\
Signals: SIGTERM, SIGINT and SIGHUP are passed to the command, which is killed after the grace period ([limits] grace_ms).\n\n\
Try:  ringfence sandbox sh -c 'touch /etc/x; curl https://example.com; cat ~/.ssh/*'"
)]
pub struct SandboxArgs {
    /// Directory the command may write to (default: the current directory)
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Directory for runtime files (default: $XDG_STATE_HOME/ringfence)
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    // Not a doc comment: rustdoc would take the section for a link.
    #[arg(
        long,
        value_name = "FILE",
        help = "Config file to read; the flags below add to its [sandbox] section"
    )]
    config: Option<PathBuf>,
    /// Select the sandbox profile
    #[arg(long)]
    profile: Option<ProfileSetting>,
    /// Allow the host's whole network
    #[arg(long)]
    allow_network: bool,
    /// Allow connections to this name: example.com, *.example.com, example.com:8443
    #[arg(long = "allow-domain", value_name = "NAME")]
    allow_domains: Vec<String>,
    /// Deny connections to this name, even if another rule allows it
    #[arg(long = "deny-domain", value_name = "NAME")]
    deny_domains: Vec<String>,
    /// Allow connections to this address, even if it is private: 127.0.0.1:8080
    #[arg(long = "allow-address", value_name = "IP:PORT")]
    allow_addresses: Vec<String>,
    /// Allow writing to this directory, too
    #[arg(long, value_name = "DIR")]
    writable: Vec<PathBuf>,
    /// Make this path in the workspace read-only, whether it exists or not
    #[arg(long, value_name = "PATH")]
    protect: Vec<PathBuf>,
    /// Allow writing to this path, which is protected by default: .vscode, .git/hooks
    #[arg(long, value_name = "PATH")]
    unprotect: Vec<PathBuf>,
    /// Deny reading this path
    #[arg(long, value_name = "PATH")]
    hide: Vec<PathBuf>,
    /// Read this rules file in addition to Codex's ($CODEX_HOME/rules); may be repeated
    #[arg(long, value_name = "FILE")]
    rules: Vec<PathBuf>,
    /// Choose what happens to a command for which a rule requires approval
    #[arg(long, value_name = "ANSWER", default_value = "deny")]
    on_prompt: OnPrompt,
    /// Choose where commands that a rule allows are run (default: off)
    #[arg(long)]
    escalate: Option<EscalationMode>,
    /// Choose what to do with a command that has more words than the `allow` rule it matches,
    /// unless the program is known to be harmless (default: ask; inside if no one can be asked)
    #[arg(long, value_name = "ask|inside|outside")]
    escalate_risky: Option<RiskyEscalation>,
    /// Write a JSON report to this file, which must be where the command cannot write
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Number of threads that watch execs
    #[arg(long, hide = true, default_value_t = 0)]
    watchers: usize,
    /// Use only this tier: namespaces, bwrap, root or mounts
    #[arg(long, hide = true, value_name = "TIER")]
    tier: Option<String>,
    /// Command to run, with its arguments. Flags after it are the command's own; `--` may precede it
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs `ringfence sandbox` and returns the exit code, normally the command's own.
pub fn run(args: SandboxArgs) -> Result<u8> {
    let flags = ConfigFlags {
        root: args.root,
        workspace: args.workspace,
        config: args.config,
        sandbox: SandboxFlags {
            profile: args.profile,
            allow_network: args.allow_network,
            allow_domains: args.allow_domains,
            deny_domains: args.deny_domains,
            allow_addresses: args.allow_addresses,
            writable: args.writable,
            protect: args.protect,
            unprotect: args.unprotect,
            hide: args.hide,
        },
        policy: PolicyFlags {
            rules: args.rules,
            escalate: args.escalate,
            escalate_risky: args.escalate_risky,
            audit_execs: false,
        },
        ..ConfigFlags::default()
    };
    let config = config::resolve_config(&flags, &ProcessEnv::from_process())?;
    config::prepare_root(&config)?;
    let options = ForegroundOptions {
        report: args.report.as_deref(),
        only_tier: args.tier.as_deref().map(parse_tier).transpose()?,
    };
    let rulebook = read_rules(&config)?;
    let foreground_rules = ForegroundRules {
        escalation_obstacle: rulebook
            .escalation_status(&config, config.policy.escalate, args.on_prompt == OnPrompt::Allow)
            .obstacle()
            .map(str::to_owned),
        table: rulebook.table,
        on_prompt: args.on_prompt,
        reason_to_ask: escalation_risk::reason_to_ask,
        kept_inside_reasons: [KEPT_BY_SETTING, NO_ONE_TO_ASK],
        watchers: args.watchers,
    };
    foreground::run(&config, &args.command, &options, foreground_rules)
}

/// Reads the rules that apply here. Reports errors in them; while there are any, no command leaves
/// the sandbox.
fn read_rules(config: &Config) -> Result<Rulebook> {
    let failed =
        |error: std::io::Error| Error::internal("the rules cannot be read").with_source(error);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let locations = RuleLocations::from_config(config);
    locations.check_named_files()?;
    let cache = RulebookCache::new(locations);
    let rulebook = runtime.block_on(cache.load_once(config.workspace.as_deref()));
    for rules_error in &rulebook.faults {
        // If standard error is closed, there is nowhere left to report to.
        let _ = writeln!(
            std::io::stderr(),
            "{rules_error}\nringfence: no command leaves the sandbox until this is fixed"
        );
    }
    Ok(rulebook)
}

fn parse_tier(name: &str) -> Result<Tier> {
    let known = Tier::ALL.iter().find(|tier| tier.name() == name);
    known.copied().ok_or_else(|| {
        Error::invalid_arguments("unknown tier").with_hint("Use namespaces, bwrap, root or mounts.")
    })
}
