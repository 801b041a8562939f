//! Real processes: their end, their last words, and what they leave.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use ringfence_client::config::{ServerConfig, TrustLevel};
use ringfence_client::{
    ChildSpawner, ClientStatus, Limits, Result, ServerClient, SpawnRequest, SpawnedServer, Spawner,
    ToolCall, UnattendedCall,
};

use super::harness::*;

/// Answers `server/discover` with an error and `initialize` properly; then runs `$1` for each call.
const SERVER: &str = r#"
while read -r line; do
  id=${line#*\"id\":}; id=${id%%,*}
  case $line in
  *server/discover*) echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32601,"message":"no"}}';;
  *\"initialize\"*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{}}}';;
  *tools/call*) eval "$1";;
  esac
done
"#;
const ANSWER: &str = r#"echo '{"jsonrpc":"2.0","id":'$id',"result":{}}'"#;

/// Counts what it starts.
#[derive(Default)]
struct CountingSpawner {
    starts: AtomicUsize,
}

impl Spawner for CountingSpawner {
    fn spawn(&self, request: SpawnRequest) -> BoxFuture<'_, Result<SpawnedServer>> {
        self.starts.fetch_add(1, Ordering::SeqCst);
        ChildSpawner.spawn(request)
    }
}

struct ShellServer {
    client: ServerClient,
    spawner: Arc<CountingSpawner>,
}

impl ShellServer {
    fn new(script: &str, on_call: &str, limits: Limits) -> ShellServer {
        let spawner = Arc::new(CountingSpawner::default());
        let mut options = test_options(limits);
        options.spawner = Some(Arc::clone(&spawner) as Arc<dyn Spawner>);
        let transport = stdio("/bin/sh", &["-c", script, "server", on_call]);
        let config = ServerConfig { trust: TrustLevel::Trusted, transport };
        ShellServer { client: ServerClient::new("shell", config, options, None), spawner }
    }

    async fn call(&self) -> Result<ringfence_client::RawJson> {
        let call = tool_call("x");
        let call = self.client.call_tool(&call, &UnattendedCall);
        tokio::time::timeout(PATIENCE, call).await.expect("the call does not end")
    }

    fn starts(&self) -> usize {
        self.spawner.starts.load(Ordering::SeqCst)
    }
}

/// File that a process writes its id to.
struct PidFile(PathBuf);

impl PidFile {
    fn new(name: &str) -> PidFile {
        PidFile(std::env::temp_dir().join(format!("client-{name}-{}", std::process::id())))
    }

    fn read(&self) -> String {
        std::fs::read_to_string(&self.0).unwrap().trim().to_owned()
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn is_alive(pid: &str) -> bool {
    let state = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    state.is_ok_and(|stat| !stat.contains(") Z "))
}

/// Waits for the end of a process that no one reaps for us.
async fn wait_until_gone(pid: &str) {
    let deadline = Instant::now() + PATIENCE;
    while is_alive(pid) {
        assert!(Instant::now() < deadline, "process {pid} stays");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_death_in_mid_call_fails_it_at_once_with_the_last_words() {
    let on_call = "echo one >&2; echo 'out of cheese' >&2; exit 3";
    let server = ShellServer::new(SERVER, on_call, test_limits());
    let started = Instant::now();
    let error = server.call().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("out of cheese"), "{error}");
    assert!(error.message().contains("exit status: 3"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(10));
    // The first early end is forgiven at once, the second is not.
    assert!(server.call().await.unwrap_err().message().contains("out of cheese"));
    assert_eq!(server.starts(), 2);
    let error = server.call().await.unwrap_err();
    assert!(error.hint().is_some_and(|hint| hint.contains("next attempt")), "{error:?}");
    assert_eq!(server.starts(), 2);
    server.client.close().await;
    assert_eq!(alive_tasks(), 0);
}

/// The call of a reading tool is made again on a new process. If that ends too, the error is the
/// end of the process, nothing else is started, and both ends count as one.
#[tokio::test]
async fn a_reading_call_that_ends_its_server_is_repeated_once() {
    let on_call = format!("case $line in *die*) echo 'no more' >&2; exit 3;; esac; {ANSWER}");
    for is_pinned in [false, true] {
        let server = ShellServer::new(SERVER, &on_call, test_limits());
        server.call().await.unwrap();
        let call = |is_repeated| ToolCall {
            is_read_only: true,
            connection: is_pinned.then(|| server.client.connection_count()),
            is_repeated,
            ..tool_call("die")
        };
        let mut error = server.client.call_tool(&call(false), &UnattendedCall).await.unwrap_err();
        if is_pinned {
            // The caller compares the next process first.
            assert!(error.is_other_connection(), "{error:?}");
            assert_eq!(server.starts(), 1);
            server.call().await.unwrap();
            error = server.client.call_tool(&call(true), &UnattendedCall).await.unwrap_err();
        }
        assert!(error.message().contains("no more"), "{error:?}");
        assert_eq!(server.starts(), 2);
        server.call().await.unwrap();
        assert_eq!(server.starts(), 3);
        server.client.close().await;
    }
}

#[tokio::test]
async fn a_server_that_cannot_start_is_started_once_for_many_callers() {
    let server = ShellServer::new("echo 'no config' >&2; exit 1", "", test_limits());
    let calls = (0..20).map(|_| server.call());
    for result in futures::future::join_all(calls).await {
        assert!(result.unwrap_err().message().contains("no config"));
    }
    assert_eq!(server.starts(), 1);
    let started = Instant::now();
    let error = server.call().await.unwrap_err();
    assert!(started.elapsed() < Duration::from_millis(500));
    assert!(error.hint().is_some_and(|hint| hint.contains("next attempt")), "{error:?}");
    assert_eq!(server.starts(), 1);
    assert!(matches!(server.client.status(), ClientStatus::Failed { retry_in: Some(_), .. }));
    server.client.reset_failures();
    assert!(server.call().await.is_err());
    assert_eq!(server.starts(), 2);
    server.client.close().await;
}

#[tokio::test]
async fn a_command_that_does_not_exist_is_an_error_with_a_hint() {
    let config =
        ServerConfig { trust: TrustLevel::Trusted, transport: stdio("/nonexistent/server", &[]) };
    let mut options = test_options(test_limits());
    options.spawner = Some(Arc::new(ChildSpawner));
    let client = ServerClient::new("missing", config, options, None);
    let error = client.call_tool(&tool_call("x"), &UnattendedCall).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.hint().is_some_and(|hint| hint.contains("PATH")));
}

#[tokio::test]
async fn a_server_that_closes_its_output_and_stays_is_replaced() {
    let pid = PidFile::new("output");
    let on_call = format!("echo $$ > {}; exec >&-; sleep 1000", pid.path());
    let server = ShellServer::new(SERVER, &on_call, test_limits());
    let error = server.call().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let first = pid.read();
    assert!(server.call().await.is_err());
    assert_eq!(server.starts(), 2);
    assert!(!is_alive(&first));
    server.client.close().await;
    assert!(!is_alive(&pid.read()));
    assert_eq!(alive_tasks(), 0);
}

#[tokio::test]
async fn a_server_that_does_not_read_lets_calls_end_by_the_deadline() {
    let limits =
        Limits { call_timeout: Duration::from_millis(300), calls_in_flight: 200, ..test_limits() };
    let server = ShellServer::new(SERVER, "sleep 1000", limits);
    let mut call = tool_call("x");
    call.arguments.insert("text".to_owned(), "x".repeat(10_000).into());
    let calls = (0..100).map(|_| server.client.call_tool(&call, &UnattendedCall));
    for result in futures::future::join_all(calls).await {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    }
    let started = Instant::now();
    server.client.close().await;
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(alive_tasks(), 0);
}

/// Nothing of a server survives: not what it has started, nor what keeps its pipes open.
#[tokio::test]
async fn close_ends_the_whole_process_group() {
    let (leader, child) = (PidFile::new("leader"), PidFile::new("child"));
    let on_call = format!(
        "echo $$ > {}; sleep 1000 & echo $! > {}; {ANSWER}; trap '' TERM HUP",
        leader.path(),
        child.path()
    );
    let server = ShellServer::new(SERVER, &on_call, test_limits());
    server.call().await.unwrap();
    let (leader, child) = (leader.read(), child.read());
    assert!(is_alive(&leader) && is_alive(&child));
    server.client.close().await;
    wait_until_gone(&child).await;
    assert!(!is_alive(&leader));
    assert_eq!(alive_tasks(), 0);
    // The next use starts it again.
    server.call().await.unwrap();
    assert_eq!(server.starts(), 2);
    server.client.close().await;
}

#[tokio::test]
async fn a_dropped_client_leaves_no_process() {
    let (leader, child) = (PidFile::new("dropped"), PidFile::new("dropped-child"));
    let on_call =
        format!("echo $$ > {}; sleep 1000 & echo $! > {}; {ANSWER}", leader.path(), child.path());
    let server = ShellServer::new(SERVER, &on_call, test_limits());
    server.call().await.unwrap();
    drop(server);
    wait_until_gone(&leader.read()).await;
    wait_until_gone(&child.read()).await;
}

/// The runtime ends together with the client, so that no task can clean up.
#[test]
fn a_runtime_that_ends_leaves_no_process() {
    let (leader, child) = (PidFile::new("runtime"), PidFile::new("runtime-child"));
    let on_call =
        format!("echo $$ > {}; sleep 1000 & echo $! > {}; {ANSWER}", leader.path(), child.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = ShellServer::new(SERVER, &on_call, test_limits());
    runtime.block_on(server.call()).unwrap();
    drop(runtime);
    drop(server);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        wait_until_gone(&leader.read()).await;
        wait_until_gone(&child.read()).await;
    });
}
