//! Server side of `ringfence ps` and `ringfence approvals`: a socket under the root directory, one
//! per server, where the server reports its state, and where open questions are listed and answered.
//!
//! One JSON object per line in each direction: `{"status":{}}` gives `{"status":{…}}`; `{"list":{}}`
//! gives `{"pending":[…]}`; `{"answer":{"id":"a-…","answer":"once"}}` gives `{"ok":true}` or
//! `{"ok":false,"error":"…"}`. No run can reach the socket, because the root is closed to all runs.

mod peer;
mod socket_files;
mod status;

use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinHandle, JoinSet};

#[cfg(test)]
pub use peer::ProcessFacts;
pub use peer::{ProcessTable, ServerProcess, SocketPeer, parse_stat};
use peer::{ProcfsTable, may_answer, may_list};
pub use socket_files::{
    ServerSocket, find_sockets, remove_if_stale, remove_stale_sockets, socket_directory,
};
pub use status::{ServerStatus, SessionStatus};

use super::pending::{ApprovalAnswer, PendingQuestions};
use crate::base::{Error, Kind, Result};

/// Longest request line.
pub const MAX_LINE_BYTES: usize = 64 * 1024;
/// Concurrent connections; a person needs one.
const MAX_CONNECTIONS: usize = 16;
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Request on a server's socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum SocketRequest {
    Status {},
    List {},
    Answer { id: String, answer: ApprovalAnswer },
}

/// What a server offers on its socket.
pub struct SocketOffer {
    /// Questions that may be answered here; `None` if `[approval] terminal` is false.
    pub pending: Option<Arc<PendingQuestions>>,
    /// Reports the present state.
    pub status: Box<dyn Fn() -> ServerStatus + Send + Sync>,
}

/// Opens the socket and answers on it until the guard is dropped.
pub async fn serve_socket(
    offer: SocketOffer,
    root: &Path,
    server: ServerProcess,
) -> Result<SocketGuard> {
    serve_with_table(offer, root, server, Arc::new(ProcfsTable)).await
}

async fn serve_with_table(
    offer: SocketOffer,
    root: &Path,
    server: ServerProcess,
    table: Arc<dyn ProcessTable>,
) -> Result<SocketGuard> {
    let socket_error = |error: std::io::Error| {
        Error::new(
            Kind::Unavailable,
            "the socket for `ringfence approvals` and `ringfence ps` cannot be opened",
        )
        .with_hint("Check that the root directory can be written to, or set `[approval] terminal = false`.")
        .with_source(error)
    };
    let dir = socket_directory(root);
    DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(socket_error)?;
    // Tighten an older or looser directory first, so that what is created in it is never open to
    // others, not even briefly.
    fs::set_permissions(&dir, Permissions::from_mode(0o700)).map_err(socket_error)?;
    let socket = ServerSocket::for_server(&dir, server.pid).map_err(socket_error)?;
    let listener = match UnixListener::bind(&socket.address) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            // This pid is ours now, so a socket that does not answer was left by an earlier process
            // with the same pid.
            if UnixStream::connect(&socket.address).await.is_ok() {
                return Err(socket_error(error));
            }
            fs::remove_file(&socket.path).map_err(socket_error)?;
            UnixListener::bind(&socket.address)
        }
        bound => bound,
    }
    .map_err(socket_error)?;
    fs::set_permissions(&socket.path, Permissions::from_mode(0o600)).map_err(socket_error)?;
    let identity = file_identity(&socket.path).map_err(socket_error)?;
    let socket_server = Arc::new(SocketServer {
        offer,
        server,
        uid: rustix::process::geteuid().as_raw(),
        process_table: table,
    });
    let task = tokio::spawn(accept_connections(listener, socket_server));
    Ok(SocketGuard { path: socket.path, identity, task })
}

/// Keeps the socket open. Dropping it closes and removes the socket.
pub struct SocketGuard {
    path: PathBuf,
    /// Device and inode of the socket.
    identity: (u64, u64),
    task: JoinHandle<()>,
}

impl SocketGuard {
    /// Returns the path of the socket.
    #[cfg(test)]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn file_identity(path: &Path) -> std::io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

impl Drop for SocketGuard {
    fn drop(&mut self) {
        self.task.abort();
        // Another server may have taken the name since; leave its socket alone.
        if file_identity(&self.path).is_ok_and(|current_identity| current_identity == self.identity)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!("cannot remove the server's socket: {error}");
        }
    }
}

struct SocketServer {
    offer: SocketOffer,
    server: ServerProcess,
    uid: u32,
    process_table: Arc<dyn ProcessTable>,
}

async fn accept_connections(listener: UnixListener, server: Arc<SocketServer>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve_connection(stream, Arc::clone(&server)));
                }
                Err(error) => {
                    tracing::warn!("the server's socket: {error}");
                    // Most likely out of descriptors: retrying immediately would only burn CPU
                    // time.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            },
        }
    }
}

async fn serve_connection(mut stream: UnixStream, server: Arc<SocketServer>) {
    let peer = match stream.peer_cred() {
        Ok(cred) => {
            let pid = cred.pid().and_then(|pid| u32::try_from(pid).ok());
            let start_time = pid
                .and_then(|pid| server.process_table.read_process(pid))
                .map(|process| process.start_time);
            SocketPeer { uid: cred.uid(), pid, start_time }
        }
        Err(error) => return tracing::warn!("the server's socket: {error}"),
    };
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    if let Err(refusal) = may_list(&peer, server.uid) {
        let _ = send_reply(&mut writer, &refusal_reply(refusal)).await;
        return;
    }
    loop {
        let mut line = Vec::new();
        let mut limited_reader = (&mut reader).take(MAX_LINE_BYTES as u64 + 1);
        let read_result =
            tokio::time::timeout(IDLE_TIMEOUT, limited_reader.read_until(b'\n', &mut line)).await;
        let Ok(Ok(1..)) = read_result else { return };
        if line.len() > MAX_LINE_BYTES {
            let _ = send_reply(&mut writer, &refusal_reply("the line is too long")).await;
            return;
        }
        let reply = server.answer_request(&peer, &line);
        if send_reply(&mut writer, &reply).await.is_err() {
            return;
        }
    }
}

async fn send_reply(
    writer: &mut (impl AsyncWriteExt + Unpin),
    reply: &Value,
) -> std::io::Result<()> {
    let line = format!("{reply}\n");
    let sent = tokio::time::timeout(IDLE_TIMEOUT, writer.write_all(line.as_bytes())).await;
    sent.map_err(|_| std::io::Error::from(ErrorKind::TimedOut))?
}

fn refusal_reply(reason: &str) -> Value {
    json!({"ok": false, "error": reason})
}

impl SocketServer {
    fn answer_request(&self, peer: &SocketPeer, line: &[u8]) -> Value {
        let pending = self.offer.pending.as_deref();
        let (id, answer) = match serde_json::from_slice(line) {
            Ok(SocketRequest::Status {}) => return json!({"status": (self.offer.status)()}),
            Ok(SocketRequest::List {}) => {
                let questions = pending.map(PendingQuestions::list_questions);
                return json!({"pending": questions.unwrap_or_default()});
            }
            Ok(SocketRequest::Answer { id, answer }) => (id, answer),
            Err(_) => return refusal_reply("the line is not a request that this server knows"),
        };
        let Some(pending) = pending else {
            return refusal_reply("this server accepts no answers: `[approval] terminal` is false");
        };
        if let Err(refusal) = may_answer(peer, self.uid, self.server, self.process_table.as_ref()) {
            tracing::warn!(pid = peer.pid, "an answer to {id:?} was refused: {refusal}");
            return refusal_reply(refusal);
        }
        match pending.answer_question(&id, answer, "terminal") {
            true => json!({"ok": true}),
            false => refusal_reply(
                "this question no longer exists: it was answered, withdrawn or has expired",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;

    use tokio::io::Lines;
    use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

    use super::*;
    use crate::approval::ApprovalPrompt;
    use crate::config::scratch::Scratch;

    /// The test process itself with a terminal, or without; and nothing above it but init.
    struct Desk(Mutex<HashMap<u32, ProcessFacts>>);

    impl Desk {
        fn new(has_terminal: bool) -> Arc<Desk> {
            let own =
                ProcessFacts { parent: 1, has_terminal, start_time: 7, is_sandboxed: Some(false) };
            Arc::new(Desk(Mutex::new(HashMap::from([(std::process::id(), own)]))))
        }
    }

    impl ProcessTable for Desk {
        fn read_process(&self, pid: u32) -> Option<ProcessFacts> {
            self.0.lock().unwrap().get(&pid).copied()
        }
    }

    fn prompt(id: &str) -> ApprovalPrompt {
        let text = || "x".to_owned();
        ApprovalPrompt {
            id: id.to_owned(),
            trace_id: text(),
            tool: "shell.exec".to_owned(),
            subject: None,
            description: text(),
            why: text(),
            principal: text(),
            session: text(),
            workspace: text(),
            command: None,
            cwd: text(),
            place: text(),
            search_path: text(),
            env: Vec::new(),
            profile: text(),
            effects: Vec::new(),
            arguments: json!({"command": "make"}),
            command_covers: Vec::new(),
            offers_session: true,
            offers_inside: false,
            asked_unix_ms: 0,
            expires_unix_ms: 0,
        }
    }

    /// Not this process, so that the test itself may answer.
    const ELSEWHERE: ServerProcess = ServerProcess { pid: 4_000_000, client: None };

    fn offer(pending: &Arc<PendingQuestions>) -> SocketOffer {
        let status = || ServerStatus {
            pid: 7,
            version: "1".to_owned(),
            transport: "stdio".to_owned(),
            address: None,
            workspace: None,
            started_unix_ms: 0,
            calls: 2,
            sessions: Vec::new(),
        };
        SocketOffer { pending: Some(Arc::clone(pending)), status: Box::new(status) }
    }

    struct Talk(Lines<BufReader<OwnedReadHalf>>, OwnedWriteHalf);

    impl Talk {
        async fn with(guard: &SocketGuard) -> Talk {
            let socket = ServerSocket::from_path(guard.path().to_owned()).unwrap();
            let (reader, writer) = UnixStream::connect(&socket.address).await.unwrap().into_split();
            Talk(BufReader::new(reader).lines(), writer)
        }

        async fn say(&mut self, line: &str) -> Value {
            self.1.write_all(format!("{line}\n").as_bytes()).await.unwrap();
            serde_json::from_str(&self.0.next_line().await.unwrap().unwrap()).unwrap()
        }
    }

    #[tokio::test]
    async fn a_question_is_listed_and_answered_once() {
        let scratch = Scratch::new();
        let pending = Arc::new(PendingQuestions::default());
        let guard = serve_with_table(offer(&pending), scratch.path(), ELSEWHERE, Desk::new(true))
            .await
            .unwrap();
        let (_asked, answer) = pending.add_question(prompt("a-1")).unwrap();
        let mut talk = Talk::with(&guard).await;
        let listed = talk.say(r#"{"list":{}}"#).await;
        assert_eq!(listed["pending"][0]["id"], "a-1");
        assert_eq!(listed["pending"][0]["tool"], "shell.exec");
        assert_eq!(
            talk.say(r#"{"answer":{"id":"a-1","answer":"session"}}"#).await,
            json!({"ok": true})
        );
        assert_eq!(answer.await.unwrap(), (ApprovalAnswer::Session, "terminal"));
        assert_eq!(talk.say(r#"{"answer":{"id":"a-1","answer":"once"}}"#).await["ok"], false);
        assert_eq!(talk.say(r#"{"list":{}}"#).await, json!({"pending": []}));
    }

    #[tokio::test]
    async fn without_a_terminal_one_may_look_but_not_answer() {
        let scratch = Scratch::new();
        let pending = Arc::new(PendingQuestions::default());
        let guard = serve_with_table(offer(&pending), scratch.path(), ELSEWHERE, Desk::new(false))
            .await
            .unwrap();
        let (_asked, mut answer) = pending.add_question(prompt("a-1")).unwrap();
        let mut talk = Talk::with(&guard).await;
        assert_eq!(talk.say(r#"{"list":{}}"#).await["pending"][0]["id"], "a-1");
        let refused = talk.say(r#"{"answer":{"id":"a-1","answer":"once"}}"#).await;
        assert_eq!(
            refused,
            json!({"ok": false, "error": "answers are accepted only from a terminal"})
        );
        assert!(answer.try_recv().is_err());
        assert_eq!(pending.list_questions().len(), 1);
    }

    #[tokio::test]
    async fn the_server_cannot_answer_itself_on_the_real_table() {
        let scratch = Scratch::new();
        let pending = Arc::new(PendingQuestions::default());
        let guard = serve_socket(offer(&pending), scratch.path(), ServerProcess::without_client())
            .await
            .unwrap();
        let (_asked, _answer) = pending.add_question(prompt("a-1")).unwrap();
        let refused =
            Talk::with(&guard).await.say(r#"{"answer":{"id":"a-1","answer":"once"}}"#).await;
        assert_eq!(refused["ok"], false);
        assert_eq!(pending.list_questions().len(), 1);
    }

    #[tokio::test]
    async fn malformed_lines_are_answered_and_long_ones_end_the_talk() {
        let scratch = Scratch::new();
        let guard =
            serve_with_table(offer(&Arc::default()), scratch.path(), ELSEWHERE, Desk::new(true))
                .await
                .unwrap();
        let mut talk = Talk::with(&guard).await;
        for line in [
            "",
            "x",
            "[]",
            r#"{"list":1}"#,
            r#"{"answer":{"id":"a","answer":"always"}}"#,
            r#"{"list":{},"answer":{}}"#,
        ] {
            assert_eq!(talk.say(line).await["ok"], false, "{line}");
        }
        assert_eq!(talk.say(r#"{"list":{}}"#).await, json!({"pending": []}));
        assert_eq!(talk.say(&"x".repeat(MAX_LINE_BYTES)).await["error"], "the line is too long");
        assert!(!matches!(talk.0.next_line().await, Ok(Some(_))));
    }

    #[tokio::test]
    async fn the_socket_is_private_and_goes_with_the_guard() {
        let scratch = Scratch::new();
        // Beyond what a socket address holds.
        let root = scratch.dir(&"long/".repeat(30));
        let guard = serve_with_table(offer(&Arc::default()), &root, ELSEWHERE, Desk::new(true))
            .await
            .unwrap();
        let path = guard.path().to_owned();
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&socket_directory(&root))), (0o600, 0o700));
        assert_eq!(path.file_name().unwrap(), "server-4000000.sock");
        assert_eq!(Talk::with(&guard).await.say(r#"{"list":{}}"#).await, json!({"pending": []}));
        // A second one with the same number does not take it away.
        assert!(
            serve_with_table(offer(&Arc::default()), &root, ELSEWHERE, Desk::new(true))
                .await
                .is_err()
        );
        drop(guard);
        assert!(!path.exists());
        // A socket that a crash left behind is taken over.
        drop(
            std::os::unix::net::UnixListener::bind(
                ServerSocket::from_path(path.clone()).unwrap().address,
            )
            .unwrap(),
        );
        assert!(path.exists());
        assert!(
            serve_with_table(offer(&Arc::default()), &root, ELSEWHERE, Desk::new(true))
                .await
                .is_ok()
        );
    }

    #[tokio::test]
    async fn a_server_without_terminal_approvals_reports_its_state_and_nothing_else() {
        let scratch = Scratch::new();
        let pending = Arc::new(PendingQuestions::default());
        let silent = SocketOffer { pending: None, ..offer(&pending) };
        let guard =
            serve_with_table(silent, scratch.path(), ELSEWHERE, Desk::new(true)).await.unwrap();
        let (_asked, mut answer) = pending.add_question(prompt("a-1")).unwrap();
        let mut talk = Talk::with(&guard).await;
        let reported = talk.say(r#"{"status":{}}"#).await;
        assert_eq!(
            (&reported["status"]["pid"], &reported["status"]["calls"]),
            (&json!(7), &json!(2))
        );
        assert_eq!(talk.say(r#"{"list":{}}"#).await, json!({"pending": []}));
        let refused = talk.say(r#"{"answer":{"id":"a-1","answer":"once"}}"#).await;
        assert!(refused["error"].as_str().unwrap().contains("terminal"), "{refused}");
        assert!(answer.try_recv().is_err());
    }
}
