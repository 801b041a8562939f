//! Browser in its own sandbox: it sees neither the workspace nor the home directory, and its only
//! network access is our proxy.
//!
//! It may act for several sessions. Each has an address on the proxy, so that what one may reach is
//! closed to the others. `localhost` in a page is the session's own loopback, with the servers that
//! its commands have started, and never the host's.

mod room;

use std::fs::DirBuilder;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream as Socket;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jail::rights::{NetworkAccess, Rights};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio_util::task::TaskTracker;

use super::cell::Cell;
use super::execs::Execs;
use super::launch::{Launch, Launcher, Stdin};
use super::live::{Ended, Keep, Live, Stop};
use super::{env, profile};
use crate::base::{Cancel, Cause, Error, Kind, Result};
use crate::config::{Config, Profile};
use crate::net::{Allow, Decided, Dial, Switch};
use crate::session::{Outputs, Session};
use room::Room;
pub use room::sweep_abandoned;

/// Returns bash where it is installed: only bash is certain to redirect descriptors of any number.
fn shell() -> &'static str {
    if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" }
}

/// Passes the driver socket on as the two descriptors that Chromium expects.
const HAND_ON: &str = r#"exec "$0" "$@" 3<&"$RINGFENCE_LINE" 4>&"$RINGFENCE_LINE""#;
/// Bytes of its standard streams that are kept for the log.
const SAID: usize = 4096;

/// Running browser process.
pub struct BrowserRun {
    /// Debugging pipe.
    pub line: Option<UnixStream>,
    /// Its own directory, at the same path inside and outside. The browser controls the contents,
    /// so they are not to be trusted.
    pub dir: PathBuf,
    pub live: Live,
    switch: Arc<Switch>,
    port: u16,
    addresses: AtomicU32,
}

/// Context of a browser, which belongs to no call.
pub struct Terms {
    /// Rules for the execs of its processes.
    pub execs: Option<Execs>,
    /// Called when it has ended.
    pub ended: Box<dyn FnOnce(&mut Ended) + Send + Sync>,
    /// Token that ends the browser: the server's own.
    pub cancel: Cancel,
    pub tasks: TaskTracker,
}

/// Starts a browser. `hide` lists the workspaces that it must not see.
pub async fn start(
    config: &Config,
    launcher: &Launcher,
    program: &Path,
    args: &[String],
    hide: &[&Path],
    terms: Terms,
) -> Result<BrowserRun> {
    let failed =
        |error: io::Error| Error::internal("the browser could not be started").source(error);
    if config.sandbox.profile == Profile::Contained {
        return Err(Error::new(
            Kind::Unavailable,
            "a browser needs namespaces, which the profile `contained` does without",
        )
        .reason("sandbox")
        .hint("Use the profile `default`; `ringfence doctor` says what this host can do."));
    }
    let root = config.root.clone();
    // Another server may hold the lock, and there may be much to sweep.
    let room = tokio::task::spawn_blocking(move || Room::open(&root)).await;
    let room = room.map_err(io::Error::other).and_then(|room| room).map_err(failed)?;
    let dir = room.dir.clone();
    let cell = Cell::for_browser(config, launcher.clone(), rights(config, &dir, program, hide)?);
    let (ours, theirs) = Socket::pair().map_err(failed)?;
    ours.set_nonblocking(true).map_err(failed)?;
    let switch = Arc::new(Switch::default());
    let mut words = vec!["-c".to_owned(), HAND_ON.to_owned(), program.display().to_string()];
    words.push(format!("--user-data-dir={}", dir.join("profile").display()));
    words.extend(args.iter().cloned());
    let launch = Launch {
        program: shell().to_owned(),
        args: words,
        cwd: OwnedFd::from(std::fs::File::open(&dir).map_err(failed)?),
        cwd_path: dir.clone(),
        env: env::build(&[])?,
        stdin: Stdin::Empty,
        merged: true,
        rights: None,
        grace: config.limits.grace,
        decided: None,
        execs: terms.execs,
        denied_hosts: Vec::new(),
        line: Some(theirs.into()),
        switch: Some(Arc::clone(&switch)),
    };
    let run = cell.start(launch).await?;
    let Some(port) = run.port() else { return Err(Error::internal("the browser has no proxy")) };
    let keep = Keep {
        outputs: Arc::new(Outputs::new(room.said.clone())),
        cancel: terms.cancel,
        deadline: None,
        budget: SAID,
        file_bytes: 0,
        reads: None,
        ended: Box::new(move |ended| {
            tracing::debug!("a browser has ended: {:?} {:?}", ended.exit_code, ended.signal);
            (terms.ended)(ended);
            // Its namespaces go with it, and then its files.
            drop(cell);
            drop(room);
            Box::pin(async {})
        }),
        // No one waits for a result, so the end of its last process can be awaited.
        late: None,
        forgotten: Box::new(|| {}),
        tasks: terms.tasks,
    };
    let line = Some(UnixStream::from_std(ours).map_err(failed)?);
    Ok(BrowserRun { line, dir, live: run.keep(keep), switch, port, addresses: AtomicU32::new(2) })
}

/// Builds its rights: it reads the system, writes its own directory, and sees neither the user's
/// files nor the workspaces.
fn rights(config: &Config, dir: &Path, program: &Path, hide: &[&Path]) -> Result<Rights> {
    let mut hidden = profile::hidden(config, dir);
    hidden.extend(hide.iter().map(|path| path.to_path_buf()));
    // A browser may be installed in its user's home directory, which is then read-only instead of
    // hidden.
    hidden.extend(
        config.home.iter().filter(|home| !program.starts_with(home) && home.is_dir()).cloned(),
    );
    hidden.sort();
    hidden.dedup();
    let home = dir.join("home");
    DirBuilder::new()
        .mode(0o700)
        .create(&home)
        .map_err(|error| Error::internal("cannot create the browser's directory").source(error))?;
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
struct Allowed {
    most: Allow,
    denied: Vec<String>,
    loopback: Loopback,
}

/// Loopback that pages reach: that of commands in this sandbox, with this network.
struct Loopback {
    cell: Arc<Cell>,
    network: NetworkAccess,
}

/// A session's connection through the browser's proxy. Dropping it closes the connection.
pub struct Road {
    /// Proxy URL for a browser context.
    pub proxy: String,
    at: IpAddr,
    allow: Mutex<Allowed>,
    decided: Decided,
    switch: Arc<Switch>,
    closed: Arc<AtomicBool>,
}

impl BrowserRun {
    /// Opens a connection for this session: to what the sandbox allows it, and to its own loopback.
    /// `denied` lists the hosts that a rule closes.
    pub fn road(
        &self,
        session: &Arc<Session>,
        config: &Config,
        launcher: &Launcher,
        denied: &[String],
        decided: Decided,
    ) -> Result<Road> {
        let allow = policy(config)?;
        let number = self.addresses.fetch_add(1, Ordering::Relaxed);
        let at = IpAddr::V4(Ipv4Addr::from(
            u32::from(Ipv4Addr::new(127, 0, 0, 0)) + (number & 0x00ff_ffff),
        ));
        let cell = Cell::of(session, config, launcher)?;
        let loopback = Loopback { network: cell.rights.network, cell };
        let denied = denied.to_vec();
        self.switch.set(at, allow.denying(&denied)?, inside(&loopback), Arc::clone(&decided));
        let proxy = format!("http://{at}:{}", self.port);
        let allow = Mutex::new(Allowed { most: allow, denied, loopback });
        Ok(Road {
            proxy,
            at,
            allow,
            decided,
            switch: Arc::clone(&self.switch),
            closed: Arc::default(),
        })
    }

    /// Ends the browser with all its processes.
    pub fn end(&self) {
        self.live.stop(Stop::Cancelled(Cause::Operator));
    }
}

impl Road {
    /// Lets this session reach one more host, which a human has approved.
    pub fn grant(&self, host: &str, port: u16) -> Result<()> {
        let mut allow = self.lock();
        allow.most = allow.most.granting(host, port)?;
        self.set(&allow)
    }

    /// Closes what the rules deny now, even if it was approved before, and switches to the loopback
    /// of this call's commands.
    pub fn follow(&self, denied: &[String], cell: Arc<Cell>, network: NetworkAccess) -> Result<()> {
        let mut allow = self.lock();
        let is_same = Arc::ptr_eq(&allow.loopback.cell, &cell) && allow.loopback.network == network;
        if allow.denied == denied && is_same {
            return Ok(());
        }
        allow.denied = denied.to_vec();
        allow.loopback = Loopback { cell, network };
        self.set(&allow)
    }

    /// Returns a function that closes the connection permanently, for a caller that does not own
    /// it.
    pub fn closer(&self) -> impl Fn() + Send + Sync + 'static {
        let (switch, at, closed) = (Arc::clone(&self.switch), self.at, Arc::clone(&self.closed));
        move || {
            closed.store(true, Ordering::SeqCst);
            switch.remove(at);
        }
    }

    fn set(&self, allow: &Allowed) -> Result<()> {
        let left = allow.most.denying(&allow.denied)?;
        if self.closed.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.switch.set(self.at, left, inside(&allow.loopback), Arc::clone(&self.decided));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Allowed> {
        self.allow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Road {
    fn drop(&mut self) {
        self.switch.remove(self.at);
    }
}

/// Returns what pages may reach in addition to the session's loopback: what the operator's sandbox
/// allows commands. Unlike commands, pages are strangers, so an open network means the public one
/// plus what is listed.
pub fn policy(config: &Config) -> Result<Allow> {
    let sandbox = &config.sandbox;
    match sandbox.network() {
        NetworkAccess::Off => Ok(Allow::default()),
        NetworkAccess::Proxied => {
            Allow::parse(&sandbox.allow_domains, &sandbox.deny_domains, &sandbox.allow_addresses)
        }
        NetworkAccess::All => Allow::public_net(&sandbox.deny_domains, &sandbox.allow_addresses),
    }
}

/// Returns a dialer for the loopback of the session's commands. Without a network of their own that
/// is the host's loopback, which no page may reach: then only addresses that the operator has
/// listed are reachable, like any others.
fn inside(loopback: &Loopback) -> Option<Dial> {
    let network = Cell::network(loopback.network)?;
    let cell = Arc::clone(&loopback.cell);
    cell.zygote.as_ref()?;
    Some(Arc::new(move |address| {
        let cell = Arc::clone(&cell);
        Box::pin(async move {
            let Some(zygote) = &cell.zygote else {
                return Err(io::ErrorKind::ConnectionRefused.into());
            };
            let socket =
                zygote.socket(network, address.is_ipv6()).await.map_err(io::Error::other)?;
            dial(socket, address).await
        })
    }))
}

async fn dial(socket: OwnedFd, address: SocketAddr) -> io::Result<TcpStream> {
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
        let config = config(&place.dir, Profile::Default);
        let args = [
            "--headless",
            "--no-sandbox",
            "--remote-debugging-pipe",
            "--disable-gpu",
            "--no-startup-window",
        ];
        let args = args.map(str::to_owned);
        let terms = Terms {
            execs: None,
            ended: Box::new(|_| {}),
            cancel: Cancel::new(),
            tasks: TaskTracker::new(),
        };
        let mut run = start(&config, &launcher(), program, &args, &[], terms).await.unwrap();
        let mut line = run.line.take().unwrap();
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
