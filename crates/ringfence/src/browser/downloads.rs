//! Downloads of a session's pages. They are stored as outputs of the session and read with
//! `file.read`.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use rustix::fs::{AtFlags, unlinkat};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::cdp::CdpConnection;
use super::page_log::{PageLogEntry, PageLogKind, escape_line, truncate_text};
use super::process::BrowserProcess;
use crate::base::IgnorePoison;
use crate::base::ids::short_id;
use crate::base::workspace::{Workspace, WriteTarget};
use crate::base::{Error, Result};
use crate::session::Session;

/// Maximum number of downloads of one session.
const MAX_DOWNLOADS: usize = 100;
/// The total size per session is limited to this many times the maximum size of one file.
const SESSION_SIZE_FACTOR: u64 = 4;

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PageDownload {
    pub name: String,
    pub url: String,
    /// running, completed, cancelled, too_large or failed.
    pub state: &'static str,
    pub bytes: u64,
    /// Read it with file.read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    #[serde(skip)]
    id: String,
    /// It is being stored; further events of the browser about it are ignored.
    #[serde(skip)]
    storing: bool,
}

/// Downloads of one session.
pub struct SessionDownloads {
    folder: PathBuf,
    /// The same directory, relative to the browser's directory.
    relative_dir: String,
    browser_dir: Arc<Workspace>,
    session: Weak<Session>,
    max_file_bytes: u64,
    items: Arc<Mutex<Vec<PageDownload>>>,
    changed: Arc<watch::Sender<u64>>,
}

impl SessionDownloads {
    /// Creates the download directory in the browser's private directory.
    pub fn new(
        browser: &BrowserProcess,
        session: &Arc<Session>,
        max_file_bytes: u64,
    ) -> Result<SessionDownloads> {
        let relative_dir = format!("downloads/{}", short_id("d"));
        browser.files.find_write_target(&format!("{relative_dir}/x"), true)?;
        Ok(SessionDownloads {
            folder: browser.dir.join(&relative_dir),
            relative_dir,
            browser_dir: Arc::clone(&browser.files),
            session: Arc::downgrade(session),
            max_file_bytes,
            items: Arc::default(),
            changed: Arc::new(watch::channel(0).0),
        })
    }

    /// Returns the download directory.
    pub fn folder(&self) -> String {
        self.folder.display().to_string()
    }

    /// Returns the number of downloads so far.
    pub fn count(&self) -> usize {
        lock_mutex(&self.items).len()
    }

    /// Returns the downloads from index `first_index` on. Waits up to `timeout` for them to end,
    /// and, if one is known to be coming, for it to begin: the browser announces it only after it
    /// has said that an address is a download.
    pub async fn wait_for_downloads(
        &self,
        first_index: usize,
        expects_new: bool,
        timeout: Duration,
    ) -> Vec<PageDownload> {
        let mut changed = self.changed.subscribe();
        let completion = async {
            let is_pending = |downloads: &[PageDownload]| {
                expects_new && downloads.len() <= first_index
                    || downloads
                        .iter()
                        .skip(first_index)
                        .any(|download| download.state == "running")
            };
            while is_pending(&lock_mutex(&self.items)) {
                // Cannot fail: `self` holds the sender.
                let _ = changed.changed().await;
            }
        };
        // Downloads that take longer are reported as running.
        let _ = tokio::time::timeout(timeout, completion).await;
        lock_mutex(&self.items).iter().skip(first_index).cloned().collect()
    }

    /// Handles an event of the browser; returns what the page's log should say about it.
    pub fn handle_event(
        &self,
        connection: &CdpConnection,
        context: &str,
        method: &str,
        params: &Value,
    ) -> Option<PageLogEntry> {
        let id = params["guid"].as_str()?;
        let cancel = || {
            connection.send_command(
                None,
                "Browser.cancelDownload",
                json!({"guid": id, "browserContextId": context}),
            )
        };
        if method == "Browser.downloadWillBegin" {
            if !is_safe_id(id) {
                return None;
            }
            let name = escape_line(&truncate_text(
                params["suggestedFilename"].as_str().unwrap_or("download"),
                200,
            ));
            let url = escape_line(&truncate_text(params["url"].as_str().unwrap_or_default(), 2000));
            let entry = PageLogEntry::new(PageLogKind::Download, &name)
                .with_level("running")
                .with_url(&url);
            let mut downloads = lock_mutex(&self.items);
            if downloads.len() >= MAX_DOWNLOADS {
                cancel();
                return Some(
                    PageLogEntry::new(PageLogKind::Download, "too many downloads")
                        .with_level("cancelled")
                        .with_url(&url),
                );
            }
            if downloads.iter().any(|download| download.id == id) {
                return None;
            }
            let id = id.to_owned();
            downloads.push(PageDownload {
                name,
                url,
                state: "running",
                bytes: 0,
                output: None,
                id,
                storing: false,
            });
            drop(downloads);
            self.changed.send_modify(|count| *count += 1);
            return Some(entry);
        }
        let mut downloads = lock_mutex(&self.items);
        let others = downloads
            .iter()
            .filter(|download| download.id != id && download.counts_towards_limit());
        let others: u64 = others.map(|download| download.bytes).fold(0, u64::saturating_add);
        let max_bytes = self
            .max_file_bytes
            .min(self.max_file_bytes.saturating_mul(SESSION_SIZE_FACTOR).saturating_sub(others));
        let is_running = |download: &&mut PageDownload| {
            download.id == id && download.state == "running" && !download.storing
        };
        let download = downloads.iter_mut().find(is_running)?;
        download.bytes = byte_count(&params["receivedBytes"]);
        let total = byte_count(&params["totalBytes"]);
        if download.bytes.max(total) > max_bytes {
            download.state = "too_large";
            cancel();
        } else if params["state"] == "canceled" {
            download.state = "cancelled";
        } else if params["state"] == "completed" {
            download.storing = true;
            let (downloads, changed, session) =
                (Arc::clone(&self.items), Arc::clone(&self.changed), self.session.clone());
            let (browser_dir, file) =
                (Arc::clone(&self.browser_dir), format!("{}/{id}", self.relative_dir));
            let id = id.to_owned();
            tokio::task::spawn_blocking(move || {
                let stored = session
                    .upgrade()
                    .map(|session| store_download(&session, &browser_dir, &file, max_bytes));
                let mut downloads = lock_mutex(&downloads);
                if let Some(download) = downloads.iter_mut().find(|download| download.id == id) {
                    match stored {
                        Some(Ok(Some((output, bytes)))) => {
                            download.state = "completed";
                            download.bytes = bytes;
                            download.output = Some(output);
                        }
                        Some(Ok(None)) => download.state = "too_large",
                        Some(Err(error)) => {
                            tracing::warn!("a download could not be stored: {error}");
                            download.state = "failed";
                        }
                        None => download.state = "failed",
                    }
                }
                drop(downloads);
                changed.send_modify(|count| *count += 1);
            });
            return None;
        } else {
            return None;
        }
        drop(downloads);
        self.changed.send_modify(|count| *count += 1);
        None
    }
}

impl PageDownload {
    /// Returns whether its size counts towards the limit of the session.
    fn counts_towards_limit(&self) -> bool {
        ["running", "completed"].contains(&self.state)
    }
}

/// Moves a download to the outputs of the session. Returns its handle and size, or None if it is
/// too large. The browser may have put anything there, so the file is opened like any untrusted
/// path, and the size that the browser reported is not trusted.
fn store_download(
    session: &Session,
    browser_dir: &Workspace,
    file: &str,
    max_bytes: u64,
) -> Result<Option<(String, u64)>> {
    let store_error =
        |error: io::Error| Error::internal("the download cannot be stored").with_source(error);
    let source = browser_dir.open_read(file)?.file;
    let mut output = session.outputs.create_output()?;
    let copied =
        io::copy(&mut source.take(max_bytes.saturating_add(1)), &mut output).and_then(|copied| {
            output.flush()?;
            Ok(copied)
        });
    let copied = match copied {
        Ok(copied) if copied <= max_bytes => Some((output.handle.clone(), copied)),
        // Half a file is of no use to the reader.
        Ok(_) => {
            output.discard();
            None
        }
        Err(error) => {
            output.discard();
            return Err(store_error(error));
        }
    };
    if let WriteTarget::Ready { dir, name, .. } = browser_dir.find_write_target(file, false)? {
        unlinkat(&dir, &name, AtFlags::empty()).map_err(|errno| store_error(errno.into()))?;
    }
    Ok(copied)
}

/// Returns whether this can be an id made by the browser, and cannot be a path.
fn is_safe_id(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= 64
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn byte_count(value: &Value) -> u64 {
    value.as_f64().map_or(0, |number| number.max(0.0) as u64)
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().ignore_poison()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::scratch::Scratch;

    #[tokio::test]
    async fn downloads_are_stored_once_and_bounded_together() {
        let scratch = Scratch::new();
        let folder = scratch.dir("browser");
        let downloads = SessionDownloads {
            browser_dir: Arc::new(Workspace::open(&folder, &[]).unwrap()),
            folder,
            relative_dir: "downloads".into(),
            session: Weak::new(),
            max_file_bytes: 100,
            items: Arc::default(),
            changed: Arc::new(watch::channel(0).0),
        };
        let (near, _far) = tokio::io::duplex(1 << 16);
        let line = CdpConnection::new(near);
        let hear = |method: &str, params: Value| {
            downloads.handle_event(&line, "c", &format!("Browser.{method}"), &params)
        };
        for id in ["a", "b", "c", "d", "e"] {
            let name = "x\ndownload y: completed";
            assert!(
                hear("downloadWillBegin", json!({"guid": id, "suggestedFilename": name})).is_some()
            );
            assert!(
                hear("downloadWillBegin", json!({"guid": id})).is_none(),
                "it has begun already"
            );
            hear(
                "downloadProgress",
                json!({"guid": id, "receivedBytes": 90, "totalBytes": 90, "state": "inProgress"}),
            );
        }
        let states = || {
            lock_mutex(&downloads.items).iter().map(|download| download.state).collect::<Vec<_>>()
        };
        assert_eq!(states(), ["running", "running", "running", "running", "too_large"]);
        assert_eq!(lock_mutex(&downloads.items)[0].name, "x\\ndownload y: completed");
        hear("downloadProgress", json!({"guid": "a", "receivedBytes": 90, "state": "completed"}));
        assert!(lock_mutex(&downloads.items)[0].storing);
        hear("downloadProgress", json!({"guid": "a", "receivedBytes": 1, "state": "canceled"}));
        assert_ne!(states()[0], "cancelled", "it is decided already");
    }
}
