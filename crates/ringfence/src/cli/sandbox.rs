//! `ringfence sandbox`: one command in the fence, for anyone who wants to see what it holds.

use std::io::Write;
use std::path::PathBuf;

use jail::namespaces::Tier;

use crate::base::{Error, Result};
use crate::config::{
    self, Config, Env, Escalate, EscalateRisky, Flags, PolicyFlags, Profile, SandboxFlags,
};
use crate::rulebook::leaving::{KEPT_BY_SETTING, NO_ONE_TO_ASK};
use crate::rulebook::{Places, Policy, Rulebook, unasked};
use crate::sandbox::attached::{self, OnPrompt, Ruling, Terms};

/// Run a command in the fence: its input, output and exit code are yours
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: the command's own; 128 and the signal's number when a signal ended it; 125 when the fence could not be put up;\n\
126 when the command cannot be run and 127 when there is none of that name.\n\
Signals: SIGTERM, SIGINT and SIGHUP go to the command, which is killed after the grace ([limits] grace_ms).\n\n\
Try:  ringfence sandbox -- sh -c 'touch /etc/x; curl https://example.com; cat ~/.ssh/*'"
)]
pub struct Args {
    /// The directory that may be written; default: the current one
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Where runtime files go; default: $XDG_STATE_HOME/ringfence
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// The config file, whose [sandbox] these flags add to
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How strong the fence is
    #[arg(long)]
    profile: Option<Profile>,
    /// The host's whole network
    #[arg(long)]
    allow_network: bool,
    /// A name that may be reached: example.com, *.example.com, example.com:8443
    #[arg(long = "allow-domain", value_name = "NAME")]
    allow_domains: Vec<String>,
    /// A name that may not, though another rule allows it
    #[arg(long = "deny-domain", value_name = "NAME")]
    deny_domains: Vec<String>,
    /// An address that may be reached though it is private: 127.0.0.1:8080
    #[arg(long = "allow-address", value_name = "IP:PORT")]
    allow_addresses: Vec<String>,
    /// Another directory that may be written
    #[arg(long, value_name = "DIR")]
    writable: Vec<PathBuf>,
    /// A path in the workspace that may only be read, whether it exists or not
    #[arg(long, value_name = "PATH")]
    protect: Vec<PathBuf>,
    /// A path that is protected by default and may be written all the same: .vscode, .git/hooks
    #[arg(long, value_name = "PATH")]
    unprotect: Vec<PathBuf>,
    /// A path that may not be read
    #[arg(long, value_name = "PATH")]
    hide: Vec<PathBuf>,
    /// Rules to read beside those of Codex ($CODEX_HOME/rules); may be given more than once
    #[arg(long, value_name = "FILE")]
    rules: Vec<PathBuf>,
    /// What becomes of a command that a rule asks about
    #[arg(long, value_name = "ANSWER", default_value = "deny")]
    on_prompt: OnPrompt,
    /// Where a command runs that a rule allows; default: off
    #[arg(long)]
    escalate: Option<Escalate>,
    /// What an `allow` means for a command with more words than the rule, unless the program is known to be harmless;
    /// default: ask, and inside where no one can be asked
    #[arg(long, value_name = "ask|inside|outside")]
    escalate_risky: Option<EscalateRisky>,
    /// Write how it went to this file, as JSON; it must lie where the command cannot write
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// How many threads watch execs
    #[arg(long, hide = true, default_value_t = 0)]
    watchers: usize,
    /// Only this way to namespaces: namespaces, bwrap or root
    #[arg(long, hide = true, value_name = "TIER")]
    tier: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub fn run(args: Args) -> Result<u8> {
    let flags = Flags {
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
        ..Flags::default()
    };
    let config = config::resolve(&flags, &Env::of_process())?;
    config::prepare_root(&config)?;
    let terms = Terms {
        report: args.report.as_deref(),
        only: args.tier.as_deref().map(parse_tier).transpose()?,
    };
    let book = read_rules(&config)?;
    let ruling = Ruling {
        obstacle: book
            .leaving(&config, args.on_prompt == OnPrompt::Allow)
            .obstacle()
            .map(str::to_owned),
        table: book.table,
        on_prompt: args.on_prompt,
        reason_to_ask: unasked::reason_to_ask,
        risky_stays: [KEPT_BY_SETTING, NO_ONE_TO_ASK],
        watchers: args.watchers,
    };
    attached::run(&config, &args.command, &terms, ruling)
}

/// The rules that hold here. What is wrong with them is said, and then nothing is let out.
fn read_rules(config: &Config) -> Result<Rulebook> {
    let failed = |error: std::io::Error| Error::internal("the rules cannot be read").source(error);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let policy = Policy::new(Places::of_config(config));
    let book = runtime.block_on(policy.read_once(config.workspace.as_deref()));
    for fault in &book.faults {
        // When standard error is gone there is nowhere left to say it.
        let _ = writeln!(
            std::io::stderr(),
            "{fault}\nringfence: nothing is let out of the sandbox until it is mended"
        );
    }
    Ok(book)
}

fn parse_tier(name: &str) -> Result<Tier> {
    let known =
        [Tier::Namespaces, Tier::Bwrap, Tier::Root].into_iter().find(|tier| tier.name() == name);
    known.ok_or_else(|| {
        Error::invalid_arguments("there is no such tier").hint("Use namespaces, bwrap or root.")
    })
}
