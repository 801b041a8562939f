//! Pages of a session: its own context in the browser, which shares no cookies, cache or storage
//! with another.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

use super::downloads::Downloads;
use super::log::{Entry, Kind as LogKind};
use super::page::{Page, is_id};
use super::process::{Asked, Browser, Busy};
use super::traffic::Traffic;
use super::upload::Uploads;
use crate::base::narrowing::Narrowing;
use crate::base::{Error, Kind, Result};
use crate::config::Config;
use crate::sandbox::Launcher;
use crate::sandbox::browser::SessionProxy;
use crate::session::{Session, SessionRef};

/// Maximum number of pages per session. Pages opened beyond it are closed immediately.
pub const PAGES: usize = 20;
/// Timeout for opening a page.
const OPEN: Duration = Duration::from_secs(10);

/// Pages of a session; stored in the session and dropped with it.
#[derive(Default)]
pub struct Tabs {
    context: tokio::sync::Mutex<Option<Arc<Context>>>,
    /// Number of the last handle. Handles are never reused, not even by another browser.
    last: Arc<AtomicU64>,
}

/// Pages of calls that a client has restricted, by restriction; most recently used last.
#[derive(Default)]
struct NarrowedTabs(Mutex<Vec<(Arc<Narrowing>, Arc<Tabs>)>>);

/// Maximum number of restrictions with their own pages; beyond it, the least recently used are
/// closed.
const NARROWED: usize = 4;

impl NarrowedTabs {
    fn get(&self, narrowing: &Arc<Narrowing>) -> Arc<Tabs> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().position(|(known, _)| known == narrowing).map(|at| all.remove(at));
        let (narrowing, tabs) = known.unwrap_or_else(|| (Arc::clone(narrowing), Arc::default()));
        all.push((narrowing, Arc::clone(&tabs)));
        let surplus = all.len().saturating_sub(NARROWED);
        all.drain(..surplus);
        tabs
    }
}

impl Tabs {
    /// Returns the session's pages, or, for a call without a persistent session, pages that end
    /// with the call. Calls that a client has restricted get separate pages: a page opened for a
    /// less restricted call, and its connections, still have that call's wider access.
    pub fn of(view: &SessionRef, narrowing: Option<&Arc<Narrowing>>) -> Result<Arc<Tabs>> {
        match (view.persistent, narrowing) {
            (true, None) => view.session.get_or_create(|| Ok(Tabs::default())),
            (true, Some(narrowing)) => {
                Ok(view.session.get_or_create(|| Ok(NarrowedTabs::default()))?.get(narrowing))
            }
            (false, _) => Ok(Arc::default()),
        }
    }

    /// Returns the session's context; creates a new one if the browser is not the one used last.
    pub async fn open(
        &self,
        session: &Arc<Session>,
        config: &Config,
        launcher: &Launcher,
        denied: &[String],
        terms: Asked<'_>,
    ) -> Result<(Arc<Context>, Busy)> {
        let mut held = self.context.lock().await;
        let browser = Browser::of(session, config, launcher, terms).await?;
        let busy = browser.busy();
        if let Some(context) =
            held.as_ref().filter(|context| Arc::ptr_eq(&context.browser, &browser))
        {
            return Ok((Arc::clone(context), busy));
        }
        *held = None;
        let context =
            Context::new(browser, session, config, launcher, denied, Arc::clone(&self.last))
                .await?;
        *held = Some(Arc::clone(&context));
        Ok((context, busy))
    }

    /// Returns the existing context, if there is one.
    pub async fn current(&self) -> Option<(Arc<Context>, Busy)> {
        let held = self.context.lock().await;
        let context = held.as_ref().filter(|context| !context.browser.line.is_closed())?;
        Some((Arc::clone(context), context.browser.busy()))
    }

    /// Closes all pages, and with them everything the session has stored in the browser.
    pub async fn close(&self) {
        *self.context.lock().await = None;
    }

    /// Returns whether this handle was ever given to a page.
    pub fn knew(&self, handle: &str) -> bool {
        handle
            .strip_prefix('p')
            .and_then(|number| number.parse::<u64>().ok())
            .is_some_and(|number| (1..=self.last.load(Ordering::SeqCst)).contains(&number))
    }
}

/// Context of a session in the browser, with its own cookies, cache, storage and proxy.
pub struct Context {
    /// The browser's id of the context.
    pub id: String,
    /// Browser that it belongs to.
    pub browser: Arc<Browser>,
    /// Downloads of its pages.
    pub downloads: Downloads,
    /// Copies of uploaded files.
    pub uploads: Arc<Uploads>,
    /// Decisions of the proxy about its pages.
    pub traffic: Arc<Traffic>,
    /// Proxy of its pages; closed with the context.
    pub road: SessionProxy,
    last: Arc<AtomicU64>,
    pages: Mutex<Pages>,
    changed: watch::Sender<u64>,
    this: Weak<Context>,
    /// Disposes of the browser's context on drop.
    _made: Made,
}

/// Context in the browser, disposed of on drop.
struct Made {
    browser: Arc<Browser>,
    id: String,
}

impl Drop for Made {
    fn drop(&mut self) {
        if !self.browser.line.is_closed() {
            self.browser.line.order(
                None,
                "Target.disposeBrowserContext",
                json!({"browserContextId": self.id}),
            );
        }
    }
}

/// Maximum number of ended pages remembered: a page that turns out to be a download ends before the
/// download begins.
const LOST: usize = 50;

#[derive(Default)]
struct Pages {
    all: Vec<Arc<Page>>,
    lost: VecDeque<String>,
    /// Handle of the current page, which is used if a call names none.
    current: String,
}

impl Context {
    async fn new(
        browser: Arc<Browser>,
        session: &Arc<Session>,
        config: &Config,
        launcher: &Launcher,
        denied: &[String],
        last: Arc<AtomicU64>,
    ) -> Result<Arc<Context>> {
        let traffic = Arc::new(Traffic::default());
        let road = browser.road(session, config, launcher, denied, &traffic)?;
        traffic.shut_with(road.make_closer());
        // Loopback goes through the proxy, too: it means the session's own loopback.
        let wanted = json!({"disposeOnDetach": true, "proxyServer": road.proxy_url, "proxyBypassList": "<-loopback>"});
        let made = browser.line.call(None, "Target.createBrowserContext", wanted).await?;
        let id = made["browserContextId"].as_str().unwrap_or_default().to_owned();
        let made = Made { browser, id };
        let (browser, id) = (&made.browser, &made.id);
        let downloads = Downloads::new(browser, session, config.limits.output_file_bytes)?;
        let behaviour = json!({
            "behavior": "allowAndName", "browserContextId": id,
            "downloadPath": downloads.folder(), "eventsEnabled": true,
        });
        browser.line.call(None, "Browser.setDownloadBehavior", behaviour).await?;
        let uploads = Uploads::new(browser, config.limits.output_file_bytes);
        let (id, browser) = (id.clone(), Arc::clone(browser));
        let context = Arc::new_cyclic(|this| Context {
            id,
            browser,
            downloads,
            uploads,
            _made: made,
            traffic,
            road,
            last,
            pages: Mutex::default(),
            changed: watch::channel(0).0,
            this: this.clone(),
        });
        context.browser.add_context(&context);
        Ok(context)
    }

    /// Takes over a page that the browser has just created, on our request or by another page.
    pub fn adopt(&self, line: &super::cdp::Line, session: &str, info: &Value) {
        let target = info["targetId"].as_str().unwrap_or_default();
        if self.lock().all.len() >= PAGES || !is_id(target) || !is_id(session) {
            line.order(Some(session), "Runtime.runIfWaitingForDebugger", json!({}));
            line.order(None, "Target.closeTarget", json!({"targetId": target}));
            if let Some(page) = self.lock().all.last() {
                page.state().log.add(Entry::new(
                    LogKind::Blocked,
                    "too many pages: a new page was closed immediately",
                ));
            }
            return;
        }
        let handle = format!("p{}", self.last.fetch_add(1, Ordering::SeqCst) + 1);
        let page = Page::new(handle, line, session, target, self.this.clone());
        page.set_up();
        self.lock().all.push(page);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Removes the page of a protocol session; returns whether it belonged to this context.
    pub fn lose(&self, session: &str) -> bool {
        let mut pages = self.lock();
        let Some(at) = pages.all.iter().position(|page| page.session == session) else {
            return false;
        };
        let page = pages.all.remove(at);
        page.lose(false);
        if pages.lost.len() == LOST {
            pages.lost.pop_front();
        }
        pages.lost.push_back(page.target.clone());
        true
    }

    /// Removes all pages.
    pub fn lose_all(&self) {
        let all = std::mem::take(&mut self.lock().all);
        all.iter().for_each(|page| page.lose(false));
    }

    /// Returns whether a frame belongs to this context, or did until just now.
    pub fn has_frame(&self, frame: &str) -> bool {
        let lost = self.lock().lost.iter().any(|target| target == frame);
        lost || self
            .pages()
            .iter()
            .any(|page| page.target == frame || page.state().frames.contains_key(frame))
    }

    /// Cancels a download; has no effect if it belongs to another context.
    pub fn cancel_download(&self, guid: &Value) {
        let params = json!({"guid": guid, "browserContextId": self.id});
        self.browser.line.order(None, "Browser.cancelDownload", params);
    }

    /// Handles a download event and logs it to the page it came from.
    pub fn download(&self, method: &str, params: &Value) {
        if let Some(entry) = self.downloads.hear(&self.browser.line, &self.id, method, params) {
            let frame = params["frameId"].as_str().unwrap_or_default();
            let pages = self.pages();
            let from = pages
                .iter()
                .find(|page| page.target == frame || page.state().frames.contains_key(frame));
            if let Some(page) = from.or_else(|| pages.last()) {
                page.state().log.add(entry);
            }
        }
    }

    /// Opens a new page and makes it the current one.
    pub async fn open_page(&self) -> Result<Arc<Page>> {
        if self.lock().all.len() >= PAGES {
            return Err(Error::new(
                Kind::ResourceExhausted,
                format!("this session has {PAGES} pages open"),
            )
            .hint("Close one with browser.tabs, or navigate in an existing one."));
        }
        let page = self.create_page().await?;
        self.select(&page);
        Ok(page)
    }

    /// Replaces a hung page with a new one under the same handle, and closes the old one. Returns
    /// None if another call has done so in the meantime, or if the page was closed.
    pub async fn replace_page(&self, hung: &Page) -> Result<Option<Arc<Page>>> {
        let (handle, was_current) = (hung.handle(), self.is_current(hung));
        if !self.lose(&hung.session) {
            return Ok(None);
        }
        // A hung page cannot run its unload handlers; without a crash it would keep using CPU until
        // it is closed.
        self.browser.line.order(Some(&hung.session), "Page.crash", json!({}));
        self.browser.line.order(None, "Target.closeTarget", json!({"targetId": hung.target}));
        let page = self.create_page().await?;
        page.take_over_handle(handle);
        page.state()
            .log
            .add(Entry::new(LogKind::Error, "the page hung and was replaced by an empty one"));
        if was_current {
            self.select(&page);
        }
        Ok(Some(page))
    }

    async fn create_page(&self) -> Result<Arc<Page>> {
        let mut changed = self.changed.subscribe();
        let wanted = json!({"url": super::address::BLANK, "browserContextId": self.id});
        let made = self.browser.line.call(None, "Target.createTarget", wanted).await?;
        let target = made["targetId"].as_str().unwrap_or_default();
        let arrived = async {
            loop {
                if let Some(page) = self.pages().into_iter().find(|page| page.target == target) {
                    return page;
                }
                // Cannot fail: `self` holds the sender.
                let _ = changed.changed().await;
            }
        };
        let page = tokio::time::timeout(OPEN, arrived).await.map_err(|_| {
            Error::new(Kind::Unavailable, "the browser did not open a page in time")
                .reason("browser_hung")
        })?;
        // Commands run in order: once this one returns, all earlier ones are done.
        page.call("Page.getFrameTree", json!({})).await?;
        Ok(page)
    }

    /// Returns the open pages.
    pub fn pages(&self) -> Vec<Arc<Page>> {
        self.lock().all.iter().filter(|page| !page.is_gone()).cloned().collect()
    }

    /// Returns the page with this handle, or the current page.
    pub fn page(&self, handle: Option<&str>) -> Option<Arc<Page>> {
        let current = self.lock().current.clone();
        let pages = self.pages();
        let wanted = handle.unwrap_or(&current);
        let found = pages.iter().find(|page| page.handle() == wanted);
        found.or_else(|| pages.last().filter(|_| handle.is_none())).cloned()
    }

    /// Makes this the current page.
    pub fn select(&self, page: &Page) {
        let handle = page.handle();
        self.lock().current = handle;
    }

    /// Returns whether this is the current page.
    pub fn is_current(&self, page: &Page) -> bool {
        self.page(None).is_some_and(|current| current.handle() == page.handle())
    }

    /// Closes a page.
    pub async fn close_page(&self, page: &Page) -> Result<()> {
        self.browser
            .line
            .call(None, "Target.closeTarget", json!({"targetId": page.target}))
            .await?;
        self.lose(&page.session);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.lose_all();
        self.browser.remove_context(&self.id);
    }
}
