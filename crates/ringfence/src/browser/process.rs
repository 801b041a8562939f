//! The browser process: one per principal, started by the first call that needs it and shared by
//! the principal's sessions, each in its own context. A browser that ends for any reason is
//! replaced at the next call.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cdp::{CdpConnection, CdpEvent, EventSink};
use super::executable;
use super::tabs::BrowserContext;
use super::traffic::SessionTraffic;
use crate::base::IgnorePoison;
use crate::base::workspace::Workspace;
use crate::base::{Error, Kind, Result};
use crate::config::Config;
use crate::sandbox::Launcher;
use crate::sandbox::SessionSandboxes;
use crate::sandbox::browser::{BrowserOptions, BrowserRun, SessionProxy};
use crate::session::Session;

/// Timeout from the start of the process to its first answer, generous enough for a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Time after which a browser that has not reported its version is considered stuck.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

const BROWSER_FLAGS: &[&str] = &[
    "--remote-debugging-pipe",
    // Our sandbox encloses the whole browser and removes what Chromium needs to build its own.
    "--no-sandbox",
    // Keep frames of other sites in the process of their page: all processes share one sandbox, so
    // separate processes add no boundary, and a single connection can show and click the whole
    // page.
    "--disable-site-isolation-trials",
    "--disable-features=IsolateOrigins,site-per-process,Translate,MediaRouter,OptimizationHints,HttpsUpgrades,\
     DialMediaRouteProvider,InterestFeedContentSuggestions,AutofillServerCommunication,CertificateTransparencyComponentUpdater,\
     PaintHolding,RenderDocument",
    // Close every network path other than the proxy.
    "--disable-quic",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--proxy-bypass-list=<-loopback>",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-sync",
    "--no-pings",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-startup-window",
    "--no-service-autorun",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-component-extensions-with-background-pages",
    "--disable-search-engine-choice-screen",
    "--disable-infobars",
    "--disable-popup-blocking",
    "--disable-prompt-on-repost",
    "--disable-hang-monitor",
    "--disable-back-forward-cache",
    "--disable-backgrounding-occluded-windows",
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--mute-audio",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--password-store=basic",
    "--use-mock-keychain",
    "--window-size=1280,720",
    "--lang=en-US",
];

/// Running browser.
pub struct BrowserProcess {
    /// Connection to it.
    pub connection: CdpConnection,
    /// Its private directory, which has the same path inside and outside the sandbox.
    pub dir: PathBuf,
    /// The same directory, for opening files safely: the browser controls its content.
    pub files: Arc<Workspace>,
    run: Mutex<Option<BrowserRun>>,
    contexts: Mutex<HashMap<String, Weak<BrowserContext>>>,
    /// Number of calls in flight.
    calls_in_flight: AtomicUsize,
    /// Time of the last use.
    last_used: Mutex<Instant>,
}

/// Terms for starting a browser; awaited only if one has to be started.
pub type TermsFuture<'a> = BoxFuture<'a, Result<BrowserOptions>>;

/// Root and principal: in tests, one process may serve more than one root.
type BrowserKey = (PathBuf, String);
/// Slot of a principal's browser. Weak, because the browser is owned by its contexts and by the
/// task that watches it, so that it ends when the server does.
type BrowserSlot = Arc<tokio::sync::Mutex<Weak<BrowserProcess>>>;
static SLOTS: LazyLock<Mutex<HashMap<BrowserKey, BrowserSlot>>> = LazyLock::new(Mutex::default);

impl BrowserProcess {
    /// Returns the principal's browser; starts one if none is running.
    pub async fn get_or_start(
        session: &Session,
        config: &Config,
        launcher: &Launcher,
        options: TermsFuture<'_>,
    ) -> Result<Arc<BrowserProcess>> {
        let key = (config.root.clone(), session.principal.name().to_owned());
        let slot = Arc::clone(lock_mutex(&SLOTS).entry(key).or_default());
        let mut slot_guard = slot.lock().await;
        if let Some(browser) =
            slot_guard.upgrade().filter(|browser| !browser.connection.is_closed())
        {
            browser.mark_used();
            return Ok(browser);
        }
        let browser =
            BrowserProcess::start_process(session, config, launcher, options.await?).await?;
        tokio::spawn(
            Arc::clone(&browser).watch_until_idle(config.browser.idle_timeout, Arc::clone(&slot)),
        );
        *slot_guard = Arc::downgrade(&browser);
        Ok(browser)
    }

    async fn start_process(
        session: &Session,
        config: &Config,
        launcher: &Launcher,
        options: BrowserOptions,
    ) -> Result<Arc<BrowserProcess>> {
        let browser_program = executable::find_browser(config)?;
        let mut args: Vec<String> = BROWSER_FLAGS.iter().map(|arg| (*arg).to_owned()).collect();
        args.push(browser_program.headless_flag.to_owned());
        let mut hidden_paths = vec![session.workspace.path()];
        hidden_paths.extend(config.workspace.as_deref());
        let mut run = crate::sandbox::browser::start_browser(
            config,
            launcher,
            &browser_program.program,
            &args,
            &hidden_paths,
            options,
        )
        .await?;
        let connection = run
            .debug_pipe
            .take()
            .ok_or_else(|| Error::internal("the browser has no connection"))?;
        let connection = CdpConnection::new(connection);
        let dir = run.dir.clone();
        let handshake = async {
            let version = connection.call_method(None, "Browser.getVersion", json!({})).await?;
            let attach =
                json!({"autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true});
            connection.call_method(None, "Target.setAutoAttach", attach).await?;
            Ok(version)
        };
        let version: Value = match tokio::time::timeout(START_TIMEOUT, handshake).await {
            Ok(answer) => answer
                .map_err(|error: Error| start_error(&browser_program.program).with_source(error))?,
            Err(_) => return Err(start_error(&browser_program.program)),
        };
        let product: String =
            version["product"].as_str().unwrap_or_default().chars().take(80).collect();
        tracing::info!("started {product} ({})", browser_program.program.display());
        let browser = Arc::new(BrowserProcess {
            connection,
            files: Arc::new(Workspace::open(&dir, &[])?),
            dir,
            run: Mutex::new(Some(run)),
            contexts: Mutex::default(),
            calls_in_flight: AtomicUsize::new(0),
            last_used: Mutex::new(Instant::now()),
        });
        browser.connection.set_sink(None, Arc::new(BrowserEventSink(Arc::downgrade(&browser))));
        Ok(browser)
    }

    /// Ends the process when its connection closes, or when it has been idle for too long.
    async fn watch_until_idle(self: Arc<Self>, idle_timeout: Duration, slot: BrowserSlot) {
        loop {
            let idle_deadline = *lock_mutex(&self.last_used) + idle_timeout;
            tokio::select! {
                () = self.connection.wait_closed() => break,
                () = tokio::time::sleep_until(idle_deadline) => {}
            }
            // Callers that need a browser now wait for this lock, and get this browser or the next
            // one, but never one that is about to end.
            let _slot_guard = slot.lock().await;
            let is_idle = lock_mutex(&self.last_used).elapsed() >= idle_timeout
                && self.calls_in_flight.load(Ordering::SeqCst) == 0;
            if is_idle {
                tracing::info!(
                    "the browser was idle for {} s: stopping it",
                    idle_timeout.as_secs()
                );
                self.shut_down();
                return;
            }
            self.mark_used_if_busy();
        }
        self.shut_down();
    }

    fn mark_used_if_busy(&self) {
        if self.calls_in_flight.load(Ordering::SeqCst) > 0 {
            self.mark_used();
        }
    }

    fn mark_used(&self) {
        *lock_mutex(&self.last_used) = Instant::now();
    }

    /// Marks the browser as in use until the returned guard is dropped, so that it is not
    /// considered idle.
    pub fn begin_use(self: &Arc<Self>) -> BusyGuard {
        self.calls_in_flight.fetch_add(1, Ordering::SeqCst);
        BusyGuard(Arc::clone(self))
    }

    /// Ends the browser with all its contexts and its run.
    pub fn shut_down(&self) {
        self.connection.close();
        let contexts: Vec<_> = lock_mutex(&self.contexts).drain().collect();
        for context in contexts.into_iter().filter_map(|(_, context)| context.upgrade()) {
            context.remove_all_pages();
        }
        if let Some(run) = lock_mutex(&self.run).take() {
            run.stop_browser();
        }
    }

    /// Ends the browser if it does not answer. Called after a call has timed out: a stuck page
    /// affects only itself, but a stuck browser has to be ended.
    pub fn check_alive(self: &Arc<Self>) {
        let browser = Arc::clone(self);
        tokio::spawn(async move {
            let probe = browser.connection.call_method(None, "Browser.getVersion", json!({}));
            if !matches!(tokio::time::timeout(ALIVE_TIMEOUT, probe).await, Ok(Ok(_))) {
                tracing::warn!("the browser does not answer: stopping it");
                browser.shut_down();
            }
        });
    }

    /// Opens the proxy through which a session's pages reach the network.
    pub fn open_proxy(
        &self,
        sandboxes: &SessionSandboxes,
        config: &Config,
        launcher: &Launcher,
        denied: &[String],
        traffic: &Arc<SessionTraffic>,
    ) -> Result<SessionProxy> {
        let run = lock_mutex(&self.run);
        let run = run
            .as_ref()
            .ok_or_else(|| Error::new(Kind::Unavailable, "the browser has just ended"))?;
        run.open_session_proxy(sandboxes, config, launcher, denied, traffic.decision_callback())
    }

    /// Registers a context, so that it receives events.
    pub fn add_context(&self, context: &Arc<BrowserContext>) {
        lock_mutex(&self.contexts).insert(context.id.clone(), Arc::downgrade(context));
    }

    /// Removes a context.
    pub fn remove_context(&self, id: &str) {
        lock_mutex(&self.contexts).remove(id);
    }

    fn context(&self, id: Option<&str>) -> Option<Arc<BrowserContext>> {
        lock_mutex(&self.contexts).get(id?).and_then(Weak::upgrade)
    }

    fn all_contexts(&self) -> Vec<Arc<BrowserContext>> {
        lock_mutex(&self.contexts).values().filter_map(Weak::upgrade).collect()
    }
}

/// Guard of one call that uses a browser.
pub struct BusyGuard(Arc<BrowserProcess>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.mark_used();
        self.0.calls_in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Receives the browser's own events, which belong to no page.
struct BrowserEventSink(Weak<BrowserProcess>);

impl EventSink for BrowserEventSink {
    fn handle_event(&self, connection: &CdpConnection, event: CdpEvent<'_>) {
        let Some(browser) = self.0.upgrade() else { return };
        let params = event.params;
        match event.method {
            "Target.attachedToTarget" => {
                let Some(session) = params["sessionId"].as_str() else { return };
                let target_info = &params["targetInfo"];
                let context = browser.context(target_info["browserContextId"].as_str());
                match context {
                    Some(context) if target_info["type"] == "page" => {
                        context.adopt_page(connection, session, target_info)
                    }
                    // Workers may run unobserved; a page that belongs to no context is closed.
                    _ => {
                        connection.send_command(
                            Some(session),
                            "Runtime.runIfWaitingForDebugger",
                            json!({}),
                        );
                        connection.send_command(
                            None,
                            "Target.detachFromTarget",
                            json!({"sessionId": session}),
                        );
                        if target_info["type"] == "page" {
                            connection.send_command(
                                None,
                                "Target.closeTarget",
                                json!({"targetId": target_info["targetId"]}),
                            );
                        }
                    }
                }
            }
            "Target.detachedFromTarget" => {
                let session = params["sessionId"].as_str().unwrap_or_default();
                connection.remove_sink(session);
                for context in browser.all_contexts() {
                    context.remove_page(session);
                }
            }
            "Browser.downloadWillBegin" => {
                // The event names a frame but no context; cancel a download whose frame belongs to
                // no context.
                let frame = params["frameId"].as_str().unwrap_or_default();
                let contexts = browser.all_contexts();
                match contexts.iter().find(|context| context.has_frame(frame)) {
                    Some(context) => context.handle_download(event.method, params),
                    None => {
                        contexts.iter().for_each(|context| context.cancel_download(&params["guid"]))
                    }
                }
            }
            // Each context recognises its own downloads.
            "Browser.downloadProgress" => {
                browser
                    .all_contexts()
                    .iter()
                    .for_each(|context| context.handle_download(event.method, params));
            }
            _ => {}
        }
    }
}

fn start_error(program: &Path) -> Error {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Error::new(Kind::Unavailable, format!("the browser {name} did not start"))
        .with_reason("browser_failed")
        .with_hint("Try again; `ringfence doctor` shows which browser is used, or why none is.")
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}
