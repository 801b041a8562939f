//! `escalate = "wider"`: another sandbox with more in it, and still a sandbox.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::{Serving, result};
use crate::escape::{Cx, Mode, Profile, User, is_root};
use crate::support::place::visible_folder;
use crate::support::{SESSIONS, Transport};

fn serving(wider: &str) -> Serving {
    let serving = Serving::new(Transport::Stdio);
    let (out, net) = (serving.pattern("out"), serving.pattern("net"));
    serving.tool("net", "#!/bin/sh\nexec \"$@\"\n");
    let serving = serving
        .config(&format!("[policy]\nescalate = \"wider\"\nescalate_risky = \"outside\"\n[policy.wider]\n{wider}"));
    serving.rules(&[(&out, "allow"), (&net, "allow"), ("[\"cksum\"]", "forbidden"), ("[\"md5sum\"]", "prompt")])
}

#[test]
fn a_directory_can_be_written_that_the_sandbox_cannot_write() {
    let place = visible_folder().join(format!("wider-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let shown = place.display().to_string();
    let serving = serving(&format!("writable = [{shown:?}]"));
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let script = format!(
        "touch {shown}/plain 2>/dev/null; echo $?; $OUT touch {shown}/wide; echo $?; $OUT touch $M 2>/dev/null; echo $?; $OUT touch /etc/x 2>/dev/null; echo $?
         a=$(readlink /proc/self/ns/mnt); b=$($OUT readlink /proc/self/ns/mnt); [ $a != $b ]; echo $?; echo inside > f; $OUT cat f; $OUT sh -c 'exit 9'; echo $?"
    );
    let message = client.call("shell.exec", serving.script(&script));
    let own = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let made: Vec<String> = own.collect();
    std::fs::remove_dir_all(&place).unwrap();
    assert_eq!(result(&message)["stdout"], "1\n0\n1\n1\n0\ninside\n9\n", "{message}");
    assert_eq!(made, ["wide"]);
    assert!(!serving.marker().exists());
}

#[test]
fn an_address_is_reached_that_the_sandbox_cannot_reach() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhost").unwrap();
    });
    let serving = serving(&format!("allow_addresses = [\"127.0.0.1:{port}\"]"));
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let get = format!("curl -s -m 5 --noproxy '' http://127.0.0.1:{port}/");
    let script = format!(
        "{get}; echo $?; $OUT {get}; echo; $OUT curl -s -m 5 --noproxy '' -o /dev/null -w '%{{http_code}}' http://169.254.169.254/; echo"
    );
    let message = client.call("shell.exec", serving.script(&script));
    let said = result(&message)["stdout"].as_str().unwrap().to_owned();
    assert!(said.starts_with("7\nhost\n"), "{message}");
    answering.join().unwrap();
    assert!(!said.ends_with("200\n"), "{message}");
}

/// In there everything is judged as everywhere, and nothing leads further out.
#[test]
fn what_is_forbidden_is_forbidden_there_too() {
    let serving = serving("allow_network = true");
    let mut server = serving.options.clone().spawn();
    let mut client = server.connect(SESSIONS);
    let script = "$OUT cksum /etc/hostname; echo $?; $OUT sh -c 'cksum /etc/hostname'; echo $?; $OUT md5sum /etc/hostname; echo $?
        a=$($OUT readlink /proc/self/ns/mnt); b=$($OUT $OUT readlink /proc/self/ns/mnt); [ \"$a\" != \"$(readlink /proc/self/ns/mnt)\" ]; echo $?; $OUT $OUT touch $M 2>/dev/null; echo $?";
    let message = client.call("shell.exec", serving.script(script));
    let result = result(&message);
    assert_eq!(result["stdout"], "1\n1\n1\n0\n1\n", "{message}");
    assert_eq!(result["stderr"].as_str().unwrap().matches("forbidden: because of forbidden").count(), 2, "{message}");
    assert!(!serving.marker().exists());
}

/// `ringfence sandbox` has one sandbox: what would go to a wider one does not go outside instead.
#[test]
fn a_sandbox_without_a_wider_one_lets_nothing_out_instead() {
    let user = if is_root() { User::Root } else { User::Own };
    let cx = Cx::new(Mode { user, profile: Some(Profile::Default) });
    let mut place = super::Place::new(&cx);
    let who = if is_root() { "escalate_as = \"nobody\"\n" } else { "" };
    place.config = format!("[policy]\nescalate = \"wider\"\n{who}[policy.wider]\nallow_network = true\n");
    let run = place.bash("$OUT touch $M; echo $?");
    assert_ne!(super::said(&run), "0\n", "{run:?}");
    assert!(!std::path::Path::new(&place.marker()).exists(), "{run:?}");
}
