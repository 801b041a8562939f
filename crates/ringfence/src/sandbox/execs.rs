//! The execs of a run that its supervisor tells of or asks about, and who has the answers.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jail::intercept::exec::wire::{Answer, HeldExec, Notice, Reply, Ruled, Rules, disclose};
use jail::packet::Channel;
use rustix::fs::{Mode, OFlags};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::wider::WiderRuns;
use crate::base::{Error, Result};

/// What a run's execs are judged by, and by whom where a rule is not enough.
pub struct Execs {
    pub rules: Rules,
    pub desk: Arc<dyn Desk>,
    /// Where those go that no rule names.
    pub log: Option<File>,
    /// What the desk runs in the wider sandbox.
    pub wider: Arc<WiderRuns>,
}

/// Who answers for the execs of one run.
pub trait Desk: Send + Sync + 'static {
    /// A rule has decided.
    fn ruled(&self, ruled: Ruled);

    /// A process waits. Dropping the future ends whatever it has begun in the process's stead.
    fn held(self: Arc<Self>, exec: Waiting) -> BoxFuture<'static, Answer>;
}

/// A process that waits for an answer, with its standard streams.
pub struct Waiting {
    pub held: HeldExec,
    pub streams: [Option<OwnedFd>; 3],
    /// Says that something runs in its stead; from then on its signals come.
    pub begun: Box<dyn FnOnce() + Send>,
    pub signals: mpsc::UnboundedReceiver<i32>,
}

/// Serves until dropped.
pub struct Service {
    task: JoinHandle<()>,
    /// No exec is answered any more.
    over: CancellationToken,
    wider: Arc<WiderRuns>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A supervisor that has ended has closed its end; nothing else may hold up a result for longer.
const LAST_NOTICES: Duration = Duration::from_secs(1);

impl Service {
    /// Hears everything that a supervisor said before it ended, so that no decision is missing from the record. What ran
    /// elsewhere in the run's stead is ended with it; the wider runs among that are the caller's to wait for.
    pub async fn finish(mut self) -> Arc<WiderRuns> {
        if tokio::time::timeout(LAST_NOTICES, &mut self.task).await.is_err() {
            tracing::warn!("the end of a run's execs was not heard of in time");
        }
        self.task.abort();
        Arc::clone(&self.wider)
    }

    /// Ends what runs elsewhere in the run's stead, and refuses all that comes. Decisions of rules are still heard of.
    pub fn stop_answering(&self) {
        self.over.cancel();
    }

    pub fn start(
        channel: Channel,
        desk: Arc<dyn Desk>,
        wider: Arc<WiderRuns>,
    ) -> io::Result<Service> {
        rustix::io::ioctl_fionbio(&channel, true)?;
        let watched = std::os::unix::net::UnixDatagram::from(channel.as_fd().try_clone_to_owned()?);
        let line = Arc::new(Line { channel, watched: UnixDatagram::from_std(watched)? });
        let over = CancellationToken::new();
        let task = tokio::spawn(serve(line, desk, over.clone()).in_current_span());
        Ok(Service { task, over, wider })
    }
}

/// The channel, without blocking.
struct Line {
    channel: Channel,
    /// The same socket, as the runtime knows it.
    watched: UnixDatagram,
}

impl Line {
    async fn next(&self) -> io::Result<Option<(Notice, Vec<OwnedFd>)>> {
        self.watched.async_io(Interest::READABLE, || self.channel.receive_long()).await
    }

    async fn reply(&self, reply: &Reply) -> io::Result<()> {
        self.watched.async_io(Interest::WRITABLE, || self.channel.send(reply, &[])).await
    }
}

/// One that is being answered for.
struct Open {
    signals: mpsc::UnboundedSender<i32>,
    task: AbortHandle,
}

async fn serve(line: Arc<Line>, desk: Arc<dyn Desk>, over: CancellationToken) {
    let mut answering = JoinSet::new();
    let mut open: HashMap<u64, Open> = HashMap::new();
    let mut is_over = false;
    loop {
        let notice = tokio::select! {
            notice = line.next() => notice,
            () = over.cancelled(), if !is_over => {
                is_over = true;
                answering.abort_all();
                open.clear();
                continue;
            }
            Some(done) = answering.join_next() => {
                if let Ok(id) = done {
                    open.remove(&id);
                }
                continue;
            }
        };
        match notice {
            Ok(Some((Notice::Ruled(ruled), _))) => desk.ruled(ruled),
            Ok(Some((Notice::Held(id), _))) if is_over => {
                let answer =
                    Answer::Refuse("ringfence: not started: its run has ended\n".to_owned(), 126);
                // A supervisor that cannot be told is gone, and the run with it.
                let _ = line.reply(&Reply { id, answer }).await;
            }
            Ok(Some((Notice::Held(id), fds))) => {
                let (signals, inbox) = mpsc::unbounded_channel();
                let (line, desk) = (Arc::clone(&line), Arc::clone(&desk));
                let answered = async move {
                    let answer = answer(&line, id, fds, inbox, desk).await;
                    // A supervisor that cannot be told is gone, and the run with it.
                    let _ = line.reply(&Reply { id, answer }).await;
                    id
                };
                let task = answering.spawn(answered.in_current_span());
                open.insert(id, Open { signals, task });
            }
            Ok(Some((Notice::Signal(id, signal), _))) => {
                if let Some(open) = open.get(&id) {
                    // One that is just ending does not take it any more.
                    let _ = open.signals.send(signal);
                }
            }
            Ok(Some((Notice::Gone(id), _))) => {
                if let Some(open) = open.remove(&id) {
                    open.task.abort();
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::error!("the execs of a run cannot be heard of any more: {error}");
                return;
            }
        }
    }
}

async fn answer(
    line: &Arc<Line>,
    id: u64,
    fds: Vec<OwnedFd>,
    signals: mpsc::UnboundedReceiver<i32>,
    desk: Arc<dyn Desk>,
) -> Answer {
    let mut fds = fds.into_iter();
    let held = fds.next().map(disclose::<HeldExec>);
    let Some(Ok(held)) = held else {
        tracing::error!("an exec came without what there is to know of it");
        return Answer::Refuse("ringfence: the command could not be looked at\n".to_owned(), 126);
    };
    let streams = held.streams.map(|there| if there { fds.next() } else { None });
    let begun = {
        let line = Arc::clone(line);
        move || {
            tokio::spawn(async move { line.reply(&Reply { id, answer: Answer::Begun }).await });
        }
    };
    desk.held(Waiting { held, streams, begun: Box::new(begun), signals }).await
}

/// A file that has no name and goes with the last who holds it.
pub fn exec_log(root: &Path) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::APPEND | OFlags::CLOEXEC;
    let opened = rustix::fs::open(root, flags, Mode::from_raw_mode(0o600)).or_else(|_| {
        // Not every file system has such files; memory will do. Several supervisors write to it, each at its end.
        let memory = rustix::fs::memfd_create("execs", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&memory, OFlags::APPEND)?;
        Ok(memory)
    });
    opened.map(File::from).map_err(|error: rustix::io::Errno| {
        Error::internal("there is no place for the list of execs").source(error)
    })
}
