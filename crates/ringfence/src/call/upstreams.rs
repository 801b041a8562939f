//! Other servers in the pipeline: their lists are learned in the background, which makes a new state,
//! as a reload does.

use std::sync::Arc;

use futures::StreamExt;
use ringfence_client::config::TrustLevel;
use serde_json::json;

use super::{Pipeline, PipelineState};
use crate::audit::CallEvents;
use crate::base::list_changes::ChangedList;
use crate::base::{Error, Result, TraceId};
use crate::session::Principal;
use crate::tools::SessionState;
use crate::upstream::backend::UpstreamBackend;
use crate::upstream::learn::{ServerOffer, ask_server, write_accepted};
use crate::upstream::review::OfferReview;
use crate::upstream::start::StartContext;

/// Servers that are asked at a time.
const MAX_ASKED: usize = 4;

impl Pipeline {
    /// Follows what servers offer until the server stops: a change is announced to clients.
    pub async fn follow_offers(self: Arc<Self>) {
        let mut offers = self.upstreams.watch_offers();
        while offers.changed().await.is_ok() {
            self.apply_offers().await;
        }
    }

    /// Makes a new state from the same config and what servers offer now.
    async fn apply_offers(&self) {
        let _guard = match &self.reloader {
            Some(reloader) => Some(reloader.reload_lock.lock().await),
            None => None,
        };
        let current = self.state();
        let state =
            PipelineState::new(Arc::clone(&current.config), &self.upstreams).succeeding(&current);
        self.replace_state(&current, state);
        // Someone sees another list: what was offered to a principal decides what it sees.
        self.list_changes.announce_change(ChangedList::Tools);
    }

    /// Waits until the state changes.
    pub async fn wait_for_new_state(&self) {
        self.state_changed.notified().await;
    }

    /// Returns whether a server is to be asked for its tools.
    pub fn has_unknown_upstream(&self) -> bool {
        !self.unknown_servers(&self.state()).is_empty()
    }

    /// Asks the trusted servers that no one has accepted yet, and accepts what they offer now. The
    /// session only lends its workspace and its sandboxes.
    pub async fn learn_upstreams(&self, session: &Arc<SessionState>) {
        let state = self.state();
        let mut unknown = self.unknown_servers(&state);
        unknown.retain(|backend| self.upstreams.begin_asking(&backend.definition));
        let asking = unknown.into_iter().map(|backend| {
            let state = Arc::clone(&state);
            async move {
                let id = &backend.server.id;
                if let Err(error) = self.learn_server(&state, &backend, session).await {
                    tracing::warn!("server `{id}` could not be asked: {}", error.log_line());
                    self.upstreams.note_learn_error(id);
                }
            }
        });
        futures::stream::iter(asking).buffer_unordered(MAX_ASKED).collect::<Vec<()>>().await;
        self.reload_if_changed().await;
    }

    fn unknown_servers(&self, state: &PipelineState) -> Vec<Arc<UpstreamBackend>> {
        let upstreams = &state.config.upstreams;
        let is_unknown = |backend: &&Arc<UpstreamBackend>| {
            let id = &backend.server.id;
            backend.server.server.trust == TrustLevel::Trusted
                && !self.upstreams.was_asked(&backend.definition)
                && upstreams.bundles.values().any(|bundle| bundle.server_id == *id)
                && self.upstreams.accepted_server(&state.config, id).is_none()
        };
        state.registry.upstreams.backends.values().filter(is_unknown).cloned().collect()
    }

    async fn learn_server(
        &self,
        state: &PipelineState,
        backend: &Arc<UpstreamBackend>,
        session: &Arc<SessionState>,
    ) -> Result<()> {
        // The list is for all principals; it is learned with the operator's own login.
        let offer = self.ask_upstream(state, backend, session, &Principal::local()).await?;
        let (config, id) = (Arc::clone(&state.config), backend.server.id.clone());
        // Apart from the thread that serves clients: a long list takes a while to scan.
        let scanning = tokio::task::spawn_blocking({
            let (config, id, offered) = (Arc::clone(&config), id.clone(), offer.locked.clone());
            move || OfferReview::new(&id, None, &offered, &config).without_dangerous_tools(&offered)
        });
        let locked = scanning
            .await
            .map_err(|error| Error::internal("the tools cannot be scanned").with_source(error))?;
        let left_out = offer.locked.tools.len() - locked.tools.len();
        if left_out > 0 {
            tracing::warn!(
                "{left_out} tools of server `{id}` are not offered: the scanner found something. See `ringfence upstream diff {id}`."
            );
        }
        let kept = locked.clone();
        let writing =
            tokio::task::spawn_blocking(move || write_accepted(&config.upstreams, &id, locked));
        match writing.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!("accepted definitions are kept in memory: {}", error.log_line());
                self.upstreams.keep_learned(&backend.server.id, kept);
            }
            Err(error) => tracing::error!("cannot write accepted definitions: {error}"),
        }
        Ok(())
    }

    /// Returns what starting or installing a server outside any call takes, without a sandbox.
    pub fn upstream_context(
        &self,
        state: &PipelineState,
        server_id: &str,
        session: &SessionState,
    ) -> StartContext {
        let call_events = CallEvents::without_call(
            &self.audit,
            &TraceId::generate(),
            [
                ("session", session.session.id.as_str().into()),
                ("principal", session.session.principal.name().into()),
                ("upstream", server_id.into()),
            ],
        );
        StartContext {
            config: Arc::clone(&state.config),
            workspace: Arc::clone(&session.session.workspace),
            session_workspace: Arc::clone(&session.session.workspace),
            sandbox: None,
            policy: self.policy.clone(),
            repositories: Arc::clone(&session.sandboxes.repositories),
            call_events,
            outputs: Arc::clone(&session.session.outputs),
            cancel: session.session.cancel.clone(),
            tasks: self.running_calls.clone(),
        }
    }

    /// Asks a server what it offers, in a sandbox of this session and with this principal's login.
    pub async fn ask_upstream(
        &self,
        state: &PipelineState,
        backend: &Arc<UpstreamBackend>,
        session: &Arc<SessionState>,
        principal: &Principal,
    ) -> Result<ServerOffer> {
        let mut context = self.upstream_context(state, &backend.server.id, session);
        let events = context.call_events.clone();
        if let Some(own_sandbox) = &backend.own_sandbox {
            context.open_sandbox(&session.sandboxes, own_sandbox)?;
        }
        let offer = ask_server(backend, context, principal).await;
        let outcome = match &offer {
            Ok(offer) => {
                json!({"outcome": "ok", "tools": offer.locked.tools.len(), "protocol": offer.protocol})
            }
            Err(error) => json!({"outcome": "failed", "error": error.kind().name()}),
        };
        events.write_upstream("upstream.list", outcome.as_object().cloned().unwrap_or_default())?;
        offer
    }
}
