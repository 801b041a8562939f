//! The session's zygote: started for its first run, and again for the next one when it was lost.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use jail::fault::{Fault, Layer};
use jail::namespaces::Tier;
use jail::packet::Channel;
use jail::rights::Rights;
use jail::zygote::{Ground, Laid, Order};
use tokio::process::Child;
use tokio::sync::Mutex;

use super::fault;
use super::launch::Launcher;
use super::tier::{self, tiers};
use crate::base::{Error, Result};

/// A zygote answers in milliseconds; a machine that needs this long is not going to.
const START: Duration = Duration::from_secs(10);

/// The session's, while it lives. Dropping it closes the channel, and everything of the session's goes.
pub struct Zygote {
    launcher: Launcher,
    rights: Rights,
    live: Mutex<Option<Live>>,
}

struct Live {
    channel: Arc<Channel>,
    tier: Tier,
    /// Held so that it is reaped.
    child: Child,
}

impl Zygote {
    pub fn new(launcher: Launcher, rights: Rights) -> Zygote {
        Zygote { launcher, rights, live: Mutex::new(None) }
    }

    /// Has a supervisor made that takes `control` as its socket, in the network of this number.
    pub async fn supervise(&self, network: Option<u32>, control: OwnedFd) -> Result<Tier> {
        self.order(Order { network, last: false, socket: None }, control).await
    }

    /// A socket that lives in the network of this number, which it can be used in from here.
    pub async fn socket(&self, network: u32, ipv6: bool) -> Result<OwnedFd> {
        let failed = |error: io::Error| Error::internal("the session's network cannot be used").source(error);
        let (ours, theirs) = Channel::pair().map_err(failed)?;
        let family = if ipv6 { 6 } else { 4 };
        self.order(Order { network: Some(network), last: false, socket: Some(family) }, theirs.into()).await?;
        let handed = tokio::task::spawn_blocking(move || ours.receive::<()>());
        match handed.await.map_err(|error| failed(io::Error::other(error)))?.map_err(failed)? {
            Some(((), mut fds)) if fds.len() == 1 => Ok(fds.remove(0)),
            _ => Err(failed(io::Error::other("there was no answer"))),
        }
    }

    async fn order(&self, wanted: Order, control: OwnedFd) -> Result<Tier> {
        let mut live = self.live.lock().await;
        if let Some(known) = live.as_mut() {
            // One that has died is known by its status or by its channel; then the session gets a new one, and what
            // was on its network is gone.
            let alive = matches!(known.child.try_wait(), Ok(None));
            if alive && order(&known.channel, &wanted, &control).is_ok() {
                return Ok(known.tier);
            }
            tracing::warn!("the zygote of a session was lost and is started again");
            *live = None;
        }
        let started = self.start().await.map_err(|fault| fault::explain("", &fault))?;
        let lost =
            |error: io::Error| fault::explain("", &Fault::new(Layer::Namespaces, "ask for a supervisor", &error));
        order(&started.channel, &wanted, &control).map_err(lost)?;
        Ok(live.insert(started).tier)
    }

    /// The first tier that works. All of them are tried, and the best one's reason is told.
    async fn start(&self) -> std::result::Result<Live, Fault> {
        let mut refused = None;
        for tier in tiers() {
            match self.start_in(tier).await {
                Ok(live) => return Ok(live),
                Err(fault) => refused = refused.or(Some(fault)),
            }
        }
        Err(refused.unwrap_or_else(|| Fault::other(Layer::Namespaces, "start", "there is no way to make namespaces")))
    }

    async fn start_in(&self, tier: Tier) -> std::result::Result<Live, Fault> {
        let failed = |error: io::Error| Fault::new(Layer::Namespaces, "start the zygote", &error);
        let (ours, theirs) = Channel::pair().map_err(failed)?;
        let command = tier::zygote(tier, self.launcher.program(), theirs).map_err(failed)?;
        let child = tokio::process::Command::from(command).spawn().map_err(failed)?;
        let channel = Arc::new(ours);
        let ground = Ground { rights: self.rights.clone(), tier };
        let talk = Arc::clone(&channel);
        let laid = tokio::task::spawn_blocking(move || {
            talk.send(&ground, &[])?;
            talk.receive::<Laid>()
        });
        let laid = tokio::time::timeout(START, laid).await.map_err(|_| failed(io::ErrorKind::TimedOut.into()))?;
        match laid.map_err(|error| failed(io::Error::other(error)))?.map_err(failed)? {
            Some((Ok(()), _)) => Ok(Live { channel, tier, child }),
            Some((Err(fault), _)) => Err(fault),
            None => Err(Fault::other(Layer::Namespaces, "start the zygote", "it was lost")),
        }
    }
}

fn order(channel: &Channel, wanted: &Order, control: &OwnedFd) -> io::Result<()> {
    // A few bytes into a socket that is read at once: it does not block.
    channel.send(wanted, &[control.as_fd()])
}
