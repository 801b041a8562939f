//! What a rule lets into the wider sandbox: an ordinary run with another profile, judged and recorded as the run that
//! causes it.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use jail::intercept::exec::wire::Rules;

use super::{Policed, RunDesk, audit_network};
use crate::audit::Approvals;
use crate::base::{Error, Result};
use crate::config::Escalate;
use crate::rulebook::Leaving;
use crate::sandbox::escalate::{Where, WiderPlace};
use crate::sandbox::{Execs, WiderRuns, WiderTerms};
use crate::tools::RunCx;

/// What a run shares with those that it causes in the wider sandbox: they are on its record.
pub(super) struct WiderShare {
    /// Of the call that started the run.
    approvals: Approvals,
    denied_hosts: Vec<String>,
    heuristics: bool,
    log: File,
    pub(super) runs: Arc<WiderRuns>,
}

impl WiderShare {
    pub(super) fn new(approvals: Approvals, policed: &Policed, log: &File) -> Result<WiderShare> {
        Ok(WiderShare {
            approvals,
            denied_hosts: policed.denied_hosts(),
            heuristics: policed.rules.heuristics,
            log: share(log)?,
            runs: Arc::default(),
        })
    }
}

fn share(log: &File) -> Result<File> {
    log.try_clone()
        .map_err(|error| Error::internal("the list of execs cannot be shared").source(error))
}

/// Which sandbox the processes of a desk are in.
pub(super) enum Stands {
    Inside(WiderShare),
    Wider,
}

impl Stands {
    /// Where a command ran that stayed where it was, in a record.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Stands::Inside(_) => "inside",
            Stands::Wider => Escalate::Wider.name(),
        }
    }
}

impl RunDesk {
    /// Where what leaves the sandbox runs.
    pub(super) fn somewhere<'a>(&'a self, cx: &'a RunCx) -> Result<Where<'a>> {
        let (config, launcher) = (&cx.config, &self.launcher);
        match (config.policy.escalate, &config.policy.wider, &self.stands) {
            (Escalate::Wider, Some(sandbox), Stands::Inside(shared)) => {
                Ok(Where::Wider(Box::new(WiderPlace {
                    session: Arc::clone(&cx.session),
                    config: Arc::clone(config),
                    sandbox: sandbox.clone(),
                    launcher: launcher.clone(),
                    terms: self.wider_terms(shared)?,
                })))
            }
            _ => Ok(Where::Outside { launcher, config }),
        }
    }

    /// A run in the wider sandbox is judged by the same rules, at a desk like this one, and is on the same record.
    fn wider_terms(&self, shared: &WiderShare) -> Result<WiderTerms> {
        let desk = RunDesk {
            attended: Arc::clone(&self.attended),
            began_denied: self.began_denied,
            call: Arc::clone(&self.call),
            launcher: self.launcher.clone(),
            rights: self.rights.clone(),
            env: self.env.clone(),
            book: Arc::clone(&self.book),
            // Nothing leads further out.
            leaving: Leaving::Off,
            kept_inside: Arc::clone(&self.kept_inside),
            audited: AtomicUsize::new(0),
            own: self.attended.cx().own(),
            stands: Stands::Wider,
        };
        // The program itself has been judged; what it starts has not.
        let (table, heuristics) = (self.book.table.clone(), shared.heuristics);
        let rules = Rules { table, heuristics, granted: true, ..Rules::default() };
        let log = Some(share(&shared.log)?);
        Ok(WiderTerms {
            execs: Execs { rules, desk: Arc::new(desk), log, wider: Arc::default() },
            decided: audit_network(&shared.approvals),
            denied_hosts: shared.denied_hosts.clone(),
            runs: Arc::clone(&shared.runs),
        })
    }
}
