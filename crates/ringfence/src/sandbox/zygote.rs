//! The session's zygote: started for its first run, and again for the next one if it was lost.
//!
//! One run can be prepared ahead: its supervisor has set up everything that does not depend on the
//! command, and waits. Only a run with the very same basis uses it. It ends when one with another
//! basis is prepared, when no run comes for a while, or with its zygote.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock, MutexGuard, Weak};
use std::time::Duration;

use jail::error::{Layer, SandboxError};
use jail::namespaces::Tier;
use jail::packet::PacketChannel;
use jail::rights::Rights;
use jail::supervisor::RunBasis;
use jail::zygote::{SessionSetup, SetupResult, ZygoteRequest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::process::Child;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::launcher::Launcher;
use super::start_error;
use super::tier::{self, available_tiers};
use crate::base::IgnorePoison;
use crate::base::{Error, Result};

/// Time limit for an answer. A zygote answers in milliseconds; a machine that needs this long will
/// not answer at all.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a run that was prepared ahead is given up.
const PREPARED_LIFETIME: Duration = Duration::from_secs(30);

/// Handle to the session's zygote. Dropping it closes the channel, which ends everything in the
/// session's sandbox.
pub struct Zygote {
    launcher: Launcher,
    rights: Rights,
    running: Arc<Mutex<Option<RunningZygote>>>,
}

struct RunningZygote {
    channel: Arc<PacketChannel>,
    /// Held so that it is reaped. `None` for one that ends with this process.
    child: Option<Child>,
    prepared: Option<PreparedSupervisor>,
}

/// A supervisor that has prepared its run and waits for the spec. Dropping it ends it.
struct PreparedSupervisor {
    network: Option<u32>,
    basis: RunBasis,
    control: UnixStream,
    since: Instant,
}

impl PreparedSupervisor {
    /// Returns whether it is for such a run, and still there: it says nothing before it has a spec.
    fn is_for(&self, network: Option<u32>, basis: &RunBasis) -> bool {
        let mut poll_fds = [PollFd::new(&self.control, PollFlags::IN)];
        let is_silent = poll(&mut poll_fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0);
        is_silent && self.network == network && self.basis == *basis
    }
}

/// Zygotes of all sessions, so that the end of the server can wait for them.
static ALL_ZYGOTES: std::sync::Mutex<Vec<Weak<Mutex<Option<RunningZygote>>>>> =
    std::sync::Mutex::new(Vec::new());
/// Zygotes whose channel is closed, until they are reaped.
static ENDING_ZYGOTES: LazyLock<TaskTracker> = LazyLock::new(TaskTracker::new);

/// Ends every zygote and waits until it is gone, and everything of its session with it: a caller
/// that waits for the server to end finds nothing of it afterwards.
pub async fn end_all_zygotes(max_wait: Duration) {
    let zygotes = std::mem::take(&mut *lock_mutex(&ALL_ZYGOTES));
    let shutdown = tokio::time::timeout(max_wait, async {
        for zygote in zygotes.iter().filter_map(Weak::upgrade) {
            if let Some(zygote) = zygote.lock().await.take() {
                zygote.close_and_reap();
            }
        }
        ENDING_ZYGOTES.close();
        ENDING_ZYGOTES.wait().await;
    });
    if shutdown.await.is_err() {
        tracing::error!("{} zygotes did not end in time", ENDING_ZYGOTES.len());
    }
}

fn lock_mutex<T>(mutex: &std::sync::Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

impl RunningZygote {
    /// Closes the channel, which ends the zygote, and reaps it.
    fn close_and_reap(self) {
        let RunningZygote { channel, child, prepared } = self;
        drop((channel, prepared));
        let Some(mut child) = child else { return };
        ENDING_ZYGOTES.spawn(async move {
            if let Err(error) = child.wait().await {
                tracing::warn!("cannot wait for the end of a zygote: {error}");
            }
        });
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        // Outside of the runtime the process is ending, and no one waits for it any more.
        if let Ok(mut zygote) = self.running.try_lock()
            && let Some(zygote) = zygote.take()
            && tokio::runtime::Handle::try_current().is_ok()
        {
            zygote.close_and_reap();
        }
    }
}

impl Zygote {
    /// Registers a zygote, which is started for its first run.
    pub fn new(launcher: Launcher, rights: Rights) -> Zygote {
        Zygote::register(launcher, rights, None)
    }

    /// Registers one that is set up with these rights and ends with this process.
    pub fn from_started(launcher: Launcher, rights: Rights, channel: Arc<PacketChannel>) -> Zygote {
        let started = RunningZygote { channel, child: None, prepared: None };
        Zygote::register(launcher, rights, Some(started))
    }

    fn register(launcher: Launcher, rights: Rights, running: Option<RunningZygote>) -> Zygote {
        let running = Arc::new(Mutex::new(running));
        let mut zygotes = lock_mutex(&ALL_ZYGOTES);
        zygotes.retain(|known| known.strong_count() > 0);
        zygotes.push(Arc::downgrade(&running));
        Zygote { launcher, rights, running }
    }

    /// Returns the socket of a supervisor that waits for its spec, in the network of this number: of
    /// the one that is prepared, if it is for such a run, or of a new one.
    pub async fn open_supervisor(
        &self,
        network: Option<u32>,
        basis: &RunBasis,
    ) -> Result<UnixStream> {
        if let Some(zygote) = self.running.lock().await.as_mut()
            && let Some(prepared) = zygote.prepared.take_if(|it| it.is_for(network, basis))
        {
            return Ok(prepared.control);
        }
        let (server_end, supervisor_end) = control_pair()?;
        let request = ZygoteRequest { network, basis: None, last: false, socket: None };
        self.send_request(request, supervisor_end.into()).await?;
        Ok(server_end)
    }

    /// Has a supervisor prepare a run ahead, unless there is one. If that fails there is none, and
    /// the next run is started without it.
    pub async fn prepare_ahead(&self, network: Option<u32>, basis: RunBasis) {
        let mut running = self.running.lock().await;
        let Some(zygote) = running.as_mut() else { return };
        if zygote.prepared.as_ref().is_some_and(|prepared| prepared.is_for(network, &basis)) {
            return;
        }
        let Ok((control, supervisor_end)) = control_pair() else { return };
        let request = ZygoteRequest {
            network,
            basis: Some(Box::new(basis.clone())),
            last: false,
            socket: None,
        };
        if let Err(error) = write_request(&zygote.channel, &request, &supervisor_end.into()) {
            tracing::debug!("no run can be prepared ahead: {error}");
            return;
        }
        let since = Instant::now();
        zygote.prepared = Some(PreparedSupervisor { network, basis, control, since });
        drop(running);
        tokio::spawn(end_prepared(Arc::downgrade(&self.running), since));
    }

    /// Returns a socket that belongs to the network of this number and can be used from here.
    pub async fn open_socket(&self, network: u32, ipv6: bool) -> Result<OwnedFd> {
        let network_error = |error: io::Error| {
            Error::internal("the session's network cannot be used").with_source(error)
        };
        let (channel, zygote_end) = PacketChannel::pair().map_err(network_error)?;
        let family = if ipv6 { 6 } else { 4 };
        self.send_request(
            ZygoteRequest {
                network: Some(network),
                basis: None,
                last: false,
                socket: Some(family),
            },
            zygote_end.into(),
        )
        .await?;
        let received = tokio::task::spawn_blocking(move || channel.receive::<()>());
        match received
            .await
            .map_err(|error| network_error(io::Error::other(error)))?
            .map_err(network_error)?
        {
            Some(((), mut fds)) if fds.len() == 1 => Ok(fds.remove(0)),
            _ => Err(network_error(io::Error::other("there was no answer"))),
        }
    }

    async fn send_request(&self, request: ZygoteRequest, control: OwnedFd) -> Result<()> {
        let mut running = self.running.lock().await;
        if let Some(zygote) = running.as_mut() {
            // A dead zygote shows by its status or by its channel; then the session gets a new one,
            // and what was on its network is gone.
            let is_alive =
                zygote.child.as_mut().is_none_or(|child| matches!(child.try_wait(), Ok(None)));
            if is_alive && write_request(&zygote.channel, &request, &control).is_ok() {
                return Ok(());
            }
            tracing::warn!("the zygote of a session was lost; starting a new one");
            *running = None;
        }
        let started = self
            .start_first_tier()
            .await
            .map_err(|sandbox_error| start_error::explain_start_failure("", &sandbox_error))?;
        let channel_error = |error: io::Error| {
            start_error::explain_start_failure(
                "",
                &SandboxError::from_io_error(Layer::Namespaces, "ask for a supervisor", &error),
            )
        };
        write_request(&started.channel, &request, &control).map_err(channel_error)?;
        *running = Some(started);
        Ok(())
    }

    /// Starts the first tier that works. If none does, the error is that of the best one.
    async fn start_first_tier(&self) -> std::result::Result<RunningZygote, SandboxError> {
        let mut first_error = None;
        for tier in available_tiers() {
            match self.start_in_tier(tier).await {
                Ok(zygote) => return Ok(zygote),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| {
            SandboxError::from_message(
                Layer::Namespaces,
                "start",
                "this host offers no way to create namespaces",
            )
        }))
    }

    async fn start_in_tier(&self, tier: Tier) -> std::result::Result<RunningZygote, SandboxError> {
        let spawn_error = |error: io::Error| {
            SandboxError::from_io_error(Layer::Namespaces, "start the zygote", &error)
        };
        let (server_end, zygote_end) = PacketChannel::pair().map_err(spawn_error)?;
        let command = tier::zygote_command(tier, self.launcher.program_path(), zygote_end)
            .map_err(spawn_error)?;
        let child = tokio::process::Command::from(command).spawn().map_err(spawn_error)?;
        let channel = Arc::new(server_end);
        let setup = SessionSetup { rights: self.rights.clone(), tier };
        let setup_channel = Arc::clone(&channel);
        let setup_result = tokio::task::spawn_blocking(move || {
            setup_channel.send(&setup, &[])?;
            setup_channel.receive::<SetupResult>()
        });
        let setup_result = tokio::time::timeout(START_TIMEOUT, setup_result)
            .await
            .map_err(|_| spawn_error(io::ErrorKind::TimedOut.into()))?;
        match setup_result
            .map_err(|error| spawn_error(io::Error::other(error)))?
            .map_err(spawn_error)?
        {
            Some((Ok(()), _)) => Ok(RunningZygote { channel, child: Some(child), prepared: None }),
            Some((Err(sandbox_error), _)) => Err(sandbox_error),
            None => Err(SandboxError::from_message(
                Layer::Namespaces,
                "start the zygote",
                "it was lost",
            )),
        }
    }
}

/// Ends the supervisor that has been prepared since this moment, once its time is over.
async fn end_prepared(running: Weak<Mutex<Option<RunningZygote>>>, since: Instant) {
    tokio::time::sleep_until(since + PREPARED_LIFETIME).await;
    let Some(running) = running.upgrade() else { return };
    if let Some(zygote) = running.lock().await.as_mut()
        && zygote.prepared.as_ref().is_some_and(|prepared| prepared.since == since)
    {
        zygote.prepared = None;
    }
}

/// Returns the two ends of a control socket. Our end does not block, the supervisor's does: the
/// flag belongs to one end of the pair.
pub(super) fn control_pair() -> Result<(UnixStream, UnixStream)> {
    let open_error = |error: io::Error| start_error::cannot_start("the supervisor", &error);
    let (server_end, supervisor_end) = UnixStream::pair().map_err(open_error)?;
    server_end.set_nonblocking(true).map_err(open_error)?;
    Ok((server_end, supervisor_end))
}

fn write_request(
    channel: &PacketChannel,
    request: &ZygoteRequest,
    control: &OwnedFd,
) -> io::Result<()> {
    // A few bytes into a socket that is read immediately: this does not block.
    channel.send(request, &[control.as_fd()])
}
