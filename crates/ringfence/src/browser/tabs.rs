//! Pages of a session: its own context in the browser, which shares no cookies, cache or storage
//! with another.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use super::downloads::SessionDownloads;
use super::page::{BrowserPage, is_valid_id};
use super::page_log::{PageLogEntry, PageLogKind as LogKind};
use super::process::{BrowserProcess, BusyGuard, TermsFuture};
use super::traffic::SessionTraffic;
use super::upload::SessionUploads;
use crate::base::IgnorePoison;
use crate::base::client_sandbox::ClientSandbox;
use crate::base::{Error, Kind, Result};
use crate::config::Config;
use crate::sandbox::Launcher;
use crate::sandbox::SessionSandboxes;
use crate::sandbox::browser::SessionProxy;

/// Maximum number of pages per session. Pages opened beyond it are closed immediately.
pub const MAX_PAGES: usize = 20;
/// Timeout for opening a page.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// The pages of a session: its own, and separate ones for calls that a client has restricted.
#[derive(Default)]
pub struct TabSets {
    own: Arc<SessionTabs>,
    restricted: RestrictedTabs,
}

/// Pages of a session under one restriction; dropped with the session.
#[derive(Default)]
pub struct SessionTabs {
    context: tokio::sync::Mutex<Option<Arc<BrowserContext>>>,
    /// Number of the last handle. Handles are never reused, not even by another browser.
    last_handle: Arc<AtomicU64>,
}

/// Pages of calls that a client has restricted, by restriction; most recently used last.
#[derive(Default)]
struct RestrictedTabs(Mutex<Vec<(Arc<ClientSandbox>, Arc<SessionTabs>)>>);

/// Maximum number of restrictions with their own pages; beyond it, the least recently used are
/// closed.
const MAX_RESTRICTED: usize = 4;

impl RestrictedTabs {
    fn get(&self, client_sandbox: &Arc<ClientSandbox>) -> Arc<SessionTabs> {
        let mut entries = self.0.lock().ignore_poison();
        let known = entries
            .iter()
            .position(|(known, _)| known == client_sandbox)
            .map(|index| entries.remove(index));
        let (client_sandbox, tabs) =
            known.unwrap_or_else(|| (Arc::clone(client_sandbox), Arc::default()));
        entries.push((client_sandbox, Arc::clone(&tabs)));
        let surplus = entries.len().saturating_sub(MAX_RESTRICTED);
        entries.drain(..surplus);
        tabs
    }
}

impl TabSets {
    /// Returns the session's pages, or, for a call without a persistent session, pages that end
    /// with the call. Calls that a client has restricted get separate pages: a page opened for a
    /// less restricted call, and its connections, still have that call's wider access.
    pub fn for_call(
        &self,
        persistent: bool,
        client_sandbox: Option<&Arc<ClientSandbox>>,
    ) -> Arc<SessionTabs> {
        match (persistent, client_sandbox) {
            (true, None) => Arc::clone(&self.own),
            (true, Some(client_sandbox)) => self.restricted.get(client_sandbox),
            (false, _) => Arc::default(),
        }
    }
}

impl SessionTabs {
    /// Returns the session's context; creates a new one if the browser is not the one used last.
    pub async fn open_context(
        &self,
        sandboxes: &SessionSandboxes,
        config: &Config,
        launcher: &Launcher,
        denied: &[String],
        options: TermsFuture<'_>,
    ) -> Result<(Arc<BrowserContext>, BusyGuard)> {
        let mut context_slot = self.context.lock().await;
        let browser =
            BrowserProcess::get_or_start(&sandboxes.session, config, launcher, options).await?;
        let busy_guard = browser.begin_use();
        if let Some(context) =
            context_slot.as_ref().filter(|context| Arc::ptr_eq(&context.browser, &browser))
        {
            return Ok((Arc::clone(context), busy_guard));
        }
        *context_slot = None;
        let context = BrowserContext::new(
            browser,
            sandboxes,
            config,
            launcher,
            denied,
            Arc::clone(&self.last_handle),
        )
        .await?;
        *context_slot = Some(Arc::clone(&context));
        Ok((context, busy_guard))
    }

    /// Returns the existing context, if there is one.
    pub async fn current_context(&self) -> Option<(Arc<BrowserContext>, BusyGuard)> {
        let context_slot = self.context.lock().await;
        let context =
            context_slot.as_ref().filter(|context| !context.browser.connection.is_closed())?;
        Some((Arc::clone(context), context.browser.begin_use()))
    }

    /// Closes all pages, and with them everything the session has stored in the browser.
    pub async fn close_all(&self) {
        *self.context.lock().await = None;
    }

    /// Returns whether this handle was ever given to a page.
    pub fn has_issued(&self, handle: &str) -> bool {
        handle
            .strip_prefix('p')
            .and_then(|number| number.parse::<u64>().ok())
            .is_some_and(|number| (1..=self.last_handle.load(Ordering::SeqCst)).contains(&number))
    }
}

/// Context of a session in the browser, with its own cookies, cache, storage and proxy.
pub struct BrowserContext {
    /// The browser's id of the context.
    pub id: String,
    /// Browser that it belongs to.
    pub browser: Arc<BrowserProcess>,
    /// Downloads of its pages.
    pub downloads: SessionDownloads,
    /// Copies of uploaded files.
    pub uploads: Arc<SessionUploads>,
    /// Decisions of the proxy about its pages.
    pub traffic: Arc<SessionTraffic>,
    /// Proxy of its pages; closed with the context.
    pub proxy: SessionProxy,
    last_handle: Arc<AtomicU64>,
    pages: Mutex<PageList>,
    changed: watch::Sender<u64>,
    this: Weak<BrowserContext>,
    /// Disposes of the browser's context on drop.
    _guard: ContextGuard,
}

/// Context in the browser, disposed of on drop.
struct ContextGuard {
    browser: Arc<BrowserProcess>,
    id: String,
}

impl Drop for ContextGuard {
    fn drop(&mut self) {
        if !self.browser.connection.is_closed() {
            self.browser.connection.send_command(
                None,
                "Target.disposeBrowserContext",
                json!({"browserContextId": self.id}),
            );
        }
    }
}

/// Maximum number of ended pages remembered: a page that turns out to be a download ends before the
/// download begins.
const MAX_LOST_PAGES: usize = 50;

#[derive(Default)]
struct PageList {
    all: Vec<Arc<BrowserPage>>,
    lost: VecDeque<String>,
    /// Handle of the current page, which is used if a call names none.
    current: String,
}

impl BrowserContext {
    async fn new(
        browser: Arc<BrowserProcess>,
        sandboxes: &SessionSandboxes,
        config: &Config,
        launcher: &Launcher,
        denied: &[String],
        last_handle: Arc<AtomicU64>,
    ) -> Result<Arc<BrowserContext>> {
        let traffic = Arc::new(SessionTraffic::default());
        let proxy = browser.open_proxy(sandboxes, config, launcher, denied, &traffic)?;
        traffic.set_shut_off(proxy.make_closer());
        // Loopback goes through the proxy, too: it means the session's own loopback.
        let params = json!({"disposeOnDetach": true, "proxyServer": proxy.proxy_url, "proxyBypassList": "<-loopback>"});
        let made =
            browser.connection.call_method(None, "Target.createBrowserContext", params).await?;
        let id = made["browserContextId"].as_str().unwrap_or_default().to_owned();
        let made = ContextGuard { browser, id };
        let (browser, id) = (&made.browser, &made.id);
        let downloads =
            SessionDownloads::new(browser, &sandboxes.session, config.limits.output_file_bytes)?;
        let behaviour = json!({
            "behavior": "allowAndName", "browserContextId": id,
            "downloadPath": downloads.folder(), "eventsEnabled": true,
        });
        browser.connection.call_method(None, "Browser.setDownloadBehavior", behaviour).await?;
        let uploads = SessionUploads::new(browser, config.limits.output_file_bytes);
        let (id, browser) = (id.clone(), Arc::clone(browser));
        let context = Arc::new_cyclic(|this| BrowserContext {
            id,
            browser,
            downloads,
            uploads,
            _guard: made,
            traffic,
            proxy,
            last_handle,
            pages: Mutex::default(),
            changed: watch::channel(0).0,
            this: this.clone(),
        });
        context.browser.add_context(&context);
        Ok(context)
    }

    /// Takes over a page that the browser has just created, on our request or by another page.
    pub fn adopt_page(
        &self,
        connection: &super::cdp::CdpConnection,
        session: &str,
        target_info: &Value,
    ) {
        let target = target_info["targetId"].as_str().unwrap_or_default();
        if self.lock_pages().all.len() >= MAX_PAGES || !is_valid_id(target) || !is_valid_id(session)
        {
            connection.send_command(Some(session), "Runtime.runIfWaitingForDebugger", json!({}));
            connection.send_command(None, "Target.closeTarget", json!({"targetId": target}));
            if let Some(page) = self.lock_pages().all.last() {
                page.state().log.add_entry(PageLogEntry::new(
                    LogKind::Blocked,
                    "too many pages: a new page was closed immediately",
                ));
            }
            return;
        }
        let handle = format!("p{}", self.last_handle.fetch_add(1, Ordering::SeqCst) + 1);
        let page = BrowserPage::new(handle, connection, session, target, self.this.clone());
        page.enable_events();
        self.lock_pages().all.push(page);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Removes the page of a protocol session; returns whether it belonged to this context.
    pub fn remove_page(&self, session: &str) -> bool {
        let mut pages = self.lock_pages();
        let Some(index) = pages.all.iter().position(|page| page.session == session) else {
            return false;
        };
        let page = pages.all.remove(index);
        page.mark_gone(false);
        if pages.lost.len() == MAX_LOST_PAGES {
            pages.lost.pop_front();
        }
        pages.lost.push_back(page.target.clone());
        true
    }

    /// Removes all pages.
    pub fn remove_all_pages(&self) {
        let pages = std::mem::take(&mut self.lock_pages().all);
        pages.iter().for_each(|page| page.mark_gone(false));
    }

    /// Returns whether a frame belongs to this context, or did until just now.
    pub fn has_frame(&self, frame: &str) -> bool {
        let is_lost_page = self.lock_pages().lost.iter().any(|target| target == frame);
        is_lost_page
            || self
                .pages()
                .iter()
                .any(|page| page.target == frame || page.state().frames.contains_key(frame))
    }

    /// Cancels a download; has no effect if it belongs to another context.
    pub fn cancel_download(&self, guid: &Value) {
        let params = json!({"guid": guid, "browserContextId": self.id});
        self.browser.connection.send_command(None, "Browser.cancelDownload", params);
    }

    /// Handles a download event and logs it to the page it came from.
    pub fn handle_download(&self, method: &str, params: &Value) {
        if let Some(entry) =
            self.downloads.handle_event(&self.browser.connection, &self.id, method, params)
        {
            let frame = params["frameId"].as_str().unwrap_or_default();
            let pages = self.pages();
            let source_page = pages
                .iter()
                .find(|page| page.target == frame || page.state().frames.contains_key(frame));
            if let Some(page) = source_page.or_else(|| pages.last()) {
                page.state().log.add_entry(entry);
            }
        }
    }

    /// Opens a new page and makes it the current one.
    pub async fn open_page(&self) -> Result<Arc<BrowserPage>> {
        if self.lock_pages().all.len() >= MAX_PAGES {
            return Err(Error::new(
                Kind::ResourceExhausted,
                format!("this session has {MAX_PAGES} pages open"),
            )
            .with_hint("Close one with browser.tabs, or navigate in an existing one."));
        }
        let page = self.create_page().await?;
        self.select_page(&page);
        Ok(page)
    }

    /// Replaces a hung page with a new one under the same handle, and closes the old one. Returns
    /// None if another call has done so in the meantime, or if the page was closed.
    pub async fn replace_page(&self, hung: &BrowserPage) -> Result<Option<Arc<BrowserPage>>> {
        let (handle, was_current) = (hung.handle(), self.is_current(hung));
        if !self.remove_page(&hung.session) {
            return Ok(None);
        }
        // A hung page cannot run its unload handlers; without a crash it would keep using CPU until
        // it is closed.
        self.browser.connection.send_command(Some(&hung.session), "Page.crash", json!({}));
        self.browser.connection.send_command(
            None,
            "Target.closeTarget",
            json!({"targetId": hung.target}),
        );
        let page = self.create_page().await?;
        page.take_over_handle(handle);
        page.state().log.add_entry(PageLogEntry::new(
            LogKind::Error,
            "the page hung and was replaced by an empty one",
        ));
        if was_current {
            self.select_page(&page);
        }
        Ok(Some(page))
    }

    async fn create_page(&self) -> Result<Arc<BrowserPage>> {
        let mut changed = self.changed.subscribe();
        let params = json!({"url": super::address::BLANK_PAGE, "browserContextId": self.id});
        let created =
            self.browser.connection.call_method(None, "Target.createTarget", params).await?;
        let target = created["targetId"].as_str().unwrap_or_default();
        let arrival = async {
            loop {
                if let Some(page) = self.pages().into_iter().find(|page| page.target == target) {
                    return page;
                }
                // Cannot fail: `self` holds the sender.
                let _ = changed.changed().await;
            }
        };
        let page = tokio::time::timeout(OPEN_TIMEOUT, arrival).await.map_err(|_| {
            Error::new(Kind::Unavailable, "the browser did not open a page in time")
                .with_reason("browser_hung")
        })?;
        // Commands run in order: once this one returns, all earlier ones are done.
        page.call_method("Page.getFrameTree", json!({})).await?;
        Ok(page)
    }

    /// Returns the open pages.
    pub fn pages(&self) -> Vec<Arc<BrowserPage>> {
        self.lock_pages().all.iter().filter(|page| !page.is_gone()).cloned().collect()
    }

    /// Returns the page with this handle, or the current page.
    pub fn find_page(&self, handle: Option<&str>) -> Option<Arc<BrowserPage>> {
        let current = self.lock_pages().current.clone();
        let pages = self.pages();
        let wanted_handle = handle.unwrap_or(&current);
        let found = pages.iter().find(|page| page.handle() == wanted_handle);
        found.or_else(|| pages.last().filter(|_| handle.is_none())).cloned()
    }

    /// Makes this the current page.
    pub fn select_page(&self, page: &BrowserPage) {
        let handle = page.handle();
        self.lock_pages().current = handle;
    }

    /// Returns whether this is the current page.
    pub fn is_current(&self, page: &BrowserPage) -> bool {
        self.find_page(None).is_some_and(|current| current.handle() == page.handle())
    }

    /// Closes a page.
    pub async fn close_page(&self, page: &BrowserPage) -> Result<()> {
        self.browser
            .connection
            .call_method(None, "Target.closeTarget", json!({"targetId": page.target}))
            .await?;
        self.remove_page(&page.session);
        Ok(())
    }

    fn lock_pages(&self) -> MutexGuard<'_, PageList> {
        self.pages.lock().ignore_poison()
    }
}

impl Drop for BrowserContext {
    fn drop(&mut self) {
        self.remove_all_pages();
        self.browser.remove_context(&self.id);
    }
}
