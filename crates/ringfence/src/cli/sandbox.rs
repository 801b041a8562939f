//! `ringfence sandbox`: one command in the fence, for anyone who wants to see what it holds.

use std::path::PathBuf;

use jail::namespaces::Tier;

use crate::base::{Error, Result};
use crate::config::{self, Env, Flags, Profile, SandboxFlags};
use crate::sandbox::attached;

/// Run a command in the fence: its input, output and exit code are yours
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: the command's own; 128 and the signal's number when a signal ended it; 125 when the fence could not be put up;\n\
126 when the command cannot be run and 127 when there is none of that name.\n\n\
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
    /// A path that may not be read
    #[arg(long, value_name = "PATH")]
    hide: Vec<PathBuf>,
    /// Write how it went to this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
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
            hide: args.hide,
        },
        ..Flags::default()
    };
    let config = config::resolve(&flags, &Env::of_process())?;
    config::prepare_root(&config)?;
    attached::run(&config, &args.command, args.report.as_deref(), args.tier.as_deref().map(parse_tier).transpose()?)
}

fn parse_tier(name: &str) -> Result<Tier> {
    let known = [Tier::Namespaces, Tier::Bwrap, Tier::Root].into_iter().find(|tier| tier.name() == name);
    known.ok_or_else(|| Error::invalid_arguments("there is no such tier").hint("Use namespaces, bwrap or root."))
}
