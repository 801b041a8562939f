//! A registry on the loopback: it serves what a test puts into it, and counts the requests.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::server::Scratch;

/// Bodies by path, with their type.
type Pages = Arc<Mutex<BTreeMap<String, (&'static str, Vec<u8>)>>>;

pub struct Registry {
    pub port: u16,
    pages: Pages,
    requests: Arc<AtomicUsize>,
    scratch: Arc<Scratch>,
}

impl Registry {
    pub fn start() -> Registry {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let registry = Registry {
            port: listener.local_addr().unwrap().port(),
            pages: Pages::default(),
            requests: Arc::default(),
            scratch: Scratch::new(),
        };
        let (pages, requests) = (Arc::clone(&registry.pages), Arc::clone(&registry.requests));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (pages, requests) = (Arc::clone(&pages), Arc::clone(&requests));
                std::thread::spawn(move || serve(&stream, &pages, &requests));
            }
        });
        registry
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    pub fn request_count(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    pub fn put(&self, path: &str, kind: &'static str, body: Vec<u8>) {
        self.pages.lock().unwrap().insert(path.to_owned(), (kind, body));
    }

    /// Publishes a package for npm with these files; `manifest` is merged over its package.json.
    pub fn publish_npm(&self, name: &str, version: &str, manifest: Value, files: &[(&str, &str)]) {
        let folder = self.scratch.path().join(format!("{version}-npm"));
        let mut package = json!({"name": name, "version": version});
        for (key, value) in manifest.as_object().unwrap() {
            package[key] = value.clone();
        }
        write(&folder.join("package/package.json"), &package.to_string());
        for (path, text) in files {
            write(&folder.join("package").join(path), text);
        }
        let tar =
            Command::new("tar").arg("-C").arg(&folder).args(["-czf", "-", "package"]).output();
        let archive = tar.unwrap().stdout;
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA512, &archive);
        let path = format!("/{name}/-/{name}-{version}.tgz");
        package["dist"] = json!({
            "tarball": format!("http://127.0.0.1:{}{path}", self.port),
            "integrity": format!("sha512-{}", STANDARD.encode(hash)),
        });
        self.put(&path, "application/octet-stream", archive);
        let document =
            json!({"name": name, "dist-tags": {"latest": version}, "versions": {version: package}});
        self.put(&format!("/{name}"), "application/json", document.to_string().into_bytes());
    }

    /// Publishes a wheel with one module and one program for pip.
    pub fn publish_wheel(&self, name: &str, module: &str) {
        let folder = self.scratch.path().join("wheel");
        let info = format!("{name}-1.0.0.dist-info");
        write(&folder.join(format!("{name}.py")), module);
        write(
            &folder.join(&info).join("METADATA"),
            &format!("Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\n"),
        );
        write(
            &folder.join(&info).join("WHEEL"),
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        );
        write(
            &folder.join(&info).join("entry_points.txt"),
            &format!("[console_scripts]\n{name} = {name}:main\n"),
        );
        write(
            &folder.join(&info).join("RECORD"),
            &format!(
                "{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/entry_points.txt,,\n{info}/RECORD,,\n"
            ),
        );
        let file = format!("{name}-1.0.0-py3-none-any.whl");
        let mut zip = Command::new("/usr/bin/python3");
        zip.args(["-m", "zipfile", "-c", &file, &format!("{name}.py"), &info]).current_dir(&folder);
        assert!(zip.status().unwrap().success());
        let archive = std::fs::read(folder.join(&file)).unwrap();
        self.put_archive(name, &file, archive);
    }

    /// Lists one archive in the index.
    pub fn put_archive(&self, name: &str, file: &str, archive: Vec<u8>) {
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &archive);
        let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let page =
            format!("<html><body><a href=\"/files/{file}#sha256={hash}\">{file}</a></body></html>");
        self.put(&format!("/simple/{name}/"), "text/html", page.into_bytes());
        self.put(&format!("/files/{file}"), "application/octet-stream", archive);
    }
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn serve(mut stream: &TcpStream, pages: &Pages, requests: &AtomicUsize) {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    let mut line = String::new();
    if reader.read_line(&mut first).is_err() {
        return;
    }
    while reader.read_line(&mut line).is_ok_and(|count| count > 2) {
        line.clear();
    }
    requests.fetch_add(1, Ordering::SeqCst);
    let path = first.split(' ').nth(1).unwrap_or_default();
    let found = pages.lock().unwrap().get(path).cloned();
    let (status, kind, body) = match found {
        Some((kind, body)) => ("200 OK", kind, body),
        None => ("404 Not Found", "application/json", b"{}".to_vec()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
}
