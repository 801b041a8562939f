//! Connection to a supervisor: orders go out, reports come in.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream as Socket;

use jail::supervisor::{
    self, RunBasis, RunFds, RunSpec, SupervisorCommand, SupervisorReport, encode_line,
};
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
    /// What the run was set up with.
    pub basis: RunBasis,
    /// Our own child, or `None` for one that a zygote has forked.
    pub supervisor: Option<Child>,
    pub egress: Option<Egress>,
    /// Answers for the run's execs until it ends.
    pub exec_service: Option<ExecService>,
    /// Report that was received early.
    pub early_report: Option<SupervisorReport>,
}

impl SupervisorControl {
    /// Sends a spec to a supervisor that waits for it on the other end of this socket, which does
    /// not block. `supervisor` is our own child, if it is one.
    pub async fn open(
        control: Socket,
        supervisor: Option<Child>,
        spec: &RunSpec,
        fds: &RunFds<BorrowedFd<'_>>,
    ) -> Result<SupervisorControl> {
        let spawn_error = |error: io::Error| cannot_start(&spec.program, &error);
        let remaining_spec =
            supervisor::send_spec(control.as_fd(), spec, fds).map_err(spawn_error)?;
        let (reports, mut orders) =
            UnixStream::from_std(control).map_err(spawn_error)?.into_split();
        orders.write_all(&remaining_spec).await.map_err(spawn_error)?;
        Ok(SupervisorControl {
            reports: BufReader::new(reports).lines(),
            orders,
            basis: spec.basis(),
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
