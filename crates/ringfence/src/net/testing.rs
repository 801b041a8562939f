//! Test proxy with a fake resolver and test servers. The checks are the real ones; only the last
//! step connects to loopback instead of the public address that was checked.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::allow_list::AllowList;
use super::connector::{Connector, ProxyLimits, direct_dialer};
use super::decision::ProxyDecision;
use super::proxy::Proxy;
use super::resolve::Resolver;

pub const PUBLIC: &str = "93.184.216.34";

/// Fake resolver that returns its answers in order and repeats the last one. Records the names it
/// was asked for.
#[derive(Default)]
pub struct Fake {
    answers: Mutex<HashMap<String, Vec<Vec<IpAddr>>>>,
    pub asked: Mutex<Vec<String>>,
}

impl Fake {
    pub fn answer(self, name: &str, answers: &[&[&str]]) -> Fake {
        let addresses = |texts: &&[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        self.answers
            .lock()
            .unwrap()
            .insert(name.to_owned(), answers.iter().map(addresses).collect());
        self
    }
}

impl Resolver for Fake {
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        self.asked.lock().unwrap().push(name.to_owned());
        let mut answers = self.answers.lock().unwrap();
        let found = answers.get_mut(name).map(|answers| {
            if answers.len() > 1 {
                answers.remove(0)
            } else {
                answers.first().cloned().unwrap_or_default()
            }
        });
        Box::pin(async move { found.ok_or_else(|| io::ErrorKind::NotFound.into()) })
    }
}

/// Configuration of a test proxy.
pub struct Setup {
    pub domains: Vec<&'static str>,
    pub deny: Vec<&'static str>,
    pub addresses: Vec<String>,
    pub resolver: Fake,
    pub limits: ProxyLimits,
    /// Server that dialled addresses are redirected to.
    pub upstream: Option<SocketAddr>,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            domains: vec!["example.com"],
            deny: Vec::new(),
            addresses: Vec::new(),
            resolver: Fake::default().answer("example.com", &[&[PUBLIC]]),
            limits: ProxyLimits::default(),
            upstream: None,
        }
    }
}

pub struct Running {
    pub proxy: Proxy,
    pub at: SocketAddr,
    pub resolver: Arc<Fake>,
    pub dialled: Arc<Mutex<Vec<SocketAddr>>>,
    decisions: mpsc::UnboundedReceiver<ProxyDecision>,
}

pub fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

impl Setup {
    pub fn start(self) -> Running {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let allow =
            AllowList::from_lists(&strings(&self.domains), &strings(&self.deny), &self.addresses)
                .unwrap();
        let resolver = Arc::new(self.resolver);
        let dialled = Arc::new(Mutex::new(Vec::new()));
        let (tell, decisions) = mpsc::unbounded_channel();
        let (seen, upstream, real) = (Arc::clone(&dialled), self.upstream, direct_dialer());
        let reach = Connector {
            allow_list: Arc::new(allow),
            resolver: Arc::clone(&resolver) as Arc<dyn Resolver>,
            dial_inside: None,
            dial: Arc::new(move |address| {
                seen.lock().unwrap().push(address);
                real(upstream.unwrap_or(address))
            }),
            on_decision: Arc::new(move |decision: &ProxyDecision| {
                let _ = tell.send(decision.clone());
            }),
            limits: self.limits,
        };
        Running {
            proxy: Proxy::start_with(listener, reach).unwrap(),
            at,
            resolver,
            dialled,
            decisions,
        }
    }
}

impl Running {
    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.at).await.unwrap()
    }

    /// Sends all of it and reads until the proxy closes.
    pub async fn ask(&self, request: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_ref()).await.unwrap();
        read_all(&mut stream).await
    }

    pub async fn decision(&mut self) -> ProxyDecision {
        within(self.decisions.recv()).await.unwrap()
    }

    pub fn no_decision(&mut self) {
        assert!(self.decisions.try_recv().is_err());
    }

    /// Asserts that no name was looked up and no address was dialled.
    pub fn stayed_inside(&self) {
        assert!(self.resolver.asked.lock().unwrap().is_empty());
        assert!(self.dialled.lock().unwrap().is_empty());
    }
}

/// Fails a test that waits for something that never happens, instead of hanging.
pub async fn within<F: Future>(wait: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("nothing came in 20 s")
}

pub async fn read_all(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut bytes = Vec::new();
    within(stream.read_to_end(&mut bytes)).await.unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub async fn read_exactly(stream: &mut (impl AsyncReadExt + Unpin), length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    within(stream.read_exact(&mut bytes)).await.unwrap();
    bytes
}

/// Reads up to and including this text.
pub async fn read_until(stream: &mut (impl AsyncReadExt + Unpin), end: &str) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end.as_bytes()) {
        bytes.extend(read_exactly(stream, 1).await);
    }
    String::from_utf8(bytes).unwrap()
}

/// Listens, and gives what comes in to the test itself.
pub async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// Sends everything back, until the other side ends.
pub async fn echo() -> (SocketAddr, JoinHandle<()>) {
    let (listener, at) = listen().await;
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            });
        }
    });
    (at, serving)
}
