//! A value in other forms than its own: in a URL, in Basic authentication, and as bytes of a file in base64.

use serde_json::{Value, json};

use super::{serving, set};
use crate::support::Approve;
use crate::support::matrix::eras;

const VALUE: &str = "p/ss w+rd:0123456789";

const SCRIPT: &str = "
import base64, os, sys, urllib.parse
value = os.environ['DB']
if sys.argv[1] == 'url':
    print('GET /?q=' + urllib.parse.quote(value, safe=''), urllib.parse.quote_plus(value), urllib.parse.quote(value))
if sys.argv[1] == 'basic':
    for user in ('', 'a', 'me', 'bob'):
        print('Authorization: Basic ' + base64.b64encode((user + ':' + value).encode()).decode())
if sys.argv[1] == 'write':
    open('kept', 'w').write('the value is ' + value + ', and no more.')
";

const KEYS: &str = "side_effects = [\"filesystem_write\"]\nenv = { DB = \"${secret:DB}\" }";

#[test]
fn a_value_is_redacted_in_urls_basic_authentication_and_base64_of_files() {
    for cell in eras() {
        let serving = serving(cell.transport, SCRIPT, KEYS);
        set(&serving.scratch, "DB", VALUE);
        let mut server = serving.options.clone().spawn();
        let mut client = server.connect(cell.version);
        client.approve = Approve::Session;
        let stdout = |message: &Value| {
            message["result"]["structuredContent"]["stdout"].as_str().unwrap().to_owned()
        };
        let url = stdout(&client.call("tool", json!({"mode": "url"})));
        assert_eq!(url, "GET /?q=[secret:DB] [secret:DB] [secret:DB]\n");
        let basic = stdout(&client.call("tool", json!({"mode": "basic"})));
        assert_eq!(basic.lines().filter(|line| line.contains("[secret:DB]")).count(), 4, "{basic}");
        client.call("tool", json!({"mode": "write"}));
        let read = client.call("file.read", json!({"path": "kept", "encoding": "base64"}));
        let text = read["result"]["content"][0]["text"].as_str().unwrap();
        // Base64 of the same text with stars in place of the value.
        assert!(
            text.starts_with("dGhlIHZhbHVlIGlzICoqKioqKioqKioqKioqKioqKioqLCBhbmQgbm8gbW9yZS4="),
            "{text}"
        );
    }
}
