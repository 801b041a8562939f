//! Screenshots.

use serde_json::{Value, json};

use super::{Stage, called, refused, serve};
use crate::support::{MODERN, Transport, on_every_transport};

/// What the text block says, and the mime type and bytes of the picture.
fn shot(result: &Value) -> (Value, Option<(String, Vec<u8>)>) {
    assert!(result.get("structuredContent").is_none(), "a client would drop the picture");
    let said = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    let picture = result["content"].get(1).map(|block| {
        assert_eq!(block["type"], "image");
        (block["mimeType"].as_str().unwrap().to_owned(), decode(block["data"].as_str().unwrap()))
    });
    (said, picture)
}

fn decode(text: &str) -> Vec<u8> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}

fn png_size(bytes: &[u8]) -> (u32, u32) {
    assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}

/// From the frame header of a JPEG.
fn jpeg_size(bytes: &[u8]) -> (u32, u32) {
    assert_eq!(bytes[..2], [0xff, 0xd8]);
    let mut at = 2;
    loop {
        let length = usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
        if matches!(bytes[at + 1], 0xc0..=0xc2) {
            let number = |at: usize| u32::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
            return (number(at + 7), number(at + 5));
        }
        at += 2 + length;
    }
}

#[test]
fn a_picture_is_written_whole_and_shown_scaled() {
    let mut stage = Stage::new();
    stage.go("/tall");
    let (said, picture) = shot(&stage.call("browser.screenshot", json!({})));
    let (mime, bytes) = picture.unwrap();
    assert_eq!((mime.as_str(), jpeg_size(&bytes)), ("image/jpeg", (1280, 720)));
    assert_eq!(
        (said["width"].as_u64(), said["height"].as_u64(), said.get("path")),
        (Some(1280), Some(720), None)
    );

    let whole = json!({"path": "shots/deep/tall.png", "full_page": true});
    let (said, picture) = shot(&stage.call("browser.screenshot", whole));
    let file = std::fs::read(stage.server.workspace().join("shots/deep/tall.png")).unwrap();
    let (width, height) = png_size(&file);
    assert!(width == 1280 && height > 3100, "{width} x {height}");
    assert_eq!(said["path"], "shots/deep/tall.png");
    assert_eq!(
        (said["bytes"].as_u64(), said["height"].as_u64()),
        (Some(file.len() as u64), Some(u64::from(height)))
    );
    let (shown_width, shown_height) = jpeg_size(&picture.unwrap().1);
    assert!(
        shown_height <= 1568 && shown_height > 1500 && shown_width < 700,
        "{shown_width} x {shown_height}"
    );
    let read = stage.call("file.read", json!({"path": "shots/deep/tall.png"}));
    assert!(read["content"][0]["text"].as_str().unwrap().contains(said["etag"].as_str().unwrap()));

    // Of a page that is scrolled, the part that can be seen; and one element, wherever it is.
    stage.act(json!({"op": "scroll", "dy": 2000}));
    let (said, picture) =
        shot(&stage.call("browser.screenshot", json!({"target": "#box", "format": "png"})));
    let (mime, bytes) = picture.unwrap();
    assert_eq!((mime.as_str(), png_size(&bytes)), ("image/png", (300, 150)));
    assert_eq!(said["mime"], "image/png");
    let (_, picture) = shot(&stage.call("browser.screenshot", json!({"max_width": 320})));
    assert_eq!(jpeg_size(&picture.unwrap().1), (320, 180));
    let (said, picture) =
        shot(&stage.call("browser.screenshot", json!({"path": "a.jpg", "inline": false})));
    assert!(picture.is_none() && said["mime"] == "image/jpeg");
    assert_eq!(
        jpeg_size(&std::fs::read(stage.server.workspace().join("a.jpg")).unwrap()),
        (1280, 720)
    );
    let (_, picture) =
        shot(&stage.call("browser.screenshot", json!({"format": "webp", "quality": 50})));
    assert_eq!(&picture.unwrap().1[8..12], b"WEBP");
}

#[test]
fn a_picture_lands_in_the_workspace_or_nowhere() {
    let mut stage = Stage::new();
    let none = stage.refuse("browser.screenshot", json!({}));
    assert!(none.to_string().contains("browser.navigate"), "{none}");
    stage.go("/");
    std::os::unix::fs::symlink("/tmp", stage.server.workspace().join("out")).unwrap();
    for path in ["../x.png", "/tmp/x.png", "out/x.png", ".codex/x.png", "/proc/self/cwd/x.png"] {
        let error = stage.refuse("browser.screenshot", json!({"path": path})).to_string();
        assert!(error.contains("permission_denied"), "{path}: {error}");
    }
    for wrong in [
        json!({"inline": false}),
        json!({"quality": 0}),
        json!({"max_width": 0}),
        json!({"full_page": true, "target": "h1"}),
        json!({"path": "x.gif"}),
    ] {
        let error = stage.refuse("browser.screenshot", wrong.clone()).to_string();
        assert!(error.contains("invalid_arguments"), "{wrong}: {error}");
    }
    let error = stage.refuse("browser.screenshot", json!({"target": "#nothing"})).to_string();
    assert!(error.contains("not_found"), "{error}");
}

/// What the seed's journey ends with, on every transport and in every version.
#[test]
fn a_page_is_opened_and_its_picture_written_on_every_transport() {
    on_every_transport(
        |options| options,
        |server, client| {
            let url = serve(server, client);
            let opened = called(client, "browser.navigate", json!({"url": url}));
            assert_eq!(opened["structuredContent"]["title"], "Home", "{}", client.at());
            let (said, picture) =
                shot(&called(client, "browser.screenshot", json!({"path": "home.png"})));
            assert_eq!(said["path"], "home.png");
            assert_eq!(
                png_size(&std::fs::read(server.workspace().join("home.png")).unwrap()),
                (1280, 720)
            );
            assert_eq!(jpeg_size(&picture.unwrap().1), (1280, 720));
            if client.version == MODERN && client.transport == Transport::Http {
                // Without a session there is nothing that lasts, and the error says how to get one.
                let handle = client.handle.take();
                let alone = called(client, "browser.navigate", json!({"url": "about:blank"}));
                assert_eq!(alone["structuredContent"]["url"], "about:blank");
                let error = refused(client, "browser.screenshot", json!({})).to_string();
                assert!(error.contains("dev.ringfence/session"), "{}: {error}", client.at());
                client.handle = handle;
            }
        },
    );
}
