//! Browser in its own sandbox: it sees neither the workspace nor the home directory, and its only
//! network access is our proxy.
//!
//! It may act for several sessions. Each has an address on the proxy, so that what one may reach is
//! closed to the others. `localhost` in a page is the session's own loopback, with the servers that
//! its commands have started, and never the host's.

mod profile_dir;

use std::fs::DirBuilder;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream as Socket;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use jail::rights::{NetworkAccess, Rights};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio_util::task::TaskTracker;

use super::config::SandboxConfig;
use super::exec_policy::ExecPolicy;
use super::launch::{LaunchRequest, StdinSource};
use super::launcher::Launcher;
use super::run_handle::{RunHandle, RunOptions};
use super::run_result::{RunResult, StopReason};
use super::session_sandbox::SessionSandbox;
use super::session_sandboxes::SessionSandboxes;
use super::{env, profile};
use crate::base::IgnorePoison;
use crate::base::{CancelCause, CancelToken, Error, Kind, Result};
use crate::config::{Config, ProfileSetting, SandboxSettings};
use crate::net::{AllowList, DialFn, OnDecision, SessionRouter};
use crate::session::OutputStore;
use profile_dir::BrowserProfileDir;
pub use profile_dir::sweep_abandoned;

/// Returns bash where it is installed: only bash is certain to redirect descriptors of any number.
fn find_shell() -> &'static str {
    if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" }
}

/// Passes the driver socket on as the two descriptors that Chromium expects.
const PASS_SOCKET_SCRIPT: &str = r#"exec "$0" "$@" 3<&"$RINGFENCE_LINE" 4>&"$RINGFENCE_LINE""#;
/// Bytes of its standard streams that are kept for the log.
const MAX_LOGGED_BYTES: usize = 4096;

/// Running browser process.
pub struct BrowserRun {
    /// Debugging pipe.
    pub debug_pipe: Option<UnixStream>,
    /// Its own directory, at the same path inside and outside. The browser controls the contents,
    /// so they are not to be trusted.
    pub dir: PathBuf,
    pub handle: RunHandle,
    router: Arc<SessionRouter>,
    proxy_port: u16,
    next_address: AtomicU32,
}

/// Context of a browser, which belongs to no call.
pub struct BrowserOptions {
    /// Rules for the execs of its processes.
    pub execs: Option<ExecPolicy>,
    /// Called when it has ended.
    pub on_end: Box<dyn FnOnce(&mut RunResult) + Send + Sync>,
    /// Token that ends the browser: the server's own.
    pub cancel: CancelToken,
    pub tasks: TaskTracker,
}

/// Starts a browser. `hidden_paths` lists the workspaces that it must not see.
pub async fn start_browser(
    config: &Config,
    launcher: &Launcher,
    program: &Path,
    args: &[String],
    hidden_paths: &[&Path],
    options: BrowserOptions,
) -> Result<BrowserRun> {
    let launch_error =
        |error: io::Error| Error::internal("the browser could not be started").with_source(error);
    if config.default_sandbox.profile == ProfileSetting::Contained {
        return Err(Error::new(
            Kind::Unavailable,
            "a browser needs namespaces, which the profile `contained` does without",
        )
        .with_reason("sandbox")
        .with_hint("Use the profile `default`; `ringfence doctor` says what this host can do."));
    }
    let root = config.root.clone();
    // Another server may hold the lock, and there may be much to sweep.
    let profile_dir = tokio::task::spawn_blocking(move || BrowserProfileDir::create(&root)).await;
    let profile_dir = profile_dir
        .map_err(io::Error::other)
        .and_then(|profile_dir| profile_dir)
        .map_err(launch_error)?;
    let dir = profile_dir.dir.clone();
    let sandbox_config = SandboxConfig::from_config(config);
    let sandbox = SessionSandbox::for_browser(
        &sandbox_config,
        launcher.clone(),
        browser_rights(&sandbox_config, &dir, program, hidden_paths)?,
    );
    let (server_end, browser_end) = Socket::pair().map_err(launch_error)?;
    server_end.set_nonblocking(true).map_err(launch_error)?;
    let router = Arc::new(SessionRouter::default());
    let mut command_args =
        vec!["-c".to_owned(), PASS_SOCKET_SCRIPT.to_owned(), program.display().to_string()];
    command_args.push(format!("--user-data-dir={}", dir.join("profile").display()));
    command_args.extend(args.iter().cloned());
    let request = LaunchRequest {
        program: find_shell().to_owned(),
        args: command_args,
        cwd: OwnedFd::from(std::fs::File::open(&dir).map_err(launch_error)?),
        cwd_path: dir.clone(),
        env: env::build(&[])?,
        stdin: StdinSource::Empty,
        merge_stderr: true,
        rights: None,
        grace: config.limits.grace,
        on_decision: None,
        execs: options.execs,
        denied_hosts: Vec::new(),
        driver_socket: Some(browser_end.into()),
        session_router: Some(Arc::clone(&router)),
    };
    let run = sandbox.start_run(request).await?;
    let Some(port) = run.shared_proxy_port() else {
        return Err(Error::internal("the browser has no proxy"));
    };
    let run_options = RunOptions {
        outputs: Arc::new(OutputStore::new(profile_dir.log_dir.clone())),
        cancel: options.cancel,
        deadline: None,
        budget: MAX_LOGGED_BYTES,
        max_file_bytes: 0,
        stdout_filter: None,
        on_end: Box::new(move |result| {
            tracing::debug!("a browser has ended: {:?} {:?}", result.exit_code, result.signal);
            (options.on_end)(result);
            // Its namespaces go with it, and then its files.
            drop(sandbox);
            drop(profile_dir);
            Box::pin(async {})
        }),
        // No one waits for a result, so the end of its last process can be awaited.
        on_late_end: None,
        on_forgotten: Box::new(|| {}),
        tasks: options.tasks,
    };
    let debug_pipe = Some(UnixStream::from_std(server_end).map_err(launch_error)?);
    Ok(BrowserRun {
        debug_pipe,
        dir,
        handle: run.into_handle(run_options),
        router,
        proxy_port: port,
        next_address: AtomicU32::new(2),
    })
}

/// Builds its rights: it reads the system, writes its own directory, and sees neither the user's
/// files nor the workspaces.
fn browser_rights(
    config: &SandboxConfig,
    dir: &Path,
    program: &Path,
    extra_hidden: &[&Path],
) -> Result<Rights> {
    let mut hidden = profile::hidden_paths(config, dir);
    hidden.extend(extra_hidden.iter().map(|path| path.to_path_buf()));
    // A browser may be installed in its user's home directory, which is then read-only instead of
    // hidden.
    hidden.extend(
        config.host.home.iter().filter(|home| !program.starts_with(home) && home.is_dir()).cloned(),
    );
    hidden.sort();
    hidden.dedup();
    let home = dir.join("home");
    DirBuilder::new().mode(0o700).create(&home).map_err(|error| {
        Error::internal("cannot create the browser's directory").with_source(error)
    })?;
    Ok(Rights {
        workspace: dir.to_owned(),
        home: Some(home),
        network: NetworkAccess::Proxied,
        hidden,
        ..Rights::default()
    })
}

/// Hosts that the operator and the user have allowed for a session's pages, and those that rules
/// deny.
struct PageAccess {
    granted: AllowList,
    denied_hosts: Vec<String>,
    loopback: PageLoopback,
}

/// Loopback that pages reach: that of commands in this sandbox, with this network.
struct PageLoopback {
    sandbox: Arc<SessionSandbox>,
    network: NetworkAccess,
}

/// A session's connection through the browser's proxy. Dropping it closes the connection.
pub struct SessionProxy {
    /// Proxy URL for a browser context.
    pub proxy_url: String,
    address: IpAddr,
    access: Mutex<PageAccess>,
    on_decision: OnDecision,
    router: Arc<SessionRouter>,
    closed: Arc<AtomicBool>,
}

impl BrowserRun {
    /// Opens a connection for this session: to what the sandbox allows it, and to its own loopback.
    /// `denied` lists the hosts that a rule closes.
    pub fn open_session_proxy(
        &self,
        sandboxes: &SessionSandboxes,
        config: &Config,
        launcher: &Launcher,
        denied: &[String],
        on_decision: OnDecision,
    ) -> Result<SessionProxy> {
        let sandbox_config = SandboxConfig::from_config(config);
        let allow = page_allow_list(&sandbox_config.settings)?;
        let number = self.next_address.fetch_add(1, Ordering::Relaxed);
        let address = IpAddr::V4(Ipv4Addr::from(
            u32::from(Ipv4Addr::new(127, 0, 0, 0)) + (number & 0x00ff_ffff),
        ));
        let sandbox = sandboxes.own_sandbox(&sandbox_config, launcher)?;
        let loopback = PageLoopback { network: sandbox.rights.network, sandbox };
        let denied = denied.to_vec();
        self.router.set_route(
            address,
            allow.with_denied(&denied)?,
            loopback_dialer(&loopback),
            Arc::clone(&on_decision),
        );
        let proxy_url = format!("http://{address}:{}", self.proxy_port);
        let allow = Mutex::new(PageAccess { granted: allow, denied_hosts: denied, loopback });
        Ok(SessionProxy {
            proxy_url,
            address,
            access: allow,
            on_decision,
            router: Arc::clone(&self.router),
            closed: Arc::default(),
        })
    }

    /// Ends the browser with all its processes.
    pub fn stop_browser(&self) {
        self.handle.stop(StopReason::Cancelled(CancelCause::Operator));
    }
}

impl SessionProxy {
    /// Lets this session reach one more host, which a human has approved.
    pub fn allow_host(&self, host: &str, port: u16) -> Result<()> {
        let mut access = self.lock_access();
        access.granted = access.granted.with_granted(host, port)?;
        self.apply_access(&access)
    }

    /// Closes what the rules deny now, even if it was approved before, and switches to the loopback
    /// of this call's commands.
    pub fn update_access(
        &self,
        denied: &[String],
        sandbox: Arc<SessionSandbox>,
        network: NetworkAccess,
    ) -> Result<()> {
        let mut access = self.lock_access();
        let is_same =
            Arc::ptr_eq(&access.loopback.sandbox, &sandbox) && access.loopback.network == network;
        if access.denied_hosts == denied && is_same {
            return Ok(());
        }
        access.denied_hosts = denied.to_vec();
        access.loopback = PageLoopback { sandbox, network };
        self.apply_access(&access)
    }

    /// Returns a function that closes the connection permanently, for a caller that does not own
    /// it.
    pub fn make_closer(&self) -> impl Fn() + Send + Sync + 'static {
        let (router, address, closed) =
            (Arc::clone(&self.router), self.address, Arc::clone(&self.closed));
        move || {
            closed.store(true, Ordering::SeqCst);
            router.remove_route(address);
        }
    }

    fn apply_access(&self, access: &PageAccess) -> Result<()> {
        let allow_list = access.granted.with_denied(&access.denied_hosts)?;
        if self.closed.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.router.set_route(
            self.address,
            allow_list,
            loopback_dialer(&access.loopback),
            Arc::clone(&self.on_decision),
        );
        Ok(())
    }

    fn lock_access(&self) -> MutexGuard<'_, PageAccess> {
        self.access.lock().ignore_poison()
    }
}

impl Drop for SessionProxy {
    fn drop(&mut self) {
        self.router.remove_route(self.address);
    }
}

/// Returns what pages may reach in addition to the session's loopback: what the operator's sandbox
/// allows commands. Unlike commands, pages are strangers, so an open network means the public one
/// plus what is listed.
pub fn page_allow_list(sandbox: &SandboxSettings) -> Result<AllowList> {
    match sandbox.network_mode() {
        NetworkAccess::Off => Ok(AllowList::default()),
        NetworkAccess::Proxied => AllowList::from_lists(
            &sandbox.allow_domains,
            &sandbox.deny_domains,
            &sandbox.allow_addresses,
        ),
        NetworkAccess::All => {
            AllowList::allow_public_net(&sandbox.deny_domains, &sandbox.allow_addresses)
        }
    }
}

/// Returns a dialer for the loopback of the session's commands. Without a network of their own that
/// is the host's loopback, which no page may reach: then only addresses that the operator has
/// listed are reachable, like any others.
fn loopback_dialer(loopback: &PageLoopback) -> Option<DialFn> {
    let network = SessionSandbox::network_number(loopback.network)?;
    let sandbox = Arc::clone(&loopback.sandbox);
    sandbox.zygote.as_ref()?;
    Some(Arc::new(move |address| {
        let sandbox = Arc::clone(&sandbox);
        Box::pin(async move {
            let Some(zygote) = &sandbox.zygote else {
                return Err(io::ErrorKind::ConnectionRefused.into());
            };
            let socket =
                zygote.open_socket(network, address.is_ipv6()).await.map_err(io::Error::other)?;
            connect_socket(socket, address).await
        })
    }))
}

async fn connect_socket(socket: OwnedFd, address: SocketAddr) -> io::Result<TcpStream> {
    let socket = std::net::TcpStream::from(socket);
    socket.set_nonblocking(true)?;
    TcpSocket::from_std_stream(socket).connect(address).await
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::sandbox::tests::{Place, config, launcher};

    #[tokio::test]
    async fn a_browser_answers_on_its_line_and_dies_with_its_holder() {
        let program = Path::new("/usr/bin/chromium-headless-shell");
        assert!(
            program.exists(),
            "chromium-headless-shell is missing: run conformance/packages.sh"
        );
        let place = Place::new();
        let config = config(&place.dir, ProfileSetting::Default);
        let args = [
            "--headless",
            "--no-sandbox",
            "--remote-debugging-pipe",
            "--disable-gpu",
            "--no-startup-window",
        ];
        let args = args.map(str::to_owned);
        let terms = BrowserOptions {
            execs: None,
            on_end: Box::new(|_| {}),
            cancel: CancelToken::new(),
            tasks: TaskTracker::new(),
        };
        let mut run =
            start_browser(&config, &launcher(), program, &args, &[], terms).await.unwrap();
        let mut line = run.debug_pipe.take().unwrap();
        line.write_all(b"{\"id\":1,\"method\":\"Browser.getVersion\"}\0").await.unwrap();
        let mut said = Vec::new();
        while !said.ends_with(b"\0") {
            assert!(line.read_buf(&mut said).await.unwrap() > 0, "it has ended");
        }
        assert!(
            String::from_utf8_lossy(&said).contains("HeadlessChrome"),
            "{}",
            String::from_utf8_lossy(&said)
        );
        let dir = run.dir.clone();
        drop(run);
        assert_eq!(line.read_buf(&mut said).await.unwrap_or(0), 0);
        // The run is over when its last process is; only then its files go.
        let gone = async {
            while dir.exists() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(5), gone).await.unwrap();
    }
}
