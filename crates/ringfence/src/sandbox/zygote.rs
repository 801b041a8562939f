//! The session's zygote: started for its first run, and again for the next one if it was lost.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, LazyLock, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use jail::error::{Layer, SandboxError};
use jail::namespaces::Tier;
use jail::packet::PacketChannel;
use jail::rights::Rights;
use jail::zygote::{SessionSetup, SetupResult, ZygoteRequest};
use tokio::process::Child;
use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;

use super::fault;
use super::launch::Launcher;
use super::tier::{self, tiers};
use crate::base::{Error, Result};

/// Time limit for an answer. A zygote answers in milliseconds; a machine that needs this long will
/// not answer at all.
const START: Duration = Duration::from_secs(10);

/// Handle to the session's zygote. Dropping it closes the channel, which ends everything in the
/// session's sandbox.
pub struct Zygote {
    launcher: Launcher,
    rights: Rights,
    live: Arc<Mutex<Option<Live>>>,
}

struct Live {
    channel: Arc<PacketChannel>,
    tier: Tier,
    /// Held so that it is reaped.
    child: Child,
}

/// Zygotes of all sessions, so that the end of the server can wait for them.
static ALL: std::sync::Mutex<Vec<Weak<Mutex<Option<Live>>>>> = std::sync::Mutex::new(Vec::new());
/// Zygotes whose channel is closed, until they are reaped.
static ENDING: LazyLock<TaskTracker> = LazyLock::new(TaskTracker::new);

/// Ends every zygote and waits until it is gone, and everything of its session with it: a caller
/// that waits for the server to end finds nothing of it afterwards.
pub async fn end_all(at_most: Duration) {
    let all = std::mem::take(&mut *lock(&ALL));
    let ended = tokio::time::timeout(at_most, async {
        for live in all.iter().filter_map(Weak::upgrade) {
            if let Some(live) = live.lock().await.take() {
                live.end();
            }
        }
        ENDING.close();
        ENDING.wait().await;
    });
    if ended.await.is_err() {
        tracing::error!("{} zygotes did not end in time", ENDING.len());
    }
}

fn lock<T>(mutex: &std::sync::Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Live {
    /// Closes the channel, which ends the zygote, and reaps it.
    fn end(self) {
        let Live { channel, mut child, .. } = self;
        drop(channel);
        ENDING.spawn(async move {
            if let Err(error) = child.wait().await {
                tracing::warn!("cannot wait for the end of a zygote: {error}");
            }
        });
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        // Outside of the runtime the process is ending, and no one waits for it any more.
        if let Ok(mut live) = self.live.try_lock()
            && let Some(live) = live.take()
            && tokio::runtime::Handle::try_current().is_ok()
        {
            live.end();
        }
    }
}

impl Zygote {
    /// Registers a zygote, which is started for its first run.
    pub fn new(launcher: Launcher, rights: Rights) -> Zygote {
        let live = Arc::new(Mutex::new(None));
        let mut all = lock(&ALL);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&live));
        Zygote { launcher, rights, live }
    }

    /// Has the zygote fork a supervisor that uses `control` as its socket, in the network of this
    /// number.
    pub async fn supervise(&self, network: Option<u32>, control: OwnedFd) -> Result<Tier> {
        self.order(ZygoteRequest { network, last: false, socket: None }, control).await
    }

    /// Returns a socket that belongs to the network of this number and can be used from here.
    pub async fn socket(&self, network: u32, ipv6: bool) -> Result<OwnedFd> {
        let failed = |error: io::Error| {
            Error::internal("the session's network cannot be used").source(error)
        };
        let (ours, theirs) = PacketChannel::pair().map_err(failed)?;
        let family = if ipv6 { 6 } else { 4 };
        self.order(
            ZygoteRequest { network: Some(network), last: false, socket: Some(family) },
            theirs.into(),
        )
        .await?;
        let handed = tokio::task::spawn_blocking(move || ours.receive::<()>());
        match handed.await.map_err(|error| failed(io::Error::other(error)))?.map_err(failed)? {
            Some(((), mut fds)) if fds.len() == 1 => Ok(fds.remove(0)),
            _ => Err(failed(io::Error::other("there was no answer"))),
        }
    }

    async fn order(&self, wanted: ZygoteRequest, control: OwnedFd) -> Result<Tier> {
        let mut live = self.live.lock().await;
        if let Some(known) = live.as_mut() {
            // A dead zygote shows by its status or by its channel; then the session gets a new one,
            // and what was on its network is gone.
            let alive = matches!(known.child.try_wait(), Ok(None));
            if alive && order(&known.channel, &wanted, &control).is_ok() {
                return Ok(known.tier);
            }
            tracing::warn!("the zygote of a session was lost; starting a new one");
            *live = None;
        }
        let started = self.start().await.map_err(|fault| fault::explain("", &fault))?;
        let lost = |error: io::Error| {
            fault::explain(
                "",
                &SandboxError::from_io_error(Layer::Namespaces, "ask for a supervisor", &error),
            )
        };
        order(&started.channel, &wanted, &control).map_err(lost)?;
        Ok(live.insert(started).tier)
    }

    /// Starts the first tier that works. If none does, the error is that of the best one.
    async fn start(&self) -> std::result::Result<Live, SandboxError> {
        let mut refused = None;
        for tier in tiers() {
            match self.start_in(tier).await {
                Ok(live) => return Ok(live),
                Err(fault) => refused = refused.or(Some(fault)),
            }
        }
        Err(refused.unwrap_or_else(|| {
            SandboxError::from_message(
                Layer::Namespaces,
                "start",
                "this host offers no way to create namespaces",
            )
        }))
    }

    async fn start_in(&self, tier: Tier) -> std::result::Result<Live, SandboxError> {
        let failed = |error: io::Error| {
            SandboxError::from_io_error(Layer::Namespaces, "start the zygote", &error)
        };
        let (ours, theirs) = PacketChannel::pair().map_err(failed)?;
        let command = tier::zygote(tier, self.launcher.program(), theirs).map_err(failed)?;
        let child = tokio::process::Command::from(command).spawn().map_err(failed)?;
        let channel = Arc::new(ours);
        let ground = SessionSetup { rights: self.rights.clone(), tier };
        let talk = Arc::clone(&channel);
        let laid = tokio::task::spawn_blocking(move || {
            talk.send(&ground, &[])?;
            talk.receive::<SetupResult>()
        });
        let laid = tokio::time::timeout(START, laid)
            .await
            .map_err(|_| failed(io::ErrorKind::TimedOut.into()))?;
        match laid.map_err(|error| failed(io::Error::other(error)))?.map_err(failed)? {
            Some((Ok(()), _)) => Ok(Live { channel, tier, child }),
            Some((Err(fault), _)) => Err(fault),
            None => Err(SandboxError::from_message(
                Layer::Namespaces,
                "start the zygote",
                "it was lost",
            )),
        }
    }
}

fn order(channel: &PacketChannel, wanted: &ZygoteRequest, control: &OwnedFd) -> io::Result<()> {
    // A few bytes into a socket that is read immediately: this does not block.
    channel.send(wanted, &[control.as_fd()])
}
