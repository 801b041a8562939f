//! `ringfence serve`: starts the MCP server on stdio or HTTP and shuts it down in order.

mod retention;
mod rules;

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::log;
use crate::approval::terminal;
use crate::base::{CancelCause, Error, Kind, Result, shell_quote};
use crate::config::resolve::log::LogFlags;
use crate::config::{self, Config, ConfigFlags, ProcessEnv};
use crate::mcp::{Server, failed_start, http, stdio};
use crate::redact::known_secrets;
use crate::rulebook::RuleLocations;
use crate::sandbox::{self, SandboxConfig};

/// Serve MCP on standard input and output (default), or over HTTP
#[derive(clap::Args)]
#[command(
    after_help = "Flags take precedence over the environment, the environment over the config file, the file over defaults.\n\
Environment: SANDBOX_WORKSPACE, SANDBOX_ROOT, RINGFENCE_CONFIG, RINGFENCE_TOOLS, CODEX_TOOLLOOP_MCP_CONFIG_PATH,\n\
CODEX_TOOLLOOP_MCP_CONFIG_JSON, MCP_AUTH_ENABLED,\n\
MCP_AUTH_JWT_SECRET, MCP_AUTH_JWT_PUBLIC_KEY, MCP_AUTH_AUDIENCE, MCP_AUTH_ISSUER, RINGFENCE_LOG (error, warn, info, debug, trace),\n\
RINGFENCE_LOG_FORMAT, RINGFENCE_LOG_FILE"
)]
pub struct ServeArgs {
    /// Directory the tools work in (default: the current directory on stdio, one per caller over
    /// HTTP)
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Directory for runtime files: audit log, sockets, outputs (default:
    /// $XDG_STATE_HOME/ringfence)
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Config file to read (default: $XDG_CONFIG_HOME/ringfence/config.toml)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Offer the tools of the MCP servers in this JSON file, too
    #[arg(long, value_name = "FILE")]
    upstreams: Option<PathBuf>,
    /// Select the built-in tools to list (default: core). core: those that most agents need, the
    /// others can still be called; shell: only `shell`, no other can be called; all: every tool
    #[arg(long, value_name = "core|shell|all")]
    tools: Option<String>,
    /// Serve `POST /mcp` and `GET /mcp/sse` on this address instead of stdio, e.g. 127.0.0.1:8931
    /// (port 0: any free port)
    #[arg(long, value_name = "ADDR:PORT")]
    http: Option<String>,
    /// Allow a public address without authentication: anyone who can reach it can use the tools
    #[arg(long)]
    insecure_no_auth: bool,
    /// Read this rules file in addition to Codex's ($CODEX_HOME/rules); may be repeated
    #[arg(long, value_name = "FILE")]
    rules: Vec<PathBuf>,
    /// Choose where commands that a rule allows are run (default: off; with `--tools shell`:
    /// outside)
    #[arg(long)]
    escalate: Option<config::EscalationMode>,
    /// Choose what to do with a command that has more words than the `allow` rule it matches,
    /// unless the program is known to be harmless (default: ask; inside if no one can be asked)
    #[arg(long, value_name = "ask|inside|outside")]
    escalate_risky: Option<config::RiskyEscalation>,
    /// Record every exec in the audit log, not only those that a rule decided
    #[arg(long)]
    audit_execs: bool,
    /// Key file for the secret store, if not in its default location (RINGFENCE_SECRETS_KEY_FILE)
    #[arg(long, value_name = "FILE")]
    secrets_key_file: Option<PathBuf>,
    /// Set the log level (default: warn)
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<config::LogLevel>,
    /// Set the log format (default: pretty)
    #[arg(long, value_name = "FORM")]
    log_format: Option<config::LogFormat>,
    /// Append the log to this file instead of standard error
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    #[arg(long, hide = true)]
    conformance_fixtures: bool,
}

/// Runs `ringfence serve` and returns the exit code. A stdio server that cannot start still answers
/// its client with the error, because most clients do not show standard error.
pub fn run(args: ServeArgs) -> Result<u8> {
    let mut progress = StartProgress { is_stdio: args.http.is_none(), is_serving: false };
    match start_server(args, &mut progress) {
        Ok(()) => Ok(0),
        Err(error) if progress.is_stdio && !progress.is_serving => {
            super::report_error(&error);
            failed_start::answer_client(&error);
            Ok(error.kind().table_row().exit)
        }
        Err(error) => Err(error),
    }
}

/// Start-up progress; decides how a failure is reported.
struct StartProgress {
    is_stdio: bool,
    /// The server reads the client's messages itself from now on.
    is_serving: bool,
}

fn start_server(args: ServeArgs, progress: &mut StartProgress) -> Result<()> {
    let source = config::ConfigSource::new(
        ConfigFlags {
            root: args.root,
            workspace: args.workspace,
            config: args.config,
            upstreams: args.upstreams,
            ignores_upstreams: false,
            tools: args.tools,
            http: args.http,
            insecure_no_auth: args.insecure_no_auth,
            conformance_fixtures: args.conformance_fixtures,
            secrets_key_file: args.secrets_key_file,
            sandbox: config::SandboxFlags::default(),
            policy: config::PolicyFlags {
                rules: args.rules,
                escalate: args.escalate,
                escalate_risky: args.escalate_risky,
                audit_execs: args.audit_execs,
            },
            log: LogFlags { level: args.log_level, format: args.log_format, file: args.log_file },
        },
        ProcessEnv::from_process(),
    );
    let ((config, stamps), events) = log::buffer_events(|| source.resolve_first());
    let config = config?;
    progress.is_stdio = config.http.listen.is_none();
    log::start_logging(&config.log, known_secrets::redact_str)?;
    events.replay_events();
    if let Some(path) = &config.upstreams.untrusted_file {
        tracing::warn!(
            "the servers of {0} are not used, because the file is not trusted; read it, then run `ringfence upstream trust {1}`",
            path.display(),
            shell_quote::quote_command([path.to_string_lossy().as_ref()])
        );
    }
    config::prepare_root(&config)?;
    sandbox::profile::check_profile(&SandboxConfig::from_config(&config))?;
    RuleLocations::from_config(&config).check_named_files()?;
    let root = config.root.clone();
    // Leftovers of killed servers may be large, and no client should wait for their removal.
    std::thread::spawn(move || {
        sandbox::sweep_abandoned(&root);
        terminal::remove_stale_sockets(&root);
    });
    // A single client needs one thread, and a call that never changes threads is faster. Blocking
    // work has its own threads in either case.
    let mut runtime = match config.http.listen {
        Some(_) => tokio::runtime::Builder::new_multi_thread(),
        None => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = runtime
        .worker_threads(serving_threads())
        .enable_all()
        .build()
        .map_err(|error| Error::internal("cannot start the runtime").with_source(error))?;
    let result = runtime.block_on(serve_until_stopped(config, source, stamps, progress));
    // A blocked read of standard input may never return and must not keep the process alive.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

/// Returns the number of threads that serve clients over HTTP. Each passes on thousands of calls a
/// second. More of them would mostly wake each other up, and take processors from what the calls
/// run.
fn serving_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(4))
}

async fn serve_until_stopped(
    mut config: Config,
    source: config::ConfigSource,
    stamps: config::FileStamps,
    progress: &mut StartProgress,
) -> Result<()> {
    // Exceeding the file size limit (RLIMIT_FSIZE) must fail the call, not kill the server with
    // SIGXFSZ.
    let _too_large = signal(SignalKind::from_raw(SIGXFSZ)).map_err(signal_error)?;
    let listener = match config.http.listen {
        Some(address) => Some(bind_listener(address).await?),
        None => None,
    };
    if let Some(listener) = &listener {
        // Runs must not connect back to this server, so the sandbox needs the port that was
        // actually bound.
        let bound = listener.local_addr().map_err(|error| {
            Error::internal("cannot read the listener's address").with_source(error)
        })?;
        config.http.listen = Some(bound);
    }
    let server = Server::with_reload(config, source, stamps)?;
    let http_server = match listener {
        Some(listener) => {
            let app = http::HttpServer::new(Arc::clone(&server))?;
            // Printed only after the keys have been loaded, and at every log level: people and
            // scripts that asked for port 0 need the address.
            if let Some(bound) = server.config.http.listen {
                let _ = writeln!(std::io::stderr(), "listening on http://{bound}/mcp");
            }
            Some((app, listener))
        }
        None => None,
    };
    server.pipeline.state().log_failed_commands();
    tokio::spawn(rules::report_rules(Arc::clone(&server)));
    tokio::spawn(Arc::clone(&server.pipeline).follow_offers());
    tokio::spawn(Arc::clone(&server).learn_upstreams());
    let config_watch = server.pipeline.watch_config();
    let mut hangup = signal(SignalKind::hangup()).map_err(signal_error)?;
    let server_to_reload = Arc::clone(&server);
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            server_to_reload.pipeline.reload_now().await;
        }
    });
    let audit = server.pipeline.audit.clone();
    audit.write_event(
        "server.start",
        json!({"version": env!("CARGO_PKG_VERSION"), "transport": if http_server.is_some() { "http" } else { "stdio" }}),
    )?;
    tokio::spawn(retention::prune_periodically(Arc::clone(&server)));
    tokio::spawn(async {
        tokio::time::sleep(START_SETTLES).await;
        jail::release_start_memory();
    });
    let _socket = open_socket(&server).await?;
    let server_to_stop = Arc::clone(&server);
    let mut stop = ServerStopSignals::new()?;
    tokio::spawn(async move {
        stop.wait_for_signal().await;
        server_to_stop
            .shut_down(sandbox::max_end_duration(server_to_stop.config.limits.grace))
            .await;
    });
    let result = match http_server {
        Some((app, listener)) => serve_within_grace(&server, http::serve_http(app, listener)).await,
        None => {
            let connection = stdio::connect_client(&server)?;
            progress.is_serving = true;
            greet_terminal();
            serve_within_grace(&server, stdio::serve_client(Arc::clone(&server), connection)).await
        }
    };
    server.shutdown.cancel(CancelCause::Eof);
    drop(config_watch);
    server.pipeline.upstreams.close_all().await;
    server.pipeline.wait_until_idle(sandbox::max_end_duration(server.config.limits.grace)).await;
    sandbox::end_zygotes(ZYGOTE_EXIT_TIMEOUT).await;
    let reason = server.shutdown.cause().map_or("eof", CancelCause::name);
    audit.write_refusal_counts();
    audit.write_event("server.stop", json!({"cause": reason}))?;
    audit.close()?;
    result
}

/// Opens the socket for `ringfence ps` and `ringfence approvals`. Only where the terminal may answer
/// questions is a server without it of no use.
async fn open_socket(server: &Arc<Server>) -> Result<Option<terminal::SocketGuard>> {
    let server_process = match server.config.http.listen {
        Some(_) => terminal::ServerProcess::without_client(),
        None => terminal::ServerProcess::with_client(),
    };
    let allows_terminal = server.config.approval.allows_terminal;
    let described = Arc::clone(server);
    let offer = terminal::SocketOffer {
        pending: allows_terminal.then(|| Arc::clone(&server.pipeline.gate.pending)),
        status: Box::new(move || described.describe_status()),
    };
    match terminal::serve_socket(offer, &server.config.root, server_process).await {
        Ok(guard) => Ok(Some(guard)),
        Err(error) if !allows_terminal => {
            tracing::warn!("`ringfence ps` does not show this server: {}", error.log_line());
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Explains to a person who started the server by hand what it is waiting for.
fn greet_terminal() {
    if std::io::stdin().is_terminal() {
        let _ = writeln!(
            std::io::stderr(),
            "ringfence is waiting for an MCP client on standard input. Clients normally start it themselves; to add it to Codex:\n  \
ringfence connect codex\nPress Ctrl-C to stop. `ringfence try` shows what it does."
        );
    }
}

/// Runs `serving` to its end; after a stop signal, open connections get the grace period to finish.
async fn serve_within_grace(
    server: &Server,
    serving: impl Future<Output = Result<()>>,
) -> Result<()> {
    let grace = sandbox::max_end_duration(server.config.limits.grace);
    tokio::select! {
        result = serving => result,
        () = async {
            server.shutdown.cancelled().await;
            tokio::time::sleep(grace).await;
        } => Ok(()),
    }
}

async fn bind_listener(address: SocketAddr) -> Result<tokio::net::TcpListener> {
    tokio::net::TcpListener::bind(address).await.map_err(|error| {
        Error::new(Kind::Unavailable, format!("cannot listen on {address}"))
            .with_hint("Choose another address or port with --http.")
            .with_source(error)
    })
}

/// Time after which a client has initialized its session and asked for the list of tools.
const START_SETTLES: Duration = Duration::from_secs(1);

/// Time for idle zygotes to exit; their runs have already ended.
const ZYGOTE_EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// SIGXFSZ has this number on macOS and on every Linux architecture except MIPS.
const SIGXFSZ: i32 = 25;

fn signal_error(error: std::io::Error) -> Error {
    Error::internal("cannot listen for signals").with_source(error)
}

struct ServerStopSignals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl ServerStopSignals {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(signal_error);
        Ok(ServerStopSignals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn wait_for_signal(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
