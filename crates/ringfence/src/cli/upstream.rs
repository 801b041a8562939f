//! `ringfence upstream`: shows other MCP servers, installs them, shows what changed in their tools,
//! and accepts it.

mod accept;
mod diff;
mod install;
mod list;
mod trust;

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::config::ConfigLocation;
use crate::base::suggest::suggest_name;
use crate::base::{CancelCause, Error, Kind, Result};
use crate::call::PipelineState;
use crate::config::{self, Config, ProcessEnv, resolve_config};
use crate::mcp::Server;
use crate::sandbox;
use crate::session::Principal;
use crate::tools::SessionState;
use crate::upstream::backend::UpstreamBackend;
use crate::upstream::learn::ServerOffer;

/// Time for zygotes to end after the last server.
const ZYGOTE_EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Show other MCP servers, install them, compare what they offer with what you accepted, and accept it
///
/// Ringfence lists the tools of a server as you accepted them, in `mcp.lock` next to the upstreams
/// file. A tool that its server has changed since is neither listed nor called until you accept it.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  ringfence upstream list                 show all servers, and what is accepted of each\n  ringfence upstream install docs         download it, if its command is npx, bunx, uvx or pipx\n  ringfence upstream diff docs            connect, and show what has changed\n  ringfence upstream accept docs          accept what it offers now\n  ringfence upstream trust ./codex-toolloop.mcp.json   use the servers of a file in a project"
)]
pub struct UpstreamArgs {
    #[command(subcommand)]
    command: UpstreamCommand,
}

#[derive(clap::Subcommand)]
enum UpstreamCommand {
    /// Show all servers: transport, trust, and how many tools are accepted
    List(list::UpstreamListArgs),
    /// Connect to a server and show how its offer differs from what is accepted
    Diff(diff::UpstreamDiffArgs),
    /// Download the package of a server whose command is npx, bunx, uvx or pipx
    Install(install::UpstreamInstallArgs),
    /// Connect to a server and accept what it offers
    Accept(accept::UpstreamAcceptArgs),
    /// Use the servers of a file that was found in a project, with exactly its present contents
    Trust(trust::UpstreamTrustArgs),
}

/// Runs `ringfence upstream` and returns the exit code.
pub fn run(args: &UpstreamArgs, out: &mut impl Write) -> Result<u8> {
    let text = match &args.command {
        UpstreamCommand::List(args) => list::run(args)?,
        UpstreamCommand::Diff(args) => diff::run(args)?,
        UpstreamCommand::Install(args) => install::run(args, out)?,
        UpstreamCommand::Accept(args) => accept::run(args, out)?,
        UpstreamCommand::Trust(args) => trust::run(args, out)?,
    };
    write_text(out, &text).map(|()| 0)
}

pub(super) fn write_text(out: &mut impl Write, text: &str) -> Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader closed the pipe early (`| head`); that is not an error.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::internal("the output cannot be written").with_source(error))
        }
        _ => Ok(()),
    }
}

pub(super) fn load_config(location: &ConfigLocation) -> Result<Config> {
    let config = resolve_config(&location.to_flags(), &ProcessEnv::from_process())?;
    if config.upstreams.servers.is_empty() {
        let hint = match &config.upstreams.untrusted_file {
            Some(file) => format!("Use {} with `ringfence upstream trust`.", file.display()),
            None => "Name a file with `--upstreams`, or set `upstreams` in config.toml.".to_owned(),
        };
        return Err(Error::new(Kind::NotFound, "there are no other servers").with_hint(hint));
    }
    Ok(config)
}

/// A Ringfence server that only this command uses, for its sandboxes and its log.
pub(super) struct LocalServer {
    pub(super) server: Arc<Server>,
    pub(super) session: Arc<SessionState>,
}

impl LocalServer {
    fn open(config: Config) -> Result<LocalServer> {
        config::prepare_root(&config)?;
        let server = Server::new(config)?;
        let connection = server.connect_client(Principal::local(), "cli")?;
        Ok(LocalServer { server, session: connection.state })
    }

    pub(super) fn state(&self) -> Arc<PipelineState> {
        self.server.pipeline.state()
    }

    /// Returns a server by its id.
    fn find_backend(&self, id: &str) -> Result<Arc<UpstreamBackend>> {
        let state = self.state();
        let backends = &state.registry.upstreams.backends;
        if let Some(backend) = backends.get(id) {
            return Ok(Arc::clone(backend));
        }
        let known: Vec<&str> = backends.keys().map(String::as_str).collect();
        let hint = match suggest_name(id, &known) {
            Some(suggestion) => format!("Did you mean `{suggestion}`?"),
            None => format!("There are: {}.", known.join(", ")),
        };
        Err(Error::new(Kind::NotFound, format!("there is no server `{id}`")).with_hint(hint))
    }

    pub(super) async fn ask(&self, backend: &Arc<UpstreamBackend>) -> Result<ServerOffer> {
        let principal = Principal::local();
        self.server.pipeline.ask_upstream(&self.state(), backend, &self.session, &principal).await
    }

    /// Ends everything that was started.
    async fn close(self) -> Result<()> {
        self.server.shutdown.cancel(CancelCause::Eof);
        self.server.pipeline.upstreams.close_all().await;
        let grace = sandbox::max_end_duration(self.server.config.limits.grace);
        self.server.pipeline.wait_until_idle(grace).await;
        drop(self.session);
        sandbox::end_zygotes(ZYGOTE_EXIT_TIMEOUT).await;
        self.server.pipeline.audit.close()
    }
}

/// Runs a command that connects to servers.
pub(super) fn run_connected<T>(
    location: &ConfigLocation,
    work: impl AsyncFnOnce(&LocalServer) -> Result<T>,
) -> Result<T> {
    run_with_config(load_config(location)?, work)
}

/// Runs a command that connects to the servers of this config.
pub(super) fn run_with_config<T>(
    config: Config,
    work: impl AsyncFnOnce(&LocalServer) -> Result<T>,
) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::internal("cannot start the runtime").with_source(error))?;
    runtime.block_on(async {
        let local = LocalServer::open(config)?;
        let result = work(&local).await;
        let closed = local.close().await;
        let result = result?;
        closed.map(|()| result)
    })
}

/// Asks for a yes at the terminal. Without one, `--yes` must say it.
pub(super) fn confirm(question: &str, is_confirmed: bool, out: &mut impl Write) -> Result<()> {
    if is_confirmed {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Error::invalid_arguments("no one can be asked here")
            .with_hint("Run it at a terminal, or add `--yes` once you have read what changes."));
    }
    write_text(out, &format!("{question} [y/N] "))?;
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Error::internal("the answer cannot be read").with_source(error))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => {
            Err(Error::new(Kind::Cancelled, "nothing was changed")
                .with_hint("Answer `y` to accept."))
        }
    }
}

/// Returns a path for people.
fn show_path(path: Option<&PathBuf>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}
