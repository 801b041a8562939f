//! Connection to a supervisor: orders go out, reports come in.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as Socket;

use jail::supervisor::{self, RunFds, RunSpec, SupervisorCommand, SupervisorReport, encode_line};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::Child;

use super::egress::Egress;
use super::execs::ExecService;
use super::start_error::cannot_start;
use crate::base::Result;

/// Connection to a supervisor that has received its spec.
pub(super) struct SupervisorControl {
    pub reports: Lines<BufReader<OwnedReadHalf>>,
    pub orders: OwnedWriteHalf,
    /// Our own child, or `None` for one that a zygote has forked.
    pub supervisor: Option<Child>,
    pub egress: Option<Egress>,
    /// Answers for the run's execs until it ends.
    pub exec_service: Option<ExecService>,
    /// Report that was received early.
    pub early_report: Option<SupervisorReport>,
}

impl SupervisorControl {
    /// Starts a supervisor and sends it the spec. `supervisor` makes one that waits on the socket
    /// it is given.
    pub async fn open<F>(
        supervisor: impl FnOnce(OwnedFd) -> F,
        spec: &RunSpec,
        fds: &RunFds<BorrowedFd<'_>>,
    ) -> Result<SupervisorControl>
    where
        F: Future<Output = Result<Option<Child>>>,
    {
        let spawn_error = |error: io::Error| cannot_start(&spec.program, &error);
        // Our end does not block, the supervisor's does: the flag belongs to one end of the pair.
        let (server_end, supervisor_end) = Socket::pair().map_err(spawn_error)?;
        server_end.set_nonblocking(true).map_err(spawn_error)?;
        let supervisor = supervisor(supervisor_end.into()).await?;
        let remaining_spec =
            supervisor::send_spec(server_end.as_fd(), spec, fds).map_err(spawn_error)?;
        let (reports, mut orders) =
            UnixStream::from_std(server_end).map_err(spawn_error)?.into_split();
        orders.write_all(&remaining_spec).await.map_err(spawn_error)?;
        Ok(SupervisorControl {
            reports: BufReader::new(reports).lines(),
            orders,
            supervisor,
            egress: None,
            exec_service: None,
            early_report: None,
        })
    }

    /// Sends an order. A write error means that the supervisor has ended, which the end of its
    /// reports shows.
    pub async fn send_order(&mut self, order: SupervisorCommand) {
        let _ = self.orders.write_all(&encode_line(&order).unwrap_or_default()).await;
    }

    /// Returns the supervisor's next report; `None` once it has ended, and everything it ran with
    /// it.
    pub async fn next_report(&mut self) -> io::Result<Option<SupervisorReport>> {
        if let Some(report) = self.early_report.take() {
            return Ok(Some(report));
        }
        match self.reports.next_line().await? {
            Some(line) => Ok(Some(serde_json::from_str(&line)?)),
            None => Ok(None),
        }
    }
}
