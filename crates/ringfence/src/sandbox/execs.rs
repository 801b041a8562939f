//! Exec notices of a run: what its supervisor reports or asks about, and the task that answers.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jail::intercept::exec::wire::{
    ExecAnswer, ExecNotice, ExecReply, HeldExec, RuledExec, read_memory_file,
};
use jail::packet::PacketChannel;
use rustix::fs::{Mode, OFlags};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::base::{Error, Result};

/// Decides about the execs of one run.
pub trait ExecDecider: Send + Sync + 'static {
    /// Called when a rule has decided.
    fn record_ruling(&self, ruled: RuledExec);

    /// Called when a process waits for a decision. Dropping the future ends whatever it has started
    /// in place of that process.
    fn decide_exec(self: Arc<Self>, exec: WaitingExec) -> BoxFuture<'static, ExecAnswer>;
}

/// Process that waits for an answer, with its standard streams.
pub struct WaitingExec {
    pub held: HeldExec,
    pub streams: [Option<OwnedFd>; 3],
    /// Reports that something runs in its place; from then on its signals arrive.
    pub on_begun: Box<dyn FnOnce() + Send>,
    pub signals: mpsc::UnboundedReceiver<i32>,
}

/// Task that answers the supervisor of one run. Serves until dropped.
pub struct ExecService {
    task: JoinHandle<()>,
    /// Cancelled once no exec is to be answered any more.
    stopped: CancellationToken,
}

impl Drop for ExecService {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Limit on the wait for the last notices. A supervisor that has ended has closed its end; nothing
/// else may delay a result for longer.
const LAST_NOTICES_TIMEOUT: Duration = Duration::from_secs(1);

impl ExecService {
    /// Receives everything that a supervisor sent before it ended, so that no decision is missing
    /// from the record. Ends what ran elsewhere in place of the run's processes; the caller must
    /// wait for the wider runs among that.
    pub async fn finish_notices(mut self) {
        if tokio::time::timeout(LAST_NOTICES_TIMEOUT, &mut self.task).await.is_err() {
            tracing::warn!("the last exec notices of a run did not arrive in time");
        }
        self.task.abort();
    }

    /// Ends what runs elsewhere in place of the run's processes, and refuses all further requests.
    /// Rule decisions are still received.
    pub fn stop_answering(&self) {
        self.stopped.cancel();
    }

    /// Starts to serve this channel.
    pub fn start_serving(
        channel: PacketChannel,
        decider: Arc<dyn ExecDecider>,
    ) -> io::Result<ExecService> {
        rustix::io::ioctl_fionbio(&channel, true)?;
        let watched = std::os::unix::net::UnixDatagram::from(channel.as_fd().try_clone_to_owned()?);
        let notice_channel =
            Arc::new(NoticeChannel { channel, watched: UnixDatagram::from_std(watched)? });
        let stopped = CancellationToken::new();
        let task =
            tokio::spawn(serve_notices(notice_channel, decider, stopped.clone()).in_current_span());
        Ok(ExecService { task, stopped })
    }
}

/// The channel, without blocking.
struct NoticeChannel {
    channel: PacketChannel,
    /// The same socket, as the runtime knows it.
    watched: UnixDatagram,
}

impl NoticeChannel {
    async fn next_notice(&self) -> io::Result<Option<(ExecNotice, Vec<OwnedFd>)>> {
        self.watched.async_io(Interest::READABLE, || self.channel.receive()).await
    }

    async fn send_reply(&self, reply: &ExecReply) -> io::Result<()> {
        self.watched.async_io(Interest::WRITABLE, || self.channel.send(reply, &[])).await
    }
}

/// Exec that is being answered.
struct PendingExec {
    signals: mpsc::UnboundedSender<i32>,
    task: AbortHandle,
}

async fn serve_notices(
    notice_channel: Arc<NoticeChannel>,
    decider: Arc<dyn ExecDecider>,
    stopped: CancellationToken,
) {
    let mut answer_tasks = JoinSet::new();
    let mut open: HashMap<u64, PendingExec> = HashMap::new();
    let mut is_stopped = false;
    loop {
        let notice = tokio::select! {
            notice = notice_channel.next_notice() => notice,
            () = stopped.cancelled(), if !is_stopped => {
                is_stopped = true;
                answer_tasks.abort_all();
                open.clear();
                continue;
            }
            Some(finished) = answer_tasks.join_next() => {
                if let Ok(id) = finished {
                    open.remove(&id);
                }
                continue;
            }
        };
        match notice {
            Ok(Some((ExecNotice::Ruled(ruled), _))) => decider.record_ruling(ruled),
            Ok(Some((ExecNotice::Held(id), _))) if is_stopped => {
                let answer = ExecAnswer::Refuse(
                    "ringfence: not started: its run has ended\n".to_owned(),
                    126,
                );
                // A send error means that the supervisor is gone, and the run with it.
                let _ = notice_channel.send_reply(&ExecReply { id, answer }).await;
            }
            Ok(Some((ExecNotice::Held(id), fds))) => {
                let (signals, signal_inbox) = mpsc::unbounded_channel();
                let (notice_channel, decider) = (Arc::clone(&notice_channel), Arc::clone(&decider));
                let answer_future = async move {
                    let answer = answer_exec(&notice_channel, id, fds, signal_inbox, decider).await;
                    // A send error means that the supervisor is gone, and the run with it.
                    let _ = notice_channel.send_reply(&ExecReply { id, answer }).await;
                    id
                };
                let task = answer_tasks.spawn(answer_future.in_current_span());
                open.insert(id, PendingExec { signals, task });
            }
            Ok(Some((ExecNotice::Signal(id, signal), _))) => {
                if let Some(open) = open.get(&id) {
                    // A command that is just ending does not take it any more.
                    let _ = open.signals.send(signal);
                }
            }
            Ok(Some((ExecNotice::Gone(id), _))) => {
                if let Some(open) = open.remove(&id) {
                    open.task.abort();
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::error!("exec notices of a run can no longer be received: {error}");
                return;
            }
        }
    }
}

async fn answer_exec(
    notice_channel: &Arc<NoticeChannel>,
    id: u64,
    fds: Vec<OwnedFd>,
    signals: mpsc::UnboundedReceiver<i32>,
    decider: Arc<dyn ExecDecider>,
) -> ExecAnswer {
    let mut fds = fds.into_iter();
    let held = fds.next().map(read_memory_file::<HeldExec>);
    let Some(Ok(held)) = held else {
        tracing::error!("an exec notice arrived without its details");
        return ExecAnswer::Refuse(
            "ringfence: the command could not be inspected\n".to_owned(),
            126,
        );
    };
    let streams = held.streams.map(|is_open| if is_open { fds.next() } else { None });
    let on_begun = {
        let notice_channel = Arc::clone(notice_channel);
        move || {
            tokio::spawn(async move {
                notice_channel.send_reply(&ExecReply { id, answer: ExecAnswer::Begun }).await
            });
        }
    };
    decider.decide_exec(WaitingExec { held, streams, on_begun: Box::new(on_begun), signals }).await
}

/// Opens a file without a name, which disappears with its last holder.
pub fn create_exec_log(root: &Path) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::APPEND | OFlags::CLOEXEC;
    let opened = rustix::fs::open(root, flags, Mode::from_raw_mode(0o600)).or_else(|_| {
        // Not every file system supports unnamed files; memory is good enough. Several supervisors
        // write to it, each at its end.
        let memory = rustix::fs::memfd_create("execs", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&memory, OFlags::APPEND)?;
        Ok(memory)
    });
    opened.map(File::from).map_err(|error: rustix::io::Errno| {
        Error::internal("cannot create the list of execs").with_source(error)
    })
}
