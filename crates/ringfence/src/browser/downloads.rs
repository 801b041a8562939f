//! What pages have the browser save. It is put aside as an output of the session, and read with `file.read`.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::fs::{AtFlags, unlinkat};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::cdp::Line;
use super::log::{Entry, Kind, cut};
use super::process::Browser;
use crate::base::ids::short;
use crate::base::workspace::{Place, Workspace};
use crate::base::{Error, Result};
use crate::session::Session;

/// Of one session.
const MOST: usize = 100;

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Download {
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
}

pub struct Downloads {
    folder: PathBuf,
    /// The same, from the browser's directory down.
    below: String,
    files: Arc<Workspace>,
    session: Weak<Session>,
    largest: u64,
    all: Arc<Mutex<Vec<Download>>>,
    changed: Arc<watch::Sender<u64>>,
}

impl Downloads {
    /// In the browser's own directory, which nobody else looks into.
    pub fn new(browser: &Browser, session: &Arc<Session>, largest: u64) -> Result<Downloads> {
        let below = format!("downloads/{}", short("d"));
        browser.files.place(&format!("{below}/x"), true)?;
        Ok(Downloads {
            folder: browser.dir.join(&below),
            below,
            files: Arc::clone(&browser.files),
            session: Arc::downgrade(session),
            largest,
            all: Arc::default(),
            changed: Arc::new(watch::channel(0).0),
        })
    }

    pub fn folder(&self) -> String {
        self.folder.display().to_string()
    }

    pub fn count(&self) -> usize {
        lock(&self.all).len()
    }

    /// Those from the `from`th on. They are given a moment to end.
    pub async fn since(&self, from: usize, patience: Duration) -> Vec<Download> {
        let mut changed = self.changed.subscribe();
        let ended = async {
            while lock(&self.all).iter().skip(from).any(|download| download.state == "running") {
                // The sender is ours, so this cannot fail while we are here.
                let _ = changed.changed().await;
            }
        };
        // Those that need longer are reported as running.
        let _ = tokio::time::timeout(patience, ended).await;
        lock(&self.all).iter().skip(from).cloned().collect()
    }

    /// Takes an event of the browser's; the answer is what the log of the page shall say about it.
    pub fn hear(&self, line: &Line, context: &str, method: &str, params: &Value) -> Option<Entry> {
        let id = params["guid"].as_str()?;
        let cancel = || line.order(None, "Browser.cancelDownload", json!({"guid": id, "browserContextId": context}));
        if method == "Browser.downloadWillBegin" {
            let known = params["browserContextId"].as_str().is_none_or(|other| other == context);
            if !known || !is_plain(id) {
                return None;
            }
            let name = cut(params["suggestedFilename"].as_str().unwrap_or("download"), 200);
            let url = cut(params["url"].as_str().unwrap_or_default(), 2000);
            let entry = Entry::new(Kind::Download, &name).level("running").url(&url);
            let mut all = lock(&self.all);
            if all.len() >= MOST {
                cancel();
                return Some(Entry::new(Kind::Download, "there are too many downloads").level("cancelled").url(&url));
            }
            all.push(Download { name, url, state: "running", bytes: 0, output: None, id: id.to_owned() });
            return Some(entry);
        }
        let mut all = lock(&self.all);
        let download = all.iter_mut().find(|download| download.id == id && download.state == "running")?;
        download.bytes = number(&params["receivedBytes"]);
        let total = number(&params["totalBytes"]);
        if download.bytes.max(total) > self.largest {
            download.state = "too_large";
            cancel();
        } else if params["state"] == "canceled" {
            download.state = "cancelled";
        } else if params["state"] == "completed" {
            let (all, changed, session) = (Arc::clone(&self.all), Arc::clone(&self.changed), self.session.clone());
            let (files, file) = (Arc::clone(&self.files), format!("{}/{id}", self.below));
            let (id, largest) = (id.to_owned(), self.largest);
            tokio::task::spawn_blocking(move || {
                let kept = session.upgrade().map(|session| keep(&session, &files, &file, largest));
                let mut all = lock(&all);
                if let Some(download) = all.iter_mut().find(|download| download.id == id) {
                    match kept {
                        Some(Ok(output)) => {
                            download.state = "completed";
                            download.output = Some(output);
                        }
                        Some(Err(error)) => {
                            tracing::warn!("a download cannot be kept: {error}");
                            download.state = "failed";
                        }
                        None => download.state = "failed",
                    }
                }
                drop(all);
                changed.send_modify(|count| *count += 1);
            });
            return None;
        } else {
            return None;
        }
        drop(all);
        self.changed.send_modify(|count| *count += 1);
        None
    }
}

/// Moves it to where it lives as long as the session. The browser may have put anything there, so it is opened as any
/// other place of somebody else's, and its end is not believed.
fn keep(session: &Session, files: &Workspace, file: &str, largest: u64) -> Result<String> {
    let failed = |error: io::Error| Error::internal("the download cannot be kept").source(error);
    let from = files.open_read(file)?.file;
    let (handle, mut to) = session.outputs.create()?;
    io::copy(&mut from.take(largest), &mut to).and_then(|_| to.flush()).map_err(failed)?;
    if let Place::Ready { dir, name, .. } = files.place(file, false)? {
        unlinkat(&dir, &name, AtFlags::empty()).map_err(|errno| failed(errno.into()))?;
    }
    Ok(handle)
}

/// The browser's own ids, and nothing that could be a path.
fn is_plain(id: &str) -> bool {
    !id.is_empty() && id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn number(value: &Value) -> u64 {
    value.as_f64().map_or(0, |number| number.max(0.0) as u64)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
